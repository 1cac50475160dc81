//! What the learner hands out: decisions, intermediates of a loss, metrics of a step. All row-major.

/// Q values and the greedy action of each branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<T> {
    /// Q, [batch, sum n_d], branch after branch.
    pub q: Vec<T>,
    /// argmax of each branch, the lowest index among equals, [batch, branches].
    pub greedy: Vec<u32>,
}

/// Every value of a forward pass, row-major (see [`crate::network::Forward`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Activations<T> {
    /// [batch, H1].
    pub h1: Vec<T>,
    /// [batch, H2].
    pub h2: Vec<T>,
    /// [batch, atoms].
    pub value: Vec<T>,
    /// Per branch, [batch, actions, atoms].
    pub advantages: Vec<Vec<T>>,
    /// Per branch, [batch, actions, atoms].
    pub logits: Vec<Vec<T>>,
    /// Per branch, [batch, actions, atoms].
    pub probabilities: Vec<Vec<T>>,
    /// Per branch, [batch, actions].
    pub q: Vec<Vec<T>>,
}

/// Loss of a batch with every intermediate and the gradient, before any update.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation<T> {
    /// a*, greedy actions of the online network in s', [batch, branches].
    pub next_actions: Vec<u32>,
    /// m, projected target distributions, [batch, branches, atoms].
    pub target_mass: Vec<T>,
    /// Target mass strictly below the support, [batch, branches].
    pub clipped_low: Vec<T>,
    /// Target mass strictly above the support, [batch, branches].
    pub clipped_high: Vec<T>,
    /// log p of the taken actions, [batch, branches, atoms].
    pub log_probabilities: Vec<T>,
    /// Cross-entropy, [batch, branches].
    pub cross_entropy_per_branch: Vec<T>,
    /// Its mean over the branches, not importance-weighted, [batch].
    pub cross_entropy: Vec<T>,
    /// E_m[z] - Q_d(s, a_d), [batch, branches].
    pub td_per_branch: Vec<T>,
    /// Mean over the branches of its absolute value, [batch].
    pub td: Vec<T>,
    /// Mean over batch and branches of Q_d(s, a_d).
    pub mean_q: f64,
    /// Mean over the batch of weight times cross-entropy.
    pub loss: T,
    /// dloss/dparameters of the main network in its flat layout, not clipped.
    pub gradient: Vec<T>,
    /// Euclidean norm of the gradient.
    pub gradient_norm: f64,
}

/// What a training step reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMetrics<T> {
    /// Mean over the batch of weight times cross-entropy, before the update.
    pub loss: f64,
    /// Norm of the gradient before the clip.
    pub grad_norm: f64,
    /// Mean over the branches of |E_m[z] - Q|, per sample, [batch].
    pub td: Vec<T>,
    /// Cross-entropy per sample, not importance-weighted, [batch].
    pub cross_entropy: Vec<T>,
    /// Mean over batch and branches of Q of the taken actions.
    pub mean_q: f64,
    /// Fraction of the target mass strictly below the support.
    pub clipped_low: f64,
    /// Fraction of the target mass strictly above the support.
    pub clipped_high: f64,
    /// True when the gradient norm was not finite: parameters, moments, target and step counter are unchanged.
    pub skipped: bool,
}
