//! Forward and backward passes as sequences of products and activations, for both backends of products.
//!
//! The Rust kernels fuse bias, LeakyReLU and its derivative into the product and take all heads in one launch. With
//! cuBLASLt each head's product runs on its own lane, forked from and joined to the caller's, and what its epilogues
//! lack follows as an element-wise launch.

use cuda_std::Buf;
use gpu::kernels::bias_lrelu::{BiasGradient, BiasLrelu, LreluBackward};

use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Form, Lane, Product};
use crate::gemm;
use crate::step::buffers::Activations;
use crate::step::shape::{Layer, Matmul, StepShape};

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

/// Issues one network's layers on an executor.
pub struct Network<'a, E: Exec> {
    /// Where to.
    pub exec: &'a mut E,
    /// Shapes.
    pub shape: &'a StepShape,
    /// Flat parameters.
    pub parameters: Buf<f32>,
}

impl<E: Exec> Network<'_, E> {
    /// Heads' outputs for `a.rows` rows of `x`, all activations kept.
    pub fn forward(&mut self, lane: Lane, x: View, a: &Activations) -> Result<(), ExecError> {
        let shape = self.shape;
        let (h1, h2) = (View::new(a.h1, shape.model.trunk1), View::new(a.h2, shape.model.trunk2));
        let hidden = View::new(a.hidden, shape.hidden);
        self.activated(lane, shape.trunk1, a.rows, x, h1)?;
        self.activated(lane, shape.trunk2, a.rows, h1, h2)?;
        self.activated(lane, shape.heads1, a.rows, h2, hidden)?;
        let logits = View::new(a.logits, shape.logits);
        let products: Vec<Product> = shape
            .outputs
            .iter()
            .map(|o| {
                let bias = self.parameters.slice(o.layer.bias, o.layer.outputs);
                let epilogue = Epilogue::Bias(bias);
                self.forward_product(
                    o.layer,
                    a.rows,
                    hidden.column(o.hidden),
                    logits.column(o.column),
                    epilogue,
                )
            })
            .collect();
        self.group(lane, &products)
    }

    /// y = lrelu(x W^T + b).
    fn activated(
        &mut self,
        lane: Lane,
        layer: Layer,
        rows: usize,
        x: View,
        y: View,
    ) -> Result<(), ExecError> {
        let bias = self.parameters.slice(layer.bias, layer.outputs);
        let slope = self.shape.model.leaky_slope;
        match self.shape.matmul {
            Matmul::Rust => {
                let epilogue = Epilogue::BiasLrelu(bias, slope);
                let product = self.forward_product(layer, rows, x, y, epilogue);
                gemm::group(self.exec, lane, &[product])
            }
            Matmul::CublasLt if layer.outputs.is_multiple_of(4) => {
                let product = self.forward_product(layer, rows, x, y, Epilogue::None);
                self.exec.product(lane, &product)?;
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
                )
            }
            Matmul::CublasLt => Err(ExecError::Product {
                label: layer.label,
                problem: format!("width {} is not a multiple of 4", layer.outputs),
            }),
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

    /// Independent products: one launch, or one lane each.
    fn group(&mut self, lane: Lane, products: &[Product]) -> Result<(), ExecError> {
        match self.shape.matmul {
            Matmul::Rust => gemm::group(self.exec, lane, products),
            Matmul::CublasLt => {
                // Branch 0 is the widest by convention of the layouts; the value head shares the caller's lane.
                let lanes = products.iter().enumerate().skip(1);
                for (i, product) in lanes.clone() {
                    self.exec.after(Lane::branch(i - 1), lane)?;
                    self.exec.product(Lane::branch(i - 1), product)?;
                }
                self.exec.product(lane, &products[0])?;
                for (i, _) in lanes {
                    self.exec.after(lane, Lane::branch(i - 1))?;
                }
                Ok(())
            }
        }
    }

    /// d hidden from d logits: one product per head into its slice of the hidden row, through the activation.
    pub fn backward_outputs(
        &mut self,
        lane: Lane,
        rows: usize,
        d_logits: View,
        hidden: View,
        d_hidden: View,
    ) -> Result<(), ExecError> {
        let shape = self.shape;
        let products: Vec<Product> = shape
            .outputs
            .iter()
            .map(|o| {
                let (d, h) = (d_logits.column(o.column), hidden.column(o.hidden));
                self.backward_product(o.layer, rows, d, h, d_hidden.column(o.hidden))
            })
            .collect();
        self.group(lane, &products)?;
        self.activation_backward(lane, rows, shape.hidden, hidden, d_hidden)
    }

    /// d x's argument from d y: dX = (dY W) * lrelu'(x), x the stored output of the layer below.
    pub fn backward(
        &mut self,
        lane: Lane,
        layer: Layer,
        rows: usize,
        d_y: View,
        x: View,
        d_x: View,
    ) -> Result<(), ExecError> {
        let product = self.backward_product(layer, rows, d_y, x, d_x);
        match self.shape.matmul {
            Matmul::Rust => gemm::group(self.exec, lane, &[product])?,
            Matmul::CublasLt => self.exec.product(lane, &product)?,
        }
        self.activation_backward(lane, rows, layer.inputs, x, d_x)
    }

    fn backward_product(&self, layer: Layer, rows: usize, d_y: View, x: View, d_x: View) -> Product {
        let epilogue = match self.shape.matmul {
            Matmul::Rust => Epilogue::LreluBackward(x.data, self.shape.model.leaky_slope),
            Matmul::CublasLt => Epilogue::None,
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
    fn activation_backward(
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

    /// Weight and bias gradients of some layers, each (layer, dY, X), into the partial gradients at the layer's place.
    pub fn weight_gradients(
        &mut self,
        lane: Lane,
        rows: usize,
        parts: Buf<f32>,
        layers: &[(Layer, View, View)],
    ) -> Result<(), ExecError> {
        let shape = self.shape;
        match shape.matmul {
            Matmul::Rust => {
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
                        weight: layer.weight,
                        bias: layer.bias,
                        precision: shape.precision,
                    })
                    .collect();
                gemm::weight_gradients(self.exec, lane, &gradients, parts, shape.splits, shape.layout.len)
            }
            Matmul::CublasLt => {
                for &(layer, d_y, x) in layers {
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
                        c: parts.slice(layer.weight, layer.outputs * layer.inputs),
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
                            bias_gradient: parts.slice(layer.bias, layer.outputs).into(),
                        },
                    )?;
                }
                Ok(())
            }
        }
    }
}
