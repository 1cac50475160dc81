//! Many environments on the CPU, with the device's functions and the device's memory layout.

use super::{
    account::{ACCOUNT_COUNTERS, ACCOUNT_VALUES, Account, check_counters},
    error::MarketError,
    log::LogRow,
    observe::state_element,
    params::{MarketParams, Mode},
    reset::resumed,
    step::{advance, discount},
    table::{MarketTable, Part, RunView},
};
use crate::action::branch;

/// What one step of all environments wrote; row e belongs to environment e.
#[derive(Clone, Debug)]
pub struct Transitions {
    /// r, `[E]`.
    pub rewards: Vec<f32>,
    /// gamma (1 - terminated), `[E]`.
    pub discounts: Vec<f32>,
    /// [`TERMINATED`](super::TERMINATED) and [`TRUNCATED`](super::TRUNCATED) bits, `[E]`.
    pub flags: Vec<u32>,
    /// s': the observation after the step and before any restart, `[E, S]`.
    pub next_states: Vec<f32>,
}

impl Transitions {
    /// Zeroed buffers for `environments` environments of `state` features.
    pub fn new(environments: usize, state: usize) -> Self {
        Self {
            rewards: vec![0.0; environments],
            discounts: vec![0.0; environments],
            flags: vec![0; environments],
            next_states: vec![0.0; environments * state],
        }
    }
}

/// E environments on one part of a table, advanced together.
#[derive(Clone, Debug)]
pub struct VecMarket<'a> {
    params: MarketParams,
    table: &'a MarketTable,
    part: &'a Part,
    environments: usize,
    seed: u64,
    /// `[ACCOUNT_VALUES, E]`, see [`Account`].
    values: Vec<f64>,
    /// `[ACCOUNT_COUNTERS, E]`.
    counters: Vec<u32>,
}

impl<'a> VecMarket<'a> {
    /// Environments that all stand before their first episode.
    ///
    /// # Errors
    /// [`MarketError::Param`] for parameters that cannot work, [`MarketError::TooLarge`] for more than 2^24
    /// environments, [`MarketError::Length`] for a part of another table.
    pub fn new(
        params: MarketParams,
        table: &'a MarketTable,
        part: &'a Part,
        environments: usize,
        seed: u64,
    ) -> Result<Self, MarketError> {
        params.check()?;
        let most = 1 << 24;
        if environments == 0 || environments > most {
            return Err(MarketError::TooLarge { what: "environments", got: environments, most });
        }
        if part.run_end.len() != table.bars() {
            let (got, expected) = (part.run_end.len(), table.bars());
            return Err(MarketError::Length { column: "run_end", got, expected });
        }
        let mut market = Self {
            params,
            table,
            part,
            environments,
            seed,
            values: vec![0.0; ACCOUNT_VALUES as usize * environments],
            counters: vec![0; ACCOUNT_COUNTERS as usize * environments],
        };
        market.reset(seed);
        Ok(market)
    }

    /// E.
    pub fn environments(&self) -> usize {
        self.environments
    }

    /// S.
    pub fn state_len(&self) -> usize {
        self.table.shape().len() as usize
    }

    /// The environment's numbers.
    pub fn params(&self) -> &MarketParams {
        &self.params
    }

    /// Puts every environment before its first episode of the random stream `seed`.
    pub fn reset(&mut self, seed: u64) {
        self.seed = seed;
        self.values.fill(0.0);
        self.counters.fill(0);
    }

    /// All accounts in the device's layout, f64 `[ACCOUNT_VALUES, E]` and u32 `[ACCOUNT_COUNTERS, E]`: what a
    /// checkpoint keeps.
    pub fn memory(&self) -> (&[f64], &[u32]) {
        (&self.values, &self.counters)
    }

    /// Goes on from accounts that [`Self::memory`] gave.
    ///
    /// # Errors
    /// [`MarketError::Length`] for another number of environments, [`MarketError::TooLarge`] for an account that stands
    /// behind the last bar; nothing has changed then.
    pub fn restore(&mut self, values: &[f64], counters: &[u32]) -> Result<(), MarketError> {
        self.check_len("account values", values.len(), self.values.len())?;
        self.check_len("account counters", counters.len(), self.counters.len())?;
        check_counters(counters, self.environments, self.table.bars())?;
        self.values.copy_from_slice(values);
        self.counters.copy_from_slice(counters);
        Ok(())
    }

