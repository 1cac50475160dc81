//! Buffers in host memory, for kernels that run in the emulator.

use std::cell::UnsafeCell;
use std::marker::PhantomData;

use crate::buffer::Buf;
use crate::element::Element;

/// Sixteen bytes at a 16-byte boundary, as device allocations have at least.
#[repr(align(16))]
struct Line(#[allow(dead_code, reason = "only its address is used")] [u8; 16]);

/// `len` elements of T at a 16-byte aligned address that launches can write through [`HostBuf::buf`].
pub struct HostBuf<T> {
    lines: Box<[UnsafeCell<Line>]>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> HostBuf<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> HostBuf<T> {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        HostBuf {
            lines: (0..lines).map(|_| UnsafeCell::new(Line([0; 16]))).collect(),
            len,
            element: PhantomData,
        }
    }

    /// The handle that launches take. It must not be used after the buffer is dropped.
    pub fn buf(&self) -> Buf<T> {
        // `UnsafeCell`: a launch writes through this address while the buffer is only borrowed.
        Buf::from_raw(self.lines.as_ptr() as u64, self.len)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A copy of the content.
    pub fn to_vec(&self) -> Vec<T> {
        let address = self.lines.as_ptr().cast::<T>();
        // SAFETY: the allocation holds at least `len` elements, all bytes initialised, every bit pattern a T;
        // no launch runs meanwhile, because launches run on the calling thread and HostBuf is not Sync.
        unsafe { std::slice::from_raw_parts(address, self.len) }.to_vec()
    }

    /// Replaces the content.
    ///
    /// # Panics
    /// When `values` has another length.
    #[track_caller]
    pub fn fill_from(&self, values: &[T]) {
        assert_eq!(values.len(), self.len, "the buffer has another length");
        let address = self.lines.as_ptr().cast::<T>().cast_mut();
        // SAFETY: as in `to_vec`; the cells allow writing through a shared reference.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), address, self.len) };
    }
}

impl<T: Element> From<&[T]> for HostBuf<T> {
    fn from(values: &[T]) -> HostBuf<T> {
        let buf = HostBuf::zeroed(values.len());
        buf.fill_from(values);
        buf
    }
}

impl<T: Element> From<Vec<T>> for HostBuf<T> {
    fn from(values: Vec<T>) -> HostBuf<T> {
        HostBuf::from(values.as_slice())
    }
}
