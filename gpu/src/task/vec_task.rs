//! Many environments on the CPU, with the device's functions and the device's memory layout.

use core::fmt;

use super::{COUNTERS, Environment, Episode, NAMES, Spec, Task, Visitor, WORDS, advance, begin};
use crate::action::branch;
use crate::market::{RUNNING, TERMINATED, Transitions};

/// An error of a task on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskError {
    /// A name that no task has.
    Name(String),
    /// A size that the task does not take.
    Size {
        /// The task.
        name: &'static str,
        /// What was asked for.
        size: u32,
        /// Smallest.
        least: u32,
        /// Largest.
        most: u32,
    },
    /// An action that the task does not have.
    Action {
        /// Environment.
        environment: usize,
        /// Branch.
        branch: u32,
        /// The action.
        value: u32,
        /// Number of actions of the branch.
        actions: u32,
    },
    /// An episode that no run of the task can be in between two steps.
    Episode {
        /// Environment.
        environment: usize,
        /// Its steps.
        steps: u32,
        /// Its flags.
        flags: u32,
        /// Steps after which an episode of the task is truncated.
        limit: u32,
    },
    /// A buffer of another size.
    Length {
        /// What it is.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length that it must have.
        expected: usize,
    },
}

impl fmt::Display for TaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                write!(f, "task.name = \"{name}\": expected market, {}, or transitions", NAMES.join(", "))
            }
            Self::Size { name, size, least: 0, most: 0 } => {
                write!(f, "task.size = {size}, task.name = \"{name}\": this task has no size, leave it at 0")
            }
            Self::Size { name, size, least, most } => {
                write!(f, "task.size = {size}, task.name = \"{name}\": expected {least} to {most}")
            }
            Self::Action { environment, branch, value, actions } => write!(
                f,
                "environment {environment}: action {value} in branch {branch}, which has {actions} actions"
            ),
            Self::Episode { environment, steps, flags, limit } => write!(
                f,
                "environment {environment}: an episode after {steps} steps with flags {flags}, expected fewer than \
                 {limit} steps and flags {RUNNING} (0 before the first episode)"
            ),
            Self::Length { what, got, expected } => {
                write!(f, "{what}: {got} elements, expected {expected}")
            }
        }
    }
}

impl core::error::Error for TaskError {}

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Undiscounted sum of its rewards.
    pub total: f64,
    /// Its steps.
    pub steps: u32,
    /// [`TERMINATED`] and [`TRUNCATED`](crate::market::TRUNCATED) bits.
    pub flags: u32,
}

/// E environments of one task, advanced together.
#[derive(Clone, Debug)]
pub struct VecTask {
    task: Task,
    spec: Spec,
    environments: usize,
    gamma: f64,
    seed: u64,
    /// `[WORDS, E]`.
    words: Vec<u64>,
    /// `[COUNTERS, E]`.
    counters: Vec<u32>,
    /// s of the next decision, `[E, S]`.
    states: Vec<f32>,
}

/// What a step works on; the visitor of [`VecTask::step`] and [`VecTask::reset`].
struct Moves<'a, F> {
    all: &'a mut VecTask,
    /// Actions and where the transitions go; `None` to begin episodes only.
    step: Option<(&'a [u64], &'a mut Transitions)>,
    log: F,
}

impl<F: FnMut(usize, Finished)> Visitor for Moves<'_, F> {
    type Out = ();

    fn visit<E: Environment>(mut self, environment: &E) {
        let all = self.all;
        let (n, s) = (all.environments, all.spec.observation as usize);
        for e in 0..n {
            let (mut episode, mut state): (Episode, E::State) =
                Episode::load(|i| all.words[i as usize * n + e], |i| all.counters[i as usize * n + e]);
            if !episode.runs() {
                (episode, state) = begin(environment, all.seed, e as u32, episode);
            }
            let observe = |state: &E::State, row: &mut [f32]| {
                for (i, x) in row.iter_mut().enumerate() {
                    *x = environment.observe(state, i as u32);
                }
            };
            if let Some((actions, out)) = &mut self.step {
                let reward = advance(environment, all.task.limit, &mut episode, &mut state, actions[e]);
                let flags = episode.end_flags();
                out.rewards[e] = reward as f32;
                out.discounts[e] = if flags & TERMINATED != 0 { 0.0 } else { all.gamma as f32 };
                out.flags[e] = flags;
                observe(&state, &mut out.next_states[e * s..][..s]);
                if flags != 0 {
                    (self.log)(e, Finished { total: episode.total, steps: episode.steps, flags });
                    (episode, state) = begin(environment, all.seed, e as u32, episode);
                }
            }
            observe(&state, &mut all.states[e * s..][..s]);
            episode.store(
                &state,
                |i, v| all.words[i as usize * n + e] = v,
                |i, v| all.counters[i as usize * n + e] = v,
            );
        }
    }
}

