//! Products on the Rust kernels of `gpu`: one launch for a group of independent products.

use cuda_std::{Buf, Kernel};
use gpu::kernels::gemm::{self, Arithmetic, DataKernel, Extra, Tile, WeightKernel, choose, choose_forward};
use settings::Precision;

pub mod stored;

use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Form, Lane, Product, Touch};
use crate::extent::Extent;

/// Weight and bias gradient of one layer: dW = dY^T X, db = column sums of dY, summed over `rows`.
#[derive(Clone, Copy, Debug)]
pub struct WeightGradient {
    /// Name for errors.
    pub label: &'static str,
    /// B.
    pub rows: usize,
    /// Output width of the layer.
    pub outputs: usize,
    /// Input width of the layer.
    pub inputs: usize,
    /// dY `[rows, outputs]`.
    pub d_y: Buf<f32>,
    /// Its row stride.
    pub ldy: usize,
    /// X `[rows, inputs]`.
    pub x: Buf<f32>,
    /// Its row stride.
    pub ldx: usize,
    /// First weight in the flat layout.
    pub weight: usize,
    /// First bias in the flat layout.
    pub bias: usize,
    /// Arithmetic.
    pub precision: Precision,
}

/// What multiplies.
fn arithmetic(precision: Precision) -> Arithmetic {
    match precision {
        Precision::Fp32 => Arithmetic::Fp32,
        Precision::Tf32 | Precision::Bf16 => Arithmetic::TensorCores,
    }
}

/// Whether the loaded image multiplies the largest tile by warpgroups.
fn groups<E: Exec>(exec: &E) -> bool {
    exec.has(&gemm::GemmNtBf16Group::DECL)
}

/// Runs `$launch` with `$kernel` the kernel of the tile that suits the products.
macro_rules! by_tile {
    ($tile:expr, $huge:ident, $large:ident, $medium:ident, $small:ident, |$kernel:ident| $launch:expr) => {
        match $tile {
            Tile::Huge => {
                type $kernel = gemm::$huge;
                $launch
            }
            Tile::Large => {
                type $kernel = gemm::$large;
                $launch
            }
            Tile::Medium => {
                type $kernel = gemm::$medium;
                $launch
            }
            Tile::Small => {
                type $kernel = gemm::$small;
                $launch
            }
        }
    };
}

/// One product: what an executor calls for products that cuBLASLt does not take.
pub fn product<E: Exec>(exec: &mut E, lane: Lane, product: &Product) -> Result<(), ExecError> {
    group(exec, lane, std::slice::from_ref(product))
}

/// Independent products of one form and precision, in one launch.
pub fn group<E: Exec>(exec: &mut E, lane: Lane, products: &[Product]) -> Result<(), ExecError> {
    let Some(first) = products.first() else { return Ok(()) };
    let fail = |problem: String| ExecError::Product { label: first.label, problem };
    let (common, extras) = epilogues(products)?;
    let touches: Vec<Touch> =
        products.iter().flat_map(Product::operands).map(|operand| operand.touch).collect();
    let argument = |(product, extra): (&Product, Option<Buf<f32>>)| gemm::Product {
        m: product.m,
        n: product.n,
        k: product.k,
        a: (product.a, product.lda),
        b: (product.b, product.ldb),
        c: (product.c, product.ldc),
        extra,
    };
    let arguments: Vec<gemm::Product> = products.iter().zip(extras).map(argument).collect();
    independent(products)?;
    let shapes = products.iter().map(|p| (p.m, p.n, p.k));
    let tile = match (first.form, first.precision) {
        (Form::Nt, Precision::Bf16) if groups(exec) => choose_forward(shapes),
        _ => choose(arithmetic(first.precision), 1, shapes),
    };
    macro_rules! launch {
        ($huge:ident, $large:ident, $medium:ident, $small:ident) => {
            by_tile!(tile, $huge, $large, $medium, $small, |K| {
                let kernel = K::of(common, &arguments).map_err(|e| fail(e.to_string()))?;
                exec.launch_touching(lane, &kernel, &touches)
            })
        };
    }
    match (first.form, first.precision) {
        (Form::Nt, Precision::Fp32) => {
            launch!(GemmNtFp32Huge, GemmNtFp32Large, GemmNtFp32Medium, GemmNtFp32Small)
        }
        (Form::Nt, Precision::Tf32) => {
            launch!(GemmNtTf32Huge, GemmNtTf32Large, GemmNtTf32Medium, GemmNtTf32Small)
        }
        (Form::Nt, Precision::Bf16) if groups(exec) => {
            launch!(GemmNtBf16Group, GemmNtBf16Large, GemmNtBf16Medium, GemmNtBf16Small)
        }
        (Form::Nt, Precision::Bf16) => {
            launch!(GemmNtBf16Huge, GemmNtBf16Large, GemmNtBf16Medium, GemmNtBf16Small)
        }
        (Form::Nn, Precision::Fp32) => {
            launch!(GemmNnFp32Huge, GemmNnFp32Large, GemmNnFp32Medium, GemmNnFp32Small)
        }
        (Form::Nn, Precision::Tf32) => {
            launch!(GemmNnTf32Huge, GemmNnTf32Large, GemmNnTf32Medium, GemmNnTf32Small)
        }
        (Form::Nn, Precision::Bf16) if groups(exec) => {
            launch!(GemmNnBf16Group, GemmNnBf16Large, GemmNnBf16Medium, GemmNnBf16Small)
        }
        (Form::Nn, Precision::Bf16) => {
            launch!(GemmNnBf16Huge, GemmNnBf16Large, GemmNnBf16Medium, GemmNnBf16Small)
        }
        (Form::Tn, precision) => {
            if products.iter().any(|p| !matches!(p.epilogue, Epilogue::None)) {
                return Err(fail("form TN takes no epilogue".into()));
            }
            weight_launch(exec, lane, (first.label, precision), &arguments, &touches, 1, 0)
        }
    }
}

