//! The ensemble's loss of one sample in f64.

use crate::kernels::distribution::reference::{atoms, expectation, softmax};
use crate::reference::{Bounded, UNIT, WARP_CHAIN};

/// Loss, uncertainty and gradients.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Weighted cross-entropies of the members that learn, less the bonus.
    pub loss: Bounded,
    /// Variance of the expected values.
    pub variance: Bounded,
    /// d loss / d outputs [M, K], of a mean over the batch.
    pub gradient: Vec<Vec<Bounded>>,
}

/// Loss of one sample of a batch of `batch`: `logits` [M][K], `target` [K], `learns` [M].
pub fn ensemble_loss(
    batch: usize,
    support: [f32; 2],
    lambda: f32,
    weight: f32,
    learns: &[bool],
    target: &[f32],
    logits: &[Vec<f32>],
) -> Loss {
    let exact = Bounded::exact;
    let (members, z) = (exact(logits.len() as f32), atoms(support, target.len()));
    let target: Vec<Bounded> = target.iter().map(|&m| exact(m)).collect();
    let rows: Vec<Vec<Bounded>> = logits.iter().map(|l| l.iter().map(|&x| exact(x)).collect()).collect();
    let distributions: Vec<_> = rows.iter().map(|l| softmax(l)).collect();
    let expected: Vec<Bounded> = distributions.iter().map(|d| expectation(&z, &d.p)).collect();
    let shares: Vec<Bounded> =
        learns.iter().map(|&on| exact(weight) * exact(f32::from(u8::from(on))) / members).collect();
    let losses = distributions.iter().zip(&shares).map(|(d, &share)| {
        share * -Bounded::sum(target.iter().zip(&d.log_p).map(|(&m, &l)| m * l), WARP_CHAIN)
    });
    let total = Bounded::sum(losses, logits.len());
    let mean = Bounded::sum(expected.iter().copied(), logits.len()) / members;
    let squares = expected.iter().map(|&e| (e - mean) * (e - mean));
    let variance = Bounded::sum(squares, logits.len()) / members;
    let below = variance.value < 1.0;
    let decided = (variance.value - 1.0).abs() > variance.tolerance();
    let bonus = Bounded { value: variance.value.min(1.0), ..variance };
    let gradient = distributions.iter().zip(&expected).zip(&shares).map(|((d, &e), &share)| {
        let pull = exact(2.0) * exact(lambda) * (e - mean) / members;
        let element = |k: usize| {
            let bonus = pull * d.p[k] * (z[k] - e);
            // Where rounding decides whether the variance counts, the whole pull is in doubt.
            let doubt = if decided { 0.0 } else { bonus.value.abs() / UNIT };
            let value = if below { bonus.value } else { 0.0 };
            let bonus = Bounded { value, scale: bonus.scale + doubt };
            (share * (d.p[k] - target[k]) - bonus) / exact(batch as f32)
        };
        (0..target.len()).map(element).collect()
    });
    let gradient = gradient.collect();
    Loss { loss: total - exact(lambda) * bonus, variance, gradient }
}
