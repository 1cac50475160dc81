//! `host data check` of a transition data set.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use settings::Task;
use transitions::TransitionSet;

use crate::commands::data::CheckArgs;
use crate::error::chain;
use crate::train::offline::Offline;
use crate::train::progress::write_result;

/// What a data set holds.
#[derive(Debug, Serialize)]
struct Facts {
    format: String,
    transitions: usize,
    state_features: usize,
    episodes: usize,
    terminated: usize,
    truncated: usize,
    /// Both at once: termination wins.
    both: usize,
    /// Smallest, mean, largest.
    rewards: [f64; 3],
    /// Sum of an episode's rewards: smallest, mean, largest.
    returns: [f64; 3],
    /// Smallest and largest of all state numbers.
    states: [f32; 2],
    /// `model.branches` that the actions' largest indices suggest.
    branches: Vec<u32>,
    hash: String,
}

/// Says what the data set holds, and whether `train` would take it with the same options.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let mut config = args.read.configuration(&args.file)?;
    config.data.file = None;
    config.task.name = Task::TRANSITIONS.into();
    config.transitions.files = vec![args.file.clone()];
    let set = ::transitions::load(Path::new(&args.file))?;
    let facts = Facts::of(&set);
    let taken = Offline::of_sets(&mut config, [Ok(set)]);
    let refusal = taken.as_ref().err().map(chain);
    if args.json {
        let value = json!({
            "file": args.file,
            "accepted": refusal.is_none(),
            "refusal": refusal,
            "report": facts,
            "parts": taken.as_ref().ok().map(|data| {
                let record = &data.record;
                json!({ "learned": record.learned, "validation": record.validation, "test": record.test })
            }),
        });
        write_result(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
    } else {
        write_result(&facts.to_text(&args.file, taken.as_ref().ok())?)?;
    }
    match refusal {
        None => Ok(()),
        Some(refusal) => bail!(
            "`train` would refuse the data set: {refusal} (its actions fit --set 'model.branches={:?}')",
            facts.branches
        ),
    }
}

impl Facts {
    fn of(set: &TransitionSet) -> Self {
        let spread = |values: &mut dyn Iterator<Item = f64>| {
            let (mut low, mut sum, mut high, mut count) = (f64::INFINITY, 0.0, f64::NEG_INFINITY, 0.0);
            for value in values {
                (low, sum, high, count) = (low.min(value), sum + value, high.max(value), count + 1.0);
            }
            [low, sum / count, high]
        };
        let episodes = set.episodes();
        let count = |flags: &mut dyn Iterator<Item = bool>| flags.filter(|&flag| flag).count();
        let both = set.terminated.iter().zip(&set.truncated).map(|(&a, &b)| a && b);
        let states = set.states.iter().chain(&set.next_states);
        Self {
            format: set.format.to_string(),
            transitions: set.len(),
            state_features: set.state,
            episodes: episodes.len(),
            terminated: count(&mut set.terminated.iter().copied()),
            truncated: count(&mut set.truncated.iter().copied()),
            both: count(&mut both.into_iter()),
            rewards: spread(&mut set.rewards.iter().map(|&r| r.into())),
            returns: spread(
                &mut episodes
                    .iter()
                    .map(|rows| set.rewards[rows.clone()].iter().map(|&r| f64::from(r)).sum()),
            ),
            states: states
                .fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], &x| [low.min(x), high.max(x)]),
            // A branch has two actions or more.
            branches: set.largest_actions().iter().map(|&most| (most + 1).max(2)).collect(),
            hash: format!("{:016x}", set.hash),
        }
    }

    fn to_text(&self, file: &str, taken: Option<&Offline>) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let three = |[low, mean, high]: [f64; 3]| format!("{low} to {high}, mean {mean:.4}");
        writeln!(out, "{file}")?;
        writeln!(out, "  format      {}", self.format)?;
        writeln!(out, "  transitions {}, {} state features", self.transitions, self.state_features)?;
        writeln!(
            out,
            "  episodes    {}: {} end terminated, {} truncated, {} of them both (termination wins)",
            self.episodes, self.terminated, self.truncated, self.both
        )?;
        writeln!(out, "  actions     fit model.branches = {:?}", self.branches)?;
        writeln!(out, "  rewards     {}", three(self.rewards))?;
        writeln!(out, "  returns     {} (sums of an episode's rewards)", three(self.returns))?;
        writeln!(out, "  states      {} to {}", self.states[0], self.states[1])?;
        writeln!(out, "  fnv1a       {}", self.hash)?;
        if let Some(data) = taken {
            writeln!(out, "\nWith these options:\n\n{}", data.text.trim_end())?;
            writeln!(out, "  verdict     `train` would use this data set")?;
        }
        Ok(text)
    }
}
