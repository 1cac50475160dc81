//! NT and NN products with their epilogues.

use cuda_std::emulator::Emulator;
use gpu::kernels::gemm::reference::{Rounding, bias_lrelu, lrelu_backward};
use gpu::kernels::gemm::{self, DataKernel, Extra, Product};

use crate::case::{Form, Matrix, Operands, Random, Shape};

const SLOPE: f32 = 0.01;

/// Shapes around the tile edges, around the depth of a stage (32) and of the ring (three stages), with strides and
/// addresses that allow 16-byte copies and that do not.
const SHAPES: [Shape; 8] = [
    Shape::dense(64, 64, 96),
    Shape::dense(1, 1, 1),
    Shape::dense(16, 32, 12),
    Shape::dense(65, 63, 33),
    Shape::dense(128, 36, 132),
    Shape { m: 40, n: 44, k: 36, pad: [4, 8, 12], offset: [0, 4, 8] },
    Shape { m: 37, n: 21, k: 45, pad: [1, 2, 3], offset: [0; 3] },
    Shape { m: 24, n: 68, k: 40, pad: [4, 4, 4], offset: [1, 2, 3] },
];

/// For kernels that differ from a thoroughly tested one in their tile or rounding: all warps of a tile, two tiles, and
/// nothing aligned.
const FEW_SHAPES: [Shape; 2] =
    [Shape::dense(132, 100, 40), Shape { m: 37, n: 21, k: 45, pad: [1, 2, 3], offset: [0; 3] }];

/// What follows the product.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Nothing,
    Bias,
    BiasLrelu,
    LreluBackward,
}

/// Runs one group and checks each product.
fn check<K: DataKernel>(form: Form, rounding: Rounding, after: After, shapes: &[Shape], seed: u64) {
    let mut random = Random::new(seed);
    let operands: Vec<_> = shapes.iter().map(|&shape| Operands::new(form, shape, &mut random)).collect();
    let c: Vec<_> = shapes.iter().map(|s| Matrix::output(s.m, s.n, s.pad[2], s.offset[2])).collect();
    let extra: Vec<_> = shapes
        .iter()
        .map(|s| match after {
            After::LreluBackward => Matrix::input(s.m, s.n, s.pad[2], s.offset[2], &mut random),
            _ => Matrix::input(1, s.n, 0, s.offset[2], &mut random),
        })
        .collect();
    let products: Vec<_> = (0..shapes.len())
        .map(|p| Product {
            m: shapes[p].m,
            n: shapes[p].n,
            k: shapes[p].k,
            a: (operands[p].a.buf(), operands[p].a.stride),
            b: (operands[p].b.buf(), operands[p].b.stride),
            c: (c[p].buf(), c[p].stride),
            extra: (after != After::Nothing).then(|| extra[p].buf()),
        })
        .collect();
    let kind = match after {
        After::Nothing | After::Bias => Extra::Bias(1.0),
        After::BiasLrelu => Extra::Bias(SLOPE),
        After::LreluBackward => Extra::Activations(SLOPE),
    };
    let kernel = K::of(kind, &products).expect("a launch");
    Emulator::new(seed).launch(&kernel).unwrap_or_else(|fault| panic!("{after:?} {shapes:?}: {fault}"));
    for p in 0..shapes.len() {
        let what = format!("{}, {after:?}, product {p}, {:?}", K::DECL.name, shapes[p]);
        c[p].check(&what, |row, column| {
            let sum = operands[p].expected(rounding, 0..shapes[p].k, row, column);
            match after {
                After::Nothing => sum,
                After::Bias => bias_lrelu(sum, extra[p].at(0, column), 1.0),
                After::BiasLrelu => bias_lrelu(sum, extra[p].at(0, column), SLOPE),
                After::LreluBackward => lrelu_backward(sum, extra[p].at(row, column), SLOPE),
            }
        });
    }
}

/// All of a kernel: each shape with one epilogue alone, and groups.
fn check_all<K: DataKernel>(form: Form, rounding: Rounding) {
    let epilogues = [After::Nothing, After::Bias, After::BiasLrelu, After::LreluBackward];
    for (i, shape) in SHAPES.into_iter().enumerate() {
        check::<K>(form, rounding, epilogues[i % 4], &[shape], i as u64);
    }
    for after in epilogues {
        check::<K>(form, rounding, after, &[Shape { pad: [0, 0, 4], ..Shape::dense(20, 36, 24) }], 100);
    }
    // As many as a launch takes.
    let group = [
        (20, 51, 16),
        (20, 9, 16),
        (33, 3, 16),
        (1, 70, 8),
        (20, 5, 4),
        (20, 1, 40),
        (7, 8, 9),
        (70, 4, 4),
        (2, 2, 2),
    ];
    let group = group.map(|(m, n, k)| Shape { pad: [0, 1, 0], ..Shape::dense(m, n, k) });
    check::<K>(form, rounding, After::BiasLrelu, &group, 7);
    check::<K>(form, rounding, After::LreluBackward, &group[..4], 8);
}

