//! The training loop: collect, train, validate by a greedy backtest, keep the best; then the test part, once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use serde::Serialize;
use settings::Config;

use crate::train::Stop;
use crate::train::agent::{Agent, PartName, StepRow};
use crate::train::checkpoint::{Checkpoint, Provenance, write_atomically};
use crate::train::market::Market;
use crate::train::metrics::Metrics;
use crate::train::profiler::StepProfile;
use crate::train::progress::Progress;
use crate::train::record::{About, At, Tested, Values, validated, write_page};

/// Files of a run.
#[derive(Clone, Debug)]
pub struct RunFiles {
    /// The folder.
    pub folder: PathBuf,
}

impl RunFiles {
    /// Creates the folder; without a name the next free `runs/0001`, `runs/0002`, ... A folder that already holds a
    /// run is refused: nothing is overwritten.
    pub fn create(folder: Option<&Path>) -> anyhow::Result<Self> {
        let folder = match folder {
            Some(folder) => {
                std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
                for name in OWN_FILES {
                    if folder.join(name).exists() {
                        bail!("{} already holds {name}: choose another --run", folder.display());
                    }
                }
                folder.to_path_buf()
            }
            None => next_free(Path::new("runs"))?,
        };
        // The first file is the lock: of two runs that start at once in one folder, one is refused before it writes.
        let metrics = folder.join(OWN_FILES[0]);
        std::fs::File::create_new(&metrics).with_context(|| format!("creating {}", metrics.display()))?;
        Ok(Self { folder })
    }

    /// The policy with the best validation score.
    pub fn best(&self) -> PathBuf {
        self.folder.join("best.safetensors")
    }

    /// The policy of the last finished epoch.
    pub fn last(&self) -> PathBuf {
        self.folder.join("last.safetensors")
    }
}

/// What a run writes into its folder, the first one first.
const OWN_FILES: [&str; 9] = [
    "metrics.jsonl",
    "config.toml",
    "best.safetensors",
    "last.safetensors",
    "test.json",
    "test-bars.csv",
    "test-trades.csv",
    "report.html",
    report::events::FILE,
];

/// What chooses the best policy: the Sharpe ratio. Where it is undefined, a policy that lost its equity has minus infinity,
/// and one whose equity did not move has none.
fn score(strategy: &backtest::Metrics) -> Option<f64> {
    let ruined = strategy.end_equity <= 0.0 || !strategy.end_equity.is_finite();
    strategy.sharpe.or(ruined.then_some(f64::NEG_INFINITY))
}

/// Where a score stands among others: one that is undefined, of a policy that did nothing, between a gain and a loss.
fn rank(score: Option<f64>) -> f64 {
    score.unwrap_or(0.0)
}

fn next_free(parent: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    for number in 1..100_000 {
        let folder = parent.join(format!("{number:04}"));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("creating {}", folder.display())),
        }
    }
    bail!("no free run number below {}", parent.display())
}

/// An epoch's row in the metrics.
#[derive(Debug, Serialize)]
struct EpochRow {
    epoch: usize,
    /// Training steps done at its end.
    step: usize,
    epsilon: f32,
    steps: usize,
    loss: f32,
    td: f32,
    q: f32,
    gradient_norm: f32,
    clipped_low: f32,
    clipped_high: f32,
    skipped: usize,
    collect_seconds: f64,
    train_seconds: f64,
    microseconds_per_step: f64,
    validation_return: f64,
    validation_sharpe: Option<f64>,
    best: bool,
}

/// Fraction of pruned weights of each matrix after an epoch.
#[derive(Debug, Serialize)]
struct SparsityRow {
    epoch: usize,
    tensors: BTreeMap<String, f64>,
}

/// Times of an epoch's last training steps.
#[derive(Debug, Serialize)]
struct ProfileRow<'a> {
    epoch: usize,
    #[serde(flatten)]
    profile: &'a StepProfile,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// Result of the best policy on the test part.
    pub test: backtest::Report,
    /// Epoch of the best policy, from 1.
    pub best_epoch: usize,
    /// Whether it was stopped before the last epoch.
    pub stopped: bool,
}

/// What a run is made of.
pub struct Run<'a> {
    /// Configuration, state width filled in.
    pub config: &'a Config,
    /// Bars, parts, costs.
    pub market: &'a Market,
    /// Where its files go.
    pub files: &'a RunFiles,
    /// Hash of the compiled kernels.
    pub kernels: String,
    /// Wish to stop.
    pub stop: Stop,
}

