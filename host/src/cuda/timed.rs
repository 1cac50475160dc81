//! Graphs that are replayed one after the other with an event between them: what each takes within a real run.

use super::capture::quantile;
use super::exec::CudaExec;
use super::graph::Graph;
use super::stream::Event;
use crate::error::ExecError;

/// A sequence of graphs with room for the events of some rounds.
#[derive(Debug)]
pub struct TimedGraphs {
    graphs: Vec<Graph>,
    /// One before each graph of a round and one after the last.
    events: Vec<Event>,
    rounds: usize,
    done: usize,
}

impl TimedGraphs {
    /// For up to `rounds` timed rounds between two looks.
    ///
    /// Errors: [`ExecError::Cuda`] where the driver makes no event.
    pub fn new(exec: &CudaExec, graphs: Vec<Graph>, rounds: usize) -> Result<Self, ExecError> {
        let count = rounds * (graphs.len() + 1);
        let events = (0..count).map(|_| Event::timing(exec.gpu())).collect::<Result<_, _>>()?;
        Ok(Self { graphs, events, rounds, done: 0 })
    }

    /// Replays every graph once, in order; nobody waits. A round beyond the promised ones is not timed.
    pub fn replay(&mut self, exec: &mut CudaExec) -> Result<(), ExecError> {
        let each = self.graphs.len() + 1;
        let events = (self.done < self.rounds).then(|| &self.events[self.done * each..][..each]);
        for (i, graph) in self.graphs.iter().enumerate() {
            if let Some(events) = events {
                events[i].record(exec.main_stream())?;
            }
            graph.replay(exec)?;
        }
        if let Some(events) = events {
            events[each - 1].record(exec.main_stream())?;
            self.done += 1;
        }
        Ok(())
    }

    /// Waits for the timed rounds and returns each graph's median time in microseconds, from the event before it to the one
    /// after it; empty without rounds. The next round is the first one again.
    pub fn medians(&mut self, exec: &CudaExec) -> Result<Vec<f64>, ExecError> {
        if self.done == 0 {
            return Ok(Vec::new());
        }
        exec.synchronize()?;
        let each = self.graphs.len() + 1;
        let mut medians = Vec::with_capacity(self.graphs.len());
        for i in 0..self.graphs.len() {
            let mut times = (0..self.done)
                .map(|round| {
                    let events = &self.events[round * each + i..][..2];
                    events[1].microseconds_since(&events[0])
                })
                .collect::<Result<Vec<_>, _>>()?;
            times.sort_by(f64::total_cmp);
            medians.push(quantile(&times, 0.5));
        }
        self.done = 0;
        Ok(medians)
    }
}
