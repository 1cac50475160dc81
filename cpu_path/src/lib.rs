//! The model and its losses on candle with autograd.
//!
//! One implementation, two precisions: [`CpuLearner`] (f32) trains where there is no GPU, [`Oracle`] (f64) is what
//! the GPU step and the emulator are compared with. Both start from the same bits ([`init_flat`]) and address
//! parameters by the flat [`settings::Layout`] that the kernels use, so parameters, gradients and moments of the
//! two paths can be compared element by element.
//!
//! Map: `network` is the forward pass (with `attention`, `mamba` and the `glu` heads), `noisy` the heads' noise, `distribution` what is
//! read from it without a gradient; `c51`, `cql`, `iqn`, `iql`, `ensemble` and `confidence` are the losses, `terms` their shares
//! of the gradient, `vaccine` what it does not go against, `spectral` the limit on the trunk, `pruning` its masks; `group` is a
//! set of parameters with an Adam of its own, `networks` all of them with the target, `kept` what else stays,
//! `optimizer` the arithmetic of the update. `evaluate` has losses and gradients of a batch, `learner` the step,
//! `outlook` what a trained policy says of states, `held_out` the loss of transitions that are not learned from. A
//! further loss term is a module beside `c51` and, if it has a network of its own, one more [`settings::Group`].

pub mod attention;
mod batch;
pub mod c51;
pub mod confidence;
pub mod cql;
pub mod distribution;
pub mod ensemble;
mod error;
mod evaluate;
mod glu;
pub mod golden;
mod group;
mod held_out;
mod hyper;
mod init;
pub mod iql;
pub mod iqn;
mod kept;
mod learner;
pub mod mamba;
pub mod network;
mod networks;
pub mod noisy;
pub mod nstep;
pub mod ops;
pub mod optimizer;
mod outlook;
pub mod pruning;
mod real;
pub mod replay;
pub mod spectral;
mod state;
pub mod terms;
pub mod vaccine;
mod values;

pub use batch::C51Batch;
pub use error::CpuError;
pub use glu::glu;
pub use group::{ParameterGroup, Weights};
pub use held_out::HeldOut;
pub use hyper::{Hyper, RateSchedule, decimal};
pub use init::{init_flat, init_parameters, init_spectral};
pub use learner::{CpuLearner, Learner, Net, Oracle, Start};
pub use outlook::Outlook;
pub use real::Real;
pub use state::LearnerState;
pub use values::{
    Activations, ConfidenceValues, CqlValues, Decision, EnsembleValues, Evaluation, IqlValues, IqnValues,
    StepMetrics,
};
