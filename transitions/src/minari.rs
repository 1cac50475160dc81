//! Minari's HDF5 layout: a group `episode_N` for every episode, with one more observation than actions.
//!
//! Source: minari.farama.org, "Dataset standards", and `minari/dataset/_storages/hdf5_storage.py`. What an episode's
//! last transition is, `terminations` and `truncations` say; one that neither closes (the recording stopped) is
//! truncated, as Minari's own buffers treat it.

use std::path::Path;

use hdf5_pure::{DType, Dataset, Error, File, Group};

use crate::column::{Column, Values};
use crate::error::TransitionError;
use crate::source::{LARGEST, check_claim};

/// Most episodes: a file that has more has empty ones.
const MOST_EPISODES: usize = 1 << 26;

pub(crate) fn read(file: &str, path: &Path, size: u64) -> Result<Vec<Column>, TransitionError> {
    let open = File::open_streaming(path).map_err(|error| wrong(file, "", error))?;
    let root = open.root();
    let groups = root.groups().map_err(|error| wrong(file, "", error))?;
    let mut episodes: Vec<(u64, String)> = groups
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("episode_")?.parse().ok()?, name)))
        .collect();
    if episodes.is_empty() || episodes.len() > MOST_EPISODES {
        let message = format!("holds {} groups episode_N: it is not in Minari's layout", episodes.len());
        return Err(TransitionError::file(file, message));
    }
    // 10 behind 9, not behind 1.
    episodes.sort();
    let mut all: Option<Episode> = None;
    for (_, name) in episodes {
        let group = root.group(&name).map_err(|error| wrong(file, &name, error))?;
        let episode = Episode::read(file, &name, &group, size)?;
        match &mut all {
            None => all = Some(episode),
            Some(all) => all.append(file, &name, episode)?,
        }
    }
    let all = all.ok_or_else(|| TransitionError::file(file, "holds no episode"))?;
    all.columns(file)
}

fn wrong(file: &str, place: &str, error: Error) -> TransitionError {
    let place = if place.is_empty() { String::new() } else { format!("{place}: ") };
    TransitionError::file(file, format!("{place}{error}"))
}

/// Rows of one episode, or of all up to now.
struct Episode {
    /// Of an observation and of an action; the latter without the rows.
    width: usize,
    action: Vec<usize>,
    states: Values,
    next_states: Values,
    actions: Values,
    rewards: Values,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
}

impl Episode {
    fn read(file: &str, name: &str, group: &Group, size: u64) -> Result<Self, TransitionError> {
        let array = |key: &str| -> Result<Column, TransitionError> {
            let place = format!("{name}/{key}");
            let nested = group.groups().is_ok_and(|groups| groups.iter().any(|group| group == key));
            if nested {
                let message = format!(
                    "{place} is a group of arrays (a Dict or Tuple space): flatten the space before recording"
                );
                return Err(TransitionError::file(file, message));
            }
            let dataset = group.dataset(key).map_err(|error| wrong(file, &place, error))?;
            column(file, &place, &dataset, size)
        };
        let (observations, actions) = (array("observations")?, array("actions")?);
        let rows = actions.rows();
        if observations.rows() != rows + 1 {
            let message = format!(
                "{name} has {} observations and {rows} actions, expected one observation more than actions",
                observations.rows()
            );
            return Err(TransitionError::file(file, message));
        }
        let rewards = array("rewards")?;
        rewards.check_single(file)?;
        let mut ends = Vec::new();
        for key in ["terminations", "truncations"] {
            let flags = array(key)?.flags(file)?;
            if flags.len() != rows {
                let message = format!("{name}/{key} has {} rows, actions {rows}", flags.len());
                return Err(TransitionError::file(file, message));
            }
            ends.push(flags);
        }
        if rewards.rows() != rows {
            let message = format!("{name}/rewards has {} rows, actions {rows}", rewards.rows());
            return Err(TransitionError::file(file, message));
        }
        let (Some(mut truncated), Some(terminated)) = (ends.pop(), ends.pop()) else {
            return Err(TransitionError::file(file, format!("{name} has no flags")));
        };
        if let (Some(last), Some(false)) = (truncated.last_mut(), terminated.last()) {
            *last = true;
        }
        let width = observations.width();
        let (states, next_states) = split(observations.values, width);
        Ok(Self {
            width,
            action: actions.shape[1..].to_vec(),
            states,
            next_states,
            actions: actions.values,
            rewards: rewards.values,
            terminated,
            truncated,
        })
    }

