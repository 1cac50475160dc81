//! The bodies for `halve`, beside those of the products that read what it writes.

pub use super::stored::bodies::{halved_gradients, halves as rounded};
