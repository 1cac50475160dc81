//! The training step: shapes, buffers, and the record functions that run eagerly, under capture and in the emulator.

pub mod attention;
pub mod auxiliary;
pub mod buffers;
pub mod collect;
pub mod confidence;
pub mod ensemble;
pub mod environments;
pub mod iql;
pub mod iqn;
pub mod kept;
pub mod losses;
pub mod mamba;
pub mod network;
pub mod noisy;
pub mod parts;
pub mod passes;
pub mod probe;
pub mod prune;
pub mod record;
pub mod replay;
pub mod shape;
pub mod spectral;
pub mod state;
pub mod stored;
pub mod update;
pub mod vaccine;

pub use buffers::{Activations, Replay, StepBuffers};
pub use collect::{Collector, CollectorInput};
pub use environments::{EnvironmentInput, Environments, TableBuffers};
pub use kept::Kept;
pub use probe::record_probe;
pub use prune::record_pruning;
pub use record::{Section, record, record_section, record_vaccinated};
pub use replay::{Hindsight, Priorities};
pub use shape::{Matmul, StepShape};
