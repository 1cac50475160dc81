//! The block's dynamic shared memory and asynchronous copies into it.

use std::marker::PhantomData;
use std::panic::Location;

use crate::buffer::In;
use crate::emulator::shared_access as memory;
use crate::emulator::sync::{self, Operation};

/// Types that shared memory holds: four or eight bytes.
pub trait SharedElement: crate::Element {
    /// Four-byte words of the type.
    const WORDS: u32;
    /// The value's words, the lower first.
    fn to_words(self) -> [u32; 2];
    /// The value of these words.
    fn from_words(words: [u32; 2]) -> Self;
}

impl SharedElement for u32 {
    const WORDS: u32 = 1;
    #[inline(always)]
    fn to_words(self) -> [u32; 2] {
        [self, 0]
    }
    #[inline(always)]
    fn from_words(words: [u32; 2]) -> u32 {
        words[0]
    }
}

impl SharedElement for i32 {
    const WORDS: u32 = 1;
    #[inline(always)]
    fn to_words(self) -> [u32; 2] {
        [self as u32, 0]
    }
    #[inline(always)]
    fn from_words(words: [u32; 2]) -> i32 {
        words[0] as i32
    }
}

impl SharedElement for f32 {
    const WORDS: u32 = 1;
    #[inline(always)]
    fn to_words(self) -> [u32; 2] {
        [self.to_bits(), 0]
    }
    #[inline(always)]
    fn from_words(words: [u32; 2]) -> f32 {
        f32::from_bits(words[0])
    }
}

impl SharedElement for f64 {
    const WORDS: u32 = 2;
    #[inline(always)]
    fn to_words(self) -> [u32; 2] {
        let bits = self.to_bits();
        [bits as u32, (bits >> 32) as u32]
    }
    #[inline(always)]
    fn from_words([low, high]: [u32; 2]) -> f64 {
        f64::from_bits(u64::from(high) << 32 | u64::from(low))
    }
}

/// A view of the block's shared memory as `len` elements of T. A plain handle.
#[derive(Debug)]
pub struct Shared<T> {
    /// First word.
    word: u32,
    /// Elements.
    len: u32,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        *self
    }
}

impl<T> Copy for Shared<T> {}

/// The `len` elements of T that start `byte_offset` bytes into the block's dynamic shared memory.
#[track_caller]
pub fn array<T: SharedElement>(byte_offset: u32, len: u32) -> Shared<T> {
    memory::check_view(
        byte_offset,
        u64::from(len) * size_of::<T>() as u64,
        size_of::<T>(),
        Location::caller(),
    );
    Shared { word: byte_offset / 4, len, element: PhantomData }
}

impl<T: SharedElement> Shared<T> {
    /// First word of elements i .. i + count, which must be inside the view.
    #[inline(always)]
    fn locate(&self, i: u32, count: u32, write: bool, at: &'static Location<'static>) -> u32 {
        memory::check_index(i, count, self.len, write, at);
        self.word + i * T::WORDS
    }

    /// Element i.
    #[track_caller]
    #[inline(always)]
    pub fn get(&self, i: u32) -> T {
        let at = Location::caller();
        let word = self.locate(i, 1, false, at);
        let low = memory::read(word, at);
        T::from_words([low, if T::WORDS == 2 { memory::read(word + 1, at) } else { 0 }])
    }

    /// Element i becomes `value`.
    #[track_caller]
    #[inline(always)]
    pub fn set(&self, i: u32, value: T) {
        let at = Location::caller();
        let word = self.locate(i, 1, true, at);
        let words = value.to_words();
        memory::write(word, words[0], at);
        if T::WORDS == 2 {
            memory::write(word + 1, words[1], at);
        }
    }
}

impl<T: SharedElement + crate::buffer::Quad> Shared<T> {
    fn get_many<const N: usize>(&self, i: u32, at: &'static Location<'static>) -> [T; N] {
        let word = self.locate(i, N as u32, false, at);
        memory::check_alignment(word, i, N as u32, at);
        std::array::from_fn(|e| T::from_words([memory::read(word + e as u32, at), 0]))
    }

