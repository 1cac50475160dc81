//! The IQN head in f64, one row after the other, with its gradients by the chain rule.
//!
//! For the kernels on the tensor cores the operands of each product can be rounded as they do it, so that what remains
//! between the two is f32's rounding alone.

use crate::kernels::gemm::reference::Rounding;

/// Sizes of a head.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// H2.
    pub trunk: usize,
    /// E.
    pub cosines: usize,
    /// Hq.
    pub hidden: usize,
    /// n_d of each branch.
    pub actions: Vec<usize>,
    /// Negative slope of the hidden layer.
    pub slope: f64,
    /// What happens to the products' operands.
    pub rounding: Rounding,
}

/// Parameters, or their gradients.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    /// Wc [H2, E].
    pub cos_weight: Vec<f64>,
    /// bc [H2].
    pub cos_bias: Vec<f64>,
    /// Wh [Hq, H2].
    pub hid_weight: Vec<f64>,
    /// bh [Hq].
    pub hid_bias: Vec<f64>,
    /// Wo [A, Hq].
    pub out_weight: Vec<f64>,
    /// bo [A].
    pub out_bias: Vec<f64>,
}

/// One row's forward pass.
#[derive(Clone, Debug)]
pub struct Row {
    /// cos(pi j tau), j from 1 [E].
    pub cosines: Vec<f64>,
    /// phi [H2].
    pub phi: Vec<f64>,
    /// u1 before its activation [Hq].
    pub sums: Vec<f64>,
    /// z [A].
    pub z: Vec<f64>,
}

/// One sample's part of the loss.
#[derive(Clone, Debug)]
pub struct Sample {
    /// h [H2].
    pub h: Vec<f64>,
    /// tau [N].
    pub taus: Vec<f64>,
    /// Targets of each branch [D][N'].
    pub targets: Vec<Vec<f64>>,
    /// Actions taken [D].
    pub actions: Vec<usize>,
    /// w.
    pub weight: f64,
}

/// Losses and gradients of a batch.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Loss of each sample, not weighted [B].
    pub loss: Vec<f64>,
    /// Gradient of the weighted mean with respect to h [B][H2].
    pub dh: Vec<Vec<f64>>,
    /// With respect to the parameters.
    pub parameters: Parameters,
}

impl Sizes {
    /// A.
    pub fn outputs(&self) -> usize {
        self.actions.iter().sum()
    }

    /// Index of a branch's first output.
    pub fn first_output(&self, branch: usize) -> usize {
        self.actions[..branch].iter().sum()
    }

    fn round(&self, value: f64) -> f64 {
        if self.rounding == Rounding::Exact { value } else { self.rounding.apply(value as f32) }
    }

    /// What the bias gradients sum: kernels round an operand when they store it.
    fn stored(&self, value: f64) -> f64 {
        self.round(value)
    }

    fn activate(&self, sum: f64) -> f64 {
        if sum > 0.0 { sum } else { self.slope * sum }
    }

    /// The forward pass for one sample's h and one tau.
    pub fn row(&self, p: &Parameters, h: &[f64], tau: f64) -> Row {
        let product = |weight: &[f64], input: &[f64], bias: f64| {
            bias + weight.iter().zip(input).map(|(w, x)| self.round(*w) * self.round(*x)).sum::<f64>()
        };
        let cosines: Vec<f64> =
            (1..=self.cosines).map(|j| (std::f64::consts::PI * j as f64 * tau).cos()).collect();
        let phi: Vec<f64> = (0..self.trunk)
            .map(|c| {
                product(&p.cos_weight[c * self.cosines..][..self.cosines], &cosines, p.cos_bias[c]).max(0.0)
            })
            .collect();
        let x: Vec<f64> = phi.iter().zip(h).map(|(phi, h)| phi * h).collect();
        let sums: Vec<f64> = (0..self.hidden)
            .map(|q| product(&p.hid_weight[q * self.trunk..][..self.trunk], &x, p.hid_bias[q]))
            .collect();
        let u: Vec<f64> = sums.iter().map(|&s| self.activate(s)).collect();
        let z = (0..self.outputs())
            .map(|a| product(&p.out_weight[a * self.hidden..][..self.hidden], &u, p.out_bias[a]))
            .collect();
        Row { cosines, phi, sums, z }
    }

