//! Bodies for `dueling_q` and `dueling_log_p`, both widths.

use gpu::kernels::distribution::reference::Heads;
use gpu::kernels::dueling_q::{DuelingLogP, DuelingLogPWide, DuelingQ, DuelingQWide, reference};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::case::{f32s, f64s};
use super::check::{close, same_bits};
use super::data::Random;
use super::rows::Shape;
use super::{Backend, Outcome, filled, launch, put};
use crate::case;

/// Rows, branch sizes, atoms: one branch and eight, 2 and 64 actions, odd and full numbers of atoms.
fn shapes<B: Backend>() -> Vec<(usize, Shape)> {
    let mut shapes = vec![
        (1, Shape::new(&[2], 2)),
        (3, Shape::new(&[9, 3, 3], 51)),
        (2, Shape::new(&[64], 21)),
        (2, Shape::new(&[2, 3, 4, 5, 6, 7, 8, 9], 64)),
        (5, Shape::new(&[5, 2], 101)),
        (1, Shape::new(&[3], 128)),
    ];
    if B::FULL_SIZE {
        shapes.push((1024, Shape::new(&[9, 3, 3], 51)));
    }
    shapes
}

/// The kernels for up to 64 and for up to 128 atoms.
fn widths(shape: &Shape) -> &'static [bool] {
    if shape.atoms <= 64 { &[false, true] } else { &[true] }
}

/// Q values [rows, sum n_d] of rows whose padding is NaN.
fn q_values<B: Backend>(
    b: &mut B,
    shape: &Shape,
    rows: &[Heads],
    support: [f32; 2],
    wide: bool,
) -> Result<Vec<f32>, ExecError> {
    let stride = shape.columns() + 4;
    assert_eq!(
        gpu::logits::columns(shape.packed(), shape.branches(), shape.atoms as u32) as usize,
        shape.columns()
    );
    let logits = put(b, "logits", &shape.flat(rows, stride, f32::NAN))?;
    let (device_support, len) = (put(b, "support", &support)?, rows.len() * shape.actions());
    let q = filled(b, "q", len + 1, -7.0f32)?;
    macro_rules! arguments {
        ($kernel:ident) => {
            $kernel {
                rows: rows.len() as u32,
                branches: shape.branches(),
                sizes: shape.packed(),
                atoms: shape.atoms as u32,
                stride: stride as u32,
                support: device_support.into(),
                logits: logits.into(),
                q: q.into(),
            }
        };
    }
    if wide {
        launch(b, arguments!(DuelingQWide))?
    } else {
        launch(b, arguments!(DuelingQ))?
    }
    let mut got = b.download(q)?;
    same_bits("behind the Q values", &got[len..], &[-7.0]);
    got.truncate(len);
    Ok(got)
}

/// log p [rows, sum n_d, K].
fn log_p_values<B: Backend>(
    b: &mut B,
    shape: &Shape,
    rows: &[Heads],
    wide: bool,
) -> Result<Vec<f32>, ExecError> {
    let stride = shape.columns();
    let logits = put(b, "logits", &shape.flat(rows, stride, f32::NAN))?;
    let len = rows.len() * shape.actions() * shape.atoms;
    let log_p = filled(b, "log p", len + 1, -7.0f32)?;
    macro_rules! arguments {
        ($kernel:ident) => {
            $kernel {
                rows: rows.len() as u32,
                branches: shape.branches(),
                sizes: shape.packed(),
                atoms: shape.atoms as u32,
                stride: stride as u32,
                logits: logits.into(),
                log_p: log_p.into(),
            }
        };
    }
    if wide {
        launch(b, arguments!(DuelingLogPWide))?
    } else {
        launch(b, arguments!(DuelingLogP))?
    }
    let mut got = b.download(log_p)?;
    same_bits("behind log p", &got[len..], &[-7.0]);
    got.truncate(len);
    Ok(got)
}

