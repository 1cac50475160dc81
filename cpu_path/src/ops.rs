//! Tensor operations that candle lacks or composes too slowly: bias with LeakyReLU, mean over actions, a stable
//! log-softmax.

use std::marker::PhantomData;

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
pub(crate) fn contiguous<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&T::cpu_storage_as_slice(storage)?[start..end]),
        None => bail!("expected a contiguous tensor, got strides {:?}", layout.stride()),
    }
}

/// y[r, c] = lrelu(x[r, c] + bias[c]), x [rows, columns]: u for u > 0, slope * u otherwise; a slope of 1 is the
/// identity. The derivative at u = 0 is the slope, as in PyTorch. NaN stays NaN.
///
/// A single operation because candle's derivative of a broadcast sum divides twice per element, and its derivative
/// of `maximum` at a tie is the mean of both sides, which is neither PyTorch's nor the kernels'.
pub fn bias_leaky_relu<T: Real>(x: &Tensor, bias: &Tensor, slope: f64) -> Result<Tensor> {
    x.contiguous()?.apply_op2(bias, BiasLeakyRelu::<T> { slope: T::from_f64(slope) })
}

struct BiasLeakyRelu<T> {
    slope: T,
}

impl<T: Real> CustomOp2 for BiasLeakyRelu<T> {
    fn name(&self) -> &'static str {
        "bias_leaky_relu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        b: &CpuStorage,
        lb: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, columns) = lx.shape().dims2()?;
        let (x, bias) = (contiguous::<T>(x, lx)?, contiguous::<T>(b, lb)?);
        if bias.len() != columns {
            bail!("{}: {columns} columns and {} biases", self.name(), bias.len());
        }
        let mut y = Vec::with_capacity(x.len());
        for row in x.chunks_exact(columns) {
            y.extend(row.iter().zip(bias).map(|(&x, &b)| leaky_relu(x + b, self.slope)));
        }
        Ok((T::to_cpu_storage_owned(y), lx.shape().clone()))
    }

    /// du = dy for y > 0, slope * dy otherwise (y > 0 exactly where u > 0); dx = du, dbias its sum over the rows.
    fn bwd(
        &self,
        _x: &Tensor,
        bias: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let backward = LeakyReluBackward { slope: self.slope };
        let dx = y.apply_op2_no_bwd(&dy.contiguous()?, &backward)?;
        let dbias = dx.apply_op1_no_bwd(&SumRows::<T>(PhantomData))?.reshape(bias.shape())?;
        Ok((Some(dx), Some(dbias)))
    }
}

fn leaky_relu<T: Real>(u: T, slope: T) -> T {
    if u > T::default() { u } else { slope * u }
}

struct LeakyReluBackward<T> {
    slope: T,
}

impl<T: Real> CustomOp2 for LeakyReluBackward<T> {
    fn name(&self) -> &'static str {
        "leaky_relu_backward"
    }

    fn cpu_fwd(
        &self,
        y: &CpuStorage,
        ly: &Layout,
        dy: &CpuStorage,
        ldy: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (y, dy) = (contiguous::<T>(y, ly)?, contiguous::<T>(dy, ldy)?);
        let zero = T::default();
        let dx = y.iter().zip(dy).map(|(&y, &dy)| if y > zero { dy } else { self.slope * dy }).collect();
        Ok((T::to_cpu_storage_owned(dx), ly.shape().clone()))
    }
}

/// Sum over the rows of [rows, columns], in order.
struct SumRows<T>(PhantomData<T>);

impl<T: Real> CustomOp1 for SumRows<T> {
    fn name(&self) -> &'static str {
        "sum_rows"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (_, columns) = layout.shape().dims2()?;
        let mut sum = vec![T::default(); columns];
        for row in contiguous::<T>(x, layout)?.chunks_exact(columns) {
            sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x);
        }
        Ok((T::to_cpu_storage_owned(sum), Shape::from(columns)))
    }
}

/// Mean over the actions of [batch, actions, atoms], giving [batch, atoms]: the derivative hands every action the
/// same share. candle's own mean over a middle axis divides twice per element.
pub fn action_mean<T: Real>(advantage: &Tensor) -> Result<Tensor> {
    advantage.contiguous()?.apply_op1(ActionMean::<T>(PhantomData))
}

struct ActionMean<T>(PhantomData<T>);

