//! TN products: weight and bias gradients, cut into planes over the batch.

use cuda_std::emulator::{Emulator, HostBuf};
use gpu::kernels::gemm::reference::{Rounding, row_sum};
use gpu::kernels::gemm::{self, Product, WeightKernel};

use crate::case::{Form, Operands, Random, Shape, UNTOUCHED};

/// One gradient in a flat plane: weight [m, n] at `weight`, bias [m] (if there is one) at `bias`.
#[derive(Clone, Copy, Debug)]
struct Place {
    shape: Shape,
    weight: usize,
    bias: Option<usize>,
}

/// Range of k that split s of `splits` sums: whole stages of 32.
fn range(k: usize, split: usize, splits: usize) -> std::ops::Range<usize> {
    let length = k.div_ceil(32 * splits) * 32;
    (split * length).min(k)..((split + 1) * length).min(k)
}

/// Runs one group into `splits` planes of `plane` floats, checks each plane and that nothing else was written.
fn check<K: WeightKernel>(rounding: Rounding, splits: usize, plane: usize, places: &[Place], seed: u64) {
    let mut random = Random::new(seed);
    let operands: Vec<_> = places.iter().map(|p| Operands::new(Form::Tn, p.shape, &mut random)).collect();
    let flat = HostBuf::from(vec![UNTOUCHED; splits * plane]);
    let products: Vec<_> = places
        .iter()
        .zip(&operands)
        .map(|(place, of)| Product {
            m: place.shape.m,
            n: place.shape.n,
            k: place.shape.k,
            a: (of.a.buf(), of.a.stride),
            b: (of.b.buf(), of.b.stride),
            c: (
                flat.buf().slice(place.weight, splits * plane - place.weight),
                place.shape.n + place.shape.pad[2],
            ),
            extra: place.bias.map(|bias| flat.buf().slice(bias, splits * plane - bias)),
        })
        .collect();
    let kernel = K::of(splits as u32, plane as u32, &products).expect("a launch");
    Emulator::new(seed).launch(&kernel).unwrap_or_else(|fault| panic!("{places:?}: {fault}"));

    let got = flat.to_vec();
    let mut written = vec![false; got.len()];
    for split in 0..splits {
        for (place, of) in places.iter().zip(&operands) {
            let Shape { m, n, k, pad, .. } = place.shape;
            let range = range(k, split, splits);
            for r in 0..m {
                for c in 0..n {
                    let at = split * plane + place.weight + r * (n + pad[2]) + c;
                    let expected = of.expected(rounding, range.clone(), r, c);
                    let what = || format!("{}, plane {split}, {place:?}: dW[{r}, {c}]", K::DECL.name);
                    assert!(expected.accepts(got[at]), "{} = {}, expected {expected:?}", what(), got[at]);
                    written[at] = true;
                }
                if let Some(bias) = place.bias {
                    let at = split * plane + bias + r;
                    // Four lanes or groups of warps add their parts.
                    let expected = row_sum(range.len(), 8, |i| of.a(r, range.start + i));
                    let what = || format!("{}, plane {split}, {place:?}: db[{r}]", K::DECL.name);
                    assert!(expected.accepts(got[at]), "{} = {}, expected {expected:?}", what(), got[at]);
                    written[at] = true;
                }
            }
        }
    }
    for (i, value) in got.iter().enumerate() {
        assert!(
            written[i] || *value == UNTOUCHED,
            "{}: element {i} outside all gradients was written",
            K::DECL.name
        );
    }
}

