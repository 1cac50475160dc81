//! Walk-forward: the folds' trainings one after the other, each in a folder of its own, and the pooled result.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use backtest::{Report, Track};
use bars::{Fold, Symbol};
pub use report::run::fold_name;
use serde::Serialize;
use settings::Config;

use crate::train::Stop;
use crate::train::agent::{Agent, Learned, PartName};
use crate::train::control::{Control, Finding};
use crate::train::files::write_atomically;
use crate::train::market::{Market, PartResult, Tracks, Walk};
use crate::train::metrics::Metrics;
use crate::train::progress::Progress;
use crate::train::record::{About, validated, write_page};
use crate::train::run::Run;
use crate::train::run_files::RunFiles;
use crate::train::world::{Backtests, World};

/// Makes the agent of a fold, and says the hash of the kernels it runs on.
pub type MakeAgent<'m> =
    dyn for<'a> FnMut(&'a Config, &'a Market) -> anyhow::Result<(Box<dyn Agent + 'a>, String)> + 'm;

/// One fold's test.
#[derive(Clone, Debug, Serialize)]
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
    /// Whether it was stopped before the last fold's last epoch.
    pub stopped: bool,
}

/// Trains and tests every one of [`Market::folds`]. The run's folder gets the configuration, `metrics.jsonl` with a row for each fold and
/// one for the pooled result, and `test.json`; each fold's folder holds what the folder of a run of its own would.
///
/// # Errors
/// What keeps a fold from being trained, with its number. When a stop was asked for, the folds that were tested are
/// reported; `None` if it came before the first one had a policy.
pub fn walk_forward(
    config: &mut Config,
    symbols: &[Symbol],
    folds: &[Vec<Fold>],
    files: &RunFiles,
    stop: &Stop,
    progress: &mut Progress,
    make_agent: &mut MakeAgent<'_>,
) -> anyhow::Result<Option<WalkResult>> {
    let of = folds.len();
    let mut metrics = Metrics::create(&files.metrics())?.with_events(1)?;
    let mut sharpes = Vec::new();
    let mut control: Option<Control> = None;
    let mut results = Vec::new();
    let mut tracks: Vec<Tracks> = Vec::new();
    let mut learned: Option<Learned> = None;
    let mut bars_per_year = 0.0;
    for (i, parts) in folds.iter().enumerate() {
        let walk = Walk { fold: i + 1, of };
        let in_fold = || format!("fold {} of {of}", walk.fold);
        if stop.asked() {
            break;
        }
        let market = Market::of_folds(config, symbols, parts, Some(walk)).with_context(in_fold)?;
        progress.line(&format!("{}\n{}", in_fold(), market.summary.trim_end()));
        let folder = RunFiles::create(Some(&files.folder.join(fold_name(walk.fold))))?;
        let fold_config = config.clone();
        let (mut agent, kernels) = make_agent(&fold_config, &market).with_context(in_fold)?;
        if i == 0 {
            let about = About::new(config, World::Market(&market), &kernels, agent.device());
            files.write_config(config, &about.comment())?;
        }
        if let Some(learned) = &learned {
            agent.set_learned(learned).with_context(in_fold)?;
        }
        let run = Run {
            config: &fold_config,
            world: World::Market(&market),
            files: &folder,
            kernels,
            stop: stop.clone(),
            folds_behind: of - walk.fold,
        };
        let outcome = run.train(agent.as_mut(), progress, None).with_context(in_fold)?;
        learned = outcome.learned;
        // Stopped before the fold had a policy: what the folds before found is not lost.
        let Some(best) = outcome.best else { break };
        let Backtests { result: test, passes } = best.test.into_backtests()?;
        bars_per_year = market.bars_per_year;
        tracks.push(market.tracks(&passes, PartName::Test)?);
        match (&mut control, best.control) {
            (Some(control), Some(later)) => control.add(later),
            (all, first) => *all = first,
        }
        let result =
            FoldResult { fold: walk.fold, test_ms: test_times(&market), best_epoch: best.epoch, test };
        metrics.tell(progress, "fold", &result)?;
        sharpes.extend(validated(&folder.metrics())?.unwrap_or_default());
        progress.line(&result.to_string());
        results.push(result);
    }
    if results.is_empty() {
        return Ok(None);
    }
    let pooled = pooled(&config.report, &tracks, bars_per_year, &sharpes)?;
    let control = control.map(|control| control.finding(pooled.strategy.sharpe));
    let result = WalkResult { folds: results, pooled, control, stopped: stop.asked() };
    metrics.tell(progress, "pooled", &result.pooled)?;
    metrics.end_events()?;
    let text = serde_json::to_string_pretty(&result)?;
    write_atomically(&files.test(), text.as_bytes())
        .with_context(|| format!("writing into {}", files.folder.display()))?;
    write_page(&files.folder)?;
    Ok(Some(result))
}

/// The report of test parts one behind the other, deflated for the validated policies of all folds together.
fn pooled(
    keys: &settings::Report,
    tracks: &[Tracks],
    bars_per_year: f64,
    sharpes: &[Option<f64>],
) -> anyhow::Result<Report> {
    let chain = |track: fn(&Tracks) -> &Track| {
        Track::chained(&tracks.iter().map(|tracks| track(tracks).clone()).collect::<Vec<_>>())
    };
    let whole = Tracks { strategy: chain(|t| &t.strategy), holding: chain(|t| &t.holding) };
    let report = Report::of_tracks(&whole.strategy, &whole.holding, bars_per_year)?;
    Ok(whole.judge(report, keys, Some(sharpes)))
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
