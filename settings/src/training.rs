//! `[train]`, `[optimizer]` and `[collect]`: how steps are made.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// Arithmetic of matrix products; everything else is always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// B: samples per training step.
    #[schemars(extend("unit" = "samples"))]
    pub batch: usize,
    /// Discount of one step.
    pub gamma: f32,
    /// Epochs of collection, training and validation.
    #[schemars(extend("unit" = "epochs"))]
    pub epochs: usize,
    /// Training steps (graph launches) per epoch.
    #[schemars(extend("unit" = "training steps"))]
    pub train_steps: usize,
    /// Seed of every random stream.
    pub seed: u64,
    /// Arithmetic of matrix products on the GPU.
    pub precision: Precision,
    /// Skipped non-finite steps in a row after which the run stops with an error.
    #[schemars(extend("unit" = "training steps"))]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// How `lr` goes on after the warm-up: `constant`, `cosine` or `linear`.
    pub schedule: Schedule,
    /// Updates over which the rate rises from 0 to `lr`, linearly.
    #[schemars(extend("unit" = "updates"))]
    pub warmup_steps: u64,
    /// Updates after which the rate is `lr_end`, the warm-up included; of a cosine or a line.
    #[schemars(extend("unit" = "updates"))]
    pub total_steps: u64,
    /// Learning rate at the end of a cosine or a line, and from then on.
    pub lr_end: f32,
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
            schedule: Schedule::Constant,
            warmup_steps: 0,
            total_steps: 0,
            lr_end: 0.0,
        }
    }
}

/// `[collect]`: how experience is gathered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Collect {
    /// Parallel environments.
    pub environments: usize,
    /// Steps of every environment per epoch.
    #[schemars(extend("unit" = "bars"))]
    pub steps: usize,
    /// Steps of every environment before the first training step.
    #[schemars(extend("unit" = "bars"))]
    pub warmup: usize,
    /// Transitions the replay ring holds.
    #[schemars(extend("unit" = "transitions"))]
    pub capacity: usize,
    /// Probability of a uniformly random composite action, first epoch.
    #[schemars(extend("unit" = "probability"))]
    pub epsilon_start: f32,
    /// The same in the last epoch (linear in between).
    #[schemars(extend("unit" = "probability"))]
    pub epsilon_end: f32,
    /// Longest episode in bars; the end is a truncation.
    #[schemars(extend("unit" = "bars"))]
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
