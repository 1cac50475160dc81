//! The derived values in f64.

use crate::reference::Bounded;

/// What `iql_derive` makes of a batch.
#[derive(Clone, Debug)]
pub struct Derived {
    /// w omega [B].
    pub weights: Vec<Bounded>,
    /// Mean of V_high - V_low.
    pub gap: Bounded,
    /// Mean of |V_high|.
    pub size: Bounded,
    /// sigma [D].
    pub branch_scales: Vec<Bounded>,
}

/// `q` has one value per sample and branch; a value goes through no more additions than a thread's samples, five steps of a
/// warp and 32 warps.
pub fn derive(beta: f32, branches: usize, q: &[f32], high: &[f32], low: &[f32], weights: &[f32]) -> Derived {
    let chain = high.len().div_ceil(1024) + 5 + 32;
    let count = Bounded::exact(high.len() as f32);
    let mean = |terms: Vec<Bounded>| Bounded::sum(terms, chain) / count;
    let exact = |x: &f32| Bounded::exact(*x);
    let exponents: Vec<Bounded> = q
        .chunks_exact(branches)
        .zip(high)
        .map(|(q, high)| {
            let average = Bounded::sum(q.iter().map(exact), branches) / Bounded::exact(branches as f32);
            let exponent = Bounded::exact(beta) * (average - exact(high));
            let cap = 100f64.ln();
            // At the cap either side is within the exponent's own error.
            Bounded { value: exponent.value.min(cap), scale: exponent.scale.max(cap) }
        })
        .collect();
    let top = exponents.iter().fold(f64::NEG_INFINITY, |top, e| top.max(e.value));
    // The shift cancels, whatever its rounding.
    let powers: Vec<Bounded> =
        exponents.iter().map(|&e| (e - Bounded { value: top, scale: 0.0 }).exp()).collect();
    let power = mean(powers.clone());
    let sizes: Vec<Bounded> = (0..branches)
        .map(|d| {
            let branch = q.iter().skip(d).step_by(branches);
            mean(branch.zip(high).map(|(q, h)| (exact(q) - exact(h)).abs()).collect())
        })
        .collect();
    let size = Bounded::sum(sizes.clone(), branches) / Bounded::exact(branches as f32);
    Derived {
        weights: weights.iter().zip(&powers).map(|(w, &p)| exact(w) * (p / power)).collect(),
        gap: mean(high.iter().zip(low).map(|(h, l)| exact(h) - exact(l)).collect()),
        size: mean(high.iter().map(|h| exact(h).abs()).collect()),
        branch_scales: sizes
            .iter()
            .map(|&s| {
                if size.value == 0.0 {
                    return Bounded::exact(1.0);
                }
                let share = s / size;
                Bounded { value: share.value.clamp(0.5, 2.0), ..share }
            })
            .collect(),
    }
}

/// Both quantiles, by sorting: exact.
pub fn quantiles(high: &[f32], low: &[f32]) -> [f32; 2] {
    let sorted = |x: &[f32]| {
        let mut x = x.to_vec();
        x.sort_by(f32::total_cmp);
        x
    };
    let last = (high.len() - 1) as f64;
    [sorted(low)[(last / 100.0).floor() as usize], sorted(high)[(99.0 * last / 100.0).ceil() as usize]]
}

/// Numbers of `iql_state`.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Of the averages.
    pub rate: f32,
    /// Epsilon's ends.
    pub epsilon: [f32; 2],
    /// Of the support.
    pub support_rate: f32,
    /// Margin of the support.
    pub margin: f32,
    /// Least width of the support's goal.
    pub floor: f32,
}

/// What is kept: gap, size, epsilon, v_min, v_max.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Averages of gap and size, once started.
    pub averages: Option<[Bounded; 2]>,
    /// Exploration.
    pub epsilon: Bounded,
    /// Support.
    pub support: [Bounded; 2],
}

/// One accepted step from the batch's gap, size and quantiles.
pub fn advance(rates: &Rates, means: [f32; 4], adaptive: bool, before: &State) -> State {
    let exact = Bounded::exact;
    let moved = |rate: f32, old: Bounded, goal: Bounded| exact(rate) * (goal - old) + old;
    let [gap, size] = match before.averages {
        Some([gap, size]) => {
            [moved(rates.rate, gap, exact(means[0])), moved(rates.rate, size, exact(means[1]))]
        }
        None => [exact(means[0]), exact(means[1])],
    };
    let share = gap / (size + Bounded::rounded(1e-6));
    let share = Bounded { value: share.value.clamp(0.0, 1.0), ..share };
    let [least, most] = rates.epsilon.map(exact);
    let (low, high) = (exact(means[2]), exact(means[3]));
    let width = (high - low) * (exact(2.0) * exact(rates.margin) + exact(1.0));
    let floor = f64::from(rates.floor);
    let half = exact(0.5) * Bounded { value: width.value.max(floor), scale: width.scale };
    let centre = exact(0.5) * (low + high);
    let support = match adaptive {
        true => [
            moved(rates.support_rate, before.support[0], centre - half),
            moved(rates.support_rate, before.support[1], centre + half),
        ],
        false => before.support,
    };
    State { averages: Some([gap, size]), epsilon: (most - least) * share + least, support }
}
