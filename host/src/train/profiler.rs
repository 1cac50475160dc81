//! What the sections of a training step take within a run (`train --profile`).
//!
//! The last steps of an epoch but [`ROUNDS`] are timed as they always run, one graph each; the last ones section by
//! section, each section a graph of its own. The sections in order are the step: the same kernels on the same numbers, so a
//! profiled run's results are those of any other.

use anyhow::Context;

use crate::cuda::{CudaExec, Graph, TimedGraphs};
use crate::step::{Replay, Section, StepBuffers, StepShape, record, record_section};

/// Steps of an epoch that are timed in either way.
pub const ROUNDS: usize = 20;

/// Times of one epoch's last steps, microseconds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepProfile {
    /// Median of each section, one after the other.
    pub sections: Vec<(&'static str, f64)>,
    /// Median of the whole step as one graph.
    pub step: f64,
}

impl StepProfile {
    fn sum_of(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        self.sections.iter().filter(|(name, _)| wanted(name)).map(|(_, us)| us).sum()
    }

    /// The lines of SPEC section 5. `fused` is everything between sampling and the update; `guard` the update, which holds
    /// the norms and the guard against what is not finite.
    pub fn text(&self) -> String {
        let (sample, update) = (Section::Sample.name(), Section::Update.name());
        let sections: Vec<String> =
            self.sections.iter().map(|(name, us)| format!("{name}={us:.1}")).collect();
        let serial = self.sum_of(|_| true);
        format!(
            "child graphs: {}\nstep breakdown: sample={:.1} fused={:.1} guard={:.1}\nserial {serial:.1} us, as one graph \
             {:.1} us: {:.0}% gained by its streams",
            sections.join(" "),
            self.sum_of(|name| name == sample),
            self.sum_of(|name| name != sample && name != update),
            self.sum_of(|name| name == update),
            self.step,
            100.0 * (1.0 - self.step / serial)
        )
    }
}

/// The graphs of a profiled run.
#[derive(Debug)]
pub struct Profiler {
    names: Vec<&'static str>,
    sections: TimedGraphs,
    whole: TimedGraphs,
}

impl Profiler {
    /// Captures the sections and the step; both have run eagerly before.
    pub fn new(
        exec: &mut CudaExec,
        shape: &StepShape,
        buffers: &StepBuffers,
        replay: &Replay,
    ) -> anyhow::Result<Self> {
        let (mut names, mut graphs) = (Vec::new(), Vec::new());
        for section in Section::ALL.into_iter().filter(|section| section.is_in(shape, true)) {
            let record = |exec: &mut CudaExec| record_section(exec, shape, buffers, Some(replay), section);
            let graph = Graph::capture(exec, record);
            graphs.push(graph.with_context(|| format!("capturing the section {}", section.name()))?);
            names.push(section.name());
        }
        let whole = Graph::capture(exec, |exec| record(exec, shape, buffers, Some(replay)))
            .context("capturing the training step")?;
        let sections = TimedGraphs::new(exec, graphs, ROUNDS)?;
        Ok(Self { names, sections, whole: TimedGraphs::new(exec, vec![whole], ROUNDS)? })
    }

    /// Runs a training step that is `left` steps before the end of its epoch, timed; false if it is not one of those.
    pub fn step(&mut self, exec: &mut CudaExec, left: usize) -> anyhow::Result<bool> {
        match left {
            1..=ROUNDS => self.sections.replay(exec)?,
            _ if left <= 2 * ROUNDS => self.whole.replay(exec)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The epoch's figures; `None` where no step was timed in one of the two ways.
    pub fn take(&mut self, exec: &CudaExec) -> anyhow::Result<Option<StepProfile>> {
        let (sections, whole) = (self.sections.medians(exec)?, self.whole.medians(exec)?);
        let Some(&step) = whole.first() else { return Ok(None) };
        if sections.is_empty() {
            return Ok(None);
        }
        Ok(Some(StepProfile { sections: self.names.iter().copied().zip(sections).collect(), step }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_add_up() {
        let sections = vec![("sample", 5.0), ("forward", 60.0), ("loss", 15.0), ("adam", 20.0)];
        let profile = StepProfile { sections, step: 80.0 };
        assert_eq!(
            profile.text(),
            "child graphs: sample=5.0 forward=60.0 loss=15.0 adam=20.0\nstep breakdown: sample=5.0 fused=75.0 guard=20.0\n\
             serial 100.0 us, as one graph 80.0 us: 20% gained by its streams"
        );
    }
}
