//! A recorded step as one executable graph.

use std::ffi::CString;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cuda_std::{Kernel, ParamWords};
use cust::sys::CUDA_KERNEL_NODE_PARAMS;

use super::capture::{Capture, ExecHandle, GraphHandle, Timing, time_replays};
use super::device::Gpu;
use super::driver::{self, check};
use super::exec::CudaExec;
use super::nodes::{self, Node, NodeKind};
use super::orders::{self, Order};
use crate::error::ExecError;
use crate::order::Forks;

/// An executable graph, valid on the executor it was captured from, whose buffers it holds the addresses of.
#[derive(Debug)]
pub struct Graph {
    exec: ExecHandle,
    graph: GraphHandle,
    nodes: Vec<Node>,
    owner: u64,
    capture_time: Duration,
    instantiate_time: Duration,
    _gpu: Rc<Gpu>,
}

impl Graph {
    /// Records what `record` issues, from the main lane and the lanes it forks, and makes an executable graph of it.
    ///
    /// Nothing runs. `record` must have run eagerly before: plans and workspaces exist by then, and the kernels are
    /// loaded. Errors: whatever `record` returns; an allocation or a host wait inside it; a lane that was not forked
    /// from the main lane or is not joined to it at the end; [`ExecError::Cuda`]. After an error the executor is as
    /// before.
    pub fn capture(
        exec: &mut CudaExec,
        record: impl FnOnce(&mut CudaExec) -> Result<(), ExecError>,
    ) -> Result<Self, ExecError> {
        exec.save_plans();
        let start = Instant::now();
        let scope = Scope::begin(exec)?;
        record(scope.exec)?;
        let graph = scope.finish()?;
        let capture_time = start.elapsed();

        let start = Instant::now();
        let executable = graph.instantiate()?;
        executable.upload(exec.main_stream())?;
        let instantiate_time = start.elapsed();
        // SAFETY: `graph` is alive.
        let nodes = unsafe { nodes::list(graph.raw(), exec.gpu()) }?;
        let (owner, gpu) = (exec.id(), exec.gpu().clone());
        Ok(Self { exec: executable, graph, nodes, owner, capture_time, instantiate_time, _gpu: gpu })
    }

    /// A graph of the same launches added in another order (`orders`): the same results, in another time. Nodes keep their
    /// indices.
    ///
    /// Errors: a node that is no launch of a kernel of this program; an order that does not keep the dependencies;
    /// [`ExecError::Cuda`].
    pub fn in_order(&self, exec: &CudaExec, order: &Order) -> Result<Self, ExecError> {
        self.check_owner(exec, "another order")?;
        let (graph, nodes) = orders::build(&self.nodes, order)?;
        let start = Instant::now();
        let executable = graph.instantiate()?;
        executable.upload(exec.main_stream())?;
        let instantiate_time = start.elapsed();
        let Self { owner, capture_time, ref _gpu, .. } = *self;
        Ok(Self { exec: executable, graph, nodes, owner, capture_time, instantiate_time, _gpu: _gpu.clone() })
    }

    /// The graph in the fastest order that is known for it (`CudaOptions::order_cache`), or as it is.
    pub fn in_known_order(self, exec: &CudaExec) -> Result<Self, ExecError> {
        let Some((cache, (order, us))) =
            exec.orders().and_then(|cache| Some((cache, cache.load(&self.nodes)?)))
        else {
            return Ok(self);
        };
        tracing::info!("launches in the order of {}, {us:.1} us when it was found", cache.path().display());
        self.in_order(exec, &order)
    }

    /// Launches the graph on the main lane: after everything issued there before. Work on other lanes is ordered
    /// with it by [`crate::exec::Exec::after`] on the main lane.
    pub fn replay(&self, exec: &mut CudaExec) -> Result<(), ExecError> {
        self.check_owner(exec, "a replay")?;
        Ok(self.exec.launch(exec.main_stream())?)
    }

    /// Replays the graph `warmup + count` times and times the last `count`, on the device and on the host.
    pub fn time(&self, exec: &mut CudaExec, warmup: usize, count: usize) -> Result<Timing, ExecError> {
        self.check_owner(exec, "a timed replay")?;
        exec.synchronize()?;
        Ok(time_replays(exec.gpu(), exec.main_stream(), &self.exec, warmup, count)?)
    }

    fn check_owner(&self, exec: &CudaExec, what: &'static str) -> Result<(), ExecError> {
        match (self.owner == exec.id(), exec.is_capturing()) {
            (false, _) => Err(ExecError::ForeignGraph),
            (true, true) => Err(ExecError::InsideCapture { what }),
            (true, false) => Ok(()),
        }
    }

