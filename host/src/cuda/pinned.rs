//! Page-locked host memory for copies that run beside kernels.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use cuda_std::Buf;

use super::device::Gpu;
use super::driver::{self, check};
use super::exec::CudaExec;
use super::stream::{Event, Stream};
use crate::error::{CudaError, ExecError};
use crate::exec::{Element, Lane};

/// Handle to `len` page-locked elements that a [`CudaExec`] owns.
pub struct Pinned<T> {
    index: usize,
    len: usize,
    owner: u64,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Pinned<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pinned<T> {}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned #{} [{}]", self.index, self.len)
    }
}

impl<T> Pinned<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Page-locked bytes, freed with the last that uses them.
#[derive(Debug)]
struct PinnedMemory {
    address: *mut u8,
    label: String,
}

// SAFETY: the memory is the process's own; who may touch it when is a matter of `PinnedBlock` and `Lent`, of which the
// former leaves it alone as long as there is one of the latter.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above; the struct itself is never changed.
unsafe impl Sync for PinnedMemory {}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: `address` came from `cuMemHostAlloc` under `label`; the executor has waited for the device.
        let code = unsafe { driver::cuMemFreeHost(self.address.cast()) };
        if let Err(error) = check(code, "cuMemFreeHost", || format!("pinned buffer `{}`", self.label)) {
            tracing::warn!("{error}");
        }
    }
}

/// A pinned buffer lent to another thread, which may write it ([`CudaExec::lend_pinned`]). The executor leaves it alone until
/// it is given back.
#[derive(Debug)]
pub struct Lent<T> {
    memory: Arc<PinnedMemory>,
    handle: Pinned<T>,
}

impl<T: Element> Lent<T> {
    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: the block has `len` initialised elements of plain data, aligned to a page; no copy was using them when
        // they were lent, the executor begins none before they are given back, and there is one `Lent` of a block at most.
        unsafe { std::slice::from_raw_parts_mut(self.memory.address.cast(), self.handle.len) }
    }
}

/// One page-locked allocation and what is known about copies that use it.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    memory: Arc<PinnedMemory>,
    bytes: usize,
    /// Another thread is writing it.
    lent: bool,
    /// Recorded after the last eager copy.
    last_copy: Event,
    copying: bool,
    /// A graph copies it: any replay may be using it.
    in_graph: bool,
    _gpu: Rc<Gpu>,
}

impl PinnedBlock {
    fn new(gpu: &Rc<Gpu>, label: &str, bytes: usize) -> Result<Self, CudaError> {
        let last_copy = Event::ordering(gpu)?;
        let mut address = ptr::null_mut();
        // SAFETY: `address` is a live out-parameter; at least one byte is asked for.
        let code = unsafe { driver::cuMemHostAlloc(&mut address, bytes.max(1), 0) };
        check(code, "cuMemHostAlloc", || format!("pinned buffer `{label}`, {bytes} bytes"))?;
        let address: *mut u8 = address.cast();
        // SAFETY: `address` has `bytes` writable bytes, just allocated under `label`.
        unsafe { ptr::write_bytes(address, 0, bytes) };
        let memory = Arc::new(PinnedMemory { address, label: label.to_owned() });
        Ok(Self { memory, bytes, lent: false, last_copy, copying: false, in_graph: false, _gpu: gpu.clone() })
    }

    fn label(&self) -> &str {
        &self.memory.label
    }

    /// Refuses what would touch memory that another thread is writing.
    fn at_home(&self, operation: &'static str) -> Result<(), ExecError> {
        match self.lent {
            false => Ok(()),
            true => Err(ExecError::Lent { operation, label: self.label().to_owned() }),
        }
    }

    /// Waits until no copy uses the memory; replays run on `main`.
    fn settle(&mut self, main: &Stream) -> Result<(), CudaError> {
        if self.in_graph {
            main.synchronize()?;
        }
        if self.copying {
            self.last_copy.synchronize()?;
            self.copying = false;
        }
        Ok(())
    }
}

impl CudaExec {
    /// Reserves `len` zeroed page-locked elements on the host.
    pub fn alloc_pinned<T: Element>(&mut self, label: &str, len: usize) -> Result<Pinned<T>, ExecError> {
        let bytes = len.saturating_mul(size_of::<T>());
        self.allow_alloc(label, bytes)?;
        let block = PinnedBlock::new(self.gpu(), label, bytes)?;
        self.pinned.push(block);
        Ok(Pinned { index: self.pinned.len() - 1, len, owner: self.id(), element: PhantomData })
    }

    fn pinned_index<T>(&self, handle: Pinned<T>) -> Result<usize, ExecError> {
        if handle.owner == self.id() {
            Ok(handle.index)
        } else {
            let (user, bytes) =
                (format!("{handle:?} of another executor"), (handle.len * size_of::<T>()) as u64);
            Err(ExecError::NotAllocated { user, address: 0, bytes })
        }
    }

