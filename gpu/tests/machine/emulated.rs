//! The emulator as a machine, with the check for races between blocks.

use cuda_std::emulator::{Emulator, Fault, HostBuf};
use cuda_std::{Buf, Kernel};

use super::machine::Machine;

/// The emulator and the buffers of its launches.
pub struct Emulated {
    emulator: Emulator,
    buffers: Vec<HostBuf<f32>>,
}

impl Emulated {
    pub fn new(seed: u64) -> Emulated {
        Emulated { emulator: Emulator::new(seed).watch_global(), buffers: Vec::new() }
    }
}

impl Machine for Emulated {
    type Error = Box<Fault>;

    fn put(&mut self, values: &[f32]) -> Result<Buf<f32>, Box<Fault>> {
        self.buffers.push(HostBuf::from(values));
        Ok(self.buffers.last().expect("the one pushed").buf())
    }

    fn get(&mut self, buffer: Buf<f32>) -> Result<Vec<f32>, Box<Fault>> {
        let of =
            self.buffers.iter().find(|of| of.buf().addr() == buffer.addr()).expect("a buffer that was put");
        Ok(of.to_vec())
    }

    fn launch<K: Kernel>(&mut self, kernel: K) -> Result<(), Box<Fault>> {
        self.emulator.launch(&kernel).map(|_| ()).map_err(Box::new)
    }
}

/// Runs a body under several interleavings of a block's threads.
#[track_caller]
pub fn under_every_interleaving(body: impl Fn(&mut Emulated) -> Result<(), Box<Fault>>) {
    for seed in [1, 20, 300] {
        if let Err(fault) = body(&mut Emulated::new(seed)) {
            panic!("interleaving seed {seed}: {fault}");
        }
    }
}