impl Run<'_> {
    /// Trains, and tests the best policy.
    pub fn train(&self, agent: &mut dyn Agent, progress: &mut Progress) -> anyhow::Result<Outcome> {
        let config = self.config;
        write_atomically(&self.files.folder.join("config.toml"), config.to_toml().as_bytes())
            .with_context(|| format!("writing into {}", self.files.folder.display()))?;
        let path = self.files.folder.join("metrics.jsonl");
        let mut metrics = Metrics::create(&path)?.with_events(config.train.train_steps)?;
        let about = About::new(config, self.market, &self.kernels, agent.device());
        metrics.write("run", &about)?;
        progress.row("run", &about)?;
        progress.plan(config.train.epochs * config.train.train_steps);
        let mut best: Option<Checkpoint> = None;
        let mut step = 0;
        let mut adaptive = None;
        progress.begin("warm-up", config.collect.warmup);
        if config.collect.warmup > config.collect.steps {
            agent.collect(config.collect.warmup - config.collect.steps, 1.0, &self.stop)?;
        }
        for epoch in 1..=config.train.epochs {
            // The value networks' epsilon, where it is on, replaces the schedule's from their first step on.
            let epsilon = adaptive.unwrap_or_else(|| self.epsilon(epoch));
            let start = Instant::now();
            agent.collect(config.collect.steps, epsilon, &self.stop)?;
            let collect_seconds = start.elapsed().as_secs_f64();

            let name = format!("epoch {epoch}");
            progress.begin(&name, config.train.train_steps);
            let start = Instant::now();
            let total = config.train.train_steps;
            let rows = agent.train(total, &self.stop, &mut |done| progress.advance(&name, done, total))?;
            let train_seconds = start.elapsed().as_secs_f64();
            for (i, row) in rows.iter().enumerate() {
                metrics.write("step", &Numbered { step: step + i + 1, row })?;
            }
            step += rows.len();
            if config.iql.adaptive_epsilon && (adaptive.is_some() || rows.iter().any(|row| !row.skipped)) {
                adaptive = rows.last().and_then(|row| row.parts.iql_epsilon).or(adaptive);
            }
            let skipped = agent.skipped_in_a_row()?;
            if skipped >= u64::from(config.train.max_nonfinite) {
                let kept = match &best {
                    Some(_) => {
                        format!("the policy of the last finished epoch is {}", self.files.last().display())
                    }
                    None => "no epoch was finished, so there is no policy".into(),
                };
                bail!(
                    "the gradient norm was not finite in {skipped} steps in a row (train.max_nonfinite), the last one \
                     step {step}: those steps changed nothing; {kept}. A smaller optimizer.lr is what usually helps"
                );
            }
            if self.stop.asked() || rows.is_empty() {
                break;
            }
            let passed = agent.backtest(PartName::Validation)?;
            let report = self.market.report(&passed, PartName::Validation)?;
            let score = score(&report.strategy);
            let sensitivity = agent.sensitivity()?;
            if !sensitivity.is_empty() {
                metrics.write("sensitivity", &Sensitivity { epoch, step, features: &sensitivity })?;
            }
            let is_best = best.as_ref().is_none_or(|b| rank(score) > rank(b.provenance.score));
            let checkpoint = self.checkpoint(agent, epoch, score)?;
            let at = At { epoch, step, support: self.support(&rows) };
            let policy = (&checkpoint.online[..], &checkpoint.target[..], &checkpoint.kept);
            let values = Values::new(config, self.market, (PartName::Validation, &passed), policy, at)?;
            metrics.write("values", &values)?;
            checkpoint.save(&self.files.last())?;
            if is_best {
                checkpoint.save(&self.files.best())?;
                best = Some(checkpoint);
            }
            let mean = mean(&rows);
            let row = EpochRow {
                epoch,
                step,
                epsilon,
                steps: rows.len(),
                loss: mean.loss,
                td: mean.td,
                q: mean.q,
                gradient_norm: mean.gradient_norm,
                clipped_low: mean.clipped_low,
                clipped_high: mean.clipped_high,
                skipped: rows.iter().filter(|row| row.skipped).count(),
                collect_seconds,
                train_seconds,
                microseconds_per_step: 1e6 * train_seconds / rows.len() as f64,
                validation_return: report.strategy.total_return,
                validation_sharpe: report.strategy.sharpe,
                best: is_best,
            };
            metrics.write("epoch", &row)?;
            progress.row("epoch", &row)?;
            progress.status(row.loss, row.validation_sharpe);
            let sparsity = agent.sparsity()?;
            if !sparsity.is_empty() {
                metrics.write("sparsity", &SparsityRow { epoch, tensors: sparsity.into_iter().collect() })?;
            }
            progress.line(&row.text(config.train.epochs));
            if let Some(profile) = agent.profile()? {
                metrics.write("profile", &ProfileRow { epoch, profile: &profile })?;
                progress.line(&profile.text());
            }
        }
        progress.end();
        let Some(best) = best else {
            bail!("stopped before the first epoch ended: there is no policy to test");
        };
        agent.set_parameters(&best.online, &best.target)?;
        agent.set_kept(&best.kept)?;
        let rows = agent.backtest(PartName::Test)?;
        let sharpes = validated(&path)?;
        let tested = Tested::new(config, self.market, rows, PartName::Test, sharpes.as_deref())?;
        let test = &tested.report;
        metrics.write("test", test)?;
        progress.row("test", test)?;
        let report = serde_json::to_string_pretty(test)?;
        let folder = &self.files.folder;
        write_atomically(&folder.join("test.json"), report.as_bytes())?;
        tested.write_tables(config, self.market, folder, "test")?;
        write_page(folder)?;
        let (best_epoch, stopped) = (best.provenance.epoch, self.stop.asked());
        Ok(Outcome { test: tested.report, best_epoch, stopped })
    }

    /// Linear from the first epoch's to the last one's.
    fn epsilon(&self, epoch: usize) -> f32 {
        let c = &self.config.collect;
        let way = (epoch - 1) as f32 / (self.config.train.epochs.max(2) - 1) as f32;
        c.epsilon_start + (c.epsilon_end - c.epsilon_start) * way
    }

    /// Ends of the support after an epoch's steps: the configured ones unless they adapt.
    fn support(&self, rows: &[StepRow]) -> [f32; 2] {
        let (model, last) = (&self.config.model, rows.last().map(|row| row.parts).unwrap_or_default());
        [last.v_min.unwrap_or(model.v_min), last.v_max.unwrap_or(model.v_max)]
    }

    fn checkpoint(
        &self,
        agent: &mut dyn Agent,
        epoch: usize,
        score: Option<f64>,
    ) -> anyhow::Result<Checkpoint> {
        let (online, target) = agent.parameters()?;
        let provenance = Provenance {
            epoch,
            device: agent.device(),
            kernels: self.kernels.clone(),
            program: env!("CARGO_PKG_VERSION").into(),
            score,
        };
        let (config, market) = (self.config.clone(), self.market.record.clone());
        let kept = agent.kept()?;
        Ok(Checkpoint { config, market, provenance, online, target, kept })
    }
}

