//! What can go wrong, each with the place and the value.

/// Error of the CPU path.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The network shape cannot work; the text names the key and its value.
    #[error("{0}")]
    Shape(String),
    /// An optimizer setting is outside its range.
    #[error("optimizer.{key} = {value}: expected {expected}")]
    Setting {
        /// Key in the `[optimizer]` section.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The allowed range in words.
        expected: &'static str,
    },
    /// An array has the wrong number of elements.
    #[error("{what} has {got} elements: expected {expected}")]
    Length {
        /// Name of the array with its axes, for example `batch.states [batch, state]`.
        what: String,
        /// Elements there.
        got: usize,
        /// Elements there should be.
        expected: usize,
    },
    /// An action index that its branch does not have.
    #[error("batch.actions[{row}][{branch}] = {action}: branch {branch} has {actions} actions")]
    Action {
        /// Sample in the batch.
        row: usize,
        /// Branch.
        branch: usize,
        /// The index given.
        action: u32,
        /// n_d, the number of actions of that branch.
        actions: usize,
    },
    /// The network gave a Q value that is not a number: no action can be chosen from it.
    #[error("Q value of state {row}, branch {branch}, action {action} is {value}: cannot choose an action")]
    NonFiniteValue {
        /// Row of the states given.
        row: usize,
        /// Branch.
        branch: usize,
        /// Action of that branch.
        action: usize,
        /// The value.
        value: f64,
    },
    /// A saved state that no run of the learner can have written.
    #[error("learner state: {what}[{index}] = {value}: expected {expected}")]
    State {
        /// Which vector of the state.
        what: &'static str,
        /// Element of the flat vector.
        index: usize,
        /// Its value.
        value: f64,
        /// What it should be, in words.
        expected: &'static str,
    },
    /// A parameter that the loss does not depend on: the network and its layout disagree.
    #[error("the loss has no gradient with respect to {tensor}")]
    NoGradient {
        /// Name in the layout.
        tensor: String,
    },
    /// A tensor operation failed (shapes are checked before, so this is a defect or a lack of memory).
    #[error("tensor operation: {0}")]
    Tensor(#[from] candle_core::Error),
}
