//! A kernel cannot unwind or print: a panic stops the grid with an illegal-instruction error.

use core::panic::PanicInfo;

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    // SAFETY: `trap` needs nothing.
    unsafe { core::arch::nvptx::trap() }
}
