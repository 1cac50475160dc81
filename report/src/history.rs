//! The metrics' rows of one run or of the folds of one, as far as a page needs them.
//!
//! A run may have more training steps than memory holds, so the steps are averaged as they are read: a curve has between
//! [`POINTS`] and twice as many points, each the mean of equally many steps.

use std::collections::BTreeMap;
use std::path::Path;

use crate::ReportError;
use crate::rows::{self, Row};

/// Fewest points of a curve that has more steps than that.
const POINTS: usize = 300;

/// Rows in the order of the files.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All but the training steps.
    pub rows: Vec<Row>,
    /// Curves of the training steps' fields.
    pub steps: BTreeMap<String, Curve>,
    /// Added to the number of a step: a fold counts from 1, and its steps lie behind those of the folds before.
    offset: f64,
    last: f64,
}

/// A field of the training steps, averaged over stretches of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Values that make one stretch.
    every: usize,
    stretches: Vec<Stretch>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    /// Its last step.
    step: f64,
    sum: f64,
    count: usize,
}

impl History {
    /// Appends the rows of a `metrics.jsonl`.
    ///
    /// # Errors
    /// As for [`rows::visit`].
    pub fn read(&mut self, metrics: &Path) -> Result<(), ReportError> {
        rows::visit(
            metrics,
            |_| true,
            |row| {
                self.push(row);
                Ok(())
            },
        )
    }

    fn push(&mut self, row: Row) {
        if row.kind != "step" {
            self.rows.push(row);
            return;
        }
        let Some(step) = row.number("step") else { return };
        if step + self.offset < self.last {
            self.offset = self.last;
        }
        self.last = step + self.offset;
        for name in row.fields.keys().filter(|name| *name != "step") {
            // A skipped step has no finite numbers, and a few signals are in some steps only.
            if let Some(value) = row.number(name) {
                match self.steps.get_mut(name) {
                    Some(curve) => curve.push(self.last, value),
                    None => {
                        let mut curve = Curve { every: 1, stretches: Vec::new() };
                        curve.push(self.last, value);
                        self.steps.insert(name.clone(), curve);
                    }
                }
            }
        }
    }

    /// (step, mean) of a field of the training steps; empty where there is none.
    pub fn curve(&self, field: &str) -> Vec<(f64, f64)> {
        self.steps.get(field).map_or_else(Vec::new, Curve::points)
    }

    /// Rows of a kind.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl DoubleEndedIterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.kind == kind)
    }

    /// A field of the epochs, counted from 1 through all folds; epochs in which it is undefined are left out.
    pub fn by_epoch(&self, field: &str) -> Vec<(f64, f64)> {
        let epochs = self.of("epoch").enumerate();
        epochs.filter_map(|(i, row)| Some(((i + 1) as f64, row.number(field)?))).collect()
    }
}

impl Curve {
    fn push(&mut self, step: f64, value: f64) {
        match self.stretches.last_mut() {
            Some(last) if last.count < self.every => {
                *last = Stretch { step, sum: last.sum + value, count: last.count + 1 };
            }
            _ => self.stretches.push(Stretch { step, sum: value, count: 1 }),
        }
        if self.stretches.len() > 2 * POINTS {
            // All but the newest are full; it is taken out, because a pair with it would not be.
            let newest = self.stretches.pop();
            let pair = |two: &[Stretch]| {
                two.iter().copied().reduce(|a, b| Stretch {
                    step: b.step,
                    sum: a.sum + b.sum,
                    count: a.count + b.count,
                })
            };
            self.stretches = self.stretches.chunks(2).filter_map(pair).collect();
            self.stretches.extend(newest);
            self.every *= 2;
        }
    }

    /// (last step, mean) of each stretch.
    pub fn points(&self) -> Vec<(f64, f64)> {
        self.stretches.iter().map(|s| (s.step, s.sum / s.count as f64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn history(steps: impl Iterator<Item = usize>) -> History {
        let mut history = History::default();
        for step in steps {
            let row = json!({"kind": "step", "step": step, "loss": step as f64, "skipped": false});
            history.push(Row::of(row).unwrap());
        }
        history
    }

    #[test]
    fn few_steps_are_kept_and_many_are_means_of_equal_stretches() {
        let few: Vec<(f64, f64)> = (1..=600).map(|step| (f64::from(step), f64::from(step))).collect();
        assert_eq!(history(1..=600).curve("loss"), few);
        let many = history(1..=100_000);
        let points = many.curve("loss");
        assert!((POINTS..=2 * POINTS).contains(&points.len()), "{}", points.len());
        // Stretches of 256 steps; the last one has what is left.
        for (i, point) in points[..points.len() - 1].iter().enumerate() {
            let last = 256.0 * (i + 1) as f64;
            assert_eq!(*point, (last, last - 127.5));
        }
        assert_eq!(points.last().unwrap().0, 100_000.0);
        let total: usize = many.steps["loss"].stretches.iter().map(|s| s.count).sum();
        assert_eq!(total, 100_000, "every step is in a stretch");
        assert!(many.curve("skipped").is_empty() && many.curve("step").is_empty());
    }

    #[test]
    fn a_numbering_that_starts_anew_goes_on() {
        let curve = history([1, 2, 3, 1, 2].into_iter()).curve("loss");
        assert_eq!(curve, [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 1.0), (5.0, 2.0)]);
    }
}
