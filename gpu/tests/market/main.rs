//! The market environment: its rules, its bookkeeping, its episodes, and that it cannot see ahead.
#![expect(clippy::single_range_in_vec_init, reason = "a market without a gap is one run")]

mod episodes;
mod kernels;
mod ledger;
mod look_ahead;
mod rules;
mod support;
mod symbols;
mod tables;
