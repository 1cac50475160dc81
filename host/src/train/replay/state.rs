//! The ring in a saved state: its filled slots, its counters and its tree.

use cpu_path::replay::PriorityTree;

use super::HostReplay;
use crate::step::state::StateError;
use crate::tensors::Tensors;

impl HostReplay {
    /// Copies the slots that hold a transition, and what says where the next one goes.
    pub fn save(&self, name: &str, to: &mut Tensors) {
        // Slots are filled from 0 on, and all are once the ring has been around.
        let (filled, rows) = (self.size, self.size * self.state);
        to.put(format!("{name}.states"), self.states[..rows].to_vec());
        to.put(format!("{name}.next_states"), self.next_states[..rows].to_vec());
        to.put(format!("{name}.actions"), self.actions[..filled].to_vec());
        to.put(format!("{name}.rewards"), self.rewards[..filled].to_vec());
        to.put(format!("{name}.discounts"), self.discounts[..filled].to_vec());
        to.put(format!("{name}.words"), vec![self.size as u64, self.cursor as u64]);
        to.put(format!("{name}.ages"), self.ages.iter().map(|&age| age as u64).collect::<Vec<u64>>());
        if self.hindsight.is_some() {
            to.put(format!("{name}.ends"), self.ends[..filled].to_vec());
        }
        self.save_tree(name, to);
    }

    /// Copies the priorities: all that changes in a ring that holds a data set.
    pub fn save_tree(&self, name: &str, to: &mut Tensors) {
        if let Some(tree) = &self.tree {
            to.put(format!("{name}.leaves"), tree.leaves().to_vec());
            to.put(format!("{name}.highest"), vec![tree.highest()]);
        }
    }

    /// Goes on from a saved ring of the same settings.
    ///
    /// # Errors
    /// [`StateError`] for counters that this ring cannot have, and for tensors of other lengths.
    pub fn load(&mut self, name: &str, from: &mut Tensors) -> Result<(), StateError> {
        let words = from.take::<u64>(&format!("{name}.words"), 2)?;
        let count = |value: u64, most: usize| match usize::try_from(value) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(StateError::Count {
                name: format!("{name}.words"),
                found: value,
                expected: format!("at most {most}"),
            }),
        };
        self.size = count(words[0], self.capacity)?;
        self.cursor = count(words[1], self.capacity - 1)?;
        let (filled, rows) = (self.size, self.size * self.state);
        self.states[..rows].copy_from_slice(&from.take::<f32>(&format!("{name}.states"), rows)?);
        self.next_states[..rows].copy_from_slice(&from.take::<f32>(&format!("{name}.next_states"), rows)?);
        self.actions[..filled].copy_from_slice(&from.take::<u64>(&format!("{name}.actions"), filled)?);
        self.rewards[..filled].copy_from_slice(&from.take::<f32>(&format!("{name}.rewards"), filled)?);
        self.discounts[..filled].copy_from_slice(&from.take::<f32>(&format!("{name}.discounts"), filled)?);
        let ages = from.take::<u64>(&format!("{name}.ages"), self.ages.len())?;
        self.ages = ages.into_iter().map(|age| age as usize).collect();
        if self.hindsight.is_some() {
            self.ends[..filled].copy_from_slice(&from.take::<u32>(&format!("{name}.ends"), filled)?);
        }
        self.load_tree(name, from)
    }

    /// Goes on from the priorities of a saved ring of the same settings.
    ///
    /// # Errors
    /// [`StateError`] for tensors of other lengths.
    pub fn load_tree(&mut self, name: &str, from: &mut Tensors) -> Result<(), StateError> {
        if let Some(tree) = &mut self.tree {
            let leaves = from.take::<f32>(&format!("{name}.leaves"), self.capacity)?;
            let highest = from.take::<f32>(&format!("{name}.highest"), 1)?;
            *tree = PriorityTree::with_leaves(&leaves, highest[0]);
        }
        Ok(())
    }
}
