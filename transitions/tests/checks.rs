//! What is refused, and with which words.

use std::fs;
use std::path::PathBuf;

use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use transitions::load;

use crate::{refused, sample, small};

/// A tensor: type, shape, bytes.
type Array = (Dtype, Vec<usize>, Vec<u8>);

/// Two transitions of one state feature, with some arrays replaced or left out.
fn file(folder: &TempDir, changes: &[(&str, Option<Array>)]) -> PathBuf {
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut arrays = vec![
        ("states", Dtype::F32, vec![2, 1], floats(&[0.0, 1.0])),
        ("next_states", Dtype::F32, vec![2, 1], floats(&[1.0, 2.0])),
        ("actions", Dtype::I64, vec![2], [0_i64, 1].iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("rewards", Dtype::F32, vec![2], floats(&[1.0, 2.0])),
        ("terminated", Dtype::BOOL, vec![2], vec![0, 1]),
        ("truncated", Dtype::BOOL, vec![2], vec![0, 0]),
    ];
    for (name, change) in changes {
        arrays.retain(|(other, ..)| other != name);
        if let Some((dtype, shape, bytes)) = change {
            arrays.push((name, *dtype, shape.clone(), bytes.clone()));
        }
    }
    let views: Vec<_> = arrays
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let path = folder.path().join("set.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    path
}

#[test]
fn a_wrong_value_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let f64s = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    assert!(load(&file(&folder, &[])).is_ok());
    for (name, array, expected) in [
        (
            "rewards",
            (Dtype::F32, vec![2], f32s(&[0.0, f32::NAN])),
            "rewards, row 1: NaN, expected a finite number",
        ),
        (
            "states",
            (Dtype::F64, vec![2, 2], f64s(&[0.0, 1e300, 0.0, 0.0])),
            "next_states has shape [2, 1], states [2, 2]",
        ),
        ("next_states", (Dtype::F64, vec![2, 1], f64s(&[0.0, 1e300])), "next_states, row 1: 1"),
        ("actions", (Dtype::F32, vec![2], f32s(&[0.0, 0.5])), "actions, row 1: 0.5, expected a whole number"),
        (
            "actions",
            (Dtype::I64, vec![2], [-1_i64, 0].map(i64::to_le_bytes).concat()),
            "actions, row 0: -1, expected",
        ),
        ("terminated", (Dtype::F32, vec![2], f32s(&[0.0, 0.5])), "terminated, row 1: 0.5, expected 0 or 1"),
        ("truncated", (Dtype::BOOL, vec![3], vec![0, 0, 0]), "truncated has 3 rows, states has 2"),
        (
            "rewards",
            (Dtype::F32, vec![2, 2], f32s(&[0.0; 4])),
            "rewards has shape [2, 2], expected one value per row",
        ),
        ("rewards", (Dtype::F16, vec![2], vec![0; 4]), "rewards is F16, expected F32"),
    ] {
        let text = refused(load(&file(&folder, &[(name, Some(array))])));
        assert!(text.contains("set.safetensors: ") && text.contains(expected), "{text}");
    }
}

#[test]
fn terminated_and_truncated_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let done = (Dtype::BOOL, vec![2], vec![0, 1]);
    let text = refused(load(&file(&folder, &[("terminated", None), ("done", Some(done))])));
    assert!(text.contains("holds no terminated (or terminations, terminals)"), "{text}");
    assert!(text.contains("a single `done` cannot say which"), "{text}");
    // Another name of the same is one too many.
    let again = (Dtype::BOOL, vec![2], vec![0, 1]);
    let text = refused(load(&file(&folder, &[("terminals", Some(again))])));
    assert!(text.contains("both") && text.contains("names of the same"), "{text}");
}

#[test]
fn actions_have_to_be_those_of_the_branches() {
    let set = small();
    assert_eq!(set.branch_actions(&[3, 2]).unwrap(), set.actions);
    assert_eq!(set.largest_actions(), [2, 1]);
    let text = refused(set.branch_actions(&[2, 2]));
    assert!(
        text.contains("actions, row 2, column 0: 2, expected 0 to 1 (model.branches = [2, 2])"),
        "{text}"
    );
    let text = refused(set.branch_actions(&[9, 3, 3]));
    assert!(text.contains("actions have 2 columns, model.branches = [9, 3, 3] 3"), "{text}");

    // One column is the composite action of several branches: 5 = (1 * 2 + 0) * 2 + 1.
    let folder = tempfile::tempdir().unwrap();
    let composite = (Dtype::I64, vec![2], [5_i64, 11].map(i64::to_le_bytes).concat());
    let set = load(&file(&folder, &[("actions", Some(composite))])).unwrap();
    assert_eq!(set.branch_actions(&[3, 2, 2]).unwrap(), [1, 0, 1, 2, 1, 1]);
    let text = refused(set.branch_actions(&[2, 2, 2]));
    assert!(text.contains("actions, row 1: 11, expected 0 to 7"), "{text}");
    let text = refused(set.branch_actions(&[6]));
    assert!(text.contains("actions, row 1: 11, expected 0 to 5"), "{text}");
}

#[test]
fn files_that_are_no_data_sets_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = refused(load(folder.path()));
    assert!(text.contains("is a folder without data/main_data.hdf5"), "{text}");
    let other = folder.path().join("bars.csv");
    fs::write(&other, "time,open\n1,2\n").unwrap();
    let text = refused(load(&other));
    assert!(text.contains("is no transition data set"), "{text}");
    fs::write(&other, "").unwrap();
    assert!(refused(load(&other)).contains("is no transition data set"));
    let text = refused(load(&folder.path().join("absent")));
    assert!(text.contains("absent"), "{text}");
    assert!(refused(load("/dev/zero".as_ref())).contains("is not a regular file"));
}

/// A header may claim what it likes: memory is asked for only within what the file's bytes can hold.
/// A value that a flipped bit leaves finite is no less wrong: the archive's checksum tells.
#[test]
fn a_flipped_bit_in_an_archive_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flipped.npz");
    let whole = fs::read(sample("plain.npz")).unwrap();
    let headers = whole.windows(6).enumerate().filter(|(_, bytes)| *bytes == b"\x93NUMPY").map(|(at, _)| at);
    for header in headers {
        let mut bytes = whole.clone();
        bytes[header + 128] ^= 1; // the first byte of the array behind a header of 128
        fs::write(&path, bytes).unwrap();
        let text = refused(load(&path));
        assert!(text.contains("flipped.npz") && text.contains("is damaged: Invalid checksum"), "{text}");
    }
}

#[test]
fn a_header_that_claims_a_trillion_rows_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(sample("plain.npz")).unwrap();
    // The shape in the header of states.npy, (9, 3), with as many digits as there is room for behind it.
    let at = bytes.windows(16).position(|w| w == b"'shape': (9, 3),").expect("the shape");
    let mut lying = bytes.clone();
    let claim = b"'shape': (999999999999, 3), }";
    lying[at..at + claim.len()].copy_from_slice(claim);
    let path = folder.path().join("lying.npz");
    fs::write(&path, lying).unwrap();
    let text = refused(load(&path));
    assert!(text.contains("states claims shape [999999999999, 3]"), "{text}");
}
