//! TensorBoard events of a run, made of the rows of its metrics.
//!
//! The file is a function of the rows: what `metrics.jsonl` has, TensorBoard shows, and a run that is resumed writes the
//! file anew from the rows it keeps. Training steps are averaged over windows of [`Events::window`] steps, so that ten
//! thousand steps are a hundred points; everything else is written as it comes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::ReportError;
use crate::protocol::{Event, Histogram, Kind, Summary, Tagged, What, record};
use crate::rows::Row;

/// Name of the file in a run's folder; TensorBoard takes every file with `tfevents` in its name.
pub const FILE: &str = "events.out.tfevents.stepgraph";

/// Points of a step's curve in an epoch.
const POINTS: usize = 100;

/// An event file that is being written.
pub struct Events {
    path: PathBuf,
    writer: BufWriter<File>,
    /// Steps that make one point.
    pub window: usize,
    steps: Vec<Row>,
    last_step: i64,
    features: Vec<String>,
}

impl Events {
    /// Starts the file in a run's folder, over one that is there; `steps` is how many an epoch has.
    ///
    /// # Errors
    /// [`ReportError::Io`] with the file.
    pub fn create(folder: &Path, steps: usize) -> Result<Self, ReportError> {
        let path = folder.join(FILE);
        let writer = BufWriter::new(File::create(&path).map_err(ReportError::io(&path))?);
        let window = steps.div_ceil(POINTS).max(1);
        let mut events = Self { path, writer, window, steps: Vec::new(), last_step: 0, features: Vec::new() };
        events.write(0, What::FileVersion("brain.Event:2".into()))?;
        events.flush()?;
        Ok(events)
    }

    /// Takes a row of the metrics.
    ///
    /// # Errors
    /// [`ReportError`] with the file.
    pub fn row(&mut self, row: Row) -> Result<(), ReportError> {
        if row.kind == "step" {
            self.steps.push(row);
            return if self.steps.len() >= self.window { self.flush_steps() } else { Ok(()) };
        }
        // What follows belongs behind the steps before it.
        self.flush_steps()?;
        // In a profile that is the time of a step.
        let step = row.number("step").filter(|_| row.kind != "profile");
        let step = step.map_or(self.last_step, |step| step as i64);
        let tagged = match row.kind.as_str() {
            "run" => {
                self.features = names(&row);
                return Ok(());
            }
            "values" => distributions(&row),
            "sensitivity" => sensitivity(&row, &self.features),
            "epoch" => scalars(&row, |name| Some(epoch_tag(name))),
            "sparsity" => nested("sparsity", row.fields.get("tensors")),
            "profile" => sections(&row),
            "test" | "pooled" if row.fields.contains_key("strategy") => [
                nested(&row.kind, row.fields.get("strategy")),
                nested(&format!("{} buy-and-hold", row.kind), row.fields.get("buy_and_hold")),
            ]
            .concat(),
            // Of the run that holds the folds: a fold is a step there.
            "fold" => {
                self.last_step = row.number("fold").unwrap_or(0.0) as i64;
                let test = row.fields.get("test");
                let of = |side: &str| test.and_then(|test| test.get(side));
                let tagged =
                    [nested("fold", of("strategy")), nested("fold buy-and-hold", of("buy_and_hold"))]
                        .concat();
                self.summary(self.last_step, tagged)?;
                return self.flush();
            }
            other => scalars(&row, |name| Some(format!("{other}/{name}"))),
        };
        self.summary(step, tagged)?;
        self.flush()
    }

    /// Writes the mean of the steps that are waiting.
    fn flush_steps(&mut self) -> Result<(), ReportError> {
        let steps = std::mem::take(&mut self.steps);
        let Some(last) = steps.last() else { return Ok(()) };
        self.last_step = last.number("step").unwrap_or(0.0) as i64;
        let mut tagged = Vec::new();
        for name in last.fields.keys().filter(|name| !["step", "fold"].contains(&name.as_str())) {
            // A skipped step has no finite numbers, and a few signals are in some steps only.
            let values: Vec<f64> = steps.iter().filter_map(|row| row.number(name)).collect();
            if !values.is_empty() {
                tagged.push(scalar(step_tag(name), values.iter().sum::<f64>() / values.len() as f64));
            }
        }
        self.summary(self.last_step, tagged)
    }

