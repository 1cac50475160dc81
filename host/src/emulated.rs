//! Runs work in the SIMT emulator, on host memory, and checks the order that the lanes promise.
//!
//! Every launch runs at once, in the order of issue; that is one of the orders the GPU may choose. Whether all the
//! others give the same result is what the history of memory uses tells: a launch that uses what another lane
//! wrote, or writes what it used, without a chain of `after` between them, is an error.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::slice;

use cuda_std::emulator::Emulator;
use cuda_std::{Access, Buf, Kernel, KernelDecl};

use crate::error::ExecError;
use crate::exec::{Element, Epilogue, Exec, Lane, Memory, Product, Touch};
use crate::extent::{Extent, Ledger};
use crate::order::{Forks, History, Use};

/// 256 bytes at a 256-byte boundary: a device allocation's alignment.
#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Chunk([u8; 256]);

/// Memory that launches write through its address.
type Block = Box<[UnsafeCell<Chunk>]>;

/// Computes a product with kernels, as on the GPU; without one the emulator's own loop does.
pub type EmulatedProduct = fn(&mut EmulatedExec, Lane, &Product) -> Result<(), ExecError>;

/// An executor in the emulator.
pub struct EmulatedExec {
    emulator: Emulator,
    blocks: HashMap<u64, Block>,
    /// Their addresses in the order of allocation.
    order: Vec<u64>,
    ledger: Ledger,
    history: History,
    /// Rules of the recording under way.
    forks: Option<Forks>,
    /// Launches inside a product are not checked one by one: the product's operands are.
    inside_product: bool,
    product: Option<EmulatedProduct>,
    launches: usize,
}

impl EmulatedExec {
    /// An executor whose threads interleave as `seed` says.
    pub fn new(seed: u64) -> Self {
        Self {
            emulator: Emulator::new(seed),
            blocks: HashMap::new(),
            order: Vec::new(),
            ledger: Ledger::default(),
            history: History::default(),
            forks: None,
            inside_product: false,
            product: None,
            launches: 0,
        }
    }

    /// Computes products with kernels from now on.
    pub fn set_product(&mut self, product: EmulatedProduct) {
        self.product = Some(product);
    }

