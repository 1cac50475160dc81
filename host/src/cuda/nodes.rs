//! What a captured graph consists of: its nodes with kernel names, sizes and dependencies.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem;
use std::ptr;

use cust::sys::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphNode};

use super::device::Gpu;
use super::driver::{self, Code, check};
use crate::error::CudaError;

/// `CUDA_ERROR_LOSSY_QUERY`: the graph has edges with data, which the older query cannot return.
const LOSSY_QUERY: Code = 402;

/// Kind of a graph node (`CUgraphNodeType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are named as the driver names them")]
pub enum NodeKind {
    Kernel,
    Memcpy,
    Memset,
    Host,
    Graph,
    Empty,
    WaitEvent,
    EventRecord,
    /// A kind of a later driver.
    Other(c_int),
}

impl From<c_int> for NodeKind {
    fn from(kind: c_int) -> Self {
        match kind {
            0 => NodeKind::Kernel,
            1 => NodeKind::Memcpy,
            2 => NodeKind::Memset,
            3 => NodeKind::Host,
            4 => NodeKind::Graph,
            5 => NodeKind::Empty,
            6 => NodeKind::WaitEvent,
            7 => NodeKind::EventRecord,
            other => NodeKind::Other(other),
        }
    }
}

/// Size of a kernel node's launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchSize {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
}

/// One node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// Name of the kernel; empty for other kinds and where the driver does not tell.
    pub name: String,
    /// Size of the launch, for kernels.
    pub size: Option<LaunchSize>,
    /// Indices of the nodes it waits for.
    pub dependencies: Vec<usize>,
    /// The driver's handle, alive as long as the graph.
    pub(super) raw: CUgraphNode,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)?;
        if let Some(LaunchSize { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes }) = self.size {
            write!(f, " grid {gx}x{gy}x{gz} block {bx}x{by}x{bz} shared {shared_bytes}")?;
        }
        write!(f, " after {:?}", self.dependencies)
    }
}

