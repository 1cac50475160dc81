//! Offline training on the CPU: candle's learner on a filled ring.

use anyhow::Context;
use cpu_path::CpuLearner;
use gpu::philox;
use settings::{Config, NoisyLayout, Priority};

use crate::step::Kept;
use crate::train::Stop;
use crate::train::agent::StepRow;
use crate::train::cpu::{masks, noise, part_row, taus};
use crate::train::offline::{OfflineAgent, OfflineData};
use crate::train::replay::{Draw, HostReplay};

/// The learner with the data set in host memory.
pub struct CpuOffline<'a> {
    config: &'a Config,
    learner: CpuLearner,
    replay: HostReplay,
    step: u64,
    factors: usize,
}

impl<'a> CpuOffline<'a> {
    /// A learner with the initial parameters of the seed.
    ///
    /// # Errors
    /// A setting that cannot work.
    pub fn new(config: &'a Config, data: &OfflineData) -> anyhow::Result<Self> {
        Ok(Self {
            config,
            learner: CpuLearner::from_config(config)?,
            replay: HostReplay::filled(config, &data.learned),
            step: 0,
            factors: NoisyLayout::new(&config.model).factors,
        })
    }
}

impl OfflineAgent for CpuOffline<'_> {
    fn device(&self) -> String {
        "CPU (candle, f32)".into()
    }

    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Vec<StepRow>> {
        let (batch, branches) = (self.config.train.batch, self.config.model.branches.len());
        let seed = self.config.train.seed;
        let mut rows = Vec::with_capacity(steps);
        for done in 0..steps {
            if stop.asked() {
                break;
            }
            let Draw { batch: mut sample, slots } = self.replay.sample(batch, branches, seed, self.step);
            let iqn = &self.config.iqn;
            if iqn.enabled {
                sample.taus = taus(batch * iqn.samples, seed, self.step, philox::Stream::IqnTau);
                let count = batch * iqn.target_samples;
                sample.target_taus = taus(count, seed, self.step, philox::Stream::IqnTauTarget);
            }
            if self.config.model.noisy {
                sample.noise = noise(self.factors, seed, self.step);
            }
            if self.config.ensemble.enabled {
                sample.masks = masks(batch, &self.config.ensemble, seed, self.step);
            }
            let metrics = self.learner.train_step(&sample).context("training step")?;
            self.step += 1;
            if !metrics.skipped {
                let c51 = match self.config.replay.priority {
                    Priority::Td => &metrics.td,
                    Priority::CrossEntropy => &metrics.cross_entropy,
                };
                self.replay.update(&slots, c51, &metrics.iqn_loss);
            }
            rows.push(StepRow {
                loss: metrics.loss as f32,
                td: metrics.td.iter().sum::<f32>() / batch as f32,
                q: metrics.mean_q as f32,
                clipped_low: metrics.clipped_low as f32,
                clipped_high: metrics.clipped_high as f32,
                gradient_norm: metrics.grad_norm as f32,
                skipped: metrics.skipped,
                parts: part_row(&metrics, self.config.parts().budgeted()),
            });
            if self.learner.skipped().1 >= self.config.train.max_nonfinite {
                break;
            }
            progress(done + 1);
        }
        Ok(rows)
    }

    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)> {
        let state = self.learner.export();
        Ok((state.online, state.target))
    }

    fn kept(&mut self) -> anyhow::Result<Kept> {
        let state = self.learner.export();
        Ok(Kept { iql: state.iql, confidence: state.confidence })
    }

    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64> {
        Ok(self.learner.skipped().1.into())
    }
}
