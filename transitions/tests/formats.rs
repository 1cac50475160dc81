use transitions::{Format, load};

use crate::{sample, small};

#[test]
fn every_format_gives_the_same_transitions() {
    let plain = small();
    assert_eq!((plain.len(), plain.state, plain.action_columns), (9, 3, 2));
    for row in 0..9 {
        for j in 0..3 {
            let x = row as f32 + j as f32 / 8.0;
            assert_eq!(plain.states[row * 3 + j], x);
            let end = if [3, 6, 8].contains(&row) { 100.0 } else { 0.0 };
            assert_eq!(plain.next_states[row * 3 + j], x + 1.0 + end);
        }
        assert_eq!(plain.actions[row * 2..][..2], [row as u32 % 3, row as u32 % 2]);
        assert_eq!(plain.rewards[row], (row as f32).exp2());
        assert_eq!(plain.terminated[row], row == 3 || row == 8);
        assert_eq!(plain.truncated[row], row == 6 || row == 8);
    }
    for (name, format) in [
        ("plain.npz", Format::Npz),
        ("compressed.npz", Format::Npz),
        ("small.safetensors", Format::Safetensors),
        ("lists.parquet", Format::Parquet),
        ("fixed.parquet", Format::Parquet),
    ] {
        let set = load(&sample(name)).unwrap();
        assert_eq!((set.format, set.hash), (format, plain.hash), "{name}");
        assert_eq!((&set.states, &set.next_states), (&plain.states, &plain.next_states), "{name}");
        assert_eq!((&set.actions, &set.rewards), (&plain.actions, &plain.rewards), "{name}");
        assert_eq!((&set.terminated, &set.truncated), (&plain.terminated, &plain.truncated), "{name}");
    }
}

#[test]
fn minari_has_one_observation_more_and_an_open_episode_is_truncated() {
    let (plain, minari) = (small(), load(&sample("minari.hdf5")).unwrap());
    assert_eq!(minari.format, Format::Minari);
    assert_eq!((&minari.states, &minari.next_states), (&plain.states, &plain.next_states));
    assert_eq!((&minari.actions, &minari.rewards), (&plain.actions, &plain.rewards));
    // The third episode was recorded without an end.
    assert_eq!(minari.terminated, [false, false, false, true, false, false, false, false, false]);
    assert_eq!(minari.truncated, [false, false, false, false, false, false, true, false, true]);
    // The folder of a data set is its file.
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::copy(sample("minari.hdf5"), folder.path().join("data/main_data.hdf5")).unwrap();
    assert_eq!(load(folder.path()).unwrap().hash, minari.hash);
}