    /// Mean of each output over the taus.
    pub fn means(&self, p: &Parameters, h: &[f64], taus: &[f64]) -> Vec<f64> {
        let rows: Vec<Row> = taus.iter().map(|&tau| self.row(p, h, tau)).collect();
        (0..self.outputs())
            .map(|a| rows.iter().map(|row| row.z[a]).sum::<f64>() / taus.len() as f64)
            .collect()
    }

    /// Losses of a batch and the gradients of their weighted mean.
    pub fn gradients(&self, p: &Parameters, batch: &[Sample], kappa: f64) -> Gradients {
        let mut loss = vec![0.0; batch.len()];
        let mut dh = vec![vec![0.0; self.trunk]; batch.len()];
        let mut grad = Parameters {
            cos_weight: vec![0.0; p.cos_weight.len()],
            cos_bias: vec![0.0; p.cos_bias.len()],
            hid_weight: vec![0.0; p.hid_weight.len()],
            hid_bias: vec![0.0; p.hid_bias.len()],
            out_weight: vec![0.0; p.out_weight.len()],
            out_bias: vec![0.0; p.out_bias.len()],
        };
        let branches = self.actions.len();
        for (b, sample) in batch.iter().enumerate() {
            let scale = sample.weight / (batch.len() * branches) as f64;
            for &tau in &sample.taus {
                let row = self.row(p, &sample.h, tau);
                let u: Vec<f64> = row.sums.iter().map(|&s| self.activate(s)).collect();
                let mut du = vec![0.0; self.hidden];
                for d in 0..branches {
                    let a = self.first_output(d) + sample.actions[d];
                    let (value, slope) = quantile_huber(row.z[a], tau, &sample.targets[d], kappa);
                    loss[b] += value / branches as f64;
                    let dz = scale * slope;
                    grad.out_bias[a] += self.stored(dz);
                    for (q, du) in du.iter_mut().enumerate() {
                        grad.out_weight[a * self.hidden + q] += self.round(dz) * self.round(u[q]);
                        *du += self.round(dz) * self.round(p.out_weight[a * self.hidden + q]);
                    }
                }
                let mut dx = vec![0.0; self.trunk];
                for (q, du) in du.into_iter().enumerate() {
                    let ds = if row.sums[q] > 0.0 { du } else { self.slope * du };
                    grad.hid_bias[q] += self.stored(ds);
                    for (c, dx) in dx.iter_mut().enumerate() {
                        let x = row.phi[c] * sample.h[c];
                        grad.hid_weight[q * self.trunk + c] += self.round(ds) * self.round(x);
                        *dx += self.round(ds) * self.round(p.hid_weight[q * self.trunk + c]);
                    }
                }
                for c in 0..self.trunk {
                    dh[b][c] += dx[c] * row.phi[c];
                    let d_phi = if row.phi[c] > 0.0 { dx[c] * sample.h[c] } else { 0.0 };
                    grad.cos_bias[c] += self.stored(d_phi);
                    for j in 0..self.cosines {
                        grad.cos_weight[c * self.cosines + j] +=
                            self.round(d_phi) * self.round(row.cosines[j]);
                    }
                }
            }
        }
        Gradients { loss, dh, parameters: grad }
    }
}

