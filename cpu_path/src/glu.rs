//! The gated hidden layer of GLU heads (Dauphin et al. 2017).

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, bail};

use crate::ops::contiguous;
use crate::real::Real;

/// y[r, c] = x[r, c] * sigmoid(x[r, columns + c]) for x [rows, 2 * columns]: the linear half first, the gate half last.
///
/// A single operation because a sigmoid composed of exp and a reciprocal has the derivative 0 * inf = NaN for gates
/// below -88 in f32, where the true one is 0.
pub fn glu<T: Real>(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Glu::<T>(PhantomData))
}

/// 1 / (1 + e^-x) without overflow at either end.
fn sigmoid<T: Real>(x: T) -> T {
    let one = T::from_f64(1.0);
    if x >= T::default() {
        one / (one + (T::default() - x).exp())
    } else {
        let e = x.exp();
        e / (one + e)
    }
}

struct Glu<T>(PhantomData<T>);

impl<T: Real> CustomOp1 for Glu<T> {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        if !width.is_multiple_of(2) {
            bail!("{}: {width} columns cannot be halved", self.name());
        }
        let mut y = Vec::with_capacity(rows * width / 2);
        for row in contiguous::<T>(x, layout)?.chunks_exact(width) {
            let (linear, gate) = row.split_at(width / 2);
            y.extend(linear.iter().zip(gate).map(|(&a, &g)| a * sigmoid(g)));
        }
        Ok((T::to_cpu_storage_owned(y), Shape::from((rows, width / 2))))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(x.apply_op2_no_bwd(&dy.contiguous()?, &GluBackward::<T>(PhantomData))?))
    }
}

struct GluBackward<T>(PhantomData<T>);

impl<T: Real> CustomOp2 for GluBackward<T> {
    fn name(&self) -> &'static str {
        "glu_backward"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        dy: &CpuStorage,
        ldy: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, width) = lx.shape().dims2()?;
        let (x, dy) = (contiguous::<T>(x, lx)?, contiguous::<T>(dy, ldy)?);
        let mut dx = Vec::with_capacity(x.len());
        let one = T::from_f64(1.0);
        for (row, dy) in x.chunks_exact(width).zip(dy.chunks_exact(width / 2)) {
            let (linear, gate) = row.split_at(width / 2);
            dx.extend(gate.iter().zip(dy).map(|(&g, &dy)| dy * sigmoid(g)));
            dx.extend(linear.iter().zip(gate).zip(dy).map(|((&a, &g), &dy)| {
                let s = sigmoid(g);
                dy * a * (s * (one - s))
            }));
        }
        Ok((T::to_cpu_storage_owned(dx), lx.shape().clone()))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::to_vec;

    #[test]
    fn values_and_derivatives_with_gates_far_out() {
        let x = Var::new(&[[2.0_f32, -3.0, 0.0, -200.0], [1.0, 5.0, 200.0, f32::NAN]], &Device::Cpu).unwrap();
        let y = glu::<f32>(&x).unwrap();
        let values: Vec<f32> = to_vec(&y).unwrap();
        assert_eq!(values[..3], [1.0, 0.0, 1.0]);
        assert!(values[3].is_nan());
        let weights = Tensor::new(&[[1.0_f32, 10.0], [100.0, 0.0]], &Device::Cpu).unwrap();
        let grads = (y * weights).unwrap().sum_all().unwrap().backward().unwrap();
        let dx: Vec<f32> = to_vec(grads.get(&x).unwrap()).unwrap();
        // sigmoid(0) = 1/2, its derivative 1/4; at -200 and 200 both are 0 and 1 in f32.
        assert_eq!(dx[..5], [0.5, 0.0, 0.5, 0.0, 100.0]);
        assert_eq!(dx[6], 0.0);
        assert!(dx[5].is_nan() && dx[7].is_nan());
    }

    #[test]
    fn an_odd_width_is_an_error() {
        let x = Tensor::new(&[[1.0_f64, 2.0, 3.0]], &Device::Cpu).unwrap();
        assert!(glu::<f64>(&x).unwrap_err().to_string().contains("3 columns cannot be halved"));
    }
}