    fn summary(&mut self, step: i64, value: Vec<Tagged>) -> Result<(), ReportError> {
        if value.is_empty() { Ok(()) } else { self.write(step, What::Summary(Summary { value })) }
    }

    fn write(&mut self, step: i64, what: What) -> Result<(), ReportError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        let event = Event { wall_time: now, step, what: Some(what) };
        self.writer.write_all(&record(&event)).map_err(ReportError::io(&self.path))
    }

    fn flush(&mut self) -> Result<(), ReportError> {
        self.writer.flush().map_err(ReportError::io(&self.path))
    }

    /// Writes what is waiting: the steps since the last point among it.
    ///
    /// # Errors
    /// [`ReportError`] with the file.
    pub fn end(mut self) -> Result<(), ReportError> {
        self.flush_steps()?;
        self.flush()
    }
}

fn scalar(tag: String, value: f64) -> Tagged {
    Tagged { tag, value: Some(Kind::Simple(value as f32)) }
}

/// The numbers of a row, under the tags that `tag` gives them.
fn scalars(row: &Row, tag: impl Fn(&str) -> Option<String>) -> Vec<Tagged> {
    let number = |name: &String| Some(scalar(tag(name)?, row.number(name)?));
    row.fields
        .keys()
        .filter(|name| !["step", "epoch", "fold"].contains(&name.as_str()))
        .filter_map(number)
        .collect()
}

/// Numbers of an object inside a row, its own objects' too.
fn nested(prefix: &str, value: Option<&Value>) -> Vec<Tagged> {
    let Some(Value::Object(fields)) = value else { return Vec::new() };
    let tagged = fields.iter().flat_map(|(name, value)| match value {
        Value::Object(_) => nested(&format!("{prefix}/{name}"), Some(value)),
        Value::Number(number) => {
            number.as_f64().map(|number| scalar(format!("{prefix}/{name}"), number)).into_iter().collect()
        }
        _ => Vec::new(),
    });
    tagged.collect()
}

/// Times of the step's sections in microseconds, and of the step as a whole.
fn sections(row: &Row) -> Vec<Tagged> {
    let list = row.fields.get("sections").and_then(Value::as_array);
    let section =
        |pair: &Value| Some(scalar(format!("step time/{}", pair.get(0)?.as_str()?), pair.get(1)?.as_f64()?));
    let sections = list.map_or(&[][..], Vec::as_slice).iter().filter_map(section);
    sections.chain(row.number("step").map(|step| scalar("step time/whole".into(), step))).collect()
}

/// Where TensorBoard shows a field of a training step.
fn step_tag(name: &str) -> String {
    match name.strip_prefix("loss_").or(name.strip_prefix("norm_")) {
        Some(part) if name.starts_with("loss") => format!("loss/{part}"),
        Some(part) => format!("gradient norm/{part}"),
        None if name == "loss" => "loss/c51".into(),
        None if name == "gradient_norm" => "gradient norm/total".into(),
        None => format!("signals/{name}"),
    }
}

/// Where TensorBoard shows a field of an epoch.
fn epoch_tag(name: &str) -> String {
    match name.strip_prefix("validation_") {
        Some(metric) => format!("validation/{metric}"),
        None if name.ends_with("seconds") || name.contains("per_step") || name.contains("per_second") => {
            format!("time/{name}")
        }
        None => format!("epoch/{name}"),
    }
}

