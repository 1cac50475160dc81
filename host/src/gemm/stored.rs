//! Products of operands that have a copy in bf16 (`gpu::kernels::gemm`, module `stored`).

use cuda_std::Buf;
use gpu::kernels::gemm::{
    self, Destination, GemmNnBf16Stored, GemmNtBf16Stored, GemmTnBf16Stored, StoredKernel, StoredProduct,
};

use crate::error::ExecError;
use crate::exec::{Exec, Form, Lane, Product, Touch};
use crate::extent::Extent;
use crate::product::Operand;

use super::{WeightGradient, epilogues, gradient_arguments, independent, launch_weights};

/// A product whose operands are read in bf16.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Shapes, strides in elements, result in f32, and epilogue; its own operands are not read.
    pub product: Product,
    /// A, two elements a float.
    pub a: Buf<f32>,
    /// B.
    pub b: Buf<f32>,
    /// The stored activations of the epilogue, where they are in bf16.
    pub activations: Option<Buf<f32>>,
    /// How the result is stored.
    pub result: Destination,
}

/// A layer's weight gradient with the copies of dY and X.
pub type StoredGradient = (WeightGradient, Buf<f32>, Buf<f32>);

/// A matrix of bf16.
fn halves(buffer: Buf<f32>, rows: usize, columns: usize, stride: usize) -> Extent {
    Extent::matrix(buffer.addr(), rows, columns / 2, stride / 2)
}

/// Independent products NT or NN in one launch.
pub fn group<E: Exec>(exec: &mut E, lane: Lane, stored: &[Stored]) -> Result<(), ExecError> {
    let Some(first) = stored.first() else { return Ok(()) };
    let fail = |problem: String| ExecError::Product { label: first.product.label, problem };
    let products: Vec<Product> = stored.iter().map(|stored| stored.product).collect();
    let (common, extras) = epilogues(&products)?;
    independent(&products)?;
    let (mut touches, mut arguments) = (vec![], vec![]);
    for (Stored { product, a, b, activations, result }, extra) in stored.iter().zip(extras) {
        let Product { m, n, k, lda, ldb, ldc, .. } = *product;
        let b_shape = if product.form == Form::Nt { (n, k) } else { (k, n) };
        touches.push(Touch { extent: halves(*a, m, k, lda), writes: false });
        touches.push(Touch { extent: halves(*b, b_shape.0, b_shape.1, ldb), writes: false });
        for Operand { name, touch } in product.operands().into_iter().skip(2) {
            match (name, activations, result) {
                ("h", Some(h), _) => touches.push(Touch { extent: halves(*h, m, n, ldc), writes: false }),
                ("c", _, Destination::Halves(_)) => {}
                _ => touches.push(touch),
            }
        }
        if let Destination::Both(c) | Destination::Halves(c) | Destination::BareAndHalves(c) = result {
            touches.push(Touch { extent: halves(*c, m, n, ldc), writes: true });
        }
        let extra = activations.or(extra);
        let c = match result {
            Destination::Halves(_) => product.c.slice(0, 0),
            _ => product.c,
        };
        let product = gemm::Product { m, n, k, a: (*a, lda), b: (*b, ldb), c: (c, ldc), extra };
        arguments.push(StoredProduct { product, result: *result, halved_activations: activations.is_some() });
    }
    macro_rules! launch {
        ($kernel:ident) => {{
            let kernel = $kernel::of(common, &arguments).map_err(|e| fail(e.to_string()))?;
            exec.launch_touching(lane, &kernel, &touches)
        }};
    }
    match first.product.form {
        Form::Nt => launch!(GemmNtBf16Stored),
        Form::Nn => launch!(GemmNnBf16Stored),
        Form::Tn => Err(fail("form TN is for weight gradients".into())),
    }
}

/// [`super::weight_gradients`] of layers with the copies of dY and X.
pub fn weight_gradients<E: Exec>(
    exec: &mut E,
    lane: Lane,
    layers: &[StoredGradient],
    parts: Buf<f32>,
    splits: usize,
    plane: usize,
) -> Result<(), ExecError> {
    let Some((first, ..)) = layers.first() else { return Ok(()) };
    let plain: Vec<WeightGradient> = layers.iter().map(|(layer, ..)| *layer).collect();
    let (mut touches, mut arguments) = gradient_arguments(&plain, parts, splits, plane)?;
    // Of each layer: dY, X, dW, db.
    for ((layer, d_y, x), (touches, arguments)) in
        layers.iter().zip(touches.chunks_exact_mut(4).zip(&mut arguments))
    {
        touches[0].extent = halves(*d_y, layer.rows, layer.outputs, layer.ldy);
        touches[1].extent = halves(*x, layer.rows, layer.inputs, layer.ldx);
        (arguments.a.0, arguments.b.0) = (*d_y, *x);
    }
    launch_weights::<GemmTnBf16Stored, E>(exec, lane, first.label, &arguments, &touches, splits, plane)
}