    /// Writes a pinned buffer, once no copy reads it any more.
    pub fn write_pinned<T: Element>(&mut self, to: Pinned<T>, from: &[T]) -> Result<(), ExecError> {
        if from.len() != to.len {
            return Err(ExecError::Length { operation: "write_pinned", buffer: to.len, host: from.len() });
        }
        let index = self.pinned_index(to)?;
        self.forbid_in_capture("write", || self.pinned[index].label().to_owned())?;
        let (main, block) = self.main_and_pinned(index);
        block.at_home("write")?;
        block.settle(main)?;
        let bytes: &[u8] = bytemuck::cast_slice(from);
        debug_assert_eq!(bytes.len(), block.bytes);
        // SAFETY: the block has as many bytes as the handle's `len` elements, which `from` matches; `settle` has
        // waited for every copy that reads them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), block.memory.address, bytes.len()) };
        Ok(())
    }

    /// Reads a pinned buffer, once no copy writes it any more.
    pub fn read_pinned<T: Element>(&mut self, from: Pinned<T>) -> Result<Vec<T>, ExecError> {
        let index = self.pinned_index(from)?;
        self.forbid_in_capture("read", || self.pinned[index].label().to_owned())?;
        let (main, block) = self.main_and_pinned(index);
        block.at_home("read")?;
        block.settle(main)?;
        let mut out = vec![T::default(); from.len];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
        debug_assert_eq!(bytes.len(), block.bytes);
        // SAFETY: the block has as many bytes as the handle's `len` elements, and so has `out`; `settle` has
        // waited for every copy that writes them.
        unsafe { ptr::copy_nonoverlapping(block.memory.address, bytes.as_mut_ptr(), bytes.len()) };
        Ok(out)
    }

    /// Hands a pinned buffer to another thread to write, once no copy uses it any more. Until it is given back
    /// ([`CudaExec::return_pinned`]) every other use of it is an error; one that is dropped instead never comes back.
    pub fn lend_pinned<T: Element>(&mut self, handle: Pinned<T>) -> Result<Lent<T>, ExecError> {
        let index = self.pinned_index(handle)?;
        self.forbid_in_capture("lending", || self.pinned[index].label().to_owned())?;
        let (main, block) = self.main_and_pinned(index);
        block.at_home("lending")?;
        block.settle(main)?;
        block.lent = true;
        Ok(Lent { memory: block.memory.clone(), handle })
    }

    /// Takes a lent buffer back.
    pub fn return_pinned<T: Element>(&mut self, lent: Lent<T>) -> Result<(), ExecError> {
        let index = self.pinned_index(lent.handle)?;
        self.pinned[index].lent = false;
        Ok(())
    }

    /// Copies a pinned buffer to the device on a lane, asynchronously; may be captured.
    pub fn copy_in<T: Element>(&mut self, lane: Lane, to: Buf<T>, from: Pinned<T>) -> Result<(), ExecError> {
        self.copy_pinned("copy_in", lane, to, from, |host, device, bytes, stream| {
            // SAFETY: `copy_pinned` has checked that both sides have `bytes` bytes.
            unsafe { driver::cuMemcpyHtoDAsync_v2(device, host.cast(), bytes, stream.raw()) }
        })
    }

    /// Copies a device buffer to a pinned one on a lane, asynchronously; may be captured.
    pub fn copy_out<T: Element>(&mut self, lane: Lane, from: Buf<T>, to: Pinned<T>) -> Result<(), ExecError> {
        self.copy_pinned("copy_out", lane, from, to, |host, device, bytes, stream| {
            // SAFETY: `copy_pinned` has checked that both sides have `bytes` bytes.
            unsafe { driver::cuMemcpyDtoHAsync_v2(host.cast(), device, bytes, stream.raw()) }
        })
    }

    fn copy_pinned<T: Element>(
        &mut self,
        operation: &'static str,
        lane: Lane,
        device: Buf<T>,
        host: Pinned<T>,
        copy: impl FnOnce(*mut u8, u64, usize, &Stream) -> driver::Code,
    ) -> Result<(), ExecError> {
        if device.len() != host.len {
            return Err(ExecError::Length { operation, buffer: device.len(), host: host.len });
        }
        let index = self.pinned_index(host)?;
        if host.len == 0 {
            return Ok(());
        }
        self.arena().holder(device.addr(), device.bytes(), || operation.into())?;
        self.pinned[index].at_home(operation)?;
        let captured = self.note(lane, operation)?;
        let (stream, block) = self.lane_and_pinned(lane, index)?;
        if !captured && block.copying {
            // One event stands for all copies, so a later copy on another lane follows the earlier one.
            stream.wait(&block.last_copy)?;
        }
        let code = copy(block.memory.address, device.addr(), block.bytes, stream);
        check(code, "cuMemcpyAsync", || {
            format!("{operation} of pinned buffer `{}`, {} bytes, {lane}", block.label(), block.bytes)
        })?;
        if captured {
            block.in_graph = true;
        } else {
            block.last_copy.record(stream)?;
            block.copying = true;
        }
        Ok(())
    }
}
