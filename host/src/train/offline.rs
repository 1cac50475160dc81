//! Training from a data set of transitions: no environment, no collection. The data set is uploaded once; the best policy is
//! the one with the lowest C51 loss of held-out transitions (`docs/TRANSITIONS.md`).

mod cpu;
mod gpu;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use cpu_path::{C51Batch, CpuLearner, HeldOut};
use serde::Serialize;
use settings::Config;
use transitions::TransitionSet;

pub use cpu::CpuOffline;
pub use gpu::{GpuOffline, upload};

use crate::step::Kept;
use crate::train::Stop;
use crate::train::agent::StepRow;
use crate::train::checkpoint::{Checkpoint, Provenance, write_atomically};
use crate::train::metrics::Metrics;
use crate::train::progress::Progress;
use crate::train::run::RunFiles;

/// Transitions as a ring holds them, row-major; N rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ring {
    /// s, `[N, S]`.
    pub states: Vec<f32>,
    /// s' behind the last summed reward, `[N, S]`.
    pub next_states: Vec<f32>,
    /// One index per branch, `[N, D]`.
    pub actions: Vec<u32>,
    /// n-step returns, `[N]`.
    pub rewards: Vec<f32>,
    /// gamma^m (1 - terminated), `[N]`.
    pub discounts: Vec<f32>,
}

impl Ring {
    /// N.
    pub fn len(&self) -> usize {
        self.rewards.len()
    }

    /// True without a transition.
    pub fn is_empty(&self) -> bool {
        self.rewards.is_empty()
    }
}

/// A data set split into what is learned from and what is held out.
#[derive(Clone, Debug)]
pub struct OfflineData {
    /// To learn from.
    pub learned: Ring,
    /// To choose the best policy by; at most `transitions.validation_rows` of what is held out.
    pub held_out: Ring,
    /// What there is to say about the data.
    pub text: String,
    /// For the metrics.
    pub row: DataRow,
}

/// What a run writes about its data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DataRow {
    /// The data set.
    pub file: String,
    /// How it is written.
    pub format: String,
    /// Transitions in it.
    pub transitions: usize,
    /// Episodes in it.
    pub episodes: usize,
    /// Transitions that are learned from.
    pub learned: usize,
    /// Transitions that are held out.
    pub held_out: usize,
    /// Hash of all transitions, hexadecimal.
    pub hash: String,
}

