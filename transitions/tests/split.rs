//! Which rows are held out.

use std::collections::BTreeSet;

use proptest::prelude::*;
use transitions::Split;

use crate::{refused, small};

#[test]
fn whole_episodes_are_held_out() {
    let episodes = small().episodes();
    let split = |seed| Split::new("set", &episodes, (0.2, 0.2), seed, 3).unwrap();
    for seed in 0..20 {
        let Split { learned, validation, test } = split(seed);
        let mut all = [&learned[..], &validation, &test].concat();
        all.sort_unstable();
        assert_eq!(all, (0..9).collect::<Vec<u32>>());
        assert!(validation.len() >= 2 && test.len() >= 2 && !learned.is_empty());
        for part in [&validation, &test] {
            for episode in &episodes {
                let rows = part.iter().filter(|&&row| episode.contains(&(row as usize))).count();
                assert!(rows == 0 || rows == episode.len(), "seed {seed}: {part:?}");
            }
        }
        assert_eq!(split(seed), Split { learned, validation, test });
    }
    // Another seed, other episodes.
    let chosen: BTreeSet<Vec<u32>> = (0..20).map(|seed| split(seed).validation).collect();
    assert!(chosen.len() > 1);
}

#[test]
fn a_single_episode_is_split_by_time_with_a_purge() {
    let episode = std::iter::once(0..20).collect::<Vec<_>>();
    let split = |validation, test, n| Split::new("set", &episode, (validation, test), 1, n);
    let Split { learned, validation, test } = split(0.15, 0.1, 2).unwrap();
    assert_eq!(learned, (0..11).collect::<Vec<u32>>());
    assert_eq!((validation, test), (vec![13, 14, 15], vec![18, 19]));
    let text = refused(split(0.4, 0.4, 5));
    assert!(
        text.starts_with("set: 20 transitions in 1 episode(s) are too few") && text.contains("0.4"),
        "{text}"
    );
}

#[test]
fn two_episodes_are_too_few_for_three_parts() {
    let text = refused(Split::new("set", &[0..5, 5..10], (0.1, 0.1), 1, 1));
    assert!(text.contains("10 transitions in 2 episode(s) are too few"), "{text}");
}

proptest! {
    /// The parts are as large as asked for, as far as whole episodes allow, and every row is in one of them.
    #[test]
    fn shares_are_reached(lengths in prop::collection::vec(1_usize..30, 3..60), validation in 0.01..0.4_f64, test in 0.01..0.4_f64, seed in any::<u64>()) {
        let mut start = 0;
        let episodes: Vec<_> = lengths
            .iter()
            .map(|length| {
                start += length;
                start - length..start
            })
            .collect();
        let split = Split::new("set", &episodes, (validation, test), seed, 1).unwrap();
        let rows = split.learned.len() + split.validation.len() + split.test.len();
        prop_assert_eq!(rows, start);
        let longest = *lengths.iter().max().unwrap();
        for (part, share) in [(&split.validation, validation), (&split.test, test)] {
            prop_assert!(part.len() < (share * start as f64).ceil() as usize + longest);
            prop_assert!(part.windows(2).all(|pair| pair[0] < pair[1]));
        }
        // Unless one episode was left, which has to be learned from.
        if split.learned.len() > longest {
            prop_assert!(split.validation.len() as f64 >= validation * start as f64);
            prop_assert!(split.test.len() as f64 >= test * start as f64);
        }
    }
}
