//! Runs launches: blocks in seeded order, and in each block the next runnable thread drawn from the seed.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::emulator::alias::Aliases;
use crate::emulator::collective::{self, GROUP_THREADS, LANES};
use crate::emulator::context::{Context, Running, State, Thread, Unwind};
use crate::emulator::fault::{Elsewhere, Fault, Place, Site};
use crate::emulator::global::GlobalMemory;
use crate::emulator::order::Clock;
use crate::emulator::panics;
use crate::emulator::random::Random;
use crate::emulator::shadow::SharedMemory;
use crate::emulator::shared_access::Copies;
use crate::emulator::stacks::Stacks;
use crate::emulator::sync::{Exchange, Operation};
use crate::host::kernel::{Dim3, Kernel};

/// Runs kernels. The same seed and the same launches give the same interleavings.
#[derive(Clone, Debug)]
pub struct Emulator {
    random: Random,
    watch_global: bool,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Blocks run.
    pub blocks: u64,
    /// Threads run.
    pub threads: u64,
    /// Block barriers passed, over all blocks.
    pub barriers: u64,
    /// Warp operations completed, over all warps.
    pub warp_operations: u64,
    /// Hash of the interleaving: the blocks and threads in the order in which they ran.
    pub trace: u64,
}

impl LaunchStats {
    /// Notes that a thread (or block) ran next: FNV-1a over 32-bit words.
    #[inline(always)]
    fn trace(&mut self, index: u32) {
        self.trace = (self.trace ^ u64::from(index)).wrapping_mul(0x0100_0000_01b3);
    }
}

impl Emulator {
    /// An emulator whose interleavings are drawn from `seed`.
    pub fn new(seed: u64) -> Emulator {
        Emulator { random: Random::new(seed), watch_global: false }
    }

    /// Also finds races on global memory ([`Fault::GlobalRace`]). It takes some 250 bytes for every element that
    /// a launch may write, and time: for the tests of single kernels.
    pub fn watch_global(mut self) -> Emulator {
        self.watch_global = true;
        self
    }

    /// Checks the launch's contract and runs all of its threads.
    ///
    /// After a fault the buffers hold what the threads wrote until then.
    pub fn launch<K: Kernel>(&mut self, kernel: &K) -> Result<LaunchStats, Fault> {
        kernel.check()?;
        panics::note_quietly();

        let decl = const { &K::DECL };
        let grid = kernel.grid();
        let accesses = kernel.accesses();
        let mut blocks: Vec<Dim3> = Vec::new();
        for z in 0..grid.z {
            for y in 0..grid.y {
                blocks.extend((0..grid.x).map(|x| Dim3 { x, y, z }));
            }
        }
        self.random.shuffle(&mut blocks);

        let threads = || Thread {
            state: State::Ready,
            exchange: Exchange::NONE,
            quad: [[0; 4]; 4],
            copies: Copies::default(),
            published: 0,
            yielder: ptr::null(),
        };
        let mut context = Box::new(Context {
            decl,
            grid,
            block_idx: Dim3 { x: 0, y: 0, z: 0 },
            thread: 0,
            threads: (0..decl.block).map(|_| threads()).collect(),
            clock: Clock::new(decl.block),
            shared: SharedMemory::new(kernel.shared_bytes()),
            aliases: Aliases::of(&accesses),
            global: self.watch_global.then(|| GlobalMemory::of(decl, &accesses)),
            blocks,
            fault: None,
            panicked: None,
        });
        let watched = context.global.is_some() || !context.aliases.is_empty();
        let mut launch = Launch {
            kernel,
            context: &raw mut *context,
            random: &mut self.random,
            stats: LaunchStats::default(),
            order: (0..decl.block).collect(),
        };
        let _running = Running::enter(launch.context, watched);
        let blocks = launch.context().blocks.len();

        if decl.synchronises() {
            let mut stacks = Stacks::take(decl.block as usize)
                .map_err(|e| Fault::NoStack { kernel: decl.name, reason: e.to_string() })?;
            for block in 0..blocks {
                launch.begin(block);
                launch.cooperative(&mut stacks)?;
            }
        } else {
            for block in 0..blocks {
                launch.begin(block);
                launch.independent()?;
            }
        }
        Ok(launch.stats)
    }
}

/// One launch under way.
struct Launch<'a, K> {
    kernel: &'a K,
    /// The kernel's calls reach the same context through the thread-local pointer: it is only ever borrowed
    /// between switches.
    context: *mut Context,
    random: &'a mut Random,
    stats: LaunchStats,
    /// The block's threads, in the order in which they run or wait to.
    order: Vec<u32>,
}

