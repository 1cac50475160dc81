//! A kernel seen from the host: its declaration, and a launch as a plain value.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;

use crate::contract::ContractError;

/// A launch: a struct of the kernel's arguments, made by `#[kernel]`.
pub trait Kernel: Copy + Sync + 'static {
    /// What the kernel is, the same for every launch.
    const DECL: KernelDecl;
    /// Blocks of the grid. [`Dim3::OVERFLOW`] when the expression overflows, which [`Kernel::check`] refuses.
    fn grid(&self) -> Dim3;
    /// Bytes of dynamic shared memory a block. `u32::MAX` when the expression overflows, which
    /// [`Kernel::check`] refuses.
    fn shared_bytes(&self) -> u32;
    /// Whether the arguments fulfil the kernel's contract: its `requires` relations, a grid and shared memory
    /// that a device can have, and buffers aligned to their element.
    fn check(&self) -> Result<(), ContractError>;
    /// What the launch reads and writes, one entry a buffer argument, in order.
    fn accesses(&self) -> Vec<Access>;
    /// Replaces `out` by the kernel's parameters: one word a PTX parameter, in order.
    fn params(&self, out: &mut ParamWords);
    /// The body, as one GPU thread runs it. Only [`crate::emulator::Emulator`] gives it a thread to be.
    fn thread(&self);
}

/// The declaration of one kernel: what its PTX entry must look like and how it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDecl {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// Threads per block, in x.
    pub block: u32,
    /// Most block barriers (`bar.sync`, `barrier.sync`) in the PTX entry.
    pub barriers: u32,
    /// Most shuffles (`shfl.sync`) in the PTX entry.
    pub shuffles: u32,
    /// Most votes (`vote.sync`) and warp barriers (`bar.warp.sync`) in the PTX entry.
    pub votes: u32,
    /// Most matrix products (`mma.sync`, `wgmma`) and loads of matrices in the PTX entry.
    pub mmas: u32,
    /// Blocks that a multiprocessor is to have registers for at once, so that one works while another waits; 0 leaves the
    /// number to the assembler.
    pub resident: u32,
    /// The one target, as `sm_90a`, for which the kernel is compiled; else for all.
    pub only: Option<&'static str>,
    /// Parameters in order.
    pub params: &'static [Param],
    /// Source file of the kernel.
    pub file: &'static str,
    /// Line of its `#[kernel]` attribute.
    pub line: u32,
}

impl KernelDecl {
    /// Refuses, at compile time, what no device can launch.
    pub const fn validated(self) -> KernelDecl {
        assert!(self.block >= 1 && self.block <= 1024, "a block has 1 to 1024 threads");
        assert!(
            self.block.is_multiple_of(32) || self.shuffles + self.votes + self.mmas == 0,
            "warp operations need full warps: the block must be a multiple of 32"
        );
        assert!(self.params.len() <= ParamWords::CAPACITY, "a kernel has at most 72 parameters");
        self
    }

    /// Whether the body may call a block barrier or a warp operation.
    pub const fn synchronises(&self) -> bool {
        self.barriers + self.shuffles + self.votes + self.mmas > 0
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name of the argument.
    pub name: &'static str,
    /// Its type.
    pub ty: ParamType,
}

/// How an argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamType {
    /// By value.
    Scalar(ElementType),
    /// A buffer, by its address.
    Buffer(AccessKind, ElementType),
}

impl ParamType {
    /// Size of the PTX parameter in bytes.
    pub const fn size(self) -> usize {
        match self {
            ParamType::Scalar(element) => element.size(),
            ParamType::Buffer(..) => 8,
        }
    }
}

/// The type of a scalar or of a buffer's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are named as their types")]
pub enum ElementType {
    F32,
    F64,
    U32,
    I32,
    U64,
    I64,
    U16,
    U8,
}

impl ElementType {
    /// Size in bytes.
    pub const fn size(self) -> usize {
        match self {
            ElementType::U8 => 1,
            ElementType::U16 => 2,
            ElementType::F32 | ElementType::U32 | ElementType::I32 => 4,
            ElementType::F64 | ElementType::U64 | ElementType::I64 => 8,
        }
    }
}

/// What a launch does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// Only reads it (`In`).
    Read,
    /// Only writes it (`Out`).
    Write,
    /// Both (`InOut`).
    ReadWrite,
}

