//! What launches kernels and holds their buffers: the emulator in this crate's tests, every back end in `host`'s, which
//! include the bodies written against it.

use std::fmt::Display;

use cuda_std::{Buf, Kernel};

/// Content of memory that a kernel must not write.
pub const UNTOUCHED: f32 = -77.0;
/// Floats behind each output that must stay untouched.
const GUARD: usize = 4;

/// Launches and buffers of f32.
pub trait Machine {
    /// Why a launch or a copy failed.
    type Error: Display;
    /// A buffer with these values at a 16-byte boundary, which lives as long as the machine.
    fn put(&mut self, values: &[f32]) -> Result<Buf<f32>, Self::Error>;
    /// A buffer's content.
    fn get(&mut self, buffer: Buf<f32>) -> Result<Vec<f32>, Self::Error>;
    /// Launches after everything launched so far.
    fn launch<K: Kernel>(&mut self, kernel: K) -> Result<(), Self::Error>;

    /// An output with untouchable floats behind it.
    fn output(&mut self, len: usize) -> Result<Buf<f32>, Self::Error> {
        self.put(&vec![UNTOUCHED; len + GUARD])
    }

    /// An output's content; everything behind must be as before.
    #[track_caller]
    fn written(&mut self, buffer: Buf<f32>) -> Result<Vec<f32>, Self::Error> {
        let mut values = self.get(buffer)?;
        let guard = values.split_off(values.len() - GUARD);
        assert!(guard.iter().all(|&x| x == UNTOUCHED), "a kernel wrote behind its output");
        Ok(values)
    }
}
