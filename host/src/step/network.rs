//! Forward and backward passes as sequences of products and activations, for both backends of products.
//!
//! The Rust kernels fuse bias, LeakyReLU and its derivative into the product and take all heads in one launch. With
//! cuBLASLt each head's product runs on its own lane, forked from and joined to the caller's, and what its epilogues
//! lack follows as an element-wise launch.

use cuda_std::Buf;
use gpu::kernels::bias_lrelu::{BiasGradient, BiasLrelu, LreluBackward};
use gpu::kernels::gemm::{Destination, MAX_PRODUCTS};
use gpu::kernels::glu::{GluBackward, GluBackwardHalves, GluForward};

use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Form, Lane, Product};
use crate::gemm;
use crate::step::buffers::{Activations, TermBuffers};
use crate::step::shape::{Layer, Matmul, StepShape};
use crate::step::stored::Copies;

/// A matrix view: first element and row stride.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// First element to the end of the buffer.
    pub data: Buf<f32>,
    /// Row stride in floats.
    pub stride: usize,
}

impl View {
    /// A whole buffer.
    pub fn new(data: Buf<f32>, stride: usize) -> Self {
        Self { data, stride }
    }

    /// The same rows from column `column` on.
    pub fn column(self, column: usize) -> Self {
        Self { data: from(self.data, column), stride: self.stride }
    }
}

/// The rest of a buffer from element `at`.
fn from(buf: Buf<f32>, at: usize) -> Buf<f32> {
    buf.slice(at, buf.len() - at)
}

/// Partial weight gradients `[splits, len]` of a part of the flat layout.
#[derive(Clone, Copy, Debug)]
pub struct Planes {
    /// The planes, one behind the other.
    pub data: Buf<f32>,
    /// Place in the flat layout of a plane's first float.
    pub first: usize,
    /// Floats of a plane.
    pub len: usize,
}

/// Issues one network's layers on an executor.
pub struct Network<'a, E: Exec> {
    /// Where to.
    pub exec: &'a mut E,
    /// Shapes.
    pub shape: &'a StepShape,
    /// Flat parameters.
    pub parameters: Buf<f32>,
    /// Which of the buffers have a copy in bf16.
    pub copies: Option<&'a Copies>,
}

