//! Loading of a kernel image, and what the driver says about the kernels in it.

use std::ffi::{CString, c_int, c_void};
use std::ptr;

use cust::sys::{CUfunction, CUmodule};

use super::driver::{self, check, function_attribute, jit_option};
use super::images::KernelImage;
use crate::error::{CudaError, ExecError, NoDevice};

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
    pub(super) dynamic_shared_bytes: u32,
}

/// Loads the machine code when it fits the GPU, else the PTX, which the driver compiles.
pub(super) fn load_image(
    image: &KernelImage,
    capability: (u32, u32),
) -> Result<(CUmodule, String), ExecError> {
    if let Some(cubin) = image.cubin_for(capability) {
        let name = format!("machine code {}", image.target());
        match load_module(cubin, &name) {
            Ok(module) => return Ok((module, name)),
            Err(error) => tracing::warn!("{error}; the driver compiles the PTX instead"),
        }
    }
    let name = format!("PTX {}", image.target());
    let text =
        CString::new(image.ptx).map_err(|_| NoDevice::NoKernels(format!("{name} holds a NUL byte")))?;
    match load_module(text.as_bytes_with_nul(), &name) {
        Ok(module) => Ok((module, name)),
        Err(error) => Err(explained(error)),
    }
}

/// A driver that does not know the PTX is too old, which its own words do not say.
fn explained(error: CudaError) -> ExecError {
    if error.code == driver::UNSUPPORTED_PTX_VERSION {
        NoDevice::OldDriver(error).into()
    } else {
        error.into()
    }
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

/// Asks the driver about a kernel.
pub(super) fn attributes(raw: CUfunction, name: &str) -> Result<FunctionAttributes, CudaError> {
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
    fn a_log_ends_at_its_nul() {
        assert_eq!(log_text(b"ptxas error\n\0junk"), "ptxas error");
        assert_eq!(log_text(b"\0\0"), "");
        assert_eq!(log_text(b"full"), "full");
    }
}
