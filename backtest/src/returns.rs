//! Returns per bar and the ratios made of them.

/// Simple returns r_t = E_t / E_{t-1} - 1 of an equity curve; `None` when an equity that is divided by is not
/// positive (a ruined account has no return after that).
pub fn simple_returns(equity: &[f64]) -> Option<Vec<f64>> {
    equity.windows(2).map(|pair| (pair[0] > 0.0).then(|| pair[1] / pair[0] - 1.0)).collect()
}

/// Arithmetic mean; `None` of nothing.
pub fn mean(returns: &[f64]) -> Option<f64> {
    (!returns.is_empty()).then(|| returns.iter().sum::<f64>() / returns.len() as f64)
}

/// Standard deviation with ddof = 1; `None` with fewer than two returns.
pub fn deviation(returns: &[f64]) -> Option<f64> {
    let mean = mean(returns)?;
    let squares: f64 = returns.iter().map(|r| (r - mean) * (r - mean)).sum();
    (returns.len() > 1).then(|| (squares / (returns.len() - 1) as f64).sqrt())
}

/// Root of the mean over *all* returns of min(r, 0)^2: the downside deviation with target 0.
pub fn downside_deviation(returns: &[f64]) -> Option<f64> {
    let squares: f64 = returns.iter().map(|r| r.min(0.0) * r.min(0.0)).sum();
    (!returns.is_empty()).then(|| (squares / returns.len() as f64).sqrt())
}

/// Mean of the returns a year, mean * bars_per_year, not compounded.
pub fn annual_return(returns: &[f64], bars_per_year: f64) -> Option<f64> {
    Some(mean(returns)? * bars_per_year)
}

/// deviation * sqrt(bars_per_year).
pub fn annual_volatility(returns: &[f64], bars_per_year: f64) -> Option<f64> {
    Some(deviation(returns)? * bars_per_year.sqrt())
}

/// Sharpe ratio mean / deviation * sqrt(bars_per_year), ddof = 1, risk-free rate 0; `None` when the returns do not
/// vary.
pub fn sharpe(returns: &[f64], bars_per_year: f64) -> Option<f64> {
    ratio(returns, deviation(returns)?, bars_per_year)
}

/// Sortino ratio mean / downside deviation * sqrt(bars_per_year); `None` when no return is negative.
pub fn sortino(returns: &[f64], bars_per_year: f64) -> Option<f64> {
    ratio(returns, downside_deviation(returns)?, bars_per_year)
}

/// Omega ratio with threshold 0: sum of the returns above 0 over the sum of those below; `None` when no return is
/// negative.
pub fn omega(returns: &[f64]) -> Option<f64> {
    let gains: f64 = returns.iter().map(|r| r.max(0.0)).sum();
    let losses: f64 = returns.iter().map(|r| (-r).max(0.0)).sum();
    (losses > returns.len() as f64 * noise(returns)).then_some(gains / losses)
}

/// (alpha per bar, beta) of the least-squares line through (benchmark, return) pairs: beta = cov / var, alpha =
/// mean(r) - beta mean(b); `None` when the benchmark does not vary, or with fewer than two bars.
pub fn regression(returns: &[f64], benchmark: &[f64]) -> Option<(f64, f64)> {
    let spread = deviation(benchmark)?;
    if returns.len() != benchmark.len() || spread <= noise(benchmark) {
        return None;
    }
    let (r, b) = (mean(returns)?, mean(benchmark)?);
    let products: f64 = returns.iter().zip(benchmark).map(|(x, y)| (x - r) * (y - b)).sum();
    let beta = products / (returns.len() - 1) as f64 / (spread * spread);
    Some((r - beta * b, beta))
}

/// What rounding alone makes of equal returns: a return is a quotient near 1 less 1, exact to about eps (1 + |r|).
fn noise(returns: &[f64]) -> f64 {
    let largest = returns.iter().fold(0.0, |m: f64, r| m.max(r.abs()));
    4.0 * f64::EPSILON * (1.0 + largest)
}

fn ratio(returns: &[f64], risk: f64, bars_per_year: f64) -> Option<f64> {
    // A deviation of that size is rounding of equal returns, and the ratio would be a large number made of nothing.
    (risk > noise(returns)).then_some(mean(returns)? / risk * bars_per_year.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_samples_by_hand() {
        let r = [0.01, -0.02, 0.03];
        let mean = 0.02 / 3.0;
        assert!((super::mean(&r).unwrap() - mean).abs() < 1e-17);
        let variance: f64 = r.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 2.0;
        assert!((deviation(&r).unwrap() - variance.sqrt()).abs() < 1e-17);
        assert!((downside_deviation(&r).unwrap() - 0.02 / 3f64.sqrt()).abs() < 1e-17);
        assert!((sortino(&r, 16.0).unwrap() - 4.0 * mean / (0.02 / 3f64.sqrt())).abs() < 1e-14);
        assert!((annual_return(&r, 250.0).unwrap() - 250.0 * mean).abs() < 1e-14);
        assert!((annual_volatility(&r, 4.0).unwrap() - 2.0 * variance.sqrt()).abs() < 1e-16);
    }

    #[test]
    fn ratios_without_a_denominator_are_undefined() {
        assert_eq!(sharpe(&[], 252.0), None);
        assert_eq!(sharpe(&[0.01], 252.0), None);
        assert_eq!(sharpe(&[0.01; 20], 252.0), None);
        assert_eq!(sharpe(&[0.1 + 0.2 - 0.3, 0.0, 0.0], 252.0), None, "rounding is not risk");
        assert_eq!(sortino(&[0.01, 0.02], 252.0), None);
        // Growth at a constant rate through floating point.
        let equity: Vec<f64> = (0..50).map(|t| 1000.0 * 1.01f64.powi(t)).collect();
        assert_eq!(sharpe(&simple_returns(&equity).unwrap(), 252.0), None);
    }

    #[test]
    fn omega_and_regression_by_hand() {
        let r = [0.01, -0.02, 0.03, 0.0];
        assert!((omega(&r).unwrap() - 2.0).abs() < 1e-14);
        assert_eq!(omega(&[0.01, 0.0]), None);
        let benchmark = [0.02, -0.01, 0.01, 0.02];
        // Means 0.005 and 0.01; squares of the benchmark's deviations sum up to 0.0006.
        let (alpha, beta) = regression(&r, &benchmark).unwrap();
        let products: f64 = [0.005 * 0.01, 0.025 * 0.02, 0.025 * 0.0, -0.005 * 0.01].iter().sum();
        assert!((beta - products / 0.0006).abs() < 1e-12, "{beta}");
        assert!((alpha - (0.005 - beta * 0.01)).abs() < 1e-15);
        assert_eq!(regression(&r, &[0.01; 4]), None, "a benchmark that does not vary");
        assert_eq!(regression(&[0.1], &[0.2]), None);
    }

    #[test]
    fn a_ruined_account_has_no_further_returns() {
        assert_eq!(simple_returns(&[100.0, -5.0]), Some(vec![-1.05]));
        assert_eq!(simple_returns(&[100.0, -5.0, 3.0]), None);
        assert_eq!(simple_returns(&[100.0, 0.0, 0.0]), None);
    }
}
