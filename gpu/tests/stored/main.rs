//! Products of operands that lie in memory as bf16, in the emulator.

mod bodies;
#[path = "../machine/emulated.rs"]
mod emulated;
#[path = "../machine/mod.rs"]
mod machine;

use cuda_std::emulator::HostBuf;
use cuda_std::{Buf, Kernel};
use gpu::kernels::gemm::{Extra, GemmNtBf16Stored, GemmTnBf16Stored, Product, StoredKernel, WeightKernel};

#[test]
fn nt() {
    emulated::under_every_interleaving(bodies::nt);
}

#[test]
fn nn() {
    emulated::under_every_interleaving(bodies::nn);
}

#[test]
fn tn() {
    emulated::under_every_interleaving(bodies::tn);
}

#[test]
fn halves() {
    emulated::under_every_interleaving(bodies::halves);
}

/// What cannot be read in pieces of eight elements is refused.
#[test]
fn contract() {
    let memory = HostBuf::<f32>::zeroed(4096);
    let buf = |at: usize| memory.buf().slice(at, 1024);
    let product =
        Product { m: 16, n: 16, k: 16, a: (buf(0), 16), b: (buf(1024), 16), c: (buf(2048), 16), extra: None };
    let refused = |product: Product, copy: Option<Buf<f32>>| {
        GemmNtBf16Stored::of(Extra::Bias(1.0), &[product], &[copy]).expect("sizes").check().is_err()
    };
    assert!(!refused(product, Some(buf(3072))));
    assert!(refused(Product { k: 12, ..product }, None), "summed indices");
    assert!(refused(Product { a: (buf(0), 20), ..product }, None), "stride");
    assert!(refused(Product { b: (buf(1026), 16), ..product }, None), "address");
    assert!(refused(Product { a: (buf(0).slice(0, 127), 16), ..product }, None), "A is shorter");
    assert!(refused(Product { n: 15, ..product }, Some(buf(3072))), "pieces of four columns");
    assert!(refused(product, Some(buf(3072).slice(0, 127))), "the copy is shorter");
    let gradient = |product: Product| GemmTnBf16Stored::of(1, 0, &[product]).expect("sizes").check().is_err();
    assert!(!gradient(Product { k: 13, ..product }), "the batch may be of any size");
    assert!(gradient(Product { m: 12, ..product }), "rows of C are columns of A");
    assert!(gradient(Product { n: 12, ..product }), "columns of C are columns of B");
}