    fn set_many<const N: usize>(&self, i: u32, values: [T; N], at: &'static Location<'static>) {
        let word = self.locate(i, N as u32, true, at);
        memory::check_alignment(word, i, N as u32, at);
        for (e, value) in values.into_iter().enumerate() {
            memory::write(word + e as u32, value.to_words()[0], at);
        }
    }

    /// Elements i, i + 1 in one 8-byte access, aligned to 8 bytes.
    #[track_caller]
    pub fn get2(&self, i: u32) -> [T; 2] {
        self.get_many(i, Location::caller())
    }

    /// Elements i, i + 1 in one 8-byte access, aligned to 8 bytes.
    #[track_caller]
    pub fn set2(&self, i: u32, values: [T; 2]) {
        self.set_many(i, values, Location::caller());
    }

    /// Elements i .. i + 4 in one 16-byte access, aligned to 16 bytes.
    #[track_caller]
    pub fn get4(&self, i: u32) -> [T; 4] {
        self.get_many(i, Location::caller())
    }

    /// Elements i .. i + 4 in one 16-byte access, aligned to 16 bytes.
    #[track_caller]
    pub fn set4(&self, i: u32, values: [T; 4]) {
        self.set_many(i, values, Location::caller());
    }
}

impl Shared<u32> {
    /// Four matrices of 8 x 8 16-bit elements, two a word, the lower half first (`ldmatrix`). A row is four words from a
    /// multiple of four on; lane l gives the first word of row l % 8 of matrix l / 8. With g = lane / 4 and t = lane % 4 a
    /// lane gets of each matrix M the elements M[g, 2t] and M[g, 2t + 1]. All lanes call, in control flow that is the
    /// same for the whole warp.
    #[track_caller]
    pub fn get_matrices(&self, row: u32) -> [u32; 4] {
        let at = Location::caller();
        let t = crate::thread::lane() % 4;
        self.matrix_rows(row, 0, at).map(|row| memory::read(row + t, at))
    }

    /// The same of the transposed matrices: M[2t, g] and M[2t + 1, g].
    #[track_caller]
    pub fn get_matrices_transposed(&self, row: u32) -> [u32; 4] {
        let at = Location::caller();
        let g = crate::thread::lane() / 4;
        let (even, odd) = (self.matrix_rows(row, 1, at), self.matrix_rows(row, 2, at));
        let element = |row: u32| memory::read(row + g / 2, at) >> (16 * (g % 2)) & 0xffff;
        std::array::from_fn(|i| element(even[i]) | element(odd[i]) << 16)
    }

    /// First words of the four rows, of all lanes', that a lane reads: by `which` row g, 2t or 2t + 1 of each matrix.
    fn matrix_rows(&self, row: u32, which: u32, at: &'static Location<'static>) -> [u32; 4] {
        let word = self.locate(row, 4, false, at);
        memory::check_alignment(word, row, 4, at);
        sync::collective(Operation::MatrixRows, which, &[word], at)
    }
}

/// Starts copying 16 bytes from `src[src_i ..]` to `dst[dst_i .. dst_i + 4]`, both 16-byte aligned (`cp.async`):
/// the first `bytes` (0 to 16) are read, the rest becomes zero. Done after [`copy_commit`] and [`copy_wait`].
#[track_caller]
pub fn copy_async16(dst: Shared<f32>, dst_i: u32, src: &In<f32>, src_i: u32, bytes: u32) {
    let at = Location::caller();
    let word = dst.locate(dst_i, 4, true, at);
    memory::check_alignment(word, dst_i, 4, at);
    memory::copy_async(word, 4, *src, src_i, bytes, at);
}

/// Starts copying 4 bytes from `src[src_i]` to `dst[dst_i]`; with `bytes` = 0 the destination becomes zero.
#[track_caller]
pub fn copy_async4(dst: Shared<f32>, dst_i: u32, src: &In<f32>, src_i: u32, bytes: u32) {
    let at = Location::caller();
    let word = dst.locate(dst_i, 1, true, at);
    memory::copy_async(word, 1, *src, src_i, bytes, at);
}

/// Closes this thread's current group of copies.
pub fn copy_commit() {
    memory::copy_commit();
}

/// Waits until at most the N newest groups of this thread are under way. Other threads see the data after the
/// next block barrier.
pub fn copy_wait<const N: usize>() {
    memory::copy_wait(N);
}
