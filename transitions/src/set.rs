//! Checked transitions.

use std::fmt;

use bars::Fnv64;

use crate::column::{Column, NAMES};
use crate::error::TransitionError;

/// Most transitions: what a device's ring can hold.
const MOST_ROWS: usize = 1 << 30;

/// How a data set was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A column per array.
    Parquet,
    /// A tensor per array.
    Safetensors,
    /// NumPy's archive.
    Npz,
    /// Episodes in HDF5.
    Minari,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Parquet => "Parquet",
            Self::Safetensors => "safetensors",
            Self::Npz => "NPZ",
            Self::Minari => "Minari (HDF5)",
        })
    }
}

/// Transitions in the order of the file, N rows; every number is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct TransitionSet {
    /// File name as given.
    pub file: String,
    /// How it was written.
    pub format: Format,
    /// S: state features.
    pub state: usize,
    /// Columns of the actions.
    pub action_columns: usize,
    /// s, `[N, S]`.
    pub states: Vec<f32>,
    /// Indices as in the file, `[N, action_columns]`.
    pub actions: Vec<u32>,
    /// r, `[N]`.
    pub rewards: Vec<f32>,
    /// s', `[N, S]`: the state after the action, also where the episode ends, never the next episode's first.
    pub next_states: Vec<f32>,
    /// The episode ended in the environment's sense, `[N]`: no bootstrap.
    pub terminated: Vec<bool>,
    /// The episode was cut, `[N]`: bootstraps from s'.
    pub truncated: Vec<bool>,
    /// 64-bit FNV-1a of all of it, as little-endian words in the order of these fields.
    pub hash: u64,
}

impl TransitionSet {
    pub(crate) fn new(file: &str, format: Format, mut columns: Vec<Column>) -> Result<Self, TransitionError> {
        let mut take = |which: usize| -> Result<Column, TransitionError> {
            let (name, names) = NAMES[which];
            let mut found =
                columns.iter().enumerate().filter(|(_, column)| names.contains(&column.name.as_str()));
            let at = match (found.next(), found.next()) {
                (Some((at, _)), None) => at,
                (Some((_, a)), Some((_, b))) => {
                    let message =
                        format!("holds both {} and {}, which are names of the same", a.name, b.name);
                    return Err(TransitionError::file(file, message));
                }
                (None, _) => {
                    let others = &names[1..];
                    let also = if others.is_empty() {
                        String::new()
                    } else {
                        format!(" (or {})", others.join(", "))
                    };
                    let apart = match which {
                        4 | 5 => {
                            ": whether an episode ended by itself and whether it was cut are two things, and a single \
                             `done` cannot say which"
                        }
                        _ => "",
                    };
                    return Err(TransitionError::file(file, format!("holds no {name}{also}{apart}")));
                }
            };
            Ok(columns.swap_remove(at))
        };
        let (states, actions, rewards) = (take(0)?, take(1)?, take(2)?);
        let (next_states, terminated, truncated) = (take(3)?, take(4)?, take(5)?);
        let rows = states.rows();
        for column in [&actions, &rewards, &next_states, &terminated, &truncated] {
            if column.rows() != rows {
                let message =
                    format!("{} has {} rows, {} has {rows}", column.name, column.rows(), states.name);
                return Err(TransitionError::file(file, message));
            }
        }
        if rows == 0 || rows > MOST_ROWS {
            let message = format!("holds {rows} transitions, expected 1 to {MOST_ROWS}");
            return Err(TransitionError::file(file, message));
        }
        let (state, action_columns) = (states.width(), actions.width());
        if next_states.shape != states.shape || state == 0 {
            let message = format!(
                "{} has shape {:?}, {} {:?}: expected the same, at least one number a row",
                next_states.name, next_states.shape, states.name, states.shape
            );
            return Err(TransitionError::file(file, message));
        }
        if action_columns == 0 || action_columns > 8 {
            let message = format!("{} has shape {:?}, expected 1 to 8 columns", actions.name, actions.shape);
            return Err(TransitionError::file(file, message));
        }
        rewards.check_single(file)?;
        let actions = actions.indices(file)?;
        let mut set = Self {
            file: file.into(),
            format,
            state,
            action_columns,
            states: states.floats(file)?,
            actions,
            rewards: rewards.floats(file)?,
            next_states: next_states.floats(file)?,
            terminated: terminated.flags(file)?,
            truncated: truncated.flags(file)?,
            hash: 0,
        };
        set.hash = set.content_hash();
        Ok(set)
    }

