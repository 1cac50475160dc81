//! Device buffers as the host and the emulator see them.
//!
//! A buffer argument holds address, length and the argument's name. On a GPU run the address is the device's
//! and only passed on; in the emulator it is a host address, and every access is checked against the length.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

use crate::contract::ArgumentValue;
use crate::element::Element;
use crate::emulator::access::{self, Target};
use crate::host::kernel::{Access, AccessKind};

/// `len` elements of T in device memory (in the emulator: in host memory). A plain handle: it owns nothing.
pub struct Buf<T> {
    addr: u64,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Buf<T> {
    /// No memory: for an optional argument that is not given.
    pub const NULL: Buf<T> = Buf { addr: 0, len: 0, element: PhantomData };

    /// A handle to `len` elements that start at `addr`. Whoever makes it vouches for the memory.
    pub const fn from_raw(addr: u64, len: usize) -> Buf<T> {
        Buf { addr, len, element: PhantomData }
    }

    /// Address of the first element.
    #[inline(always)]
    pub const fn addr(self) -> u64 {
        self.addr
    }

    /// Elements.
    #[inline(always)]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Elements `offset .. offset + len`, or None when that is not inside.
    pub const fn try_slice(self, offset: usize, len: usize) -> Option<Buf<T>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Some(Buf::from_raw(self.addr + (offset * size_of::<T>()) as u64, len))
            }
            _ => None,
        }
    }

    /// Elements `offset .. offset + len`.
    ///
    /// # Panics
    /// When that is not inside, as slicing does: the range comes from the program, not from input.
    #[track_caller]
    pub const fn slice(self, offset: usize, len: usize) -> Buf<T> {
        match self.try_slice(offset, len) {
            Some(slice) => slice,
            None => panic!("a slice of a buffer reaches beyond its end"),
        }
    }
}

impl<T> Clone for Buf<T> {
    fn clone(&self) -> Buf<T> {
        *self
    }
}

impl<T> Copy for Buf<T> {}

impl<T> PartialEq for Buf<T> {
    fn eq(&self, other: &Buf<T>) -> bool {
        (self.addr, self.len) == (other.addr, other.len)
    }
}

impl<T> Eq for Buf<T> {}

impl<T> Default for Buf<T> {
    fn default() -> Buf<T> {
        Buf::NULL
    }
}

impl<T> fmt::Debug for Buf<T> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:#x}[{}]", self.addr, self.len)
    }
}

macro_rules! argument {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub struct $name<T> {
            buf: Buf<T>,
            name: &'static str,
        }

        impl<T> Clone for $name<T> {
            fn clone(&self) -> $name<T> {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                self.buf.fmt(f)
            }
        }

        impl<T> From<Buf<T>> for $name<T> {
            fn from(buf: Buf<T>) -> $name<T> {
                $name { buf, name: "" }
            }
        }

        impl<T> $name<T> {
            /// The buffer that was passed.
            pub const fn buf(&self) -> Buf<T> {
                self.buf
            }

            /// Address of the first element.
            pub const fn addr(&self) -> u64 {
                self.buf.addr
            }

            /// Elements. For the kernel's contract; a kernel's body does not know the length.
            pub const fn len(&self) -> usize {
                self.buf.len
            }

            /// Whether it has no element.
            pub const fn is_empty(&self) -> bool {
                self.buf.len == 0
            }

            /// The same buffer, called `name` in faults.
            #[inline(always)]
            pub const fn named(self, name: &'static str) -> $name<T> {
                $name { buf: self.buf, name }
            }

            /// As it appears in a contract error.
            pub const fn value(&self) -> ArgumentValue {
                ArgumentValue::Buffer { addr: self.buf.addr, len: self.buf.len, element: size_of::<T>() }
            }

            /// What a launch does with it.
            pub const fn access(&self, name: &'static str) -> Access {
                Access { name, addr: self.buf.addr, bytes: self.buf.bytes(), kind: AccessKind::$kind }
            }

            #[inline(always)]
            pub(crate) fn target(&self) -> Target<T> {
                Target { buf: self.buf, name: self.name, kind: AccessKind::$kind }
            }
        }
    };
}

