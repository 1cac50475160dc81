//! Products of operands that lie in memory as bf16 against f64 sums, and the rounding that puts them there.

use cuda_std::Buf;
use gpu::kernels::gemm::reference::{Rounding, bias_lrelu, element, lrelu_backward, row_sum};
use gpu::kernels::gemm::{
    Destination, Extra, GemmNnBf16Stored, GemmNtBf16Stored, GemmTnBf16Stored, Product, StoredKernel,
    StoredProduct, WeightKernel,
};
use gpu::kernels::halve::reference::bf16;
use gpu::kernels::halve::{Halve, HalveLrelu};
use gpu::reference::Bounded;

use super::machine::{Machine, UNTOUCHED};
use super::random::Random;

const SLOPE: f32 = 0.01;

/// Bits of the bf16 next to a number.
fn bits(x: f32) -> u32 {
    u32::from(bf16(x).unwrap_or(0x7fc0))
}

/// Two bf16 a float, the first in the lower half.
fn words(values: &[f32]) -> Vec<f32> {
    values.chunks_exact(2).map(|pair| f32::from_bits(bits(pair[0]) | bits(pair[1]) << 16)).collect()
}

/// A row-major matrix of bf16 inside a larger buffer, NaN around it.
struct Halved {
    memory: Buf<f32>,
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    stride: usize,
    offset: usize,
}

impl Halved {
    fn new<M: Machine>(
        m: &mut M,
        (rows, columns): (usize, usize),
        (pad, offset): (usize, usize),
        random: &mut Random,
    ) -> Result<Halved, M::Error> {
        let stride = columns + pad;
        let mut values = vec![f32::NAN; offset + rows * stride];
        for r in 0..rows {
            values[offset + r * stride..][..columns]
                .fill_with(|| f32::from_bits(bits(random.uniform()) << 16));
        }
        let memory = m.put(&words(&values))?;
        Ok(Halved { memory, values, rows, columns, stride, offset })
    }

    /// From the first element to the last row's last column.
    fn buf(&self) -> Buf<f32> {
        let end = (self.rows - 1) * self.stride + self.columns;
        self.memory.slice(self.offset / 2, end / 2)
    }

    fn at(&self, r: usize, c: usize) -> f32 {
        self.values[self.offset + r * self.stride + c]
    }
}

/// Sizes, what the rows of A, B and C are longer than what is in them, elements before the first of A and B.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    pad: usize,
    offset: usize,
}

/// Less than a tile and a stage; a whole tile and the ring's three stages; more than one tile both ways, four stages, the last not
/// full; strides and places that are multiples of eight only.
const SHAPES: [Shape; 5] = [
    Shape { m: 8, n: 8, k: 8, pad: 0, offset: 0 },
    Shape { m: 128, n: 128, k: 192, pad: 0, offset: 0 },
    Shape { m: 136, n: 264, k: 232, pad: 0, offset: 0 },
    Shape { m: 72, n: 40, k: 64, pad: 8, offset: 24 },
    Shape { m: 200, n: 24, k: 72, pad: 24, offset: 8 },
];

/// Which operand lies along the summed index.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Nt,
    Nn,
    Tn,
}

struct Operands {
    form: Form,
    a: Halved,
    b: Halved,
}

impl Operands {
    fn new<M: Machine>(
        machine: &mut M,
        form: Form,
        Shape { m, n, k, pad, offset }: Shape,
        random: &mut Random,
    ) -> Result<Operands, M::Error> {
        let a = if form == Form::Tn { (k, m) } else { (m, k) };
        let b = if form == Form::Nt { (n, k) } else { (k, n) };
        Ok(Operands {
            form,
            a: Halved::new(machine, a, (pad, offset), random)?,
            b: Halved::new(machine, b, (pad, offset), random)?,
        })
    }

    /// C[row, column] summed over a range of k.
    fn sum(&self, range: std::ops::Range<usize>, row: usize, column: usize) -> Bounded {
        let a = |k| if self.form == Form::Tn { self.a.at(k, row) } else { self.a.at(row, k) };
        let b = |k| if self.form == Form::Nt { self.b.at(column, k) } else { self.b.at(k, column) };
        element(Rounding::Bf16, range.len(), 1, |i| a(range.start + i), |i| b(range.start + i))
    }
}

