//! Walk-forward: the folds' trainings one after the other, each in a folder of its own, and the pooled result.
//!
//! Where it stands is two things: what the folds came to that are done (`saved`), and the state of the fold under way, which
//! is that of any run. A fold that has no state yet is trained anew, to the same bits.

mod saved;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use backtest::Report;
use bars::Symbol;
pub use report::run::fold_name;
use serde::{Deserialize, Serialize};
use settings::Config;

use crate::cublaslt::cache::PlanTable;
use crate::log;
use crate::train::Stop;
use crate::train::agent::{Agent, PartName};
use crate::train::control::Finding;
use crate::train::files::write_atomically;
use crate::train::market::{Market, PartResult, Walk};
use crate::train::metrics::{Mark, Metrics};
use crate::train::progress::Progress;
use crate::train::record::{About, validated, write_page};
use crate::train::run::{Resumed, Run};
use crate::train::run_files::RunFiles;
use crate::train::same::{check_bars, check_config, check_origin};
use crate::train::saves::{self, Origin, Saver};
use crate::train::world::{Backtests, World};
pub use saved::{FORMAT, Gathered, SavedWalk};

/// Makes the agent of a fold, and says the hash of the kernels it runs on. With cuBLASLt's algorithms where the folds before
/// have chosen them: all folds use the same ones.
pub type MakeAgent<'m> = dyn for<'a> FnMut(&'a Config, &'a Market, Option<&PlanTable>) -> anyhow::Result<(Box<dyn Agent + 'a>, String)>
    + 'm;

/// One fold's test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoldResult {
    /// Its number, from 1.
    pub fold: usize,
    /// First and last bar of the test part, UTC in milliseconds.
    pub test_ms: [i64; 2],
    /// Epoch of the policy that was tested.
    pub best_epoch: usize,
    /// The test.
    pub test: PartResult,
}

/// All folds' tests.
#[derive(Clone, Debug, Serialize)]
pub struct WalkResult {
    /// Each fold's.
    pub folds: Vec<FoldResult>,
    /// Of the test parts one behind the other, as if every fold had begun with what the one before left.
    pub pooled: Report,
    /// What the synthetic market's truth says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<Finding>,
}

/// What a walk-forward is made of.
pub struct WalkForward<'a> {
    /// Configuration; the first fold fills in the state's width.
    pub config: Config,
    /// The bars.
    pub symbols: &'a [Symbol],
    /// Parts of every symbol's bars, `[fold][symbol]` ([`Market::folds`]).
    pub folds: &'a [Vec<bars::Fold>],
    /// The run's folder.
    pub files: &'a RunFiles,
    /// Wish to stop.
    pub stop: &'a Stop,
}

/// What is written while the folds are trained.
struct Books {
    metrics: Metrics,
    saver: Saver,
    saved: SavedWalk,
    /// Whether there was a program before that may have left folders of folds.
    goes_on: bool,
}

/// A fold that is ready to be trained.
struct Begun {
    files: RunFiles,
    resumed: Option<Resumed>,
}

