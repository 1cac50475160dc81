//! Comparison with references, and limits of statistical tests.

use gpu::reference::{Bounded, UNIT};

/// Compares element by element and names the element that is furthest outside its bound. With `--nocapture` the
/// largest error is printed as a fraction of the bound, which shows how sharp the test is.
#[track_caller]
pub fn close(what: &str, got: &[f32], expected: &[Bounded]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    let mut worst: f64 = 0.0;
    for (i, (&got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected.value).abs();
        assert!(
            expected.accepts(got),
            "{what}[{i}] is {got}, expected {} within {:e}: off by {:e}, {:.1} units of the bound's scale",
            expected.value,
            expected.tolerance(),
            error,
            error / (UNIT * expected.scale),
        );
        worst = worst.max(error / expected.tolerance());
    }
    println!("{what}: largest error {worst:.3} of its bound");
}

/// Equal bit for bit, which tells 0 from -0 and holds for NaN.
#[track_caller]
pub fn same_bits(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}: number of elements");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.to_bits(), expected.to_bits(), "{what}[{i}] is {got}, expected {expected}");
    }
}

/// Pearson's statistic of counts that should be equally likely must stay below its quantile at 1 - 1e-6. Draws are a
/// function of the seed, so a right kernel passes always; the level says how unlikely a fair generator would fail.
#[track_caller]
pub fn equally_likely(what: &str, counts: &[usize]) {
    let total: usize = counts.iter().sum();
    let expected = total as f64 / counts.len() as f64;
    assert!(expected >= 5.0, "{what}: {expected} draws per cell are too few for the statistic");
    let statistic: f64 = counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
    let limit = chi_squared_quantile((counts.len() - 1) as f64, 4.753);
    assert!(statistic < limit, "{what}: chi squared {statistic} above {limit}, counts {counts:?}");
}

/// Wilson and Hilferty's (1931) approximation of the chi-squared quantile at the normal quantile `z`.
fn chi_squared_quantile(freedom: f64, z: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + z * spread.sqrt()).powi(3)
}
