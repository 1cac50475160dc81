//! Block barriers and warp operations: what a thread says when it waits, and what a full warp computes.

use std::panic::Location;

use crate::emulator::context::{self, State};
use crate::emulator::fault::Fault;

/// A warp operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Sync,
    ShuffleXor,
    ShuffleDown,
    ShuffleUp,
    ShuffleIndex,
    Ballot,
    Any,
    All,
    MmaTf32,
    MmaBf16,
}

impl Operation {
    /// As faults call it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Sync => "warp barrier",
            Operation::ShuffleXor => "xor shuffle",
            Operation::ShuffleDown => "down shuffle",
            Operation::ShuffleUp => "up shuffle",
            Operation::ShuffleIndex => "indexed shuffle",
            Operation::Ballot => "ballot",
            Operation::Any => "vote (any)",
            Operation::All => "vote (all)",
            Operation::MmaTf32 => "tf32 matrix product",
            Operation::MmaBf16 => "bf16 matrix product",
        }
    }

    /// The key of `#[kernel]` that limits it.
    fn limit(self) -> &'static str {
        match self {
            Operation::ShuffleXor
            | Operation::ShuffleDown
            | Operation::ShuffleUp
            | Operation::ShuffleIndex => "shuffles",
            Operation::Sync | Operation::Ballot | Operation::Any | Operation::All => "votes",
            Operation::MmaTf32 | Operation::MmaBf16 => "mmas",
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
        Exchange { operation: Operation::Sync, argument: 0, words: [0; Exchange::WORDS] };
}

/// Waits at a block barrier.
pub fn barrier(at: &'static Location<'static>) {
    let declared = context::with(|context| {
        let declared = context.decl.barriers > 0;
        if declared {
            let thread = context.thread as usize;
            context.threads[thread].state = State::Barrier(at);
        }
        declared
    });
    if !declared {
        undeclared("block barrier", "barriers", at);
    }
    context::switch();
}

/// Waits at a warp operation and returns the first words of its result.
pub fn collective(
    operation: Operation,
    argument: u32,
    operands: &[u32],
    at: &'static Location<'static>,
) -> [u32; 4] {
    let declared = context::with(|context| {
        let declared = match operation.limit() {
            "shuffles" => context.decl.shuffles,
            "votes" => context.decl.votes,
            _ => context.decl.mmas,
        } > 0;
        if declared {
            let thread = &mut context.threads[context.thread as usize];
            thread.exchange.operation = operation;
            thread.exchange.argument = argument;
            thread.exchange.words[..operands.len()].copy_from_slice(operands);
            thread.state = State::Warp(at);
        }
        declared
    });
    if !declared {
        undeclared(operation.name(), operation.limit(), at);
    }
    context::switch();
    context::with(|context| {
        let words = &context.threads[context.thread as usize].exchange.words;
        [words[0], words[1], words[2], words[3]]
    })
}

#[cold]
fn undeclared(operation: &'static str, limit: &'static str, at: &'static Location<'static>) -> ! {
    context::raise(|context| Fault::Undeclared { at: context.site(at), operation, limit })
}
