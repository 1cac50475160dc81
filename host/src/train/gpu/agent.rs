//! What the training loop asks of the agent.

use std::ops::ControlFlow;

use anyhow::{Context, bail};
use gpu::clock;
use gpu::market::{LOG_FIELDS, LogRow};
use gpu::task::Finished;
use settings::Pruning;

use super::source::Source;
use super::{CHUNK, COLLECTOR, GpuAgent, STEPS, VACCINE};
use crate::cublaslt::cache::PlanTable;
use crate::exec::Memory;
use crate::step::{Kept, state};
use crate::tensors::Tensors;
use crate::train::Stop;
use crate::train::agent::{Agent, Learned, PartName, StepRow};
use crate::train::profiler::StepProfile;

impl Agent for GpuAgent {
    fn device(&self) -> String {
        self.description.clone()
    }

    fn collect(&mut self, steps: usize, epsilon: f32, stop: &Stop) -> anyhow::Result<usize> {
        let adapts = self.adapts_epsilon()?;
        let Source::Collection(collection) = &self.source else {
            // There is nothing to collect from.
            return Ok(steps);
        };
        if !adapts {
            self.exec.upload(collection.collector.epsilon, &[epsilon])?;
        }
        if let Some(vaccine) = &self.vaccine {
            // It explores as the schedule says: its transitions are to be ordinary ones.
            self.exec.upload(vaccine.collector.epsilon, &[epsilon])?;
        }
        let mut done = 0;
        while done < steps && !stop.asked() {
            collection.graph.replay(&mut self.exec)?;
            if let Some(vaccine) = &self.vaccine {
                vaccine.collect_graph.replay(&mut self.exec)?;
            }
            done += 1;
        }
        self.exec.synchronize()?;
        Ok(done)
    }

    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<StepRow>> {
        let mut rows = Vec::with_capacity(steps);
        let begun = self.steps;
        while rows.len() < steps && !stop.asked() {
            let chunk = CHUNK.min(steps - rows.len());
            self.launch(chunk, begun + steps as u64)?;
            // Downloading waits for the chunk; launches of the next one follow at once.
            rows.extend(self.history(chunk)?);
            if progress(rows.len()).is_break() || self.skipped_in_a_row()? >= self.max_nonfinite {
                break;
            }
        }
        Ok(rows)
    }

    fn backtest(&mut self, part: PartName, symbol: usize, stop: &Stop) -> anyhow::Result<Vec<LogRow>> {
        let backtest = self.backtests.iter().find(|b| b.part == part).context("no backtest of this part")?;
        let pass = backtest.symbols.get(symbol).with_context(|| format!("no symbol number {symbol}"))?;
        let collector = backtest.collector;
        let market = collector.environment.market().context("only a market has a backtest")?;
        collector.reset(&mut self.exec)?;
        market.begin_at(&mut self.exec, &pass.params, pass.start)?;
        collector.record_first(&mut self.exec, &self.shape)?;
        for _ in 0..pass.bars {
            stop.check()?;
            backtest.graph.replay(&mut self.exec)?;
        }
        let log = self.exec.download(market.log)?;
        let mut rows = Vec::with_capacity(pass.bars);
        for words in log.chunks_exact(LOG_FIELDS as usize).take(pass.bars) {
            let Some(row) = LogRow::load(|i| words[i as usize]) else { break };
            rows.push(row);
        }
        Ok(rows)
    }

    fn episodes(&mut self, seed: u64, stop: &Stop) -> anyhow::Result<Vec<Finished>> {
        self.greedy.as_ref().context("only a control task has episodes to evaluate")?.run(
            &mut self.exec,
            seed,
            stop,
        )
    }

    fn learned(&mut self) -> anyhow::Result<Learned> {
        let p = self.buffers.parameters;
        Ok(Learned {
            online: self.exec.download(p.online)?,
            target: self.exec.download(p.target)?,
            m: self.exec.download(p.m)?,
            v: self.exec.download(p.v)?,
            updates: clock::adam::updates(&self.exec.download(self.buffers.adam)?, self.steps),
            spectral: match &self.buffers.spectral {
                Some(s) => [self.exec.download(s.u)?, self.exec.download(s.v)?].concat(),
                None => Vec::new(),
            },
            kept: self.buffers.kept(&mut self.exec)?,
        })
    }

