//! What a run writes down for its report beside the losses: what it is, what its policy believes, the tested result.

use std::path::Path;

use anyhow::Context;
use backtest::{Bootstrap, Report, Track, Trials, buy_and_hold};
use cpu_path::{CpuLearner, Net};
use gpu::market::{LogRow, MarketError, PORTFOLIO, rollout};
use report::page;
use report::rows;
use report::run::RunData;
use report::tables::Pass;
use serde::Serialize;
use settings::{Config, Flat};

use crate::step::Kept;
use crate::train::agent::PartName;
use crate::train::checkpoint::write_atomically;
use crate::train::market::Market;

/// States whose value distributions are averaged.
const STATES: usize = 256;

/// Names of the portfolio features in the order of the state (`docs/MARKET.md`).
const PORTFOLIO_NAMES: [&str; PORTFOLIO as usize] = [
    "exposure",
    "open_profit",
    "bars_since_trade",
    "drawdown",
    "remaining",
    "time_sine",
    "time_cosine",
    "last_filled",
];

/// The first row of a run's metrics: what runs where, on what.
#[derive(Debug, Serialize)]
pub struct About<'a> {
    program: &'static str,
    kernels: &'a str,
    device: String,
    source: &'a str,
    bars: usize,
    bars_hash: &'a str,
    parameters: usize,
    /// Names of the state's features, the window's first.
    features: Vec<&'static str>,
}

impl<'a> About<'a> {
    /// Of a run on a market.
    pub fn new(config: &Config, market: &'a Market, kernels: &'a str, device: String) -> Self {
        let window = (0..config.market.window).flat_map(|_| bars::FEATURE_NAMES);
        Self {
            program: env!("CARGO_PKG_VERSION"),
            kernels,
            device,
            source: &market.record.source,
            bars: market.record.bars,
            bars_hash: &market.record.bars_hash,
            parameters: Flat::new(&config.model, &config.parts()).count(),
            features: window.chain(PORTFOLIO_NAMES).collect(),
        }
    }
}

/// Value distributions of a policy: of the chosen action of each branch, mean over states of a backtest.
#[derive(Debug, Serialize)]
pub struct Values {
    epoch: usize,
    step: usize,
    /// States averaged over.
    states: usize,
    /// Lowest and highest atom.
    v_min: f32,
    v_max: f32,
    /// Mass at the atoms, `[branches][atoms]`.
    branches: Vec<Vec<f64>>,
}

/// Where in a run a policy stands.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// Epoch, from 1.
    pub epoch: usize,
    /// Training steps done.
    pub step: usize,
    /// Ends of the support after them.
    pub support: [f32; 2],
}

impl Values {
    /// Of the policy that made `rows` on a part: the pass is walked again with its decisions, every so many states are
    /// looked at, and the network is evaluated on the CPU, which is the same for either device.
    pub fn new(
        config: &Config,
        market: &Market,
        (part, rows): (PartName, &[LogRow]),
        policy: (&[f32], &[f32], &Kept),
        at: At,
    ) -> anyhow::Result<Self> {
        let decided: Vec<u64> = rows.iter().filter(|row| row.decided).map(|row| row.action).collect();
        let every = decided.len().div_ceil(STATES).max(1);
        let (mut states, mut count) = (Vec::new(), 0);
        rollout(&market.params, &market.table, market.part(part), |state| {
            if count % every == 0 {
                states.extend_from_slice(state);
            }
            count += 1;
            // A pass ends where it did: with the last decision of the rows.
            Ok::<u64, MarketError>(decided.get(count - 1).copied().unwrap_or_default())
        })
        .context("walking a backtest again")?;
        let learner = learner(config, policy)?;
        let activations = learner.activations(Net::Online, &states)?;
        let (atoms, count) = (config.model.atoms, states.len() / config.model.state);
        let branches = activations.q.iter().zip(&activations.probabilities).map(|(q, probabilities)| {
            let actions = q.len() / count;
            let mut mean = vec![0.0; atoms];
            for (q, probabilities) in q.chunks(actions).zip(probabilities.chunks(actions * atoms)) {
                let greedy =
                    q.iter().enumerate().fold(0, |best, (a, value)| if *value > q[best] { a } else { best });
                for (mean, p) in mean.iter_mut().zip(&probabilities[greedy * atoms..][..atoms]) {
                    *mean += f64::from(*p) / count as f64;
                }
            }
            mean
        });
        let [v_min, v_max] = at.support;
        Ok(Self { epoch: at.epoch, step: at.step, states: count, v_min, v_max, branches: branches.collect() })
    }
}

/// A network on the CPU with a policy's parameters.
fn learner(config: &Config, (online, target, kept): (&[f32], &[f32], &Kept)) -> anyhow::Result<CpuLearner> {
    let mut learner = CpuLearner::from_config(config)?;
    let mut state = learner.export();
    state.online = online.to_vec();
    state.target = target.to_vec();
    if !kept.iql.is_empty() {
        state.iql = kept.iql.clone();
    }
    learner.import(state)?;
    Ok(learner)
}

/// A backtest with everything that is reported of it.
#[derive(Debug)]
pub struct Tested {
    rows: Vec<LogRow>,
    strategy: Track,
    holding: Track,
    /// Ratios, intervals, the deflated Sharpe ratio.
    pub report: Report,
}

impl Tested {
    /// Of a backtest's rows on a part. `sharpes` are the ratios of the policies among which this one was chosen; without
    /// them nothing is deflated.
    pub fn new(
        config: &Config,
        market: &Market,
        rows: Vec<LogRow>,
        part: PartName,
        sharpes: Option<&[Option<f64>]>,
    ) -> anyhow::Result<Self> {
        let (params, place) = (&market.params, market.part(part));
        let strategy = Track::new(&rows, params.initial_equity, place.backtest_steps())?;
        let holding = buy_and_hold(params, &market.table, place);
        let keys = &config.report;
        let bootstrap = Bootstrap {
            level: keys.level,
            resamples: keys.resamples,
            block: (keys.block > 0.0).then_some(keys.block),
            seed: keys.seed,
        };
        let trials = sharpes.map(|sharpes| Trials::of(sharpes, market.bars_per_year, keys.trials));
        let report = Report::of_tracks(&strategy, &holding, market.bars_per_year)?
            .judged(&strategy, &holding, &bootstrap, trials);
        Ok(Self { rows, strategy, holding, report })
    }

    /// Writes `NAME-bars.csv` and `NAME-trades.csv` into a folder.
    pub fn write_tables(
        &self,
        config: &Config,
        market: &Market,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<()> {
        let pass = Pass {
            rows: &self.rows,
            strategy: &self.strategy,
            holding: &self.holding,
            time_ms: &market.time_ms,
            branches: config.model.branches.len(),
        };
        for (path, bytes) in pass.files(folder, name)? {
            write_atomically(&path, &bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// Makes `report.html` of the files in a run's folder.
pub fn write_page(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    let page = page::html(&RunData::read(folder)?)?;
    let path = folder.join("report.html");
    write_atomically(&path, page.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Validation Sharpe ratios of a run's epochs, an undefined one where there was none; `None` without metrics.
pub fn validated(metrics: &Path) -> anyhow::Result<Option<Vec<Option<f64>>>> {
    if !metrics.exists() {
        return Ok(None);
    }
    let rows = rows::read(metrics)?;
    let epochs = rows.iter().filter(|row| row.kind == "epoch");
    Ok(Some(epochs.map(|row| row.number("validation_sharpe")).collect()))
}