    /// The account of environment `e` as its last step left it.
    pub fn account(&self, e: usize) -> Account {
        let n = self.environments;
        Account::load(|i| self.values[i as usize * n + e], |i| self.counters[i as usize * n + e])
    }

    /// Writes s, `[E, S]`: what each environment's next decision sees (after an episode's end, the first state of
    /// the next episode).
    ///
    /// # Errors
    /// [`MarketError::Length`] if `states` is not `[E, S]`.
    pub fn observe(&self, states: &mut [f32]) -> Result<(), MarketError> {
        self.check_len("states", states.len(), self.environments * self.state_len())?;
        for e in 0..self.environments {
            let account = resumed(&self.params, &self.runs(), self.seed, e as u32, self.account(e));
            self.write_state(&account, &mut states[e * self.state_len()..][..self.state_len()]);
        }
        Ok(())
    }

    /// Takes one packed action per environment and writes the transitions. An environment whose episode has ended
    /// starts the next one with this step.
    ///
    /// # Errors
    /// [`MarketError::Action`] for an action outside the layout, [`MarketError::Length`] for buffers of other
    /// sizes; no account has changed then.
    pub fn step(&mut self, actions: &[u64], out: &mut Transitions) -> Result<(), MarketError> {
        self.step_logged(actions, out, |_, _| ())
    }

    /// [`Self::step`], and `log(environment, row)` for every environment that moved.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_logged(
        &mut self,
        actions: &[u64],
        out: &mut Transitions,
        mut log: impl FnMut(usize, LogRow),
    ) -> Result<(), MarketError> {
        let (n, state) = (self.environments, self.state_len());
        self.check_len("actions", actions.len(), n)?;
        self.check_len("rewards", out.rewards.len(), n)?;
        self.check_len("discounts", out.discounts.len(), n)?;
        self.check_len("flags", out.flags.len(), n)?;
        self.check_len("next_states", out.next_states.len(), n * state)?;
        self.check_actions(actions)?;
        for (e, &action) in actions.iter().enumerate() {
            let mut account = self.account(e);
            let (params, table, runs) = (&self.params, self.table, self.runs());
            let row = advance(params, table, table, &runs, self.seed, e as u32, &mut account, action);
            let outcome = row.map(|row| row.outcome).unwrap_or_default();
            // A finished backtest stays where it is: reward 0, no bootstrap.
            let over = row.is_none() || outcome.terminated;
            out.rewards[e] = outcome.reward as f32;
            out.discounts[e] = discount(self.params.gamma, over) as f32;
            out.flags[e] = account.end_flags();
            account.store(
                |i, v| self.values[i as usize * n + e] = v,
                |i, v| self.counters[i as usize * n + e] = v,
            );
            self.write_state(&account, &mut out.next_states[e * state..][..state]);
            if let Some(row) = row {
                log(e, row);
            }
        }
        Ok(())
    }

    fn runs(&self) -> RunView<'a> {
        let starts = match self.params.mode {
            Mode::Train => &self.part.starts,
            Mode::Backtest => self.part.backtest_start(),
        };
        RunView { run_end: &self.part.run_end, starts }
    }

    fn write_state(&self, account: &Account, state: &mut [f32]) {
        let (table, runs, shape) = (self.table, self.runs(), self.table.shape());
        for (j, slot) in state.iter_mut().enumerate() {
            *slot = state_element(&self.params, table, &runs, table, shape, account, j as u32);
        }
    }

    fn check_actions(&self, actions: &[u64]) -> Result<(), MarketError> {
        let branches = self.params.layout.branches();
        for (environment, &action) in actions.iter().enumerate() {
            for d in 0..8 {
                let value = branch(action, d as u32) as u64;
                let actions = branches.get(d).copied().unwrap_or(1);
                if value >= actions as u64 {
                    return Err(MarketError::Action { environment, branch: d, value, actions });
                }
            }
        }
        Ok(())
    }

    fn check_len(&self, column: &'static str, got: usize, expected: usize) -> Result<(), MarketError> {
        if got == expected { Ok(()) } else { Err(MarketError::Length { column, got, expected }) }
    }
}
