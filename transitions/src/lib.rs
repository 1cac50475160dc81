//! From a transition data set to checked transitions: states, actions, rewards, next states, and how episodes end, with
//! `terminated` and `truncated` kept apart as Gymnasium and Minari define them.
//!
//! [`load`] reads Parquet, safetensors, NPZ and Minari's HDF5, by a file's first bytes; [`TransitionSet`] holds the rows
//! and knows episodes and n-step windows, [`Split`] the held-out parts. Nothing is repaired. `docs/TRANSITIONS.md` is the user's side.

mod column;
mod error;
mod minari;
mod npz_file;
mod parquet_file;
mod safetensors_file;
mod set;
mod source;
mod split;
mod windows;

pub use error::{TransitionError, WrongValue};
pub use set::{Format, TransitionSet};
pub use source::{load, looks_like_transitions};
pub use split::Split;
pub use windows::Windows;
