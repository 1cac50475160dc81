//! Buffers on the device: addresses in global memory. Nothing is checked here; the launch contract is checked by
//! the host and every access by the emulator.

use core::arch::asm;

use crate::element::Element;

/// A buffer that a kernel reads and that nothing writes while it runs.
#[repr(transparent)]
pub struct In<T>(*const T);

/// A buffer that a kernel writes.
#[repr(transparent)]
pub struct Out<T>(*mut T);

/// A buffer that a kernel reads and writes.
#[repr(transparent)]
pub struct InOut<T>(*mut T);

/// Four elements that move as one 16-byte access.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Aligned<T>([T; 4]);

/// Two elements that move as one 8-byte access.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Pair<T>([T; 2]);

/// Elements of four bytes, four of which make one 16-byte access.
pub trait Quad: Element {}
impl Quad for f32 {}
impl Quad for u32 {}
impl Quad for i32 {}

impl<T> In<T> {
    /// From the kernel's parameter: a reference for its `noalias readonly`, from which the loads become
    /// `ld.global.nc`.
    #[inline(always)]
    pub fn from_parameter(parameter: &'static [T; 0]) -> In<T> {
        In(parameter.as_ptr())
    }

    /// Address of element i, for instructions that take one.
    #[inline(always)]
    pub(crate) fn address(&self, i: u32) -> *const T {
        self.0.wrapping_add(i as usize)
    }
}

macro_rules! common {
    ($($name:ident),*) => { $(
        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> $name<T> {
                *self
            }
        }

        impl<T> Copy for $name<T> {}
    )* };
}

macro_rules! readable {
    ($($name:ident),*) => { $(
        impl<T: Element> $name<T> {
            /// Element i.
            #[inline(always)]
            pub fn get(&self, i: u32) -> T {
                // SAFETY: the launch contract and the emulator vouch for i.
                unsafe { self.0.add(i as usize).read() }
            }
        }

        impl<T: Quad> $name<T> {
            /// Elements i and i + 1 in one 8-byte access; their address is a multiple of 8.
            #[inline(always)]
            pub fn get2(&self, i: u32) -> [T; 2] {
                // SAFETY: the launch contract and the emulator vouch for i, i + 1 and the alignment.
                unsafe { self.0.add(i as usize).cast::<Pair<T>>().read().0 }
            }

            /// Elements i .. i + 4 in one 16-byte access; their address is a multiple of 16.
            #[inline(always)]
            pub fn get4(&self, i: u32) -> [T; 4] {
                // SAFETY: the launch contract and the emulator vouch for i .. i + 4 and the alignment.
                unsafe { self.0.add(i as usize).cast::<Aligned<T>>().read().0 }
            }
        }
    )* };
}

macro_rules! writable {
    ($($name:ident),*) => { $(
        impl<T> $name<T> {
            /// From the kernel's parameter: a raw pointer, because other threads write the buffer too.
            #[inline(always)]
            pub fn from_parameter(parameter: *mut T) -> $name<T> {
                $name(parameter)
            }
        }

        impl<T: Element> $name<T> {
            /// Element i becomes `value`.
            #[inline(always)]
            pub fn set(&self, i: u32, value: T) {
                // SAFETY: the launch contract and the emulator vouch for i.
                unsafe { self.0.add(i as usize).write(value) }
            }
        }

        impl<T: Quad> $name<T> {
            /// Elements i and i + 1 in one 8-byte access; their address is a multiple of 8.
            #[inline(always)]
            pub fn set2(&self, i: u32, value: [T; 2]) {
                // SAFETY: the launch contract and the emulator vouch for i, i + 1 and the alignment.
                unsafe { self.0.add(i as usize).cast::<Pair<T>>().write(Pair(value)) }
            }

            /// Elements i .. i + 4 in one 16-byte access; their address is a multiple of 16.
            #[inline(always)]
            pub fn set4(&self, i: u32, value: [T; 4]) {
                // SAFETY: the launch contract and the emulator vouch for i .. i + 4 and the alignment.
                unsafe { self.0.add(i as usize).cast::<Aligned<T>>().write(Aligned(value)) }
            }
        }
    )* };
}

common!(In, Out, InOut);
readable!(In, InOut);
writable!(Out, InOut);