    /// Launches so far, those inside products included.
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Label and bytes of every buffer, in the order of allocation.
    pub fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let sizes: HashMap<u64, (&str, u64)> =
            self.ledger.blocks().map(|(address, b)| (address, (b.label.as_str(), b.bytes))).collect();
        let contents = self.order.iter().filter_map(|address| {
            let (label, bytes) = sizes.get(address)?;
            Some((label.to_string(), self.bytes(*address, *bytes, "contents").ok()?.to_vec()))
        });
        contents.collect()
    }

    /// As a host that waits for the device: whatever is issued from now on comes after everything so far.
    pub fn synchronize(&mut self) {
        self.history.barrier();
    }

    /// Runs `record` under the rules of a capture: no lane without a fork from the main lane, none left unjoined, no
    /// allocation and no copy to or from the host.
    pub fn step(&mut self, record: impl FnOnce(&mut Self) -> Result<(), ExecError>) -> Result<(), ExecError> {
        if self.forks.is_some() {
            return Err(ExecError::InsideCapture { what: "a step" });
        }
        self.forks = Some(Forks::default());
        let recorded = record(self);
        let forks = self.forks.take();
        recorded?;
        forks.map_or(Ok(()), |forks| forks.finish())
    }

    /// Checks the order of one operation and notes it.
    fn issue(&mut self, lane: Lane, label: &str, touches: &[Touch]) -> Result<(), ExecError> {
        if let Some(forks) = &mut self.forks {
            forks.issue(lane, label)?;
        }
        let mut uses = Vec::with_capacity(touches.len());
        for touch in touches.iter().filter(|touch| !touch.extent.is_empty()) {
            let (address, bytes) = (touch.extent.address, touch.extent.span());
            let buffer = holder(&self.ledger, address, bytes, || label.to_owned())?;
            uses.push(Use { extent: touch.extent, writes: touch.writes, buffer });
        }
        self.history.issue(lane, label, &uses)
    }

    fn forbid_in_step(
        &self,
        operation: &'static str,
        label: impl FnOnce() -> String,
    ) -> Result<(), ExecError> {
        match self.forks {
            Some(_) => Err(ExecError::HostWaitInCapture { operation, label: label() }),
            None => Ok(()),
        }
    }

    /// Bytes of a buffer.
    fn bytes(&self, address: u64, bytes: u64, user: &'static str) -> Result<&[u8], ExecError> {
        if bytes == 0 {
            return Ok(&[]);
        }
        holder(&self.ledger, address, bytes, || user.to_owned())?;
        // SAFETY: the ledger holds a block of this executor with all `bytes` bytes at `address`, all of them
        // initialised; launches write to it only inside `&mut self` calls, so nothing does while `&self` is borrowed.
        Ok(unsafe { slice::from_raw_parts(address as *const u8, bytes as usize) })
    }

    /// Bytes of a buffer, to write.
    fn bytes_mut(&mut self, address: u64, bytes: u64, user: &'static str) -> Result<&mut [u8], ExecError> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        holder(&self.ledger, address, bytes, || user.to_owned())?;
        // SAFETY: as in `bytes`; the blocks are cells, so writing through their address is allowed, and `&mut self`
        // makes this the only view.
        Ok(unsafe { slice::from_raw_parts_mut(address as *mut u8, bytes as usize) })
    }

    /// A copy of a buffer's elements.
    fn read<T: Element>(&self, buffer: Buf<T>, user: &'static str) -> Result<Vec<T>, ExecError> {
        let mut out = vec![T::default(); buffer.len()];
        let bytes = self.bytes(buffer.addr(), buffer.bytes(), user)?;
        bytemuck::cast_slice_mut(&mut out).copy_from_slice(bytes);
        Ok(out)
    }
}

fn holder(
    ledger: &Ledger,
    address: u64,
    bytes: u64,
    user: impl FnOnce() -> String,
) -> Result<&str, ExecError> {
    ledger.holder(address, bytes).ok_or_else(|| ExecError::NotAllocated { user: user(), address, bytes })
}

/// Every touch lies inside one argument (a written one inside an argument that the kernel writes), and no written
/// argument goes without a touch: a mistake there would hide a conflict.
fn check_touches(kernel: &'static str, accesses: &[Access], touches: &[Touch]) -> Result<(), ExecError> {
    let whole = |access: &Access| Extent::contiguous(access.addr, access.bytes);
    let fits = |access: &Access, touch: &Touch| {
        whole(access).covers(&touch.extent) && (access.kind.writes() || !touch.writes)
    };
    let fail = |problem| Err(ExecError::Touches { kernel, problem });
    let inside = |touch: &&Touch| !touch.extent.is_empty();
    for touch in touches.iter().filter(inside) {
        if !accesses.iter().any(|access| fits(access, touch)) {
            let verb = if touch.writes { "written" } else { "read" };
            return fail(format!("{:x?}, said to be {verb}, is not inside such an argument", touch.extent));
        }
    }
    let written = |access: &&Access| access.kind.writes() && access.bytes > 0;
    match accesses
        .iter()
        .filter(written)
        .find(|access| !touches.iter().any(|touch| touch.writes && fits(access, touch)))
    {
        Some(access) => fail(format!("nothing is said to be written of argument `{}`", access.name)),
        None => Ok(()),
    }
}

impl Exec for EmulatedExec {
    fn launch<K: Kernel>(&mut self, lane: Lane, kernel: &K) -> Result<(), ExecError> {
        let touches: Vec<Touch> = kernel.accesses().iter().map(Touch::whole).collect();
        self.launch_touching(lane, kernel, &touches)
    }

