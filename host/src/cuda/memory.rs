//! Device memory: labelled, zeroed allocations that live as long as the executor, and copies to and from them.

use std::fmt;
use std::rc::Rc;

use super::device::Gpu;
use super::driver::{self, check};
use crate::error::{CudaError, ExecError};
use crate::extent::Ledger;

/// Every buffer of one executor. Nothing is freed before the executor is: a graph keeps addresses.
#[derive(Debug)]
pub struct Arena {
    gpu: Rc<Gpu>,
    ledger: Ledger,
}

impl Arena {
    /// An arena without buffers.
    pub fn new(gpu: &Rc<Gpu>) -> Self {
        Self { gpu: gpu.clone(), ledger: Ledger::default() }
    }

    /// Reserves `bytes` zeroed bytes (256-byte aligned) and returns their address; 0 for no bytes.
    pub fn alloc(&mut self, label: &str, bytes: usize) -> Result<u64, ExecError> {
        if bytes == 0 {
            return Ok(0);
        }
        let mut address = 0;
        // SAFETY: `address` is a live out-parameter.
        let code = unsafe { driver::cuMemAlloc_v2(&mut address, bytes) };
        if code == driver::OUT_OF_MEMORY {
            let (free, total) = self.gpu.memory_info()?;
            let source = Box::new(driver::error(code, "cuMemAlloc", String::new()));
            return Err(ExecError::OutOfMemory { label: label.to_owned(), bytes, free, total, source });
        }
        let subject = || format!("buffer `{label}`, {bytes} bytes");
        check(code, "cuMemAlloc", subject)?;
        self.ledger.insert(address, label, bytes as u64);
        // SAFETY: `address` has `bytes` bytes, just allocated under `label`.
        check(unsafe { driver::cuMemsetD8_v2(address, 0, bytes) }, "cuMemsetD8", subject)?;
        // The fill runs on the default stream, which the lanes are not ordered with.
        self.gpu.synchronize()?;
        Ok(address)
    }

    /// Label of the buffer that holds all `bytes` bytes at `address`; an error naming `user` if none does.
    pub fn holder(&self, address: u64, bytes: u64, user: impl FnOnce() -> String) -> Result<&str, ExecError> {
        self.ledger.holder(address, bytes).ok_or_else(|| ExecError::NotAllocated {
            user: user(),
            address,
            bytes,
        })
    }

    /// Copies host bytes to `address`, after everything issued so far; done when it returns.
    pub fn upload(&self, address: u64, from: &[u8]) -> Result<(), ExecError> {
        if from.is_empty() {
            return Ok(());
        }
        let label = self.holder(address, from.len() as u64, || "upload".into())?;
        self.gpu.synchronize()?;
        // SAFETY: `holder` found one buffer that has `from.len()` bytes at `address`; `from` is that long.
        let code = unsafe { driver::cuMemcpyHtoD_v2(address, from.as_ptr().cast(), from.len()) };
        check(code, "cuMemcpyHtoD", || format!("buffer `{label}`, {} bytes", from.len()))?;
        // A copy from pageable memory may return while its last part is still on the way to the device.
        Ok(self.gpu.synchronize()?)
    }

    /// Copies the bytes at `address` to the host, after everything issued so far.
    pub fn download(&self, address: u64, to: &mut [u8]) -> Result<(), ExecError> {
        if to.is_empty() {
            return Ok(());
        }
        let label = self.holder(address, to.len() as u64, || "download".into())?;
        self.gpu.synchronize()?;
        // SAFETY: `holder` found one buffer that has `to.len()` bytes at `address`; `to` is that long.
        let code = unsafe { driver::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), address, to.len()) };
        Ok(check(code, "cuMemcpyDtoH", || format!("buffer `{label}`, {} bytes", to.len()))?)
    }

    /// What is allocated, and what the device has left.
    pub fn report(&self) -> Result<MemoryReport, CudaError> {
        let (free, total) = self.gpu.memory_info()?;
        let mut buffers: Vec<(String, u64)> =
            self.ledger.blocks().map(|(_, block)| (block.label.clone(), block.bytes)).collect();
        buffers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Ok(MemoryReport { buffers, free, total })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Err(error) = self.gpu.synchronize() {
            tracing::warn!("before freeing device memory: {error}");
        }
        for (address, block) in self.ledger.blocks() {
            // SAFETY: `address` came from `cuMemAlloc` under `block.label` and is freed once; the device is idle.
            let code = unsafe { driver::cuMemFree_v2(address) };
            if let Err(error) = check(code, "cuMemFree", || format!("buffer `{}`", block.label)) {
                tracing::warn!("{error}");
            }
        }
    }
}

/// Buffers of an executor, largest first, and the device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Label and bytes.
    pub buffers: Vec<(String, u64)>,
    /// Bytes free on the device.
    pub free: usize,
    /// Bytes the device has.
    pub total: usize,
}

impl MemoryReport {
    /// Bytes of all buffers.
    pub fn used(&self) -> u64 {
        self.buffers.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: f64 = (1 << 20) as f64;
        writeln!(
            f,
            "{} buffers, {:.1} MiB; {:.0} of {:.0} MiB of device memory are free",
            self.buffers.len(),
            self.used() as f64 / MIB,
            self.free as f64 / MIB,
            self.total as f64 / MIB
        )?;
        for (label, bytes) in &self.buffers {
            writeln!(f, "  {:>10.3} MiB  {label}", *bytes as f64 / MIB)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_adds_up_and_prints_every_buffer() {
        let report = MemoryReport {
            buffers: vec![("replay".into(), 3 << 20), ("loss".into(), 1 << 19)],
            free: 10 << 20,
            total: 20 << 20,
        };
        assert_eq!(report.used(), (3 << 20) + (1 << 19));
        assert_eq!(
            report.to_string(),
            "2 buffers, 3.5 MiB; 10 of 20 MiB of device memory are free\n       3.000 MiB  replay\n       0.500 MiB  loss\n"
        );
    }
}
