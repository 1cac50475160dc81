//! Products of operands that lie in memory as bf16, in the emulator.

mod bodies;
#[path = "../machine/emulated.rs"]
mod emulated;
#[path = "../machine/mod.rs"]
mod machine;
#[path = "../common/random.rs"]
mod random;

use cuda_std::emulator::HostBuf;
use cuda_std::{Buf, Kernel};
use gpu::kernels::gemm::{
    Destination, Extra, GemmNnBf16Stored, GemmNtBf16Stored, GemmTnBf16Stored, Product, StoredKernel,
    StoredProduct, WeightKernel,
};

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

#[test]
fn halved_gradients() {
    emulated::under_every_interleaving(bodies::halved_gradients);
}

/// What cannot be read in pieces of eight elements, or stored in pieces of four, is refused.
#[test]
fn contract() {
    let memory = HostBuf::<f32>::zeroed(4096);
    let buf = |at: usize| memory.buf().slice(at, 1024);
    let product =
        Product { m: 16, n: 16, k: 16, a: (buf(0), 16), b: (buf(1024), 16), c: (buf(2048), 16), extra: None };
    let refused = |product: Product, result: Destination| {
        let stored = StoredProduct { product, result, halved_activations: false };
        GemmNtBf16Stored::of(Extra::Bias(1.0), &[stored]).expect("sizes").check().is_err()
    };
    assert!(!refused(product, Destination::Both(buf(3072))));
    let only = Destination::Halves(buf(3072));
    assert!(!refused(Product { c: (buf(2048).slice(0, 0), 16), ..product }, only), "C in f32 is not touched");
    let plain = |product: Product| refused(product, Destination::Floats);
    assert!(plain(Product { c: (buf(2048).slice(0, 0), 16), ..product }), "it is here");
    assert!(plain(Product { k: 12, ..product }), "summed indices");
    assert!(plain(Product { a: (buf(0), 20), ..product }), "stride");
    assert!(plain(Product { b: (buf(1026), 16), ..product }), "address");
    assert!(plain(Product { a: (buf(0).slice(0, 127), 16), ..product }), "A is shorter");
    assert!(!plain(Product { n: 15, ..product }), "columns may be of any number");
    assert!(refused(Product { n: 15, ..product }, only), "but not of what is stored in bf16");
    assert!(refused(product, Destination::Both(buf(3072).slice(0, 127))), "the copy is shorter");
    let activations = |of: Buf<f32>, halved_activations| {
        let product = Product { extra: Some(of), ..product };
        let stored = StoredProduct { product, result: Destination::Floats, halved_activations };
        GemmNnBf16Stored::of(Extra::Activations(0.1), &[stored]).expect("sizes").check().is_err()
    };
    assert!(!activations(buf(3072).slice(0, 128), true));
    assert!(activations(buf(3072).slice(0, 127), true), "the activations are shorter");
    assert!(activations(buf(3072).slice(0, 128), false), "in f32 they are twice as long");
    let gradient = |product: Product| GemmTnBf16Stored::of(1, 0, &[product]).expect("sizes").check().is_err();
    assert!(!gradient(Product { k: 13, ..product }), "the batch may be of any size");
    assert!(gradient(Product { m: 12, ..product }), "rows of C are columns of A");
    assert!(gradient(Product { n: 12, ..product }), "columns of C are columns of B");
}
