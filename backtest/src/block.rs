//! How long the blocks of a bootstrap have to be, from the series itself.

/// K_N: so many lags in a row without a significant autocorrelation end the dependence. The paper's max(5, sqrt(log10 n)),
/// which is 5 for every n below 10^25.
const QUIET_LAGS: usize = 5;

/// Expected block length of the stationary bootstrap for the mean of a series, at least 1.
///
/// Politis and White, Automatic block-length selection for the dependent bootstrap (Econometric Reviews, 2004), with the
/// correction by Patton, Politis and White (2009): autocovariances R(k) under a flat-top window that ends at twice the
/// first lag from which the autocorrelations are no longer significant (as the implementations in R's `np` and Python's
/// `arch` take it); b = (2 G^2 / D)^(1/3) n^(1/3) with G = sum over k of w(k) |k| R(k) and D = 2 (sum over k of
/// w(k) R(k))^2; at most min(3 sqrt(n), n / 3). A series that does not vary, or is shorter than 8, needs blocks of 1.
pub fn block_length(series: &[f64]) -> f64 {
    let n = series.len();
    if n < 8 {
        return 1.0;
    }
    let count = n as f64;
    let mean = series.iter().sum::<f64>() / count;
    let centred: Vec<f64> = series.iter().map(|x| x - mean).collect();
    // Equal values differ from their mean by rounding.
    let largest = |values: &[f64]| values.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    if largest(&centred) <= 4.0 * f64::EPSILON * (1.0 + largest(series)) {
        return 1.0;
    }
    let products = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let covariance = |lag: usize| products(&centred[lag..], &centred[..n - lag]) / count;
    let squares = products(&centred, &centred);
    let most = (count.sqrt().ceil() as usize + QUIET_LAGS).min(n - 2);
    let bound = 2.0 * (count.log10() / count).sqrt();
    let mut covariances = vec![squares / count];
    // Sums of squares without the first, and without the last lag + 1 values: each autocorrelation is scaled by its own.
    let (mut late, mut early) = (squares, squares);
    (late, early) = (late - centred[0] * centred[0], early - centred[n - 1] * centred[n - 1]);
    let (mut quiet, mut first_quiet) = (0, None);
    for lag in 1..most {
        (late, early) =
            (late - centred[lag] * centred[lag], early - centred[n - 1 - lag] * centred[n - 1 - lag]);
        let value = covariance(lag);
        covariances.push(value);
        quiet = if (count * value).abs() < bound * (late * early).max(0.0).sqrt() { quiet + 1 } else { 0 };
        if quiet == QUIET_LAGS {
            first_quiet = Some(lag + 1 - QUIET_LAGS);
            break;
        }
    }
    let width = first_quiet.map_or(most, |lag| (2 * lag).min(most));
    for lag in covariances.len()..=width {
        covariances.push(covariance(lag));
    }
    let (mut g, mut spectrum) = (0.0, covariances[0]);
    for (lag, value) in covariances.iter().enumerate().take(width + 1).skip(1) {
        let share = lag as f64 / width as f64;
        let window = if share <= 0.5 { 1.0 } else { 2.0 * (1.0 - share) };
        g += 2.0 * window * lag as f64 * value;
        spectrum += 2.0 * window * value;
    }
    let d = 2.0 * spectrum * spectrum;
    if d <= 0.0 {
        return 1.0;
    }
    let length = (2.0 * g * g / d).cbrt() * count.cbrt();
    let longest = (3.0 * count.sqrt()).min(count / 3.0).ceil();
    length.min(longest).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_depend_on_needs_single_bars() {
        assert_eq!(block_length(&[]), 1.0);
        assert_eq!(block_length(&[0.1; 100]), 1.0);
        assert_eq!(block_length(&[1.0, -1.0, 2.0]), 1.0);
    }

    /// An autoregression x_t = a x_{t-1} + e_t needs longer blocks the longer its memory is.
    #[test]
    fn memory_needs_longer_blocks() {
        let lengths = [0.0, 0.5, 0.9].map(|memory| {
            let mut x = 0.0;
            let mut seed = 1u64;
            let series: Vec<f64> = (0..2000)
                .map(|_| {
                    seed =
                        seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    x = memory * x + (seed >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
                    x
                })
                .collect();
            block_length(&series)
        });
        assert!(lengths[0] < 8.0 && lengths[1] > lengths[0] && lengths[2] > 2.0 * lengths[1], "{lengths:?}");
    }
}