/// Mean over the targets of |tau - 1\[u < 0\]| huber(u) / kappa, u = target - z, and its derivative with respect to z.
pub fn quantile_huber(z: f64, tau: f64, targets: &[f64], kappa: f64) -> (f64, f64) {
    let (mut value, mut slope) = (0.0, 0.0);
    for target in targets {
        let u = target - z;
        let weight = if u < 0.0 { (tau - 1.0).abs() } else { tau };
        let huber = if u.abs() <= kappa { u * u / 2.0 } else { kappa * (u.abs() - kappa / 2.0) };
        value += weight * huber / kappa;
        slope -= weight * u.clamp(-kappa, kappa) / kappa;
    }
    (value / targets.len() as f64, slope / targets.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in (-1, 1).
    fn numbers(count: usize, seed: &mut u64) -> Vec<f64> {
        let mut next = || {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 33) as f64 / f64::from(1u32 << 30) - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Values of SPEC's case: N != N', weights.
    #[test]
    fn sum_over_quantiles_and_mean_over_targets() {
        let z = [[-0.3, 0.4, 1.7], [2.0, -1.1, 0.25]];
        let taus = [[0.11, 0.52, 0.93], [0.35, 0.66, 0.08]];
        let targets = [[0.1, -0.8, 2.4, 1.0], [0.3, 0.3, -2.2, 1.4]];
        let expected = [0.5358125, 2.16005];
        let derivative = [[0.022625, -0.026, -0.05775], [0.1755, -0.123, 0.0624]];
        for b in 0..2 {
            let each: Vec<_> =
                (0..3).map(|i| quantile_huber(z[b][i], taus[b][i], &targets[b], 1.0)).collect();
            assert!((each.iter().map(|e| e.0).sum::<f64>() - expected[b]).abs() < 1e-12);
            for i in 0..3 {
                let weighted = each[i].1 * [1.0, 0.6][b] / 2.0;
                assert!((weighted - derivative[b][i]).abs() < 1e-12);
            }
        }
    }

    /// Values of SPEC's case: kappa other than 1, errors of exactly kappa.
    #[test]
    fn the_huber_loss_is_divided_by_kappa() {
        for (kappa, loss, derivative) in [
            (0.5, 1.484375, [0.0, -0.125, -0.0625]),
            (1.0, 1.2734375, [0.03125, -0.0625, 0.0]),
            (2.0, 0.984375, [0.09375, 0.03125, 0.03125]),
        ] {
            let each = [(0.0, 0.25), (0.5, 0.5), (1.0, 0.75)]
                .map(|(z, tau)| quantile_huber(z, tau, &[0.5, 1.5, -3.0, 1.0], kappa));
            assert!((each.iter().map(|e| e.0).sum::<f64>() - loss).abs() < 1e-12);
            for (each, derivative) in each.iter().zip(derivative) {
                assert!((each.1 - derivative).abs() < 1e-12);
            }
        }
    }

    /// Central differences of the weighted mean loss in every input.
    #[test]
    fn gradients_are_the_differences_of_the_loss() {
        let sizes = Sizes {
            trunk: 5,
            cosines: 3,
            hidden: 4,
            actions: vec![3, 2],
            slope: 0.1,
            rounding: Rounding::Exact,
        };
        let mut seed = 11;
        let p = Parameters {
            cos_weight: numbers(15, &mut seed),
            cos_bias: numbers(5, &mut seed),
            hid_weight: numbers(20, &mut seed),
            hid_bias: numbers(4, &mut seed),
            out_weight: numbers(20, &mut seed),
            out_bias: numbers(5, &mut seed),
        };
        let batch: Vec<Sample> = (0..3)
            .map(|b| Sample {
                h: numbers(5, &mut seed),
                taus: numbers(4, &mut seed).iter().map(|x| 0.5 + 0.5 * x).collect(),
                targets: vec![numbers(3, &mut seed), numbers(3, &mut seed)],
                actions: vec![b, b % 2],
                weight: 1.0 / (1.0 + b as f64),
            })
            .collect();
        let kappa = 0.3;
        let mean = |p: &Parameters, batch: &[Sample]| {
            let losses = sizes.gradients(p, batch, kappa).loss;
            losses.iter().zip(batch).map(|(l, s)| l * s.weight).sum::<f64>() / batch.len() as f64
        };
        let got = sizes.gradients(&p, &batch, kappa);
        let step = 1e-6;
        // The loss is once continuously differentiable but for the kinks of the activations, from which these numbers are
        // further than a step; its second derivatives are of the order of one.
        let check = |analytic: f64, up: f64, down: f64, what: &str, i: usize| {
            let difference = (up - down) / (2.0 * step);
            assert!((analytic - difference).abs() < 1e-7, "{what}[{i}]: {analytic} against {difference}");
        };
        type Field = (&'static str, fn(&mut Parameters) -> &mut Vec<f64>);
        let fields: [Field; 6] = [
            ("Wc", |p| &mut p.cos_weight),
            ("bc", |p| &mut p.cos_bias),
            ("Wh", |p| &mut p.hid_weight),
            ("bh", |p| &mut p.hid_bias),
            ("Wo", |p| &mut p.out_weight),
            ("bo", |p| &mut p.out_bias),
        ];
        let mut analytic = got.parameters.clone();
        for (name, field) in fields {
            for i in 0..field(&mut analytic).len() {
                let moved = |by: f64| {
                    let mut p = p.clone();
                    field(&mut p)[i] += by;
                    mean(&p, &batch)
                };
                check(field(&mut analytic)[i], moved(step), moved(-step), name, i);
            }
        }
        for b in 0..3 {
            for c in 0..5 {
                let moved = |by: f64| {
                    let mut batch = batch.clone();
                    batch[b].h[c] += by;
                    mean(&p, &batch)
                };
                check(got.dh[b][c], moved(step), moved(-step), "h", 5 * b + c);
            }
        }
    }
}
