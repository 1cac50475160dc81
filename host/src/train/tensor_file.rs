//! Safetensors files with sorted entries and a checksum. The crate's own writer keeps metadata in a hash map, whose
//! order is another one in every process, and has the whole file in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Serialize;

use crate::tensors::{Tensors, Values, room};
use crate::train::checkpoint::{CHECKSUM, checksum};
use crate::train::files::write_pieces;

/// Longest header that is read; a state has fewer than a hundred tensors.
const LONGEST_HEADER: u64 = 1 << 24;

/// The start of a safetensors file: length of the header, and the header. Every tensor is its name, type, shape and
/// bytes; their values follow in the same order.
///
/// # Errors
/// A text that JSON cannot hold.
pub fn header<'a>(
    metadata: &BTreeMap<String, String>,
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize], usize)>,
) -> anyhow::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Header<'a> {
        #[serde(rename = "__metadata__")]
        metadata: &'a BTreeMap<String, String>,
        #[serde(flatten)]
        tensors: BTreeMap<&'a str, TensorInfo>,
    }
    let mut end = 0;
    let entries = tensors.map(|(name, dtype, shape, bytes)| {
        let start = end;
        end += bytes;
        (name, TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) })
    });
    let mut header = serde_json::to_vec(&Header { metadata, tensors: entries.collect() })?;
    // Spaces up to a multiple of eight, so that the values lie where a mapped file can be read as they are.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    Ok(bytes)
}

/// Writes tensors with metadata and a checksum of both; the file is whole or absent.
///
/// # Errors
/// What the operating system said.
pub fn write(path: &Path, mut metadata: BTreeMap<String, String>, tensors: &Tensors) -> anyhow::Result<()> {
    metadata.insert(CHECKSUM.into(), sum(&metadata, tensors));
    let shapes: Vec<[usize; 1]> = tensors.by_name.values().map(|values| [values.len()]).collect();
    let entries = tensors
        .by_name
        .iter()
        .zip(&shapes)
        .map(|((name, values), shape)| (name.as_str(), values.dtype(), &shape[..], values.bytes().len()));
    let header = header(&metadata, entries)?;
    let values = tensors.by_name.values().map(Values::bytes);
    Ok(write_pieces(path, std::iter::once(&header[..]).chain(values))?)
}

fn sum(metadata: &BTreeMap<String, String>, tensors: &Tensors) -> String {
    checksum(metadata, tensors.by_name.iter().map(|(name, values)| (name.as_str(), values.bytes())))
}

/// The metadata of a file, without its tensors and therefore without a look at its checksum.
///
/// # Errors
/// As for [`read`], as far as the header tells.
pub fn metadata(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let (_, header) = open(path)?;
    Ok(header.metadata().clone().unwrap_or_default().into_iter().collect())
}

/// Reads what [`write`] wrote. Memory is only asked for once the header and the file's length agree about it.
///
/// # Errors
/// Says what is wrong: not a regular file, not safetensors, not whole, another checksum, no room.
pub fn read(path: &Path) -> anyhow::Result<(BTreeMap<String, String>, Tensors)> {
    let (mut file, header) = open(path)?;
    let mut metadata: BTreeMap<String, String> =
        header.metadata().clone().unwrap_or_default().into_iter().collect();
    let expected = metadata.remove(CHECKSUM).context("it has no checksum")?;
    let mut tensors = Tensors::default();
    for name in header.offset_keys() {
        let info = header.info(&name).with_context(|| format!("tensor `{name}` is not in the header"))?;
        let mut values = Values::zeroed(info.dtype, info.shape.iter().product())
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("tensor `{name}`"))?;
        file.read_exact(values.bytes_mut()).with_context(|| format!("reading tensor `{name}`"))?;
        tensors.by_name.insert(name, values);
    }
    let found = sum(&metadata, &tensors);
    if found != expected {
        bail!("it is damaged: its checksum is {expected}, what it holds has {found}");
    }
    Ok((metadata, tensors))
}

/// A file at its first tensor, with its header, which agrees with its length.
fn open(path: &Path) -> anyhow::Result<(File, Metadata)> {
    let mut file = File::open(path)?;
    let facts = fs::metadata(path)?;
    if !facts.is_file() {
        bail!("it is not a regular file");
    }
    let mut length = [0; 8];
    file.read_exact(&mut length).context("it is shorter than a header")?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER || length > facts.len() - 8 {
        bail!("it is not a whole safetensors file: a header of {length} bytes in a file of {}", facts.len());
    }
    let mut text = room::<u8>(length as usize).map_err(anyhow::Error::msg)?;
    file.read_exact(&mut text).context("reading the header")?;
    let header: Metadata =
        serde_json::from_slice(&text).context("it is not a whole safetensors file: its header")?;
    let (claimed, found) = (header.data_len() as u64, facts.len() - 8 - length);
    if claimed != found {
        bail!("it is not whole: {found} bytes of tensors, and its header says {claimed}");
    }
    Ok((file, header))
}