impl<K: Kernel> Launch<'_, K> {
    /// The context, while no emulated thread runs.
    #[inline(always)]
    fn context(&mut self) -> &mut Context {
        // SAFETY: `Emulator::launch` owns it for longer than this; emulated threads borrow it only inside
        // `context::with`, none of which is active while the scheduler runs.
        unsafe { &mut *self.context }
    }

    /// Gets everything ready for the block that runs as number `index`.
    fn begin(&mut self, index: usize) {
        let context = self.context();
        let block = context.blocks[index];
        context.block_idx = block;
        context.clock.begin_block();
        for thread in &mut context.threads {
            thread.state = State::Ready;
            thread.copies.clear();
            thread.yielder = ptr::null();
        }
        let threads = u64::from(context.decl.block);
        self.stats.blocks += 1;
        self.stats.threads += threads;
        self.stats.trace(block.x ^ block.y.rotate_left(11) ^ block.z.rotate_left(22));
    }

    /// A block whose threads never wait: one after the other, on this stack.
    fn independent(&mut self) -> Result<(), Fault> {
        let mut order = std::mem::take(&mut self.order);
        self.random.shuffle(&mut order);
        let kernel = self.kernel;
        let context = self.context;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for thread in &order {
                // SAFETY: as in `Launch::context`; no emulated thread runs at this point.
                unsafe { (*context).thread = *thread };
                kernel.thread();
            }
        }));
        for thread in &order {
            self.stats.trace(*thread);
        }
        self.order = order;
        outcome.map_err(|payload| self.fault(payload.as_ref()))
    }

    /// The fault of the thread that unwound with `payload`.
    fn fault(&mut self, payload: &(dyn Any + Send)) -> Fault {
        let context = self.context();
        if payload.is::<Unwind>()
            && let Some(fault) = context.fault.take()
        {
            return fault;
        }
        let declared = Place { file: context.decl.file, line: context.decl.line };
        let (place, message) =
            context.panicked.take().unwrap_or_else(|| (declared, panics::message(payload)));
        Fault::Panic { at: context.site_of(context.thread, place), message }
    }

    /// A block whose threads wait for each other: each is a coroutine.
    fn cooperative(&mut self, stacks: &mut Stacks) -> Result<(), Fault> {
        let threads = self.context().threads.len();
        let mut block = Block {
            coroutines: Vec::with_capacity(threads),
            ready: (0..threads as u32).collect(),
            at_barrier: 0,
            in_warp: vec![0; threads.div_ceil(LANES)],
            finished: 0,
        };
        for thread in 0..threads {
            let stack = stacks.pop().ok_or_else(|| Fault::NoStack {
                kernel: K::DECL.name,
                reason: "the launch has fewer stacks than threads".to_owned(),
            })?;
            block.coroutines.push(self.coroutine(thread, stack));
        }
        let outcome = self.interleave(&mut block);
        // Threads that still wait after a fault are unwound here, while the context is still current.
        for mut coroutine in block.coroutines {
            coroutine.force_unwind();
            stacks.push(coroutine.into_stack());
        }
        outcome
    }

    /// The coroutine of one thread; it returns what its body unwound with.
    fn coroutine(&self, thread: usize, stack: DefaultStack) -> ThreadCoroutine {
        let kernel: *const K = self.kernel;
        let context = self.context;
        // SAFETY: kernel and context outlive the coroutine, which `cooperative` drops before it returns.
        unsafe {
            Coroutine::with_stack_unchecked(stack, move |yielder, ()| {
                (&mut (*context).threads)[thread].yielder = ptr::from_ref(yielder);
                catch_unwind(AssertUnwindSafe(|| (*kernel).thread())).err()
            })
        }
    }

    /// Runs a block's coroutines to their end or to a fault.
    fn interleave(&mut self, block: &mut Block) -> Result<(), Fault> {
        let threads = block.coroutines.len();
        while block.finished < threads {
            if block.ready.is_empty() {
                self.release_barrier(block)?;
            }
            let pick = self.random.below(block.ready.len() as u32) as usize;
            let thread = block.ready.swap_remove(pick);
            self.stats.trace(thread);
            let context = self.context();
            context.thread = thread;
            context.threads[thread as usize].state = State::Ready;
            match block.coroutines[thread as usize].resume(()) {
                CoroutineResult::Return(None) => {
                    self.context().threads[thread as usize].state = State::Finished;
                    block.finished += 1;
                }
                CoroutineResult::Return(Some(payload)) => return Err(self.fault(payload.as_ref())),
                CoroutineResult::Yield(()) => match self.context().threads[thread as usize].state {
                    State::Barrier(_) => block.at_barrier += 1,
                    State::Warp(_) => self.join_warp(block, thread)?,
                    State::Ready | State::Finished => block.ready.push(thread),
                },
            }
        }
        Ok(())
    }

    /// Every thread is at a barrier, the same one, or something is wrong.
    fn release_barrier(&mut self, block: &mut Block) -> Result<(), Fault> {
        let threads = block.coroutines.len();
        if block.at_barrier < threads {
            return Err(self.stuck());
        }
        let context = self.context();
        let State::Barrier(first) = context.threads[0].state else { return Err(self.stuck()) };
        let other =
            context.threads.iter().position(|t| !matches!(t.state, State::Barrier(at) if at == first));
        if let Some(missing) = other {
            return Err(Fault::BarrierNotReached {
                at: context.site_of(0, first.into()),
                missing: missing as u32,
                elsewhere: elsewhere(&context.threads[missing]),
            });
        }
        context.clock.block_barrier();
        self.stats.barriers += 1;
        block.at_barrier = 0;
        block.ready.extend(0..threads as u32);
        Ok(())
    }

    /// A lane has come to a warp operation: the last of the warp, or warpgroup, completes it.
    fn join_warp(&mut self, block: &mut Block, thread: u32) -> Result<(), Fault> {
        let warp = thread as usize / LANES;
        block.in_warp[warp] += 1;
        let context = self.context();
        let lanes = together(&context.threads[thread as usize], thread as usize);
        let (first, warps) = (lanes.start, lanes.start / LANES..lanes.end / LANES);
        // A warpgroup of which the block has no fourth warp never comes together.
        let here = |warp| block.in_warp.get(warp) == Some(&LANES);
        if !(here(warp) && warps.clone().all(here)) {
            return Ok(());
        }
        if let Some(missing) =
            lanes.clone().find(|t| !same_operation(&context.threads[first], &context.threads[*t]))
        {
            return Err(not_converged(context, first, missing as u32, elsewhere(&context.threads[missing])));
        }
        collective::complete(&mut context.threads[lanes.clone()]);
        if context.threads[first].exchange.operation == Operation::WarpBarrier {
            context.clock.warp_barrier(warp);
        }
        self.stats.warp_operations += 1;
        block.in_warp[warps].fill(0);
        block.ready.extend(lanes.map(|t| t as u32));
        Ok(())
    }

    /// No thread can go on: which one waits for which. A warp operation is reported before a barrier, because
    /// the lanes that wait at the barrier may be the ones that the warp misses.
    fn stuck(&mut self) -> Fault {
        let context = self.context();
        let threads = &context.threads;
        if let Some(waiting) = threads.iter().position(|t| matches!(t.state, State::Warp(_))) {
            let lanes = together(&threads[waiting], waiting);
            let missing = lanes.clone().find(|t| match threads.get(*t) {
                Some(thread) => !same_operation(&threads[waiting], thread),
                None => true,
            });
            let missing = missing.unwrap_or(lanes.end);
            let elsewhere = threads.get(missing).map_or(Elsewhere::Absent, elsewhere);
            return not_converged(context, waiting, missing as u32, elsewhere);
        }
        let waiting = threads.iter().position(|t| matches!(t.state, State::Barrier(_))).unwrap_or(0);
        let missing = threads.iter().position(|t| matches!(t.state, State::Finished)).unwrap_or(0);
        Fault::BarrierNotReached {
            at: waiting_site(context, waiting),
            missing: missing as u32,
            elsewhere: elsewhere(&threads[missing]),
        }
    }
}