/// Q against the reference, on symmetric and other supports.
pub fn expected_values<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(51);
    for (rows, shape) in shapes::<B>() {
        for support in [[-10.0, 10.0], [-2.0, 6.5]] {
            let heads: Vec<Heads> = (0..rows).map(|_| shape.random(&mut random, 1.5)).collect();
            let expected: Vec<Bounded> =
                heads.iter().flat_map(|row| reference::dueling_q(row, support)).flatten().collect();
            for &wide in widths(&shape) {
                close(&format!("Q of {shape:?}"), &q_values(b, &shape, &heads, support, wide)?, &expected);
            }
        }
    }
    Ok(())
}

/// log p against the reference.
pub fn log_probabilities<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(52);
    for (rows, shape) in shapes::<B>() {
        let heads: Vec<Heads> = (0..rows).map(|_| shape.random(&mut random, 1.5)).collect();
        let expected: Vec<Bounded> =
            heads.iter().flat_map(reference::dueling_log_p).flatten().flatten().collect();
        for &wide in widths(&shape) {
            close(&format!("log p of {shape:?}"), &log_p_values(b, &shape, &heads, wide)?, &expected);
        }
    }
    Ok(())
}

/// Logits far beyond the range of exp, all equal ones, and NaN: the first two give finite values, the last NaN for its
/// branch and for nothing else.
pub fn extreme_logits<B: Backend>(b: &mut B) -> Outcome {
    let shape = Shape::new(&[3, 2], 5);
    let support = [-2.0, 2.0];
    let mut random = Random::new(53);
    let mut rows =
        vec![shape.random(&mut random, 1000.0), shape.random(&mut random, 1e-30), shape.constant(1e4)];
    let expected: Vec<Bounded> =
        rows.iter().flat_map(|row| reference::dueling_q(row, support)).flatten().collect();
    let log_p: Vec<Bounded> = rows.iter().flat_map(reference::dueling_log_p).flatten().flatten().collect();
    for wide in [false, true] {
        let got = q_values(b, &shape, &rows, support, wide)?;
        assert!(got.iter().all(|q| q.is_finite() && q.abs() <= 2.0), "{got:?}");
        close("Q of extreme logits", &got, &expected);
        close("log p of extreme logits", &log_p_values(b, &shape, &rows, wide)?, &log_p);
    }
    rows.truncate(1);
    rows[0].advantage[1][0][4] = f32::NAN;
    let got = q_values(b, &shape, &rows, support, false)?;
    assert!(got[..3].iter().all(|q| q.is_finite()) && got[3..].iter().all(|q| q.is_nan()), "{got:?}");
    Ok(())
}

/// The advantage's mean is taken per atom: any other mean cancels in the softmax.
pub fn c10_mean_per_atom<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C10");
    let advantage: Vec<Vec<f32>> = case.rows("/input/A[a][n]").iter().map(|row| f32s(row)).collect();
    let heads = Heads { value: f32s(&case.numbers("/input/V[n]")), advantage: vec![advantage] };
    let shape = Shape::new(&[heads.advantage[0].len()], heads.value.len());
    let z = f32s(&case.numbers("/input/support"));
    let support = [z[0], z[z.len() - 1]];
    let expected = case.numbers("/expected/Q");
    for wide in [false, true] {
        let q = q_values(b, &shape, std::slice::from_ref(&heads), support, wide)?;
        case.matches("Q", &f64s(&q), &expected);
        let log_p = log_p_values(b, &shape, std::slice::from_ref(&heads), wide)?;
        let p: Vec<f64> = log_p.iter().map(|&x| f64::from(x).exp()).collect();
        case.matches("p", &p, &case.rows("/expected/probs").concat());
    }
    for bug in ["mean_over_all", "mean_over_atoms"] {
        case.tells_apart(bug, &case.numbers(&format!("/known_wrong/{bug}/Q")), &expected);
    }
    Ok(())
}
