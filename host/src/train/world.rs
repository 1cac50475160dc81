//! What a run learns: the market, a control task, or a data set of transitions.

use std::fmt;

use ::gpu::market::LogRow;
use anyhow::bail;
use serde::Serialize;
use settings::Config;

use crate::train::Stop;
use crate::train::agent::{Agent, PartName};
use crate::train::market::{Market, MarketRecord, PartResult, Walk};
use crate::train::offline::{Offline, OfflineRecord, OfflineReport};
use crate::train::task::{TaskReport, TaskRun};

/// The market, the control task or the data set of a configuration, loaded.
#[derive(Debug)]
pub enum Loaded {
    /// Bars, parts and costs.
    Market(Box<Market>),
    /// A control task.
    Task(TaskRun),
    /// Transitions without an environment.
    Transitions(Box<Offline>),
}

impl Loaded {
    /// What a configuration asks for, of a walk-forward the fold `walk`; fills in what the model's shape has from it.
    ///
    /// # Errors
    /// What keeps the bars from being a market, a task's key that is wrong, or what is wrong with the data set.
    pub fn prepare(config: &mut Config, walk: Option<Walk>) -> anyhow::Result<Self> {
        if config.task.is_transitions() {
            return Ok(Self::Transitions(Box::new(Offline::prepare(config)?)));
        }
        if !config.task.is_market() {
            return Ok(Self::Task(TaskRun::prepare(config)?));
        }
        let market = match walk {
            Some(walk) => Market::of_walk(config, walk)?,
            None => Market::prepare(config)?,
        };
        Ok(Self::Market(Box::new(market)))
    }

    /// What a policy was trained on, to evaluate it; `market` and `data_set` are its records.
    ///
    /// # Errors
    /// If the bars or the transitions are not those of the training.
    pub fn of_record(
        config: &mut Config,
        market: Option<&MarketRecord>,
        data_set: Option<&OfflineRecord>,
    ) -> anyhow::Result<Self> {
        if let Some(record) = data_set {
            return Ok(Self::Transitions(Box::new(Offline::of_record(config, record)?.to_evaluate())));
        }
        match market {
            Some(record) => Ok(Self::Market(Box::new(Market::of_record(config, record)?))),
            None => Self::prepare(config, None),
        }
    }

    /// For an agent and the loop.
    pub fn world(&self) -> World<'_> {
        match self {
            Self::Market(market) => World::Market(market),
            Self::Task(task) => World::Task(*task),
            Self::Transitions(data) => World::Transitions(data),
        }
    }
}

/// What an agent learns: the market with its bars, a control task, or a data set.
#[derive(Clone, Copy, Debug)]
pub enum World<'a> {
    /// Bars, parts and costs.
    Market(&'a Market),
    /// A control task.
    Task(TaskRun),
    /// Transitions without an environment.
    Transitions(&'a Offline),
}

impl<'a> From<&'a Market> for World<'a> {
    fn from(market: &'a Market) -> Self {
        Self::Market(market)
    }
}

impl<'a> World<'a> {
    /// The market, if it is that.
    pub fn market(self) -> Option<&'a Market> {
        match self {
            Self::Market(market) => Some(market),
            Self::Task(_) | Self::Transitions(_) => None,
        }
    }

    /// The control task, if it is one.
    pub fn task(self) -> Option<TaskRun> {
        match self {
            Self::Task(task) => Some(task),
            Self::Market(_) | Self::Transitions(_) => None,
        }
    }

    /// The data set, if it is one.
    pub fn data_set(self) -> Option<&'a Offline> {
        match self {
            Self::Transitions(data) => Some(data),
            Self::Market(_) | Self::Task(_) => None,
        }
    }

    /// What there is to say about it.
    pub fn text(self) -> String {
        match self {
            Self::Market(market) => market.text.trim_end().to_string(),
            Self::Task(task) => task.text(),
            Self::Transitions(data) => data.text.trim_end().to_string(),
        }
    }

    /// For checkpoints.
    pub fn record(self) -> Option<MarketRecord> {
        self.market().map(|market| market.record.clone())
    }

    /// The fold of a walk-forward that it is, if any.
    pub fn walk(self) -> Option<Walk> {
        self.market()?.record.walk
    }

    /// Discount of one step.
    pub fn gamma(self) -> f64 {
        match self {
            Self::Market(market) => market.params.gamma,
            Self::Task(task) => task.gamma,
            Self::Transitions(data) => data.gamma(),
        }
    }

    /// Evaluates the agent's policy: backtests of a part of all symbols' bars, greedy episodes whose seeds are the
    /// part's and the number's (an epoch, or 0), or the loss of a part of the transitions.
    ///
    /// # Errors
    /// What the agent meets, [`Stopped`](crate::train::Stopped) among it.
    pub fn evaluate(
        self,
        agent: &mut dyn Agent,
        part: PartName,
        number: u64,
        stop: &Stop,
    ) -> anyhow::Result<Evaluation> {
        match self {
            Self::Market(market) => {
                let passes = agent.passes(part, market.symbols.len(), stop)?;
                let result = market.result(&passes, part)?;
                Ok(Evaluation::Market(Box::new(Backtests { result, passes })))
            }
            Self::Task(task) => {
                let finished = agent.episodes(task.evaluation_seed(part, number), stop)?;
                Ok(Evaluation::Task(TaskReport::new(task.task.name(), &finished)))
            }
            Self::Transitions(data) => Ok(Evaluation::Transitions(data.evaluate(agent, part, stop)?)),
        }
    }

    /// As [`World::evaluate`] of number 0, a market's with what has to be known to judge it ([`Market::judged`]).
    ///
    /// # Errors
    /// As for [`Market::result`] and [`World::evaluate`].
    pub fn judge(
        self,
        agent: &mut dyn Agent,
        part: PartName,
        keys: &settings::Report,
        sharpes: Option<&[Option<f64>]>,
        stop: &Stop,
    ) -> anyhow::Result<Evaluation> {
        let Self::Market(market) = self else { return self.evaluate(agent, part, 0, stop) };
        let passes = agent.passes(part, market.symbols.len(), stop)?;
        stop.check()?;
        let result = market.judged(keys, &passes, part, sharpes)?;
        Ok(Evaluation::Market(Box::new(Backtests { result, passes })))
    }
}