/// Number of nodes on the longest chain of dependencies: what bounds a step of small kernels.
pub fn longest_chain(nodes: &[Node]) -> usize {
    fn depth(nodes: &[Node], node: usize, known: &mut [usize]) -> usize {
        if known[node] == 0 {
            let before = nodes[node].dependencies.iter().map(|&before| depth(nodes, before, known)).max();
            known[node] = 1 + before.unwrap_or(0);
        }
        known[node]
    }
    let mut known = vec![0; nodes.len()];
    (0..nodes.len()).map(|node| depth(nodes, node, &mut known)).max().unwrap_or(0)
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`: kernels of libraries are `CUkernel`s, which the older structure cannot name.
#[repr(C)]
struct KernelNodeParams {
    function: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
    kernel: *mut c_void,
    context: *mut c_void,
}

/// `CUgraphEdgeData`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct EdgeData {
    ports_and_type: [u8; 8],
}

type GetParams = unsafe extern "C" fn(CUgraphNode, *mut KernelNodeParams) -> Code;
type GetName = unsafe extern "C" fn(*mut *const c_char, *mut c_void) -> Code;
type GetEdges =
    unsafe extern "C" fn(CUgraph, *mut CUgraphNode, *mut CUgraphNode, *mut EdgeData, *mut usize) -> Code;

/// Driver functions newer than `cust::sys`, where this driver has them.
struct Newer {
    params: Option<GetParams>,
    function_name: Option<GetName>,
    kernel_name: Option<GetName>,
    edges: Option<GetEdges>,
}

impl Newer {
    fn find() -> Self {
        // SAFETY: the driver returns the function of that name in its form of that CUDA version, whose C types
        // are those of the target; a function pointer has the size of a data pointer here.
        unsafe {
            Self {
                params: driver::newer_function(c"cuGraphKernelNodeGetParams", 12_000)
                    .map(|f| mem::transmute::<*mut c_void, GetParams>(f)),
                function_name: driver::newer_function(c"cuFuncGetName", 12_030)
                    .map(|f| mem::transmute::<*mut c_void, GetName>(f)),
                kernel_name: driver::newer_function(c"cuKernelGetName", 12_030)
                    .map(|f| mem::transmute::<*mut c_void, GetName>(f)),
                edges: driver::newer_function(c"cuGraphGetEdges", 12_030)
                    .map(|f| mem::transmute::<*mut c_void, GetEdges>(f)),
            }
        }
    }

    fn name(get: Option<GetName>, object: *mut c_void) -> Option<String> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: `object` is a function or kernel handle of the kind the getter wants, taken from a live node.
        let code = unsafe { get?(&mut name, object) };
        if code != driver::SUCCESS || name.is_null() {
            return None;
        }
        // SAFETY: on success a NUL-terminated string that lives as long as the module.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }
}

/// The nodes of a live graph.
///
/// # Safety
/// `graph` is alive.
pub(super) unsafe fn list(graph: CUgraph, gpu: &Gpu) -> Result<Vec<Node>, CudaError> {
    let mut count = 0;
    // SAFETY: the graph is alive; with a null array only the count is written.
    let code = unsafe { driver::cuGraphGetNodes(graph, ptr::null_mut(), &mut count) };
    check(code, "cuGraphGetNodes", String::new)?;
    let mut handles = vec![ptr::null_mut(); count];
    // SAFETY: `handles` has `count` entries.
    let code = unsafe { driver::cuGraphGetNodes(graph, handles.as_mut_ptr(), &mut count) };
    check(code, "cuGraphGetNodes", String::new)?;
    handles.truncate(count);

    let newer = Newer::find();
    let mut nodes = Vec::with_capacity(count);
    for &raw in &handles {
        let mut kind = 0;
        // SAFETY: `raw` is a node of the live graph.
        check(unsafe { driver::cuGraphNodeGetType(raw, &mut kind) }, "cuGraphNodeGetType", String::new)?;
        let kind = NodeKind::from(kind);
        let (name, size) = match kind {
            // SAFETY: `raw` is a kernel node of the live graph.
            NodeKind::Kernel => unsafe { kernel(raw, gpu, &newer) }?,
            _ => (String::new(), None),
        };
        nodes.push(Node { kind, name, size, dependencies: Vec::new(), raw });
    }
    let index: HashMap<CUgraphNode, usize> = handles.iter().enumerate().map(|(i, &raw)| (raw, i)).collect();
    // SAFETY: the graph is alive.
    for (from, to) in unsafe { edges(graph, &newer) }? {
        nodes[index[&to]].dependencies.push(index[&from]);
    }
    nodes.iter_mut().for_each(|node| node.dependencies.sort_unstable());
    Ok(nodes)
}

/// Name and size of a kernel node.
///
/// # Safety
/// `raw` is a kernel node of a live graph.
unsafe fn kernel(
    raw: CUgraphNode,
    gpu: &Gpu,
    newer: &Newer,
) -> Result<(String, Option<LaunchSize>), CudaError> {
    let mut params = KernelNodeParams {
        function: ptr::null_mut(),
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        params: ptr::null_mut(),
        extra: ptr::null_mut(),
        kernel: ptr::null_mut(),
        context: ptr::null_mut(),
    };
    match newer.params {
        Some(get) => {
            // SAFETY: `params` has the layout this form of the function fills.
            check(unsafe { get(raw, &mut params) }, "cuGraphKernelNodeGetParams", String::new)?;
        }
        None => {
            // SAFETY: the older structure is a prefix of ours: the same fields in the same order up to `extra`.
            let older: *mut CUDA_KERNEL_NODE_PARAMS = ptr::from_mut(&mut params).cast();
            let code = unsafe { driver::cuGraphKernelNodeGetParams(raw, older) };
            check(code, "cuGraphKernelNodeGetParams", String::new)?;
        }
    }
    let own = gpu.function_name(params.function).map(str::to_owned);
    let name = own
        .or_else(|| {
            Some(params.function)
                .filter(|f| !f.is_null())
                .and_then(|f| Newer::name(newer.function_name, f.cast()))
        })
        .or_else(|| {
            Some(params.kernel).filter(|k| !k.is_null()).and_then(|k| Newer::name(newer.kernel_name, k))
        });
    let KernelNodeParams { grid, block, shared_bytes, .. } = params;
    Ok((name.unwrap_or_default(), Some(LaunchSize { grid, block, shared_bytes })))
}

/// All edges as (from, to).
///
/// # Safety
/// `graph` is alive.
unsafe fn edges(graph: CUgraph, newer: &Newer) -> Result<Vec<(CUgraphNode, CUgraphNode)>, CudaError> {
    let null: *mut CUgraphNode = ptr::null_mut();
    let mut count = 0;
    // SAFETY: the graph is alive; with null arrays only the count is written.
    let code = unsafe { driver::cuGraphGetEdges(graph, null, null, &mut count) };
    let with_data = newer.edges.filter(|_| code == LOSSY_QUERY);
    if let Some(get) = with_data {
        // SAFETY: as above.
        let code = unsafe { get(graph, null, null, ptr::null_mut(), &mut count) };
        check(code, "cuGraphGetEdges", String::new)?;
    } else {
        check(code, "cuGraphGetEdges", String::new)?;
    }
    if count == 0 {
        return Ok(Vec::new()); // the driver refuses arrays of no entries
    }
    let (mut from, mut to) = (vec![ptr::null_mut(); count], vec![ptr::null_mut(); count]);
    let code = match with_data {
        Some(get) => {
            let mut data = vec![EdgeData::default(); count];
            // SAFETY: the three arrays have `count` entries.
            unsafe { get(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count) }
        }
        // SAFETY: both arrays have `count` entries.
        None => unsafe { driver::cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &mut count) },
    };
    check(code, "cuGraphGetEdges", String::new)?;
    Ok(from.into_iter().zip(to).take(count).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(dependencies: &[usize]) -> Node {
        let size = LaunchSize { grid: [4, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        Node {
            kind: NodeKind::Kernel,
            name: "k".into(),
            size: Some(size),
            dependencies: dependencies.to_vec(),
            raw: ptr::null_mut(),
        }
    }

    #[test]
    fn the_longest_chain_follows_dependencies() {
        // 0 -> 1 -> 3 -> 4, 0 -> 2 -> 4
        let nodes = [node(&[]), node(&[0]), node(&[0]), node(&[1]), node(&[2, 3])];
        assert_eq!(longest_chain(&nodes), 4);
        assert_eq!(longest_chain(&[]), 0);
        assert_eq!(nodes[4].to_string(), "Kernel k grid 4x1x1 block 256x1x1 shared 0 after [2, 3]");
    }

    #[test]
    fn structures_have_the_drivers_layout() {
        assert_eq!(size_of::<KernelNodeParams>(), 72);
        assert_eq!(
            mem::offset_of!(KernelNodeParams, params),
            mem::offset_of!(CUDA_KERNEL_NODE_PARAMS, kernelParams)
        );
        assert_eq!(mem::offset_of!(KernelNodeParams, kernel), size_of::<CUDA_KERNEL_NODE_PARAMS>());
        assert_eq!(size_of::<EdgeData>(), 8);
    }
}
