//! Memory that one launch reads through an `In` and writes through another argument.
//!
//! On the device an `In` is read through the non-coherent cache and the compiler assumes that nothing writes it, so
//! such a read may see either value. Arguments may overlap as ranges (columns of one matrix): only bytes that
//! are really accessed both ways are a fault. Nothing is recorded when no ranges overlap, which is the rule.

use crate::host::kernel::Access;

/// The overlaps of one launch's arguments.
#[derive(Default)]
pub struct Aliases {
    overlaps: Vec<Overlap>,
}

/// The bytes that an `In` shares with a written argument.
struct Overlap {
    read_by: &'static str,
    written_by: &'static str,
    begin: u64,
    /// Per byte: [`READ`] and [`WRITTEN`].
    bytes: Vec<u8>,
}

const READ: u8 = 1;
const WRITTEN: u8 = 2;

impl Aliases {
    /// Finds the overlaps of a launch's buffers.
    pub fn of(accesses: &[Access]) -> Aliases {
        let mut overlaps = Vec::new();
        for read in accesses.iter().filter(|access| !access.kind.writes()) {
            for written in accesses.iter().filter(|access| access.kind.writes()) {
                if read.overlaps(written) {
                    let begin = read.addr.max(written.addr);
                    let end = (read.addr + read.bytes).min(written.addr + written.bytes);
                    overlaps.push(Overlap {
                        read_by: read.name,
                        written_by: written.name,
                        begin,
                        bytes: vec![0; (end - begin) as usize],
                    });
                }
            }
        }
        Aliases { overlaps }
    }

    /// Whether nothing overlaps.
    pub fn is_empty(&self) -> bool {
        self.overlaps.is_empty()
    }

    /// Notes a read through the `In` called `name`; gives the argument through which the launch wrote a byte of it.
    pub fn read(&mut self, name: &str, addr: u64, size: usize) -> Option<&'static str> {
        let overlaps = self.overlaps.iter_mut().filter(|o| o.read_by == name);
        overlaps.filter_map(|o| o.note(addr, size, READ, WRITTEN).then_some(o.written_by)).next()
    }

    /// Notes a write through the argument called `name`; gives the `In` through which the launch read a byte of it.
    pub fn write(&mut self, name: &str, addr: u64, size: usize) -> Option<&'static str> {
        let overlaps = self.overlaps.iter_mut().filter(|o| o.written_by == name);
        overlaps.filter_map(|o| o.note(addr, size, WRITTEN, READ).then_some(o.read_by)).next()
    }
}

impl Overlap {
    /// Marks the bytes of an access and says whether one of them has the `conflict` mark.
    fn note(&mut self, addr: u64, size: usize, mark: u8, conflict: u8) -> bool {
        let end = (addr + size as u64).saturating_sub(self.begin) as usize;
        let begin = (addr.max(self.begin) - self.begin) as usize;
        let mut found = false;
        for byte in self.bytes.iter_mut().take(end).skip(begin) {
            *byte |= mark;
            found |= *byte & conflict != 0;
        }
        found
    }
}