/// Greedy passes over all symbols' bars of a part, and what they come to.
#[derive(Clone, Debug, Serialize)]
pub struct Backtests {
    /// The result.
    #[serde(flatten)]
    pub result: PartResult,
    /// The bars, a pass for each symbol.
    #[serde(skip)]
    pub passes: Vec<Vec<LogRow>>,
}

/// Result of an evaluation.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Evaluation {
    /// Of backtests.
    Market(Box<Backtests>),
    /// Of a task's episodes.
    Task(TaskReport),
    /// Of held-out transitions.
    Transitions(OfflineReport),
}

impl Evaluation {
    /// What chooses the best policy. A market's: the Sharpe ratio; where it is undefined, a policy that lost its equity has
    /// minus infinity, and one whose equity did not move has none. A task's: the mean return. Of
    /// transitions: minus their loss.
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Market(backtests) => {
                let strategy = &backtests.result.report.strategy;
                let ruined = strategy.end_equity <= 0.0 || !strategy.end_equity.is_finite();
                strategy.sharpe.or(ruined.then_some(f64::NEG_INFINITY))
            }
            Self::Task(report) => Some(report.mean_return),
            Self::Transitions(report) => Some(-report.loss),
        }
    }

    /// A market's total return, a task's mean return; transitions have none.
    pub fn total_return(&self) -> Option<f64> {
        match self {
            Self::Market(backtests) => Some(backtests.result.report.strategy.total_return),
            Self::Task(report) => Some(report.mean_return),
            Self::Transitions(_) => None,
        }
    }

    /// A market's Sharpe ratio.
    pub fn sharpe(&self) -> Option<f64> {
        self.market()?.result.report.strategy.sharpe
    }

    /// A market's backtests.
    pub fn market(&self) -> Option<&Backtests> {
        match self {
            Self::Market(backtests) => Some(backtests),
            Self::Task(_) | Self::Transitions(_) => None,
        }
    }

    /// A task's report.
    pub fn task(&self) -> Option<&TaskReport> {
        match self {
            Self::Task(report) => Some(report),
            Self::Market(_) | Self::Transitions(_) => None,
        }
    }

    /// What held-out transitions say.
    pub fn transitions(&self) -> Option<&OfflineReport> {
        match self {
            Self::Transitions(report) => Some(report),
            Self::Market(_) | Self::Task(_) => None,
        }
    }

    /// A market's backtests, to be kept.
    ///
    /// # Errors
    /// If it is another evaluation.
    pub fn into_backtests(self) -> anyhow::Result<Backtests> {
        match self {
            Self::Market(backtests) => Ok(*backtests),
            Self::Task(report) => bail!("the task {} has no backtest", report.task),
            Self::Transitions(report) => bail!("the task {} has no backtest", report.task),
        }
    }

    /// What the score is.
    pub fn score_name(config: &Config) -> &'static str {
        if config.task.is_market() {
            "Sharpe ratio of the validation part"
        } else if config.task.is_transitions() {
            "minus the C51 loss of the validation transitions"
        } else {
            "mean return of the validation episodes"
        }
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Market(backtests) => backtests.result.fmt(f),
            Self::Task(report) => report.fmt(f),
            Self::Transitions(report) => report.fmt(f),
        }
    }
}
