//! The body for `halve`, beside those of the products that read what it writes.

pub use super::stored::bodies::halves as rounded;
