//! The GPU computes what the emulator computes, bit for bit: every test body runs on both, and every buffer that it
//! downloads is compared.
//!
//! The kernels use operations that IEEE 754 defines exactly, in an order that does not depend on the launch, so there is
//! no tolerance to choose. A contraction by the assembler, an approximate instruction or a sum whose order the hardware
//! decides would show here.

use std::any::TypeId;

use cuda_std::{Buf, Kernel, KernelDecl};
use host::emulated::EmulatedExec;
use host::error::ExecError;
use host::exec::{Element, Exec, Lane, Memory, Product, Touch};

use crate::kernels::{Backend, Outcome};

/// A back end that keeps what is downloaded.
struct Recording<B> {
    inner: B,
    downloads: Vec<Vec<u8>>,
}

impl<B> Recording<B> {
    fn new(inner: B) -> Self {
        Self { inner, downloads: vec![] }
    }
}

impl<B: Exec> Exec for Recording<B> {
    fn launch<K: Kernel>(&mut self, lane: Lane, kernel: &K) -> Result<(), ExecError> {
        self.inner.launch(lane, kernel)
    }

    fn launch_touching<K: Kernel>(
        &mut self,
        lane: Lane,
        kernel: &K,
        touches: &[Touch],
    ) -> Result<(), ExecError> {
        self.inner.launch_touching(lane, kernel, touches)
    }

    fn has(&self, kernel: &KernelDecl) -> bool {
        self.inner.has(kernel)
    }

    fn product(&mut self, lane: Lane, product: &Product) -> Result<(), ExecError> {
        self.inner.product(lane, product)
    }

    fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        self.inner.after(lane, on)
    }
}

impl<B: Memory> Memory for Recording<B> {
    fn alloc<T: Element>(&mut self, label: &str, len: usize) -> Result<Buf<T>, ExecError> {
        self.inner.alloc(label, len)
    }

    fn upload<T: Element>(&mut self, to: Buf<T>, from: &[T]) -> Result<(), ExecError> {
        self.inner.upload(to, from)
    }

    fn download<T: Element>(&mut self, from: Buf<T>) -> Result<Vec<T>, ExecError> {
        let values = self.inner.download(from)?;
        let mut bytes = bytemuck::cast_slice(&values).to_vec();
        if TypeId::of::<T>() == TypeId::of::<f32>() {
            // Which NaN an operation gives is the one thing IEEE 754 leaves open.
            for word in bytes.chunks_exact_mut(4) {
                let value = f32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
                if value.is_nan() {
                    word.copy_from_slice(&f32::NAN.to_ne_bytes());
                }
            }
        }
        self.downloads.push(bytes);
        Ok(values)
    }
}

impl<B: Exec + Memory> Backend for Recording<B> {
    const FULL_SIZE: bool = false;
    // Its sums have an order of their own.
    const LIBRARY: bool = false;
}

#[track_caller]
fn compare(
    name: &str,
    on_gpu: impl Fn(&mut Recording<crate::CudaExec>) -> Outcome,
    emulated: impl Fn(&mut Recording<EmulatedExec>) -> Outcome,
) {
    let (mut gpu, mut emulator) = (Recording::new(crate::open()), Recording::new(EmulatedExec::new(7)));
    if let Err(error) = on_gpu(&mut gpu).and_then(|()| emulated(&mut emulator)) {
        panic!("{name}: {error}");
    }
    assert_eq!(gpu.downloads.len(), emulator.downloads.len(), "{name}: number of downloads");
    for (i, (gpu, emulator)) in gpu.downloads.iter().zip(&emulator.downloads).enumerate() {
        let difference = gpu.iter().zip(emulator).position(|(a, b)| a != b);
        assert_eq!(difference, None, "{name}: download {i} of {} bytes, first different byte", gpu.len());
    }
}

/// One test per stem.
macro_rules! test {
    // The other body runs on cuBLASLt, whose sums have an order of their own.
    (golden_step $($body:ident)*) => {
        test!(@ golden_step rust_products clipped);
    };
    (golden_full $($body:ident)*) => {
        test!(@ golden_full rust_products);
    };
    // One of them runs on cuBLASLt.
    (mamba_step $($body:ident)*) => {
        test!(@ mamba_step windows closed_gate collection);
    };
    (noisy_step $($body:ident)*) => {
        test!(@ noisy_step rust_products schedules without_sigma reproducible acting);
    };
    // How a tensor core adds its products is not specified; of these there is no body in fp32.
    (stored $($body:ident)*) => {};
    (copies_step $($body:ident)*) => {};
    (gemm $($body:ident)*) => {
        test!(@ gemm nt_fp32 nn_fp32 tn_fp32);
    };
    (iqn $($body:ident)*) => {
        test!(@ iqn fp32);
    };
    (attention $($body:ident)*) => {
        test!(@ attention default_window one_bar long_window odd_sizes wide_trunk closed_gate large_scores nan_shows
            reproducible golden_steps);
    };
    ($stem:ident $($body:ident)*) => {
        test!(@ $stem $($body)*);
    };
    (@ $stem:ident $($body:ident)*) => {
        #[test]
        #[ignore = "needs a GPU: run scripts/gpu-check.sh"]
        fn $stem() {
            $(
                let body = concat!(stringify!($stem), "::", stringify!($body));
                compare(body, crate::kernels::$stem::$body, crate::kernels::$stem::$body);
            )*
        }
    };
}

macro_rules! tests {
    ($($stem:ident { $($body:ident),* $(,)? })*) => {
        $(test!($stem $($body)*);)*
    };
}

crate::for_each_body!(tests);