impl OfflineData {
    /// Loads the data set of a configuration and splits it; fills in the model's state width.
    ///
    /// # Errors
    /// What is wrong with the file or with the configuration beside it.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        let file = config.transitions.file.clone().context("no data set is named (transitions.file)")?;
        let set = transitions::load(Path::new(&file))?;
        let state = &mut config.model.state;
        if *state != 0 && *state != set.state {
            bail!(
                "model.state = {state}, but the states of {file} have {} numbers: leave model.state at 0",
                set.state
            );
        }
        *state = set.state;
        config.check()?;
        Self::of_set(config, &set)
    }

    /// The same of a set that is loaded already, for a configuration whose state width is the set's.
    ///
    /// # Errors
    /// Actions that are none of the model's, rows out of order with n-step returns, too few transitions.
    pub fn of_set(config: &Config, set: &TransitionSet) -> anyhow::Result<Self> {
        let branches = &config.model.branches;
        let actions = set.branch_actions(branches)?;
        let n = config.replay.n_step;
        let windows = set.windows(n, f64::from(config.train.gamma))?;
        let (learned, held_out) = set.split(config.transitions.validation, config.train.seed, n)?;
        let ring = |rows: &mut dyn Iterator<Item = u32>| {
            let mut ring = Ring::default();
            for row in rows.map(|row| row as usize) {
                let last = windows.last[row] as usize;
                ring.states.extend_from_slice(&set.states[row * set.state..][..set.state]);
                ring.next_states.extend_from_slice(&set.next_states[last * set.state..][..set.state]);
                ring.actions.extend_from_slice(&actions[row * branches.len()..][..branches.len()]);
                ring.rewards.push(windows.rewards[row]);
                ring.discounts.push(windows.discounts[row]);
            }
            ring
        };
        let most = config.transitions.validation_rows.min(held_out.len());
        let spread = (0..most).map(|i| held_out[i * held_out.len() / most]);
        let row = DataRow {
            file: set.file.clone(),
            format: set.format.to_string(),
            transitions: set.len(),
            episodes: set.episodes().len(),
            learned: learned.len(),
            held_out: held_out.len(),
            hash: format!("{:016x}", set.hash),
        };
        let text = format!(
            "{}\n  format      {}\n  transitions {} in {} episodes, {} state features, hash {}\n  learned     {}, held \
             out {} (validation looks at {most})\n",
            set.file,
            set.format,
            row.transitions,
            row.episodes,
            set.state,
            row.hash,
            row.learned,
            row.held_out
        );
        Ok(Self {
            learned: ring(&mut learned.into_iter()),
            held_out: ring(&mut spread.into_iter()),
            text,
            row,
        })
    }

    /// The C51 loss of the held-out transitions by given parameters, on the CPU in f32.
    ///
    /// # Errors
    /// Parameters that do not fit the configuration.
    pub fn validate(&self, learner: &CpuLearner) -> anyhow::Result<HeldOut> {
        let (state, branches) = (learner.shape().state, learner.shape().branches.len());
        let ring = &self.held_out;
        let mut mean = HeldOut { loss: 0.0, td: 0.0, q: 0.0 };
        // In parts, so that activations stay small.
        for start in (0..ring.len()).step_by(512) {
            let end = (start + 512).min(ring.len());
            let batch = C51Batch {
                states: ring.states[start * state..end * state].to_vec(),
                next_states: ring.next_states[start * state..end * state].to_vec(),
                actions: ring.actions[start * branches..end * branches].to_vec(),
                rewards: ring.rewards[start..end].to_vec(),
                discounts: ring.discounts[start..end].to_vec(),
                weights: vec![1.0; end - start],
                ..C51Batch::default()
            };
            let part = learner.held_out(&batch)?;
            let share = (end - start) as f64 / ring.len() as f64;
            mean.loss += share * part.loss;
            mean.td += share * part.td;
            mean.q += share * part.q;
        }
        Ok(mean)
    }
}

/// A learner with a data set in its ring.
pub trait OfflineAgent {
    /// Device and, where it has one, precision, for reports.
    fn device(&self) -> String;
    /// Trains `steps` steps; fewer rows come back when `stop` was asked for or too many steps were skipped.
    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Vec<StepRow>>;
    /// Online and target parameters in the flat layout.
    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)>;
    /// What the value networks and the confidence head keep from step to step.
    fn kept(&mut self) -> anyhow::Result<Kept>;
    /// Steps skipped in a row up to now.
    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64>;
}

/// An epoch's row in the metrics.
#[derive(Debug, Serialize)]
struct OfflineEpoch {
    epoch: usize,
    steps: usize,
    loss: f64,
    td: f64,
    skipped: usize,
    train_seconds: f64,
    microseconds_per_step: f64,
    validation_loss: f64,
    validation_td: f64,
    validation_q: f64,
    best: bool,
}

/// A step's row with its number.
#[derive(Serialize)]
struct Numbered<'a> {
    step: usize,
    #[serde(flatten)]
    row: &'a StepRow,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfflineOutcome {
    /// Epoch of the best policy, from 1.
    pub best_epoch: usize,
    /// Its loss of the held-out transitions.
    pub validation_loss: f64,
    /// Its |E_m\[z\] - Q| of the held-out transitions.
    pub validation_td: f64,
    /// Whether the run was stopped before the last epoch.
    pub stopped: bool,
}

