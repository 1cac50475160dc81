//! The driver and the GPUs it shows, before any is opened.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;

use cust::sys::CUdevice;

use super::driver::{self, check, device_attribute};
use crate::error::{CudaError, ExecError, NoDevice};

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

pub(super) fn no_gpu() -> NoDevice {
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

pub(super) fn device_handle(index: usize) -> Result<CUdevice, CudaError> {
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
}