argument! {
    /// A buffer that a kernel reads and that nothing writes while it runs.
    In, Read
}
argument! {
    /// A buffer that a kernel writes.
    Out, Write
}
argument! {
    /// A buffer that a kernel reads and writes.
    InOut, ReadWrite
}

macro_rules! readable {
    ($($name:ident),*) => { $(
        impl<T: Element> $name<T> {
            /// Element i.
            #[track_caller]
            #[inline(always)]
            pub fn get(&self, i: u32) -> T {
                access::read(self.target(), i, Location::caller())
            }
        }

        impl<T: Quad> $name<T> {
            /// Elements i and i + 1 in one 8-byte access; their address is a multiple of 8.
            #[track_caller]
            #[inline(always)]
            pub fn get2(&self, i: u32) -> [T; 2] {
                access::read2(self.target(), i, Location::caller())
            }

            /// Elements i .. i + 4 in one 16-byte access; their address is a multiple of 16.
            #[track_caller]
            #[inline(always)]
            pub fn get4(&self, i: u32) -> [T; 4] {
                access::read4(self.target(), i, Location::caller())
            }
        }
    )* };
}

macro_rules! writable {
    ($($name:ident),*) => { $(
        impl<T: Element> $name<T> {
            /// Element i becomes `value`.
            #[track_caller]
            #[inline(always)]
            pub fn set(&self, i: u32, value: T) {
                access::write(self.target(), i, value, Location::caller());
            }
        }

        impl<T: Quad> $name<T> {
            /// Elements i and i + 1 in one 8-byte access; their address is a multiple of 8.
            #[track_caller]
            #[inline(always)]
            pub fn set2(&self, i: u32, value: [T; 2]) {
                access::write2(self.target(), i, value, Location::caller());
            }

            /// Elements i .. i + 4 in one 16-byte access; their address is a multiple of 16.
            #[track_caller]
            #[inline(always)]
            pub fn set4(&self, i: u32, value: [T; 4]) {
                access::write4(self.target(), i, value, Location::caller());
            }
        }
    )* };
}

readable!(In, InOut);
writable!(Out, InOut);

/// Elements of four bytes, four of which make one 16-byte access.
pub trait Quad: Element {}
impl Quad for f32 {}
impl Quad for u32 {}
impl Quad for i32 {}

/// Integers with atomic operations.
pub trait Atomic: Element + Ord {
    /// a + b, wrapping.
    fn wrapping_sum(self, other: Self) -> Self;
}

macro_rules! atomic {
    ($($ty:ty),*) => { $(
        impl Atomic for $ty {
            fn wrapping_sum(self, other: $ty) -> $ty { self.wrapping_add(other) }
        }
    )* };
}

atomic!(u32, i32, u64);

impl<T: Atomic> InOut<T> {
    /// Adds `value` (wrapping) to element i and returns what was there; relaxed, GPU scope.
    #[track_caller]
    pub fn atomic_add(&self, i: u32, value: T) -> T {
        access::update(self.target(), i, |old| old.wrapping_sum(value), Location::caller())
    }

    /// Element i becomes the larger of itself and `value`; returns what was there; relaxed, GPU scope.
    #[track_caller]
    pub fn atomic_max(&self, i: u32, value: T) -> T {
        access::update(self.target(), i, |old| old.max(value), Location::caller())
    }

    /// Element i becomes the smaller of itself and `value`; returns what was there; relaxed, GPU scope.
    #[track_caller]
    pub fn atomic_min(&self, i: u32, value: T) -> T {
        access::update(self.target(), i, |old| old.min(value), Location::caller())
    }

    /// Element i becomes `value`; returns what was there; relaxed, GPU scope.
    #[track_caller]
    pub fn atomic_exchange(&self, i: u32, value: T) -> T {
        access::update(self.target(), i, |_| value, Location::caller())
    }

    /// Element i becomes `value` where it is `expected`; returns what was there; relaxed, GPU scope.
    #[track_caller]
    pub fn atomic_cas(&self, i: u32, expected: T, value: T) -> T {
        access::update(self.target(), i, |old| if old == expected { value } else { old }, Location::caller())
    }
}
