//! Control tasks in a run: what the configuration means, evaluation by greedy episodes, and its report.

use std::fmt;

use ::gpu::market::TERMINATED;
use ::gpu::philox::{Stream, draw};
use ::gpu::task::{Finished, Spec, Task};
use anyhow::{Context, bail};
use serde::Serialize;
use settings::{Config, ModelShape};

use crate::step::{EnvironmentInput, Hindsight};
use crate::train::agent::PartName;

/// The control task of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskRun {
    /// The task, size and limit filled in.
    pub task: Task,
    /// Its observations, actions and goals.
    pub spec: Spec,
    /// Discount of one step.
    pub gamma: f64,
    /// Episodes of an evaluation.
    pub episodes: usize,
    /// Seed of the run.
    pub seed: u64,
    /// Hindsight on the run's ring, where it is on.
    pub hindsight: Option<Hindsight>,
}

impl TaskRun {
    /// The task of a configuration; fills in the model's state width, and its branches where they are the default's.
    ///
    /// # Errors
    /// Names the key: an unknown task, a size or a shape of the model that is not the task's, hindsight without goals.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        let section = config.task.clone();
        let number = |key: &str, value: usize| {
            u32::try_from(value).with_context(|| format!("{key} = {value}: too large"))
        };
        let (size, limit) = (number("task.size", section.size)?, number("task.limit", section.limit)?);
        let task = Task::named(&section.name, size, limit)?;
        let spec = task.spec();
        let (name, model) = (task.name(), &mut config.model);
        let branches: Vec<usize> = (0..8)
            .map(|d| ::gpu::action::branch(spec.branches, d) as usize)
            .take_while(|&actions| actions > 0)
            .collect();
        if model.branches == ModelShape::default().branches {
            model.branches = branches.clone();
        }
        if model.branches != branches {
            bail!(
                "model.branches = {:?}, task.name = \"{name}\": its actions are {branches:?}; leave model.branches out, or set it to them",
                model.branches
            );
        }
        let state = spec.observation as usize;
        if model.state != 0 && model.state != state {
            bail!("model.state = {}, task.name = \"{name}\": its observations have {state}", model.state);
        }
        model.state = state;
        if config.her.enabled && spec.goal.len == 0 {
            bail!("her.enabled = true, task.name = \"{name}\": this task has no goals");
        }
        config.check()?;
        let gamma = f64::from(config.train.gamma);
        let hindsight = config.her.enabled.then(|| Hindsight {
            task,
            environments: config.collect.environments,
            share: config.her.share(),
            gamma,
        });
        let (episodes, seed) = (section.evaluation_episodes, config.train.seed);
        Ok(Self { task, spec, gamma, episodes, seed, hindsight })
    }

    /// A line about it.
    pub fn text(&self) -> String {
        let actions: Vec<String> = (0..8)
            .map(|d| ::gpu::action::branch(self.spec.branches, d))
            .take_while(|&actions| actions > 0)
            .map(|actions| actions.to_string())
            .collect();
        format!(
            "task: {}, {} numbers a state, {} actions, episodes of at most {} steps{}",
            self.task.name(),
            self.spec.observation,
            actions.join(" x "),
            self.task.limit,
            if self.hindsight.is_some() { ", with hindsight" } else { "" }
        )
    }

    /// Environments of the run.
    pub fn environment(&self) -> EnvironmentInput<'static> {
        EnvironmentInput::Task { task: self.task, gamma: self.gamma, seed: self.seed, greedy: false }
    }

    /// Seed of an evaluation's episodes: one of its own for each part and number, none of them the training's.
    pub fn evaluation_seed(&self, part: PartName, number: u64) -> u64 {
        let words = draw(self.seed, number, Stream::Evaluation, part as u32, 0);
        u64::from(words[0]) << 32 | u64::from(words[1])
    }
}

/// Result of greedy episodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskReport {
    /// The task.
    pub task: String,
    /// Episodes.
    pub episodes: usize,
    /// Mean undiscounted return.
    pub mean_return: f64,
    /// Standard error of the mean; absent for one episode.
    pub standard_error: Option<f64>,
    /// Smallest return.
    pub worst_return: f64,
    /// Largest return.
    pub best_return: f64,
    /// Mean number of steps.
    pub mean_steps: f64,
    /// Fraction of the episodes that ended in the task itself rather than by the step limit: solved ones where the task
    /// ends by its goal, failed ones where it ends by a failure.
    pub terminated: f64,
}