impl VecTask {
    /// Environments at the beginning of their first episodes. `gamma` is the discount of a step.
    pub fn new(task: Task, environments: usize, gamma: f64, seed: u64) -> Self {
        let spec = task.spec();
        let mut all = Self {
            task,
            spec,
            environments,
            gamma,
            seed,
            words: Vec::new(),
            counters: Vec::new(),
            states: vec![0.0; environments * spec.observation as usize],
        };
        all.reset(seed);
        all
    }

    /// Starts over with the random stream `seed`.
    pub fn reset(&mut self, seed: u64) {
        self.seed = seed;
        self.words = vec![0; WORDS as usize * self.environments];
        self.counters = vec![0; COUNTERS as usize * self.environments];
        let task = self.task;
        task.visit(Moves { all: self, step: None, log: |_, _| () });
    }

    /// E.
    pub fn environments(&self) -> usize {
        self.environments
    }

    /// What the next decisions see, `[E, S]`.
    pub fn states(&self) -> &[f32] {
        &self.states
    }

    /// All environments in the device's layout, `[WORDS, E]` and `[COUNTERS, E]`.
    pub fn memory(&self) -> (&[u64], &[u32]) {
        (&self.words, &self.counters)
    }

    /// Goes on from such memory.
    ///
    /// # Errors
    /// [`TaskError::Length`] for memory of another number of environments, [`TaskError::Episode`] for an episode that cannot
    /// be.
    pub fn set_memory(&mut self, words: &[u64], counters: &[u32]) -> Result<(), TaskError> {
        check("words", words.len(), self.words.len())?;
        check_counters(counters, self.environments, self.task.limit)?;
        self.words.copy_from_slice(words);
        self.counters.copy_from_slice(counters);
        let task = self.task;
        task.visit(Moves { all: self, step: None, log: |_, _| () });
        Ok(())
    }

    /// Takes one packed action per environment, writes the transitions, and calls `log(environment, episode)` for every
    /// episode that ends; the next one begins at once.
    ///
    /// # Errors
    /// [`TaskError::Action`] for an action that the task does not have, [`TaskError::Length`] for buffers of other sizes; no
    /// environment has moved then.
    pub fn step(
        &mut self,
        actions: &[u64],
        out: &mut Transitions,
        log: impl FnMut(usize, Finished),
    ) -> Result<(), TaskError> {
        let n = self.environments;
        check("actions", actions.len(), n)?;
        check("rewards", out.rewards.len(), n)?;
        check("discounts", out.discounts.len(), n)?;
        check("flags", out.flags.len(), n)?;
        check("next_states", out.next_states.len(), self.states.len())?;
        for (environment, &action) in actions.iter().enumerate() {
            for d in 0..8 {
                let (value, actions) = (branch(action, d), branch(self.spec.branches, d).max(1));
                if value >= actions {
                    return Err(TaskError::Action { environment, branch: d, value, actions });
                }
            }
        }
        let task = self.task;
        task.visit(Moves { all: self, step: Some((actions, out)), log });
        Ok(())
    }
}

/// Whether counters `[COUNTERS, E]` can be those of `environments` environments between two steps.
///
/// # Errors
/// [`TaskError::Length`] and [`TaskError::Episode`].
pub fn check_counters(counters: &[u32], environments: usize, limit: u32) -> Result<(), TaskError> {
    check("counters", counters.len(), COUNTERS as usize * environments)?;
    for environment in 0..environments {
        let (steps, flags) = (counters[environment], counters[2 * environments + environment]);
        if steps >= limit.max(1) || ![0, RUNNING].contains(&flags) {
            return Err(TaskError::Episode { environment, steps, flags, limit });
        }
    }
    Ok(())
}

fn check(what: &'static str, got: usize, expected: usize) -> Result<(), TaskError> {
    if got == expected { Ok(()) } else { Err(TaskError::Length { what, got, expected }) }
}
