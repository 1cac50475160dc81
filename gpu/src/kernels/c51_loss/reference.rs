//! The C51 loss of one sample in f64, with the projection as the paper's algorithm 1 writes it: each target atom's mass
//! is shared out to its two neighbours.

use crate::kernels::distribution::reference::{Heads, atoms, dueling, expectation, greedy, softmax, spacing};
use crate::reference::{Bounded, UNIT, WARP_CHAIN};

/// What a sample says beside the networks' outputs.
#[derive(Clone, Debug)]
pub struct Transition {
    /// Taken action of each branch.
    pub actions: Vec<usize>,
    /// Summed reward r_n.
    pub reward: f32,
    /// gamma^m (1 - terminated).
    pub discount: f32,
    /// Importance weight.
    pub weight: f32,
}

/// Loss, statistics and gradients of one sample.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Cross-entropy of each branch.
    pub cross_entropy: Vec<Bounded>,
    /// E_m[z] - Q(s, a_d) of each branch.
    pub td_error: Vec<Bounded>,
    /// Row of statistics, without the padding: weighted loss, loss, td, Q taken, Q next, mass below, mass above.
    pub statistics: [Bounded; 7],
    /// d loss / d v, [K].
    pub value: Vec<Bounded>,
    /// Mean over the branches of the projected targets, [K].
    pub mean_target: Vec<Bounded>,
    /// d loss / d adv, [D, n_d, K].
    pub advantage: Vec<Vec<Vec<Bounded>>>,
    /// Whether the greedy actions are certain in f32.
    pub certain: bool,
}

/// Loss of one sample of a batch of `batch` with the online network's outputs at s and s' and the target's at s';
/// `branch_scales` [D].
pub fn c51_loss(
    batch: usize,
    support: [f32; 2],
    branch_scales: &[f32],
    online: &Heads,
    online_next: &Heads,
    target_next: &Heads,
    transition: &Transition,
) -> Loss {
    let count = online.value.len();
    let branches = online.advantage.len();
    let z = atoms(support, count);
    let mut loss = Loss {
        cross_entropy: vec![],
        td_error: vec![],
        statistics: [Bounded::ZERO; 7],
        value: vec![],
        mean_target: vec![],
        advantage: vec![],
        certain: true,
    };
    let mut branch_gradients = vec![];
    let mut targets = vec![];
    let mut scaled = vec![];
    let mut columns: [Vec<Bounded>; 6] = Default::default();
    for (d, &branch_scale) in branch_scales.iter().enumerate().take(branches) {
        let next_q: Vec<Bounded> = dueling(&online_next.value, &online_next.advantage[d])
            .iter()
            .map(|l| expectation(&z, &softmax(l).p))
            .collect();
        let (best, certain) = greedy(&next_q);
        loss.certain &= certain;
        let p_next = softmax(&dueling(&target_next.value, &target_next.advantage[d])[best]).p;
        let target = project(&p_next, &z, support, transition.reward, transition.discount);
        let taken = transition.actions[d];
        let now = softmax(&dueling(&online.value, &online.advantage[d])[taken]);
        let ce = -Bounded::sum((0..count).map(|k| target.mass[k] * now.log_p[k]), WARP_CHAIN);
        let (q, mean) = (expectation(&z, &now.p), expectation(&z, &target.mass));
        let branch_scale = Bounded::exact(branch_scale);
        let scale =
            Bounded::exact(transition.weight) * branch_scale / Bounded::exact((batch * branches) as f32);
        let g: Vec<Bounded> = (0..count).map(|k| scale * (now.p[k] - target.mass[k])).collect();
        let actions = online.advantage[d].len();
        let mut rows = vec![];
        for a in 0..actions {
            let share = Bounded::rounded(1.0 / actions as f64);
            let factor = if a == taken { Bounded::exact(1.0) - share } else { -share };
            rows.push(g.iter().map(|&g| g * factor).collect());
        }
        loss.advantage.push(rows);
        branch_gradients.push(g);
        scaled.push(branch_scale * ce);
        loss.cross_entropy.push(ce);
        loss.td_error.push(mean - q);
        for (column, x) in
            columns.iter_mut().zip([ce, (mean - q).abs(), q, next_q[best], target.low, target.high])
        {
            column.push(x);
        }
        targets.push(target.mass);
    }
    let share = Bounded::exact(branches as f32);
    for k in 0..count {
        loss.mean_target.push(Bounded::sum(targets.iter().map(|m| m[k]), branches) / share);
        loss.value.push(Bounded::sum(branch_gradients.iter().map(|g| g[k]), branches));
    }
    for (i, column) in columns.into_iter().enumerate() {
        loss.statistics[1 + i] = Bounded::sum(column, branches) / share;
    }
    loss.statistics[0] = Bounded::exact(transition.weight) * (Bounded::sum(scaled, branches) / share);
    loss
}

/// A projected target distribution.
#[derive(Clone, Debug)]
pub struct Target {
    /// m [K].
    pub mass: Vec<Bounded>,
    /// Mass strictly below the support.
    pub low: Bounded,
    /// Mass strictly above the support.
    pub high: Bounded,
}

/// Projection of r + discount z under p onto the support.
pub fn project(p: &[Bounded], z: &[Bounded], support: [f32; 2], reward: f32, discount: f32) -> Target {
    let count = p.len();
    let dz = spacing(support, count);
    let mut target = Target { mass: vec![Bounded::ZERO; count], low: Bounded::ZERO, high: Bounded::ZERO };
    for k in 0..count {
        let tz = Bounded::exact(reward) + Bounded::exact(discount) * z[k];
        if !tz.value.is_finite() {
            let undefined = Bounded { value: f64::NAN, scale: 0.0 };
            return Target { mass: vec![undefined; count], low: undefined, high: undefined };
        }
        target.low = target.low + outside(p[k], f64::from(support[0]) - tz.value, tz.scale);
        target.high = target.high + outside(p[k], tz.value - f64::from(support[1]), tz.scale);
        let b = (tz - Bounded::exact(support[0])) / dz;
        let clipped = b.value.clamp(0.0, (count - 1) as f64);
        let (l, u) = (clipped.floor() as usize, clipped.ceil() as usize);
        if l == u {
            add(&mut target.mass[l], p[k], 1.0);
        } else {
            add(&mut target.mass[l], p[k], u as f64 - clipped);
            add(&mut target.mass[u], p[k], clipped - l as f64);
        }
        // An error of the position moves as much mass between the neighbours, and near an integer to the next one.
        for neighbour in target.mass.iter_mut().take((u + 2).min(count)).skip(l.saturating_sub(1)) {
            neighbour.scale += p[k].value * b.scale;
        }
    }
    for mass in &mut target.mass {
        // At most all atoms fall on one; each addition rounds a partial sum no larger than the sum.
        mass.scale += count as f64 * mass.value;
    }
    target
}

/// The part of `p` that counts as outside when its atom is `distance` beyond an end. Closer than the rounding error of
/// the atom, f32 may decide either way.
fn outside(p: Bounded, distance: f64, scale: f64) -> Bounded {
    let undecided = if distance.abs() <= 2.0 * UNIT * scale { p.value / UNIT } else { 0.0 };
    let counted = if distance > 0.0 { p } else { Bounded::ZERO };
    Bounded { value: counted.value, scale: counted.scale + undecided + WARP_CHAIN as f64 * counted.value }
}

fn add(mass: &mut Bounded, p: Bounded, fraction: f64) {
    mass.value += p.value * fraction;
    // One rounding of the distance to the neighbour and one of the product.
    mass.scale += p.scale * fraction + p.value * (1.0 + fraction);
}
