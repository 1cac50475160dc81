//! The GPU: choice, properties, context, and the kernels loaded into it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fmt;
use std::ptr;
use std::rc::Rc;

use cuda_std::KernelDecl;
use cust::context::Context;
use cust::device::Device;
use cust::sys::{CUcontext, CUfunction, CUmodule};

use super::driver::{self, check, function_attribute};
use super::images::KernelImages;
use super::module::{Function, attributes, load_image};
use super::system::{DriverVersion, GpuProperties, device_handle, list_gpus, no_gpu, start_driver};
use crate::error::{CudaError, ExecError, NoDevice};

/// Dynamic plus static shared memory that a launch may use without asking, bytes.
const DEFAULT_SHARED_BYTES: u32 = 48 * 1024;
/// Oldest compute capability the kernels run on (`cp.async`, tf32 `mma`).
const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

/// An open GPU: its primary context, current on the thread that opened it, and the kernels in it.
///
/// Neither `Send` nor `Sync`: a context is current per thread. A thread that wants a GPU opens it.
pub struct Gpu {
    properties: GpuProperties,
    driver: DriverVersion,
    image: String,
    /// Its target, as `sm_90a`.
    target: String,
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

/// The GPU of that index, if the kernels run on it.
fn usable(gpus: Vec<GpuProperties>, index: usize) -> Result<GpuProperties, NoDevice> {
    let count = gpus.len();
    let properties = gpus.into_iter().nth(index).ok_or(NoDevice::NoSuchGpu { index, count })?;
    let (major, minor) = properties.capability;
    if properties.capability < OLDEST_CAPABILITY {
        return Err(NoDevice::TooOld { index, name: properties.name, major, minor });
    }
    Ok(properties)
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
        let properties = usable(gpus, index)?;
        let image = images.choose(properties.capability).map_err(NoDevice::NoKernels)?;
        let context = open_context(index)?;
        let target = image.target();
        let (module, image) = load_image(image, properties.capability)?;
        let functions = RefCell::default();
        Ok(Rc::new(Self { properties, driver, image, target, functions, module, _context: context }))
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

    /// Whether the loaded image has the kernel.
    pub fn has(&self, kernel: &KernelDecl) -> bool {
        kernel.only.is_none_or(|only| only == self.target)
    }

    /// Whether the loaded kernels begin by waiting for the launch before them, so that launches may overlap: those for
    /// compute capability 9.0 and later (`cuda_builder` writes it into the PTX).
    pub fn kernels_wait(&self) -> bool {
        let digits: String = self.target.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u32>().is_ok_and(|capability| capability >= 90)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_index_and_an_old_gpu_are_refused_by_name() {
        let gpu = |index, capability| GpuProperties {
            index,
            name: "a GPU".into(),
            capability,
            multiprocessors: 1,
            memory: 1,
            l2_bytes: 1,
            shared_bytes_per_block: 1,
        };
        let gpus = vec![gpu(0, (9, 0)), gpu(1, (7, 5))];
        assert_eq!(usable(gpus.clone(), 0).unwrap(), gpus[0]);
        let message = |index| usable(gpus.clone(), index).unwrap_err().to_string();
        assert_eq!(message(2), "there is no GPU 2: the driver sees 2");
        assert_eq!(message(1), "GPU 1 (a GPU) has compute capability 7.5: 8.0 or newer is needed");
    }
}
