//! What a run learns: the market, or a control task.

use std::fmt;

use backtest::Report;
use serde::Serialize;
use settings::Config;

use crate::train::agent::{Agent, PartName};
use crate::train::market::{Market, MarketRecord};
use crate::train::task::{TaskReport, TaskRun};

/// The market with its bars, or a control task.
#[derive(Debug)]
pub enum World {
    /// Bars, parts and costs.
    Market(Box<Market>),
    /// A control task.
    Task(TaskRun),
}

impl World {
    /// What a configuration asks for; fills in what the model's shape has from it.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        if config.task.is_market() {
            return Ok(Self::Market(Box::new(Market::prepare(config)?)));
        }
        Ok(Self::Task(TaskRun::prepare(config)?))
    }

    /// What a checkpoint was trained on.
    ///
    /// # Errors
    /// For a market, if the bars are not those of the training.
    pub fn of_record(config: &mut Config, record: Option<&MarketRecord>) -> anyhow::Result<Self> {
        match record {
            Some(record) => Ok(Self::Market(Box::new(Market::of_record(config, record)?))),
            None => Self::prepare(config),
        }
    }

    /// The market, if it is that.
    pub fn market(&self) -> Option<&Market> {
        match self {
            Self::Market(market) => Some(market),
            Self::Task(_) => None,
        }
    }

    /// The control task, if it is one.
    pub fn task(&self) -> Option<&TaskRun> {
        match self {
            Self::Market(_) => None,
            Self::Task(task) => Some(task),
        }
    }

    /// What there is to say about it.
    pub fn text(&self) -> String {
        match self {
            Self::Market(market) => market.text.trim_end().to_string(),
            Self::Task(task) => task.text(),
        }
    }

    /// For checkpoints.
    pub fn record(&self) -> Option<&MarketRecord> {
        self.market().map(|market| &market.record)
    }

    /// Discount of one step.
    pub fn gamma(&self) -> f64 {
        match self {
            Self::Market(market) => market.params.gamma,
            Self::Task(task) => task.gamma,
        }
    }

    /// Evaluates the agent's policy: a backtest of a part of the bars, or greedy episodes whose seeds are the part's and
    /// the number's (an epoch, or 0).
    pub fn evaluate(&self, agent: &mut dyn Agent, part: PartName, number: u64) -> anyhow::Result<Evaluation> {
        match self {
            Self::Market(market) => {
                Ok(Evaluation::Market(Box::new(market.report(&agent.backtest(part)?, part)?)))
            }
            Self::Task(task) => {
                let finished = agent.episodes(task.evaluation_seed(part, number))?;
                Ok(Evaluation::Task(TaskReport::new(task.task.name(), &finished)))
            }
        }
    }
}

/// Result of an evaluation.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Evaluation {
    /// Of a backtest.
    Market(Box<Report>),
    /// Of a task's episodes.
    Task(TaskReport),
}

impl Evaluation {
    /// What chooses the best policy. A market's: the Sharpe ratio; where it is undefined, a policy that lost its equity
    /// comes last, and one whose equity did not move counts as 0. A task's: the mean return.
    pub fn score(&self) -> f64 {
        match self {
            Self::Market(report) => {
                let strategy = &report.strategy;
                let ruined = strategy.end_equity <= 0.0 || !strategy.end_equity.is_finite();
                strategy.sharpe.unwrap_or(if ruined { f64::NEG_INFINITY } else { 0.0 })
            }
            Self::Task(report) => report.mean_return,
        }
    }

    /// A market's total return, a task's mean return.
    pub fn total_return(&self) -> f64 {
        match self {
            Self::Market(report) => report.strategy.total_return,
            Self::Task(report) => report.mean_return,
        }
    }

    /// A market's Sharpe ratio.
    pub fn sharpe(&self) -> Option<f64> {
        match self {
            Self::Market(report) => report.strategy.sharpe,
            Self::Task(_) => None,
        }
    }

    /// A task's report.
    pub fn task(&self) -> Option<&TaskReport> {
        match self {
            Self::Market(_) => None,
            Self::Task(report) => Some(report),
        }
    }

    /// What the score is.
    pub fn score_name(config: &Config) -> &'static str {
        if config.task.is_market() {
            "Sharpe ratio of the validation part"
        } else {
            "mean return of the validation episodes"
        }
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Market(report) => report.fmt(f),
            Self::Task(report) => report.fmt(f),
        }
    }
}
