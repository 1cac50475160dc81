//! The block's dynamic shared memory and asynchronous copies into it.
//!
//! rustc has no address spaces, and accesses through a generic pointer to shared memory are not turned into
//! `ld.shared`: so views keep 32-bit shared addresses and every access is one `asm!` instruction.

use core::arch::{asm, global_asm};
use core::marker::PhantomData;

use crate::buffer::In;

// Tiles that `warpgroup` reads begin at multiples of 1,024 bytes.
global_asm!(".extern .shared .align 1024 .b8 cuda_std_dynamic_shared[];");

/// Shared address of the block's dynamic shared memory.
#[inline(always)]
pub(super) fn base() -> u32 {
    let address: u32;
    // SAFETY: takes the address of a symbol.
    unsafe {
        asm!("mov.u32 {}, cuda_std_dynamic_shared;", out(reg32) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// A view of the block's shared memory as elements of T. A plain handle.
pub struct Shared<T> {
    address: u32,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Shared<T> {
    #[inline(always)]
    fn clone(&self) -> Shared<T> {
        *self
    }
}

impl<T> Copy for Shared<T> {}

/// The `len` elements of T that start `byte_offset` bytes into the block's dynamic shared memory.
#[inline(always)]
pub fn array<T: SharedElement>(byte_offset: u32, len: u32) -> Shared<T> {
    let _ = len;
    Shared { address: base().wrapping_add(byte_offset), element: PhantomData }
}

/// Types that shared memory holds: four or eight bytes.
pub trait SharedElement: crate::Element {
    /// `ld.shared`.
    ///
    /// # Safety
    /// `address` is an element in the block's shared memory, here and below.
    unsafe fn load(address: u32) -> Self;
    /// `st.shared`.
    ///
    /// # Safety
    /// As [`SharedElement::load`].
    unsafe fn store(address: u32, value: Self);
}

/// Types with vector accesses.
pub trait SharedQuad: SharedElement {
    /// `ld.shared.v2`.
    ///
    /// # Safety
    /// As [`SharedElement::load`], for two elements aligned to their size.
    unsafe fn load2(address: u32) -> [Self; 2];
    /// `st.shared.v2`.
    ///
    /// # Safety
    /// As [`SharedQuad::load2`].
    unsafe fn store2(address: u32, value: [Self; 2]);
    /// `ld.shared.v4`.
    ///
    /// # Safety
    /// As [`SharedElement::load`], for four elements aligned to their size.
    unsafe fn load4(address: u32) -> [Self; 4];
    /// `st.shared.v4`.
    ///
    /// # Safety
    /// As [`SharedQuad::load4`].
    unsafe fn store4(address: u32, value: [Self; 4]);
}

/// `nomem` without `pure`: LLVM keeps these in order among each other and with barriers (it treats them as
/// accesses of memory that the program cannot see), but may move accesses of global memory over them.
macro_rules! shared_element {
    ($($ty:ident $class:ident $suffix:literal;)*) => { $(
        impl SharedElement for $ty {
            #[inline(always)]
            unsafe fn load(address: u32) -> $ty {
                let value: $ty;
                // SAFETY: the caller vouches for the address, here and below.
                unsafe {
                    asm!(concat!("ld.shared.", $suffix, " {}, [{}];"), out($class) value, in(reg32) address,
                        options(nomem, nostack, preserves_flags));
                }
                value
            }
            #[inline(always)]
            unsafe fn store(address: u32, value: $ty) {
                // SAFETY: see `load`.
                unsafe {
                    asm!(concat!("st.shared.", $suffix, " [{}], {};"), in(reg32) address, in($class) value,
                        options(nomem, nostack, preserves_flags));
                }
            }
        }
    )* };
}

shared_element! {
    f32 reg32 "b32";
    u32 reg32 "b32";
    i32 reg32 "b32";
    f64 reg64 "b64";
}

macro_rules! shared_quad {
    ($($ty:ident),*) => { $(
        impl SharedQuad for $ty {
            #[inline(always)]
            unsafe fn load2(address: u32) -> [$ty; 2] {
                let (a, b): ($ty, $ty);
                // SAFETY: the caller vouches for the address, here and below.
                unsafe {
                    asm!("ld.shared.v2.b32 {{{}, {}}}, [{}];", out(reg32) a, out(reg32) b, in(reg32) address,
                        options(nomem, nostack, preserves_flags));
                }
                [a, b]
            }
            #[inline(always)]
            unsafe fn store2(address: u32, [a, b]: [$ty; 2]) {
                // SAFETY: see `load2`.
                unsafe {
                    asm!("st.shared.v2.b32 [{}], {{{}, {}}};", in(reg32) address, in(reg32) a, in(reg32) b,
                        options(nomem, nostack, preserves_flags));
                }
            }
            #[inline(always)]
            unsafe fn load4(address: u32) -> [$ty; 4] {
                let (a, b, c, d): ($ty, $ty, $ty, $ty);
                // SAFETY: see `load2`.
                unsafe {
                    asm!("ld.shared.v4.b32 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
                        out(reg32) c, out(reg32) d, in(reg32) address, options(nomem, nostack, preserves_flags));
                }
                [a, b, c, d]
            }
            #[inline(always)]
            unsafe fn store4(address: u32, [a, b, c, d]: [$ty; 4]) {
                // SAFETY: see `load2`.
                unsafe {
                    asm!("st.shared.v4.b32 [{}], {{{}, {}, {}, {}}};", in(reg32) address, in(reg32) a,
                        in(reg32) b, in(reg32) c, in(reg32) d, options(nomem, nostack, preserves_flags));
                }
            }
        }
    )* };
}

shared_quad!(f32, u32, i32);

impl<T> Shared<T> {
    #[inline(always)]
    fn at(&self, i: u32) -> u32 {
        self.address.wrapping_add(i.wrapping_mul(size_of::<T>() as u32))
    }
}

// SAFETY of the accesses below: the emulator checks bounds and alignment.

impl<T: SharedElement> Shared<T> {
    /// Element i.
    #[inline(always)]
    pub fn get(&self, i: u32) -> T {
        unsafe { T::load(self.at(i)) }
    }

    /// Element i becomes `value`.
    #[inline(always)]
    pub fn set(&self, i: u32, value: T) {
        unsafe { T::store(self.at(i), value) }
    }
}

impl<T: SharedQuad> Shared<T> {
    /// Elements i, i + 1 in one 8-byte access, aligned to 8 bytes.
    #[inline(always)]
    pub fn get2(&self, i: u32) -> [T; 2] {
        unsafe { T::load2(self.at(i)) }
    }

    /// Elements i, i + 1 in one 8-byte access, aligned to 8 bytes.
    #[inline(always)]
    pub fn set2(&self, i: u32, values: [T; 2]) {
        unsafe { T::store2(self.at(i), values) }
    }

    /// Elements i .. i + 4 in one 16-byte access, aligned to 16 bytes.
    #[inline(always)]
    pub fn get4(&self, i: u32) -> [T; 4] {
        unsafe { T::load4(self.at(i)) }
    }

    /// Elements i .. i + 4 in one 16-byte access, aligned to 16 bytes.
    #[inline(always)]
    pub fn set4(&self, i: u32, values: [T; 4]) {
        unsafe { T::store4(self.at(i), values) }
    }
}

impl Shared<u32> {
    /// Four matrices of 8 x 8 16-bit elements, two a word, the lower half first (`ldmatrix`). A row is four words from a
    /// multiple of four on; lane l gives the first word of row l % 8 of matrix l / 8. With g = lane / 4 and t = lane % 4 a
    /// lane gets of each matrix M the elements M[g, 2t] and M[g, 2t + 1]. All lanes call, in control flow that is the
    /// same for the whole warp: `asm!` has no convergent marker.
    #[inline(always)]
    pub fn get_matrices(&self, row: u32) -> [u32; 4] {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: the emulator checks the rows and that all lanes call.
        unsafe {
            asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
                out(reg32) c, out(reg32) d, in(reg32) self.at(row), options(nomem, nostack, preserves_flags));
        }
        [a, b, c, d]
    }

    /// The same of the transposed matrices: M[2t, g] and M[2t + 1, g].
    #[inline(always)]
    pub fn get_matrices_transposed(&self, row: u32) -> [u32; 4] {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: as above.
        unsafe {
            asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];", out(reg32) a,
                out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) self.at(row),
                options(nomem, nostack, preserves_flags));
        }
        [a, b, c, d]
    }
}

