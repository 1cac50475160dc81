//! Policy checkpoints as safetensors: one tensor per layer under its PyTorch name, and what is needed to use them.
//!
//! Tensors: `online.<name>` and `target.<name>` (f32, `[out, in]` or `[out]`; names as in `settings::Flat`, of the
//! networks that have a target copy in the second case); `kept.iql` and `kept.confidence`, where these parts are on: what
//! they keep from step to step (`step::Kept`), the value distribution's support among it; `mask.<name>` of every weight matrix
//! that is pruned, where `pruning.enabled` is: 0 where a weight is pruned, and so zero, 1 elsewhere (policies of earlier
//! programs have none). The
//! header's metadata holds the configuration (TOML) and the record of the data (JSON): the normaliser, the reward
//! scale, the parts and the hash of the bars, so that a checkpoint is used with the numbers it was trained with.
//!
//! The metadata's `checksum` is `fnv1a64 ` and 16 hexadecimal digits: the 64-bit FNV-1a of all other metadata in the
//! order of their keys, then of the tensors' bytes in the order of their names, every key, value, name and tensor
//! preceded by its length in bytes (u64, little-endian). It tells damage, not forgery. The header's entries are sorted,
//! so the same policy is the same bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bars::Fnv64;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use settings::{Confidence, Config, Flat, Layout, Pruning, Tensor};

use crate::step::Kept;
use crate::tensors::room;
pub use crate::train::files::write_atomically;
use crate::train::market::MarketRecord;
use crate::train::offline::OfflineRecord;
use crate::train::tensor_file;
use crate::train::walk::fold_folders;

/// Most bytes of a file that is read: online and target of a hundred times the largest network that trains well here.
const LARGEST: u64 = 4 << 30;

/// Version of the metadata below; another one is refused.
const FORMAT: &str = "stepgraph-policy-1";

/// Key of a data set's record in the metadata, as JSON.
pub(super) const DATA_SET: &str = "transitions";

/// Key of the checksum in the metadata, and the name of its algorithm.
pub(super) const CHECKSUM: &str = "checksum";
pub(super) const ALGORITHM: &str = "fnv1a64";

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
    /// The validation score that chose it (`Evaluation::score`): minus infinity for a policy that lost its equity, `None` where
    /// it is undefined.
    #[serde(with = "score")]
    pub score: Option<f64>,
}

/// A policy with everything needed to run it.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The configuration it was trained with, state width filled in.
    pub config: Config,
    /// The bars it was trained on, if it is a market's. A control task is named by the configuration.
    pub market: Option<MarketRecord>,
    /// The data set of transitions, if it is one's.
    pub data_set: Option<OfflineRecord>,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Online parameters of all networks, flat.
    pub online: Vec<f32>,
    /// Target parameters, flat, up to the end of the last network that has a target copy.
    pub target: Vec<f32>,
    /// What the value networks, the confidence head and the pruning keep.
    pub kept: Kept,
}

