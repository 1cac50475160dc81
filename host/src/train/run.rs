//! The training loop: collect, train, validate by a greedy backtest, greedy episodes or held-out transitions, keep the best;
//! then the test part, once.

mod rows;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use cpu_path::CpuError;
use settings::Config;
use tracing::info;

use crate::train::agent::{Agent, Learned, PartName};
use crate::train::checkpoint::{Checkpoint, Provenance};
use crate::train::control::Control;
use crate::train::files::write_atomically;
use crate::train::metrics::Metrics;
use crate::train::position::Position;
use crate::train::progress::Progress;
use crate::train::record::{About, Values, validated, write_page};
use crate::train::run_files::{RunFiles, remove};
use crate::train::saves::{Origin, SavedRun, Saver};
use crate::train::world::{Evaluation, World};
use crate::train::{Stop, Stopped};
use rows::{BestAndLast, EpochRow, Numbered, ProfileRow, Sensitivity, SparsityRow};

/// Where a score stands among others: one that is undefined, of a policy that did nothing, between a gain and a loss.
fn rank(score: Option<f64>) -> f64 {
    score.unwrap_or(0.0)
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The best policy's test; none of a run that was stopped.
    pub best: Option<Tested>,
    /// Networks and optimizer behind the last training step, where another fold goes on with them.
    pub learned: Option<Learned>,
    /// Whether it was stopped before the best policy was tested. Then nothing says how the run ended: the state goes on.
    pub stopped: bool,
    /// The state it goes on from, where states are saved.
    pub state: Option<PathBuf>,
}

/// The best policy's test.
#[derive(Debug)]
pub struct Tested {
    /// Epoch of the policy, from 1.
    pub epoch: usize,
    /// Its result.
    pub test: Evaluation,
    /// The last policy's, of a control task. (A market's test part is looked at once.)
    pub last: Option<Evaluation>,
    /// What the synthetic market's truth says of it; none on bars of files.
    pub control: Option<Control>,
}

/// A saved state and its file.
pub type Resumed = (PathBuf, SavedRun);

/// What the loop changes.
struct Progressing {
    position: Position,
    metrics: Metrics,
    best: Option<Checkpoint>,
    /// Files of the best policy and of the last epoch's.
    policies: [Option<Vec<u8>>; 2],
    saver: Saver,
}

/// What a run is made of.
pub struct Run<'a> {
    /// Configuration, state width filled in.
    pub config: &'a Config,
    /// The market, a control task, or a data set.
    pub world: World<'a>,
    /// Where its files go.
    pub files: &'a RunFiles,
    /// Hash of the compiled kernels.
    pub kernels: String,
    /// Wish to stop.
    pub stop: Stop,
    /// Folds that are trained behind this one, for the time left.
    pub folds_behind: usize,
}

