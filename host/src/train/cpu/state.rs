//! Everything that the CPU agent's next steps depend on, by name.

use anyhow::Context;
use cpu_path::LearnerState;

use super::CpuAgent;
use crate::tensors::Tensors;
use crate::train::host_environments::HostEnvironments;
use crate::train::world::World;

/// Name of the training's ring.
const RING: &str = "collect.ring";

impl CpuAgent<'_> {
    /// Copies the state.
    pub(super) fn state(&self) -> Tensors {
        let mut to = Tensors::default();
        to.put("steps", vec![self.train_step, self.collect_step]);
        put_learner(self.learner.export(), &mut to);
        match self.world {
            World::Transitions(_) => self.replay.save_tree(RING, &mut to),
            World::Market(_) | World::Task(_) => {
                put_environments("collect", &self.environments, &self.states, &mut to);
                self.replay.save(RING, &mut to);
            }
        }
        if let Some(held_out) = &self.held_out {
            put_environments("vaccine", &held_out.environments, &held_out.states, &mut to);
            held_out.replay.save("vaccine.ring", &mut to);
        }
        to.put("probe.sensitivity", self.sensitivity.clone());
        to
    }

    /// Goes on from a state.
    pub(super) fn restore(&mut self, from: &mut Tensors) -> anyhow::Result<()> {
        let steps = from.take::<u64>("steps", 2)?;
        (self.train_step, self.collect_step) = (steps[0], steps[1]);
        let learner = take_learner(&self.learner.export(), from)?;
        self.learner.import(learner)?;
        match self.world {
            World::Transitions(_) => self.replay.load_tree(RING, from)?,
            World::Market(_) | World::Task(_) => {
                take_environments("collect", &mut self.environments, &mut self.states, from)?;
                self.replay.load(RING, from)?;
            }
        }
        if let Some(held_out) = &mut self.held_out {
            take_environments("vaccine", &mut held_out.environments, &mut held_out.states, from)?;
            held_out.replay.load("vaccine.ring", from)?;
        }
        self.sensitivity = from.take_any("probe.sensitivity")?;
        Ok(())
    }
}

fn put_learner(state: LearnerState<f32>, to: &mut Tensors) {
    // Taken apart, so that what a learner keeps one day does not compile before it is saved.
    let LearnerState {
        online,
        target,
        m,
        v,
        spectral,
        iql,
        confidence,
        pruned,
        step,
        skipped,
        skipped_in_row,
    } = state;
    to.put("online", online);
    to.put("target", target);
    to.put("adam.m", m);
    to.put("adam.v", v);
    to.put("spectral.u", spectral);
    to.put("iql.kept", iql);
    to.put("confidence.kept", confidence);
    to.put("prune.pruned", pruned.into_iter().map(u8::from).collect::<Vec<u8>>());
    to.put("adam.clock", vec![step, skipped, skipped_in_row.into()]);
}

/// The learner's state, in the lengths of `like`.
fn take_learner(like: &LearnerState<f32>, from: &mut Tensors) -> anyhow::Result<LearnerState<f32>> {
    let pruned = from.take::<u8>("prune.pruned", like.pruned.len())?;
    let clock = from.take::<u64>("adam.clock", 3)?;
    Ok(LearnerState {
        online: from.take("online", like.online.len())?,
        target: from.take("target", like.target.len())?,
        m: from.take("adam.m", like.m.len())?,
        v: from.take("adam.v", like.v.len())?,
        spectral: from.take("spectral.u", like.spectral.len())?,
        iql: from.take("iql.kept", like.iql.len())?,
        confidence: from.take("confidence.kept", like.confidence.len())?,
        pruned: pruned.into_iter().map(|pruned| pruned != 0).collect(),
        step: clock[0],
        skipped: clock[1],
        skipped_in_row: u32::try_from(clock[2]).context("adam.clock: steps skipped in a row")?,
    })
}

fn put_environments(name: &str, environments: &HostEnvironments<'_>, states: &[f32], to: &mut Tensors) {
    environments.save(name, to);
    to.put(format!("{name}.states"), states.to_vec());
}

fn take_environments(
    name: &str,
    environments: &mut HostEnvironments<'_>,
    states: &mut Vec<f32>,
    from: &mut Tensors,
) -> anyhow::Result<()> {
    environments.load(name, from)?;
    *states = from.take::<f32>(&format!("{name}.states"), states.len())?;
    Ok(())
}
