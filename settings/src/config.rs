//! The configuration a user may set: TOML sections, `--set key=value`, checks that name the key.

use serde::{Deserialize, Serialize};

use crate::model::ModelShape;

/// What is wrong with a configuration; the text names the key and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file or a `--set` text is not valid TOML, has an unknown key or a value of the wrong type.
    #[error("{place}: {message}")]
    Parse {
        /// File name or the `--set` text.
        place: String,
        /// The parser's message with line and column.
        message: String,
    },
    /// A value or a combination of values that cannot work.
    #[error("{0}")]
    Invalid(String),
}

/// Arithmetic of matrix products; everything else is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE fp32, never silently tf32.
    Fp32,
    /// Tensor cores on 10-bit mantissas, f32 accumulation.
    #[default]
    Tf32,
    /// Tensor cores on bfloat16 operands, f32 accumulation.
    Bf16,
}

/// `[train]`: batch, losses, schedule of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// B: samples per training step.
    pub batch: usize,
    /// Discount of one step.
    pub gamma: f32,
    /// Epochs of collection, training and validation.
    pub epochs: usize,
    /// Training steps (graph launches) per epoch.
    pub train_steps: usize,
    /// Seed of every random stream.
    pub seed: u64,
    /// Arithmetic of matrix products on the GPU.
    pub precision: Precision,
    /// Skipped non-finite steps in a row after which the run stops with an error.
    pub max_nonfinite: u32,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            batch: 1024,
            gamma: 0.99,
            epochs: 10,
            train_steps: 2000,
            seed: 1,
            precision: Precision::Tf32,
            max_nonfinite: 10,
        }
    }
}

/// `[optimizer]`: Adam and the target network (SPEC section 4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added outside the root, after bias correction.
    pub eps: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Global norm to which the gradient is clipped.
    pub max_grad_norm: f32,
    /// target += tau * (online - target), every step.
    pub tau: f32,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            lr: 1e-4,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1.5e-4,
            weight_decay: 0.0,
            max_grad_norm: 10.0,
            tau: 0.005,
        }
    }
}

/// `[collect]`: how experience is gathered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Collect {
    /// Parallel environments.
    pub environments: usize,
    /// Steps of every environment per epoch.
    pub steps: usize,
    /// Steps of every environment before the first training step.
    pub warmup: usize,
    /// Transitions the replay ring holds.
    pub capacity: usize,
    /// Probability of a uniformly random composite action, first epoch.
    pub epsilon_start: f32,
    /// The same in the last epoch (linear in between).
    pub epsilon_end: f32,
    /// Longest episode in bars; the end is a truncation.
    pub episode: usize,
}

impl Default for Collect {
    fn default() -> Self {
        Self {
            environments: 4096,
            steps: 64,
            warmup: 64,
            capacity: 1 << 20,
            epsilon_start: 0.5,
            epsilon_end: 0.05,
            episode: 256,
        }
    }
}

/// `[split]`: one split by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Split {
    /// Fraction of the bars for training.
    pub train: f64,
    /// Fraction of the bars for validation; the rest is the test part.
    pub validation: f64,
    /// Extra bars dropped between the parts, on top of the purge of L + W - 1 + n bars.
    pub embargo: usize,
}

impl Default for Split {
    fn default() -> Self {
        Self { train: 0.7, validation: 0.15, embargo: 0 }
    }
}

/// Which side of the book the file's prices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BarSide {
    /// Mid prices: half the spread is paid on each trade.
    #[default]
    Mid,
    /// Bid prices.
    Bid,
    /// Ask prices.
    Ask,
}

/// `[market]`: costs and limits of the market environment (SPEC section 6). Fractions, not percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Market {
    /// W: bars in the state's window.
    pub window: usize,
    /// Half the bid-ask spread, fraction of price.
    pub half_spread: f64,
    /// Slippage of a market order, fraction of price.
    pub slippage: f64,
    /// Price impact per unit of traded equity fraction.
    pub impact: f64,
    /// Fee of a market order, fraction of notional.
    pub taker_fee: f64,
    /// Fee of a limit or passive order, fraction of notional.
    pub maker_fee: f64,
    /// Yearly financing rate on leveraged (borrowed) cash.
    pub financing: f64,
    /// Yearly borrow rate on the notional of a short position.
    pub borrow: f64,
    /// Side of the file's prices.
    pub bar_side: BarSide,
    /// lambda: weight of the growth of the drawdown in the reward.
    pub drawdown_penalty: f64,
    /// Equity fraction of the start at which the episode terminates.
    pub ruin: f64,
    /// Reward of a ruinous step, fixed.
    pub ruin_reward: f64,
}

impl Default for Market {
    fn default() -> Self {
        Self {
            window: 8,
            half_spread: 5e-5,
            slippage: 2e-5,
            impact: 1e-5,
            taker_fee: 2e-5,
            maker_fee: 0.0,
            financing: 0.05,
            borrow: 0.02,
            bar_side: BarSide::Mid,
            drawdown_penalty: 0.0,
            ruin: 0.1,
            ruin_reward: -10.0,
        }
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Network shape.
    pub model: ModelShape,
    /// Training.
    pub train: Train,
    /// Optimizer and target.
    pub optimizer: Optimizer,
    /// Collection.
    pub collect: Collect,
    /// Split by time.
    pub split: Split,
    /// Market environment.
    pub market: Market,
}
