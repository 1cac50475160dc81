//! The GPU: choice, properties, context, and the kernels loaded into it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::rc::Rc;

use cust::context::Context;
use cust::device::Device;
use cust::sys::{CUcontext, CUdevice, CUfunction, CUmodule};

use super::driver::{self, check, device_attribute, function_attribute, jit_option};
use super::images::{KernelImage, KernelImages};
use crate::error::{CudaError, ExecError, NoDevice};

/// Dynamic plus static shared memory that a launch may use without asking, bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;
/// Oldest compute capability the kernels run on (`cp.async`, tf32 `mma`).
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// Index among the GPUs the driver shows.
    pub index: usize,
    /// Marketing name, for example `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Device memory, bytes.
    pub memory: usize,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
    /// Most shared memory a block may opt in to, bytes.
    pub shared_bytes_per_block: u32,
}

impl fmt::Display for GpuProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.capability;
        write!(
            f,
            "GPU {}: {}, compute capability {major}.{minor}, {} multiprocessors, {:.1} GiB, L2 {} MiB",
            self.index,
            self.name,
            self.multiprocessors,
            self.memory as f64 / (1u64 << 30) as f64,
            self.l2_bytes >> 20
        )
    }
}

/// The driver's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverVersion {
    /// Newest CUDA version it supports, as 1000 * major + 10 * minor.
    pub cuda: u32,
    /// Release of the kernel module, for example `580.159.04`, where the system tells it.
    pub release: Option<String>,
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (CUDA {}.{})",
            self.release.as_deref().unwrap_or("unknown release"),
            self.cuda / 1000,
            self.cuda % 1000 / 10
        )
    }
}

/// Starts the driver; every other driver call needs it. Cheap when it is already running.
pub fn start_driver() -> Result<DriverVersion, NoDevice> {
    // The linked loader answers every call with "no device" when there is no driver library; it tells the two apart.
    let failure = driver::libcuda_load_error();
    if !failure.is_null() {
        // SAFETY: not null, so the loader's NUL-terminated text, which lives as long as the program.
        let reason = unsafe { CStr::from_ptr(failure) };
        return Err(NoDevice::NoDriver(reason.to_string_lossy().into_owned()));
    }
    // SAFETY: `cuInit` takes no pointers.
    match unsafe { driver::cuInit(0) } {
        driver::SUCCESS => {}
        driver::NO_DEVICE => return Err(no_gpu()),
        code => return Err(NoDevice::Driver(driver::error(code, "cuInit", String::new()))),
    }
    let mut cuda = 0;
    // SAFETY: `cuda` is a live out-parameter.
    check(unsafe { driver::cuDriverGetVersion(&mut cuda) }, "cuDriverGetVersion", String::new)
        .map_err(NoDevice::Driver)?;
    Ok(DriverVersion { cuda: cuda as u32, release: driver_release() })
}

fn no_gpu() -> NoDevice {
    NoDevice::NoGpu { visible: std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "unset".into()) }
}

