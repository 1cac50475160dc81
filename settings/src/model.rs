//! Network shapes (SPEC section 1) and the flat parameter layout.

use serde::{Deserialize, Serialize};

/// Most branches a model may have; kernels pass branch sizes by value.
pub const MAX_BRANCHES: usize = 8;
/// Most actions in one branch.
pub const MAX_ACTIONS: usize = 64;
/// Most atoms of the value distribution (four per lane of a warp).
pub const MAX_ATOMS: usize = 128;

/// Shape of the C51 network: trunk, value head, one head per action branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelShape {
    /// S: state features. Filled from the environment when 0.
    pub state: usize,
    /// H1: width of the first trunk layer.
    pub trunk1: usize,
    /// H2: width of the second trunk layer.
    pub trunk2: usize,
    /// VH: hidden width of the value head.
    pub value_hidden: usize,
    /// AH: hidden width of each branch head.
    pub branch_hidden: usize,
    /// n_d: number of actions of each branch.
    pub branches: Vec<usize>,
    /// K: atoms of the value distribution.
    pub atoms: usize,
    /// Lower end of the support z.
    pub v_min: f32,
    /// Upper end of the support z.
    pub v_max: f32,
    /// Negative slope of the LeakyReLU.
    pub leaky_slope: f32,
}

impl Default for ModelShape {
    fn default() -> Self {
        Self {
            state: 0,
            trunk1: 256,
            trunk2: 256,
            value_hidden: 128,
            branch_hidden: 128,
            branches: vec![9, 3, 3],
            atoms: 51,
            v_min: -10.0,
            v_max: 10.0,
            leaky_slope: 0.01,
        }
    }
}

impl ModelShape {
    /// Distance of two atoms, dz = (v_max - v_min) / (K - 1).
    pub fn dz(&self) -> f32 {
        (self.v_max - self.v_min) / (self.atoms as f32 - 1.0)
    }

    /// sum over branches of n_d.
    pub fn actions(&self) -> usize {
        self.branches.iter().sum()
    }

    /// Number of composite actions, the product of n_d.
    pub fn composite_actions(&self) -> usize {
        self.branches.iter().product()
    }

    /// Width of all heads' hidden layers side by side: VH + D * AH.
    pub fn heads_hidden(&self) -> usize {
        self.value_hidden + self.branches.len() * self.branch_hidden
    }

    /// Says what is wrong with the shape, naming the key and its value.
    pub fn check(&self) -> Result<(), String> {
        let positive = [
            ("model.state", self.state),
            ("model.trunk1", self.trunk1),
            ("model.trunk2", self.trunk2),
            ("model.value_hidden", self.value_hidden),
            ("model.branch_hidden", self.branch_hidden),
        ];
        for (key, value) in positive {
            if value == 0 || value > 1 << 14 {
                return Err(format!("{key} = {value}: expected 1 to {}", 1 << 14));
            }
        }
        if self.branches.is_empty() || self.branches.len() > MAX_BRANCHES {
            return Err(format!(
                "model.branches has {} entries: expected 1 to {MAX_BRANCHES}",
                self.branches.len()
            ));
        }
        for (d, &n) in self.branches.iter().enumerate() {
            if !(2..=MAX_ACTIONS).contains(&n) {
                return Err(format!("model.branches[{d}] = {n}: expected 2 to {MAX_ACTIONS} actions"));
            }
        }
        if !(2..=MAX_ATOMS).contains(&self.atoms) {
            return Err(format!("model.atoms = {}: expected 2 to {MAX_ATOMS}", self.atoms));
        }
        if !(self.v_min.is_finite() && self.v_max.is_finite() && self.v_min < self.v_max) {
            return Err(format!(
                "model.v_min = {}, model.v_max = {}: expected finite v_min < v_max",
                self.v_min, self.v_max
            ));
        }
        if !(self.leaky_slope.is_finite() && (0.0..1.0).contains(&self.leaky_slope)) {
            return Err(format!("model.leaky_slope = {}: expected 0 <= slope < 1", self.leaky_slope));
        }
        Ok(())
    }

    /// Splits a composite action into one index per branch: mixed radix, branch 0 most significant.
    pub fn decode(&self, action: usize) -> Vec<usize> {
        let mut rest = action;
        let mut out = vec![0; self.branches.len()];
        for d in (0..self.branches.len()).rev() {
            out[d] = rest % self.branches[d];
            rest /= self.branches[d];
        }
        out
    }

    /// Inverse of [`ModelShape::decode`].
    pub fn encode(&self, branches: &[usize]) -> usize {
        branches.iter().zip(&self.branches).fold(0, |acc, (&b, &n)| acc * n + b)
    }
}

/// One named tensor inside the flat parameter buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// PyTorch-style name, for example `a2.1.weight`.
    pub name: String,
    /// `[out, in]` for weights (y = x W^T + b), `[out]` for biases.
    pub shape: Vec<usize>,
    /// First element in the flat buffer, in floats.
    pub offset: usize,
    /// Columns of a weight, the input width that sets the initial range; for a bias the input width of its layer.
    pub fan_in: usize,
}

