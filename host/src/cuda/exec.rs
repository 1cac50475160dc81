//! Runs and records work on the GPU: a lane is a stream.

use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_std::{Buf, Kernel, KernelDecl, ParamWords};

use super::device::Gpu;
use super::driver::{self, check};
use super::images::KernelImages;
use super::memory::{Arena, MemoryReport};
use super::module::Function;
use super::order_cache::OrderCache;
use super::pinned::PinnedBlock;
use super::stream::{Event, Stream};
use crate::cublaslt::cache::PlanTable;
use crate::cublaslt::library::CublasLtLibrary;
use crate::cublaslt::plan::WORKSPACE_BYTES;
use crate::cublaslt::{Choice, CublasLt};
use crate::error::ExecError;
use crate::exec::{Element, Epilogue, Exec, Lane, Memory, Product, Touch};
use crate::order::Forks;

/// Who computes matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Products {
    /// cuBLASLt when it is found, else the Rust kernels, with a message saying why.
    #[default]
    Auto,
    /// cuBLASLt; an error when it is not found.
    CublasLt,
    /// The Rust kernels.
    Rust,
}

/// How a GPU is opened.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Index of the GPU.
    pub gpu: usize,
    /// Who computes products.
    pub products: Products,
    /// How cuBLASLt's algorithms are chosen.
    pub choice: Choice,
    /// Where measured choices are kept; nowhere when absent.
    pub plan_cache: Option<PathBuf>,
    /// Where orders of graphs' nodes are kept that `host profile --orders` found; none are known when absent.
    pub order_cache: Option<PathBuf>,
}

/// Computes a product with kernels: `step` hands its own in, which this layer does not know.
pub type RustProduct = fn(&mut CudaExec, Lane, &Product) -> Result<(), ExecError>;

/// A lane's stream, the event that others wait for, and the workspace of its products.
#[derive(Debug)]
struct LaneState {
    stream: Stream,
    /// Recorded on the stream by every `after` on it. One event is enough: a wait reads what was recorded last
    /// at the time of the call, so it can be recorded again at once.
    event: Event,
    /// Address of the products' workspace, allocated at the first product.
    workspace: Option<u64>,
}

/// An executor on one GPU: buffers, lanes, products. Graphs are captured from it and replayed on it.
pub struct CudaExec {
    id: u64,
    /// First, so that its handle goes before the context.
    cublaslt: Option<CublasLt>,
    orders: Option<OrderCache>,
    rust_product: Option<RustProduct>,
    pub(super) pinned: Vec<PinnedBlock>,
    arena: Arena,
    lanes: Vec<LaneState>,
    /// Rules of the capture under way.
    forks: Option<Forks>,
    sealed: bool,
    gpu: Rc<Gpu>,
}