fn accept(what: impl Fn() -> String, got: f32, expected: Bounded) {
    assert!(expected.accepts(got), "{} is {got}, expected {expected:?}", what());
}

/// How product p's result is stored, if its copy is `copy`: all ways in turn.
fn result(p: usize, copy: Buf<f32>) -> Destination {
    match p % 4 {
        0 => Destination::Both(copy),
        1 => Destination::Floats,
        2 => Destination::BareAndHalves(copy),
        _ => Destination::Halves(copy),
    }
}

/// All shapes in one launch, the second one without extra operand.
fn data<K: StoredKernel, M: Machine>(machine: &mut M, form: Form, activations: bool) -> Result<(), M::Error> {
    let mut random = Random::new(3);
    let (mut operands, mut products, mut copies, mut extras) = (vec![], vec![], vec![], vec![]);
    for (p, &shape) in SHAPES.iter().enumerate() {
        let Shape { m, n, k, pad, .. } = shape;
        let of = Operands::new(machine, form, shape, &mut random)?;
        let extra = random.vector(if activations { m * (n + pad) } else { n }, 1.0);
        let halved_activations = activations && p % 2 == 0;
        let memory = if halved_activations { machine.put(&words(&extra))? } else { machine.put(&extra)? };
        let copy = machine.output(m * (n + pad) / 2)?;
        products.push(StoredProduct {
            product: Product {
                m,
                n,
                k,
                a: (of.a.buf(), of.a.stride),
                b: (of.b.buf(), of.b.stride),
                c: (machine.output(m * (n + pad))?, n + pad),
                extra: (p != 1).then_some(memory),
            },
            result: result(p, copy),
            halved_activations,
        });
        operands.push(of);
        copies.push(copy);
        extras.push(extra);
    }
    let kind = if activations { Extra::Activations(SLOPE) } else { Extra::Bias(SLOPE) };
    machine.launch(K::of(kind, &products).expect("sizes that fit"))?;
    for (p, &Shape { m, n, k, pad, .. }) in SHAPES.iter().enumerate() {
        let stride = n + pad;
        let (got, copy) = (machine.written(products[p].product.c.0)?, machine.written(copies[p])?);
        for (i, &value) in got.iter().enumerate() {
            let (row, column) = (i / stride, i % stride);
            let what = || format!("{}, {m} x {n} x {k}: C[{row}, {column}]", K::DECL.name);
            let word = copy[i / 2].to_bits();
            let half = f32::from_bits(if i % 2 == 0 { word << 16 } else { word & 0xffff_0000 });
            let untouched = |buffer: &str, bits: u32| {
                assert_eq!(bits, UNTOUCHED.to_bits(), "{} was written in {buffer}", what());
            };
            if column >= n {
                untouched("f32", value.to_bits());
                untouched("bf16", word);
                continue;
            }
            let sum = operands[p].sum(0..k, row, column);
            let expected = match (p == 1, activations) {
                (true, true) => sum,
                (true, false) => bias_lrelu(sum, 0.0, SLOPE),
                (false, true) => lrelu_backward(sum, extras[p][i], SLOPE),
                (false, false) => bias_lrelu(sum, extras[p][column], SLOPE),
            };
            // Half a unit of eight bits more.
            let rounded = |of: Bounded| Bounded { scale: of.scale + of.value.abs() * 32768.0, ..of };
            match products[p].result {
                Destination::Floats => {
                    accept(what, value, expected);
                    untouched("bf16", word);
                }
                Destination::Both(_) => {
                    accept(what, value, expected);
                    assert_eq!(half.to_bits(), bits(value) << 16, "{} in bf16", what());
                }
                Destination::Halves(_) => {
                    untouched("f32", value.to_bits());
                    accept(what, half, rounded(expected));
                }
                Destination::BareAndHalves(_) => {
                    accept(what, value, sum);
                    accept(what, half, rounded(expected));
                }
            }
        }
    }
    Ok(())
}

/// Forward, with bias and LeakyReLU.
pub fn nt<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    data::<GemmNtBf16Stored, M>(machine, Form::Nt, false)
}

