//! Stacks for emulated threads, kept for reuse by all launches of the process.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;

/// Bytes per stack; pages that are never touched cost nothing. Enough for a body with some kilobytes of arrays
/// in an unoptimised build and for formatting a panic message.
const STACK_BYTES: usize = 256 * 1024;

/// Most stacks in use at once. Each takes two memory mappings (stack and guard page), of which Linux allows a
/// process 65,530; tests on a machine with many cores would otherwise run into that.
const MOST_IN_USE: usize = 8 * 1024;

struct Pool {
    free: Vec<DefaultStack>,
    in_use: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), in_use: 0 });
static RETURNED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    // A panic while the lock is held leaves only a shorter list.
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The stacks of one launch; they go back to the pool when dropped.
pub struct Stacks {
    stacks: Vec<DefaultStack>,
    reserved: usize,
}

impl Stacks {
    /// Takes `count` stacks (at most 1,024, a block's threads), waiting for other launches to return some.
    pub fn take(count: usize) -> io::Result<Stacks> {
        let mut pool = pool();
        while pool.in_use + count > MOST_IN_USE {
            pool = RETURNED.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
        pool.in_use += count;
        let keep = pool.free.len().saturating_sub(count);
        let mut taken = Stacks { stacks: pool.free.split_off(keep), reserved: count };
        drop(pool);
        while taken.stacks.len() < count {
            taken.stacks.push(DefaultStack::new(STACK_BYTES)?);
        }
        Ok(taken)
    }

    /// One of them.
    pub fn pop(&mut self) -> Option<DefaultStack> {
        self.stacks.pop()
    }

    /// Gives one back to the launch.
    pub fn push(&mut self, stack: DefaultStack) {
        self.stacks.push(stack);
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.free.append(&mut self.stacks);
        pool.in_use -= self.reserved;
        drop(pool);
        RETURNED.notify_all();
    }
}
