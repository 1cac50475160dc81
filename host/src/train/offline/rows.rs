//! Transitions in host memory, as a ring holds them.

use gpu::action;
use settings::Config;
use transitions::TransitionSet;

/// Transitions with their n-step windows, row-major; N rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// S.
    width: usize,
    /// s, `[N, S]`.
    pub states: Vec<f32>,
    /// s' behind the last summed reward, `[N, S]`.
    pub next_states: Vec<f32>,
    /// One byte per branch, `[N]`.
    pub actions: Vec<u64>,
    /// n-step returns, `[N]`.
    pub rewards: Vec<f32>,
    /// gamma^m (1 - terminated), `[N]`.
    pub discounts: Vec<f32>,
    /// Least and largest discounted sum of the rewards from a row to its episode's end.
    pub to_go: [f64; 2],
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            width: 0,
            states: Vec::new(),
            next_states: Vec::new(),
            actions: Vec::new(),
            rewards: Vec::new(),
            discounts: Vec::new(),
            to_go: [f64::INFINITY, f64::NEG_INFINITY],
        }
    }
}

impl Rows {
    /// N.
    pub fn len(&self) -> usize {
        self.rewards.len()
    }

    /// True without a transition.
    pub fn is_empty(&self) -> bool {
        self.rewards.is_empty()
    }

    /// s of a row.
    pub fn state(&self, row: usize) -> &[f32] {
        &self.states[row * self.width..][..self.width]
    }

    /// s' of a row.
    pub fn next_state(&self, row: usize) -> &[f32] {
        &self.next_states[row * self.width..][..self.width]
    }

    /// Adds the transitions of a set, whose states have the model's width. No window reaches from one set into another.
    ///
    /// # Errors
    /// Actions that are none of the model's, rows out of order with n-step returns.
    pub(super) fn append(&mut self, config: &Config, set: TransitionSet) -> anyhow::Result<()> {
        let branches = &config.model.branches;
        let actions = set.branch_actions(branches)?;
        let gamma = f64::from(config.train.gamma);
        let windows = set.windows(config.replay.n_step, gamma)?;
        self.width = set.state;
        let pack = |own: &[u32]| {
            own.iter().enumerate().fold(0, |packed, (d, &a)| action::with_branch(packed, d as u32, a))
        };
        self.actions.extend(actions.chunks_exact(branches.len()).map(pack));
        let mut sum = 0.0;
        for row in (0..set.len()).rev() {
            sum = f64::from(set.rewards[row]) + if set.ends(row) { 0.0 } else { gamma * sum };
            self.to_go = [self.to_go[0].min(sum), self.to_go[1].max(sum)];
        }
        self.rewards.extend(windows.rewards);
        self.discounts.extend(windows.discounts);
        if config.replay.n_step > 1 {
            for last in windows.last {
                self.next_states
                    .extend_from_slice(&set.next_states[last as usize * set.state..][..set.state]);
            }
        } else {
            append(&mut self.next_states, set.next_states);
        }
        append(&mut self.states, set.states);
        Ok(())
    }
}

/// Adds numbers without a copy where there were none.
fn append(all: &mut Vec<f32>, more: Vec<f32>) {
    if all.is_empty() { *all = more } else { all.extend(more) }
}
