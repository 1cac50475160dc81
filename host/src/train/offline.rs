//! A data set of transitions in a run, in place of an environment (`docs/TRANSITIONS.md`): the replay ring is filled with it
//! once, nothing is collected, and the best policy is the one with the lowest C51 loss of transitions that are held out.

mod report;
pub mod ring;
mod rows;
mod shards;
mod staging;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use cpu_path::C51Batch;
use gpu::action;
use serde::{Deserialize, Serialize};
use settings::Config;
use transitions::{Split, TransitionSet};

pub use report::OfflineReport;
pub use rows::Rows;
pub use shards::Shards;
pub use staging::Staging;

use crate::train::Stop;
use crate::train::agent::{Agent, PartName};
use crate::train::record::learner;

/// Rows of an evaluation that are computed at a time, so that activations stay small.
const CHUNK: usize = 512;

/// One file of a data set, for checkpoints and reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// The file as it was named.
    pub file: String,
    /// How it is written.
    pub format: String,
    /// Transitions in it.
    pub transitions: usize,
    /// Episodes in it; the last one may have no end.
    pub episodes: usize,
    /// 64-bit FNV-1a of all transitions, 16 hexadecimal digits.
    pub hash: String,
}

/// What a policy was trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfflineRecord {
    /// The files, in their order.
    pub files: Vec<DataFile>,
    /// Transitions that are learned from.
    pub learned: usize,
    /// Transitions that choose the best policy.
    pub validation: usize,
    /// Transitions that are looked at once, at the end.
    pub test: usize,
}

impl OfflineRecord {
    /// Whether `now` is the same data set, wherever it lies.
    ///
    /// # Errors
    /// Names the first file that differs, with both hashes.
    pub fn check_same(&self, now: &Self) -> anyhow::Result<()> {
        if self.files.len() != now.files.len() {
            bail!(
                "these are {} file(s) of transitions, and the policy was trained on {}",
                now.files.len(),
                self.files.len()
            );
        }
        let same = |a: &DataFile, b: &DataFile| (&a.hash, a.transitions) == (&b.hash, b.transitions);
        let reordered = self.files.iter().all(|before| now.files.iter().any(|now| same(before, now)));
        for (before, now) in self.files.iter().zip(&now.files) {
            if reordered && !same(before, now) {
                let order: Vec<&str> = self.files.iter().map(|file| file.file.as_str()).collect();
                bail!(
                    "{} stands where the policy's training had {}: the files are the same, and their order counts: {}",
                    now.file,
                    before.file,
                    order.join(", ")
                );
            }
            if (&before.hash, before.transitions) != (&now.hash, now.transitions) {
                bail!(
                    "{} has {} transitions with hash {}; the policy was trained on {} ({} transitions, hash {})",
                    now.file,
                    now.transitions,
                    now.hash,
                    before.file,
                    before.transitions,
                    before.hash
                );
            }
        }
        let parts = |record: &Self| [record.learned, record.validation, record.test];
        if parts(self) != parts(now) {
            bail!(
                "the data set was split into {:?} transitions (learned, validation, test), and is split into {:?} now",
                parts(self),
                parts(now)
            );
        }
        Ok(())
    }
}

/// A data set, loaded and split.
#[derive(Clone, Debug)]
pub struct Offline {
    /// All transitions, with their n-step windows.
    pub rows: Arc<Rows>,
    /// Those that are learned from.
    pub learned: Arc<Vec<u32>>,
    /// Those that an evaluation of each part looks at.
    evaluated: [Vec<u32>; 3],
    /// For checkpoints.
    pub record: OfflineRecord,
    /// What there is to say about it.
    pub text: String,
    /// The configuration whose networks are evaluated.
    config: Config,
}