/// Starts copying 16 bytes from `src[src_i ..]` to `dst[dst_i .. dst_i + 4]`, both 16-byte aligned (`cp.async`):
/// the first `bytes` (0 to 16) are read, the rest becomes zero. Done after [`copy_commit`] and [`copy_wait`].
#[inline(always)]
pub fn copy_async16(dst: Shared<f32>, dst_i: u32, src: &In<f32>, src_i: u32, bytes: u32) {
    // SAFETY: the emulator checks both ranges. `cp.async` needs no convergence.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16, {};", in(reg32) dst.at(dst_i),
            in(reg64) src.address(src_i), in(reg32) bytes, options(nomem, nostack, preserves_flags));
    }
}

/// Starts copying 4 bytes from `src[src_i]` to `dst[dst_i]`; with `bytes` = 0 the destination becomes zero.
#[inline(always)]
pub fn copy_async4(dst: Shared<f32>, dst_i: u32, src: &In<f32>, src_i: u32, bytes: u32) {
    // SAFETY: see `copy_async16`.
    unsafe {
        asm!("cp.async.ca.shared.global [{}], [{}], 4, {};", in(reg32) dst.at(dst_i),
            in(reg64) src.address(src_i), in(reg32) bytes, options(nomem, nostack, preserves_flags));
    }
}

/// Closes this thread's current group of copies.
#[inline(always)]
pub fn copy_commit() {
    // SAFETY: needs nothing.
    unsafe { asm!("cp.async.commit_group;", options(nomem, nostack, preserves_flags)) }
}

/// Waits until at most the N newest groups of this thread are under way. Other threads see the data after the
/// next block barrier.
#[inline(always)]
pub fn copy_wait<const N: usize>() {
    // SAFETY: needs nothing.
    unsafe { asm!("cp.async.wait_group {};", const N, options(nomem, nostack, preserves_flags)) }
}