/// The kernel module's release, from the text the driver shows on Linux.
fn driver_release() -> Option<String> {
    find_release(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// First word of the form digits.digits[.digits] of a text.
fn find_release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        (2..=3).contains(&parts.len())
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.split_whitespace().find(is_release).map(str::to_owned)
}

/// The GPUs the driver shows. The driver must have been started.
pub fn list_gpus() -> Result<Vec<GpuProperties>, ExecError> {
    let mut count = 0;
    // SAFETY: `count` is a live out-parameter.
    check(unsafe { driver::cuDeviceGetCount(&mut count) }, "cuDeviceGetCount", String::new)?;
    (0..count as usize).map(|index| properties(index).map_err(ExecError::from)).collect()
}

fn device_handle(index: usize) -> Result<CUdevice, CudaError> {
    let mut device = 0;
    // SAFETY: `device` is a live out-parameter.
    let code = unsafe { driver::cuDeviceGet(&mut device, index as c_int) };
    check(code, "cuDeviceGet", || format!("GPU {index}")).map(|()| device)
}

fn properties(index: usize) -> Result<GpuProperties, CudaError> {
    let device = device_handle(index)?;
    let subject = || format!("GPU {index}");
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` is a live out-parameter and `device` a handle the driver gave.
        let code = unsafe { driver::cuDeviceGetAttribute(&mut value, attribute, device) };
        check(code, "cuDeviceGetAttribute", || format!("GPU {index}, attribute {attribute}"))
            .map(|()| value as u32)
    };
    let mut name = [0 as c_char; 256];
    // SAFETY: the driver writes at most `name.len()` bytes including the NUL.
    let code = unsafe { driver::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) };
    check(code, "cuDeviceGetName", subject)?;
    // SAFETY: on success `name` holds a NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let mut memory = 0;
    // SAFETY: `memory` is a live out-parameter.
    check(unsafe { driver::cuDeviceTotalMem_v2(&mut memory, device) }, "cuDeviceTotalMem", subject)?;
    Ok(GpuProperties {
        index,
        name,
        capability: (
            attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(device_attribute::MULTIPROCESSOR_COUNT)?,
        memory,
        l2_bytes: attribute(device_attribute::L2_CACHE_SIZE)?,
        shared_bytes_per_block: attribute(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

/// What the driver says about a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of local memory per thread: spills and arrays.
    pub local_bytes: u32,
    /// Bytes of static shared memory.
    pub static_shared_bytes: u32,
    /// Most threads per block.
    pub max_threads: u32,
}

/// A kernel ready to launch.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The driver's handle, alive as long as the [`Gpu`].
    pub raw: CUfunction,
    /// What the driver says about it.
    pub attributes: FunctionAttributes,
    /// Dynamic shared memory the function has been allowed to use, bytes.
    dynamic_shared_bytes: u32,
}

/// An open GPU: its primary context, current on the thread that opened it, and the kernels in it.
///
/// Neither `Send` nor `Sync`: a context is current per thread. A thread that wants a GPU opens it.
pub struct Gpu {
    properties: GpuProperties,
    driver: DriverVersion,
    image: String,
    functions: RefCell<HashMap<&'static str, Function>>,
    module: CUmodule,
    /// Released last: everything above lives in it.
    _context: Context,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("properties", &self.properties)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

impl Gpu {
    /// Opens a GPU by its index and loads the newest kernel image it can run.
    ///
    /// Errors: [`NoDevice`] with the reason; [`CudaError`] when the context cannot be made (for example because
    /// another process holds the GPU exclusively) or the image does not load (with the compiler's log).
    pub fn open(index: usize, images: KernelImages) -> Result<Rc<Self>, ExecError> {
        let driver = start_driver()?;
        let gpus = list_gpus()?;
        if gpus.is_empty() {
            return Err(no_gpu().into());
        }
        let count = gpus.len();
        let properties = gpus.into_iter().nth(index).ok_or(NoDevice::NoSuchGpu { index, count })?;
        let (major, minor) = properties.capability;
        if properties.capability < OLDEST_CAPABILITY {
            return Err(NoDevice::TooOld { index, name: properties.name, major, minor }.into());
        }
        let image = images.choose(properties.capability).map_err(NoDevice::NoKernels)?;
        let context = open_context(index)?;
        let (module, image) = load_image(image, properties.capability)?;
        let functions = RefCell::default();
        Ok(Rc::new(Self { properties, driver, image, functions, module, _context: context }))
    }

    /// What the GPU is.
    pub fn properties(&self) -> &GpuProperties {
        &self.properties
    }

    /// The driver's version.
    pub fn driver(&self) -> &DriverVersion {
        &self.driver
    }

    /// Which kernel image was loaded, for example `PTX sm_90`.
    pub fn image(&self) -> &str {
        &self.image
    }

    /// Free and total device memory, bytes.
    pub fn memory_info(&self) -> Result<(usize, usize), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are live out-parameters.
        check(unsafe { driver::cuMemGetInfo_v2(&mut free, &mut total) }, "cuMemGetInfo", String::new)?;
        Ok((free, total))
    }

    /// Waits for everything issued to the GPU from this process.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes no pointers; the context is current on this thread because `Gpu` is not `Send`.
        check(unsafe { driver::cuCtxSynchronize() }, "cuCtxSynchronize", String::new)
    }

    /// The kernel of that name, allowed to use `shared_bytes` of dynamic shared memory.
    pub fn function(&self, name: &'static str, shared_bytes: u32) -> Result<Function, ExecError> {
        let mut functions = self.functions.borrow_mut();
        if let Some(function) = functions.get(name)
            && function.dynamic_shared_bytes >= shared_bytes
        {
            return Ok(*function);
        }
        let raw = match functions.get(name) {
            Some(function) => function.raw,
            None => self.find(name)?,
        };
        let attributes = attributes(raw, name)?;
        if shared_bytes + attributes.static_shared_bytes > DEFAULT_SHARED_BYTES {
            let attribute = function_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: `raw` is a function of the loaded module; the call changes a limit of it.
            let code = unsafe { driver::cuFuncSetAttribute(raw, attribute, shared_bytes as c_int) };
            check(code, "cuFuncSetAttribute", || {
                format!(
                    "kernel `{name}`, {shared_bytes} bytes of dynamic shared memory beside {} static ones (a block \
                     may have {})",
                    attributes.static_shared_bytes, self.properties.shared_bytes_per_block
                )
            })?;
        }
        let function = Function { raw, attributes, dynamic_shared_bytes: shared_bytes };
        functions.insert(name, function);
        Ok(function)
    }

    fn find(&self, name: &'static str) -> Result<CUfunction, ExecError> {
        let symbol = CString::new(name)
            .map_err(|_| ExecError::MissingKernel { name, reason: "its name holds a NUL byte".into() })?;
        let mut raw: CUfunction = ptr::null_mut();
        // SAFETY: `raw` is a live out-parameter, `symbol` NUL-terminated, the module loaded.
        let code = unsafe { driver::cuModuleGetFunction(&mut raw, self.module, symbol.as_ptr()) };
        match check(code, "cuModuleGetFunction", || format!("kernel `{name}`")) {
            Ok(()) => Ok(raw),
            Err(error) => {
                Err(ExecError::MissingKernel { name, reason: format!("searched {}: {error}", self.image) })
            }
        }
    }

    /// Name of one of this GPU's kernels by its handle, if it has been used.
    pub fn function_name(&self, raw: CUfunction) -> Option<&'static str> {
        self.functions.borrow().iter().find(|(_, function)| function.raw == raw).map(|(name, _)| *name)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the module was loaded by `open` and nothing uses its functions any more: whoever launches
        // holds an `Rc<Gpu>`.
        let code = unsafe { driver::cuModuleUnload(self.module) };
        if let Err(error) = check(code, "cuModuleUnload", || self.image.clone()) {
            tracing::warn!("{error}");
        }
    }
}

/// Retains the GPU's primary context and makes it current.
fn open_context(index: usize) -> Result<Context, ExecError> {
    let device = device_handle(index)?;
    let mut raw: CUcontext = ptr::null_mut();
    let subject = || format!("GPU {index}");
    // A first retain by hand: the wrapper would turn "device unavailable" and newer codes into "unknown".
    // SAFETY: `raw` is a live out-parameter; the reference is released below.
    check(
        unsafe { driver::cuDevicePrimaryCtxRetain(&mut raw, device) },
        "cuDevicePrimaryCtxRetain",
        subject,
    )?;
    let context = Device::get_device(index as u32).and_then(Context::new);
    // SAFETY: gives back the reference taken above; `context` holds its own.
    let released = unsafe { driver::cuDevicePrimaryCtxRelease_v2(device) };
    let context = context.map_err(|error| {
        ExecError::from(driver::error(error as i32, "cuDevicePrimaryCtxRetain", subject()))
    })?;
    check(released, "cuDevicePrimaryCtxRelease", subject)?;
    // SAFETY: `context` is alive; binds it to this thread and reports what the wrapper ignores.
    check(unsafe { driver::cuCtxSetCurrent(context.as_raw()) }, "cuCtxSetCurrent", subject)?;
    Ok(context)
}

/// Loads the machine code when it fits the GPU, else the PTX, which the driver compiles.
fn load_image(image: &KernelImage, capability: (u32, u32)) -> Result<(CUmodule, String), ExecError> {
    if let Some(cubin) = image.cubin_for(capability) {
        let name = format!("machine code sm_{}", image.arch);
        match load_module(cubin, &name) {
            Ok(module) => return Ok((module, name)),
            Err(error) => tracing::warn!("{error}; the driver compiles the PTX instead"),
        }
    }
    let name = format!("PTX sm_{}", image.arch);
    let text =
        CString::new(image.ptx).map_err(|_| NoDevice::NoKernels(format!("{name} holds a NUL byte")))?;
    Ok((load_module(text.as_bytes_with_nul(), &name)?, name))
}

/// Loads one image; the compiler's log becomes part of the error.
fn load_module(image: &[u8], name: &str) -> Result<CUmodule, CudaError> {
    const LOG_BYTES: usize = 16 * 1024;
    let (mut errors, mut messages) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
    let mut options = [
        jit_option::ERROR_LOG_BUFFER,
        jit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
        jit_option::INFO_LOG_BUFFER,
        jit_option::INFO_LOG_BUFFER_SIZE_BYTES,
    ];
    // Sizes are passed by value in the pointer, as the driver wants it.
    let mut values: [*mut c_void; 4] = [
        errors.as_mut_ptr().cast(),
        ptr::without_provenance_mut(LOG_BYTES),
        messages.as_mut_ptr().cast(),
        ptr::without_provenance_mut(LOG_BYTES),
    ];
    let mut module: CUmodule = ptr::null_mut();
    // SAFETY: `image` is a NUL-terminated PTX text or a whole ELF file; `options` and `values` have four entries;
    // the two buffers hold LOG_BYTES bytes each and outlive the call.
    let code = unsafe {
        driver::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    check(code, "cuModuleLoadDataEx", || {
        let log = [log_text(&errors), log_text(&messages)].concat();
        if log.is_empty() { name.to_owned() } else { format!("{name}, compiler log:\n{log}\n") }
    })?;
    Ok(module)
}

/// The text before the first NUL, without blank lines at the end.
fn log_text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).trim_end().to_owned()
}

fn attributes(raw: CUfunction, name: &str) -> Result<FunctionAttributes, CudaError> {
    let get = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` is a live out-parameter and `raw` a function of the loaded module.
        let code = unsafe { driver::cuFuncGetAttribute(&mut value, attribute, raw) };
        check(code, "cuFuncGetAttribute", || format!("kernel `{name}`, attribute {attribute}"))
            .map(|()| value as u32)
    };
    Ok(FunctionAttributes {
        registers: get(function_attribute::NUM_REGS)?,
        local_bytes: get(function_attribute::LOCAL_SIZE_BYTES)?,
        static_shared_bytes: get(function_attribute::SHARED_SIZE_BYTES)?,
        max_threads: get(function_attribute::MAX_THREADS_PER_BLOCK)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_found_in_the_drivers_text() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: gcc 12.2.0\n";
        assert_eq!(find_release(open).as_deref(), Some("580.159.04"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54  Tue Jun  6\n";
        assert_eq!(find_release(closed).as_deref(), Some("535.54"));
        assert_eq!(find_release("NVRM version: none"), None);
    }

    #[test]
    fn a_log_ends_at_its_nul() {
        assert_eq!(log_text(b"ptxas error\n\0junk"), "ptxas error");
        assert_eq!(log_text(b"\0\0"), "");
        assert_eq!(log_text(b"full"), "full");
    }
}
