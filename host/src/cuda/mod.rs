//! The GPU: device, memory, lanes, graphs. Built on `cust` for context and types and on the driver's functions for
//! everything that needs its codes, its non-blocking streams or graphs (see `driver`).

pub mod capture;
pub mod device;
pub mod driver;
pub mod exec;
pub mod graph;
pub mod images;
pub mod memory;
pub mod module;
pub mod nodes;
pub mod order_cache;
pub mod orders;
pub mod pinned;
pub mod stream;
pub mod system;
pub mod timed;

pub use capture::Timing;
pub use device::Gpu;
pub use exec::{CudaExec, CudaOptions, Products, RustProduct};
pub use graph::Graph;
pub use images::{KernelImage, KernelImages};
pub use memory::MemoryReport;
pub use nodes::{Node, NodeKind};
pub use pinned::{Lent, Pinned};
pub use system::{DriverVersion, GpuProperties};
pub use timed::TimedGraphs;