impl<E: Exec> Network<'_, E> {
    /// Heads' outputs for `a.rows` rows of `x` without attention, all activations kept.
    pub fn forward(&mut self, lane: Lane, x: View, a: &Activations) -> Result<(), ExecError> {
        self.trunk(lane, x, a)?;
        self.heads(lane, a)
    }

    /// h1 and h2.
    pub fn trunk(&mut self, lane: Lane, x: View, a: &Activations) -> Result<(), ExecError> {
        let model = &self.shape.model;
        let (h1, h2) = (View::new(a.h1, model.trunk1), View::new(a.h2, model.trunk2));
        self.activated(lane, a.rows, &[(self.shape.trunk1, x, h1)])?;
        self.activated(lane, a.rows, &[(self.shape.trunk2, h1, h2)])
    }

    /// The heads' outputs from `a.features`.
    pub fn heads(&mut self, lane: Lane, a: &Activations) -> Result<(), ExecError> {
        let shape = self.shape;
        let features = View::new(a.features, shape.model.trunk2);
        let (pre, hidden) = (View::new(a.pre, shape.pre), View::new(a.hidden, shape.hidden));
        if shape.glu() {
            let bias = self.parameters.slice(shape.heads1.bias, shape.heads1.outputs);
            let product = self.forward_product(shape.heads1, a.rows, features, pre, Epilogue::Bias(bias));
            self.group(lane, &[product])?;
            let forward = GluForward {
                rows: a.rows as u32,
                value_width: shape.model.value_hidden as u32,
                branch_width: shape.model.branch_hidden as u32,
                branches: shape.branches as u32,
                pre: a.pre.into(),
                hidden: a.hidden.into(),
            };
            self.exec.launch(lane, &forward)?;
        } else {
            self.activated(lane, a.rows, &[(shape.heads1, features, hidden)])?;
        }
        let logits = View::new(a.logits, shape.logits);
        let products: Vec<Product> = shape
            .outputs
            .iter()
            .map(|o| {
                let bias = self.parameters.slice(o.layer.bias, o.layer.outputs);
                let (x, y) = (hidden.column(o.hidden), logits.column(o.column));
                self.forward_product(o.layer, a.rows, x, y, Epilogue::Bias(bias))
            })
            .collect();
        self.group(lane, &products)
    }

    /// y = lrelu(x W^T + b) of independent layers, each (layer, x, y).
    pub fn activated(
        &mut self,
        lane: Lane,
        rows: usize,
        layers: &[(Layer, View, View)],
    ) -> Result<(), ExecError> {
        let slope = self.shape.model.leaky_slope;
        if self.shape.matmul == Matmul::Rust {
            let product = |&(layer, x, y): &(Layer, View, View)| {
                let bias = self.parameters.slice(layer.bias, layer.outputs);
                self.forward_product(layer, rows, x, y, Epilogue::BiasLrelu(bias, slope))
            };
            let products: Vec<Product> = layers.iter().map(product).collect();
            return self.rust(lane, &products);
        }
        for &(layer, x, y) in layers {
            if !layer.outputs.is_multiple_of(4) {
                return Err(ExecError::Product {
                    label: layer.label,
                    problem: format!("width {} is not a multiple of 4", layer.outputs),
                });
            }
            let product = self.forward_product(layer, rows, x, y, Epilogue::None);
            self.exec.product(lane, &product)?;
            let bias = self.parameters.slice(layer.bias, layer.outputs);
            self.exec.launch(
                lane,
                &BiasLrelu {
                    rows: rows as u32,
                    cols: layer.outputs as u32,
                    stride: y.stride as u32,
                    slope,
                    bias: bias.into(),
                    x: y.data.into(),
                },
            )?;
        }
        Ok(())
    }

    /// y = x W^T + b of independent layers, each (layer, x, y).
    pub fn linear(
        &mut self,
        lane: Lane,
        rows: usize,
        layers: &[(Layer, View, View)],
    ) -> Result<(), ExecError> {
        let product = |&(layer, x, y): &(Layer, View, View)| {
            let bias = self.parameters.slice(layer.bias, layer.outputs);
            self.forward_product(layer, rows, x, y, Epilogue::Bias(bias))
        };
        let products: Vec<Product> = layers.iter().map(product).collect();
        match self.shape.matmul {
            Matmul::Rust => products.chunks(MAX_PRODUCTS).try_for_each(|some| self.rust(lane, some)),
            // One behind the other: the branches' lanes are the main heads'.
            Matmul::CublasLt => products.iter().try_for_each(|product| self.exec.product(lane, product)),
        }
    }

    fn forward_product(&self, layer: Layer, rows: usize, x: View, y: View, epilogue: Epilogue) -> Product {
        Product {
            label: layer.label,
            form: Form::Nt,
            m: rows,
            n: layer.outputs,
            k: layer.inputs,
            a: x.data,
            lda: x.stride,
            b: self.parameters.slice(layer.weight, layer.outputs * layer.inputs),
            ldb: layer.inputs,
            c: y.data,
            ldc: y.stride,
            epilogue,
            precision: self.shape.precision,
        }
    }

    /// Independent products: as few launches as take them, or one lane each.
    fn group(&mut self, lane: Lane, products: &[Product]) -> Result<(), ExecError> {
        match self.shape.matmul {
            Matmul::Rust => products.chunks(MAX_PRODUCTS).try_for_each(|some| self.rust(lane, some)),
            Matmul::CublasLt => {
                for some in products.chunks(MAX_PRODUCTS) {
                    // The first shares the caller's lane; there are eight more.
                    let lanes = some.iter().enumerate().skip(1);
                    for (i, product) in lanes.clone() {
                        self.exec.after(Lane::branch(i - 1), lane)?;
                        self.exec.product(Lane::branch(i - 1), product)?;
                    }
                    self.exec.product(lane, &some[0])?;
                    for (i, _) in lanes {
                        self.exec.after(lane, Lane::branch(i - 1))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// One launch of the Rust kernels, on copies in bf16 where all operands have one; results that have one are then written there.
    fn rust(&mut self, lane: Lane, products: &[Product]) -> Result<(), ExecError> {
        match self.copies.map_or(Ok(None), |copies| copies.group(products))? {
            Some(stored) => gemm::stored::group(self.exec, lane, &stored),
            None => gemm::group(self.exec, lane, products),
        }
    }

    /// From d logits to d (hidden's argument), for each term: one product per head into its slice of the hidden row,
    /// through the activation.
    pub fn backward_outputs(
        &mut self,
        lane: Lane,
        a: &Activations,
        terms: &[&TermBuffers],
    ) -> Result<(), ExecError> {
        let (shape, rows) = (self.shape, self.shape.batch);
        let hidden = View::new(a.hidden, shape.hidden);
        let mut products = Vec::new();
        for term in terms {
            let (d_logits, d_hidden) =
                (View::new(term.d_logits, shape.logits), View::new(term.d_hidden, shape.hidden));
            for o in &shape.outputs {
                let h = (!shape.glu()).then(|| hidden.column(o.hidden));
                let (d, d_h) = (d_logits.column(o.column), d_hidden.column(o.hidden));
                products.push(self.backward_product(o.layer, rows, d, h, d_h));
            }
        }
        self.group(lane, &products)?;
        for term in terms {
            let copy = self.copies.and_then(|copies| copies.of(term.d_pre));
            macro_rules! gated {
                ($kernel:ident, $d_pre:expr) => {
                    self.exec.launch(
                        lane,
                        &$kernel {
                            rows: rows as u32,
                            value_width: shape.model.value_hidden as u32,
                            branch_width: shape.model.branch_hidden as u32,
                            branches: shape.branches as u32,
                            d_hidden: term.d_hidden.into(),
                            pre: a.pre.slice(0, rows * shape.pre).into(),
                            d_pre: $d_pre.into(),
                        },
                    )?
                };
            }
            match (shape.glu(), copy) {
                (true, Some(copy)) => gated!(GluBackwardHalves, copy),
                (true, None) => gated!(GluBackward, term.d_pre),
                (false, _) => {
                    let d_hidden = View::new(term.d_hidden, shape.hidden);
                    self.activation_backward(lane, rows, shape.hidden, hidden, d_hidden)?;
                    if let Some(copies) = self.copies {
                        copies.refresh(self.exec, lane, term.d_pre, rows * shape.pre)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Self::backward`] of the terms' first head layers, (dY, d (h2's argument)) each, and of the first one `bare`, dY W
    /// without the activation's derivative.
    pub fn backward_heads(
        &mut self,
        lane: Lane,
        rows: usize,
        h2: View,
        terms: &[(View, View)],
        bare: Option<View>,
    ) -> Result<(), ExecError> {
        let layer = self.shape.heads1;
        let mut layers: Vec<_> = terms.iter().map(|&(d_y, d_x)| (layer, d_y, Some(h2), d_x)).collect();
        let (first, bare) = match (terms.first(), bare) {
            (Some(&first), Some(bare)) => (first, bare),
            _ => return self.backward(lane, rows, &layers),
        };
        if let Some(copies) = self.copies {
            // One product gives both: in f32 without the derivative, in bf16 with it.
            let products: Vec<Product> = layers
                .iter()
                .map(|&(layer, d_y, x, d_x)| self.backward_product(layer, rows, d_y, x, d_x))
                .collect();
            if let (Some(mut stored), Some(copy)) = (copies.group(&products)?, copies.of(first.1.data)) {
                (stored[0].product.c, stored[0].product.ldc) = (bare.data, bare.stride);
                stored[0].result = Destination::BareAndHalves(copy);
                return gemm::stored::group(self.exec, lane, &stored);
            }
        }
        layers.push((layer, first.0, None, bare));
        self.backward(lane, rows, &layers)
    }

    /// dX = (dY W) * lrelu'(x) of independent layers, each (layer, dY, x, dX), x the stored output of the layer below;
    /// without x the plain dY W.
    pub fn backward(
        &mut self,
        lane: Lane,
        rows: usize,
        layers: &[(Layer, View, Option<View>, View)],
    ) -> Result<(), ExecError> {
        let products: Vec<Product> = layers
            .iter()
            .map(|&(layer, d_y, x, d_x)| self.backward_product(layer, rows, d_y, x, d_x))
            .collect();
        match self.shape.matmul {
            Matmul::Rust => self.rust(lane, &products)?,
            Matmul::CublasLt => {
                for product in &products {
                    self.exec.product(lane, product)?;
                }
            }
        }
        for &(layer, _, x, d_x) in layers {
            if let Some(x) = x {
                self.activation_backward(lane, rows, layer.inputs, x, d_x)?;
            }
        }
        Ok(())
    }

    fn backward_product(&self, layer: Layer, rows: usize, d_y: View, x: Option<View>, d_x: View) -> Product {
        let epilogue = match (self.shape.matmul, x) {
            (Matmul::Rust, Some(x)) => Epilogue::LreluBackward(x.data, self.shape.model.leaky_slope),
            _ => Epilogue::None,
        };
        Product {
            label: layer.label,
            form: Form::Nn,
            m: rows,
            n: layer.inputs,
            k: layer.outputs,
            a: d_y.data,
            lda: d_y.stride,
            b: self.parameters.slice(layer.weight, layer.outputs * layer.inputs),
            ldb: layer.inputs,
            c: d_x.data,
            ldc: d_x.stride,
            epilogue,
            precision: self.shape.precision,
        }
    }

    /// The derivative of the activation as a launch of its own, where the product could not take it.
    pub fn activation_backward(
        &mut self,
        lane: Lane,
        rows: usize,
        cols: usize,
        h: View,
        d: View,
    ) -> Result<(), ExecError> {
        if self.shape.matmul == Matmul::Rust {
            return Ok(());
        }
        self.exec.launch(
            lane,
            &LreluBackward {
                rows: rows as u32,
                cols: cols as u32,
                stride: d.stride as u32,
                slope: self.shape.model.leaky_slope,
                h: h.data.into(),
                d: d.data.into(),
            },
        )
    }

    /// Weight and bias gradients of some layers, each (layer, dY, X), into partial gradients at the layers' places.
    pub fn weight_gradients(
        &mut self,
        lane: Lane,
        rows: usize,
        planes: Planes,
        layers: &[(Layer, View, View)],
    ) -> Result<(), ExecError> {
        let shape = self.shape;
        match shape.matmul {
            Matmul::Rust => self.rust_weight_gradients(lane, rows, planes, layers),
            Matmul::CublasLt => {
                for &(layer, d_y, x) in layers {
                    let weight = layer.weight - planes.first;
                    let product = Product {
                        label: layer.label,
                        form: Form::Tn,
                        m: layer.outputs,
                        n: layer.inputs,
                        k: rows,
                        a: d_y.data,
                        lda: d_y.stride,
                        b: x.data,
                        ldb: x.stride,
                        c: planes.data.slice(weight, layer.outputs * layer.inputs),
                        ldc: layer.inputs,
                        epilogue: Epilogue::None,
                        precision: shape.precision,
                    };
                    self.exec.product(lane, &product)?;
                    self.exec.launch(
                        lane,
                        &BiasGradient {
                            rows: rows as u32,
                            cols: layer.outputs as u32,
                            stride: d_y.stride as u32,
                            d: d_y.data.into(),
                            bias_gradient: planes.data.slice(layer.bias - planes.first, layer.outputs).into(),
                        },
                    )?;
                }
                Ok(())
            }
        }
    }

    /// The same on the Rust kernels, whatever computes the other products: for shapes that cuBLASLt is not made for.
    pub fn rust_weight_gradients(
        &mut self,
        lane: Lane,
        rows: usize,
        planes: Planes,
        layers: &[(Layer, View, View)],
    ) -> Result<(), ExecError> {
        let shape = self.shape;
        let gradients: Vec<gemm::WeightGradient> = layers
            .iter()
            .map(|&(layer, d_y, x)| gemm::WeightGradient {
                label: layer.label,
                rows,
                outputs: layer.outputs,
                inputs: layer.inputs,
                d_y: d_y.data,
                ldy: d_y.stride,
                x: x.data,
                ldx: x.stride,
                weight: layer.weight - planes.first,
                bias: layer.bias - planes.first,
                precision: shape.precision,
            })
            .collect();
        for some in gradients.chunks(MAX_PRODUCTS) {
            let (parts, splits, plane) = (planes.data, shape.splits, planes.len);
            match self.copies.map_or(Ok(None), |copies| copies.gradients(some))? {
                Some(stored) => {
                    gemm::stored::weight_gradients(self.exec, lane, &stored, parts, splits, plane)?
                }
                None => gemm::weight_gradients(self.exec, lane, some, parts, splits, plane)?,
            }
        }
        Ok(())
    }
}
