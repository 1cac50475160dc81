//! The environments of the CPU agent.

use anyhow::Context;
use gpu::market::{Transitions, VecMarket};
use gpu::task::{Finished, VecTask};

use crate::tensors::Tensors;
use crate::train::task::TaskRun;
use crate::train::world::World;

/// Environments in host memory, with the device's functions.
pub enum HostEnvironments<'a> {
    /// Of the market, on the bars that are learned from.
    Market(VecMarket<'a>),
    /// Of a control task.
    Task(VecTask),
    /// A data set comes without.
    None,
}

impl<'a> HostEnvironments<'a> {
    /// Environments before their first episode; of a market on the bars that are learned from.
    pub fn new(world: World<'a>, environments: usize, seed: u64) -> anyhow::Result<Self> {
        Ok(match world {
            World::Market(market) => Self::Market(VecMarket::new(
                market.params,
                &market.table,
                market.learned(),
                environments,
                seed,
            )?),
            World::Task(run) => Self::Task(VecTask::new(run.task, environments, run.gamma, seed)),
            World::Transitions(_) => Self::None,
        })
    }

    /// Writes s, `[E, S]`: what each environment's next decision sees.
    pub fn observe(&self, states: &mut [f32]) -> anyhow::Result<()> {
        match self {
            Self::Market(market) => market.observe(states)?,
            Self::Task(task) => states.copy_from_slice(task.states()),
            Self::None => {}
        }
        Ok(())
    }

    /// One step of all environments.
    pub fn step(&mut self, actions: &[u64], out: &mut Transitions) -> anyhow::Result<()> {
        match self {
            Self::Market(market) => market.step(actions, out)?,
            Self::Task(task) => task.step(actions, out, |_, _| ())?,
            Self::None => {}
        }
        Ok(())
    }

    /// Copies what the next steps depend on, as `Environments::state` names it on the device.
    pub fn save(&self, name: &str, to: &mut Tensors) {
        match self {
            Self::Market(market) => {
                let (values, counters) = market.memory();
                to.put(format!("{name}.values"), values.to_vec());
                to.put(format!("{name}.counters"), counters.to_vec());
            }
            Self::Task(task) => {
                let (words, counters) = task.memory();
                to.put(format!("{name}.words"), words.to_vec());
                to.put(format!("{name}.counters"), counters.to_vec());
            }
            Self::None => {}
        }
    }

    /// Goes on from what was saved.
    ///
    /// # Errors
    /// Tensors that are missing or of another length, accounts and episodes that cannot be.
    pub fn load(&mut self, name: &str, from: &mut Tensors) -> anyhow::Result<()> {
        let mut counters = || from.take_any::<u32>(&format!("{name}.counters"));
        match self {
            Self::None => Ok(()),
            Self::Market(market) => {
                let counters = counters()?;
                let values = from.take_any::<f64>(&format!("{name}.values"))?;
                market.restore(&values, &counters).with_context(|| format!("the accounts `{name}`"))
            }
            Self::Task(task) => {
                let counters = counters()?;
                let words = from.take_any::<u64>(&format!("{name}.words"))?;
                task.set_memory(&words, &counters).with_context(|| format!("the environments `{name}`"))
            }
        }
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