    fn set_learned(&mut self, learned: &Learned) -> anyhow::Result<()> {
        let p = self.buffers.parameters;
        self.set_parameters(&learned.online, &learned.target)?;
        self.exec.upload(p.m, &learned.m)?;
        self.exec.upload(p.v, &learned.v)?;
        // For an even and for an odd step: which of the two the next one is, the clock says.
        let mut words = [0u64; clock::adam::WORDS as usize];
        words[clock::adam::UPDATES as usize..][..2].fill(learned.updates);
        self.exec.upload(self.buffers.adam, &words)?;
        if let Some(s) = &self.buffers.spectral
            && learned.spectral.len() == s.u.len() + s.v.len()
        {
            let (u, v) = learned.spectral.split_at(s.u.len());
            self.exec.upload(s.u, u)?;
            self.exec.upload(s.v, v)?;
        }
        self.set_kept(&learned.kept)
    }

    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)> {
        let p = self.buffers.parameters;
        Ok((self.exec.download(p.online)?, self.exec.download(p.target)?))
    }

    fn set_parameters(&mut self, online: &[f32], target: &[f32]) -> anyhow::Result<()> {
        let p = self.buffers.parameters;
        self.exec.upload(p.online, online)?;
        Ok(self.exec.upload(p.target, target)?)
    }

    fn sensitivity(&mut self) -> anyhow::Result<Vec<f32>> {
        match self.buffers.probe.filter(|_| self.steps >= self.shape.parts.probe.every as u64) {
            Some(probe) => Ok(self.exec.download(probe.sensitivity)?),
            None => Ok(Vec::new()),
        }
    }

    fn kept(&mut self) -> anyhow::Result<Kept> {
        Ok(self.buffers.kept(&mut self.exec)?)
    }

    fn set_kept(&mut self, kept: &Kept) -> anyhow::Result<()> {
        Ok(self.buffers.set_kept(&mut self.exec, kept)?)
    }

    fn save_state(&mut self) -> anyhow::Result<Tensors> {
        let mut state = Tensors::default();
        state.put(STEPS, vec![self.steps]);
        state::save(&mut self.exec, &self.buffers.state(), &mut state)?;
        match &self.source {
            Source::Collection(collection) => {
                let collector = collection.collector;
                collector.save(&mut self.exec, COLLECTOR, &mut state)?;
            }
            // The transitions themselves never change.
            Source::Resident { .. } | Source::Staged(_) => {
                let priorities = self.priorities();
                state::save(&mut self.exec, &priorities, &mut state)?;
            }
        }
        if let Some(vaccine) = &self.vaccine {
            vaccine.collector.save(&mut self.exec, VACCINE, &mut state)?;
        }
        Ok(state)
    }

    fn load_state(&mut self, state: &mut Tensors) -> anyhow::Result<()> {
        self.steps = state.take::<u64>(STEPS, 1)?[0];
        state::load(&mut self.exec, &self.buffers.state(), state)?;
        match &mut self.source {
            Source::Collection(collection) => {
                let collector = collection.collector;
                collector.load(&mut self.exec, COLLECTOR, state)?;
            }
            Source::Resident { .. } => {
                let priorities = self.priorities();
                state::load(&mut self.exec, &priorities, state)?;
            }
            Source::Staged(staging) => staging.begin(&mut self.exec, self.steps)?,
        }
        if let Some(vaccine) = &self.vaccine {
            vaccine.collector.load(&mut self.exec, VACCINE, state)?;
        }
        let counted = self.exec.download(self.buffers.clock)?[clock::STEP as usize];
        if counted != self.steps {
            bail!("{STEPS} is {}, and the device counted {counted} training steps", self.steps);
        }
        Ok(())
    }

    fn plans(&self) -> Option<PlanTable> {
        self.exec.plan_table()
    }

    fn sparsity(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
        let Some(pruning) = self.buffers.pruning else { return Ok(Vec::new()) };
        let zeros = self.exec.download(pruning.zeros)?;
        let matrices = Pruning::matrices(&self.shape.layout).zip(zeros);
        Ok(matrices.map(|(t, zeros)| (t.name.clone(), f64::from(zeros) / t.len() as f64)).collect())
    }

    fn profile(&mut self) -> anyhow::Result<Option<StepProfile>> {
        let mut profile = None;
        for profiler in self.drawn.iter_mut().filter_map(|drawn| drawn.profiler.as_mut()) {
            // Of two halves the one that the last steps were drawn from.
            profile = profiler.take(&self.exec)?.or(profile);
        }
        Ok(profile)
    }

    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64> {
        Ok(self.exec.download(self.buffers.clock)?[clock::SKIPPED_IN_A_ROW as usize])
    }
}
