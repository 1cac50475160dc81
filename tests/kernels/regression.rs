//! Bodies for the kernels that a known miscompile breaks: a barrier or a shuffle between two uses of one condition, on
//! which neighbouring lanes disagree.

use gpu::kernels::regression::{BLOCK, DivergingBarrier, DivergingShuffle};

use super::check::same_bits;
use super::{Backend, Outcome, filled, launch, put};

const LEN: usize = BLOCK as usize;

/// Every pattern of two neighbouring bits, in every eight lanes.
fn flags() -> Vec<u32> {
    [0, 9, 4, 3, 5, 8, 1, 2].into_iter().cycle().take(LEN).collect()
}

/// With the barrier doubled, some threads would read a neighbour's value before it is written.
pub fn barrier<B: Backend>(b: &mut B) -> Outcome {
    let flags = flags();
    let x: Vec<f32> = (0..LEN).map(|t| 0.5 * t as f32 - 3.0).collect();
    // Small multiples of one half: exact.
    let s: Vec<f32> = x.iter().zip(&flags).map(|(x, &flag)| if flag > 3 { 2.0 * x } else { *x }).collect();
    let expected: Vec<f32> =
        (0..LEN).map(|t| s[(t + 1) % LEN] + if flags[t] > 3 { 1.0 } else { -1.0 }).collect();
    let (flags, x) = (put(b, "flags", &flags)?, put(b, "x", &x)?);
    let y = filled(b, "y", LEN, f32::NAN)?;
    launch(b, DivergingBarrier { flags: flags.into(), x: x.into(), y: y.into() })?;
    same_bits("y", &b.download(y)?, &expected);
    Ok(())
}

/// With the shuffle doubled, a lane would not get its neighbour's value.
pub fn shuffle<B: Backend>(b: &mut B) -> Outcome {
    let flags = flags();
    let x: Vec<u32> = (0..BLOCK).map(|t| 100 + t).collect();
    let v: Vec<u32> = x.iter().zip(&flags).map(|(x, &flag)| if flag > 3 { x + 7 } else { *x }).collect();
    let expected: Vec<u32> = (0..LEN).map(|t| v[t ^ 1] * if flags[t] > 3 { 2 } else { 1 }).collect();
    let expected_sums: Vec<u32> = (0..LEN).map(|t| if flags[t] > 3 { v[t] } else { 0 }).collect();
    let (flags, x) = (put(b, "flags", &flags)?, put(b, "x", &x)?);
    let (sums, y) = (filled(b, "sums", LEN, 0u32)?, filled(b, "y", LEN, u32::MAX)?);
    launch(b, DivergingShuffle { flags: flags.into(), x: x.into(), sums: sums.into(), y: y.into() })?;
    assert_eq!(b.download(y)?, expected);
    assert_eq!(b.download(sums)?, expected_sums);
    Ok(())
}