impl Offline {
    /// Loads the data set of a configuration and splits it; fills in the model's state width.
    ///
    /// # Errors
    /// What is wrong with a file, or with the configuration beside it.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        let files = config.transitions.files.clone();
        // Keys that need no data, before it is loaded.
        let mut filled = config.clone();
        if filled.model.state == 0 {
            filled.model.state = filled.model.window.saturating_mul(filled.model.bar_features).max(1);
        }
        filled.check()?;
        let sets = files.iter().map(|file| transitions::load(Path::new(file)));
        Self::of_sets(config, sets.map(|set| Ok(set?)))
    }

    /// The data set that a policy was trained on.
    ///
    /// # Errors
    /// As [`Offline::prepare`], and if it is another one.
    pub fn of_record(config: &mut Config, record: &OfflineRecord) -> anyhow::Result<Self> {
        let offline = Self::prepare(config)?;
        record.check_same(&offline.record)?;
        Ok(offline)
    }

    /// The same of sets that are loaded one by one.
    ///
    /// # Errors
    /// Sets of different widths, actions that are none of the model's, rows out of order with n-step returns, too few
    /// transitions.
    pub fn of_sets(
        config: &mut Config,
        sets: impl IntoIterator<Item = anyhow::Result<TransitionSet>>,
    ) -> anyhow::Result<Self> {
        let (mut rows, mut episodes, mut files) = (Rows::default(), Vec::new(), Vec::<DataFile>::new());
        // Of composite actions, one index for all branches.
        let mut largest = None;
        for set in sets {
            let set = set?;
            let state = &mut config.model.state;
            if files.is_empty() && *state == 0 {
                *state = set.state;
            }
            if *state != set.state {
                let found = format!("the states of {} have {} numbers", set.file, set.state);
                match files.first() {
                    Some(first) => bail!("{found}, those of {} have {state}", first.file),
                    None => bail!(
                        "model.state = {state}, but {found}: a policy reads transitions of the width that it was trained \
                         on; for a new run leave model.state at 0"
                    ),
                }
            }
            config.check()?;
            episodes.extend(set.episodes().into_iter().map(|e| e.start + rows.len()..e.end + rows.len()));
            files.push(DataFile {
                file: set.file.clone(),
                format: set.format.to_string(),
                transitions: set.len(),
                episodes: set.episodes().len(),
                hash: format!("{:016x}", set.hash),
            });
            if set.action_columns == 1 && config.model.branches.len() > 1 {
                largest = largest.max(set.actions.iter().copied().max());
            }
            rows.append(config, set)?;
        }
        let (keys, seed, n) = (&config.transitions, config.train.seed, config.replay.n_step);
        let name = files.iter().map(|f| f.file.as_str()).collect::<Vec<_>>().join(", ");
        let split = Split::new(&name, &episodes, (keys.validation, keys.test), seed, n)?;
        let most = keys.evaluation_rows;
        let spread = |rows: &[u32]| -> Vec<u32> {
            let count = most.min(rows.len());
            (0..count).map(|i| rows[i * rows.len() / count]).collect()
        };
        let evaluated = [spread(&split.learned), spread(&split.validation), spread(&split.test)];
        let record = OfflineRecord {
            files,
            learned: split.learned.len(),
            validation: split.validation.len(),
            test: split.test.len(),
        };
        let text = text(config, &record, rows.to_go, largest);
        let (rows, learned) = (Arc::new(rows), Arc::new(split.learned));
        Ok(Self { rows, learned, evaluated, record, text, config: config.clone() })
    }

    /// The data set of a policy that is only evaluated: of what would be learned from, a ring needs one transition.
    #[must_use]
    pub fn to_evaluate(self) -> Self {
        Self { learned: Arc::new(self.learned[..1].to_vec()), ..self }
    }

    /// What is drawn from when, where not all of it is resident.
    pub fn shards(&self) -> Option<Shards> {
        Shards::new(&self.config, self.learned.len())
    }

    /// Transitions that a ring has to hold at a time.
    pub fn capacity(&self) -> usize {
        self.shards().map_or(self.learned.len(), |shards| shards.capacity())
    }

    /// Rows of the transitions that a training step draws from, in the order of the ring's slots.
    pub fn drawn_in(&self, step: u64) -> Vec<u32> {
        match self.shards() {
            Some(shards) => shards.rows(shards.of_step(step)).map(|i| self.learned[i]).collect(),
            None => self.learned.to_vec(),
        }
    }

    /// Discount of one step.
    pub fn gamma(&self) -> f64 {
        self.config.train.gamma.into()
    }

    /// The C51 loss of a part by the agent's networks, on the CPU in f32: the same for either device, as far as their
    /// parameters are.
    ///
    /// # Errors
    /// [`Stopped`](crate::train::Stopped), a tensor operation that failed.
    pub fn evaluate(
        &self,
        agent: &mut dyn Agent,
        part: PartName,
        stop: &Stop,
    ) -> anyhow::Result<OfflineReport> {
        let (online, target) = agent.parameters()?;
        let learner = learner(&self.config, &online, &target, &agent.kept()?)?;
        let rows = &self.evaluated[part.index()];
        let mut mean = OfflineReport::new(rows.len());
        for chunk in rows.chunks(CHUNK) {
            stop.check()?;
            mean.add(chunk.len(), &learner.held_out(&self.batch(chunk)).context("held-out transitions")?);
        }
        Ok(mean)
    }

    /// Transitions as a batch without weights.
    fn batch(&self, rows: &[u32]) -> C51Batch<f32> {
        let (all, branches) = (&*self.rows, self.config.model.branches.len());
        let mut batch = C51Batch { weights: vec![1.0; rows.len()], ..C51Batch::default() };
        for row in rows.iter().map(|&row| row as usize) {
            batch.states.extend_from_slice(all.state(row));
            batch.next_states.extend_from_slice(all.next_state(row));
            batch.actions.extend((0..branches).map(|d| action::branch(all.actions[row], d as u32)));
            batch.rewards.push(all.rewards[row]);
            batch.discounts.push(all.discounts[row]);
        }
        batch
    }
}