    /// N.
    pub fn len(&self) -> usize {
        self.rewards.len()
    }

    /// Never: a set has at least one transition.
    pub fn is_empty(&self) -> bool {
        self.rewards.is_empty()
    }

    /// Whether an episode ends with that row: termination wins where both are set.
    pub fn ends(&self, row: usize) -> bool {
        self.terminated[row] || self.truncated[row]
    }

    /// Rows of every episode, in order; the last one may have no end.
    pub fn episodes(&self) -> Vec<std::ops::Range<usize>> {
        let mut episodes = Vec::new();
        let mut start = 0;
        for row in 0..self.len() {
            if self.ends(row) || row + 1 == self.len() {
                episodes.push(start..row + 1);
                start = row + 1;
            }
        }
        episodes
    }

    /// One index per branch, row after row, `[N, branches]`. A single column is the mixed-radix composite action where there
    /// are several branches (branch 0 most significant).
    ///
    /// # Errors
    /// For a number of columns that is neither, or the first index that is none of its branch's.
    pub fn branch_actions(&self, branches: &[usize]) -> Result<Vec<u32>, TransitionError> {
        let composite = self.action_columns == 1 && branches.len() > 1;
        if !composite && self.action_columns != branches.len() {
            let message = format!(
                "actions have {} columns, model.branches = {branches:?} {}: set model.branches to the number of actions \
                 of every column",
                self.action_columns,
                branches.len()
            );
            return Err(TransitionError::file(&self.file, message));
        }
        let all: usize = branches.iter().product();
        let mut actions = Vec::with_capacity(self.len() * branches.len());
        for (row, own) in self.actions.chunks_exact(self.action_columns).enumerate() {
            if composite {
                if own[0] as usize >= all {
                    let expected = format!("0 to {} (model.branches = {branches:?})", all - 1);
                    return Err(TransitionError::value(&self.file, "actions", (row, None), own[0], expected));
                }
                let mut rest = own[0] as usize;
                let from = actions.len();
                for &n in branches.iter().rev() {
                    actions.push((rest % n) as u32);
                    rest /= n;
                }
                actions[from..].reverse();
                continue;
            }
            for (column, (&index, &n)) in own.iter().zip(branches).enumerate() {
                if index as usize >= n {
                    let column = (branches.len() > 1).then_some(column);
                    let expected = format!("0 to {} (model.branches = {branches:?})", n - 1);
                    return Err(TransitionError::value(
                        &self.file,
                        "actions",
                        (row, column),
                        index,
                        expected,
                    ));
                }
                actions.push(index);
            }
        }
        Ok(actions)
    }

    /// Largest index of every column, for reports.
    pub fn largest_actions(&self) -> Vec<u32> {
        let mut largest = vec![0; self.action_columns];
        for row in self.actions.chunks_exact(self.action_columns) {
            largest.iter_mut().zip(row).for_each(|(most, &index)| *most = (*most).max(index));
        }
        largest
    }

    fn content_hash(&self) -> u64 {
        let mut hash = Fnv64::default();
        for values in [&self.states, &self.next_states, &self.rewards] {
            values.iter().for_each(|x| hash.update(&x.to_le_bytes()));
        }
        self.actions.iter().for_each(|x| hash.update(&x.to_le_bytes()));
        for flags in [&self.terminated, &self.truncated] {
            flags.iter().for_each(|&flag| hash.update(&[u8::from(flag)]));
        }
        hash.finish()
    }
}
