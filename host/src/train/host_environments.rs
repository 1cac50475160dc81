//! The environments of the CPU agent.

use gpu::market::{Transitions, VecMarket};
use gpu::task::{Finished, VecTask};

use crate::train::task::TaskRun;
use crate::train::world::World;

/// Environments in host memory, with the device's functions.
pub enum HostEnvironments<'a> {
    /// Of the market, on the bars that are learned from.
    Market(VecMarket<'a>),
    /// Of a control task.
    Task(VecTask),
}

impl<'a> HostEnvironments<'a> {
    /// Environments before their first episode.
    pub fn new(world: &'a World, environments: usize, seed: u64) -> anyhow::Result<Self> {
        Ok(match world {
            World::Market(market) => Self::Market(VecMarket::new(
                market.params,
                &market.table,
                market.learned(),
                environments,
                seed,
            )?),
            World::Task(run) => Self::Task(VecTask::new(run.task, environments, run.gamma, seed)),
        })
    }

    /// Writes s, `[E, S]`: what each environment's next decision sees.
    pub fn observe(&self, states: &mut [f32]) -> anyhow::Result<()> {
        match self {
            Self::Market(market) => market.observe(states)?,
            Self::Task(task) => states.copy_from_slice(task.states()),
        }
        Ok(())
    }

    /// One step of all environments.
    pub fn step(&mut self, actions: &[u64], out: &mut Transitions) -> anyhow::Result<()> {
        match self {
            Self::Market(market) => market.step(actions, out)?,
            Self::Task(task) => task.step(actions, out, |_, _| ())?,
        }
        Ok(())
    }
}

/// One greedy episode of each of the run's evaluation environments; `act` gives the packed actions for states `[E, S]`.
pub fn episodes(
    run: &TaskRun,
    seed: u64,
    mut act: impl FnMut(&[f32]) -> anyhow::Result<Vec<u64>>,
) -> anyhow::Result<Vec<Finished>> {
    let mut all = VecTask::new(run.task, run.episodes, run.gamma, seed);
    let mut out = Transitions::new(run.episodes, run.spec.observation as usize);
    let mut finished: Vec<Option<Finished>> = vec![None; run.episodes];
    while finished.iter().any(Option::is_none) {
        let actions = act(all.states())?;
        all.step(&actions, &mut out, |e, episode| {
            // Later episodes of environments that are done earlier do not count.
            finished[e].get_or_insert(episode);
        })?;
    }
    Ok(finished.into_iter().flatten().collect())
}
