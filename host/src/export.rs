//! `host export`: a policy for other programs, as safetensors that PyTorch loads and as ONNX (`docs/EXPORT.md`).

mod graph;

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Value, json};
use settings::{Config, Flat, Group, Head};

use crate::onnx;
use crate::predict::learner;
use crate::train::checkpoint::{Checkpoint, Stored, file_bytes};

/// Version of the description; a reader refuses another one.
pub const FORMAT: &str = "stepgraph-exported-policy-1";

/// A tensor of a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyTensor {
    /// As in PyTorch: `[out, in]` or `[out]`.
    pub shape: Vec<usize>,
    /// Row-major.
    pub values: Vec<f32>,
}

/// What of a checkpoint acts: the online networks that a greedy decision, its distributions and its uncertainty are made
/// of, noisy heads by their mu.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The configuration, state width filled in.
    pub config: Config,
    /// By name, as in the checkpoint without `online.`.
    pub tensors: BTreeMap<String, PolicyTensor>,
    /// z, [atoms]; where it adapted, what it was at the end.
    pub support: Vec<f32>,
    /// Probabilities of the quantiles that an exported IQN head gives: the midpoints (2 i + 1) / (2 N).
    pub taus: Vec<f32>,
    /// What the checkpoint says about data and origin.
    source: Value,
    /// Networks that are left out, in words.
    pub left_out: Vec<&'static str>,
}

