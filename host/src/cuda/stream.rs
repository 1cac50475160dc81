//! Streams and events, owned.
//!
//! `cust::stream::Stream` drops the non-blocking flag and `cust`'s wait consumes the event, so these are raw.

use std::ptr;
use std::rc::Rc;

use cust::sys::{CUevent, CUstream};

use super::device::Gpu;
use super::driver::{self, check};
use crate::error::CudaError;

/// A non-blocking stream.
#[derive(Debug)]
pub struct Stream {
    raw: CUstream,
    label: String,
    _gpu: Rc<Gpu>,
}

impl Stream {
    /// Makes a stream that errors call `label`. It has no priority: a graph does not look at those of its nodes' streams unless
    /// it is told to, and with them steps took longer (docs/BENCHMARKS.md).
    pub fn new(gpu: &Rc<Gpu>, label: impl Into<String>) -> Result<Self, CudaError> {
        let (mut raw, label) = (ptr::null_mut(), label.into());
        let flags = driver::STREAM_NON_BLOCKING;
        // SAFETY: `raw` is a live out-parameter; the context is current on this thread.
        let code = unsafe { driver::cuStreamCreate(&mut raw, flags) };
        check(code, "cuStreamCreate", || label.clone())?;
        Ok(Self { raw, label, _gpu: gpu.clone() })
    }

    /// The driver's handle, alive as long as this value.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// Waits until everything issued on it is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: `raw` is alive.
        check(unsafe { driver::cuStreamSynchronize(self.raw) }, "cuStreamSynchronize", || self.label.clone())
    }

    /// What is issued from now on waits for what the event recorded last.
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: stream and event are alive; the driver reads the event's state during the call.
        let code = unsafe { driver::cuStreamWaitEvent(self.raw, event.raw, 0) };
        check(code, "cuStreamWaitEvent", || self.label.clone())
    }

    /// Whether a capture is under way on it.
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let mut status = 0;
        // SAFETY: `raw` is alive and `status` a live out-parameter.
        let code = unsafe { driver::cuStreamIsCapturing(self.raw, &mut status) };
        check(code, "cuStreamIsCapturing", || self.label.clone())?;
        Ok(status == driver::CAPTURE_ACTIVE)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: `raw` was made by `new` and is used by nobody else; work still under way finishes.
        let code = unsafe { driver::cuStreamDestroy_v2(self.raw) };
        if let Err(error) = check(code, "cuStreamDestroy", || self.label.clone()) {
            tracing::warn!("{error}");
        }
    }
}

/// An event.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    _gpu: Rc<Gpu>,
}

impl Event {
    /// For ordering only.
    pub fn ordering(gpu: &Rc<Gpu>) -> Result<Self, CudaError> {
        Self::new(gpu, driver::EVENT_DISABLE_TIMING)
    }

    /// Records a time too.
    pub fn timing(gpu: &Rc<Gpu>) -> Result<Self, CudaError> {
        Self::new(gpu, driver::EVENT_DEFAULT)
    }

    fn new(gpu: &Rc<Gpu>, flags: u32) -> Result<Self, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live out-parameter; the context is current on this thread.
        check(unsafe { driver::cuEventCreate(&mut raw, flags) }, "cuEventCreate", String::new)?;
        Ok(Self { raw, _gpu: gpu.clone() })
    }

    /// Marks this point of the stream.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: event and stream are alive.
        let code = unsafe { driver::cuEventRecord(self.raw, stream.raw) };
        check(code, "cuEventRecord", || stream.label.clone())
    }

    /// Waits on the host until the marked point has been reached.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: `raw` is alive.
        check(unsafe { driver::cuEventSynchronize(self.raw) }, "cuEventSynchronize", String::new)
    }

    /// Microseconds from `start` to this event, both recorded with times and reached.
    pub fn microseconds_since(&self, start: &Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive and `milliseconds` is a live out-parameter.
        let code = unsafe { driver::cuEventElapsedTime(&mut milliseconds, start.raw, self.raw) };
        check(code, "cuEventElapsedTime", String::new)?;
        Ok(1000.0 * f64::from(milliseconds))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: `raw` was made by `new`; the driver keeps what pending waits need.
        let code = unsafe { driver::cuEventDestroy_v2(self.raw) };
        if let Err(error) = check(code, "cuEventDestroy", String::new) {
            tracing::warn!("{error}");
        }
    }
}
