//! The block's shared memory and, for each of its words, who touched it last.
//!
//! Two accesses are ordered when they are by one thread, when a block barrier lies between them, or, within one
//! warp, a warp operation. Barriers are counted in a block epoch that never repeats within a launch (so a new
//! block needs no clearing), warp operations in an epoch per warp. The record of a word is small and still
//! exact: the last write, and two reads since then chosen so that any write that races with some read races with
//! one of the two (see [`Word::note_read`]).

use std::panic::Location;

use crate::host::kernel::AccessKind;

/// One access of a word.
#[derive(Clone, Copy)]
pub struct Record {
    /// Block epoch; 0 means no access.
    epoch: u32,
    /// Epoch of the thread's warp.
    warp_epoch: u32,
    pub thread: u32,
    pub at: &'static Location<'static>,
}

impl Record {
    const NONE: Record = Record { epoch: 0, warp_epoch: 0, thread: 0, at: Location::caller() };

    /// Whether `later`, an access that happens after this one in the interleaving, is unordered with it.
    #[inline(always)]
    fn races(&self, later: &Record) -> bool {
        self.epoch == later.epoch
            && self.thread != later.thread
            && (!self.same_warp(later) || self.warp_epoch == later.warp_epoch)
    }

    #[inline(always)]
    fn same_warp(&self, other: &Record) -> bool {
        self.thread / 32 == other.thread / 32
    }
}

/// What is known of a word.
#[derive(Clone, Copy)]
struct Word {
    /// The block that wrote it last; 0 means none.
    block: u32,
    /// An asynchronous copy into it is under way: `write` is its start.
    copying: bool,
    write: Record,
    reads: [Record; 2],
}

impl Word {
    const NONE: Word = Word { block: 0, copying: false, write: Record::NONE, reads: [Record::NONE; 2] };

    /// Keeps the read if it can race with a write that the two kept ones cannot.
    ///
    /// Reads from two different warps race with a write by any thread. Reads from one warp alone race only with
    /// writes from other warps (any one read shows that) and with writes from that warp in the same warp epoch
    /// by another thread (two reads of the newest epoch by different threads show that).
    #[inline(always)]
    fn note_read(&mut self, read: Record) {
        let [first, second] = &mut self.reads;
        if first.epoch != read.epoch {
            *first = read;
            *second = Record::NONE;
        } else if first.thread == read.thread {
            *first = read;
        } else if second.epoch != read.epoch || second.thread == read.thread {
            *second = read;
        } else if first.same_warp(second) {
            if !first.same_warp(&read) {
                *second = read;
            } else if first.warp_epoch < read.warp_epoch {
                *first = read;
            } else if second.warp_epoch < read.warp_epoch {
                *second = read;
            }
        }
    }
}

/// Why an access is wrong.
pub enum Conflict {
    /// It races with another one.
    Race(AccessKind, Record),
    /// An asynchronous copy into the word is under way.
    Copying(Record),
    /// It reads what nothing has written.
    Uninitialised,
}

/// The dynamic shared memory of the running block.
pub struct SharedMemory {
    values: Vec<u32>,
    words: Vec<Word>,
    /// Size in bytes, which need not be a multiple of four.
    bytes: u32,
    /// Counts the blocks run, from 1.
    block: u32,
    /// Counts the block barriers of all blocks, from 1.
    epoch: u32,
    /// Counts the warp operations of each warp since the block began.
    warp_epochs: Vec<u32>,
}