impl AccessKind {
    /// Whether the buffer's content may change.
    pub const fn writes(self) -> bool {
        !matches!(self, AccessKind::Read)
    }
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::ReadWrite => "read and write",
        })
    }
}

/// One buffer of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Name of the argument.
    pub name: &'static str,
    /// Address of its first element.
    pub addr: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// What the launch does with it.
    pub kind: AccessKind,
}

impl Access {
    /// Whether the two share a byte.
    pub const fn overlaps(&self, other: &Access) -> bool {
        self.bytes > 0
            && other.bytes > 0
            && self.addr < other.addr + other.bytes
            && other.addr < self.addr + self.bytes
    }
}

/// Three sizes or indices: x, y, z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// First, the one that runs fastest.
    pub x: u32,
    /// Second.
    pub y: u32,
    /// Third.
    pub z: u32,
}

impl Dim3 {
    /// Stands for a grid whose expression overflowed; no launch with it passes [`Kernel::check`].
    pub const OVERFLOW: Dim3 = Dim3 { x: u32::MAX, y: u32::MAX, z: u32::MAX };

    /// Number of blocks.
    pub const fn count(self) -> u128 {
        self.x as u128 * self.y as u128 * self.z as u128
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Dim3 {
        Dim3 { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Dim3 {
        Dim3 { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Dim3 {
        Dim3 { x, y, z }
    }
}

impl fmt::Display for Dim3 {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "({}, {}, {})", self.x, self.y, self.z)
    }
}

/// The parameters of a launch, one 64-bit word each, little-endian: a shorter one is its word's first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamWords {
    words: [u64; ParamWords::CAPACITY],
    len: usize,
}

impl ParamWords {
    /// Most parameters of a kernel.
    pub const CAPACITY: usize = 72;

    /// No parameters.
    pub const fn new() -> ParamWords {
        ParamWords { words: [0; ParamWords::CAPACITY], len: 0 }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends one.
    ///
    /// # Panics
    /// Beyond [`ParamWords::CAPACITY`], which [`KernelDecl::validated`] excludes at compile time.
    pub fn push(&mut self, value: impl ParamWord) {
        self.words[self.len] = value.word();
        self.len += 1;
    }

    /// The words, in order.
    pub fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }

    /// Pointers to the words, as `cuLaunchKernel` and graph kernel nodes take them. The driver copies what they
    /// point to during the call.
    pub fn pointers(&self) -> ParamPointers<'_> {
        let mut pointers = [std::ptr::null_mut(); ParamWords::CAPACITY];
        for (pointer, word) in pointers.iter_mut().zip(self.words()) {
            *pointer = std::ptr::from_ref(word).cast_mut().cast();
        }
        ParamPointers { pointers, words: PhantomData }
    }
}

impl Default for ParamWords {
    fn default() -> ParamWords {
        ParamWords::new()
    }
}

/// An array of pointers to the words of a [`ParamWords`].
#[derive(Debug)]
pub struct ParamPointers<'a> {
    pointers: [*mut c_void; ParamWords::CAPACITY],
    words: PhantomData<&'a ParamWords>,
}

impl ParamPointers<'_> {
    /// The array's address, for the driver's `void **kernelParams`.
    pub fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.pointers.as_mut_ptr()
    }
}

/// A value that fits one parameter word.
pub trait ParamWord {
    /// The value's bytes, then zeros.
    fn word(self) -> u64;
}

macro_rules! param_word {
    ($($ty:ty: $value:ident => $word:expr),* $(,)?) => { $(
        impl ParamWord for $ty {
            fn word(self) -> u64 {
                let $value = self;
                $word
            }
        }
    )* };
}

param_word!(
    u32: v => u64::from(v),
    i32: v => u64::from(v as u32),
    u64: v => v,
    i64: v => v as u64,
    f32: v => u64::from(v.to_bits()),
    f64: v => v.to_bits(),
);

/// The declarations of the listed launch structs, as `&'static [&'static KernelDecl]`.
///
/// ```ignore
/// #[cfg(not(target_arch = "nvptx64"))]
/// pub static KERNELS: &[&cuda_std::KernelDecl] = cuda_std::kernel_list![kernels::bias_lrelu::BiasLrelu];
/// ```
#[macro_export]
macro_rules! kernel_list {
    ($($kernel:ty),* $(,)?) => {
        &[$(&<$kernel as $crate::Kernel>::DECL),*]
    };
}