    fn launch_touching<K: Kernel>(
        &mut self,
        lane: Lane,
        kernel: &K,
        touches: &[Touch],
    ) -> Result<(), ExecError> {
        lane.index()?;
        kernel.check()?;
        // The emulator reads and writes through every argument's address, whatever `touches` says.
        for access in kernel.accesses().iter().filter(|access| access.bytes > 0) {
            holder(&self.ledger, access.addr, access.bytes, || {
                format!("kernel `{}`, argument `{}`", K::DECL.name, access.name)
            })?;
        }
        check_touches(K::DECL.name, &kernel.accesses(), touches)?;
        if !self.inside_product {
            self.issue(lane, K::DECL.name, touches)?;
        }
        self.launches += 1;
        self.emulator.launch(kernel)?;
        Ok(())
    }

    /// The emulator has all kernels.
    fn has(&self, _: &KernelDecl) -> bool {
        true
    }

    fn product(&mut self, lane: Lane, product: &Product) -> Result<(), ExecError> {
        lane.index()?;
        product.check()?;
        let touches: Vec<Touch> = product.operands().iter().map(|operand| operand.touch).collect();
        self.issue(lane, product.label, &touches)?;
        if let Some(with_kernels) = self.product {
            self.inside_product = true;
            let result = with_kernels(self, lane, product);
            self.inside_product = false;
            return result;
        }
        let (a, b) = (self.read(product.a, "product")?, self.read(product.b, "product")?);
        let extra = match product.epilogue {
            Epilogue::None => Vec::new(),
            Epilogue::Bias(extra) | Epilogue::BiasLrelu(extra, _) | Epilogue::LreluBackward(extra, _) => {
                self.read(extra, "product")?
            }
        };
        let mut c = self.read(product.c, "product")?;
        product.compute(&a, &b, &extra, &mut c);
        self.bytes_mut(product.c.addr(), product.c.bytes(), "product")?
            .copy_from_slice(bytemuck::cast_slice(&c));
        Ok(())
    }

    fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        if lane == on {
            return lane.index().map(|_| ());
        }
        if let Some(forks) = &mut self.forks {
            forks.after(lane, on)?;
        }
        self.history.after(lane, on)
    }
}

impl Memory for EmulatedExec {
    fn alloc<T: Element>(&mut self, label: &str, len: usize) -> Result<Buf<T>, ExecError> {
        let bytes = len.saturating_mul(size_of::<T>());
        if self.forks.is_some() {
            return Err(ExecError::Sealed { label: label.to_owned(), bytes, when: "during a step" });
        }
        if bytes == 0 {
            return Ok(Buf::NULL);
        }
        let chunks = bytes.div_ceil(size_of::<Chunk>());
        let block: Block = (0..chunks).map(|_| UnsafeCell::new(Chunk([0; 256]))).collect();
        let address = block.as_ptr() as u64;
        self.ledger.insert(address, label, bytes as u64);
        self.blocks.insert(address, block);
        self.order.push(address);
        Ok(Buf::from_raw(address, len))
    }

    fn upload<T: Element>(&mut self, to: Buf<T>, from: &[T]) -> Result<(), ExecError> {
        if to.len() != from.len() {
            return Err(ExecError::Length { operation: "upload", buffer: to.len(), host: from.len() });
        }
        self.forbid_in_step("upload", || format!("{to:?}"))?;
        self.history.barrier();
        self.bytes_mut(to.addr(), to.bytes(), "upload")?.copy_from_slice(bytemuck::cast_slice(from));
        Ok(())
    }

    fn download<T: Element>(&mut self, from: Buf<T>) -> Result<Vec<T>, ExecError> {
        self.forbid_in_step("download", || format!("{from:?}"))?;
        self.history.barrier();
        self.read(from, "download")
    }
}

#[cfg(test)]
mod tests;