impl Run<'_> {
    /// Trains, from the beginning or from where a saved state stands, and tests the best policy.
    pub fn train(
        &self,
        agent: &mut dyn Agent,
        progress: &mut Progress,
        resumed: Option<Resumed>,
    ) -> anyhow::Result<Outcome> {
        let mut run = match resumed {
            None => self.begin(agent, progress)?,
            Some(resumed) => self.go_on(agent, resumed)?,
        };
        let steps = self.config.train.epochs * self.config.train.train_steps;
        progress.plan(steps.saturating_sub(run.position.step), self.world.walk(), self.folds_behind * steps);
        while run.position.epoch <= self.config.train.epochs && !self.stop.asked() {
            self.epoch(agent, progress, &mut run).map_err(|error| self.explain(error, &run.position))?;
        }
        progress.end();
        if run.saver.is_on() {
            // Before the test, which changes the agent's parameters.
            self.save(agent, progress, &mut run)?;
            run.saver.wait()?;
        }
        let state = run.saver.is_on().then(|| run.saver.latest());
        let learned = if self.config.folds.warm_start { Some(agent.learned()?) } else { None };
        let best = match run.best.take() {
            Some(best) if !self.stop.asked() => Stopped::none(self.test(agent, progress, &mut run, &best))?,
            _ => None,
        };
        run.metrics.end_events()?;
        if best.is_some() {
            write_page(&self.files.folder)?;
        }
        Ok(Outcome { stopped: best.is_none(), best, learned, state })
    }

    /// Tests the best policy, of a control task the last one too, and writes what came out.
    ///
    /// # Errors
    /// [`Stopped`] among others: a test takes minutes where there are millions of bars.
    fn test(
        &self,
        agent: &mut dyn Agent,
        progress: &mut Progress,
        run: &mut Progressing,
        best: &Checkpoint,
    ) -> anyhow::Result<Tested> {
        let last = match self.world {
            World::Task(_) => Some(self.test_of_last(agent, &run.policies[1])?),
            // What is held out for the test is looked at once.
            World::Market(_) | World::Transitions(_) => None,
        };
        agent.set_parameters(&best.online, &best.target)?;
        agent.set_kept(&best.kept)?;
        let sharpes = validated(&self.files.metrics())?;
        let keys = &self.config.report;
        let test = self.world.judge(agent, PartName::Test, keys, sharpes.as_deref(), &self.stop)?;
        self.stop.check()?;
        run.metrics.tell(progress, "test", &test)?;
        if let Some(last) = &last {
            run.metrics.tell(progress, "test_last", last)?;
        }
        let control = match (self.world.market(), test.market()) {
            (Some(market), Some(test)) => Control::of(&self.config.data, market, &test.passes, &self.stop)?,
            _ => None,
        };
        if let Some(control) = &control {
            run.metrics.tell(progress, "control", &control.finding(test.sharpe()))?;
        }
        let report = match &last {
            Some(last) => serde_json::to_string_pretty(&BestAndLast { best: &test, last })?,
            None => serde_json::to_string_pretty(&test)?,
        };
        let path = self.files.test();
        write_atomically(&path, report.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
        if let (Some(market), Some(test)) = (self.world.market(), test.market()) {
            let branches = self.config.model.branches.len();
            market.write_tables(&test.passes, PartName::Test, branches, &self.files.folder, "test")?;
        }
        Ok(Tested { epoch: best.provenance.epoch, test, last, control })
    }

    /// What runs where, on what.
    fn about(&self, agent: &dyn Agent) -> About<'_> {
        About::new(self.config, self.world, &self.kernels, agent.device())
    }

    /// The test of the last finished epoch's policy, from the bytes of its file: a run that was stopped in the midst of an
    /// epoch has newer parameters, which nobody could evaluate again.
    fn test_of_last(&self, agent: &mut dyn Agent, bytes: &Option<Vec<u8>>) -> anyhow::Result<Evaluation> {
        let bytes = bytes.as_ref().context("no epoch has ended")?;
        let (last, _) = Checkpoint::of_bytes(&self.files.last().display().to_string(), bytes)?;
        agent.set_parameters(&last.online, &last.target)?;
        agent.set_kept(&last.kept)?;
        self.world.evaluate(agent, PartName::Test, 0, &self.stop)
    }

    /// The fold of a walk-forward that the run is, if any.
    fn fold(&self) -> Option<usize> {
        self.world.walk().map(|walk| walk.fold)
    }

    /// Says of values that are no numbers any more when that was seen, and what helps.
    fn explain(&self, error: anyhow::Error, position: &Position) -> anyhow::Error {
        let diverged = error
            .chain()
            .any(|cause| matches!(cause.downcast_ref::<CpuError>(), Some(CpuError::NonFiniteValue { .. })));
        if !diverged {
            return error;
        }
        error.context(format!(
            "the training has diverged: in epoch {}, after training step {}, the network's values are not finite. A smaller \
             optimizer.lr (it is {}) is what usually helps",
            position.epoch, position.step, self.config.optimizer.lr
        ))
    }

    fn begin(&self, agent: &dyn Agent, progress: &Progress) -> anyhow::Result<Progressing> {
        let about = self.about(agent);
        self.files.write_config(self.config, &about.comment())?;
        let metrics = Metrics::create(&self.files.metrics())?.of_fold(self.fold());
        let mut metrics = metrics.with_events(self.config.train.train_steps)?;
        metrics.tell(progress, "run", &about)?;
        Ok(Progressing {
            position: Position::start(),
            metrics,
            best: None,
            policies: [None, None],
            saver: Saver::new(&self.files.folder, &self.config.checkpoint, None)?,
        })
    }

    /// Puts the agent and the run's files where the state stands.
    fn go_on(&self, agent: &mut dyn Agent, (path, mut saved): Resumed) -> anyhow::Result<Progressing> {
        let naming = || format!("the saved state {}", path.display());
        let best = saved.best().with_context(naming)?;
        agent.load_state(&mut saved.agent).with_context(naming)?;
        saved.agent.finish().with_context(naming)?;
        // Nothing of the run was changed up to here.
        let metrics = Metrics::go_on(&self.files.metrics(), &saved.position.metrics)?.of_fold(self.fold());
        let metrics = metrics.with_events(self.config.train.train_steps)?;
        let saver = Saver::new(&self.files.folder, &self.config.checkpoint, Some(&path))?;
        for (file, policy) in [self.files.best(), self.files.last()].iter().zip(&saved.policies) {
            let written = match policy {
                Some(bytes) => write_atomically(file, bytes),
                None => remove(file),
            };
            written.with_context(|| format!("writing {}", file.display()))?;
        }
        self.files.remove_results()?;
        self.files.write_config(self.config, &self.about(agent).comment())?;
        Ok(Progressing { position: saved.position, metrics, best, policies: saved.policies, saver })
    }

    /// Copies the state and has it written. That one could not be written is a warning: the run goes on without it.
    fn save(
        &self,
        agent: &mut dyn Agent,
        progress: &mut Progress,
        run: &mut Progressing,
    ) -> anyhow::Result<()> {
        let begun = Instant::now();
        run.position.metrics = run.metrics.mark()?;
        let saved = SavedRun {
            config: self.config.clone(),
            market: self.world.record(),
            data_set: self.world.data_set().map(|data| data.record.clone()),
            origin: Origin::of(agent, &self.kernels),
            position: run.position.clone(),
            policies: run.policies.clone(),
            best_score: run.best.as_ref().and_then(|best| best.provenance.score),
            agent: agent.save_state().context("copying the state of the run")?,
        };
        if let Err(error) = run.saver.save(saved.parts()?) {
            progress.line(&format!("warning: {error:#}"));
        }
        info!(epoch = run.position.epoch, step = run.position.step, "state copied in {:?}", begun.elapsed());
        Ok(())
    }

    /// What is left of the epoch under way; returns in its midst when the run is to stop.
    fn epoch(
        &self,
        agent: &mut dyn Agent,
        progress: &mut Progress,
        run: &mut Progressing,
    ) -> anyhow::Result<()> {
        let (config, epoch) = (self.config, run.position.epoch);
        let (warmup, steps) = match self.world {
            World::Transitions(_) => (0, 0),
            _ => (config.collect.warmup.saturating_sub(config.collect.steps), config.collect.steps),
        };
        if run.position.warmed < warmup {
            progress.begin("warm-up", config.collect.warmup);
            run.position.warmed += agent.collect(warmup - run.position.warmed, 1.0, &self.stop)?;
        }
        let epsilon = run.position.epsilon.unwrap_or_else(|| self.epsilon(epoch));
        let start = Instant::now();
        let left = steps - run.position.collected;
        run.position.collected += agent.collect(left, epsilon, &self.stop)?;
        let collect_seconds = start.elapsed().as_secs_f64();

        let (total, before) = (config.train.train_steps, run.position.trained);
        progress.begin(&format!("epoch {epoch}"), total);
        let start = Instant::now();
        while run.position.trained < total && !self.stop.asked() {
            self.steps(agent, progress, before, run)?;
            if run.saver.is_due() {
                self.save(agent, progress, run)?;
            }
        }
        let train_seconds = start.elapsed().as_secs_f64();
        if self.stop.asked() {
            return Ok(());
        }
        let report = self.world.evaluate(agent, PartName::Validation, epoch as u64, &self.stop);
        // Left undone, it is done again from where the last step stands.
        let Some(report) = Stopped::none(report)? else { return Ok(()) };
        run.position.adapt_epsilon(config.iql.adaptive_epsilon);
        let score = report.score();
        let sensitivity = agent.sensitivity()?;
        if !sensitivity.is_empty() {
            let row = Sensitivity { epoch, step: run.position.step, features: &sensitivity };
            run.metrics.write("sensitivity", &row)?;
        }
        let is_best = run.best.as_ref().is_none_or(|b| rank(score) > rank(b.provenance.score));
        let policy = self.checkpoint(agent, epoch, score)?;
        let every = config.report.values_every;
        if every > 0
            && epoch.is_multiple_of(every)
            && let (Some(market), Some(test)) = (self.world.market(), report.market())
        {
            let part = (PartName::Validation, &test.passes[..]);
            let values = Values::new(config, market, part, &policy, run.position.step)?;
            run.metrics.write("values", &values)?;
        }
        self.keep_policy(policy, is_best, run)?;
        let (mean, sums) = (run.position.sums.mean(), &run.position.sums);
        let row = EpochRow {
            epoch,
            step: run.position.step,
            epsilon: self.world.data_set().is_none().then_some(epsilon),
            steps: sums.steps,
            loss: mean.loss,
            td: mean.td,
            q: mean.q,
            gradient_norm: mean.gradient_norm,
            clipped_low: mean.clipped_low,
            clipped_high: mean.clipped_high,
            skipped: sums.skipped(),
            collect_seconds,
            train_seconds,
            microseconds_per_step: 1e6 * train_seconds / (total - before).max(1) as f64,
            validation_return: report.total_return(),
            validation_sharpe: report.sharpe(),
            validation_loss: report.transitions().map(|r| r.loss),
            validation_td: report.transitions().map(|r| r.td),
            validation_agreement: report.transitions().map(|r| r.agreement),
            validation: report.task().cloned(),
            best: is_best,
        };
        run.metrics.tell(progress, "epoch", &row)?;
        progress.status(row.loss, &row.validation_text());
        let sparsity = agent.sparsity()?;
        if !sparsity.is_empty() {
            run.metrics.write("sparsity", &SparsityRow { epoch, tensors: sparsity.into_iter().collect() })?;
        }
        progress.line(&row.text(config.train.epochs));
        if let Some(profile) = agent.profile()? {
            run.metrics.write("profile", &ProfileRow { epoch, profile: &profile })?;
            progress.line(&profile.text());
        }
        run.position.next_epoch();
        if run.saver.is_due() {
            self.save(agent, progress, run)?;
        }
        Ok(())
    }

    /// Training steps up to the epoch's end, the next saved state or the wish to stop; `begun` of the epoch's were done
    /// when it was begun or resumed.
    fn steps(
        &self,
        agent: &mut dyn Agent,
        progress: &mut Progress,
        begun: usize,
        run: &mut Progressing,
    ) -> anyhow::Result<()> {
        let (total, before) = (self.config.train.train_steps, run.position.trained);
        let saver = &run.saver;
        let rows = agent.train(total - before, &self.stop, &mut |done| {
            progress.advance(before + done - begun, before + done, total);
            if saver.is_due() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for (i, row) in rows.iter().enumerate() {
            run.metrics.write("step", &Numbered { step: run.position.step + i + 1, row })?;
        }
        run.position.add(&rows);
        let skipped = agent.skipped_in_a_row()?;
        if skipped < u64::from(self.config.train.max_nonfinite) {
            return Ok(());
        }
        let kept = match &run.best {
            Some(_) => format!("the policy of the last finished epoch is {}", self.files.last().display()),
            None => "no epoch was finished, so there is no policy".into(),
        };
        bail!(
            "the gradient norm was not finite in {skipped} steps in a row (train.max_nonfinite), the last one step {}: \
             those steps changed nothing; {kept}. A smaller optimizer.lr is what usually helps",
            run.position.step
        );
    }

    /// Writes an epoch's policy under the names it is to be kept by.
    fn keep_policy(&self, policy: Checkpoint, is_best: bool, run: &mut Progressing) -> anyhow::Result<()> {
        let epoch = policy.provenance.epoch;
        let bytes = policy.bytes()?;
        let mut files = vec![self.files.last()];
        if is_best {
            files.push(self.files.best());
            run.policies[0] = Some(bytes.clone());
            run.best = Some(policy);
        }
        let every = self.config.checkpoint.every;
        if every > 0 && epoch.is_multiple_of(every) {
            files.push(self.files.epoch(epoch));
        }
        for file in files {
            write_atomically(&file, &bytes)
                .with_context(|| format!("writing the checkpoint {}", file.display()))?;
        }
        run.policies[1] = Some(bytes);
        Ok(())
    }

    /// Linear from the first epoch's to the last one's.
    fn epsilon(&self, epoch: usize) -> f32 {
        let c = &self.config.collect;
        let way = (epoch - 1) as f32 / (self.config.train.epochs.max(2) - 1) as f32;
        c.epsilon_start + (c.epsilon_end - c.epsilon_start) * way
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
        let (config, market) = (self.config.clone(), self.world.record());
        let data_set = self.world.data_set().map(|data| data.record.clone());
        let kept = agent.kept()?;
        Ok(Checkpoint { config, market, data_set, provenance, online, target, kept })
    }
}
