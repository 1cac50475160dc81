//! Chosen algorithms on disk: which one for which product, on which GPU, driver and library.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ffi::Algorithm;
use crate::cache_file;
use crate::error::ExecError;

/// What a table of algorithms is valid for: one GPU model, driver and library.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the GPU.
    pub gpu: String,
    /// Release of the driver and the CUDA version it supports.
    pub driver: String,
    /// Version of cuBLASLt.
    pub cublaslt: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, driver {}, cuBLASLt {}", self.gpu, self.driver, self.cublaslt)
    }
}

/// One chosen algorithm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanEntry {
    /// The library's 64 bytes in hexadecimal.
    pub algorithm: String,
    /// Measured time in microseconds; absent when the heuristic's first choice was taken without measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<f64>,
    /// Candidates that it was chosen from.
    pub candidates: usize,
}

/// The algorithms of a run: part of a checkpoint, because another choice changes the last bits of a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanTable {
    /// What the algorithms are valid for.
    pub identity: Identity,
    /// By product.
    pub plans: BTreeMap<String, PlanEntry>,
}

/// Bytes as hexadecimal digits, words in little-endian order.
pub fn to_hex(algorithm: &Algorithm) -> String {
    algorithm.data.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:02x}")).collect()
}

/// Inverse of [`to_hex`]; `None` when the text is not 128 hexadecimal digits.
pub fn from_hex(text: &str) -> Option<Algorithm> {
    if text.len() != 128 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut algorithm = Algorithm::default();
    for (i, word) in algorithm.data.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        for (j, byte) in bytes.iter_mut().enumerate() {
            let at = 2 * (8 * i + j);
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        *word = u64::from_le_bytes(bytes);
    }
    Some(algorithm)
}

/// The cache file: one table per identity.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheFile {
    tables: Vec<PlanTable>,
}

/// A plan cache on disk.
#[derive(Debug)]
pub struct PlanCache {
    path: PathBuf,
    identity: Identity,
}

impl PlanCache {
    /// The cache at `path` for one identity.
    pub fn new(path: PathBuf, identity: Identity) -> Self {
        Self { path, identity }
    }

    /// `stepgraph/cublaslt.json` in the user's cache folder; `None` when the system names no home.
    pub fn default_path() -> Option<PathBuf> {
        cache_file::default_path("cublaslt.json")
    }

    /// Stored plans of this identity. A missing file is an empty cache; a damaged one is reported and ignored,
    /// and replaced at the next [`PlanCache::store`], since everything in it can be measured again.
    pub fn load(&self) -> BTreeMap<String, PlanEntry> {
        match cache_file::read::<CacheFile>(&self.path) {
            Ok(file) => {
                let table = file.tables.into_iter().find(|table| table.identity == self.identity);
                table.map(|table| table.plans).unwrap_or_default()
            }
            Err(problem) => {
                tracing::warn!("plan cache {}: {problem}; plans are measured again", self.path.display());
                BTreeMap::new()
            }
        }
    }

    /// Adds plans to the file, keeping other identities and plans that another process has stored meanwhile.
    pub fn store(&self, plans: &BTreeMap<String, PlanEntry>) -> Result<(), ExecError> {
        // A damaged file has been reported by `load`.
        let mut file: CacheFile = cache_file::read(&self.path).unwrap_or_default();
        match file.tables.iter_mut().find(|table| table.identity == self.identity) {
            Some(table) => table.plans.extend(plans.clone()),
            None => file.tables.push(PlanTable { identity: self.identity.clone(), plans: plans.clone() }),
        }
        file.tables.sort_by(|a, b| a.identity.cmp(&b.identity));
        cache_file::write(&self.path, &file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn identity(gpu: &str) -> Identity {
        Identity { gpu: gpu.into(), driver: "580.1".into(), cublaslt: "13.0.2".into() }
    }

    fn entry(microseconds: f64) -> PlanEntry {
        let algorithm = Algorithm { data: [1, 2, 3, 4, 5, 6, 7, 0x8877_6655_4433_2211] };
        PlanEntry { algorithm: to_hex(&algorithm), microseconds: Some(microseconds), candidates: 8 }
    }

    #[test]
    fn hexadecimal_round_trips_and_refuses_anything_else() {
        let algorithm =
            Algorithm { data: std::array::from_fn(|i| 0x0123_4567_89ab_cdef_u64.rotate_left(8 * i as u32)) };
        let text = to_hex(&algorithm);
        assert!(text.starts_with("efcdab8967452301"), "{text}");
        assert_eq!(from_hex(&text), Some(algorithm));
        assert_eq!(from_hex(&text[1..]), None);
        assert_eq!(from_hex(&text.replace('e', "g")), None);
        assert_eq!(from_hex(&"é".repeat(64)), None, "128 bytes, not digits");
    }

    #[test]
    fn plans_are_kept_per_identity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.json");
        let cache = |gpu| PlanCache::new(path.clone(), identity(gpu));
        assert!(cache("one").load().is_empty(), "a missing file is an empty cache");
        cache("one").store(&BTreeMap::from([("p".into(), entry(3.0))])).unwrap();
        cache("two").store(&BTreeMap::from([("p".into(), entry(4.0))])).unwrap();
        cache("one").store(&BTreeMap::from([("q".into(), entry(5.0))])).unwrap();
        assert_eq!(cache("one").load(), BTreeMap::from([("p".into(), entry(3.0)), ("q".into(), entry(5.0))]));
        assert_eq!(cache("two").load(), BTreeMap::from([("p".into(), entry(4.0))]));
        assert!(cache("three").load().is_empty());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_damaged_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plans.json");
        fs::write(&path, "{\"tables\": [{\"identity\"").unwrap();
        assert!(cache_file::read::<CacheFile>(&path).unwrap_err().starts_with("damaged ("));
        let cache = PlanCache::new(path, identity("one"));
        assert!(cache.load().is_empty());
        cache.store(&BTreeMap::from([("p".into(), entry(3.0))])).unwrap();
        assert_eq!(cache.load().len(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let cache = PlanCache::new(folder.path().join("file/plans.json"), identity("one"));
        let error = cache.store(&BTreeMap::new()).unwrap_err();
        assert!(matches!(&error, ExecError::File { path, .. } if path.ends_with("plans.json")), "{error}");
    }
}
