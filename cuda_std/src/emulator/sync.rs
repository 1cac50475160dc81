//! Block barriers and warp operations: what a thread says when it waits, and what a full warp computes.

use std::fmt;
use std::panic::Location;

use crate::emulator::context::{self, State, Thread};
use crate::emulator::fault::Fault;
use crate::host::kernel::KernelDecl;

/// What threads do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as the functions of `warp` and `thread`")]
pub enum Operation {
    BlockBarrier,
    WarpBarrier,
    ShuffleXor,
    ShuffleDown,
    ShuffleUp,
    ShuffleIndex,
    Ballot,
    Any,
    All,
    MmaTf32,
    MmaBf16,
    MatrixRows,
    GroupProduct,
    QuadRows,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Operation::BlockBarrier => "block barrier",
            Operation::WarpBarrier => "warp barrier",
            Operation::ShuffleXor => "xor shuffle",
            Operation::ShuffleDown => "down shuffle",
            Operation::ShuffleUp => "up shuffle",
            Operation::ShuffleIndex => "indexed shuffle",
            Operation::Ballot => "ballot",
            Operation::Any => "vote (any)",
            Operation::All => "vote (all)",
            Operation::MmaTf32 => "tf32 matrix product",
            Operation::MmaBf16 => "bf16 matrix product",
            Operation::MatrixRows => "load of matrices",
            Operation::GroupProduct | Operation::QuadRows => "product of a warpgroup",
        })
    }
}

impl Operation {
    /// The key of `#[kernel]` that limits it, and the kernel's limit.
    fn limit(self, decl: &KernelDecl) -> (&'static str, u32) {
        match self {
            Operation::BlockBarrier => ("barriers", decl.barriers),
            Operation::ShuffleXor
            | Operation::ShuffleDown
            | Operation::ShuffleUp
            | Operation::ShuffleIndex => ("shuffles", decl.shuffles),
            Operation::WarpBarrier | Operation::Ballot | Operation::Any | Operation::All => {
                ("votes", decl.votes)
            }
            Operation::MmaTf32
            | Operation::MmaBf16
            | Operation::MatrixRows
            | Operation::GroupProduct
            | Operation::QuadRows => ("mmas", decl.mmas),
        }
    }
}

/// What a lane brings to a warp operation, and what it takes away.
#[derive(Clone, Copy)]
pub struct Exchange {
    pub operation: Operation,
    /// Lane mask, distance or source of a shuffle.
    pub argument: u32,
    /// In: the operands. Out: the result, in the first words.
    pub words: [u32; Exchange::WORDS],
}

impl Exchange {
    /// Words of the largest operand list: A, B and C of a matrix product.
    pub const WORDS: usize = 10;

    /// Nothing to exchange.
    pub const NONE: Exchange =
        Exchange { operation: Operation::WarpBarrier, argument: 0, words: [0; Exchange::WORDS] };
}

/// Waits at a block barrier.
pub fn barrier(at: &'static Location<'static>) {
    wait(Operation::BlockBarrier, at, |thread| thread.state = State::Barrier(at));
}

/// Waits at a warp operation and returns the first words of its result.
pub fn collective(
    operation: Operation,
    argument: u32,
    operands: &[u32],
    at: &'static Location<'static>,
) -> [u32; 4] {
    wait(operation, at, |thread| {
        thread.exchange.operation = operation;
        thread.exchange.argument = argument;
        thread.exchange.words[..operands.len()].copy_from_slice(operands);
        thread.state = State::Warp(at);
    });
    context::with(|context| {
        let words = &context.threads[context.thread as usize].exchange.words;
        [words[0], words[1], words[2], words[3]]
    })
}

/// Waits for the warp and returns the first four words of each of the lanes 4 (lane / 4) to 4 (lane / 4) + 3.
pub fn quad(words: &[u32; 4], at: &'static Location<'static>) -> [[u32; 4]; 4] {
    collective(Operation::QuadRows, 0, words, at);
    context::with(|context| context.threads[context.thread as usize].quad)
}

/// Lets the running thread wait as `prepare` says, if its kernel declares such an operation.
fn wait(operation: Operation, at: &'static Location<'static>, prepare: impl FnOnce(&mut Thread)) {
    let declared = context::with(|context| {
        let declared = operation.limit(context.decl).1 > 0;
        if declared {
            prepare(&mut context.threads[context.thread as usize]);
        }
        declared
    });
    if !declared {
        context::raise(|context| {
            let limit = operation.limit(context.decl).0;
            Fault::Undeclared { at: context.site(at), operation, limit }
        });
    }
    context::switch();
}
