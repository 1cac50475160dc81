//! Shapes, hyper-parameters, the TOML configuration, and the flat parameter layout.
//!
//! Everything that several crates must agree on is declared here once: `model` (network shapes and
//! where each tensor lies in the flat buffer) and `config` (what a user may set).

pub mod config;
pub mod model;

pub use config::{BarSide, Collect, Config, ConfigError, Data, Market, Optimizer, Precision, Split, Train};
pub use model::{Layout, ModelShape, Tensor};
