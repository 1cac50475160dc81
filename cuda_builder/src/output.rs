//! What a build leaves for the host program: PTX and cubins, a record as JSON, and Rust text to include.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ptxas::Ptxas;
use crate::{BuildError, Missing, Resources};

/// The record beside the PTX, `kernels.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub compiler: String,
    pub assembler: Option<String>,
    /// See [`crate::Kernels::hash`]; hexadecimal, since JSON numbers lose digits of it.
    pub hash: String,
    pub modules: Vec<RecordedModule>,
    pub resources: Vec<Resources>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordedModule {
    pub arch: String,
    /// File names in the record's folder.
    pub ptx: String,
    pub cubin: Option<String>,
}

/// Name of the Rust text.
pub(crate) const RUST_FILE: &str = "kernels.rs";
/// Name of the record.
const RECORD_FILE: &str = "kernels.json";

impl Record {
    /// The record of the build before, if it can be read.
    pub fn previous(folder: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(folder.join(RECORD_FILE)).ok()?).ok()
    }
}

/// Writes `text` unless the file holds it already; says whether it was written.
pub(crate) fn write(path: &Path, text: &str) -> Result<bool, BuildError> {
    if fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        return Ok(false);
    }
    fs::write(path, text).map_err(|e| BuildError::io("write", path, e))?;
    Ok(true)
}

/// Writes the record beside the PTX.
pub(crate) fn write_record(folder: &Path, record: &Record) -> Result<(), BuildError> {
    let path = folder.join(RECORD_FILE);
    let json = serde_json::to_string_pretty(record).map_err(|e| BuildError::io("write", &path, e.into()))?;
    write(&path, &(json + "\n"))?;
    Ok(())
}

/// Writes the PTX of one architecture and, with an assembler, its cubin. What the build before made from the same
/// text with the same assembler is kept.
pub(crate) fn module(
    folder: &Path,
    package: &str,
    arch: &str,
    ptx: &str,
    ptxas: Option<&Ptxas>,
    previous: Option<&Record>,
) -> Result<(RecordedModule, Vec<Resources>), BuildError> {
    let stem = format!("{package}_{arch}");
    let ptx_path = folder.join(format!("{stem}.ptx"));
    let cubin_path = folder.join(format!("{stem}.cubin"));
    let changed = write(&ptx_path, ptx)?;
    let mut module = RecordedModule { arch: arch.to_string(), ptx: file_name(&ptx_path), cubin: None };
    let Some(ptxas) = ptxas else { return Ok((module, Vec::new())) };
    module.cubin = Some(file_name(&cubin_path));

    let kept: Vec<Resources> = previous
        .filter(|record| {
            !changed && cubin_path.is_file() && record.assembler.as_deref() == Some(&*ptxas.describe())
        })
        .map(|record| record.resources.iter().filter(|r| r.arch == arch).cloned().collect())
        .unwrap_or_default();
    if !kept.is_empty() {
        return Ok((module, kept));
    }
    // Under another name first: an assembler that is interrupted leaves no cubin that looks finished.
    let unfinished = cubin_path.with_extension("unfinished");
    let resources = ptxas.assemble(&ptx_path, &unfinished, arch)?;
    fs::rename(&unfinished, &cubin_path).map_err(|e| BuildError::io("rename", &unfinished, e))?;
    Ok((module, resources))
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// FNV-1a, 64 bits: the same on every machine and in every release, which the standard hasher does not promise.
pub(crate) fn fnv1a<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for part in parts {
        for byte in part.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// The Rust text: types and items under the names that the crate's documentation gives.
pub(crate) fn rust_text(record: Option<&Record>, missing: Option<&Missing>) -> String {
    let mut out = String::from(HEADER);
    let empty: &[RecordedModule] = &[];
    out.push_str(
        "/// One module per architecture; empty when [`MISSING`].\npub static MODULES: &[Module] = &[\n",
    );
    for module in record.map_or(empty, |r| &r.modules) {
        let cubin = match &module.cubin {
            Some(name) => format!(
                "Some({{\n            static CUBIN: &Aligned<[u8]> = &Aligned(*include_bytes!({name:?}));\n            &CUBIN.0\n        }})"
            ),
            None => "None".to_string(),
        };
        put(
            &mut out,
            format_args!(
                "    Module {{\n        arch: {:?},\n        ptx: include_str!({:?}),\n        cubin: {cubin},\n    }},\n",
                module.arch, module.ptx
            ),
        );
    }
    out.push_str("];\n\n/// What each kernel uses on each architecture, by name; empty without an assembler.\npub static RESOURCES: &[Resources] = &[\n");
    for r in record.map_or(&[][..], |r| &r.resources) {
        put(
            &mut out,
            format_args!(
                "    Resources {{ kernel: {:?}, arch: {:?}, registers: {}, spill_bytes: {}, stack_bytes: {}, shared_bytes: {} }},\n",
                r.kernel,
                r.arch,
                r.registers,
                r.spill_store_bytes + r.spill_load_bytes,
                r.stack_bytes,
                r.shared_bytes
            ),
        );
    }
    out.push_str("];\n\n");
    put(
        &mut out,
        format_args!(
            "/// Why there are no kernels in this build, and what to install.\npub const MISSING: Option<&str> = {:?};\n\n\
         /// The compiler that made the PTX.\npub const COMPILER: Option<&str> = {:?};\n\n\
         /// The assembler that made the cubins.\npub const ASSEMBLER: Option<&str> = {:?};\n\n\
         /// Hash of the kernels' code, the same for the same instructions; 0 when [`MISSING`].\npub const HASH: u64 = 0x{};\n",
            missing.map(|m| m.to_string()),
            record.map(|r| &r.compiler),
            record.and_then(|r| r.assembler.as_ref()),
            record.map_or("0", |r| &r.hash),
        ),
    );
    out
}

fn put(out: &mut String, text: std::fmt::Arguments) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}

const HEADER: &str = "\
/// The kernels compiled for one GPU architecture.
#[derive(Clone, Copy)]
pub struct Module {
    /// `sm_90`
    pub arch: &'static str,
    /// PTX text, for this and every later architecture.
    pub ptx: &'static str,
    /// Machine code, for devices of the same major and the same or a higher minor compute capability.
    pub cubin: Option<&'static [u8]>,
}

/// What a kernel uses of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// `sm_90`
    pub arch: &'static str,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread stored and loaded because the registers did not suffice.
    pub spill_bytes: u32,
    /// Bytes of local memory per thread, spills included.
    pub stack_bytes: u32,
    /// Bytes of static shared memory per block.
    pub shared_bytes: u32,
}

/// The driver reads an ELF image in place.
#[repr(C, align(16))]
#[allow(dead_code, reason = \"a build without an assembler has no cubins\")]
struct Aligned<T: ?Sized>(T);

";

/// The folder, made if it is not there.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, BuildError> {
    fs::create_dir_all(path).map_err(|e| BuildError::io("create the folder", path, e))?;
    path.canonicalize().map_err(|e| BuildError::io("find", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_the_published_values() {
        // The test vectors of the authors' test_fnv.c, strings with their closing zero byte.
        assert_eq!(fnv1a([""]), 0xaf63_bd4c_8601_b7df);
        assert_eq!(fnv1a(["a"]), 0x089b_e207_b544_f1e4);
        assert_eq!(fnv1a(["foobar"]), 0x3453_1ca7_168b_8f38);
        assert_ne!(fnv1a(["ab", "c"]), fnv1a(["a", "bc"]));
    }
}
