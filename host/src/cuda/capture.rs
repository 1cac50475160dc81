//! Capture of one stream into a graph, owned graph handles, and the timing of replays.

use std::ptr;
use std::rc::Rc;
use std::time::Instant;

use cust::sys::{CUgraph, CUgraphExec, CUstream};

use super::device::Gpu;
use super::driver::{self, check};
use super::stream::{Event, Stream};
use crate::error::CudaError;

/// A capture under way. Dropped without [`Capture::finish`], it is ended and what it recorded discarded, so that
/// an error or a panic inside `record` leaves a usable stream.
#[derive(Debug)]
pub struct Capture {
    stream: CUstream,
    ended: bool,
}

impl Capture {
    /// Starts recording what is issued on the stream, and on every stream that comes to wait for it.
    pub fn begin(stream: &Stream) -> Result<Self, CudaError> {
        let stream = stream.raw();
        // SAFETY: `stream` is alive; the caller's executor keeps it so until the capture has ended.
        let code = unsafe { driver::cuStreamBeginCapture_v2(stream, driver::CAPTURE_RELAXED) };
        check(code, "cuStreamBeginCapture", String::new)?;
        Ok(Self { stream, ended: false })
    }

    /// Ends the capture.
    pub fn finish(mut self) -> Result<GraphHandle, CudaError> {
        self.end()
    }

    fn end(&mut self) -> Result<GraphHandle, CudaError> {
        self.ended = true;
        let mut graph = GraphHandle(ptr::null_mut());
        // SAFETY: `stream` is alive and capturing; `graph` is a live out-parameter.
        let code = unsafe { driver::cuStreamEndCapture(self.stream, &mut graph.0) };
        check(code, "cuStreamEndCapture", String::new)?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.ended {
            // A capture that is given up is usually unjoined or invalid; that it is, is not news.
            if let Err(error) = self.end() {
                tracing::debug!("an abandoned capture: {error}");
            }
        }
    }
}

/// An owned graph.
#[derive(Debug)]
pub struct GraphHandle(CUgraph);

impl GraphHandle {
    /// The driver's handle, alive as long as this value.
    pub fn raw(&self) -> CUgraph {
        self.0
    }

    /// A graph without nodes.
    pub fn new() -> Result<Self, CudaError> {
        let mut graph = Self(ptr::null_mut());
        // SAFETY: `graph` is a live out-parameter.
        check(unsafe { driver::cuGraphCreate(&mut graph.0, 0) }, "cuGraphCreate", String::new)?;
        Ok(graph)
    }

    /// Makes an executable graph of it.
    pub fn instantiate(&self) -> Result<ExecHandle, CudaError> {
        let mut exec = ExecHandle(ptr::null_mut());
        // SAFETY: the graph is alive and `exec` a live out-parameter.
        let code = unsafe { driver::cuGraphInstantiateWithFlags(&mut exec.0, self.0, 0) };
        check(code, "cuGraphInstantiateWithFlags", String::new)?;
        Ok(exec)
    }
}

impl Drop for GraphHandle {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: made by a capture or by `new` and destroyed once; executable graphs made of it live on their own.
        if let Err(error) = check(unsafe { driver::cuGraphDestroy(self.0) }, "cuGraphDestroy", String::new) {
            tracing::warn!("{error}");
        }
    }
}

/// An owned executable graph.
#[derive(Debug)]
pub struct ExecHandle(CUgraphExec);

impl ExecHandle {
    /// The driver's handle, alive as long as this value.
    pub fn raw(&self) -> CUgraphExec {
        self.0
    }

    /// Moves what the graph needs to the device ahead of the first launch.
    pub fn upload(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are alive.
        check(unsafe { driver::cuGraphUpload(self.0, stream.raw()) }, "cuGraphUpload", String::new)
    }

    /// Launches it on a stream.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are alive; the driver orders launches of one graph after each other.
        check(unsafe { driver::cuGraphLaunch(self.0, stream.raw()) }, "cuGraphLaunch", String::new)
    }
}

impl Drop for ExecHandle {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: made by `instantiate`, destroyed once; a launch under way finishes first.
        if let Err(error) =
            check(unsafe { driver::cuGraphExecDestroy(self.0) }, "cuGraphExecDestroy", String::new)
        {
            tracing::warn!("{error}");
        }
    }
}

/// Times of graph replays.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Device time of each replay, microseconds, ascending: from the end of the one before to its own end.
    pub replays: Vec<f64>,
    /// Host time of each launch call, microseconds, ascending.
    pub host: Vec<f64>,
}

impl Timing {
    /// Median device time, microseconds.
    pub fn median(&self) -> f64 {
        quantile(&self.replays, 0.5)
    }

    /// 5% and 95% quantiles of the device time, microseconds.
    pub fn spread(&self) -> (f64, f64) {
        (quantile(&self.replays, 0.05), quantile(&self.replays, 0.95))
    }

    /// Median host time of a launch, microseconds.
    pub fn host_median(&self) -> f64 {
        quantile(&self.host, 0.5)
    }
}

/// The q-quantile of ascending values (nearest rank); NaN without values.
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    match ascending.len() {
        0 => f64::NAN,
        count => ascending[(q * (count - 1) as f64).round() as usize],
    }
}

/// Replays of which the driver can hold many in its queue without the host waiting for room.
const BATCH: usize = 200;

/// Replays the graph `warmup + count` times and times the last `count`.
///
/// Launches are queued behind each other, with an event between them, so that a replay's time is from the end of
/// the one before to its own end and the host's launch time stays hidden as long as it is the shorter one.
pub fn time_replays(
    gpu: &Rc<Gpu>,
    stream: &Stream,
    exec: &ExecHandle,
    warmup: usize,
    count: usize,
) -> Result<Timing, CudaError> {
    for _ in 0..warmup {
        exec.launch(stream)?;
    }
    stream.synchronize()?;
    let events = (0..=BATCH.min(count)).map(|_| Event::timing(gpu)).collect::<Result<Vec<_>, _>>()?;
    let (mut replays, mut host) = (Vec::with_capacity(count), Vec::with_capacity(count));
    while replays.len() < count {
        let batch = BATCH.min(count - replays.len());
        // One untimed launch fills the queue: before it the device is idle and would wait for the host.
        exec.launch(stream)?;
        events[0].record(stream)?;
        for event in &events[1..=batch] {
            let start = Instant::now();
            exec.launch(stream)?;
            host.push(start.elapsed().as_secs_f64() * 1e6);
            event.record(stream)?;
        }
        stream.synchronize()?;
        for pair in events[..=batch].windows(2) {
            replays.push(pair[1].microseconds_since(&pair[0])?);
        }
    }
    replays.sort_by(f64::total_cmp);
    host.sort_by(f64::total_cmp);
    Ok(Timing { replays, host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let values = [1.0, 2.0, 3.0, 4.0, 100.0];
        assert_eq!(quantile(&values, 0.5), 3.0);
        assert_eq!((quantile(&values, 0.05), quantile(&values, 0.95)), (1.0, 100.0));
        assert!(quantile(&[], 0.5).is_nan());
        let timing = Timing { replays: values.to_vec(), host: vec![2.0, 3.0, 9.0] };
        assert_eq!((timing.median(), timing.spread(), timing.host_median()), (3.0, (1.0, 100.0), 3.0));
    }
}
