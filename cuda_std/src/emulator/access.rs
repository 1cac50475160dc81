//! Checked accesses to global memory.

use std::panic::Location;

use crate::buffer::{Buf, Quad};
use crate::element::Element;
use crate::emulator::context;
use crate::emulator::fault::{Fault, Site};
use crate::host::kernel::AccessKind;

/// A buffer and its argument.
pub struct Target<T> {
    pub buf: Buf<T>,
    /// The argument's name.
    pub name: &'static str,
    /// What the argument allows.
    pub kind: AccessKind,
}

impl<T> Target<T> {
    /// Address of elements i .. i + count, which must be inside and whose address must be a multiple of `align`.
    #[inline(always)]
    fn address(
        &self,
        i: u32,
        count: u32,
        align: usize,
        access: AccessKind,
        at: &'static Location<'static>,
    ) -> *mut T {
        let len = self.buf.len() as u64;
        if u64::from(i) + u64::from(count) > len {
            out_of_bounds(self.name, access, u64::from(i).max(len), len, at);
        }
        let address = self.buf.addr() as usize + i as usize * size_of::<T>();
        if !address.is_multiple_of(align) {
            misaligned(self.name, u64::from(i), align as u32, at);
        }
        if context::is_watched() {
            self.watch(i, address as u64, count as usize * size_of::<T>(), access, at);
        }
        address as *mut T
    }

    /// Memory that the launch reads through an `In` must not be written by it; and no two threads may access an
    /// element unordered, one of them writing.
    #[cold]
    fn watch(&self, i: u32, addr: u64, size: usize, access: AccessKind, at: &'static Location<'static>) {
        let other = context::with(|context| match (self.kind, access.writes()) {
            (AccessKind::Read, _) => context.aliases.read(self.name, addr, size),
            (_, true) => context.aliases.write(self.name, addr, size),
            // A read through an `InOut` is coherent.
            (_, false) => None,
        });
        if let Some(other) = other {
            let (buffer, index) = (self.name, u64::from(i));
            context::raise(|context| Fault::Aliased { at: context.site(at), access, buffer, index, other });
        }
        let race = context::with(|context| {
            let record = context.clock.record(context.thread, at);
            context.global.as_mut().and_then(|global| global.access(addr, size, access, record).err())
        });
        if let Some((other_access, other)) = race {
            context::raise(|context| Fault::GlobalRace {
                at: context.site(at),
                access,
                buffer: self.name,
                index: i,
                other_access,
                other: Box::new(Site {
                    block: context.blocks[other.block as usize - 1],
                    ..context.site_of(other.thread, other.at.into())
                }),
            });
        }
    }
}

impl<T> From<crate::buffer::In<T>> for Target<T> {
    fn from(argument: crate::buffer::In<T>) -> Target<T> {
        argument.target()
    }
}

/// The address of element i must be a multiple of `bytes`.
pub fn check_alignment<T>(target: &Target<T>, i: u32, bytes: u32, at: &'static Location<'static>) {
    let address = target.buf.addr() + u64::from(i) * size_of::<T>() as u64;
    if !address.is_multiple_of(u64::from(bytes)) {
        misaligned(target.name, u64::from(i), bytes, at);
    }
}

#[cold]
fn out_of_bounds(
    buffer: &'static str,
    access: AccessKind,
    index: u64,
    len: u64,
    at: &'static Location<'static>,
) -> ! {
    context::raise(|context| Fault::OutOfBounds { at: context.site(at), buffer, access, index, len })
}

#[cold]
fn misaligned(buffer: &'static str, index: u64, bytes: u32, at: &'static Location<'static>) -> ! {
    context::raise(|context| Fault::Misaligned { at: context.site(at), buffer, index, bytes })
}

/// Reads element i.
#[inline(always)]
pub fn read<T: Element>(target: Target<T>, i: u32, at: &'static Location<'static>) -> T {
    let address = target.address(i, 1, align_of::<T>(), AccessKind::Read, at);
    // SAFETY: inside the buffer and aligned; whoever made the `Buf` vouches for its memory, and only this OS
    // thread runs the launch.
    unsafe { address.read() }
}

/// Writes element i.
#[inline(always)]
pub fn write<T: Element>(target: Target<T>, i: u32, value: T, at: &'static Location<'static>) {
    let address = target.address(i, 1, align_of::<T>(), AccessKind::Write, at);
    // SAFETY: as in `read`.
    unsafe { address.write(value) }
}

/// Reads elements i and i + 1, 8-byte aligned.
#[inline(always)]
pub fn read2<T: Quad>(target: Target<T>, i: u32, at: &'static Location<'static>) -> [T; 2] {
    let address = target.address(i, 2, 8, AccessKind::Read, at);
    // SAFETY: as in `read`, for two elements.
    unsafe { address.cast::<[T; 2]>().read() }
}

/// Reads elements i .. i + 4, 16-byte aligned.
#[inline(always)]
pub fn read4<T: Quad>(target: Target<T>, i: u32, at: &'static Location<'static>) -> [T; 4] {
    let address = target.address(i, 4, 16, AccessKind::Read, at);
    // SAFETY: as in `read`, for four elements.
    unsafe { address.cast::<[T; 4]>().read() }
}

/// Writes elements i .. i + 4, 16-byte aligned.
#[inline(always)]
pub fn write4<T: Quad>(target: Target<T>, i: u32, value: [T; 4], at: &'static Location<'static>) {
    let address = target.address(i, 4, 16, AccessKind::Write, at);
    // SAFETY: as in `read`, for four elements.
    unsafe { address.cast::<[T; 4]>().write(value) }
}

/// Writes elements i and i + 1, 8-byte aligned.
#[inline(always)]
pub fn write2<T: Quad>(target: Target<T>, i: u32, value: [T; 2], at: &'static Location<'static>) {
    let address = target.address(i, 2, 8, AccessKind::Write, at);
    // SAFETY: as in `read`, for two elements.
    unsafe { address.cast::<[T; 2]>().write(value) }
}

/// Replaces element i by `f` of it and returns what was there. Atomic, because one emulated thread runs at a time
/// and switches only at barriers and warp operations.
pub fn update<T: Element>(
    target: Target<T>,
    i: u32,
    f: impl FnOnce(T) -> T,
    at: &'static Location<'static>,
) -> T {
    let address = target.address(i, 1, align_of::<T>(), AccessKind::ReadWrite, at);
    // SAFETY: as in `read`.
    unsafe {
        let old = address.read();
        address.write(f(old));
        old
    }
}
