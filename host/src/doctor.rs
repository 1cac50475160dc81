//! What of this machine is usable, what is not, why, and what follows.

use std::fmt;
use std::path::PathBuf;

use crate::cublaslt::library::{CublasLtLibrary, LibraryError, PATH_VARIABLE};
use crate::cuda::images::{KernelImage, KernelImages};
use crate::cuda::system::{self, DriverVersion, GpuProperties};
use crate::error::NoDevice;
use crate::installed::Places;

/// A GPU and whether this program can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFinding {
    /// What it is.
    pub properties: GpuProperties,
    /// The kernel image it would run, for example `sm_90`, or why there is none.
    pub image: Result<String, String>,
}

/// cuBLASLt as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CublasLtFinding {
    /// Path, or the name under which the system's loader knows it.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// Findings of [`doctor`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The driver, or why there is none.
    pub driver: Result<DriverVersion, NoDevice>,
    /// The GPUs the driver shows; an error text if it does not list them.
    pub gpus: Result<Vec<GpuFinding>, String>,
    /// cuBLASLt, or why there is none.
    pub cublaslt: Result<CublasLtFinding, LibraryError>,
    /// Compiled kernels: target, bytes of PTX, bytes of machine code.
    pub kernels: Vec<(String, usize, Option<usize>)>,
    /// The compiler they were made with; why there are none where there are none.
    pub kernels_note: String,
    /// An assembler for machine code and register counts, used at build time only.
    pub ptxas: Option<PathBuf>,
}

/// Looks at the machine. Opens no GPU and changes nothing.
pub fn doctor(images: KernelImages) -> Report {
    let driver = system::start_driver();
    let gpus = match &driver {
        Ok(_) => system::list_gpus().map_err(|error| error.to_string()),
        Err(_) => Ok(Vec::new()),
    };
    let finding = |properties: GpuProperties| {
        let image = images.choose(properties.capability).map(KernelImage::target);
        GpuFinding { properties, image }
    };
    Report {
        driver,
        gpus: gpus.map(|gpus| gpus.into_iter().map(finding).collect()),
        cublaslt: CublasLtLibrary::load()
            .map(|library| CublasLtFinding { version: library.version(), path: library.path }),
        kernels: images
            .images
            .iter()
            .map(|image| (image.target(), image.ptx.len(), image.cubin.map(<[u8]>::len)))
            .collect(),
        kernels_note: images.note.to_owned(),
        ptxas: Places::of_process().program("ptxas", &["cu13/bin", "cuda_nvcc/bin"]),
    }
}

impl Report {
    /// The first GPU that this program can use.
    pub fn usable_gpu(&self) -> Option<&GpuFinding> {
        self.gpus.as_ref().ok()?.iter().find(|gpu| gpu.image.is_ok())
    }