/// The shape of the networks as a reader needs it to build them: `policy` in the metadata.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Description {
    format: &'static str,
    /// S.
    state: usize,
    /// W and F of the window that the attention and the Mamba-2 block read; 0 without a window.
    window: usize,
    bar_features: usize,
    trunk1: usize,
    trunk2: usize,
    value_hidden: usize,
    branch_hidden: usize,
    /// `mlp` or `glu`.
    head: &'static str,
    branches: Vec<usize>,
    atoms: usize,
    leaky_slope: f32,
    /// Heads of the attention; absent without it.
    attention_heads: Option<usize>,
    /// The Mamba-2 block; absent without it.
    mamba: Option<MambaDescription>,
    /// Cosine features and hidden width of the IQN head; absent without it.
    iqn: Option<IqnDescription>,
    /// Members of the ensemble; absent without it.
    ensemble_members: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct MambaDescription {
    width: usize,
    heads: usize,
    state: usize,
    conv: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct IqnDescription {
    cosines: usize,
    hidden: usize,
}

impl Policy {
    /// Takes the acting networks of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint's numbers do not fit its configuration.
    pub fn of(checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        let config = checkpoint.config.clone();
        if let Some(record) = &checkpoint.market {
            let width = config.model.bar_features;
            record.fitted.normaliser.check(width).context("the checkpoint's normaliser")?;
        }
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        if !finite(&checkpoint.online) {
            bail!("the checkpoint's parameters are not all finite: there is no policy to export");
        }
        let flat = Flat::new(&config.model, &config.parts());
        let (mut tensors, mut left_out) = (BTreeMap::new(), Vec::new());
        for segment in &flat.segments {
            match segment.group {
                Group::Main | Group::Iqn | Group::Attention | Group::Mamba | Group::Ensemble => {}
                Group::IqlHigh => left_out.push("the IQL value networks"),
                Group::IqlLow => {}
                // It reads signals of the training.
                Group::Confidence => left_out.push("the confidence head"),
            }
            if matches!(segment.group, Group::IqlHigh | Group::IqlLow | Group::Confidence) {
                continue;
            }
            for t in segment.layout.tensors.iter().filter(|t| !t.is_sigma()) {
                let from = segment.offset + t.offset;
                let values = checkpoint.online[from..from + t.len()].to_vec();
                tensors.insert(t.name.clone(), PolicyTensor { shape: t.shape.clone(), values });
            }
        }
        if config.model.noisy {
            left_out.push("the noise of the heads (they act by their mean)");
        }
        let support = learner::<f32>(checkpoint)?.outlook(&vec![0.0; config.model.state], &[0.5])?.atoms;
        let samples = config.iqn.samples;
        let taus = match config.iqn.enabled {
            true => (0..samples).map(|i| ((2 * i + 1) as f64 / (2 * samples) as f64) as f32).collect(),
            false => Vec::new(),
        };
        let source = json!({
            "provenance": checkpoint.provenance,
            "market": checkpoint.market,
            "features": bars::features::NAMES,
        });
        let support = support.iter().map(|&z| z as f32).collect();
        Ok(Self { config, tensors, support, taus, source, left_out })
    }

    /// A tensor that the networks are known to have.
    ///
    /// # Panics
    /// If there is none of that name: a programming error, names are fixed by `settings::Flat`.
    pub fn tensor(&self, name: &str) -> &PolicyTensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name} in the policy"))
    }

    /// cos(pi j tau), j = 1 to E, of every tau: [taus, E].
    pub fn cosines(&self) -> Vec<f32> {
        let cosine = |tau: f32, j: usize| (std::f64::consts::PI * f64::from(tau) * j as f64).cos() as f32;
        let features = self.config.iqn.cosines;
        self.taus.iter().flat_map(|&tau| (1..=features).map(move |j| cosine(tau, j))).collect()
    }

    /// The description, data and origin as key and JSON.
    fn metadata(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let (model, parts) = (&self.config.model, self.config.parts());
        let description = Description {
            format: FORMAT,
            state: model.state,
            window: model.window,
            bar_features: model.bar_features,
            trunk1: model.trunk1,
            trunk2: model.trunk2,
            value_hidden: model.value_hidden,
            branch_hidden: model.branch_hidden,
            head: match model.head {
                Head::Mlp => "mlp",
                Head::Glu => "glu",
            },
            branches: model.branches.clone(),
            atoms: model.atoms,
            leaky_slope: model.leaky_slope,
            attention_heads: parts.attention.enabled.then_some(parts.attention.heads),
            mamba: parts.mamba.enabled.then_some(MambaDescription {
                width: parts.mamba.width,
                heads: parts.mamba.heads,
                state: parts.mamba.state,
                conv: parts.mamba.conv,
            }),
            iqn: parts
                .iqn
                .enabled
                .then_some(IqnDescription { cosines: parts.iqn.cosines, hidden: parts.iqn.hidden }),
            ensemble_members: parts.ensemble.enabled.then_some(parts.ensemble.members),
        };
        Ok(vec![
            ("policy", serde_json::to_string(&description)?),
            ("source", serde_json::to_string(&self.source)?),
        ])
    }

    /// The bytes of `policy.safetensors`: the tensors, `support` [K] and, with an IQN head, `taus`.
    ///
    /// # Errors
    /// If a number cannot be written as JSON.
    pub fn safetensors(&self) -> anyhow::Result<Vec<u8>> {
        let own = self.tensors.iter().map(|(name, t)| (name.clone(), t.shape.clone(), &t.values[..]));
        let further = [("support", &self.support), ("taus", &self.taus)];
        let further = further.into_iter().filter(|(_, values)| !values.is_empty());
        let further = further.map(|(name, values)| (name.to_string(), vec![values.len()], &values[..]));
        let stored =
            own.chain(further).map(|(name, shape, values)| (name, Stored { shape, values })).collect();
        let metadata = self.metadata()?.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
        file_bytes(&metadata, &stored)
    }

    /// The bytes of `policy.onnx`.
    ///
    /// # Errors
    /// If the networks are larger than an ONNX file without external data can be.
    pub fn onnx(&self) -> anyhow::Result<Vec<u8>> {
        let weights: usize = self.tensors.values().map(|t| size_of_val(&t.values[..])).sum();
        // Names, shapes and nodes are far below the rest.
        if weights > onnx::LARGEST - (1 << 24) {
            bail!("the networks have {weights} bytes, and an ONNX file has at most {} bytes", onnx::LARGEST);
        }
        Ok(graph::graph(self).file(&self.metadata()?))
    }

    /// The text of `policy.json`: description, inputs and outputs, data and origin, for people and other programs.
    ///
    /// # Errors
    /// If a number cannot be written as JSON.
    pub fn json(&self) -> anyhow::Result<String> {
        let metadata = self.metadata()?;
        let part = |key: &str| -> anyhow::Result<Value> {
            let found = metadata.iter().find(|(name, _)| *name == key).context("no such part")?;
            Ok(serde_json::from_str(&found.1)?)
        };
        let model = &self.config.model;
        let (n, actions) = (json!("N"), model.actions());
        let mut outputs = json!({
            "actions": { "shape": [n, model.branches.len()], "type": "int64", "meaning": "greedy action of every branch" },
            "q": { "shape": [n, actions], "type": "float32", "meaning": "Q values, branch after branch" },
            "probabilities": {
                "shape": [n, actions, model.atoms], "type": "float32",
                "meaning": "C51 distribution of every action over the support",
            },
        });
        if self.config.iqn.enabled {
            outputs["quantiles"] = json!({
                "shape": [n, self.taus.len(), actions], "type": "float32",
                "meaning": "return quantiles of every action at the taus", "taus": self.taus,
            });
        }
        if self.config.ensemble.enabled {
            outputs["ensemble"] = json!({
                "shape": [n, self.config.ensemble.members], "type": "float32",
                "meaning": "expected value of the state by each member",
            });
        }
        let value = json!({
            "policy": part("policy")?,
            "inputs": { "states": { "shape": [n, model.state], "type": "float32", "meaning": "normalised states" } },
            "outputs": outputs,
            "support": self.support,
            "left_out": self.left_out,
            "source": part("source")?,
        });
        Ok(serde_json::to_string_pretty(&value)? + "\n")
    }
}
