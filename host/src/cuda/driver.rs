//! The driver functions this crate calls, with their result as a plain integer.
//!
//! `cust::sys` declares them too, with a result type that is a Rust enum of the codes of its day. A driver of
//! today returns codes that enum does not have, and a Rust enum holding an unknown value is undefined behaviour;
//! its safe wrappers turn every capture code (9xx) into "unknown". So the handles and structures come from
//! `cust::sys`, the symbols are the ones it links, and only the declarations are ours. Names and semantics:
//! CUDA Driver API reference.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use cust::sys::{
    CUDA_KERNEL_NODE_PARAMS, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgraphNode, CUmodule, CUstream,
};

use crate::error::CudaError;

/// A `CUresult` as the driver returned it.
pub type Code = c_int;

/// `CUDA_SUCCESS`.
pub const SUCCESS: Code = 0;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
pub const UNSUPPORTED_PTX_VERSION: Code = 222;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NO_DEVICE`; also what the loader answers when there is no driver library.
pub const NO_DEVICE: Code = 100;

/// `CU_STREAM_NON_BLOCKING`: no implicit ordering with the legacy default stream, which a synchronous copy uses.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DEFAULT`: records a time.
pub const EVENT_DEFAULT: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`: ordering only, cheaper to record.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: unsafe calls of this and other threads do not invalidate the capture.
pub const CAPTURE_RELAXED: c_int = 2;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub const CAPTURE_ACTIVE: c_int = 1;

/// `CU_FUNC_ATTRIBUTE_*`.
pub mod function_attribute {
    use std::ffi::c_int;
    /// Most threads per block with the registers the function needs.
    pub const MAX_THREADS_PER_BLOCK: c_int = 0;
    /// Static shared memory, bytes.
    pub const SHARED_SIZE_BYTES: c_int = 1;
    /// Local memory per thread, bytes: spilled registers and arrays.
    pub const LOCAL_SIZE_BYTES: c_int = 3;
    /// Registers per thread.
    pub const NUM_REGS: c_int = 4;
    /// Most dynamic shared memory a launch may ask for, bytes.
    pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_int = 8;
}

/// `CU_DEVICE_ATTRIBUTE_*`.
pub mod device_attribute {
    use std::ffi::c_int;
    /// Streaming multiprocessors.
    pub const MULTIPROCESSOR_COUNT: c_int = 16;
    /// L2 cache, bytes.
    pub const L2_CACHE_SIZE: c_int = 38;
    /// Major compute capability.
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// Minor compute capability.
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    /// Most shared memory a block may opt in to, bytes.
    pub const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_int = 97;
}

/// `CU_JIT_*` options of `cuModuleLoadDataEx`.
pub mod jit_option {
    use std::ffi::c_int;
    /// Buffer for the compiler's messages.
    pub const INFO_LOG_BUFFER: c_int = 3;
    /// Its size; on return the bytes written.
    pub const INFO_LOG_BUFFER_SIZE_BYTES: c_int = 4;
    /// Buffer for the compiler's errors.
    pub const ERROR_LOG_BUFFER: c_int = 5;
    /// Its size; on return the bytes written.
    pub const ERROR_LOG_BUFFER_SIZE_BYTES: c_int = 6;
}

/// `CU_GRAPH_DEBUG_DOT_FLAGS_*` for [`cuGraphDebugDotPrint`]: kernel names, launch sizes and attributes.
pub const DOT_KERNEL_NODE_PARAMS: c_uint = 1 << 2;
/// Adds runtime types (memcpy and memset parameters in readable form).
pub const DOT_RUNTIME_TYPES: c_uint = 1 << 1;

unsafe extern "C" {
    /// Of the loader that stands in for the driver at link time (`find_cuda_helper`): why the driver's library
    /// cannot be loaded, null when it can.
    pub safe fn libcuda_load_error() -> *const c_char;
    pub fn cuGetErrorName(error: Code, text: *mut *const c_char) -> Code;
    pub fn cuGetErrorString(error: Code, text: *mut *const c_char) -> Code;
    pub fn cuInit(flags: c_uint) -> Code;
    pub fn cuDriverGetVersion(version: *mut c_int) -> Code;
    pub fn cuDeviceGetCount(count: *mut c_int) -> Code;
    pub fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> Code;
    pub fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> Code;
    pub fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: CUdevice) -> Code;
    pub fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> Code;
    pub fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> Code;
    pub fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Code;
    pub fn cuCtxSetCurrent(context: CUcontext) -> Code;
    pub fn cuCtxSynchronize() -> Code;
    pub fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut c_int,
        values: *mut *mut c_void,
    ) -> Code;
    pub fn cuModuleUnload(module: CUmodule) -> Code;
    pub fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> Code;
    pub fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> Code;
    pub fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> Code;
    pub fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Code;
    pub fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code;
    pub fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> Code;
    pub fn cuMemFree_v2(address: CUdeviceptr) -> Code;
    pub fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code;
    pub fn cuMemFreeHost(address: *mut c_void) -> Code;
    pub fn cuMemsetD8_v2(address: CUdeviceptr, value: u8, count: usize) -> Code;
    pub fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> Code;
    pub fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> Code;
    pub fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Code;
    pub fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
    -> Code;
    pub fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) -> Code;
    pub fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> Code;
    pub fn cuStreamDestroy_v2(stream: CUstream) -> Code;
    pub fn cuStreamSynchronize(stream: CUstream) -> Code;
    pub fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> Code;
    pub fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_int) -> Code;
    pub fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> Code;
    pub fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int) -> Code;
    pub fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> Code;
    pub fn cuEventRecord(event: CUevent, stream: CUstream) -> Code;
    pub fn cuEventSynchronize(event: CUevent) -> Code;
    pub fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> Code;
    pub fn cuEventDestroy_v2(event: CUevent) -> Code;
    pub fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> Code;
    pub fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> Code;
    pub fn cuGraphAddKernelNode(
        node: *mut CUgraphNode,
        graph: CUgraph,
        dependencies: *const CUgraphNode,
        count: usize,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Code;
    pub fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> Code;
    pub fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> Code;
    pub fn cuGraphExecDestroy(exec: CUgraphExec) -> Code;
    pub fn cuGraphDestroy(graph: CUgraph) -> Code;
    pub fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Code;
    pub fn cuGraphGetEdges(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        count: *mut usize,
    ) -> Code;
    pub fn cuGraphNodeGetType(node: CUgraphNode, kind: *mut c_int) -> Code;
    pub fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut CUDA_KERNEL_NODE_PARAMS) -> Code;
    pub fn cuGraphExecKernelNodeSetParams(
        exec: CUgraphExec,
        node: CUgraphNode,
        params: *const CUDA_KERNEL_NODE_PARAMS,
    ) -> Code;
    pub fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint) -> Code;
    pub fn cuGetProcAddress(
        symbol: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: c_ulonglong,
    ) -> Code;
}

/// Turns a result into `Ok` or a [`CudaError`] that says what was being done; `subject` is built only on failure.
pub fn check(code: Code, operation: &'static str, subject: impl FnOnce() -> String) -> Result<(), CudaError> {
    if code == SUCCESS { Ok(()) } else { Err(error(code, operation, subject())) }
}

/// The error of a code other than [`SUCCESS`], with the driver's own name and description of it.
pub fn error(code: Code, operation: &'static str, subject: String) -> CudaError {
    CudaError {
        code,
        name: text(code, cuGetErrorName),
        text: text(code, cuGetErrorString),
        operation,
        subject,
    }
}

/// The driver's text for a code; empty when the driver does not know the code or there is no driver.
fn text(code: Code, get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code) -> String {
    let mut text: *const c_char = ptr::null();
    // SAFETY: `text` is a live out-parameter; the driver stores a pointer to a static string or leaves it null.
    let result = unsafe { get(code, &mut text) };
    if result != SUCCESS || text.is_null() {
        return String::new();
    }
    // SAFETY: on success `text` is the driver's static, NUL-terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Address of a driver function newer than `cust::sys`, in its form of the given CUDA version
/// (`12030` is 12.3), or `None` when the driver does not have it.
pub fn newer_function(symbol: &CStr, version: c_int) -> Option<*mut c_void> {
    let mut function: *mut c_void = ptr::null_mut();
    // SAFETY: `symbol` is NUL-terminated and `function` a live out-parameter; nothing else is touched.
    let result = unsafe { cuGetProcAddress(symbol.as_ptr(), &mut function, version, 0) };
    (result == SUCCESS && !function.is_null()).then_some(function)
}
