//! Tensor operations that candle lacks or composes too slowly: LeakyReLU and a stable log-softmax.

use candle_core::{CpuStorage, CustomOp1, CustomOp2, D, Layout, Result, Shape, Storage, Tensor, bail};

use crate::real::Real;

/// Copies any tensor to the host in row-major order.
pub(crate) fn to_vec<T: Real>(tensor: &Tensor) -> Result<Vec<T>> {
    tensor.flatten_all()?.to_vec1()
}

/// Copies a tensor into `out` in row-major order, without a vector in between.
pub(crate) fn copy_to<T: Real>(tensor: &Tensor, out: &mut [T]) -> Result<()> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("expected a tensor in host memory") };
    out.copy_from_slice(contiguous::<T>(storage, layout)?);
    Ok(())
}

/// The elements of a contiguous tensor.
fn contiguous<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&T::cpu_storage_as_slice(storage)?[start..end]),
        None => bail!("expected a contiguous tensor, got strides {:?}", layout.stride()),
    }
}

/// y = x for x > 0, slope * x otherwise; the derivative at 0 is the slope, as in PyTorch. NaN stays NaN.
///
/// One pass each way. Composed from `maximum`, `minimum` and `affine` it takes about ten, and candle's derivative
/// of `maximum` at a tie is the mean of both sides, which is neither PyTorch's nor the kernels'.
pub fn leaky_relu<T: Real>(x: &Tensor, slope: f64) -> Result<Tensor> {
    x.contiguous()?.apply_op1(LeakyRelu::<T> { slope: T::from_f64(slope) })
}

struct LeakyRelu<T> {
    slope: T,
}

impl<T: Real> CustomOp1 for LeakyRelu<T> {
    fn name(&self) -> &'static str {
        "leaky_relu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = contiguous::<T>(storage, layout)?;
        let zero = T::default();
        let y = x.iter().map(|&x| if x > zero { x } else { self.slope * x }).collect();
        Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let op = LeakyReluBackward { slope: self.slope };
        Ok(Some(arg.apply_op2_no_bwd(&grad.contiguous()?, &op)?))
    }
}

/// dx = dy for x > 0, slope * dy otherwise.
struct LeakyReluBackward<T> {
    slope: T,
}

impl<T: Real> CustomOp2 for LeakyReluBackward<T> {
    fn name(&self) -> &'static str {
        "leaky_relu_backward"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        dy: &CpuStorage,
        ldy: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, dy) = (contiguous::<T>(x, lx)?, contiguous::<T>(dy, ldy)?);
        let zero = T::default();
        let dx = x.iter().zip(dy).map(|(&x, &dy)| if x > zero { dy } else { self.slope * dy }).collect();
        Ok((T::to_cpu_storage_owned(dx), lx.shape().clone()))
    }
}

/// log softmax over the last axis: x - max - ln sum exp(x - max).
///
/// The maximum is subtracted first, so no exponential overflows, and the logarithm is taken of the sum (at least
/// 1), never of a probability that may have underflowed to 0. The maximum is a constant for the derivative: its
/// contribution cancels exactly.
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = centred.exp()?.sum_keepdim(D::Minus1)?.log()?;
    centred.broadcast_sub(&log_sum)
}

/// softmax over the last axis, with the maximum subtracted.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let weights = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?.exp()?;
    let sum = weights.sum_keepdim(D::Minus1)?;
    weights.broadcast_div(&sum)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn leaky_relu_and_its_derivative_at_both_sides_and_at_zero() {
        let x = Var::new(&[-2.0_f64, 0.0, 3.0, f64::NAN], &Device::Cpu).unwrap();
        let y = leaky_relu::<f64>(&x, 0.01).unwrap();
        let values: Vec<f64> = to_vec(&y).unwrap();
        assert_eq!(values[..3], [-0.02, 0.0, 3.0]);
        assert!(values[3].is_nan());
        let weights = Tensor::new(&[5.0_f64, 7.0, 11.0, 0.0], &Device::Cpu).unwrap();
        let grads = (y * weights).unwrap().sum_all().unwrap().backward().unwrap();
        let dx: Vec<f64> = to_vec(grads.get(&x).unwrap()).unwrap();
        assert_eq!(dx[..3], [0.05, 0.07, 11.0]);
    }

    #[test]
    fn copies_follow_the_logical_order_of_a_transposed_tensor() {
        let t = Tensor::new(&[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap().t().unwrap();
        let mut out = [0.0_f32; 6];
        copy_to(&t, &mut out).unwrap();
        assert_eq!(out, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