/// What each product of a launch has of its epilogue.
type Extras = Vec<Option<Buf<f32>>>;

/// Checks products of one launch, which have one form, one precision and one epilogue; that epilogue, and what each product
/// has of it.
fn epilogues(products: &[Product]) -> Result<(Extra, Extras), ExecError> {
    let first = &products[0];
    let fail = |problem: String| ExecError::Product { label: first.label, problem };
    let with_extra = products.iter().find(|p| !matches!(p.epilogue, Epilogue::None));
    let common = extra(with_extra.unwrap_or(first))?.0;
    let mut extras = Vec::with_capacity(products.len());
    for product in products {
        product.check()?;
        if product.form != first.form || product.precision != first.precision {
            return Err(fail(format!("`{}` has another form or precision than its group", product.label)));
        }
        // A product without epilogue fits a group of data gradients, and one of plain biases.
        let own = extra(product)?;
        let fits = own.1.is_none() && !matches!(common, Extra::Bias(slope) if slope != 1.0);
        if own.0 != common && !fits {
            return Err(fail(format!("`{}` has another epilogue than its group", product.label)));
        }
        extras.push(own.1);
    }
    Ok((common, extras))
}

/// No product of a launch may use what another one writes: they run in no particular order.
fn independent(products: &[Product]) -> Result<(), ExecError> {
    for writer in products {
        let operands = writer.operands();
        for written in operands.iter().filter(|operand| operand.touch.writes) {
            for other in products.iter().filter(|other| !std::ptr::eq(*other, writer)) {
                let used = other.operands();
                if let Some(used) = used.iter().find(|used| used.touch.extent.overlaps(&written.touch.extent))
                {
                    let problem =
                        format!("it writes `{}` of `{}` in the same launch", used.name, other.label);
                    return Err(ExecError::Product { label: writer.label, problem });
                }
            }
        }
    }
    Ok(())
}

/// The epilogue as the kernels take it.
fn extra(product: &Product) -> Result<(Extra, Option<Buf<f32>>), ExecError> {
    Ok(match product.epilogue {
        Epilogue::None => (Extra::Bias(1.0), None),
        Epilogue::Bias(bias) => (Extra::Bias(1.0), Some(bias)),
        Epilogue::BiasLrelu(bias, slope) => (Extra::Bias(slope), Some(bias)),
        Epilogue::LreluBackward(h, slope) => (Extra::Activations(slope), Some(h)),
    })
}