impl WalkForward<'_> {
    /// Trains and tests every fold, or those that a saved state has not. The run's folder gets the configuration,
    /// `metrics.jsonl` with a row for each fold and one for the pooled result, and `test.json`; each fold's folder holds what
    /// the folder of a run of its own would.
    ///
    /// # Errors
    /// What keeps a fold from being trained, with its number; of a saved state what would make other bits. `None` when it was
    /// stopped.
    pub fn train(
        mut self,
        resumed: Option<(PathBuf, SavedWalk)>,
        progress: &mut Progress,
        make_agent: &mut MakeAgent<'_>,
    ) -> anyhow::Result<Option<WalkResult>> {
        let of = self.folds.len();
        let mut done = 0;
        if let Some((_, saved)) = &resumed {
            self.check(saved)?;
            done = saved.gathered.results.len();
            for result in &saved.gathered.results {
                progress.line(&format!("done before: {result}"));
            }
        }
        let mut from = resumed;
        let mut books: Option<Books> = None;
        for fold in done + 1..=of {
            if self.stop.asked() {
                return Ok(None);
            }
            let trained = self.fold(fold, &mut books, &mut from, progress, make_agent);
            if !trained.with_context(|| format!("fold {fold} of {of}"))? {
                return Ok(None);
            }
        }
        self.stop.begin();
        if self.stop.asked() {
            return Ok(None);
        }
        let Books { mut metrics, saved, .. } = match (books, from) {
            (Some(books), _) => books,
            (None, Some(from)) => self.go_on(from)?,
            (None, None) => bail!("a walk-forward without a fold"),
        };
        let result = saved.gathered.pooled(&self.config.report)?;
        metrics.tell(progress, "pooled", &result.pooled)?;
        metrics.end_events()?;
        let text = serde_json::to_string_pretty(&result)?;
        write_atomically(&self.files.test(), text.as_bytes())
            .with_context(|| format!("writing into {}", self.files.folder.display()))?;
        write_page(&self.files.folder)?;
        Ok(Some(result))
    }

    /// Whether configuration, bars and the folds that are done are those of a saved state. Nothing is changed.
    fn check(&self, saved: &SavedWalk) -> anyhow::Result<()> {
        check_config(&saved.config, &self.config, false)?;
        let first = self.folds.first().context("a walk-forward without a fold")?;
        check_bars(&saved.symbols, &Market::symbol_records(self.symbols, first))?;
        saved.gathered.check_folders(&self.files.folder)
    }

    /// Trains and tests a fold, from its own saved state where it has one, and writes down what it came to; false if it was
    /// stopped. `from` is what the walk-forward goes on from, until it has begun to.
    fn fold(
        &mut self,
        fold: usize,
        books: &mut Option<Books>,
        from: &mut Option<(PathBuf, SavedWalk)>,
        progress: &mut Progress,
        make_agent: &mut MakeAgent<'_>,
    ) -> anyhow::Result<bool> {
        let walk = Walk { fold, of: self.folds.len() };
        let folder = self.files.folder.join(fold_name(fold));
        let goes_on = books.as_ref().map_or(from.is_some(), |books| books.goes_on);
        let begun = if goes_on && saves::any(&folder)? { Some(open(&folder)?) } else { None };
        let market = Market::of_folds(&mut self.config, self.symbols, &self.folds[fold - 1], Some(walk))?;
        progress.line(&format!("fold {fold} of {}\n{}", walk.of, market.summary.trim_end()));
        let config = self.config.clone();
        if let Some(Begun { resumed: Some((_, saved)), .. }) = &begun {
            check_config(&saved.config, &config, false)?;
            let symbols = saved.market.as_ref().map_or(&[][..], |market| &market.symbols);
            check_bars(symbols, &market.record.symbols)?;
        }
        let of_first = books.as_ref().map(|books| &books.saved.origin);
        let of_first = of_first.or(from.as_ref().map(|(_, saved)| &saved.origin));
        let (mut agent, kernels) = make_agent(&config, &market, of_first.and_then(|o| o.plans.as_ref()))?;
        let origin = Origin::of(agent.as_ref(), &kernels);
        let saved_by = begun.as_ref().and_then(|begun| Some(&begun.resumed.as_ref()?.1.origin));
        for before in of_first.into_iter().chain(saved_by) {
            check_origin(before, &origin)?;
            if before.plans != origin.plans {
                bail!(
                    "the walk-forward cannot go on bit for bit: cuBLASLt's algorithms are not those of the first fold"
                );
            }
        }
        self.stop.begin();
        if self.stop.asked() {
            return Ok(false);
        }
        let books = match books {
            Some(books) => books,
            // Nothing of the run was changed up to here.
            none => {
                let about = About::new(&config, World::Market(&market), &kernels, agent.device());
                let begun = match from.take() {
                    Some(from) => self.go_on(from)?,
                    None => self.begin(origin, &market)?,
                };
                self.files.write_config(&config, &about.comment())?;
                none.insert(begun)
            }
        };
        let Begun { files, resumed } = match begun {
            Some(begun) => begun,
            None if goes_on => Begun { files: RunFiles::anew(&folder)?, resumed: None },
            None => Begun { files: RunFiles::create(Some(&folder))?, resumed: None },
        };
        match (&resumed, &books.saved.gathered.learned) {
            (Some((path, saved)), _) => {
                progress.line(&format!("going on from {}: {}", path.display(), saved.position.text()));
            }
            (None, Some(learned)) => agent.set_learned(learned)?,
            (None, None) => {}
        }
        let run = Run {
            config: &config,
            world: World::Market(&market),
            files: &files,
            kernels,
            stop: self.stop.clone(),
            folds_behind: walk.of - fold,
        };
        let outcome = run.train(agent.as_mut(), progress, resumed)?;
        let Some(best) = outcome.best else { return Ok(false) };
        let Backtests { result: test, passes } = best.test.into_backtests()?;
        let result = FoldResult { fold, test_ms: test_times(&market), best_epoch: best.epoch, test };
        books.metrics.tell(progress, "fold", &result)?;
        progress.line(&result.to_string());
        books.saved.gathered.add(saved::Fold {
            result,
            tracks: market.tracks(&passes, PartName::Test)?,
            control: best.control,
            sharpes: validated(&files.metrics())?.unwrap_or_default(),
            learned: outcome.learned,
            bars_per_year: market.bars_per_year,
            mark: Mark::of(&files.metrics())?,
        });
        books.save()?;
        Ok(true)
    }

    /// The books of a walk-forward that begins, and its first state.
    fn begin(&self, origin: Origin, market: &Market) -> anyhow::Result<Books> {
        log::begin(&self.files.folder)?;
        let metrics = Metrics::create(&self.files.metrics())?.with_events(1)?;
        let mut books = Books {
            saver: Saver::new(&self.files.folder, &self.config.checkpoint, None)?,
            saved: SavedWalk {
                config: self.config.clone(),
                origin,
                symbols: market.record.symbols.clone(),
                metrics: metrics.mark()?,
                gathered: Gathered::default(),
            },
            metrics,
            goes_on: false,
        };
        books.save()?;
        Ok(books)
    }

    /// The books as a state has them.
    fn go_on(&self, (path, mut saved): (PathBuf, SavedWalk)) -> anyhow::Result<Books> {
        let metrics = Metrics::go_on(&self.files.metrics(), &saved.metrics)?.with_events(1)?;
        log::begin(&self.files.folder)?;
        let saver = Saver::new(&self.files.folder, &self.config.checkpoint, Some(&path))?;
        self.files.remove_results()?;
        // What may differ: where the bars are, and what is kept.
        saved.config = self.config.clone();
        Ok(Books { metrics, saver, saved, goes_on: true })
    }
}

