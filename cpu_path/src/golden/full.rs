//! The problem of `full_t1.safetensors` and `full_t2.safetensors`: a complete training step with every part on.

use settings::{Attention, Budgets, Cql, Flat, Group, Head, Iql, Iqn, ModelShape, Parts, Spectral};

use super::{Golden, GoldenError};
use crate::batch::C51Batch;

/// What a complete training step starts from.
#[derive(Clone, Debug)]
pub struct FullProblem {
    /// Network shape, with window.
    pub shape: ModelShape,
    /// CQL, IQN, IQL, attention, spectral norm and budgets, all on.
    pub parts: Parts,
    /// Optimizer.
    pub optimizer: settings::Optimizer,
    /// Where every tensor lies.
    pub flat: Flat,
    /// The batch with its quantile samples; every value is exactly representable in f32 (except the discounts).
    pub batch: C51Batch<f64>,
    /// Initial online parameters of all networks.
    pub online: Vec<f64>,
    /// Initial target parameters, [`Flat::target_len`].
    pub target: Vec<f64>,
    /// Initial vectors of the spectral norm, trunk1's and trunk2's.
    pub spectral: [Vec<f64>; 2],
}

/// Name of a group's tensor in these files, behind the prefix: the main network's tensors have one of their own.
pub fn golden_name(group: Group, tensor: &str) -> String {
    if group == Group::Main { format!("main.{tensor}") } else { tensor.to_string() }
}

impl Golden {
    /// The problem of a complete step.
    ///
    /// # Errors
    /// An entry that is missing or malformed.
    pub fn full_problem(&self) -> Result<FullProblem, GoldenError> {
        let integer = |key: &str| Ok::<usize, GoldenError>(self.number(key)? as usize);
        let real = |key: &str| Ok::<f32, GoldenError>(self.number(key)? as f32);
        let head = match self.meta["head"].as_str() {
            Some("lrelu") => Head::Mlp,
            Some("glu") => Head::Glu,
            _ => return Err(self.fail("meta.head: expected lrelu or glu".into())),
        };
        let shape =
            ModelShape { window: integer("W")?, bar_features: integer("F")?, head, ..self.model_shape()? };
        shape.check().map_err(|message| self.fail(message))?;
        let parts = Parts {
            cql: Cql { enabled: true, alpha: real("cql_alpha")? },
            iqn: Iqn {
                enabled: true,
                cosines: integer("iqn_cos")?,
                samples: integer("N")?,
                target_samples: integer("N_target")?,
                hidden: integer("iqn_hidden")?,
                kappa: real("kappa")?,
                double: false,
            },
            iql: Iql {
                enabled: true,
                hidden: integer("iql_hidden")?,
                tau_high: real("iql_tau_high")?,
                tau_low: real("iql_tau_low")?,
                beta: real("advantage_beta")?,
                ..Iql::default()
            },
            attention: Attention { enabled: true, heads: integer("attention_heads")? },
            mamba: Default::default(),
            spectral: Spectral { enabled: true, sigma_max: real("sigma_max")? },
            budgets: Budgets {
                c51: real("budget_c51")?,
                cql: real("budget_cql")?,
                iqn: real("budget_iqn")?,
                ..Budgets::default()
            },
            ..Parts::default()
        };
        parts.check(&shape).map_err(|e| self.fail(e.to_string()))?;
        let batch = C51Batch {
            taus: self.floats("in.taus")?.to_vec(),
            target_taus: self.floats("in.taus_target")?.to_vec(),
            ..self.batch(self.number("discount")?)?
        };
        batch.check(&shape, &parts).map_err(|e| self.fail(e.to_string()))?;
        let flat = Flat::new(&shape, &parts);
        let mut target = self.full_flat(&flat, "target0.", Group::has_target)?;
        target.truncate(flat.target_len());
        Ok(FullProblem {
            online: self.full_flat(&flat, "online0.", |_| true)?,
            target,
            spectral: [self.floats("spectral0.u1")?.to_vec(), self.floats("spectral0.u2")?.to_vec()],
            optimizer: self.optimizer(real("max_grad_norm")?)?,
            shape,
            parts,
            flat,
            batch,
        })
    }

    /// Gathers `{prefix}{name}` of every tensor of the accepted groups into one flat vector ([`golden_name`]); the rest
    /// is zero.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape than in the layout.
    pub fn full_flat(
        &self,
        flat: &Flat,
        prefix: &str,
        accepted: impl Fn(Group) -> bool,
    ) -> Result<Vec<f64>, GoldenError> {
        let mut values = vec![0.0; flat.len];
        for segment in flat.segments.iter().filter(|s| accepted(s.group)) {
            let prefix = format!("{prefix}{}", golden_name(segment.group, ""));
            let part = self.flat(&segment.layout, &prefix)?;
            values[segment.offset..][..segment.len].copy_from_slice(&part);
        }
        Ok(values)
    }
}
