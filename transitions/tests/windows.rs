//! n-step windows.

use proptest::prelude::*;

use crate::{refused, small};

/// Rewards 1, 2, 4, ... and gamma 1/2: every further reward of a window adds the first one again.
#[test]
fn windows_end_with_their_episode() {
    let set = small();
    assert_eq!(set.episodes(), [0..4, 4..7, 7..9]);
    let windows = set.windows(3, 0.5).unwrap();
    let rewards: Vec<f32> =
        [3, 3, 2, 1, 3, 2, 1, 2, 1].iter().enumerate().map(|(i, m)| *m as f32 * (i as f32).exp2()).collect();
    assert_eq!(windows.rewards, rewards);
    assert_eq!(windows.last, [2, 3, 3, 3, 6, 6, 6, 8, 8]);
    // A window that reaches the terminated row has no bootstrap; the truncated one bootstraps with gamma^m; where both are
    // set, termination wins.
    assert_eq!(windows.discounts, [0.125, 0.0, 0.0, 0.0, 0.125, 0.25, 0.5, 0.0, 0.0]);
    let single = set.windows(1, 0.5).unwrap();
    assert_eq!(single.rewards, set.rewards);
    assert_eq!(single.discounts, [0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.5, 0.5, 0.0]);
}

#[test]
fn rows_out_of_order_have_no_windows() {
    let mut set = small();
    set.states[2 * 3 + 1] = 7.0;
    let text = refused(set.windows(2, 0.9));
    assert!(
        text.contains("next_states, row 1, column 1: 2.125, expected 7, the state of the next row"),
        "{text}"
    );
    // Single steps need no order.
    assert!(set.windows(1, 0.9).is_ok());
}

proptest! {
    /// Against the definition, row by row.
    #[test]
    fn any_flags_and_any_n(flags in prop::collection::vec((any::<bool>(), any::<bool>()), 9), n in 1_usize..6) {
        let mut set = small();
        (set.terminated, set.truncated) = flags.into_iter().unzip();
        // In order, so that windows exist wherever episodes go on.
        for row in 0..8 {
            for j in 0..3 {
                set.next_states[row * 3 + j] = set.states[(row + 1) * 3 + j];
            }
        }
        let windows = set.windows(n, 0.9).unwrap();
        for row in 0..9 {
            let end = (row..9).find(|&at| set.ends(at)).unwrap_or(8).min(row + n - 1);
            let steps = end + 1 - row;
            let sum: f64 = (0..steps).map(|k| 0.9_f64.powi(k as i32) * f64::from(set.rewards[row + k])).sum();
            let bootstrap = if set.terminated[end] { 0.0 } else { 0.9_f64.powi(steps as i32) };
            prop_assert_eq!(windows.last[row] as usize, end);
            prop_assert!((f64::from(windows.rewards[row]) - sum).abs() <= 1e-6 * sum);
            prop_assert!((f64::from(windows.discounts[row]) - bootstrap).abs() < 1e-7);
        }
    }
}