impl Books {
    /// Writes where the walk-forward stands, unless nothing is to be saved.
    fn save(&mut self) -> anyhow::Result<()> {
        if !self.saver.is_on() {
            return Ok(());
        }
        self.saved.metrics = self.metrics.mark()?;
        self.saver.save(self.saved.parts()?)?;
        self.saver.wait()
    }
}

/// A fold's folder and the newest state in it.
fn open(folder: &Path) -> anyhow::Result<Begun> {
    let files = RunFiles::open(folder)?;
    let (_, path, saved) = saves::open(folder)?;
    Ok(Begun { files, resumed: Some((path, saved)) })
}

/// Opening times of the first and the last bar of any symbol's test part.
fn test_times(market: &Market) -> [i64; 2] {
    let ranges = || (0..market.symbols.len()).map(|s| market.symbol_part(PartName::Test, s).range());
    let first = ranges().map(|range| market.times_ms[range.start]).min();
    let last = ranges().map(|range| market.times_ms[range.end - 1]).max();
    [first.unwrap_or_default(), last.unwrap_or_default()]
}

/// The folds' folders of a run's folder, in order; empty if it is not one of a walk-forward.
pub fn fold_folders(run: &Path) -> Vec<String> {
    (1..).map(fold_name).take_while(|name| run.join(name).is_dir()).collect()
}

impl fmt::Display for FoldResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharpe = |sharpe: Option<f64>| sharpe.map_or("undefined".to_owned(), |s| format!("{s:.3}"));
        let (strategy, holding) = (&self.test.report.strategy, &self.test.report.buy_and_hold);
        write!(
            f,
            "fold {}: test {} to {} UTC, {} bars, policy of epoch {}: return {:+.2}%, Sharpe ratio {}; buy-and-hold \
             {:+.2}%, {}",
            self.fold,
            bars::utc_text(self.test_ms[0]),
            bars::utc_text(self.test_ms[1]),
            strategy.bars,
            self.best_epoch,
            100.0 * strategy.total_return,
            sharpe(strategy.sharpe),
            100.0 * holding.total_return,
            sharpe(holding.sharpe)
        )
    }
}

impl fmt::Display for WalkResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fold in &self.folds {
            writeln!(f, "{fold}")?;
        }
        writeln!(f, "\npooled out-of-sample result of {} fold(s):", self.folds.len())?;
        write!(f, "{}", self.pooled)?;
        match &self.control {
            Some(finding) => write!(f, "{finding}"),
            None => Ok(()),
        }
    }
}
