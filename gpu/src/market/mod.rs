//! The market environment (SPEC section 6) as pure functions: the device's kernels, the CPU's [`VecMarket`] and the
//! backtest all call these, so an account has the same bits on every path.
//!
//! Arithmetic: accounts and rewards are f64, written with plain `+ - * /`, which neither rustc's x86 nor its PTX
//! back end contracts to fused operations; the only transcendental function is `libm::log`. A value becomes f32
//! once, when it is stored as a reward or a state feature.
//!
//! One bar of one environment: the decision is taken at the close of bar t from what is known then, the order is
//! executed inside bar t + 1 and the account is marked at the close of bar t + 1. `docs/MARKET.md` has all formulas.
//!
//! Shapes: E environments, T bars of the file, W bars in the window, F features per bar, P = 8 portfolio features,
//! S = W*F + P.

mod account;
mod log;
mod observe;
mod order;
mod params;
mod reset;
mod step;
mod view;

pub use account::{ACCOUNT_COUNTERS, ACCOUNT_VALUES, Account, FILLED, RUNNING, TERMINATED, TRUNCATED};
pub use log::{LOG_FIELDS, LogRow};
pub use observe::{PORTFOLIO, StateShape, portfolio_element, portfolio_feature, state_element};
pub use order::{Bar, Decision, Execution, OrderKind, all_in_quantity, decode, execute, order_quantity};
pub use params::{ActionLayout, MarketParams, Mode, PARAM_WORDS};
pub use reset::resumed;
pub use step::{StepOutcome, advance, discount, step};
pub(crate) use view::{FeatureBuffers, PriceBuffer, RunBuffers, TimeBuffer, ring_slot};
pub use view::{Features, Prices, Runs, Times};

#[cfg(not(target_arch = "nvptx64"))]
pub use account::check_counters;

#[cfg(not(target_arch = "nvptx64"))]
mod error;
#[cfg(not(target_arch = "nvptx64"))]
mod rollout;
#[cfg(not(target_arch = "nvptx64"))]
mod table;
#[cfg(not(target_arch = "nvptx64"))]
mod vec_market;

#[cfg(not(target_arch = "nvptx64"))]
pub use self::{
    error::MarketError,
    rollout::rollout,
    table::{BarColumns, BarSide, MarketTable, Part, YEAR_MS},
    vec_market::{Transitions, VecMarket},
};
