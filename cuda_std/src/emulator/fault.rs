//! What the emulator reports.

use std::fmt;
use std::panic::Location;

use crate::contract::ContractError;
use crate::emulator::sync::Operation;
use crate::host::kernel::{AccessKind, Dim3};

/// A line of a kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// File as the compiler was given it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
}

impl From<&'static Location<'static>> for Place {
    fn from(location: &'static Location<'static>) -> Place {
        Place { file: location.file(), line: location.line() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Where a fault was found: kernel, block, thread and line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Index of the block.
    pub block: Dim3,
    /// Index of the thread in its block.
    pub thread: u32,
    /// The line it executes.
    pub place: Place,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: kernel {}, block {}, thread {}", self.place, self.kernel, self.block, self.thread)
    }
}

/// What the thread does that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It has returned from the kernel.
    Finished,
    /// It waits at another place, at the named operation.
    Waits(Operation, Place),
    /// The block has no such thread: its last warp is not full.
    Absent,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Elsewhere::Finished => f.write_str("has finished"),
            Elsewhere::Waits(what, place) => write!(f, "waits at a {what} at {place}"),
            Elsewhere::Absent => f.write_str("does not exist in this block"),
        }
    }
}

/// Why a launch failed in the emulator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The arguments break the kernel's contract; nothing ran.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A thread waits at a block barrier that another thread of the block does not reach.
    #[error("{at} waits at a block barrier, but thread {missing} {elsewhere}")]
    BarrierNotReached {
        /// The waiting thread and the barrier.
        at: Site,
        /// A thread that does not come.
        missing: u32,
        /// What it does instead.
        elsewhere: Elsewhere,
    },
    /// A lane waits at a warp operation that another lane of the warp does not reach.
    #[error("{at} waits at a {operation}, but thread {missing} {elsewhere}")]
    WarpNotConverged {
        /// The waiting lane and the operation's line.
        at: Site,
        /// The operation.
        operation: Operation,
        /// A lane that does not come.
        missing: u32,
        /// What it does instead.
        elsewhere: Elsewhere,
    },
    /// The body uses a kind of synchronisation of which the kernel declares none.
    #[error("{at} calls a {operation}, but the kernel declares `{limit} = 0`")]
    Undeclared {
        /// The call.
        at: Site,
        /// The operation.
        operation: Operation,
        /// The key of `#[kernel]` that limits it.
        limit: &'static str,
    },
    /// An access beyond the end of a buffer or of a view of shared memory.
    #[error("{at}: {access} of {buffer}[{index}] out of bounds: it has {len} elements")]
    OutOfBounds {
        /// The access.
        at: Site,
        /// Name of the argument, or `shared memory`.
        buffer: &'static str,
        /// Whether it reads or writes.
        access: AccessKind,
        /// First element outside.
        index: u64,
        /// Elements that it has.
        len: u64,
    },
    /// An access whose address is not a multiple of its size.
    #[error("{at}: access of {bytes} bytes to {buffer}[{index}] is not aligned to its size")]
    Misaligned {
        /// The access.
        at: Site,
        /// Name of the argument, or `shared memory`.
        buffer: &'static str,
        /// Element index.
        index: u64,
        /// Size of the access, which its address must be a multiple of.
        bytes: u32,
    },
    /// Two unordered accesses to one word of shared memory, at least one of them a write.
    #[error(
        "{at}: {access} of shared byte {byte} races with the {other_access} by thread {other_thread} at {other}"
    )]
    SharedRace {
        /// The later of the two in this interleaving.
        at: Site,
        /// What it does.
        access: AccessKind,
        /// What the other one does.
        other_access: AccessKind,
        /// The other thread of the block.
        other_thread: u32,
        /// Its line.
        other: Place,
        /// Byte offset in the block's shared memory.
        byte: u32,
    },
    /// Two unordered accesses to one element of global memory, at least one of them writing and at least one of
    /// them not atomic. Only found by an emulator that watches global memory.
    #[error(
        "{at}: {} of {buffer}[{index}] races with the {} by block {}, thread {} at {}",
        operation(*access),
        operation(*other_access),
        other.block,
        other.thread,
        other.place
    )]
    GlobalRace {
        /// The later of the two in this interleaving.
        at: Site,
        /// What it does; `ReadWrite` is an atomic operation.
        access: AccessKind,
        /// Name of its argument.
        buffer: &'static str,
        /// First element of the access.
        index: u32,
        /// What the other one does.
        other_access: AccessKind,
        /// Block, thread and line of the other one.
        other: Box<Site>,
    },
    /// A read of shared memory that nothing has written in this block.
    #[error("{at}: read of shared byte {byte}, which nothing has written")]
    SharedUninitialised {
        /// The read.
        at: Site,
        /// Byte offset in the block's shared memory.
        byte: u32,
    },
    /// An access to shared memory into which an asynchronous copy is still under way.
    #[error(
        "{at}: {access} of shared byte {byte}, into which thread {copy_thread} copies since {copy} without a wait"
    )]
    CopyNotAwaited {
        /// The access.
        at: Site,
        /// What it does.
        access: AccessKind,
        /// The thread that started the copy.
        copy_thread: u32,
        /// Where it started it.
        copy: Place,
        /// Byte offset in the block's shared memory.
        byte: u32,
    },
    /// A warpgroup's product reads shared memory that its writer has not published since the write: the tensor cores may
    /// read what was there before.
    #[error(
        "{at}: product of shared byte {byte}, which thread {writer} wrote at {write} and has not published since"
    )]
    NotPublished {
        /// The product.
        at: Site,
        /// The thread that wrote.
        writer: u32,
        /// Where it wrote, or started the copy.
        write: Place,
        /// Byte offset in the block's shared memory.
        byte: u32,
    },
    /// The launch writes memory that it also reads through an `In`, which the device may read through a cache that
    /// does not see the write.
    #[error("{at}: {access} of {buffer}[{index}], which the same launch {}s through {other}", opposite(*access))]
    Aliased {
        /// The second of the two accesses.
        at: Site,
        /// What it does.
        access: AccessKind,
        /// Name of its argument.
        buffer: &'static str,
        /// Element index in it.
        index: u64,
        /// Name of the argument through which the same memory was accessed before.
        other: &'static str,
    },
    /// An asynchronous copy of a size that the instruction does not have.
    #[error("{at}: asynchronous copy of {bytes} bytes: it takes multiples of four up to {most}")]
    CopySize {
        /// The copy.
        at: Site,
        /// The bytes asked for.
        bytes: u32,
        /// The most that this copy moves.
        most: u32,
    },
    /// The body panicked: an overflow, an index, an assertion.
    #[error("{at}: {message}")]
    Panic {
        /// The thread and the line of the panic.
        at: Site,
        /// The panic's message.
        message: String,
    },
    /// The host has no memory for the threads' stacks.
    #[error("kernel {kernel}: no stack for an emulated thread: {reason}")]
    NoStack {
        /// Name of the kernel.
        kernel: &'static str,
        /// What the system says.
        reason: String,
    },
}

/// What an access to global memory is called.
fn operation(access: AccessKind) -> &'static str {
    match access {
        AccessKind::Read => "read",
        AccessKind::Write => "write",
        AccessKind::ReadWrite => "atomic operation",
    }
}

/// What conflicts with an access.
fn opposite(access: AccessKind) -> AccessKind {
    if access.writes() { AccessKind::Read } else { AccessKind::Write }
}