/// Mean distribution of the greedy action's value, a histogram per branch: bucket k is the mass at atom k.
fn distributions(row: &Row) -> Vec<Tagged> {
    let (Some(low), Some(high)) = (row.number("v_min"), row.number("v_max")) else { return Vec::new() };
    let branches = row.fields.get("branches").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let states = row.number("states").unwrap_or(1.0);
    let of_branch = |(branch, mass): (usize, &Value)| {
        let mass: Vec<f64> = mass.as_array()?.iter().filter_map(Value::as_f64).collect();
        let width = (high - low) / (mass.len().max(2) - 1) as f64;
        let atom = |k: usize| low + k as f64 * width;
        let moment = |power: i32| mass.iter().enumerate().map(|(k, p)| p * atom(k).powi(power)).sum::<f64>();
        let histogram = Histogram {
            min: low,
            max: high,
            num: states,
            sum: states * moment(1),
            sum_squares: states * moment(2),
            bucket_limit: (0..mass.len()).map(|k| atom(k) + 0.5 * width).collect(),
            bucket: mass.iter().map(|p| states * p).collect(),
        };
        let tag = format!("value distribution/branch {branch}");
        Some(Tagged { tag, value: Some(Kind::Histogram(histogram)) })
    };
    branches.iter().enumerate().filter_map(of_branch).collect()
}

/// Names of the state's features, as the run's first row has them.
pub(crate) fn names(row: &Row) -> Vec<String> {
    let list = row.fields.get("features").and_then(Value::as_array);
    let texts = list.map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

/// Sensitivities of equal names averaged: the bars of a window share their features' names.
pub(crate) fn averaged(values: &[f64], names: &[String]) -> Vec<(String, f64)> {
    let mut sums: Vec<(String, f64, f64)> = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let name = names.get(i).cloned().unwrap_or_else(|| format!("state {i}"));
        match sums.iter_mut().find(|(known, _, _)| *known == name) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + value, *count + 1.0),
            None => sums.push((name, *value, 1.0)),
        }
    }
    sums.into_iter().map(|(name, sum, count)| (name, sum / count)).collect()
}

