//! Damaged files: an error or transitions that pass every check, never a panic, never much memory.

use std::fs;

use proptest::prelude::*;
use transitions::load;

use crate::sample;

const FILES: [&str; 6] =
    ["plain.npz", "compressed.npz", "small.safetensors", "lists.parquet", "fixed.parquet", "minari.hdf5"];

/// What a file of a few kilobytes may unpack to.
const MOST: usize = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn any_changed_bytes(which in 0..FILES.len(), changes in prop::collection::vec((any::<u32>(), any::<u8>()), 1..8), cut in prop::option::of(any::<u32>())) {
        let mut bytes = fs::read(sample(FILES[which])).unwrap();
        for (place, byte) in changes {
            let place = place as usize % bytes.len();
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut as usize % bytes.len());
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILES[which]);
        fs::write(&path, bytes).unwrap();
        match load(&path) {
            Err(error) => prop_assert!(error.to_string().contains(FILES[which]), "{}", error),
            Ok(set) => {
                prop_assert!(set.states.len() <= MOST && set.states.len() == set.len() * set.state);
                prop_assert!(set.states.iter().chain(&set.next_states).chain(&set.rewards).all(|x| x.is_finite()));
            }
        }
    }
}
