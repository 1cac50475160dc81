//! What a run writes down for its report beside the losses: what it is, what its policy believes, the tested result.

use std::path::Path;

use anyhow::{Context, bail};
use cpu_path::{CpuLearner, Net};
use gpu::market::{LogRow, MarketError, PORTFOLIO, rollout};
use report::page;
use report::rows;
use report::run::RunData;
use serde::Serialize;
use settings::{Config, Flat, Task};

use crate::step::Kept;
use crate::train::agent::PartName;
use crate::train::checkpoint::Checkpoint;
use crate::train::files::write_atomically;
use crate::train::market::Market;
use crate::train::offline::DataFile;
use crate::train::world::World;

/// Name of the page in a run's folder.
pub const PAGE: &str = "report.html";

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
    /// The control task, if it is one; `transitions` of a data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'static str>,
    data: Vec<Data<'a>>,
    /// The files of a data set of transitions.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    transitions: &'a [DataFile],
    parameters: usize,
    /// Names of a market state's features, the window's first.
    features: Vec<&'static str>,
}

/// One symbol's bars.
#[derive(Debug, Serialize)]
struct Data<'a> {
    symbol: &'a str,
    source: &'a str,
    bars: usize,
    hash: &'a str,
}

impl<'a> About<'a> {
    /// Of a run.
    pub fn new(config: &Config, world: World<'a>, kernels: &'a str, device: String) -> Self {
        let market = world.market();
        let window = (0..config.market.window).flat_map(|_| bars::FEATURE_NAMES).chain(PORTFOLIO_NAMES);
        let symbols = market.map_or(&[][..], |market| &market.record.symbols[..]);
        let data = symbols.iter().map(|symbol| Data {
            symbol: &symbol.name,
            source: &symbol.source,
            bars: symbol.bars,
            hash: &symbol.bars_hash,
        });
        Self {
            program: env!("CARGO_PKG_VERSION"),
            kernels,
            device,
            task: match world {
                World::Market(_) => None,
                World::Task(task) => Some(task.task.name()),
                World::Transitions(_) => Some(Task::TRANSITIONS),
            },
            data: data.collect(),
            transitions: world.data_set().map_or(&[][..], |data| &data.record.files[..]),
            parameters: Flat::new(&config.model, &config.parts()).count(),
            features: if market.is_some() { window.collect() } else { Vec::new() },
        }
    }

    /// The same as comments at the head of the resolved configuration.
    pub fn comment(&self) -> String {
        let mut text = format!(
            "# Stepgraph {}, kernels {}, on {}\n",
            self.program,
            self.kernels,
            one_line(&self.device)
        );
        for data in &self.data {
            text += &format!(
                "# {}: {}, {} bars, hash {}\n",
                one_line(data.symbol),
                one_line(data.source),
                data.bars,
                data.hash
            );
        }
        for data in self.transitions {
            text += &format!(
                "# {}: {} transitions, hash {}\n",
                one_line(&data.file),
                data.transitions,
                data.hash
            );
        }
        text
    }
}

/// A text that cannot end a comment.
fn one_line(text: &str) -> String {
    text.split(char::is_control).collect::<Vec<_>>().join(" ")
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

impl Values {
    /// Of the policy that made `passes` on a part, one a symbol: each pass is walked again with its decisions, every so
    /// many states are looked at, and the network is evaluated on the CPU, so that it is the same for either device.
    pub fn new(
        config: &Config,
        market: &Market,
        (part, passes): (PartName, &[Vec<LogRow>]),
        policy: &Checkpoint,
        step: usize,
    ) -> anyhow::Result<Self> {
        let decisions = |rows: &[LogRow]| rows.iter().filter(|row| row.decided).count();
        let every = passes.iter().map(|rows| decisions(rows)).sum::<usize>().div_ceil(STATES).max(1);
        let (mut states, mut count) = (Vec::new(), 0usize);
        for (symbol, rows) in passes.iter().enumerate() {
            let mut decided = rows.iter().filter(|row| row.decided).map(|row| row.action);
            let part = market.symbol_part(part, symbol);
            rollout(&market.params, &market.table, part, |state| {
                if count.is_multiple_of(every) {
                    states.extend_from_slice(state);
                }
                count += 1;
                // The rows end where the pass did: by ruin or with the part.
                Ok::<u64, MarketError>(decided.next().unwrap_or_default())
            })
            .context("walking a backtest again")?;
        }
        if states.is_empty() {
            bail!("a backtest without a decision");
        }
        let learner = learner(config, &policy.online, &policy.target, &policy.kept)?;
        let activations = learner.activations(Net::Online, &states)?;
        let (atoms, count) = (config.model.atoms, states.len() / config.model.state);
        let branches = activations.q.iter().zip(&activations.probabilities).map(|(q, probabilities)| {
            let actions = q.len() / count;
            let mut mean = vec![0.0; atoms];
            for (q, probabilities) in q.chunks(actions).zip(probabilities.chunks(actions * atoms)) {
                let greedy = (1..actions).fold(0, |best, a| if q[a] > q[best] { a } else { best });
                for (mean, p) in mean.iter_mut().zip(&probabilities[greedy * atoms..][..atoms]) {
                    *mean += f64::from(*p) / count as f64;
                }
            }
            mean
        });
        let branches = branches.collect();
        let [v_min, v_max] = support(config, &policy.kept);
        Ok(Self { epoch: policy.provenance.epoch, step, states: count, v_min, v_max, branches })
    }
}

/// Ends of the support: the configured ones unless they adapt, in which case the value networks keep them.
fn support(config: &Config, kept: &Kept) -> [f32; 2] {
    match kept.iql[..] {
        [.., v_min, v_max] if config.iql.adaptive_support => [v_min, v_max],
        _ => [config.model.v_min, config.model.v_max],
    }
}

/// Networks on the CPU with a policy's parameters.
pub(super) fn learner(
    config: &Config,
    online: &[f32],
    target: &[f32],
    kept: &Kept,
) -> anyhow::Result<CpuLearner> {
    let mut learner = CpuLearner::from_config(config)?;
    let mut state = learner.export();
    state.online = online.to_vec();
    state.target = target.to_vec();
    if !kept.iql.is_empty() {
        state.iql.clone_from(&kept.iql);
    }
    learner.import(state)?;
    Ok(learner)
}

/// Makes `report.html` of the files in a run's folder.
pub fn write_page(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    let page = page::html(&RunData::read(folder)?)?;
    let path = folder.join(PAGE);
    write_atomically(&path, page.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Validation Sharpe ratios of a run's epochs, an undefined one where there was none; `None` without metrics.
pub fn validated(metrics: &Path) -> anyhow::Result<Option<Vec<Option<f64>>>> {
    if !metrics.exists() {
        return Ok(None);
    }
    let epochs = rows::read(metrics, |kind| kind == "epoch")?;
    Ok(Some(epochs.iter().map(|row| row.number("validation_sharpe")).collect()))
}
