//! The state of the launch that runs on this OS thread, reached by the kernel's calls through a thread-local
//! pointer. Emulated threads are coroutines of one OS thread, so no two of them run at once.

use std::cell::Cell;
use std::panic::Location;
use std::ptr;

use corosensei::Yielder;

use crate::emulator::alias::Aliases;
use crate::emulator::fault::{Fault, Place, Site};
use crate::emulator::global::GlobalMemory;
use crate::emulator::order::Clock;
use crate::emulator::shadow::SharedMemory;
use crate::emulator::shared_access::Copies;
use crate::emulator::sync::Exchange;
use crate::host::kernel::{Dim3, KernelDecl};

/// What an emulated thread is doing.
#[derive(Clone, Copy, Debug)]
pub enum State {
    /// Can go on.
    Ready,
    /// Waits at a block barrier.
    Barrier(&'static Location<'static>),
    /// Waits at a warp operation, which its `exchange` describes.
    Warp(&'static Location<'static>),
    /// Has returned.
    Finished,
}

/// One emulated thread of the current block.
pub struct Thread {
    pub state: State,
    pub exchange: Exchange,
    /// What [`crate::emulator::sync::quad`] gives the thread.
    pub quad: [[u32; 4]; 4],
    pub copies: Copies,
    /// How often it has made its writes to shared memory visible to products.
    pub published: u32,
    /// Switches back to the scheduler; set when the coroutine starts.
    pub yielder: *const Yielder<(), ()>,
}

/// The running launch.
pub struct Context {
    pub decl: &'static KernelDecl,
    pub grid: Dim3,
    pub block_idx: Dim3,
    /// Index of the running thread in its block.
    pub thread: u32,
    pub threads: Vec<Thread>,
    pub clock: Clock,
    pub shared: SharedMemory,
    pub aliases: Aliases,
    /// Races on global memory, if they are watched.
    pub global: Option<GlobalMemory>,
    /// The launch's blocks in the order in which they run.
    pub blocks: Vec<Dim3>,
    /// Set before the running thread unwinds.
    pub fault: Option<Fault>,
    /// Location and message of a panic in the body, noted by the panic hook.
    pub panicked: Option<(Place, String)>,
}

thread_local! {
    static CURRENT: Cell<*mut Context> = const { Cell::new(ptr::null_mut()) };
    /// Whether accesses to global memory must be noted, apart from the context because every access asks.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// What an emulated thread unwinds with after it has stored a fault.
pub struct Unwind;

/// Whether a kernel runs on this OS thread.
pub fn is_running() -> bool {
    !CURRENT.get().is_null()
}

/// Whether accesses must be noted in [`Context::aliases`] or [`Context::global`].
#[inline(always)]
pub fn is_watched() -> bool {
    WATCHED.get()
}

/// Makes a launch current until dropped.
pub struct Running {
    outer: (*mut Context, bool),
}

impl Running {
    /// `context` must stay where it is until the result is dropped.
    pub fn enter(context: *mut Context, watched: bool) -> Running {
        Running { outer: (CURRENT.replace(context), WATCHED.replace(watched)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        CURRENT.set(self.outer.0);
        WATCHED.set(self.outer.1);
    }
}

/// Calls `f` with the running launch. `f` must neither switch threads nor call `with`.
///
/// # Panics
/// Outside of a launch: a kernel's calls have no meaning there.
#[inline(always)]
pub fn with<R>(f: impl FnOnce(&mut Context) -> R) -> R {
    let context = CURRENT.get();
    assert!(!context.is_null(), "a kernel's calls only work inside of a launch");
    // SAFETY: CURRENT points to the context that `Running` keeps on the launching frame; it is used from this
    // OS thread only, and no reference outlives the call because `f` neither switches nor nests.
    f(unsafe { &mut *context })
}

impl Context {
    /// The running thread's asynchronous copies.
    pub fn copies(&mut self) -> &mut Copies {
        &mut self.threads[self.thread as usize].copies
    }

    /// The running thread at a line.
    pub fn site(&self, at: &'static Location<'static>) -> Site {
        self.site_of(self.thread, at.into())
    }

    /// A thread of the running block at a place.
    pub fn site_of(&self, thread: u32, place: Place) -> Site {
        Site { kernel: self.decl.name, block: self.block_idx, thread, place }
    }
}

/// Ends the running thread with the fault that `fault` makes of the launch.
#[cold]
pub fn raise(fault: impl FnOnce(&Context) -> Fault) -> ! {
    with(|context| context.fault = Some(fault(context)));
    // Without the panic hook: the fault goes to whoever launched, not to the terminal.
    std::panic::resume_unwind(Box::new(Unwind))
}

/// Hands control to the scheduler until it resumes this thread.
pub fn switch() {
    let yielder = with(|context| context.threads[context.thread as usize].yielder);
    assert!(!yielder.is_null(), "a thread without a coroutine cannot wait");
    // SAFETY: the yielder lies at the root of this coroutine's stack, which lives as long as the coroutine runs.
    unsafe { &*yielder }.suspend(());
}