    fn append(&mut self, file: &str, name: &str, more: Self) -> Result<(), TransitionError> {
        let same = self.width == more.width
            && self.action == more.action
            && self.states.append(more.states)
            && self.next_states.append(more.next_states)
            && self.actions.append(more.actions)
            && self.rewards.append(more.rewards);
        if !same {
            let message = format!("{name} has other widths or types than the episodes before it");
            return Err(TransitionError::file(file, message));
        }
        self.terminated.extend(more.terminated);
        self.truncated.extend(more.truncated);
        if (self.states.len() as u64).saturating_mul(4) > LARGEST {
            return Err(TransitionError::file(
                file,
                format!("holds more than {LARGEST} bytes of observations"),
            ));
        }
        Ok(())
    }

    fn columns(self, file: &str) -> Result<Vec<Column>, TransitionError> {
        let rows = self.terminated.len();
        let action = [&[rows], &self.action[..]].concat();
        [
            ("observations", vec![rows, self.width], self.states),
            ("next_observations", vec![rows, self.width], self.next_states),
            ("actions", action, self.actions),
            ("rewards", vec![rows], self.rewards),
            ("terminations", vec![rows], Values::Flags(self.terminated)),
            ("truncations", vec![rows], Values::Flags(self.truncated)),
        ]
        .into_iter()
        .map(|(name, shape, values)| Column::new(file, name, shape, values))
        .collect()
    }
}

/// All rows but the last, and all but the first.
fn split(values: Values, width: usize) -> (Values, Values) {
    fn halves<T: Clone>(mut all: Vec<T>, width: usize) -> (Vec<T>, Vec<T>) {
        let next = all[width.min(all.len())..].to_vec();
        all.truncate(all.len().saturating_sub(width));
        (all, next)
    }
    match values {
        Values::F32(all) => {
            let (states, next) = halves(all, width);
            (Values::F32(states), Values::F32(next))
        }
        Values::F64(all) => {
            let (states, next) = halves(all, width);
            (Values::F64(states), Values::F64(next))
        }
        Values::Integers(all) => {
            let (states, next) = halves(all, width);
            (Values::Integers(states), Values::Integers(next))
        }
        Values::Flags(all) => {
            let (states, next) = halves(all, width);
            (Values::Flags(states), Values::Flags(next))
        }
    }
}

fn column(file: &str, place: &str, dataset: &Dataset, size: u64) -> Result<Column, TransitionError> {
    let failed = |error: Error| wrong(file, place, error);
    let shape = dataset.shape().map_err(failed)?;
    let shape = check_claim(file, place, &shape, dataset.element_size().map_err(failed)?, size)?;
    let kind = dataset.dtype().map_err(failed)?;
    let values = match &kind {
        DType::F32 => Values::F32(dataset.read_f32().map_err(failed)?),
        DType::F64 => Values::F64(dataset.read_f64().map_err(failed)?),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U16 | DType::U32 => {
            Values::Integers(dataset.read_i64().map_err(failed)?)
        }
        DType::U64 => Values::unsigned(file, place, &dataset.read_u64().map_err(failed)?)?,
        // How h5py writes booleans: an enumeration of FALSE and TRUE on bytes.
        DType::Enum(names) if names.len() == 2 => {
            Values::Flags(dataset.read_u8().map_err(failed)?.into_iter().map(|byte| byte != 0).collect())
        }
        other => {
            let message = format!("{place} has type {other}, expected float32, float64, an integer or bool");
            return Err(TransitionError::file(file, message));
        }
    };
    Column::new(file, place, shape, values)
}