/// The latest causal probe of an epoch: mean |dQ| of every state feature.
#[derive(Serialize)]
struct Sensitivity<'a> {
    epoch: usize,
    step: usize,
    features: &'a [f32],
}

/// A step's row with its number.
#[derive(Serialize)]
struct Numbered<'a> {
    step: usize,
    #[serde(flatten)]
    row: &'a StepRow,
}

/// Means over the steps that were not skipped.
fn mean(rows: &[StepRow]) -> StepRow {
    let kept: Vec<&StepRow> = rows.iter().filter(|row| !row.skipped).collect();
    let average = |value: fn(&StepRow) -> f32| {
        (kept.iter().map(|row| f64::from(value(row))).sum::<f64>() / kept.len() as f64) as f32
    };
    StepRow {
        loss: average(|r| r.loss),
        td: average(|r| r.td),
        q: average(|r| r.q),
        clipped_low: average(|r| r.clipped_low),
        clipped_high: average(|r| r.clipped_high),
        gradient_norm: average(|r| r.gradient_norm),
        ..StepRow::default()
    }
}

impl EpochRow {
    fn text(&self, epochs: usize) -> String {
        let sharpe = self.validation_sharpe.map_or("undefined".into(), |s| format!("{s:.2}"));
        format!(
            "epoch {}/{epochs}  loss {:.4}  td {:.3}  |g| {:.3}  {:.0} us a step  validation return {:+.2}%  Sharpe {sharpe}{}",
            self.epoch,
            self.loss,
            self.td,
            self.gradient_norm,
            self.microseconds_per_step,
            100.0 * self.validation_return,
            if self.best { "  best" } else { "" }
        )
    }
}
