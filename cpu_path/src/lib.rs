//! The model and its losses on candle with autograd.
//!
//! One implementation, two precisions: [`CpuLearner`] (f32) trains where there is no GPU, [`Oracle`] (f64) is what
//! the GPU step and the emulator are compared with. Both start from the same bits ([`init_flat`]) and address
//! parameters by the flat [`settings::Layout`] that the kernels use, so parameters, gradients and moments of the
//! two paths can be compared element by element.
//!
//! Map: `network` is the forward pass, `distribution` what is read from it without a gradient, `c51` the loss,
//! `group` a set of parameters with an Adam of its own, `optimizer` the arithmetic of the update, `learner` ties them
//! together. A further loss term is a module beside `c51` and, if it has a network of its own, one more
//! [`ParameterGroup`].

mod batch;
pub mod c51;
pub mod distribution;
mod error;
pub mod golden;
mod group;
mod hyper;
mod init;
mod learner;
pub mod network;
pub mod nstep;
pub mod ops;
pub mod optimizer;
mod real;
mod state;
mod values;

pub use batch::C51Batch;
pub use error::CpuError;
pub use group::{ParameterGroup, Weights};
pub use hyper::{Hyper, decimal};
pub use init::init_flat;
pub use learner::{CpuLearner, Learner, Net, Oracle};
pub use real::Real;
pub use state::LearnerState;
pub use values::{Activations, Decision, Evaluation, StepMetrics};