/// Data gradient, through LeakyReLU.
pub fn nn<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    data::<GemmNnBf16Stored, M>(machine, Form::Nn, true)
}

/// Weight and bias gradients in two planes, more than the shortest batch fills.
pub fn tn<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    const SPLITS: usize = 2;
    let mut random = Random::new(4);
    let mut plane = 0;
    let places = SHAPES.map(|s| {
        let (weight, bias) = (plane, plane + s.m * s.n);
        plane = bias + s.m;
        (weight, bias)
    });
    let flat = machine.output(SPLITS * plane)?;
    let (mut operands, mut products) = (vec![], vec![]);
    for (&shape, (weight, bias)) in SHAPES.iter().zip(places) {
        let of = Operands::new(machine, Form::Tn, shape, &mut random)?;
        products.push(Product {
            m: shape.m,
            n: shape.n,
            k: shape.k,
            a: (of.a.buf(), of.a.stride),
            b: (of.b.buf(), of.b.stride),
            c: (flat.slice(weight, SPLITS * plane - weight), shape.n),
            extra: Some(flat.slice(bias, SPLITS * plane - bias)),
        });
        operands.push(of);
    }
    machine.launch(GemmTnBf16Stored::of(SPLITS as u32, plane as u32, &products).expect("sizes that fit"))?;
    let got = machine.written(flat)?;
    for split in 0..SPLITS {
        for ((shape, of), (weight, bias)) in SHAPES.iter().zip(&operands).zip(places) {
            let length = shape.k.div_ceil(32 * SPLITS) * 32;
            let range = (split * length).min(shape.k)..((split + 1) * length).min(shape.k);
            let at = split * plane;
            for r in 0..shape.m {
                for c in 0..shape.n {
                    let what = || format!("{shape:?}, plane {split}: dW[{r}, {c}]");
                    accept(what, got[at + weight + r * shape.n + c], of.sum(range.clone(), r, c));
                }
                // Sixteen threads add their parts.
                let expected = row_sum(range.len(), 16, |i| of.a.at(range.start + i, r));
                accept(|| format!("{shape:?}, plane {split}: db[{r}]"), got[at + bias + r], expected);
            }
        }
    }
    Ok(())
}

/// Random numbers and those at the format's edges, bit by bit.
pub fn halves<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut values = vec![
        0.0,
        -0.0,
        1.0,
        f32::from_bits(0x3f80_8000), // halfway between two
        f32::from_bits(0x3f81_8000),
        f32::from_bits(0x3f80_8001),
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::from_bits(1),
        f32::from_bits(0x8000),
        f32::from_bits(0x8001),
    ];
    let mut random = Random::new(6);
    values.resize_with(2054, || random.uniform());
    values.extend([f32::NAN; 2]);
    let (from, to) = (machine.put(&values)?, machine.output(values.len() / 2)?);
    machine.launch(Halve { len: values.len() as u32, from: from.into(), to: to.into() })?;
    let (got, expected) = (machine.written(to)?, words(&values));
    for (i, expected) in expected.iter().enumerate().take(1027) {
        assert_eq!(got[i].to_bits(), expected.to_bits(), "numbers {} and the next", 2 * i);
    }
    let [low, high] = [got[1027].to_bits() << 16, got[1027].to_bits()].map(f32::from_bits);
    assert!(low.is_nan() && high.is_nan(), "NaN stays NaN");
    Ok(())
}

/// The same of a gradient through LeakyReLU.
pub fn halved_gradients<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut random = Random::new(7);
    let (d, mut h) = (random.vector(2056, 1.0), random.vector(2056, 1.0));
    h[..4].copy_from_slice(&[0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY]);
    let (from, activations, to) = (machine.put(&d)?, machine.put(&h)?, machine.output(1028)?);
    let launch = HalveLrelu { len: 2056, slope: SLOPE, d: from.into(), h: activations.into(), to: to.into() };
    machine.launch(launch)?;
    let expected: Vec<f32> = d.iter().zip(&h).map(|(&d, &h)| if h > 0.0 { d } else { SLOPE * d }).collect();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(machine.written(to)?), bits(words(&expected)));
    Ok(())
}