fn check_all<K: WeightKernel>(rounding: Rounding) {
    // A batch of one stage or less, several stages, a last stage that is not full; more splits than stages.
    let one = |shape: Shape, bias| [Place { shape, weight: 0, bias }];
    check::<K>(rounding, 1, 64 * 64 + 64, &one(Shape::dense(64, 64, 96), Some(4096)), 1);
    check::<K>(rounding, 1, 8, &one(Shape::dense(1, 1, 1), Some(4)), 2);
    check::<K>(rounding, 2, 70 * 52 + 72, &one(Shape::dense(70, 52, 100), Some(3640)), 3);
    check::<K>(rounding, 4, 16 * 33, &one(Shape::dense(16, 33, 16), None), 4);
    check::<K>(rounding, 3, 2000, &one(Shape { pad: [3, 1, 2], ..Shape::dense(21, 30, 70) }, Some(1900)), 5);
    check::<K>(
        rounding,
        2,
        5000,
        &one(Shape { offset: [1, 2, 0], ..Shape::dense(132, 20, 72) }, Some(4800)),
        6,
    );
    // As a network's layers lie in the flat gradient, sharing the batch; one without bias.
    let shapes = [(52, 32), (36, 32), (12, 32), (64, 48), (40, 12), (5, 9)];
    let mut at = 0;
    let places = shapes.map(|(m, n)| {
        let place = Place { shape: Shape::dense(m, n, 64), weight: at, bias: (m != 5).then_some(at + m * n) };
        at = (at + m * n + m).next_multiple_of(64);
        place
    });
    check::<K>(rounding, 2, at, &places, 7);
}

/// For kernels that differ from a thoroughly tested one in their tile or rounding.
fn check_few<K: WeightKernel>(rounding: Rounding) {
    let place = |shape, weight, bias| Place { shape, weight, bias: Some(bias) };
    let whole = place(Shape::dense(132, 100, 72), 0, 13200);
    let cut = place(Shape { pad: [3, 1, 2], ..Shape::dense(21, 30, 70) }, 13400, 14100);
    check::<K>(rounding, 2, 14200, &[whole, cut], 1);
}

macro_rules! all {
    ($($name:ident: $check:ident, $kernel:ident, $rounding:ident;)*) => { $(
        #[test]
        fn $name() {
            $check::<gemm::$kernel>(Rounding::$rounding);
        }
    )* };
}

all! {
    tn_fp32_huge: check_few, GemmTnFp32Huge, Exact;
    tn_fp32_large: check_few, GemmTnFp32Large, Exact;
    tn_fp32_medium: check_all, GemmTnFp32Medium, Exact;
    tn_fp32_small: check_few, GemmTnFp32Small, Exact;
    tn_tf32_huge: check_few, GemmTnTf32Huge, Tf32;
    tn_tf32_large: check_few, GemmTnTf32Large, Tf32;
    tn_tf32_medium: check_all, GemmTnTf32Medium, Tf32;
    tn_tf32_small: check_few, GemmTnTf32Small, Tf32;
    tn_bf16_huge: check_few, GemmTnBf16Huge, Bf16;
    tn_bf16_large: check_few, GemmTnBf16Large, Bf16;
    tn_bf16_medium: check_few, GemmTnBf16Medium, Bf16;
    tn_bf16_small: check_few, GemmTnBf16Small, Bf16;
    tn_bf16_group: check_all, GemmTnBf16Group, Bf16;
}

/// Contracts: what a launch must not do is refused with the relation that it breaks.
#[test]
fn a_launch_that_does_not_fit_is_refused() {
    let mut random = Random::new(1);
    let of = Operands::new(Form::Tn, Shape::dense(8, 8, 32), &mut random);
    let flat = HostBuf::<f32>::zeroed(2 * 64);
    let product = Product {
        m: 8,
        n: 8,
        k: 32,
        a: (of.a.buf(), 8),
        b: (of.b.buf(), 8),
        c: (flat.buf(), 8),
        extra: None,
    };
    let refused = |splits, plane, product: Product| {
        use cuda_std::Kernel;
        gemm::GemmTnFp32Small::of(splits, plane, &[product]).expect("a launch").check().is_err()
    };
    assert!(!refused(2, 64, product));
    assert!(refused(2, 68, product), "the last plane ends behind the buffer");
    assert!(refused(2, 60, product), "planes overlap");
    assert!(refused(0, 64, product), "no split");
    assert!(refused(1, 64, Product { k: 33, ..product }), "A and B are shorter");
    assert!(refused(1, 64, Product { n: 9, ..product }), "rows of B and C overlap");
    assert!(
        refused(1, 64, Product { extra: Some(flat.buf().slice(0, 7)), ..product }),
        "the bias gradient is short"
    );
}
