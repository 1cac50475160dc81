//! Kernels for a miscompile that only shows on the device.
//!
//! rustc's MIR pass JumpThreading turns `if c {A} sync; if c {B} else {C}` into `if c {A; sync; B} else {sync; C}`.
//! On a CPU nothing changes; on the device, lanes that disagree about c then wait at two different barriers, or shuffle
//! without each other, which is undefined. The build switches the pass off and refuses a PTX entry with more
//! synchronising instructions than these declarations allow: exactly one.

use cuda_std::prelude::*;

/// Threads of a block, two warps: a barrier must hold the one until the other is there.
pub const BLOCK: u32 = 64;

/// y[t] = s[(t + 1) mod 64] + 1 where flags[t] > 3, - 1 elsewhere; s[t] = 2 x[t] where flags[t] > 3, x[t] elsewhere.
#[kernel(
    block = BLOCK,
    grid = 1,
    shared = 4 * BLOCK,
    barriers = 1,
    requires(flags.len() >= BLOCK as usize, x.len() >= BLOCK as usize, y.len() >= BLOCK as usize)
)]
pub fn diverging_barrier(flags: In<u32>, x: In<f32>, y: Out<f32>) {
    let t = thread::thread_idx();
    let s = shared::array::<f32>(0, BLOCK);
    let c = flags.get(t) > 3;
    s.set(t, x.get(t));
    if c {
        s.set(t, 2.0 * x.get(t));
    }
    thread::sync();
    // Nothing between the barrier and the second condition, or the pass finds the copy too expensive.
    if c {
        y.set(t, s.get((t + 1) % BLOCK) + 1.0);
    } else {
        y.set(t, s.get((t + 1) % BLOCK) - 1.0);
    }
}

/// y[t] = 2 v[t xor 1] where flags[t] > 3, v[t xor 1] elsewhere; v[t] = x[t] + 7 where flags[t] > 3, x[t] elsewhere.
/// The sum is also stored, so that the first branch has an effect of its own: sums[t].
#[kernel(
    block = BLOCK,
    grid = 1,
    shuffles = 1,
    requires(
        flags.len() >= BLOCK as usize,
        x.len() >= BLOCK as usize,
        sums.len() >= BLOCK as usize,
        y.len() >= BLOCK as usize,
    )
)]
pub fn diverging_shuffle(flags: In<u32>, x: In<u32>, sums: Out<u32>, y: Out<u32>) {
    let t = thread::thread_idx();
    let c = flags.get(t) > 3;
    let mut v = x.get(t);
    if c {
        v += 7;
        sums.set(t, v);
    }
    let w = warp::shfl_xor(v, 1);
    if c {
        y.set(t, 2 * w);
    } else {
        y.set(t, w);
    }
}

#[cfg(test)]
mod tests {
    use cuda_std::emulator::{Emulator, HostBuf};

    use super::*;

    /// Neighbouring lanes disagree in every pattern of two bits.
    fn flags() -> Vec<u32> {
        (0..BLOCK).map(|t| [0, 9, 4, 3, 5, 8, 1, 2][(t % 8) as usize]).collect()
    }

    #[test]
    fn barrier_between_two_uses_of_a_condition() {
        let flags = flags();
        let x: Vec<f32> = (0..BLOCK).map(|t| 0.5 * t as f32 - 3.0).collect();
        let (flag_buf, x_buf) = (HostBuf::from(flags.clone()), HostBuf::from(x.clone()));
        for seed in 0..4 {
            let y = HostBuf::<f32>::zeroed(BLOCK as usize);
            let launch =
                DivergingBarrier { flags: flag_buf.buf().into(), x: x_buf.buf().into(), y: y.buf().into() };
            Emulator::new(seed).launch(&launch).unwrap();
            for (t, &got) in y.to_vec().iter().enumerate() {
                let next = (t + 1) % BLOCK as usize;
                let s = if flags[next] > 3 { 2.0 * x[next] } else { x[next] };
                // Small multiples of 0.5: exact.
                assert_eq!(got, if flags[t] > 3 { s + 1.0 } else { s - 1.0 }, "thread {t}, seed {seed}");
            }
        }
    }

    #[test]
    fn shuffle_between_two_uses_of_a_condition() {
        let flags = flags();
        let x: Vec<u32> = (0..BLOCK).map(|t| 100 + t).collect();
        let (flag_buf, x_buf) = (HostBuf::from(flags.clone()), HostBuf::from(x.clone()));
        for seed in 0..4 {
            let (sums, y) = (HostBuf::<u32>::zeroed(BLOCK as usize), HostBuf::<u32>::zeroed(BLOCK as usize));
            let launch = DivergingShuffle {
                flags: flag_buf.buf().into(),
                x: x_buf.buf().into(),
                sums: sums.buf().into(),
                y: y.buf().into(),
            };
            Emulator::new(seed).launch(&launch).unwrap();
            let v: Vec<u32> = x.iter().zip(&flags).map(|(&x, &f)| if f > 3 { x + 7 } else { x }).collect();
            for (t, (&sum, &got)) in sums.to_vec().iter().zip(&y.to_vec()).enumerate() {
                let other = v[t ^ 1];
                assert_eq!(sum, if flags[t] > 3 { v[t] } else { 0 }, "thread {t}, seed {seed}");
                assert_eq!(got, if flags[t] > 3 { 2 * other } else { other }, "thread {t}, seed {seed}");
            }
        }
    }
}
