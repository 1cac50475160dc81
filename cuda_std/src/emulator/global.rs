//! Races on global memory, for launches that are watched.
//!
//! Every element that a launch may write has a record of its last write, and of reads and atomic operations since.
//! Atomic operations do not race with each other.

use crate::emulator::order::{Recent, Record};
use crate::host::kernel::{Access, AccessKind, KernelDecl, ParamType};

/// The accesses of one kind to one element.
#[derive(Clone, Copy)]
struct Accesses {
    /// One of an earlier block than the newest: it races with everything that comes.
    earlier: Record,
    /// Those of the newest block.
    recent: Recent,
}

impl Accesses {
    const NONE: Accesses = Accesses { earlier: Record::NONE, recent: Recent::NONE };

    fn note(&mut self, access: Record) {
        let newest = self.recent.newest();
        if newest.block != 0 && newest.block != access.block {
            self.earlier = *newest;
        }
        self.recent.note(access);
    }

    fn racing(&self, later: &Record) -> Option<&Record> {
        if self.earlier.races(later) { Some(&self.earlier) } else { self.recent.racing(later) }
    }
}

/// What is known of an element.
#[derive(Clone, Copy)]
struct Element {
    write: Record,
    reads: Accesses,
    atomics: Accesses,
}

impl Element {
    const NONE: Element = Element { write: Record::NONE, reads: Accesses::NONE, atomics: Accesses::NONE };

    /// Notes an access (`ReadWrite` is an atomic operation), or gives the one that it races with.
    fn access(&mut self, kind: AccessKind, access: Record) -> Result<(), (AccessKind, Record)> {
        let conflict = |kind, found: Option<&Record>| found.map_or(Ok(()), |record| Err((kind, *record)));
        if self.write.races(&access) {
            return Err((AccessKind::Write, self.write));
        }
        if kind != AccessKind::ReadWrite {
            conflict(AccessKind::ReadWrite, self.atomics.racing(&access))?;
        }
        if kind != AccessKind::Read {
            conflict(AccessKind::Read, self.reads.racing(&access))?;
        }
        match kind {
            AccessKind::Read => self.reads.note(access),
            AccessKind::ReadWrite => self.atomics.note(access),
            // Ordered after all that came before, and so is whatever is ordered after this write.
            AccessKind::Write => *self = Element { write: access, ..Element::NONE },
        }
        Ok(())
    }
}

/// Memory that a launch may write: one or more overlapping buffers.
struct Region {
    begin: u64,
    end: u64,
    /// Bytes per record: the smallest element of the buffers.
    granule: u64,
    elements: Vec<Element>,
}

/// The watched memory of one launch.
pub struct GlobalMemory {
    regions: Vec<Region>,
}

impl GlobalMemory {
    /// All that a launch of `decl` with these buffers may write.
    pub fn of(decl: &KernelDecl, accesses: &[Access]) -> GlobalMemory {
        let sizes = decl.params.iter().filter_map(|param| match param.ty {
            ParamType::Buffer(_, element) => Some(element.size() as u64),
            ParamType::Scalar(_) => None,
        });
        let mut spans: Vec<(u64, u64, u64)> = accesses
            .iter()
            .zip(sizes)
            .filter(|(access, _)| access.kind.writes() && access.bytes > 0)
            .map(|(access, size)| (access.addr, access.addr + access.bytes, size))
            .collect();
        spans.sort_unstable();
        let mut regions: Vec<Region> = Vec::new();
        for (begin, end, granule) in spans {
            match regions.last_mut() {
                Some(last) if begin < last.end => {
                    last.end = last.end.max(end);
                    last.granule = last.granule.min(granule);
                }
                _ => regions.push(Region { begin, end, granule, elements: Vec::new() }),
            }
        }
        for region in &mut regions {
            let count = (region.end - region.begin).div_ceil(region.granule);
            region.elements = vec![Element::NONE; count as usize];
        }
        GlobalMemory { regions }
    }

    /// Notes an access to `size` bytes at `addr` (`ReadWrite` is an atomic operation), or gives the one that it
    /// races with. Memory that the launch cannot write is not watched.
    pub fn access(
        &mut self,
        addr: u64,
        size: usize,
        kind: AccessKind,
        access: Record,
    ) -> Result<(), (AccessKind, Record)> {
        let end = addr + size as u64;
        let first = self.regions.partition_point(|region| region.end <= addr);
        for region in self.regions[first..].iter_mut().take_while(|region| region.begin < end) {
            let from = addr.max(region.begin) - region.begin;
            let to = end.min(region.end) - region.begin;
            let (from, to) = (from / region.granule, to.div_ceil(region.granule));
            for element in &mut region.elements[from as usize..to as usize] {
                element.access(kind, access)?;
            }
        }
        Ok(())
    }
}
