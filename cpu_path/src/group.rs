//! Parameter groups: flat parameters, their tensors for candle, their Adam moments.

use std::collections::BTreeMap;

use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
use settings::Layout;

use crate::error::CpuError;
use crate::hyper::Hyper;
use crate::ops::{bias_leaky_relu, copy_to};
use crate::optimizer::Adam;
use crate::real::Real;

/// Named tensors of a network, ready for a forward pass.
#[derive(Clone, Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Tensor>,
}

impl Weights {
    /// Copies a flat vector into tensors that autograd treats as constants.
    pub fn constant<T: Real>(layout: &Layout, flat: &[T]) -> Result<Self, CpuError> {
        Self::build(layout, flat, |values, shape| Tensor::from_slice(values, shape, &Device::Cpu))
    }

    /// Copies a flat vector into tensors that autograd differentiates with respect to.
    pub fn variable<T: Real>(layout: &Layout, flat: &[T]) -> Result<Self, CpuError> {
        Self::build(layout, flat, |values, shape| {
            Ok(Var::from_slice(values, shape, &Device::Cpu)?.as_tensor().clone())
        })
    }

    fn build<T: Real>(
        layout: &Layout,
        flat: &[T],
        make: impl Fn(&[T], &[usize]) -> candle_core::Result<Tensor>,
    ) -> Result<Self, CpuError> {
        check_len("flat parameters", flat.len(), layout.len)?;
        let mut tensors = BTreeMap::new();
        for t in &layout.tensors {
            tensors.insert(t.name.clone(), make(&flat[t.offset..t.offset + t.len()], &t.shape)?);
        }
        Ok(Self { tensors })
    }

    /// All tensors of several networks, whose names differ; shares memory.
    pub fn union<'a>(networks: impl IntoIterator<Item = &'a Self>) -> Self {
        let tensors = networks.into_iter().flat_map(|w| w.tensors.clone()).collect();
        Self { tensors }
    }

    /// The same values as constants; shares memory.
    pub fn detached(&self) -> Self {
        Self { tensors: self.tensors.iter().map(|(name, t)| (name.clone(), t.detach())).collect() }
    }

    /// The same with other tensors in the places of some.
    pub fn replaced(&self, tensors: impl IntoIterator<Item = (String, Tensor)>) -> Self {
        let mut replaced = self.clone();
        replaced.tensors.extend(tensors);
        replaced
    }

    /// The tensor of that name in the layout.
    pub fn get(&self, name: &str) -> candle_core::Result<&Tensor> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor),
            None => candle_core::bail!("no parameter is called {name}"),
        }
    }

    /// x W^T + b with `layer.weight` [out, in] and `layer.bias` [out]; x is [batch, in].
    pub fn linear<T: Real>(&self, layer: &str, x: &Tensor) -> candle_core::Result<Tensor> {
        self.hidden::<T>(layer, x, 1.0)
    }

    /// lrelu(x W^T + b) with that negative slope.
    pub fn hidden<T: Real>(&self, layer: &str, x: &Tensor, slope: f64) -> candle_core::Result<Tensor> {
        let weight = self.get(&format!("{layer}.weight"))?;
        let bias = self.get(&format!("{layer}.bias"))?;
        bias_leaky_relu::<T>(&x.matmul(&weight.t()?)?, bias, slope)
    }
}

/// Parameters that are clipped by one norm and that one Adam updates: the main network is one group, every further
/// network (SPEC section 3, gradient budgets) one more.
#[derive(Debug)]
pub struct ParameterGroup<T> {
    layout: Layout,
    values: Vec<T>,
    adam: Adam<T>,
    weights: Weights,
}

impl<T: Real> ParameterGroup<T> {
    /// A group with zero moments.
    ///
    /// # Errors
    /// If `values` does not fill the layout.
    pub fn new(layout: Layout, values: Vec<T>) -> Result<Self, CpuError> {
        let weights = Weights::variable(&layout, &values)?;
        let adam = Adam::new(layout.len);
        Ok(Self { layout, values, adam, weights })
    }

    /// Where each tensor lies in the flat vectors.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Flat parameters.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Adam's moments.
    pub fn adam(&self) -> &Adam<T> {
        &self.adam
    }

    /// The parameters as tensors that autograd differentiates with respect to.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Collects this group's gradient in its flat layout; padding is zero.
    ///
    /// # Errors
    /// [`CpuError::NoGradient`] if the differentiated value does not depend on one of the tensors.
    pub fn gradient(&self, grads: &GradStore) -> Result<Vec<T>, CpuError> {
        self.gradient_of(grads, |_| true)
    }

    /// The same for the tensors that `reached` accepts by name; the others' gradient is zero.
    ///
    /// # Errors
    /// [`CpuError::NoGradient`] if the differentiated value does not depend on one of the accepted tensors.
    pub fn gradient_of(&self, grads: &GradStore, reached: impl Fn(&str) -> bool) -> Result<Vec<T>, CpuError> {
        let mut flat = vec![T::default(); self.layout.len];
        for t in self.layout.tensors.iter().filter(|t| reached(&t.name)) {
            let gradient = grads
                .get(self.weights.get(&t.name)?)
                .ok_or_else(|| CpuError::NoGradient { tensor: t.name.clone() })?;
            copy_to(gradient, &mut flat[t.offset..t.offset + t.len()])?;
        }
        Ok(flat)
    }

    /// One Adam step with `scale * gradient`; `t` counts from 1.
    pub fn update(&mut self, hyper: &Hyper, t: u64, gradient: &[T], scale: f64) -> Result<(), CpuError> {
        check_len("flat gradient", gradient.len(), self.layout.len)?;
        self.adam.update(hyper, t, gradient, scale, &mut self.values);
        self.weights = Weights::variable(&self.layout, &self.values)?;
        Ok(())
    }

    /// Changes one tensor's elements in place, row-major; moments stay.
    pub fn edit(&mut self, tensor: &str, change: impl FnOnce(&mut [T])) -> Result<(), CpuError> {
        let Some(t) = self.layout.find(tensor) else {
            return Err(candle_core::Error::Msg(format!("no parameter is called {tensor}")).into());
        };
        change(&mut self.values[t.offset..t.offset + t.len()]);
        self.weights = Weights::variable(&self.layout, &self.values)?;
        Ok(())
    }

    /// Changes parameters and both moments in place, each in the flat layout.
    pub fn edit_all(&mut self, mut change: impl FnMut(&mut [T])) -> Result<(), CpuError> {
        change(&mut self.values);
        change(&mut self.adam.m);
        change(&mut self.adam.v);
        self.weights = Weights::variable(&self.layout, &self.values)?;
        Ok(())
    }

    /// Replaces parameters and moments, all in the flat layout.
    pub fn restore(&mut self, values: Vec<T>, adam: Adam<T>) -> Result<(), CpuError> {
        check_len("flat first moments", adam.m.len(), self.layout.len)?;
        check_len("flat second moments", adam.v.len(), self.layout.len)?;
        self.weights = Weights::variable(&self.layout, &values)?;
        self.values = values;
        self.adam = adam;
        Ok(())
    }
}

/// Compares a length with what the layout or the shape requires.
pub(crate) fn check_len(what: &str, got: usize, expected: usize) -> Result<(), CpuError> {
    if got == expected { Ok(()) } else { Err(CpuError::Length { what: what.to_string(), got, expected }) }
}
