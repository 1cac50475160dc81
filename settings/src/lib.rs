//! Shapes, hyper-parameters, the TOML configuration, and the flat parameter layout.
//!
//! Everything that several crates must agree on is declared here once: `model` (network shapes and where each tensor
//! of the main network lies), `flat` (the one buffer of all networks), `config` (what a user may set), `keys` (what may be
//! set, in words), `presets` (named configurations), `parts`
//! (what may stand beside the C51 loss) and `replay` (sampling and n-step returns).

pub mod checkpoints;
pub mod config;
pub mod effect;
pub mod flat;
pub mod folds;
pub mod keys;
pub mod mamba;
pub mod market;
pub mod model;
pub mod noisy;
pub mod parts;
pub mod presets;
pub mod pruning;
pub mod replay;
pub mod report;
pub mod schedule;
pub mod task;
pub mod training;
pub mod transitions;

pub use checkpoints::{Checkpoints, Difference};
pub use config::{Config, ConfigError};
pub use flat::{Flat, Group, Segment};
pub use folds::{Folds, Scheme};
pub use mamba::Mamba;
pub use market::{BarSide, Data, Market, MarketLayout, Split};
pub use model::{Head, Layout, ModelShape, Tensor};
pub use noisy::{NoisyLayer, NoisyLayout};
pub use parts::{Attention, Budgets, Confidence, Cql, Ensemble, Iql, Iqn, Parts, Probe, Spectral, Vaccine};
pub use pruning::Pruning;
pub use replay::{Priority, Replay};
pub use report::Report;
pub use schedule::Schedule;
pub use task::{Her, Task};
pub use training::{Collect, Optimizer, Precision, Train};
pub use transitions::Transitions;