impl SharedMemory {
    /// For blocks of `threads` threads with `bytes` bytes.
    pub fn new(bytes: u32, threads: u32) -> SharedMemory {
        let words = bytes.div_ceil(4) as usize;
        SharedMemory {
            values: vec![0; words],
            words: vec![Word::NONE; words],
            bytes,
            block: 0,
            epoch: 0,
            warp_epochs: vec![0; threads.div_ceil(32) as usize],
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// A new block begins: all its words are unwritten.
    pub fn begin_block(&mut self) {
        self.block += 1;
        self.epoch += 1;
        self.warp_epochs.fill(0);
    }

    /// All threads of the block are at a barrier.
    pub fn block_barrier(&mut self) {
        self.epoch += 1;
    }

    /// All lanes of the warp are at a warp operation.
    pub fn warp_operation(&mut self, warp: usize) {
        self.warp_epochs[warp] += 1;
    }

    #[inline(always)]
    fn record(&self, thread: u32, at: &'static Location<'static>) -> Record {
        Record { epoch: self.epoch, warp_epoch: self.warp_epochs[thread as usize / 32], thread, at }
    }

    /// Reads a word.
    #[inline]
    pub fn read(&mut self, word: u32, thread: u32, at: &'static Location<'static>) -> Result<u32, Conflict> {
        let read = self.record(thread, at);
        let state = &mut self.words[word as usize];
        if state.block != self.block {
            return Err(Conflict::Uninitialised);
        }
        if state.copying {
            return Err(Conflict::Copying(state.write));
        }
        if state.write.races(&read) {
            return Err(Conflict::Race(AccessKind::Write, state.write));
        }
        state.note_read(read);
        Ok(self.values[word as usize])
    }

    /// Writes a word; `None` begins an asynchronous copy into it, which [`SharedMemory::land`] ends.
    #[inline]
    pub fn write(
        &mut self,
        word: u32,
        value: Option<u32>,
        thread: u32,
        at: &'static Location<'static>,
    ) -> Result<(), Conflict> {
        let write = self.record(thread, at);
        let block = self.block;
        let state = &mut self.words[word as usize];
        if state.copying && state.block == block {
            return Err(Conflict::Copying(state.write));
        }
        if state.write.races(&write) {
            return Err(Conflict::Race(AccessKind::Write, state.write));
        }
        if let Some(read) = state.reads.iter().find(|read| read.races(&write)) {
            return Err(Conflict::Race(AccessKind::Read, *read));
        }
        // Whatever is ordered after this write is ordered after the reads before it: they can be forgotten.
        *state = Word { block, copying: value.is_none(), write, reads: [Record::NONE; 2] };
        if let Some(value) = value {
            self.values[word as usize] = value;
        }
        Ok(())
    }

    /// An asynchronous copy by `thread` arrives: from now on its line counts as an ordinary write.
    pub fn land(&mut self, word: u32, value: u32, thread: u32) {
        let at = self.words[word as usize].write.at;
        let write = self.record(thread, at);
        let state = &mut self.words[word as usize];
        state.copying = false;
        state.write = write;
        self.values[word as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of up to five accesses by four threads (two warps of which two lanes each act) and warp
    /// operations: the compact record must call the same last access a race as a full history does.
    #[test]
    fn compact_record_is_exact() {
        #[derive(Clone, Copy)]
        enum Step {
            Read(u32),
            Write(u32),
            Warp(usize),
            Barrier,
        }
        let threads = [0u32, 1, 32, 33];
        let mut steps: Vec<Step> = threads.iter().flat_map(|t| [Step::Read(*t), Step::Write(*t)]).collect();
        steps.extend([Step::Warp(0), Step::Warp(1), Step::Barrier]);

        let at = Location::caller();
        let mut races = 0;
        let length = 5;
        for code in 0..steps.len().pow(length) {
            let mut memory = SharedMemory::new(4, 64);
            memory.begin_block();
            // Initialised in an earlier epoch, so that only races are in question.
            assert!(memory.write(0, Some(0), 0, at).is_ok());
            memory.block_barrier();
            let mut history: Vec<(bool, Record)> = Vec::new();
            let mut rest = code;
            for _ in 0..length {
                let step = steps[rest % steps.len()];
                rest /= steps.len();
                let (write, thread) = match step {
                    Step::Read(thread) => (false, thread),
                    Step::Write(thread) => (true, thread),
                    Step::Warp(warp) => {
                        memory.warp_operation(warp);
                        continue;
                    }
                    Step::Barrier => {
                        memory.block_barrier();
                        continue;
                    }
                };
                let record = memory.record(thread, at);
                let expected =
                    history.iter().any(|(wrote, earlier)| (*wrote || write) && earlier.races(&record));
                let found = if write {
                    memory.write(0, Some(1), thread, at).err()
                } else {
                    memory.read(0, thread, at).err()
                };
                assert_eq!(matches!(found, Some(Conflict::Race(..))), expected, "sequence {code}");
                history.push((write, record));
                if expected {
                    races += 1;
                    break;
                }
            }
        }
        assert!(races > 1000, "the sequences hold only {races} races");
    }
}
