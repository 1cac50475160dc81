//! All networks of a learner: one parameter group each, and the target's copy.

use settings::{Flat, Group};

use crate::error::CpuError;
use crate::group::{ParameterGroup, Weights, check_len};
use crate::hyper::Hyper;
use crate::optimizer::{Adam, ema};
use crate::real::Real;

/// Online groups in the order of the flat layout, and the target.
#[derive(Debug)]
pub struct Networks<T> {
    flat: Flat,
    groups: Vec<ParameterGroup<T>>,
    online: Weights,
    target: Vec<T>,
    target_weights: Weights,
}

impl<T: Real> Networks<T> {
    /// Networks with zero moments; `online` fills the flat layout, `target` its beginning up to the last group that
    /// has a target copy.
    ///
    /// # Errors
    /// A vector of another length.
    pub fn new(flat: Flat, online: &[T], target: Vec<T>) -> Result<Self, CpuError> {
        check_len("flat parameters", online.len(), flat.len)?;
        let group = |s: &settings::Segment| {
            ParameterGroup::new(s.layout.clone(), online[s.offset..s.offset + s.len].to_vec())
        };
        let groups = flat.segments.iter().map(group).collect::<Result<Vec<_>, CpuError>>()?;
        let online = Weights::union(groups.iter().map(ParameterGroup::weights));
        let target_weights = target_weights(&flat, &target)?;
        Ok(Self { flat, groups, online, target, target_weights })
    }

    /// Where every tensor lies.
    pub fn flat(&self) -> &Flat {
        &self.flat
    }

    /// The online parameters of all networks as tensors that autograd differentiates with respect to.
    pub fn online(&self) -> &Weights {
        &self.online
    }

    /// The target's parameters as constants.
    pub fn target(&self) -> &Weights {
        &self.target_weights
    }

    /// The target's parameters, flat.
    pub fn target_values(&self) -> &[T] {
        &self.target
    }

    /// The main network's group, which always exists.
    pub fn main(&self) -> &ParameterGroup<T> {
        &self.groups[0]
    }

    /// The group of that name.
    ///
    /// # Errors
    /// [`CpuError::NoGradient`] naming the group if these networks do not have it.
    pub fn group(&self, group: Group) -> Result<&ParameterGroup<T>, CpuError> {
        let found = self.flat.segments.iter().zip(&self.groups).find(|(s, _)| s.group == group);
        found.map(|(_, g)| g).ok_or_else(|| CpuError::NoGradient { tensor: group.name().into() })
    }

    /// Changes a main-network tensor's elements in place.
    pub fn edit_main(&mut self, tensor: &str, change: impl FnOnce(&mut [T])) -> Result<(), CpuError> {
        self.groups[0].edit(tensor, change)?;
        self.online = Weights::union(self.groups.iter().map(ParameterGroup::weights));
        Ok(())
    }

    /// Changes the main network's parameters and both moments in place, each in its flat layout.
    pub fn edit_main_all(&mut self, change: impl FnMut(&mut [T])) -> Result<(), CpuError> {
        self.groups[0].edit_all(change)?;
        self.online = Weights::union(self.groups.iter().map(ParameterGroup::weights));
        Ok(())
    }

    /// One Adam step of every group with its gradient and scale, in the order of the flat layout, then the moving
    /// average of the target; `t` counts from 1.
    pub fn update(&mut self, hyper: &Hyper, t: u64, steps: &[(&[T], f64)]) -> Result<(), CpuError> {
        check_len("gradients of the groups", steps.len(), self.groups.len())?;
        for (group, (gradient, scale)) in self.groups.iter_mut().zip(steps) {
            group.update(hyper, t, gradient, *scale)?;
        }
        self.online = Weights::union(self.groups.iter().map(ParameterGroup::weights));
        for (segment, group) in self.flat.segments.iter().zip(&self.groups) {
            if segment.group.has_target() {
                ema(&mut self.target[segment.offset..][..segment.len], group.values(), hyper.tau);
            }
        }
        self.target_weights = target_weights(&self.flat, &self.target)?;
        Ok(())
    }

    /// One of the groups' vectors as a flat vector: parameters or a moment.
    pub fn gather(&self, vector: impl Fn(&ParameterGroup<T>) -> &[T]) -> Vec<T> {
        let mut flat = vec![T::default(); self.flat.len];
        for (segment, group) in self.flat.segments.iter().zip(&self.groups) {
            flat[segment.offset..][..segment.len].copy_from_slice(vector(group));
        }
        flat
    }

    /// Replaces everything, from flat vectors whose lengths were checked.
    pub fn restore(&mut self, online: &[T], target: Vec<T>, m: &[T], v: &[T]) -> Result<(), CpuError> {
        let target_weights = target_weights(&self.flat, &target)?;
        for (s, group) in self.flat.segments.iter().zip(&mut self.groups) {
            let part = |x: &[T]| x[s.offset..s.offset + s.len].to_vec();
            group.restore(part(online), Adam { m: part(m), v: part(v) })?;
        }
        self.online = Weights::union(self.groups.iter().map(ParameterGroup::weights));
        (self.target, self.target_weights) = (target, target_weights);
        Ok(())
    }
}

fn target_weights<T: Real>(flat: &Flat, target: &[T]) -> Result<Weights, CpuError> {
    check_len("flat target parameters", target.len(), flat.target_len())?;
    let with_target = flat.segments.iter().filter(|s| s.group.has_target());
    let networks = with_target.map(|s| Weights::constant(&s.layout, &target[s.offset..][..s.len]));
    Ok(Weights::union(&networks.collect::<Result<Vec<_>, CpuError>>()?))
}
