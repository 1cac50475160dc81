//! The block's shared memory and, for each of its words, who touched it last.

use std::panic::Location;

use crate::emulator::order::{Clock, Recent, Record};
use crate::host::kernel::AccessKind;

/// What is known of a word. Epochs and blocks never repeat within a launch, so a new block needs no clearing.
#[derive(Clone, Copy)]
struct Word {
    /// An asynchronous copy into it is under way: `write` is its start.
    copying: bool,
    /// The last write; of an earlier block when nothing has written it in this one.
    write: Record,
    /// How often the writing thread had published its writes before.
    published: u32,
    /// The reads since.
    reads: Recent,
}

impl Word {
    const NONE: Word = Word { copying: false, write: Record::NONE, published: 0, reads: Recent::NONE };
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
}

impl SharedMemory {
    /// `bytes` bytes.
    pub fn new(bytes: u32) -> SharedMemory {
        let words = bytes.div_ceil(4) as usize;
        SharedMemory { values: vec![0; words], words: vec![Word::NONE; words], bytes }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Reads a word.
    #[inline]
    pub fn read(
        &mut self,
        clock: &Clock,
        word: u32,
        thread: u32,
        at: &'static Location<'static>,
    ) -> Result<u32, Conflict> {
        let state = &mut self.words[word as usize];
        if state.write.block != clock.block {
            return Err(Conflict::Uninitialised);
        }
        if state.copying {
            return Err(Conflict::Copying(state.write));
        }
        let read = clock.record(thread, at);
        if state.write.races_in_block(&read) {
            return Err(Conflict::Race(AccessKind::Write, state.write));
        }
        state.reads.note(read);
        Ok(self.values[word as usize])
    }

    /// Writes a word by a thread that has published its writes so often; `None` begins an asynchronous copy into it, which
    /// [`SharedMemory::land`] ends.
    #[inline]
    pub fn write(
        &mut self,
        clock: &Clock,
        word: u32,
        value: Option<u32>,
        thread: u32,
        published: u32,
        at: &'static Location<'static>,
    ) -> Result<(), Conflict> {
        let write = clock.record(thread, at);
        let state = &mut self.words[word as usize];
        if state.copying && state.write.block == clock.block {
            return Err(Conflict::Copying(state.write));
        }
        if state.write.races_in_block(&write) {
            return Err(Conflict::Race(AccessKind::Write, state.write));
        }
        if let Some(read) = state.reads.racing_in_block(&write) {
            return Err(Conflict::Race(AccessKind::Read, *read));
        }
        // Whatever is ordered after this write is ordered after the reads before it: they can be forgotten.
        *state = Word { copying: value.is_none(), write, published, reads: Recent::NONE };
        if let Some(value) = value {
            self.values[word as usize] = value;
        }
        Ok(())
    }

    /// The last write of a word, and how often its thread had published before.
    pub fn writer(&self, word: u32) -> (Record, u32) {
        let state = &self.words[word as usize];
        (state.write, state.published)
    }

    /// An asynchronous copy by `thread` arrives: from now on its line counts as an ordinary write.
    pub fn land(&mut self, clock: &Clock, word: u32, value: u32, thread: u32, published: u32) {
        let state = &mut self.words[word as usize];
        state.copying = false;
        state.published = published;
        state.write = clock.record(thread, state.write.at);
        self.values[word as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sequence of up to five accesses by four threads (two warps of which two lanes each act) and warp
    /// barriers: the compact record must call the same last access a race as a full history does.
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
            let (mut memory, mut clock) = (SharedMemory::new(4), Clock::new(64));
            clock.begin_block();
            // Initialised in an earlier epoch, so that only races are in question.
            assert!(memory.write(&clock, 0, Some(0), 0, 0, at).is_ok());
            clock.block_barrier();
            let mut history: Vec<(bool, Record)> = Vec::new();
            let mut rest = code;
            for _ in 0..length {
                let step = steps[rest % steps.len()];
                rest /= steps.len();
                let (write, thread) = match step {
                    Step::Read(thread) => (false, thread),
                    Step::Write(thread) => (true, thread),
                    Step::Warp(warp) => {
                        clock.warp_barrier(warp);
                        continue;
                    }
                    Step::Barrier => {
                        clock.block_barrier();
                        continue;
                    }
                };
                let record = clock.record(thread, at);
                let expected = history
                    .iter()
                    .any(|(wrote, earlier)| (*wrote || write) && earlier.races_in_block(&record));
                let found = if write {
                    memory.write(&clock, 0, Some(1), thread, 0, at).err()
                } else {
                    memory.read(&clock, 0, thread, at).err()
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
