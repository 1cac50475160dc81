//! What a training step is written against: lanes, kernel launches, matrix products, memory.
//!
//! `record` functions (see `step`) take any [`Exec`]. On the GPU a lane is a stream and the same function runs
//! once eagerly and once under capture; in the emulator every launch runs at once on the CPU, and the order
//! that the lanes promise is checked (a launch that reads what another lane wrote without an `after` is an error).

use std::fmt;

use cuda_std::{Access, Buf, Kernel, KernelDecl};
use settings::Precision;

use crate::error::ExecError;
use crate::extent::Extent;

/// One stream of the step graph. Lanes run concurrently unless ordered by [`Exec::after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u8);

impl Lane {
    /// The lane where a step begins and ends.
    pub const MAIN: Lane = Lane(0);
    /// The target network's forward pass.
    pub const TARGET: Lane = Lane(1);
    /// Weight-gradient products beside the data-gradient chain.
    pub const GRADIENT: Lane = Lane(2);
    /// The IQN head, forward to its own gradient and the trunk's.
    pub const IQN: Lane = Lane(3);
    /// Temporal attention: folding, context, backward.
    pub const ATTENTION: Lane = Lane(4);
    /// The IQL value networks.
    pub const IQL: Lane = Lane(5);
    /// The CQL loss beside the C51 loss.
    pub const CQL: Lane = Lane(6);
    /// Importance weights after the sampling and priorities beside the optimizer, where the CQL loss never runs.
    pub const REPLAY: Lane = Lane::CQL;
    /// The attention's context of the target network's rows, beside the online network's.
    pub const CONTEXT: Lane = Lane(7);
    /// The Mamba-2 block: folding, block, backward.
    pub const MAMBA: Lane = Lane(16);
    /// Ensemble and confidence head.
    pub const AUX: Lane = Lane(17);
    /// Copies of a data set's next shard, beside the graphs of training steps.
    pub const COPY: Lane = Lane(18);
    /// Most lanes a step may use.
    pub const COUNT: usize = 19;

    /// The lane of branch head d (0 to 7).
    pub const fn branch(d: usize) -> Lane {
        Lane(8 + d as u8)
    }

    /// Position in per-lane tables, or an error for a lane past [`Lane::COUNT`].
    pub fn index(self) -> Result<usize, ExecError> {
        let index = usize::from(self.0);
        if index < Lane::COUNT { Ok(index) } else { Err(ExecError::NoSuchLane { lane: self }) }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "lane main"),
            1 => write!(f, "lane target"),
            2 => write!(f, "lane gradient"),
            3 => write!(f, "lane iqn"),
            4 => write!(f, "lane attention"),
            5 => write!(f, "lane iql"),
            6 => write!(f, "lane cql"),
            7 => write!(f, "lane context"),
            17 => write!(f, "lane aux"),
            18 => write!(f, "lane copy"),
            d @ 8..=15 => write!(f, "lane branch{}", d - 8),
            16 => write!(f, "lane mamba"),
            other => write!(f, "lane {other}"),
        }
    }
}

/// Which operand of C = A B is stored transposed. All matrices are row-major with a row stride `ld`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// C[m, n] = sum_k A[m, k] B[n, k]: forward, B a weight `[out, in]`.
    Nt,
    /// C[m, n] = sum_k A[m, k] B[k, n]: data gradient.
    Nn,
    /// C[m, n] = sum_k A[k, m] B[k, n]: weight gradient, k the batch.
    Tn,
}

/// What is applied to a product before it is stored.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// + bias[n].
    Bias(Buf<f32>),
    /// LeakyReLU(C + bias[n]).
    BiasLrelu(Buf<f32>, f32),
    /// C * lrelu'(h[m, n]), h the layer's stored output with row stride `ldc`: the data gradient through the activation.
    LreluBackward(Buf<f32>, f32),
}

/// A matrix product with its epilogue.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Name for errors, plans and profiles, for example `trunk1.forward`.
    pub label: &'static str,
    /// Which operand is transposed.
    pub form: Form,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Summed dimension.
    pub k: usize,
    /// First operand.
    pub a: Buf<f32>,
    /// Row stride of `a` in floats.
    pub lda: usize,
    /// Second operand.
    pub b: Buf<f32>,
    /// Row stride of `b` in floats.
    pub ldb: usize,
    /// Result.
    pub c: Buf<f32>,
    /// Row stride of `c` in floats.
    pub ldc: usize,
    /// Applied before the store.
    pub epilogue: Epilogue,
    /// Arithmetic.
    pub precision: Precision,
}

/// Bytes that a launch reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The bytes.
    pub extent: Extent,
    /// Whether they may change.
    pub writes: bool,
}

impl Touch {
    /// All of a kernel's buffer argument.
    pub fn whole(access: &Access) -> Self {
        Self { extent: Extent::contiguous(access.addr, access.bytes), writes: access.kind.writes() }
    }
}

/// Runs or records launches and products.
pub trait Exec {
    /// Launches a kernel on a lane; the contract of its declaration is checked first.
    fn launch<K: Kernel>(&mut self, lane: Lane, kernel: &K) -> Result<(), ExecError>;
    /// As [`Exec::launch`], for a kernel whose buffer arguments reach further than what it touches, such as a block
    /// of columns of a matrix: `touches` says which bytes it really reads and writes. The check of the lanes' order
    /// takes them instead of the whole arguments, which on two lanes would seem to be in each other's way.
    fn launch_touching<K: Kernel>(
        &mut self,
        lane: Lane,
        kernel: &K,
        touches: &[Touch],
    ) -> Result<(), ExecError>;
    /// Whether it has the kernel: the image that was loaded for this GPU may be without one that needs another target.
    fn has(&self, kernel: &KernelDecl) -> bool;
    /// Computes a product on a lane.
    fn product(&mut self, lane: Lane, product: &Product) -> Result<(), ExecError>;
    /// Everything issued on `lane` from now on waits for everything issued on `on` so far (fork and join).
    fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError>;
}

/// Plain data that lives in device memory.
pub trait Element: bytemuck::Pod + Default {}
impl<T: bytemuck::Pod + Default> Element for T {}

/// Where buffers live: device memory, or host memory for the emulator.
pub trait Memory {
    /// Reserves `len` zeroed elements under a label that errors and the memory report use.
    fn alloc<T: Element>(&mut self, label: &str, len: usize) -> Result<Buf<T>, ExecError>;
    /// Copies from the host, synchronously.
    fn upload<T: Element>(&mut self, to: Buf<T>, from: &[T]) -> Result<(), ExecError>;
    /// Copies to the host after everything issued so far, synchronously.
    fn download<T: Element>(&mut self, from: Buf<T>) -> Result<Vec<T>, ExecError>;
}