    /// The nodes, in the driver's order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Number of nodes on the longest chain of dependencies.
    pub fn longest_chain(&self) -> usize {
        nodes::longest_chain(&self.nodes)
    }

    /// Host time from the start of the capture to the finished graph.
    pub fn capture_time(&self) -> Duration {
        self.capture_time
    }

    /// Host time to make the graph executable and move it to the device.
    pub fn instantiate_time(&self) -> Duration {
        self.instantiate_time
    }

    /// Writes the graph in DOT's language, with kernel names and launch sizes.
    pub fn write_dot(&self, path: &Path) -> Result<(), ExecError> {
        let fail =
            |problem: &str| ExecError::File { path: path.display().to_string(), problem: problem.into() };
        let text = path.to_str().ok_or_else(|| fail("the path is not UTF-8"))?;
        let name = CString::new(text).map_err(|_| fail("the path holds a NUL byte"))?;
        let flags = driver::DOT_KERNEL_NODE_PARAMS | driver::DOT_RUNTIME_TYPES;
        // SAFETY: the graph is alive and `name` NUL-terminated.
        let code = unsafe { driver::cuGraphDebugDotPrint(self.graph.raw(), name.as_ptr(), flags) };
        Ok(check(code, "cuGraphDebugDotPrint", || text.to_owned())?)
    }

    /// Replaces the arguments and the grid of one kernel node by those of another launch of the same kernel, for
    /// all later replays.
    ///
    /// What changes every step is read from device memory instead; this is for what changes rarely, such as the
    /// staging set that the next replays read.
    pub fn set_kernel<K: Kernel>(
        &mut self,
        exec: &CudaExec,
        node: usize,
        kernel: &K,
    ) -> Result<(), ExecError> {
        self.check_owner(exec, "a node update")?;
        let fail = |problem: String| Err(ExecError::Node { node, problem });
        let Some(target) = self.nodes.get_mut(node) else {
            return fail(format!("the graph has {} nodes", self.nodes.len()));
        };
        if target.kind != NodeKind::Kernel || target.name != K::DECL.name {
            return fail(format!("it is `{target}`, not a launch of `{}`", K::DECL.name));
        }
        let function = exec.prepare(kernel)?;
        let (grid, shared_bytes) = (kernel.grid(), kernel.shared_bytes());
        let mut words = ParamWords::new();
        kernel.params(&mut words);
        let mut pointers = words.pointers();
        let params = CUDA_KERNEL_NODE_PARAMS {
            func: function.raw,
            gridDimX: grid.x,
            gridDimY: grid.y,
            gridDimZ: grid.z,
            blockDimX: K::DECL.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared_bytes,
            kernelParams: pointers.as_mut_ptr(),
            extra: std::ptr::null_mut(),
        };
        // SAFETY: `target.raw` is a node of the graph this executable was made of; `params` and the words it points
        // to are alive, and the driver copies them; each buffer among them lies in the executor's arena, as
        // `prepare` has checked.
        let code = unsafe { driver::cuGraphExecKernelNodeSetParams(self.exec.raw(), target.raw, &params) };
        check(code, "cuGraphExecKernelNodeSetParams", || {
            format!("node {node}, kernel `{}`, grid {grid}", K::DECL.name)
        })?;
        if let Some(size) = &mut target.size {
            size.grid = [grid.x, grid.y, grid.z];
            size.shared_bytes = shared_bytes;
        }
        Ok(())
    }
}

/// A capture under way on an executor; dropped early, it leaves the executor as it was.
struct Scope<'a> {
    exec: &'a mut CudaExec,
    capture: Option<Capture>,
}

impl<'a> Scope<'a> {
    fn begin(exec: &'a mut CudaExec) -> Result<Self, ExecError> {
        if exec.is_capturing() {
            return Err(ExecError::InsideCapture { what: "a capture" });
        }
        let capture = Capture::begin(exec.main_stream())?;
        *exec.forks_mut() = Some(Forks::default());
        Ok(Self { exec, capture: Some(capture) })
    }

    fn finish(mut self) -> Result<GraphHandle, ExecError> {
        if let Some(forks) = self.exec.forks_mut() {
            forks.finish()?;
        }
        let capture = self.capture.take().ok_or(ExecError::InsideCapture { what: "a second end" })?;
        Ok(capture.finish()?)
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        // Ends the capture first, if it is still under way.
        self.capture = None;
        *self.exec.forks_mut() = None;
    }
}
