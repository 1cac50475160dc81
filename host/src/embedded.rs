//! The kernels that were compiled into this program (see `build.rs` and `cuda_builder`).

use std::sync::LazyLock;

use crate::cuda::images::{KernelImage, KernelImages};

mod generated {
    #![allow(dead_code, missing_docs)] // the text offers more than this program reads
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

pub use generated::RESOURCES;

static IMAGES: LazyLock<Vec<KernelImage>> = LazyLock::new(|| {
    let image = |module: &generated::Module| KernelImage::new(module.arch, module.ptx, module.cubin);
    generated::MODULES.iter().map(image).collect()
});

/// All images, or why there are none.
pub fn images() -> KernelImages {
    let note = generated::MISSING.or(generated::COMPILER).unwrap_or("no compiler is recorded");
    KernelImages { images: &IMAGES, note }
}

/// Hash of the kernels, hexadecimal: part of a run's record.
pub fn kernel_hash() -> String {
    format!("{:016x}", generated::HASH)
}