impl Tensor {
    /// Number of floats, without padding.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True for a tensor without elements (never the case in a checked shape).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where each main-network tensor lies in the one flat buffer (parameters, gradients, moments, target).
///
/// Order: trunk1, trunk2, the hidden layers of all heads as one block of rows (`heads1`, so that they are
/// one matrix product), then the output layers. An output layer's rows are padded to a multiple of 4, every
/// tensor starts at a multiple of [`Layout::ALIGN`] floats, except inside `heads1`, whose rows follow each
/// other without a gap. Padding is zero, has zero gradient and stays zero under Adam and EMA.
#[derive(Clone, Debug)]
pub struct Layout {
    /// All tensors in buffer order.
    pub tensors: Vec<Tensor>,
    /// Length of the flat buffer in floats, a multiple of [`Layout::ALIGN`].
    pub len: usize,
    /// First weight of the heads' joint hidden layer, shape `[heads_hidden, H2]`.
    pub heads1_weight: usize,
    /// First bias of the heads' joint hidden layer, shape `[heads_hidden]`.
    pub heads1_bias: usize,
}

impl Layout {
    /// Alignment of tensors in floats (256 bytes: what cuBLASLt's widest kernels like).
    pub const ALIGN: usize = 64;

    /// Lays out the main network (trunk and heads) of a checked shape.
    pub fn main(shape: &ModelShape) -> Self {
        let mut tensors = Vec::new();
        let mut at = 0;
        let mut push = |name: String, shape: Vec<usize>, fan_in: usize, physical: usize, align: bool| {
            if align {
                at = usize::next_multiple_of(at, Self::ALIGN);
            }
            let offset = at;
            tensors.push(Tensor { name, shape, offset, fan_in });
            at += physical;
            offset
        };
        let (s, h1, h2) = (shape.state, shape.trunk1, shape.trunk2);
        push("trunk1.weight".into(), vec![h1, s], s, h1 * s, true);
        push("trunk1.bias".into(), vec![h1], s, h1, true);
        push("trunk2.weight".into(), vec![h2, h1], h1, h2 * h1, true);
        push("trunk2.bias".into(), vec![h2], h1, h2, true);
        let (vh, ah) = (shape.value_hidden, shape.branch_hidden);
        let heads1_weight = push("v1.weight".into(), vec![vh, h2], h2, vh * h2, true);
        for d in 0..shape.branches.len() {
            push(format!("a1.{d}.weight"), vec![ah, h2], h2, ah * h2, false);
        }
        let heads1_bias = push("v1.bias".into(), vec![vh], h2, vh, true);
        for d in 0..shape.branches.len() {
            push(format!("a1.{d}.bias"), vec![ah], h2, ah, false);
        }
        let k = shape.atoms;
        push("v2.weight".into(), vec![k, vh], vh, pad4(k) * vh, true);
        push("v2.bias".into(), vec![k], vh, pad4(k), true);
        for (d, &n) in shape.branches.iter().enumerate() {
            push(format!("a2.{d}.weight"), vec![n * k, ah], ah, pad4(n * k) * ah, true);
            push(format!("a2.{d}.bias"), vec![n * k], ah, pad4(n * k), true);
        }
        let len = at.next_multiple_of(Self::ALIGN);
        Self { tensors, len, heads1_weight, heads1_bias }
    }

    /// Parameters without padding.
    pub fn count(&self) -> usize {
        self.tensors.iter().map(Tensor::len).sum()
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Offset of a tensor that the layout is known to have.
    ///
    /// # Panics
    /// If there is no such tensor: a programming error, names are fixed by [`Layout::main`].
    pub fn offset(&self, name: &str) -> usize {
        self.find(name).unwrap_or_else(|| panic!("no tensor {name} in the layout")).offset
    }
}

/// Next multiple of 4: rows of output layers and logit blocks are padded to it, which keeps 16-byte alignment.
pub fn pad4(n: usize) -> usize {
    n.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_shape_has_the_documented_parameter_count() {
        let shape = ModelShape { state: 80, ..Default::default() };
        assert_eq!(Layout::main(&shape).count(), 323_376);
    }

    #[test]
    fn tensors_do_not_overlap_and_outputs_are_aligned() {
        let shape =
            ModelShape { state: 13, branches: vec![2, 5], atoms: 21, trunk1: 33, ..Default::default() };
        let layout = Layout::main(&shape);
        for pair in layout.tensors.windows(2) {
            assert!(pair[0].offset + pair[0].len() <= pair[1].offset, "{pair:?}");
        }
        assert_eq!(layout.offset("a2.1.weight") % Layout::ALIGN, 0);
        assert_eq!(layout.offset("a1.0.weight"), layout.heads1_weight + 128 * 256);
    }

    #[test]
    fn composite_actions_are_mixed_radix() {
        let shape = ModelShape::default();
        for action in 0..shape.composite_actions() {
            let b = shape.decode(action);
            assert_eq!(b, vec![action / 9, action % 9 / 3, action % 3]);
            assert_eq!(shape.encode(&b), action);
        }
    }

    #[test]
    fn a_bad_shape_names_key_and_value() {
        let shape = ModelShape { state: 4, branches: vec![9, 1], ..Default::default() };
        assert_eq!(shape.check().unwrap_err(), "model.branches[1] = 1: expected 2 to 64 actions");
    }
}