impl fmt::Debug for CudaExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaExec").field("id", &self.id).field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl CudaExec {
    /// Opens a GPU with its kernels, lanes, and cuBLASLt where it is wanted.
    pub fn open(images: KernelImages, options: CudaOptions) -> Result<Self, ExecError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let gpu = Gpu::open(options.gpu, images)?;
        let library = match options.products {
            Products::Rust => None,
            Products::CublasLt => Some(CublasLtLibrary::load()?),
            Products::Auto => match CublasLtLibrary::load() {
                Ok(library) => Some(library),
                Err(error) => {
                    tracing::info!("matrix products run on the Rust kernels: {error}");
                    None
                }
            },
        };
        let CudaOptions { choice, plan_cache, order_cache, .. } = options;
        let orders = order_cache
            .map(|path| OrderCache::new(path, gpu.properties().name.clone(), gpu.driver().to_string()));
        let cublaslt = library.map(|library| CublasLt::new(&gpu, library, choice, plan_cache)).transpose()?;
        let lanes = (0..Lane::COUNT)
            .map(|lane| {
                let lane = Lane(lane as u8);
                let stream = Stream::new(&gpu, lane.to_string())?;
                Ok(LaneState { stream, event: Event::ordering(&gpu)?, workspace: None })
            })
            .collect::<Result<_, ExecError>>()?;
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            cublaslt,
            orders,
            rust_product: None,
            pinned: Vec::new(),
            arena: Arena::new(&gpu),
            lanes,
            forks: None,
            sealed: false,
            gpu,
        })
    }

    /// The known orders of graphs' nodes, if any were asked for.
    pub fn orders(&self) -> Option<&OrderCache> {
        self.orders.as_ref()
    }

    /// Sets the kernels that compute products where cuBLASLt is absent or lacks the epilogue.
    pub fn set_rust_product(&mut self, product: RustProduct) {
        self.rust_product = Some(product);
    }

    /// Differs between executors of one process: graphs and handles belong to one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The GPU.
    pub fn gpu(&self) -> &Rc<Gpu> {
        &self.gpu
    }

    /// cuBLASLt, where it is in use.
    pub fn cublaslt(&self) -> Option<&CublasLt> {
        self.cublaslt.as_ref()
    }

    /// cuBLASLt's algorithms chosen so far: part of a run and of its checkpoints.
    pub fn plan_table(&self) -> Option<PlanTable> {
        self.cublaslt.as_ref().map(CublasLt::table)
    }

    /// From now on an allocation is an error. Called when the set-up is complete.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    /// Allows allocations again, between two phases of a run.
    pub fn unseal(&mut self) {
        self.sealed = false;
    }

    /// Every buffer with its label, and what the device has left.
    pub fn memory_report(&self) -> Result<MemoryReport, ExecError> {
        Ok(self.arena.report()?)
    }

    /// Waits for everything issued so far.
    pub fn synchronize(&self) -> Result<(), ExecError> {
        if self.is_capturing() {
            return Err(ExecError::InsideCapture { what: "a wait for the device" });
        }
        Ok(self.gpu.synchronize()?)
    }

    /// Whether a capture is under way.
    pub fn is_capturing(&self) -> bool {
        self.forks.is_some()
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(super) fn main_stream(&self) -> &Stream {
        &self.lanes[0].stream
    }

    pub(super) fn forks_mut(&mut self) -> &mut Option<Forks> {
        &mut self.forks
    }

    /// Writes measured algorithms to the plan cache.
    pub(super) fn save_plans(&mut self) {
        if let Some(cublaslt) = &mut self.cublaslt {
            cublaslt.save();
        }
    }

    pub(super) fn main_and_pinned(&mut self, index: usize) -> (&Stream, &mut PinnedBlock) {
        (&self.lanes[0].stream, &mut self.pinned[index])
    }

    pub(super) fn lane_and_pinned(
        &mut self,
        lane: Lane,
        index: usize,
    ) -> Result<(&Stream, &mut PinnedBlock), ExecError> {
        Ok((&self.lanes[lane.index()?].stream, &mut self.pinned[index]))
    }

    /// Whether memory may be reserved now.
    pub(super) fn allow_alloc(&self, label: &str, bytes: usize) -> Result<(), ExecError> {
        let when = match (self.is_capturing(), self.sealed) {
            (true, _) => "during a capture",
            (false, true) => "after the executor was sealed",
            (false, false) => return Ok(()),
        };
        Err(ExecError::Sealed { label: label.to_owned(), bytes, when })
    }

    pub(super) fn forbid_in_capture(
        &self,
        operation: &'static str,
        label: impl FnOnce() -> String,
    ) -> Result<(), ExecError> {
        if self.is_capturing() {
            Err(ExecError::HostWaitInCapture { operation, label: label() })
        } else {
            Ok(())
        }
    }

    /// Notes work on a lane; says whether it is being captured. Under capture the lane must have been forked from
    /// the main one, or the work would run at once instead of becoming part of the graph.
    pub(super) fn note(&mut self, lane: Lane, label: &str) -> Result<bool, ExecError> {
        lane.index()?;
        match &mut self.forks {
            Some(forks) => forks.issue(lane, label).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether every buffer argument is memory of this executor.
    pub(super) fn check_buffers<K: Kernel>(&self, kernel: &K) -> Result<(), ExecError> {
        for access in kernel.accesses().into_iter().filter(|access| access.bytes > 0) {
            self.arena.holder(access.addr, access.bytes, || {
                format!("kernel `{}`, argument `{}`", K::DECL.name, access.name)
            })?;
        }
        Ok(())
    }

    /// The compiled kernel, its contract and buffers checked.
    pub(super) fn prepare<K: Kernel>(&self, kernel: &K) -> Result<Function, ExecError> {
        kernel.check()?;
        self.check_buffers(kernel)?;
        self.gpu.function(K::DECL.name, kernel.shared_bytes())
    }

    /// Issues a product of cuBLASLt with or without its bias epilogue.
    fn library_product(
        &mut self,
        lane: Lane,
        product: &Product,
        bias: Option<Buf<f32>>,
    ) -> Result<(), ExecError> {
        let (index, label) = (lane.index()?, product.label);
        let planned =
            self.cublaslt.as_ref().is_some_and(|library| library.is_planned(product, bias.is_some()));
        if !planned {
            if self.is_capturing() {
                return Err(ExecError::Unplanned { label, lane, what: "plan" });
            }
            self.allow_alloc(&format!("scratch to plan `{label}`"), WORKSPACE_BYTES)?;
            if let Some(cublaslt) = &mut self.cublaslt {
                cublaslt.plan(product, bias.is_some())?;
            }
        }
        let workspace = self.workspace(lane, label)?;
        self.note(lane, label)?;
        let Some(cublaslt) = &self.cublaslt else {
            return Err(ExecError::NoBackend { label, what: "cuBLASLt" });
        };
        let stream = self.lanes[index].stream.raw();
        // SAFETY: `Exec::product` has checked the product and that each operand (the bias among them) lies in the
        // arena; the lane's own workspace of WORKSPACE_BYTES is used by its stream alone.
        unsafe { cublaslt.run(product, bias.map(Buf::addr), workspace, stream) }
    }

    /// The workspace of a lane's products, allocated at the first one.
    fn workspace(&mut self, lane: Lane, label: &'static str) -> Result<u64, ExecError> {
        let index = lane.index()?;
        if let Some(workspace) = self.lanes[index].workspace {
            return Ok(workspace);
        }
        if self.is_capturing() {
            return Err(ExecError::Unplanned { label, lane, what: "workspace" });
        }
        let name = format!("cuBLASLt workspace of {lane}");
        self.allow_alloc(&name, WORKSPACE_BYTES)?;
        let workspace = self.arena.alloc(&name, WORKSPACE_BYTES)?;
        self.lanes[index].workspace = Some(workspace);
        Ok(workspace)
    }
}

impl Exec for CudaExec {
    fn launch<K: Kernel>(&mut self, lane: Lane, kernel: &K) -> Result<(), ExecError> {
        let function = self.prepare(kernel)?;
        self.note(lane, K::DECL.name)?;
        let (grid, shared_bytes) = (kernel.grid(), kernel.shared_bytes());
        let mut params = ParamWords::new();
        kernel.params(&mut params);
        let mut pointers = params.pointers();
        let stream = &self.lanes[lane.index()?].stream;
        // SAFETY: the parameters are the kernel's own, one word each, alive during the call; each buffer among
        // them was found by `prepare` to lie inside one allocation of the arena, which outlives the launch, and its
        // length to fulfil the kernel's contract.
        let code = unsafe {
            driver::cuLaunchKernel(
                function.raw,
                grid.x,
                grid.y,
                grid.z,
                K::DECL.block,
                1,
                1,
                shared_bytes,
                stream.raw(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(code, "cuLaunchKernel", || {
            let (name, block) = (K::DECL.name, K::DECL.block);
            format!(
                "kernel `{name}`, grid {grid}, block {block}, {shared_bytes} bytes of shared memory, {lane}"
            )
        })?;
        Ok(())
    }

    fn launch_touching<K: Kernel>(&mut self, lane: Lane, kernel: &K, _: &[Touch]) -> Result<(), ExecError> {
        self.launch(lane, kernel)
    }

    fn has(&self, kernel: &KernelDecl) -> bool {
        self.gpu.has(kernel)
    }

    fn product(&mut self, lane: Lane, product: &Product) -> Result<(), ExecError> {
        product.check()?;
        for operand in product.operands() {
            let (extent, name) = (operand.touch.extent, operand.name);
            self.arena.holder(extent.address, extent.span(), || format!("{product}, operand {name}"))?;
        }
        match (&self.cublaslt, product.epilogue) {
            (Some(_), Epilogue::None) => self.library_product(lane, product, None),
            (Some(_), Epilogue::Bias(bias)) => self.library_product(lane, product, Some(bias)),
            _ => match self.rust_product {
                Some(rust_product) => rust_product(self, lane, product),
                None => {
                    Err(ExecError::NoBackend { label: product.label, what: "a Rust kernel for products" })
                }
            },
        }
    }

    fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        let (to, from) = (lane.index()?, on.index()?);
        if to == from {
            return Ok(());
        }
        if let Some(forks) = &mut self.forks {
            forks.after(lane, on)?;
        }
        let from = &self.lanes[from];
        from.event.record(&from.stream)?;
        Ok(self.lanes[to].stream.wait(&from.event)?)
    }
}

impl Memory for CudaExec {
    fn alloc<T: Element>(&mut self, label: &str, len: usize) -> Result<Buf<T>, ExecError> {
        // More than the address space is refused by the allocator as any size that does not fit.
        let bytes = len.saturating_mul(size_of::<T>());
        self.allow_alloc(label, bytes)?;
        Ok(Buf::from_raw(self.arena.alloc(label, bytes)?, len))
    }

    fn upload<T: Element>(&mut self, to: Buf<T>, from: &[T]) -> Result<(), ExecError> {
        if to.len() != from.len() {
            return Err(ExecError::Length { operation: "upload", buffer: to.len(), host: from.len() });
        }
        self.forbid_in_capture("upload", || format!("{to:?}"))?;
        self.arena.upload(to.addr(), bytemuck::cast_slice(from))
    }

    fn download<T: Element>(&mut self, from: Buf<T>) -> Result<Vec<T>, ExecError> {
        self.forbid_in_capture("download", || format!("{from:?}"))?;
        let mut out = vec![T::default(); from.len()];
        self.arena.download(from.addr(), bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }
}

impl Drop for CudaExec {
    fn drop(&mut self) {
        // Nothing that the device still uses may be freed.
        if let Err(error) = self.gpu.synchronize() {
            tracing::warn!("before closing the GPU: {error}");
        }
    }
}