/// Integers with atomic operations: relaxed, GPU scope.
pub trait Atomic: Element {
    /// Adds and returns what was there.
    ///
    /// # Safety
    /// `address` is an element in global memory; the same holds for the other operations.
    unsafe fn add(address: *mut Self, value: Self) -> Self;
    /// Stores the larger and returns what was there.
    ///
    /// # Safety
    /// As [`Atomic::add`].
    unsafe fn max(address: *mut Self, value: Self) -> Self;
    /// Stores the smaller and returns what was there.
    ///
    /// # Safety
    /// As [`Atomic::add`].
    unsafe fn min(address: *mut Self, value: Self) -> Self;
    /// Stores `value` and returns what was there.
    ///
    /// # Safety
    /// As [`Atomic::add`].
    unsafe fn exchange(address: *mut Self, value: Self) -> Self;
    /// Stores `value` where `expected` is and returns what was there.
    ///
    /// # Safety
    /// As [`Atomic::add`].
    unsafe fn compare_and_swap(address: *mut Self, expected: Self, value: Self) -> Self;
}

/// `atom` needs no convergence: `asm!` is fine for it.
macro_rules! atomic {
    ($($ty:ident $class:ident: $bits:literal, $add:literal, $order:literal;)*) => { $(
        impl Atomic for $ty {
            #[inline(always)]
            unsafe fn add(address: *mut $ty, value: $ty) -> $ty {
                atomic!(@ $ty $class concat!("atom.relaxed.gpu.global.add.", $add), address, value)
            }
            #[inline(always)]
            unsafe fn max(address: *mut $ty, value: $ty) -> $ty {
                atomic!(@ $ty $class concat!("atom.relaxed.gpu.global.max.", $order), address, value)
            }
            #[inline(always)]
            unsafe fn min(address: *mut $ty, value: $ty) -> $ty {
                atomic!(@ $ty $class concat!("atom.relaxed.gpu.global.min.", $order), address, value)
            }
            #[inline(always)]
            unsafe fn exchange(address: *mut $ty, value: $ty) -> $ty {
                atomic!(@ $ty $class concat!("atom.relaxed.gpu.global.exch.", $bits), address, value)
            }
            #[inline(always)]
            unsafe fn compare_and_swap(address: *mut $ty, expected: $ty, value: $ty) -> $ty {
                let old: $ty;
                // SAFETY: the caller vouches for the address.
                unsafe {
                    asm!(
                        concat!("atom.relaxed.gpu.global.cas.", $bits, " {}, [{}], {}, {};"),
                        out($class) old, in(reg64) address, in($class) expected, in($class) value,
                        options(nostack, preserves_flags)
                    );
                }
                old
            }
        }
    )* };
    (@ $ty:ident $class:ident $instruction:expr, $address:ident, $value:ident) => {{
        let old: $ty;
        // SAFETY: the caller vouches for the address.
        unsafe {
            asm!(
                concat!($instruction, " {}, [{}], {};"),
                out($class) old, in(reg64) $address, in($class) $value,
                options(nostack, preserves_flags)
            );
        }
        old
    }};
}

atomic! {
    u32 reg32: "b32", "u32", "u32";
    i32 reg32: "b32", "s32", "s32";
    u64 reg64: "b64", "u64", "u64";
}

impl<T: Atomic> InOut<T> {
    /// Adds `value` (wrapping) to element i and returns what was there; relaxed, GPU scope.
    #[inline(always)]
    pub fn atomic_add(&self, i: u32, value: T) -> T {
        // SAFETY: the launch contract and the emulator vouch for i, here and below.
        unsafe { T::add(self.0.add(i as usize), value) }
    }

    /// Element i becomes the larger of itself and `value`; returns what was there; relaxed, GPU scope.
    #[inline(always)]
    pub fn atomic_max(&self, i: u32, value: T) -> T {
        // SAFETY: see `atomic_add`.
        unsafe { T::max(self.0.add(i as usize), value) }
    }

    /// Element i becomes the smaller of itself and `value`; returns what was there; relaxed, GPU scope.
    #[inline(always)]
    pub fn atomic_min(&self, i: u32, value: T) -> T {
        // SAFETY: see `atomic_add`.
        unsafe { T::min(self.0.add(i as usize), value) }
    }

    /// Element i becomes `value`; returns what was there; relaxed, GPU scope.
    #[inline(always)]
    pub fn atomic_exchange(&self, i: u32, value: T) -> T {
        // SAFETY: see `atomic_add`.
        unsafe { T::exchange(self.0.add(i as usize), value) }
    }

    /// Element i becomes `value` where it is `expected`; returns what was there; relaxed, GPU scope.
    #[inline(always)]
    pub fn atomic_cas(&self, i: u32, expected: T, value: T) -> T {
        // SAFETY: see `atomic_add`.
        unsafe { T::compare_and_swap(self.0.add(i as usize), expected, value) }
    }
}