    /// What the findings mean for the user, one sentence each.
    pub fn conclusions(&self) -> Vec<String> {
        let mut conclusions = Vec::new();
        match (self.usable_gpu(), &self.cublaslt) {
            (Some(gpu), cublaslt) => {
                let GpuProperties { index, name, .. } = &gpu.properties;
                conclusions
                    .push(format!("training runs on GPU {index} ({name}), each step one graph launch"));
                conclusions.push(match cublaslt {
                    Ok(_) => "matrix products run on the Rust kernels; `--matmul cublaslt` works too".into(),
                    Err(_) => "matrix products run on the Rust kernels".into(),
                });
            }
            (None, _) => {
                let why = match (&self.driver, &self.gpus) {
                    (Err(error), _) => error.to_string(),
                    (Ok(_), Err(error)) => error.clone(),
                    (Ok(_), Ok(gpus)) => match gpus.first() {
                        Some(gpu) => gpu.image.clone().err().unwrap_or_default(),
                        None => "the driver shows no GPU".into(),
                    },
                };
                conclusions.push(format!("training runs on the CPU: {why}"));
            }
        }
        if self.kernels.is_empty() {
            conclusions.push(format!(
                "no GPU can be used until this program is built with kernels: {}",
                self.kernels_note
            ));
        }
        conclusions
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver {
            Ok(version) => writeln!(f, "driver     {version}")?,
            Err(error) => writeln!(f, "driver     none: {error}")?,
        }
        match &self.gpus {
            Ok(gpus) if gpus.is_empty() => writeln!(f, "GPU        none")?,
            Ok(gpus) => {
                for gpu in gpus {
                    let image = match &gpu.image {
                        Ok(image) => format!("runs the {image} kernels"),
                        Err(reason) => format!("not usable: {reason}"),
                    };
                    writeln!(f, "GPU        {}; {image}", gpu.properties)?;
                }
            }
            Err(error) => writeln!(f, "GPU        unknown: {error}")?,
        }
        match &self.cublaslt {
            Ok(found) => writeln!(f, "cuBLASLt   {} ({})", found.version, found.path.display())?,
            Err(error) => writeln!(f, "cuBLASLt   none: {error}")?,
        }
        if self.kernels.is_empty() {
            writeln!(f, "kernels    none: {}", self.kernels_note)?;
        }
        for (target, ptx, cubin) in &self.kernels {
            let code = match cubin {
                Some(bytes) => format!("{bytes} bytes of machine code"),
                None => "no machine code, the driver compiles the PTX at start".into(),
            };
            writeln!(f, "kernels    {target}: {ptx} bytes of PTX, {code} ({})", self.kernels_note)?;
        }
        match &self.ptxas {
            Some(path) => writeln!(f, "ptxas      {} (used when building)", path.display())?,
            None => {
                writeln!(f, "ptxas      none (needed only to build machine code ahead of the first start)")?
            }
        }
        writeln!(f)?;
        for conclusion in self.conclusions() {
            writeln!(f, "-> {conclusion}")?;
        }
        if std::env::var_os(PATH_VARIABLE).is_some() {
            writeln!(f, "   ({PATH_VARIABLE} is set and names the cuBLASLt to use)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(capability: (u32, u32), image: Result<&str, &str>) -> GpuFinding {
        let properties = GpuProperties {
            index: 0,
            name: "NVIDIA H200".into(),
            capability,
            multiprocessors: 132,
            memory: 141 << 30,
            l2_bytes: 60 << 20,
            shared_bytes_per_block: 232_448,
        };
        GpuFinding { properties, image: image.map(str::to_owned).map_err(str::to_owned) }
    }

    fn healthy() -> Report {
        Report {
            driver: Ok(DriverVersion { cuda: 13_000, release: Some("580.159.04".into()) }),
            gpus: Ok(vec![gpu((9, 0), Ok("sm_90"))]),
            cublaslt: Ok(CublasLtFinding { path: "libcublasLt.so.13".into(), version: "13.0.2".into() }),
            kernels: vec![("sm_80".into(), 1000, None), ("sm_90".into(), 1100, Some(5000))],
            kernels_note: "rustc 1.96.0".into(),
            ptxas: None,
        }
    }

    #[test]
    fn a_complete_machine_trains_on_the_gpu() {
        let text = healthy().to_string();
        for expected in [
            "driver     580.159.04 (CUDA 13.0)\n",
            "GPU        GPU 0: NVIDIA H200, compute capability 9.0, 132 multiprocessors, 141.0 GiB, L2 60 MiB; runs the sm_90 kernels\n",
            "cuBLASLt   13.0.2 (libcublasLt.so.13)\n",
            "kernels    sm_90: 1100 bytes of PTX, 5000 bytes of machine code (rustc 1.96.0)\n",
            "-> training runs on GPU 0 (NVIDIA H200), each step one graph launch\n",
            "-> matrix products run on the Rust kernels; `--matmul cublaslt` works too\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_missing_says_what_follows() {
        let no_library = Report { cublaslt: Err(LibraryError::NotFound { tried: 3 }), ..healthy() };
        assert!(no_library.conclusions()[1].contains("Rust kernels"));
        let old = Report { gpus: Ok(vec![gpu((7, 5), Err("the GPU is sm_75"))]), ..healthy() };
        assert_eq!(old.conclusions(), ["training runs on the CPU: the GPU is sm_75"]);
        let nothing = Report {
            driver: Err(NoDevice::NoDriver("not found".into())),
            gpus: Ok(Vec::new()),
            kernels: Vec::new(),
            kernels_note: "no rustc with rust-src".into(),
            ..healthy()
        };
        assert_eq!(
            nothing.conclusions(),
            [
                "training runs on the CPU: no NVIDIA driver: libcuda.so.1 cannot be loaded (not found)",
                "no GPU can be used until this program is built with kernels: no rustc with rust-src"
            ]
        );
    }

    #[test]
    fn any_machine_gets_a_report() {
        let report = doctor(KernelImages { images: &[], note: "none in this test" });
        let text = report.to_string();
        assert!(text.contains("kernels    none: none in this test"), "{text}");
        assert!(report.usable_gpu().is_none(), "without kernels no GPU is usable");
    }
}