/// A thread's coroutine; it returns what the body unwound with, if it did.
type ThreadCoroutine = Coroutine<(), (), Option<Box<dyn Any + Send>>, DefaultStack>;

/// The threads of the running block and what they wait for.
struct Block {
    coroutines: Vec<ThreadCoroutine>,
    ready: Vec<u32>,
    at_barrier: usize,
    /// Lanes at a warp operation, per warp.
    in_warp: Vec<usize>,
    finished: usize,
}

/// The threads that do a warp operation together: the warp's or the warpgroup's.
fn together(waiting: &Thread, thread: usize) -> Range<usize> {
    let threads = if waiting.exchange.operation == Operation::GroupProduct { GROUP_THREADS } else { LANES };
    let first = thread / threads * threads;
    first..first + threads
}

/// Whether two threads wait for the same; the threads of a warpgroup also name the same operands.
fn same_operation(a: &Thread, b: &Thread) -> bool {
    let (x, y) = (&a.exchange, &b.exchange);
    match (a.state, b.state) {
        (State::Warp(at), State::Warp(other)) => {
            let operands = x.operation != Operation::GroupProduct || x.words[..4] == y.words[..4];
            at == other && x.operation == y.operation && operands
        }
        _ => false,
    }
}

fn waiting_site(context: &Context, thread: usize) -> Site {
    let place = match context.threads[thread].state {
        State::Barrier(at) | State::Warp(at) => at.into(),
        State::Ready | State::Finished => Place { file: context.decl.file, line: context.decl.line },
    };
    context.site_of(thread as u32, place)
}

fn not_converged(context: &Context, waiting: usize, missing: u32, elsewhere: Elsewhere) -> Fault {
    Fault::WarpNotConverged {
        at: waiting_site(context, waiting),
        operation: context.threads[waiting].exchange.operation,
        missing,
        elsewhere,
    }
}

fn elsewhere(thread: &Thread) -> Elsewhere {
    match thread.state {
        State::Barrier(at) => Elsewhere::Waits(Operation::BlockBarrier, at.into()),
        State::Warp(at) => Elsewhere::Waits(thread.exchange.operation, at.into()),
        State::Ready | State::Finished => Elsewhere::Finished,
    }
}
