//! Which accesses of a launch are ordered, and what to remember of them to find the ones that are not.
//!
//! Two accesses are ordered when they are by one thread; when both are by one block with a block barrier between;
//! or by one warp with a warp barrier (`warp::sync`) between. Shuffles, votes and matrix products order nothing
//! (PTX gives them no memory semantics), and neither does anything order different blocks within a launch.

use std::panic::Location;

/// Counts what orders: blocks, the barriers of a block and the warp barriers of each warp.
pub struct Clock {
    /// The running block, counted from 1 in the order in which they run.
    pub block: u32,
    /// Block barriers so far, of all blocks: it never repeats, and 0 is before the first access.
    epoch: u32,
    /// Warp barriers of each warp since the block began.
    warp_epochs: Vec<u32>,
}

impl Clock {
    /// For blocks of `threads` threads.
    pub fn new(threads: u32) -> Clock {
        Clock { block: 0, epoch: 0, warp_epochs: vec![0; threads.div_ceil(32) as usize] }
    }

    /// A new block begins.
    pub fn begin_block(&mut self) {
        self.block += 1;
        self.epoch += 1;
        self.warp_epochs.fill(0);
    }

    /// All threads of the block are at a barrier.
    pub fn block_barrier(&mut self) {
        self.epoch += 1;
    }

    /// All lanes of the warp are at a warp barrier.
    pub fn warp_barrier(&mut self, warp: usize) {
        self.warp_epochs[warp] += 1;
    }

    /// An access by a thread of the running block, now.
    #[inline(always)]
    pub fn record(&self, thread: u32, at: &'static Location<'static>) -> Record {
        let warp_epoch = self.warp_epochs[thread as usize / 32];
        Record { block: self.block, epoch: self.epoch, warp_epoch, thread, at }
    }
}

/// One access: who, when, where.
#[derive(Clone, Copy)]
pub struct Record {
    /// The block, counted from 1; 0 means no access.
    pub block: u32,
    epoch: u32,
    warp_epoch: u32,
    /// Index of the thread in its block.
    pub thread: u32,
    pub at: &'static Location<'static>,
}

impl Record {
    /// No access.
    pub const NONE: Record = Record { block: 0, epoch: 0, warp_epoch: 0, thread: 0, at: Location::caller() };

    /// Whether `later`, an access that happens after this one in the interleaving, is unordered with it.
    #[inline(always)]
    pub fn races(&self, later: &Record) -> bool {
        self.block != 0 && (self.block != later.block || self.races_in_block(later))
    }

    /// [`Record::races`] for memory that every block has to itself.
    #[inline(always)]
    pub fn races_in_block(&self, later: &Record) -> bool {
        self.epoch == later.epoch
            && self.thread != later.thread
            && (!self.same_warp(later) || self.warp_epoch == later.warp_epoch)
    }

    #[inline(always)]
    fn same_warp(&self, other: &Record) -> bool {
        self.thread / 32 == other.thread / 32
    }
}

/// The accesses of one kind to one word, as few as are needed to find whether any of them races with a later
/// access: two of the newest epoch.
///
/// Accesses from two different warps race with one by any thread. Accesses from one warp alone race only with
/// those from other warps (any one shows that) and with those from that warp in the same warp epoch by another
/// thread (two of the newest warp epoch by different threads show that).
#[derive(Clone, Copy)]
pub struct Recent([Record; 2]);

impl Recent {
    /// No access.
    pub const NONE: Recent = Recent([Record::NONE; 2]);

    /// Adds an access.
    #[inline(always)]
    pub fn note(&mut self, access: Record) {
        let [first, second] = &mut self.0;
        if first.epoch != access.epoch {
            *first = access;
            *second = Record::NONE;
        } else if first.thread == access.thread {
            *first = access;
        } else if second.epoch != access.epoch || second.thread == access.thread {
            *second = access;
        } else if first.same_warp(second) {
            if !first.same_warp(&access) {
                *second = access;
            } else if first.warp_epoch < access.warp_epoch {
                *first = access;
            } else if second.warp_epoch < access.warp_epoch {
                *second = access;
            }
        }
    }

    /// The access of the newest block, if there is one.
    pub fn newest(&self) -> &Record {
        &self.0[0]
    }

    /// One that races with `later`.
    #[inline(always)]
    pub fn racing(&self, later: &Record) -> Option<&Record> {
        self.0.iter().find(|access| access.races(later))
    }

    /// [`Recent::racing`] for memory that every block has to itself.
    #[inline(always)]
    pub fn racing_in_block(&self, later: &Record) -> Option<&Record> {
        self.0.iter().find(|access| access.races_in_block(later))
    }
}