/// What there is to say at the start of a run; `to_go` are the least and the largest discounted sum of an episode's rewards,
/// `largest` the largest composite action.
fn text(config: &Config, record: &OfflineRecord, to_go: [f64; 2], largest: Option<u32>) -> String {
    let mut text = String::new();
    for file in &record.files {
        text += &format!(
            "{}: {}, {} transitions in {} episodes, hash {}\n",
            file.file, file.format, file.transitions, file.episodes, file.hash
        );
    }
    let model = &config.model;
    text += &format!(
        "  states      {} features, model.branches = {:?}\n  rewards     sum to between {:.4} and {:.4} from any state to the \
         end of its episode, discounted by {}; the values' support is {} to {}\n",
        model.state, model.branches, to_go[0], to_go[1], config.train.gamma, model.v_min, model.v_max
    );
    let all: usize = model.branches.iter().product();
    if let Some(largest) = largest.filter(|&largest| (largest as usize) + 1 < all) {
        text += &format!(
            "              warning: one index up to {largest} is read as a composite one of {all}, an action of each of {} \
             branches: where it is a plain one, set model.branches to [{}]\n",
            model.branches.len(),
            largest + 1
        );
    }
    if to_go[0] < model.v_min.into() || to_go[1] > model.v_max.into() {
        text +=
            "              warning: the support is too narrow for that: set model.v_min and model.v_max\n";
    }
    text += &format!(
        "  parts       {} learned from, {} for validation, {} for the test; an evaluation looks at {} at most\n",
        record.learned, record.validation, record.test, config.transitions.evaluation_rows
    );
    if let Some(shards) = Shards::new(config, record.learned) {
        text += &format!(
            "  resident    two halves of {} at most, which change places every {} steps\n",
            shards.capacity(),
            config.transitions.shard_steps
        );
    }
    text
}