fn check_few<K: DataKernel>(form: Form, rounding: Rounding) {
    check::<K>(form, rounding, After::LreluBackward, &FEW_SHAPES[..1], 1);
    check::<K>(form, rounding, After::BiasLrelu, &FEW_SHAPES, 2);
}

macro_rules! all {
    ($($name:ident: $check:ident, $kernel:ident, $form:ident, $rounding:ident;)*) => { $(
        #[test]
        fn $name() {
            $check::<gemm::$kernel>(Form::$form, Rounding::$rounding);
        }
    )* };
}

all! {
    nt_fp32_huge: check_few, GemmNtFp32Huge, Nt, Exact;
    nt_fp32_large: check_few, GemmNtFp32Large, Nt, Exact;
    nt_fp32_medium: check_all, GemmNtFp32Medium, Nt, Exact;
    nt_fp32_small: check_few, GemmNtFp32Small, Nt, Exact;
    nn_fp32_huge: check_few, GemmNnFp32Huge, Nn, Exact;
    nn_fp32_large: check_few, GemmNnFp32Large, Nn, Exact;
    nn_fp32_medium: check_all, GemmNnFp32Medium, Nn, Exact;
    nn_fp32_small: check_few, GemmNnFp32Small, Nn, Exact;
    nt_tf32_huge: check_few, GemmNtTf32Huge, Nt, Tf32;
    nt_tf32_large: check_few, GemmNtTf32Large, Nt, Tf32;
    nt_tf32_medium: check_all, GemmNtTf32Medium, Nt, Tf32;
    nt_tf32_small: check_few, GemmNtTf32Small, Nt, Tf32;
    nn_tf32_huge: check_few, GemmNnTf32Huge, Nn, Tf32;
    nn_tf32_large: check_few, GemmNnTf32Large, Nn, Tf32;
    nn_tf32_medium: check_all, GemmNnTf32Medium, Nn, Tf32;
    nn_tf32_small: check_few, GemmNnTf32Small, Nn, Tf32;
    nt_bf16_huge: check_few, GemmNtBf16Huge, Nt, Bf16;
    nt_bf16_large: check_few, GemmNtBf16Large, Nt, Bf16;
    nt_bf16_medium: check_few, GemmNtBf16Medium, Nt, Bf16;
    nt_bf16_small: check_few, GemmNtBf16Small, Nt, Bf16;
    nn_bf16_huge: check_few, GemmNnBf16Huge, Nn, Bf16;
    nn_bf16_large: check_few, GemmNnBf16Large, Nn, Bf16;
    nn_bf16_medium: check_few, GemmNnBf16Medium, Nn, Bf16;
    nn_bf16_small: check_few, GemmNnBf16Small, Nn, Bf16;
    nt_bf16_group: check_all, GemmNtBf16Group, Nt, Bf16;
    nn_bf16_group: check_all, GemmNnBf16Group, Nn, Bf16;
}

/// The order in which the emulator lets threads run does not change a bit.
#[test]
fn results_do_not_depend_on_the_interleaving() {
    fn one<K: DataKernel>() {
        let mut random = Random::new(5);
        let operands = Operands::new(Form::Nt, Shape::dense(70, 40, 72), &mut random);
        let results: Vec<_> = (0..4)
            .map(|seed| {
                let c = Matrix::output(70, 40, 0, 0);
                let product = Product {
                    m: 70,
                    n: 40,
                    k: 72,
                    a: (operands.a.buf(), 72),
                    b: (operands.b.buf(), 72),
                    c: (c.buf(), 40),
                    extra: None,
                };
                Emulator::new(seed)
                    .launch(&K::of(Extra::Bias(1.0), &[product]).expect("a launch"))
                    .expect("no fault");
                c.bits()
            })
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{}", K::DECL.name);
    }
    one::<gemm::GemmNtFp32Small>();
    one::<gemm::GemmNtFp32Medium>();
    one::<gemm::GemmNtTf32Small>();
    one::<gemm::GemmNtTf32Medium>();
}
