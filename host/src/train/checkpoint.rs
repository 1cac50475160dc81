//! Policy checkpoints as safetensors: one tensor per layer under its PyTorch name, and what is needed to use them.
//!
//! Tensors: `online.<name>` and `target.<name>` (f32, `[out, in]` or `[out]`; names as in `settings::Flat`, of the
//! networks that have a target copy in the second case); `kept.iql` and `kept.confidence`, where these parts are on: what
//! they keep from step to step (`step::Kept`), the value distribution's support among it. The
//! header's metadata holds the configuration (TOML) and the record of the data (JSON): the normaliser, the reward
//! scale, the parts and the hash of the bars, so that a checkpoint is used with the numbers it was trained with.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use settings::{Confidence, Config, Flat, Tensor};

use crate::step::Kept;
use crate::train::market::MarketRecord;

/// Version of the metadata below; another one is refused.
const FORMAT: &str = "stepgraph-policy-1";

/// What a checkpoint says about itself besides the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Epoch after which it was written, from 1.
    pub epoch: usize,
    /// Device that trained it.
    pub device: String,
    /// Hash of the compiled kernels, `none` on the CPU.
    pub kernels: String,
    /// Version of the program.
    pub program: String,
    /// The validation score that chose it.
    pub score: f64,
}

/// A policy with everything needed to run it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The configuration it was trained with, state width filled in.
    pub config: Config,
    /// The data it was trained on.
    pub market: MarketRecord,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Online parameters of all networks, flat.
    pub online: Vec<f32>,
    /// Target parameters, flat, up to the end of the last network that has a target copy.
    pub target: Vec<f32>,
    /// What the value networks and the confidence head keep.
    pub kept: Kept,
}

impl Checkpoint {
    /// Writes to a temporary name beside `path`, syncs, renames: a reader sees the old file or the new one, whole.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let flat = Flat::new(&self.config.model, &self.config.parts());
        let mut tensors = Vec::new();
        for (network, values) in [("online", &self.online), ("target", &self.target)] {
            for t in stored(&flat, network) {
                let values = &values[t.offset..t.offset + t.len()];
                let view = TensorView::new(Dtype::F32, t.shape.clone(), bytemuck::cast_slice(values))?;
                tensors.push((format!("{network}.{}", t.name), view));
            }
        }
        for (name, values) in [("iql", &self.kept.iql), ("confidence", &self.kept.confidence)] {
            if !values.is_empty() {
                let view = TensorView::new(Dtype::F32, vec![values.len()], bytemuck::cast_slice(values))?;
                tensors.push((format!("kept.{name}"), view));
            }
        }
        let metadata = HashMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("config".to_string(), self.config.to_toml()),
            ("market".to_string(), serde_json::to_string(&self.market)?),
            ("provenance".to_string(), serde_json::to_string(&self.provenance)?),
        ]);
        let bytes = safetensors::serialize(tensors, Some(metadata))?;
        write_atomically(path, &bytes).with_context(|| format!("writing the checkpoint {}", path.display()))
    }

    /// Reads and checks a checkpoint.
    ///
    /// # Errors
    /// Says the file and what is wrong: not safetensors, another program's file, a missing tensor, a wrong shape, a
    /// value that is not finite.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let bytes = fs::read(path).with_context(|| format!("reading the checkpoint {name}"))?;
        let damaged = || format!("{name} is not a whole safetensors file");
        let (_, header) = SafeTensors::read_metadata(&bytes).with_context(damaged)?;
        let tensors = SafeTensors::deserialize(&bytes).with_context(damaged)?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let entry = |key: &str| {
            metadata
                .get(key)
                .with_context(|| format!("{name} has no `{key}`: it is not a policy of this program"))
        };
        let format = entry("format")?;
        if format != FORMAT {
            bail!("{name} has format `{format}`, this program reads `{FORMAT}`");
        }
        let config = Config::layered(&Config::default(), Some(("its configuration", entry("config")?)), &[])
            .with_context(|| format!("{name}"))?;
        config.check().with_context(|| format!("{name}: its configuration"))?;
        let flat = Flat::new(&config.model, &config.parts());
        let read = |network: &str| -> anyhow::Result<Vec<f32>> {
            let mut values = vec![0.0; if network == "target" { flat.target_len() } else { flat.len }];
            for t in stored(&flat, network) {
                let tensor = tensors
                    .tensor(&format!("{network}.{}", t.name))
                    .with_context(|| format!("{name}: tensor {network}.{}", t.name))?;
                if tensor.dtype() != Dtype::F32 || tensor.shape() != t.shape {
                    let (dtype, shape) = (tensor.dtype(), tensor.shape());
                    bail!("{name}: {network}.{} is {dtype:?} {shape:?}, expected F32 {:?}", t.name, t.shape);
                }
                let read = floats(&format!("{name}: {network}.{}", t.name), &tensor)?;
                values[t.offset..t.offset + t.len()].copy_from_slice(&read);
            }
            Ok(values)
        };
        // A part that is off keeps nothing, and neither does a part of a policy from before there was anything to keep.
        let kept = |part: &str, on: bool, words: usize| -> anyhow::Result<Vec<f32>> {
            let Ok(tensor) = tensors.tensor(&format!("kept.{part}")) else { return Ok(Vec::new()) };
            if !on || tensor.dtype() != Dtype::F32 || tensor.shape() != [words] {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                let expected = if on { format!("F32 [{words}]") } else { "none, the part is off".into() };
                bail!("{name}: kept.{part} is {dtype:?} {shape:?}, expected {expected}");
            }
            floats(&format!("{name}: kept.{part}"), &tensor)
        };
        let kept = Kept {
            iql: kept("iql", config.iql.enabled, 6)?,
            confidence: kept("confidence", config.confidence.enabled, 3 + Confidence::SIGNALS)?,
        };
        Ok(Self {
            online: read("online")?,
            target: read("target")?,
            kept,
            market: serde_json::from_str(entry("market")?)
                .with_context(|| format!("{name}: its data record"))?,
            provenance: serde_json::from_str(entry("provenance")?)
                .with_context(|| format!("{name}: its origin"))?,
            config,
        })
    }
}

/// A tensor's numbers, which must be finite.
fn floats(what: &str, tensor: &TensorView) -> anyhow::Result<Vec<f32>> {
    let mut values = Vec::with_capacity(tensor.data().len() / 4);
    for (i, word) in tensor.data().chunks_exact(4).enumerate() {
        let value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if !value.is_finite() {
            bail!("{what} element {i} is {value}");
        }
        values.push(value);
    }
    Ok(values)
}

/// The tensors of `online` or of `target`, which the networks without a target copy lack.
fn stored<'a>(flat: &'a Flat, network: &str) -> impl Iterator<Item = Tensor> + 'a {
    let len = if network == "target" { flat.target_len() } else { flat.len };
    flat.tensors().filter(move |t| t.offset < len)
}

/// Writes a file so that it is whole or absent, also after a crash: temporary name, sync, rename, sync of the folder.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
