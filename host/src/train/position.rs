//! Where a run stands: what the loop needs to go on, besides the agent.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use settings::Config;

use crate::tensors::Tensors;
use crate::train::agent::StepRow;
use crate::train::metrics::Mark;

/// Where a run stands between two steps of collection or training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The epoch that is under way, from 1; one past the last when all are done.
    pub epoch: usize,
    /// Bars of every environment collected before the first epoch's own.
    pub warmed: usize,
    /// Bars of every environment collected in this epoch.
    pub collected: usize,
    /// Training steps done in this epoch.
    pub trained: usize,
    /// Training steps done in all epochs.
    pub step: usize,
    /// How far the metrics were written.
    pub metrics: Mark,
    /// Sums over this epoch's steps. In the tensors of a state, where every bit is kept.
    #[serde(skip)]
    pub sums: Sums,
    /// The value networks' exploration rate of this epoch, once it replaces the schedule's. In the tensors of a state too.
    #[serde(skip)]
    pub epsilon: Option<f32>,
    /// The one after the latest step, for the next epoch.
    #[serde(skip)]
    pub latest_epsilon: Option<f32>,
}

/// Names in a saved state.
const SUMS: &str = "loop.sums";
const EPSILON: &str = "loop.epsilon";
const LATEST_EPSILON: &str = "loop.latest_epsilon";

impl Position {
    /// Before the first step.
    pub fn start() -> Self {
        Self { epoch: 1, ..Self::default() }
    }

    /// Where that is, in words.
    pub fn text(&self) -> String {
        format!("epoch {}, {} of its training steps done, {} in all", self.epoch, self.trained, self.step)
    }

    /// Whether a run of this configuration can stand here.
    ///
    /// # Errors
    /// Names the first number that is out of its range.
    pub fn check(&self, config: &Config) -> anyhow::Result<()> {
        let (train, collect) = (&config.train, &config.collect);
        for (name, value, low, high) in [
            ("epoch", self.epoch, 1, train.epochs.saturating_add(1)),
            ("warmed", self.warmed, 0, collect.warmup),
            ("collected", self.collected, 0, collect.steps),
            ("trained", self.trained, 0, train.train_steps),
            ("step", self.step, self.trained, train.epochs.saturating_mul(train.train_steps)),
        ] {
            if !(low..=high).contains(&value) {
                bail!("its position: {name} = {value}, expected {low} to {high}");
            }
        }
        Ok(())
    }

    /// Counts training steps.
    pub fn add(&mut self, rows: &[StepRow]) {
        self.trained += rows.len();
        self.step += rows.len();
        rows.iter().for_each(|row| self.sums.add(row));
        self.latest_epsilon = rows.last().map_or(self.latest_epsilon, |row| row.parts.iql_epsilon);
    }

    /// The value networks' epsilon, where it is on (`adaptive`), replaces the schedule's from their first accepted step on.
    pub fn adapt_epsilon(&mut self, adaptive: bool) {
        if adaptive && (self.epsilon.is_some() || self.sums.kept > 0) {
            self.epsilon = self.latest_epsilon.or(self.epsilon);
        }
    }

    /// After the epoch.
    pub fn next_epoch(&mut self) {
        self.epoch += 1;
        (self.collected, self.trained) = (0, 0);
        self.sums = Sums::default();
    }

    /// The numbers that a text would round.
    pub fn put(&self, to: &mut Tensors) {
        let Sums { steps, kept, values } = &self.sums;
        to.put(SUMS, [&[*steps as f64, *kept as f64], &values[..]].concat());
        to.put(EPSILON, self.epsilon.into_iter().collect::<Vec<f32>>());
        to.put(LATEST_EPSILON, self.latest_epsilon.into_iter().collect::<Vec<f32>>());
    }

    /// A position from its text and the numbers beside it.
    ///
    /// # Errors
    /// A text or tensors of another program.
    pub fn of(text: &str, from: &mut Tensors) -> anyhow::Result<Self> {
        let mut position: Position = serde_json::from_str(text).context("its position")?;
        let sums = from.take::<f64>(SUMS, 2 + Sums::COLUMNS)?;
        position.sums.steps = sums[0] as usize;
        position.sums.kept = sums[1] as usize;
        position.sums.values.copy_from_slice(&sums[2..]);
        position.epsilon = from.take_any::<f32>(EPSILON)?.first().copied();
        position.latest_epsilon = from.take_any::<f32>(LATEST_EPSILON)?.first().copied();
        Ok(position)
    }
}

/// Sums over an epoch's steps, of which the epoch's row has the means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Steps, the skipped ones included.
    pub steps: usize,
    /// Steps that were not skipped.
    kept: usize,
    values: [f64; Sums::COLUMNS],
}

impl Sums {
    const COLUMNS: usize = 6;

    /// Adds a step; what a skipped one says of its batch counts for nothing.
    pub fn add(&mut self, row: &StepRow) {
        self.steps += 1;
        if row.skipped {
            return;
        }
        self.kept += 1;
        let values = [row.loss, row.td, row.q, row.clipped_low, row.clipped_high, row.gradient_norm];
        for (sum, value) in self.values.iter_mut().zip(values) {
            *sum += f64::from(value);
        }
    }

    /// Steps that were skipped.
    pub fn skipped(&self) -> usize {
        self.steps - self.kept
    }

    /// Means over the steps that were not skipped.
    pub fn mean(&self) -> StepRow {
        let [loss, td, q, clipped_low, clipped_high, gradient_norm] =
            self.values.map(|sum| (sum / self.kept as f64) as f32);
        StepRow { loss, td, q, clipped_low, clipped_high, gradient_norm, ..StepRow::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_comes_back_with_every_bit() {
        let mut position = Position { epoch: 3, trained: 2, epsilon: Some(0.1), ..Position::start() };
        for loss in [0.1, f32::NAN, 0.3] {
            position.sums.add(&StepRow { loss, td: 0.7, skipped: loss.is_nan(), ..StepRow::default() });
        }
        assert_eq!((position.sums.steps, position.sums.skipped()), (3, 1));
        let mean = position.sums.mean();
        assert_eq!((mean.loss, mean.td), (0.2, 0.7));
        let text = serde_json::to_string(&position).unwrap();
        let mut tensors = Tensors::default();
        position.put(&mut tensors);
        assert_eq!(Position::of(&text, &mut tensors).unwrap(), position);
        tensors.finish().unwrap();
        assert!(Position::of("{}", &mut Tensors::default()).unwrap_err().to_string().contains("position"));
    }
}