impl<T: Real> CustomOp1 for ActionMean<T> {
    fn name(&self) -> &'static str {
        "action_mean"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (batch, actions, atoms) = layout.shape().dims3()?;
        let mut mean = vec![T::default(); batch * atoms];
        let samples = contiguous::<T>(x, layout)?.chunks_exact(actions * atoms);
        for (mean, sample) in mean.chunks_exact_mut(atoms).zip(samples) {
            mean_of_rows(sample, mean);
        }
        Ok((T::to_cpu_storage_owned(mean), Shape::from((batch, atoms))))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (_, actions, _) = arg.dims3()?;
        Ok(Some((grad / actions as f64)?.unsqueeze(1)?.broadcast_as(arg.shape())?))
    }
}

/// Mean of the rows of a [rows, mean.len()] matrix, summed in order.
pub(crate) fn mean_of_rows<T: Real>(rows: &[T], mean: &mut [T]) {
    let columns = mean.len();
    mean.fill(T::default());
    for row in rows.chunks_exact(columns) {
        mean.iter_mut().zip(row).for_each(|(mean, &x)| *mean += x);
    }
    let count = T::from_f64((rows.len() / columns) as f64);
    mean.iter_mut().for_each(|mean| *mean /= count);
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

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn bias_and_activation_with_their_derivatives_at_both_sides_and_at_zero() {
        let x = Var::new(&[[-2.5_f64, 1.0], [-0.5, 2.0], [f64::NAN, -1.0]], &Device::Cpu).unwrap();
        let bias = Var::new(&[0.5_f64, -1.0], &Device::Cpu).unwrap();
        let y = bias_leaky_relu::<f64>(&x, &bias, 0.01).unwrap();
        let values: Vec<f64> = to_vec(&y).unwrap();
        assert!(values[4].is_nan());
        assert_eq!([&values[..4], &values[5..]].concat(), [-0.02, 0.0, 0.0, 1.0, -0.02]);
        let weights = Tensor::new(&[[5.0_f64, 7.0], [11.0, 13.0], [0.0, 17.0]], &Device::Cpu).unwrap();
        let grads = (y * weights).unwrap().sum_all().unwrap().backward().unwrap();
        let dx: Vec<f64> = to_vec(grads.get(&x).unwrap()).unwrap();
        assert_eq!(dx, [0.05, 0.07, 0.11, 13.0, 0.0, 0.17]);
        let dbias: Vec<f64> = to_vec(grads.get(&bias).unwrap()).unwrap();
        assert_eq!(dbias, [0.05 + 0.11 + 0.0, 0.07 + 13.0 + 0.17]);
    }

    #[test]
    fn a_wrong_number_of_biases_is_an_error() {
        let x = Tensor::new(&[[1.0_f64, 2.0]], &Device::Cpu).unwrap();
        let bias = Tensor::new(&[1.0_f64], &Device::Cpu).unwrap();
        assert!(
            bias_leaky_relu::<f64>(&x, &bias, 1.0)
                .unwrap_err()
                .to_string()
                .contains("2 columns and 1 biases")
        );
    }

    #[test]
    fn action_mean_and_its_derivative() {
        let x = Var::new(&[[[1.0_f64, 2.0], [3.0, 6.0]], [[0.0, 1.0], [0.0, 2.0]]], &Device::Cpu).unwrap();
        let mean = action_mean::<f64>(&x).unwrap();
        assert_eq!(to_vec::<f64>(&mean).unwrap(), [2.0, 4.0, 0.0, 1.5]);
        let weights = Tensor::new(&[[10.0_f64, 20.0], [30.0, 40.0]], &Device::Cpu).unwrap();
        let grads = (mean * weights).unwrap().sum_all().unwrap().backward().unwrap();
        let dx: Vec<f64> = to_vec(grads.get(&x).unwrap()).unwrap();
        assert_eq!(dx, [5.0, 10.0, 5.0, 10.0, 15.0, 20.0, 15.0, 20.0]);
    }

    #[test]
    fn copies_follow_the_logical_order_of_a_transposed_tensor() {
        let t = Tensor::new(&[[1.0_f32, 2.0, 3.0], [4.0, 5.0, 6.0]], &Device::Cpu).unwrap().t().unwrap();
        let mut out = [0.0_f32; 6];
        copy_to(&t, &mut out).unwrap();
        assert_eq!(out, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