fn sensitivity(row: &Row, names: &[String]) -> Vec<Tagged> {
    let averages = averaged(&row.numbers("features"), names);
    averages.into_iter().map(|(name, value)| scalar(format!("sensitivity/{name}"), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::events;
    use crate::{rows, sample};

    /// Events of the sample run, read back with their checksums checked.
    fn written(steps: usize) -> Vec<Event> {
        let folder = tempfile::tempdir().unwrap();
        sample::write(folder.path(), 1);
        let mut file = Events::create(folder.path(), steps).unwrap();
        for row in rows::read(&folder.path().join("metrics.jsonl"), |_| true).unwrap() {
            file.row(row).unwrap();
        }
        file.end().unwrap();
        events(&std::fs::read(folder.path().join(FILE)).unwrap())
    }

    /// (step, value) of a tag.
    fn of(events: &[Event], tag: &str) -> Vec<(i64, Kind)> {
        let mut found = Vec::new();
        for event in events {
            let Some(What::Summary(summary)) = &event.what else { continue };
            let of_tag = summary.value.iter().filter(|value| value.tag == tag);
            found.extend(of_tag.map(|value| (event.step, value.value.clone().expect("a value"))));
        }
        found
    }

    fn scalars_of(events: &[Event], tag: &str) -> Vec<(i64, f32)> {
        let number = |(step, value)| match value {
            Kind::Simple(value) => (step, value),
            other => panic!("{tag}: {other:?}"),
        };
        of(events, tag).into_iter().map(number).collect()
    }

    #[test]
    fn what_the_metrics_have_is_in_the_events() {
        let events = written(sample::STEPS);
        assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".into())));
        assert!(events.iter().all(|e| e.wall_time > 1.6e9 && e.wall_time < 1e10), "seconds since 1970");
        let steps = sample::EPOCHS * sample::STEPS;
        for tag in ["loss/c51", "loss/cql", "gradient norm/total", "gradient norm/c51", "signals/td"] {
            assert_eq!(scalars_of(&events, tag).len(), steps, "{tag}");
        }
        let first = scalars_of(&events, "loss/c51")[0];
        assert_eq!((first.0, (first.1 - 2.0 - (-1.0f32 / 60.0).exp()).abs() < 1e-6), (1, true));
        let sharpe = scalars_of(&events, "validation/sharpe");
        assert_eq!(sharpe.iter().map(|s| s.0).collect::<Vec<_>>(), [40, 80, 120, 160, 200]);
        assert_eq!(scalars_of(&events, "time/microseconds_per_step")[0].1, 120.0);
        // Two bars of the window share a name: (0.1 + 0.3) / 2.
        assert!((scalars_of(&events, "sensitivity/log_return")[0].1 - 0.2).abs() < 1e-6);
        assert!(scalars_of(&events, "signals/skipped").is_empty());
    }

    #[test]
    fn distributions_are_histograms_with_their_moments() {
        let events = written(sample::STEPS);
        let histograms = of(&events, "value distribution/branch 1");
        assert_eq!(histograms.len(), sample::EPOCHS);
        let Kind::Histogram(h) = &histograms[0].1 else { panic!("no histogram") };
        assert_eq!((h.bucket.len(), h.bucket_limit.len(), h.num), (11, 11, 64.0));
        assert!((h.bucket.iter().sum::<f64>() - 64.0).abs() < 1e-9);
        assert_eq!((h.bucket_limit[0], h.bucket_limit[10]), (-4.5, 5.5));
        // Mass 1/11 + 0.001 (k - 5) at k - 5: mean 0.001 * 110.
        assert!((h.sum / h.num - 0.11).abs() < 1e-9, "{}", h.sum / h.num);
    }

    #[test]
    fn many_steps_are_means_over_windows() {
        // As if an epoch had 1000 steps: ten of them make a point, and what is left at an epoch's end makes one too.
        let events = written(1000);
        let loss = scalars_of(&events, "loss/c51");
        assert_eq!(loss.len(), sample::EPOCHS * sample::STEPS / 10);
        assert_eq!((loss[0].0, loss[19].0), (10, 200));
        let mean = (1..=10).map(|step| 2.0 + (-f64::from(step) / 60.0).exp()).sum::<f64>() / 10.0;
        assert!((f64::from(loss[0].1) - mean).abs() < 1e-6);
    }

    #[test]
    fn folds_are_steps_of_the_run_that_holds_them_and_times_have_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = Events::create(folder.path(), 1).unwrap();
        let strategy = serde_json::json!({"sharpe": 1.5, "cagr": null, "max_drawdown": {"relative": 0.25}});
        let test = serde_json::json!({"strategy": strategy, "buy_and_hold": {"sharpe": 0.5}});
        for row in [
            serde_json::json!({"kind": "fold", "fold": 1, "test": test}),
            serde_json::json!({"kind": "fold", "fold": 2, "test": test}),
            serde_json::json!({"kind": "pooled", "strategy": strategy}),
            serde_json::json!({"kind": "profile", "epoch": 1, "sections": [["sample", 2.0]], "step": 40.0}),
        ] {
            file.row(Row::of(row).unwrap()).unwrap();
        }
        file.end().unwrap();
        let events = events(&std::fs::read(folder.path().join(FILE)).unwrap());
        assert_eq!(scalars_of(&events, "fold/sharpe"), [(1, 1.5), (2, 1.5)]);
        assert_eq!(scalars_of(&events, "fold buy-and-hold/sharpe"), [(1, 0.5), (2, 0.5)]);
        assert_eq!(scalars_of(&events, "pooled/max_drawdown/relative"), [(2, 0.25)]);
        assert!(scalars_of(&events, "pooled/cagr").is_empty());
        assert_eq!(scalars_of(&events, "step time/sample"), [(2, 2.0)]);
        assert_eq!(scalars_of(&events, "step time/whole"), [(2, 40.0)]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let Err(error) = Events::create(Path::new("no/such/folder"), 10) else { panic!("created") };
        assert!(error.to_string().starts_with("no/such/folder/events.out.tfevents"), "{error}");
    }
}
