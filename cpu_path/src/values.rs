//! What the learner hands out: decisions, intermediates of a loss, metrics of a step. All row-major.

use crate::iql::Derived;
use crate::terms::{OwnGradient, TermGradient};

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
    /// m, the Mamba-2 block's output before the gate, [batch, H1]; empty without it.
    pub mamba_output: Vec<T>,
    /// Attention probabilities, [batch, heads, window]; empty without attention.
    pub attention_probabilities: Vec<T>,
    /// o, the attention's output before the gate, [batch, H2]; empty without attention.
    pub attention_output: Vec<T>,
    /// h2', what the heads read, [batch, H2].
    pub features: Vec<T>,
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
    /// Mean over the batch of weight times cross-entropy, with advantage weights and branch scales where they are on.
    pub loss: T,
    /// Mean over batch and branches of the online network's Q at s' and its greedy actions.
    pub mean_next_q: f64,
    /// Values of the conservative term, if it is on.
    pub cql: Option<CqlValues<T>>,
    /// Values of the quantile head, if it is on.
    pub iqn: Option<IqnValues<T>>,
    /// Values of the two value networks, if they are on.
    pub iql: Option<IqlValues<T>>,
    /// Values of the ensemble, if it is on.
    pub ensemble: Option<EnsembleValues<T>>,
    /// Values of the confidence head, if it is on.
    pub confidence: Option<ConfidenceValues<T>>,
    /// Each term's gradient on the main parameters before its budget.
    pub terms: Vec<TermGradient<T>>,
    /// Sum of the terms within their budgets, in the main network's flat layout, not clipped. With C51 alone
    /// dloss/dparameters.
    pub gradient: Vec<T>,
    /// Euclidean norm of that gradient.
    pub gradient_norm: f64,
    /// Gradients of the groups with an Adam of their own, in the order of the flat layout.
    pub own: Vec<OwnGradient<T>>,
}

impl<T> Evaluation<T> {
    /// Whether every norm of the step is finite: one that is not refuses the whole step.
    pub fn is_finite(&self) -> bool {
        let terms = self.terms.iter().map(|t| t.norm);
        let own = self.own.iter().map(|g| g.norm);
        terms.chain(own).chain([self.gradient_norm]).all(f64::is_finite)
    }
}

/// The conservative term of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct CqlValues<T> {
    /// logsumexp_a Q_d(a) - Q_d(a_d), without alpha, [batch, branches].
    pub per_branch: Vec<T>,
    /// alpha times its mean over the branches, [batch].
    pub per_sample: Vec<T>,
    /// Mean over the batch.
    pub loss: T,
}

/// The quantile head's values of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct IqnValues<T> {
    /// Z(tau) at s, per branch, [batch, samples, actions].
    pub quantiles: Vec<Vec<T>>,
    /// Z(tau) of the taken actions, [batch, branches, samples].
    pub taken: Vec<T>,
    /// Z_target(tau') at s', per branch, [batch, target samples, actions].
    pub target_quantiles: Vec<Vec<T>>,
    /// Greedy actions at s' by the mean over the target samples, [batch, branches].
    pub next_actions: Vec<u32>,
    /// r + discount * Z_target(tau')(greedy action), [batch, branches, target samples].
    pub targets: Vec<T>,
    /// Quantile Huber loss, [batch, branches].
    pub per_branch: Vec<T>,
    /// Its mean over the branches, not importance-weighted, [batch].
    pub per_sample: Vec<T>,
    /// Mean over the batch of weight times loss.
    pub loss: T,
}

/// The two value networks' values of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct IqlValues<T> {
    /// Q of the target network at s and the taken actions, [batch, branches].
    pub q_per_branch: Vec<T>,
    /// Its mean over the branches, [batch].
    pub q: Vec<T>,
    /// V_high(s), [batch].
    pub high: Vec<T>,
    /// V_low(s), [batch].
    pub low: Vec<T>,
    /// Expectile loss of V_high, [batch].
    pub high_per_sample: Vec<T>,
    /// Expectile loss of V_low, [batch].
    pub low_per_sample: Vec<T>,
    /// Mean over the batch of V_high's loss.
    pub high_loss: T,
    /// Mean over the batch of V_low's loss.
    pub low_loss: T,
    /// Advantages, weights, branch scales, gap.
    pub derived: Derived<T>,
}

/// The ensemble's values of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct EnsembleValues<T> {
    /// Weighted cross-entropies less the bonus, [batch].
    pub per_sample: Vec<T>,
    /// Variance over the members of their expected values, [batch].
    pub variance: Vec<T>,
    /// Mean over the batch of the loss.
    pub loss: T,
}

/// The confidence head's values of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfidenceValues<T> {
    /// c, [batch].
    pub logits: Vec<T>,
    /// Cross-entropy, [batch].
    pub per_sample: Vec<T>,
    /// Its mean over the batch.
    pub loss: T,
}

/// What a training step reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StepMetrics<T> {
    /// Mean over the batch of weight times cross-entropy, before the update.
    pub loss: f64,
    /// Batch means of the further losses that are on, by name: `cql`, `iqn` (weighted), `iql_high`, `iql_low`, `ensemble`,
    /// `uncertainty` (the ensemble's variance), `confidence`.
    pub losses: Vec<(&'static str, f64)>,
    /// What the value networks and the confidence head keep, after the step, by name: `iql_gap` (of the batch),
    /// `iql_epsilon`, `v_min` and `v_max` (where the support adapts), `td_median`.
    pub kept: Vec<(&'static str, f64)>,
    /// Norm of the main parameters' gradient before the clip; of several terms, of their sum within the budgets.
    pub grad_norm: f64,
    /// Unclipped norms of every term on the main parameters and of every group with its own Adam, by name.
    pub norms: Vec<(&'static str, f64)>,
    /// sigma of the trunk matrices before they were limited; empty without spectral norm.
    pub sigmas: Vec<f64>,
    /// Mean over the branches of |E_m[z] - Q|, per sample, [batch].
    pub td: Vec<T>,
    /// Cross-entropy per sample, not importance-weighted, [batch].
    pub cross_entropy: Vec<T>,
    /// Quantile loss of the IQN head per sample, not importance-weighted, [batch]; empty without that head.
    pub iqn_loss: Vec<T>,
    /// Mean over batch and branches of Q of the taken actions.
    pub mean_q: f64,
    /// Fraction of the target mass strictly below the support.
    pub clipped_low: f64,
    /// Fraction of the target mass strictly above the support.
    pub clipped_high: f64,
    /// True when some gradient norm was not finite: the update did not happen, and parameters, moments, target and step
    /// counter are unchanged (but for the spectral norm, which comes before the forward passes).
    pub skipped: bool,
}
