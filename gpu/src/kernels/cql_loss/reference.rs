//! The CQL regularizer of one sample in f64.

use crate::kernels::distribution::reference::{Distribution, Heads, atoms, dueling, expectation, softmax};
use crate::reference::{Bounded, WARP_CHAIN};

/// Loss and gradients of one sample.
#[derive(Clone, Debug)]
pub struct Loss {
    /// alpha / D sum_d of the excesses.
    pub loss: Bounded,
    /// logsumexp_a Q - Q(a_d) of each branch.
    pub per_branch: Vec<Bounded>,
    /// d loss / d v, [K].
    pub value: Vec<Bounded>,
    /// d loss / d adv, [D, n_d, K].
    pub advantage: Vec<Vec<Vec<Bounded>>>,
}

/// Loss of one sample of a batch of `batch` with the online network's outputs at s; `taken` has one action a branch.
pub fn cql_loss(batch: usize, support: [f32; 2], alpha: f32, online: &Heads, taken: &[usize]) -> Loss {
    let (count, branches) = (online.value.len(), online.advantage.len());
    let z = atoms(support, count);
    let scale = Bounded::exact(alpha) / Bounded::exact((batch * branches) as f32);
    let (mut per_branch, mut advantage, mut values) = (vec![], vec![], vec![]);
    for (rows, &taken) in online.advantage.iter().zip(taken) {
        let actions: Vec<Distribution> = dueling(&online.value, rows).iter().map(|l| softmax(l)).collect();
        let q: Vec<Bounded> = actions.iter().map(|a| expectation(&z, &a.p)).collect();
        let policy = softmax_of_values(&q);
        per_branch.push(policy.excess(&q, taken));
        let g: Vec<Vec<Bounded>> = (0..rows.len())
            .map(|a| {
                let one = Bounded::exact(if a == taken { 1.0 } else { 0.0 });
                let weight = scale * (policy.p[a] - one);
                (0..count).map(|k| weight * actions[a].p[k] * (z[k] - q[a])).collect()
            })
            .collect();
        let share = Bounded::rounded(1.0 / rows.len() as f64);
        let sums: Vec<Bounded> =
            (0..count).map(|k| Bounded::sum(g.iter().map(|row| row[k]), rows.len())).collect();
        advantage.push(
            g.iter().map(|row| (0..count).map(|k| row[k] - sums[k] * share).collect()).collect::<Vec<_>>(),
        );
        values.push(sums);
    }
    let value = (0..count).map(|k| Bounded::sum(values.iter().map(|s| s[k]), branches)).collect();
    let mean = Bounded::sum(per_branch.iter().copied(), branches) / Bounded::exact(branches as f32);
    Loss { loss: Bounded::exact(alpha) * mean, per_branch, value, advantage }
}

/// Softmax over the actions of a branch.
struct Policy {
    p: Vec<Bounded>,
    top: Bounded,
    log_sum: Bounded,
}

impl Policy {
    fn excess(&self, q: &[Bounded], taken: usize) -> Bounded {
        self.top - q[taken] + self.log_sum
    }
}

fn softmax_of_values(q: &[Bounded]) -> Policy {
    let top = q.iter().copied().reduce(|top, x| if x.value > top.value { x } else { top });
    let top = top.unwrap_or(Bounded::ZERO);
    let exps: Vec<Bounded> = q.iter().map(|&x| (x - top).exp()).collect();
    let sum = Bounded::sum(exps.iter().copied(), WARP_CHAIN);
    Policy { p: exps.iter().map(|&e| e / sum).collect(), top, log_sum: sum.ln() }
}
