//! Checked accesses of a kernel to shared memory, and its asynchronous copies.

use std::collections::VecDeque;
use std::panic::Location;

use crate::buffer::In;
use crate::emulator::access::{self, Target};
use crate::emulator::context::{self, Context};
use crate::emulator::fault::Fault;
use crate::emulator::shadow::Conflict;
use crate::host::kernel::AccessKind;

type At = &'static Location<'static>;

/// What faults call it.
const SHARED: &str = "shared memory";

/// A view of `bytes` bytes from `offset`, aligned to `align`, must be inside the block's shared memory.
pub fn check_view(offset: u32, bytes: u64, align: usize, at: At) {
    let available = u64::from(context::with(|context| context.shared.bytes()));
    if u64::from(offset) + bytes > available {
        let index = u64::from(offset).max(available);
        out_of_bounds(AccessKind::ReadWrite, index, available, at);
    }
    if !(offset as usize).is_multiple_of(align) {
        misaligned(u64::from(offset), align as u32, at);
    }
}

/// Elements i .. i + count must be inside a view of `len`.
#[inline(always)]
pub fn check_index(i: u32, count: u32, len: u32, write: bool, at: At) {
    if u64::from(i) + u64::from(count) > u64::from(len) {
        let access = if write { AccessKind::Write } else { AccessKind::Read };
        out_of_bounds(access, u64::from(i.max(len)), u64::from(len), at);
    }
}

/// A vector access of `count` words at element i must start at a multiple of its size.
#[inline(always)]
pub fn check_alignment(word: u32, i: u32, count: u32, at: At) {
    if !word.is_multiple_of(count) {
        misaligned(u64::from(i), 4 * count, at);
    }
}

#[cold]
fn out_of_bounds(access: AccessKind, index: u64, len: u64, at: At) -> ! {
    context::raise(|c| Fault::OutOfBounds { at: c.site(at), buffer: SHARED, access, index, len })
}

#[cold]
fn misaligned(index: u64, bytes: u32, at: At) -> ! {
    context::raise(|c| Fault::Misaligned { at: c.site(at), buffer: SHARED, index, bytes })
}

/// Reads a word.
#[inline(always)]
pub fn read(word: u32, at: At) -> u32 {
    match context::with(|c| c.shared.read(&c.clock, word, c.thread, at)) {
        Ok(value) => value,
        Err(conflict) => raise(conflict, AccessKind::Read, word, at),
    }
}

/// Reads a word as a warpgroup's product does: whoever wrote it must have published it since.
#[inline(always)]
pub fn read_for_product(word: u32, at: At) -> u32 {
    check_view(word.saturating_mul(4), 4, 4, at);
    let value = read(word, at);
    let writer = context::with(|c| {
        let (writer, published) = c.shared.writer(word);
        (c.threads[writer.thread as usize].published == published).then_some(writer)
    });
    if let Some(writer) = writer {
        context::raise(|c| Fault::NotPublished {
            at: c.site(at),
            writer: writer.thread,
            write: writer.at.into(),
            byte: 4 * word,
        });
    }
    value
}

/// The running thread publishes what it has written so far.
pub fn publish() {
    context::with(|c| c.threads[c.thread as usize].published += 1);
}

/// Writes a word.
#[inline(always)]
pub fn write(word: u32, value: u32, at: At) {
    let written = context::with(|c| {
        let published = c.threads[c.thread as usize].published;
        c.shared.write(&c.clock, word, Some(value), c.thread, published, at)
    });
    if let Err(conflict) = written {
        raise(conflict, AccessKind::Write, word, at);
    }
}

#[cold]
fn raise(conflict: Conflict, access: AccessKind, word: u32, at: At) -> ! {
    context::raise(|c| fault(c, conflict, access, word, at))
}

fn fault(context: &Context, conflict: Conflict, access: AccessKind, word: u32, at: At) -> Fault {
    let (at, byte) = (context.site(at), 4 * word);
    match conflict {
        Conflict::Race(other_access, other) => Fault::SharedRace {
            at,
            access,
            other_access,
            other_thread: other.thread,
            other: other.at.into(),
            byte,
        },
        Conflict::Copying(copy) => {
            Fault::CopyNotAwaited { at, access, copy_thread: copy.thread, copy: copy.at.into(), byte }
        }
        Conflict::Uninitialised => Fault::SharedUninitialised { at, byte },
    }
}

/// One word that is on its way to shared memory.
struct Pending {
    word: u32,
    value: u32,
}

/// The asynchronous copies of one thread.
#[derive(Default)]
pub struct Copies {
    /// Not yet committed.
    open: Vec<Pending>,
    /// Committed and not yet waited for, the oldest first.
    groups: VecDeque<Vec<Pending>>,
}

impl Copies {
    /// Forgets all: the thread is about to begin.
    pub fn clear(&mut self) {
        if !(self.open.is_empty() && self.groups.is_empty()) {
            *self = Copies::default();
        }
    }
}

/// Starts a copy of `count` words of which the first `bytes` bytes come from `src[src_i ..]` and the rest are
/// zero. The source is read now, the destination changes at the wait.
pub fn copy_async(word: u32, count: u32, src: In<f32>, src_i: u32, bytes: u32, at: At) {
    if bytes > 4 * count || !bytes.is_multiple_of(4) {
        context::raise(|c| Fault::CopySize { at: c.site(at), bytes, most: 4 * count });
    }
    for e in 0..count {
        let value = if 4 * e < bytes { copied(src, src_i, e, count, at) } else { 0 };
        // Of the copy's landing it matters whether it has been published.
        let written = context::with(|c| c.shared.write(&c.clock, word + e, None, c.thread, 0, at));
        if let Err(conflict) = written {
            raise(conflict, AccessKind::Write, word + e, at);
        }
        context::with(|c| c.copies().open.push(Pending { word: word + e, value }));
    }
}

/// Word e of a copy's source, whose address must be a multiple of the copy's size.
fn copied(src: In<f32>, src_i: u32, e: u32, count: u32, at: At) -> u32 {
    let target = || Target::from(src);
    if e == 0 {
        access::check_alignment(&target(), src_i, 4 * count, at);
    }
    access::read(target(), src_i.saturating_add(e), at).to_bits()
}

/// Closes the running thread's open group.
pub fn copy_commit() {
    context::with(|c| {
        let copies = c.copies();
        let open = std::mem::take(&mut copies.open);
        copies.groups.push_back(open);
    });
}

/// Lands all but the newest `under_way` groups of the running thread.
pub fn copy_wait(under_way: usize) {
    context::with(|c| {
        let thread = c.thread;
        while c.copies().groups.len() > under_way {
            for Pending { word, value } in c.copies().groups.pop_front().unwrap_or_default() {
                let published = c.threads[thread as usize].published;
                c.shared.land(&c.clock, word, value, thread, published);
            }
        }
    });
}