/// Weight and bias gradients of some layers in one launch, into `parts` [splits, plane]: partial sums over ranges of the
/// batch, each plane laid out as the flat parameters.
pub fn weight_gradients<E: Exec>(
    exec: &mut E,
    lane: Lane,
    layers: &[WeightGradient],
    parts: Buf<f32>,
    splits: usize,
    plane: usize,
) -> Result<(), ExecError> {
    let Some(first) = layers.first() else { return Ok(()) };
    let (touches, arguments) = gradient_arguments(layers, parts, splits, plane)?;
    weight_launch(exec, lane, (first.label, first.precision), &arguments, &touches, splits, plane)
}

/// What a launch of weight gradients touches, four entries a layer (dY, X, dW, db), and its arguments.
fn gradient_arguments(
    layers: &[WeightGradient],
    parts: Buf<f32>,
    splits: usize,
    plane: usize,
) -> Result<(Vec<Touch>, Vec<gemm::Product>), ExecError> {
    let first = &layers[0];
    let fail = |problem: String| ExecError::Product { label: first.label, problem };
    if parts.len() < splits * plane {
        return Err(fail(format!("{} floats for {splits} planes of {plane}", parts.len())));
    }
    let mut touches = Vec::new();
    let mut arguments = Vec::with_capacity(layers.len());
    for layer in layers {
        if layer.precision != first.precision {
            return Err(fail(format!("`{}` has another precision than its group", layer.label)));
        }
        let rest = |at: usize| {
            parts
                .try_slice(at, parts.len() - at)
                .ok_or_else(|| fail(format!("offset {at} is outside the parts")))
        };
        let read = |buf: Buf<f32>, columns, ld| Touch {
            extent: Extent::matrix(buf.addr(), layer.rows, columns, ld),
            writes: false,
        };
        touches.push(read(layer.d_y, layer.outputs, layer.ldy));
        touches.push(read(layer.x, layer.inputs, layer.ldx));
        for (at, len) in [(layer.weight, layer.outputs * layer.inputs), (layer.bias, layer.outputs)] {
            touches
                .push(Touch { extent: Extent::matrix(rest(at)?.addr(), splits, len, plane), writes: true });
        }
        arguments.push(gemm::Product {
            m: layer.outputs,
            n: layer.inputs,
            k: layer.rows,
            a: (layer.d_y, layer.ldy),
            b: (layer.x, layer.ldx),
            c: (rest(layer.weight)?, layer.inputs),
            extra: Some(rest(layer.bias)?),
        });
    }
    Ok((touches, arguments))
}

fn weight_launch<E: Exec>(
    exec: &mut E,
    lane: Lane,
    (label, precision): (&'static str, Precision),
    arguments: &[gemm::Product],
    touches: &[Touch],
    splits: usize,
    plane: usize,
) -> Result<(), ExecError> {
    let tile = choose(arithmetic(precision), splits, arguments.iter().map(|p| (p.m, p.n, p.k)));
    macro_rules! launch {
        ($huge:ident, $large:ident, $medium:ident, $small:ident) => {
            by_tile!(tile, $huge, $large, $medium, $small, |K| {
                launch_weights::<K, E>(exec, lane, label, arguments, touches, splits, plane)
            })
        };
    }
    match precision {
        Precision::Fp32 => launch!(GemmTnFp32Huge, GemmTnFp32Large, GemmTnFp32Medium, GemmTnFp32Small),
        Precision::Tf32 => launch!(GemmTnTf32Huge, GemmTnTf32Large, GemmTnTf32Medium, GemmTnTf32Small),
        Precision::Bf16 if groups(exec) => {
            launch!(GemmTnBf16Group, GemmTnBf16Large, GemmTnBf16Medium, GemmTnBf16Small)
        }
        Precision::Bf16 => launch!(GemmTnBf16Huge, GemmTnBf16Large, GemmTnBf16Medium, GemmTnBf16Small),
    }
}

/// One launch of a kernel for weight gradients.
fn launch_weights<K: WeightKernel, E: Exec>(
    exec: &mut E,
    lane: Lane,
    label: &'static str,
    arguments: &[gemm::Product],
    touches: &[Touch],
    splits: usize,
    plane: usize,
) -> Result<(), ExecError> {
    let fail = |problem: String| ExecError::Product { label, problem };
    let narrow =
        |value: usize| u32::try_from(value).map_err(|_| fail(format!("{value} does not fit 32 bits")));
    let kernel = K::of(narrow(splits)?, narrow(plane)?, arguments).map_err(|e| fail(e.to_string()))?;
    exec.launch_touching(lane, &kernel, touches)
}

#[cfg(test)]
mod tests;