/// Trains, validates after every epoch, keeps the best policy.
///
/// # Errors
/// Files that cannot be written, or too many steps in a row without a finite gradient.
pub fn train(
    config: &Config,
    data: &OfflineData,
    agent: &mut dyn OfflineAgent,
    files: &RunFiles,
    kernels: &str,
    stop: &Stop,
    progress: &mut Progress,
) -> anyhow::Result<OfflineOutcome> {
    write_atomically(&files.folder.join("config.toml"), config.to_toml().as_bytes())
        .with_context(|| format!("writing into {}", files.folder.display()))?;
    let mut metrics = Metrics::create(&files.folder.join("metrics.jsonl"))?;
    metrics.write("data", &data.row)?;
    let mut best: Option<OfflineOutcome> = None;
    let mut step = 0;
    for epoch in 1..=config.train.epochs {
        let (name, total) = (format!("epoch {epoch}"), config.train.train_steps);
        progress.begin(&name, total);
        let start = Instant::now();
        let rows = agent.train(total, stop, &mut |done| progress.advance(&name, done, total))?;
        let seconds = start.elapsed().as_secs_f64();
        for (i, row) in rows.iter().enumerate() {
            metrics.write("step", &Numbered { step: step + i + 1, row })?;
        }
        step += rows.len();
        let skipped = agent.skipped_in_a_row()?;
        if skipped >= u64::from(config.train.max_nonfinite) {
            bail!(
                "the gradient norm was not finite in {skipped} steps in a row (train.max_nonfinite), the last one step \
                 {step}: those steps changed nothing. A smaller optimizer.lr is what usually helps"
            );
        }
        if stop.asked() || rows.is_empty() {
            break;
        }
        let (online, target) = agent.parameters()?;
        let mut checkpoint = Checkpoint {
            config: config.clone(),
            market: None,
            provenance: Provenance {
                epoch,
                device: agent.device(),
                kernels: kernels.into(),
                program: env!("CARGO_PKG_VERSION").into(),
                score: 0.0,
            },
            online,
            target,
            kept: agent.kept()?,
        };
        let seen = data.validate(&crate::predict::learner(&checkpoint)?)?;
        checkpoint.provenance.score = -seen.loss;
        checkpoint.save(&files.last())?;
        let is_best = best.as_ref().is_none_or(|best| seen.loss < best.validation_loss);
        if is_best {
            checkpoint.save(&files.best())?;
            best = Some(OfflineOutcome {
                best_epoch: epoch,
                validation_loss: seen.loss,
                validation_td: seen.td,
                stopped: false,
            });
        }
        let taken: Vec<&StepRow> = rows.iter().filter(|row| !row.skipped).collect();
        let mean = |value: fn(&StepRow) -> f32| {
            taken.iter().map(|row| f64::from(value(row))).sum::<f64>() / taken.len() as f64
        };
        let row = OfflineEpoch {
            epoch,
            steps: rows.len(),
            loss: mean(|row| row.loss),
            td: mean(|row| row.td),
            skipped: rows.len() - taken.len(),
            train_seconds: seconds,
            microseconds_per_step: 1e6 * seconds / rows.len() as f64,
            validation_loss: seen.loss,
            validation_td: seen.td,
            validation_q: seen.q,
            best: is_best,
        };
        metrics.write("epoch", &row)?;
        progress.line(&format!(
            "epoch {epoch}/{}  loss {:.4}  td {:.3}  {:.0} us a step  held-out loss {:.4}  td {:.3}{}",
            config.train.epochs,
            row.loss,
            row.td,
            row.microseconds_per_step,
            row.validation_loss,
            row.validation_td,
            if is_best { "  best" } else { "" }
        ));
    }
    progress.end();
    let Some(best) = best else { bail!("stopped before the first epoch ended: there is no policy") };
    Ok(OfflineOutcome { stopped: stop.asked(), ..best })
}
