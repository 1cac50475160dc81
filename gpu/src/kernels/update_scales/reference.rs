//! Norms, budgets, clips and the schedule in f64.

/// Factors and norms of one update.
#[derive(Clone, Debug)]
pub struct Scales {
    /// Budget times clip of each term.
    pub terms: [f64; 4],
    /// Unclipped norms of the terms.
    pub term_norms: [f64; 4],
    /// Norm of the scaled sum before its clip, then of the other groups.
    pub group_norms: Vec<f64>,
    /// Clip of the sum, then of the other groups.
    pub groups: Vec<f64>,
    /// Whether the update happens.
    pub finite: bool,
}

/// From whole gradient vectors: `terms` over the main parameters (shorter ones are zero beyond their end), `groups` the
/// other groups' gradients, `budgets` f_t c.
pub fn scales(terms: &[Vec<f64>; 4], groups: &[Vec<f64>], budgets: [f64; 4], max_norm: f64) -> Scales {
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let clip = |norm: f64, limit: f64| (limit / (norm + 1e-6)).min(1.0);
    let term_norms = [0, 1, 2, 3].map(|t| norm(&terms[t]));
    let budget = [0, 1, 2, 3].map(|t| clip(term_norms[t], budgets[t]));
    let len = terms.iter().map(Vec::len).max().unwrap_or(0);
    let total: Vec<f64> =
        (0..len).map(|i| (0..4).map(|t| budget[t] * terms[t].get(i).copied().unwrap_or(0.0)).sum()).collect();
    let group_norms: Vec<f64> = [norm(&total)].into_iter().chain(groups.iter().map(|g| norm(g))).collect();
    let factors: Vec<f64> = group_norms.iter().map(|&n| clip(n, max_norm)).collect();
    Scales {
        terms: budget.map(|b| b * factors[0]),
        term_norms,
        finite: term_norms.iter().chain(&group_norms).all(|n| n.is_finite()),
        groups: factors,
        group_norms,
    }
}

/// Learning rate of update number t, from 1.
pub fn learning_rate(lr: f64, warmup: f64, decay: f64, end: f64, linear: bool, t: f64) -> f64 {
    if t <= warmup {
        return lr * t / warmup;
    }
    if decay == 0.0 {
        return lr;
    }
    let x = ((t - warmup) / decay).min(1.0);
    if linear {
        return lr * (end + (1.0 - end) * (1.0 - x));
    }
    lr * (end + (1.0 - end) * (1.0 + (std::f64::consts::PI * x).cos()) / 2.0)
}