impl Checkpoint {
    /// Writes to a temporary name beside `path`, syncs, renames: a reader sees the old file or the new one, whole.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let bytes = self.bytes()?;
        write_atomically(path, &bytes).with_context(|| format!("writing the checkpoint {}", path.display()))
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        let tensors: BTreeMap<String, Stored<'_>> = self.tensors().into_iter().collect();
        let mut metadata = BTreeMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("config".to_string(), self.config.to_toml()),
            ("provenance".to_string(), serde_json::to_string(&self.provenance)?),
        ]);
        if let Some(market) = &self.market {
            metadata.insert("market".to_string(), serde_json::to_string(market)?);
        }
        if let Some(data_set) = &self.data_set {
            metadata.insert(DATA_SET.to_string(), serde_json::to_string(data_set)?);
        }
        let sum = checksum(
            &metadata,
            tensors.iter().map(|(name, t)| (name.as_str(), bytemuck::cast_slice(t.values))),
        );
        metadata.insert(CHECKSUM.to_string(), sum);
        file_bytes(&metadata, &tensors)
    }

    /// The file that an argument names: itself, or the best policy of a run's folder.
    ///
    /// # Errors
    /// If it is a folder without a policy.
    pub fn file_of(argument: &Path) -> anyhow::Result<PathBuf> {
        if !argument.is_dir() {
            return Ok(argument.to_path_buf());
        }
        let best = argument.join("best.safetensors");
        if !best.is_file() {
            if let (Some(first), Some(last)) = (fold_folders(argument).first(), fold_folders(argument).last())
            {
                bail!(
                    "{} is the folder of a walk-forward and holds a policy for each fold: name one of {first} to {last} in \
                     it",
                    argument.display()
                );
            }
            bail!(
                "{} holds no best.safetensors: it is not the folder of a run, or the run has not finished an epoch",
                argument.display()
            );
        }
        Ok(best)
    }

    /// The tensors of the file, `online.<name>` and `target.<name>`, in the order of the flat buffer.
    pub fn tensors(&self) -> Vec<(String, Stored<'_>)> {
        let flat = Flat::new(&self.config.model, &self.config.parts());
        let mut tensors = Vec::new();
        for (network, values) in [("online", &self.online), ("target", &self.target)] {
            for t in stored(&flat, network) {
                let values = &values[t.offset..t.offset + t.len()];
                tensors.push((format!("{network}.{}", t.name), Stored { shape: t.shape, values }));
            }
        }
        for (name, values) in [("iql", &self.kept.iql), ("confidence", &self.kept.confidence)] {
            if !values.is_empty() {
                tensors.push((format!("kept.{name}"), Stored { shape: vec![values.len()], values }));
            }
        }
        for (t, values) in self.masks() {
            tensors.push((format!("mask.{}", t.name), Stored { shape: t.shape, values }));
        }
        tensors
    }

    /// The weight matrices that are pruned, each with its mask: 0 where a weight is pruned, 1 elsewhere. None of a policy
    /// without pruning, and of an earlier program's.
    pub fn masks(&self) -> Vec<(Tensor, &[f32])> {
        if self.kept.masks.is_empty() {
            return Vec::new();
        }
        let main = Layout::main(&self.config.model);
        Pruning::matrices(&main).map(|t| (t.clone(), &self.kept.masks[t.offset..][..t.len()])).collect()
    }

    /// The bars that the policy was trained on.
    ///
    /// # Errors
    /// If it was trained on something else.
    pub fn record(&self) -> anyhow::Result<&MarketRecord> {
        let task = &self.config.task.name;
        let none = || format!("the policy was trained on the task {task}, not on bars: it decides at none");
        self.market.as_ref().with_context(none)
    }

    /// Reads and checks a checkpoint.
    ///
    /// # Errors
    /// Says the file and what is wrong: not safetensors, another program's file, damaged since it was written, a
    /// missing tensor, a wrong shape, a value that is not finite.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let (checkpoint, checksum) = Self::load_with_checksum(path)?;
        if checksum.is_none() {
            tracing::warn!(
                "{} has no checksum (an earlier program or another one wrote it): damage to its numbers would not show",
                path.display()
            );
        }
        Ok(checkpoint)
    }

    /// The same, with the checksum that was found to be right; files of earlier programs have none.
    pub fn load_with_checksum(path: &Path) -> anyhow::Result<(Self, Option<String>)> {
        let name = path.display();
        let reading = || format!("reading the checkpoint {name}");
        let facts = fs::metadata(path).with_context(reading)?;
        if !facts.is_file() {
            bail!("{name} is not a regular file, so it is no checkpoint");
        }
        if facts.len() > LARGEST {
            bail!("{name} has {} bytes, and no checkpoint has more than {LARGEST}", facts.len());
        }
        let mut bytes = room::<u8>(facts.len() as usize).map_err(anyhow::Error::msg).with_context(reading)?;
        File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).with_context(reading)?;
        Self::of_bytes(&name.to_string(), &bytes)
    }

    /// The checkpoint in the bytes of a file called `name`, with its checksum.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    pub fn of_bytes(name: &str, bytes: &[u8]) -> anyhow::Result<(Self, Option<String>)> {
        let damaged =
            || format!("{name} is not a whole safetensors file (it is of another kind, or it is damaged)");
        let (_, header) = SafeTensors::read_metadata(bytes).with_context(damaged)?;
        let tensors = SafeTensors::deserialize(bytes).with_context(damaged)?;
        let mut metadata: BTreeMap<_, _> =
            header.metadata().clone().unwrap_or_default().into_iter().collect();
        let sum = metadata.remove(CHECKSUM);
        let entry = |key: &str| {
            metadata
                .get(key)
                .with_context(|| format!("{name} has no `{key}`: it is not a policy of this program"))
        };
        let format = entry("format")?;
        if ["stepgraph-state-", "stepgraph-walk-"].iter().any(|state| format.starts_with(state)) {
            bail!("{name} is the saved state of a run, not a policy: host train --resume {name}");
        }
        if format != FORMAT {
            bail!("{name} has format `{format}`, this program reads `{FORMAT}`");
        }
        if let Some(sum) = &sum {
            if !sum.starts_with(ALGORITHM) {
                bail!("{name} has checksum `{sum}`, this program knows `{ALGORITHM}`");
            }
            let parts: BTreeMap<_, _> = tensors.iter().collect();
            let found = checksum(&metadata, parts.iter().map(|(name, t)| (*name, t.data())));
            if *sum != found {
                bail!("{name} is damaged: its checksum is {sum}, what it holds has {found}");
            }
        }
        let config = Config::layered(&Config::default(), Some(("its configuration", entry("config")?)), &[])
            .with_context(|| name.to_string())?;
        config.check().with_context(|| format!("{name}: its configuration"))?;
        let flat = Flat::new(&config.model, &config.parts());
        let read = |network: &str| -> anyhow::Result<Vec<f32>> {
            let find = |t: &Tensor| {
                let tensor = tensors
                    .tensor(&format!("{network}.{}", t.name))
                    .with_context(|| format!("{name}: tensor {network}.{}", t.name))?;
                if tensor.dtype() != Dtype::F32 || tensor.shape() != t.shape {
                    let (dtype, shape) = (tensor.dtype(), tensor.shape());
                    bail!("{name}: {network}.{} is {dtype:?} {shape:?}, expected F32 {:?}", t.name, t.shape);
                }
                Ok(tensor)
            };
            // A configuration may claim wide layers: memory is asked for once the file has them.
            for t in stored(&flat, network) {
                find(&t)?;
            }
            let mut values = vec![0.0; if network == "target" { flat.target_len() } else { flat.len }];
            for t in stored(&flat, network) {
                let read = floats(&format!("{name}: {network}.{}", t.name), &find(&t)?)?;
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
        let online = read("online")?;
        let kept = Kept {
            iql: kept("iql", config.iql.enabled, 6)?,
            confidence: kept("confidence", config.confidence.enabled, 3 + Confidence::SIGNALS)?,
            masks: masks(name, &config, &tensors, &online)?,
        };
        let checkpoint = Self {
            online,
            target: read("target")?,
            kept,
            market: match config.task.is_market() {
                true => Some(
                    serde_json::from_str(entry("market")?)
                        .with_context(|| format!("{name}: its data record"))?,
                ),
                false => None,
            },
            data_set: match config.task.is_transitions() {
                true => Some(
                    serde_json::from_str(entry(DATA_SET)?)
                        .with_context(|| format!("{name}: its data record"))?,
                ),
                false => None,
            },
            provenance: serde_json::from_str(entry("provenance")?)
                .with_context(|| format!("{name}: its origin"))?,
            config,
        };
        Ok((checkpoint, sum))
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored<'a> {
    /// `[out, in]` or `[out]`, as in PyTorch.
    pub shape: Vec<usize>,
    /// Its values, row by row.
    pub values: &'a [f32],
}

/// The checksum of metadata (without itself) and tensors, both in the order of their names.
pub(super) fn checksum<'a>(
    metadata: &BTreeMap<String, String>,
    tensors: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> String {
    let mut hash = Fnv64::default();
    let mut take = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    for (key, value) in metadata {
        take(key.as_bytes());
        take(value.as_bytes());
    }
    for (name, bytes) in tensors {
        take(name.as_bytes());
        take(bytes);
    }
    format!("{ALGORITHM} {:016x}", hash.finish())
}

/// The bytes of a safetensors file.
pub(crate) fn file_bytes(
    metadata: &BTreeMap<String, String>,
    tensors: &BTreeMap<String, Stored<'_>>,
) -> anyhow::Result<Vec<u8>> {
    let entries = tensors
        .iter()
        .map(|(name, t)| (name.as_str(), Dtype::F32, t.shape.as_slice(), size_of_val(t.values)));
    let mut bytes = tensor_file::header(metadata, entries)?;
    for tensor in tensors.values() {
        bytes.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
    }
    Ok(bytes)
}

/// A score as JSON: a number; `undefined`; an infinity, which JSON has no number for, as text. Where earlier programs wrote
/// `null`, minus infinity was meant; an undefined score they wrote as 0.
mod score {
    use serde::{Deserialize, Deserializer, Serializer};

    const UNDEFINED: &str = "undefined";

    pub(super) fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            None => serializer.serialize_str(UNDEFINED),
            Some(value) if value.is_finite() => serializer.serialize_f64(*value),
            Some(value) => serializer.collect_str(value),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number, undefined, or a text such as -inf")]
        enum Number {
            Finite(f64),
            Text(String),
        }
        match Option::<Number>::deserialize(deserializer)? {
            None => Ok(Some(f64::NEG_INFINITY)),
            Some(Number::Finite(value)) => Ok(Some(value)),
            Some(Number::Text(text)) if text == UNDEFINED => Ok(None),
            Some(Number::Text(text)) => text.parse().map(Some).map_err(serde::de::Error::custom),
        }
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

/// The masks of pruned weights in a file called `name`, one float per parameter of the main network; empty where it has none.
///
/// # Errors
/// Masks of a policy that is not pruned or of some of its matrices, a number that is neither 0 nor 1, a weight of `online`
/// that is pruned and not zero, with the tensor and the place in it.
fn masks(name: &str, config: &Config, tensors: &SafeTensors<'_>, online: &[f32]) -> anyhow::Result<Vec<f32>> {
    let stored = tensors.names().into_iter().filter(|tensor| tensor.starts_with("mask.")).min();
    let Some(stored) = stored else { return Ok(Vec::new()) };
    if !config.pruning.enabled {
        bail!(
            "{name}: {stored} is the mask of pruned weights, but its configuration has pruning.enabled = false"
        );
    }
    let main = Layout::main(&config.model);
    let mut masks = vec![1.0; main.len];
    for t in Pruning::matrices(&main) {
        let what = format!("{name}: mask.{}", t.name);
        let tensor = tensors.tensor(&format!("mask.{}", t.name)).with_context(|| what.clone())?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != t.shape {
            bail!("{what} is {:?} {:?}, expected F32 {:?}", tensor.dtype(), tensor.shape(), t.shape);
        }
        let mask = floats(&what, &tensor)?;
        let columns = t.shape.last().copied().unwrap_or(1).max(1);
        for (i, (&kept, &weight)) in mask.iter().zip(&online[t.offset..]).enumerate() {
            let (row, column) = (i / columns, i % columns);
            if kept != 0.0 && kept != 1.0 {
                bail!("{what} [{row}, {column}] is {kept}, expected 0 (pruned) or 1");
            }
            if kept == 0.0 && weight != 0.0 {
                bail!(
                    "{name}: online.{} [{row}, {column}] is {weight}, but mask.{} says that it is pruned, which is zero",
                    t.name,
                    t.name
                );
            }
        }
        masks[t.offset..t.offset + mask.len()].copy_from_slice(&mask);
    }
    Ok(masks)
}

/// The tensors of `online` or of `target`, which the networks without a target copy lack.
fn stored<'a>(flat: &'a Flat, network: &str) -> impl Iterator<Item = Tensor> + 'a {
    let len = if network == "target" { flat.target_len() } else { flat.len };
    flat.tensors().filter(move |t| t.offset < len)
}