impl TaskReport {
    /// The report of finished episodes, of which there is at least one.
    pub fn new(task: &str, finished: &[Finished]) -> Self {
        let n = finished.len() as f64;
        let returns = || finished.iter().map(|episode| episode.total);
        let mean = returns().sum::<f64>() / n;
        let squares = returns().map(|total| (total - mean).powi(2)).sum::<f64>();
        Self {
            task: task.into(),
            episodes: finished.len(),
            mean_return: mean,
            standard_error: (finished.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt()),
            worst_return: returns().fold(f64::INFINITY, f64::min),
            best_return: returns().fold(f64::NEG_INFINITY, f64::max),
            mean_steps: finished.iter().map(|episode| f64::from(episode.steps)).sum::<f64>() / n,
            terminated: finished.iter().filter(|episode| episode.flags & TERMINATED != 0).count() as f64 / n,
        }
    }
}

impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.standard_error.map_or(String::new(), |e| format!(" +- {e:.2}"));
        write!(
            f,
            "{}: mean return {:.2}{error} over {} greedy episodes, from {:.0} to {:.0}; {:.1} steps; {:.1}% ended in the \
             task itself, the others by the step limit",
            self.task,
            self.mean_return,
            self.episodes,
            self.worst_return,
            self.best_return,
            self.mean_steps,
            100.0 * self.terminated
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_that_of_its_episodes() {
        let episode = |total, steps, flags| Finished { total, steps, flags };
        let report = TaskReport::new("cartpole", &[episode(10.0, 10, TERMINATED), episode(14.0, 14, 2)]);
        assert_eq!((report.mean_return, report.mean_steps, report.terminated), (12.0, 12.0, 0.5));
        // Deviations of 2 each: variance 8 of a sample of 2, of its mean 4.
        assert_eq!(report.standard_error, Some(2.0));
        assert_eq!((report.worst_return, report.best_return), (10.0, 14.0));
        assert_eq!(TaskReport::new("x", &[episode(1.0, 1, 2)]).standard_error, None);
    }

    #[test]
    fn a_task_fills_the_models_shape_and_refuses_another_one() {
        let mut config = Config::default();
        config.task.name = "acrobot".into();
        let run = TaskRun::prepare(&mut config).unwrap();
        assert_eq!((config.model.state, &config.model.branches[..]), (6, &[3][..]));
        assert_eq!((run.task.limit, run.hindsight), (500, None));
        let refusal = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            config.task.name = "cartpole".into();
            change(&mut config);
            TaskRun::prepare(&mut config).unwrap_err().to_string()
        };
        for (message, expected) in [
            (refusal(&|c| c.task.name = "pong".into()), "task.name = \"pong\": expected market, cartpole, "),
            (refusal(&|c| c.task.size = 3), "task.size = 3, task.name = \"cartpole\": "),
            (refusal(&|c| c.model.branches = vec![3]), "model.branches = [3], task.name = \"cartpole\": "),
            (refusal(&|c| c.model.state = 80), "model.state = 80, task.name = \"cartpole\": "),
            (refusal(&|c| c.her.enabled = true), "her.enabled = true, task.name = \"cartpole\": "),
        ] {
            assert!(message.starts_with(expected), "{message}");
        }
        let mut config = Config::default();
        (config.task.name, config.task.size) = ("bit_flip".into(), 65);
        let message = TaskRun::prepare(&mut config).unwrap_err().to_string();
        assert_eq!(message, "task.size = 65, task.name = \"bit_flip\": expected 2 to 64");
    }

    #[test]
    fn every_evaluation_has_a_seed_of_its_own() {
        let mut config = Config::default();
        config.task.name = "cartpole".into();
        let run = TaskRun::prepare(&mut config).unwrap();
        let mut seeds: Vec<u64> = (0..100)
            .flat_map(|n| [PartName::Validation, PartName::Test].map(|part| run.evaluation_seed(part, n)))
            .collect();
        seeds.push(config.train.seed);
        let count = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), count);
    }
}
