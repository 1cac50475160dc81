//! Network shapes (SPEC section 1) and the flat parameter layout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most branches a model may have; kernels pass branch sizes by value.
pub const MAX_BRANCHES: usize = 8;
/// Widest state and widest layer.
pub const MAX_WIDTH: usize = 1 << 14;
/// Most actions in one branch.
pub const MAX_ACTIONS: usize = 64;
/// Most atoms of the value distribution (four per lane of a warp).
pub const MAX_ATOMS: usize = 128;

/// Largest value that a support may reach: beyond it squared gradients leave single precision.
pub const MAX_VALUE: f32 = 1e6;

/// What the hidden layer of every head is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Head {
    /// lrelu(W x + b).
    #[default]
    Mlp,
    /// (Wa x + ba) * sigmoid(Wg x + bg).
    Glu,
}

/// Shape of the C51 network: trunk, value head, one head per action branch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelShape {
    /// S: state features. Filled from the environment when 0.
    pub state: usize,
    /// W: bars in the window with which a state begins, oldest first. Filled from the environment when 0; stays 0 for
    /// states without a window.
    #[schemars(extend("unit" = "bars"))]
    pub window: usize,
    /// F: features of a bar in the window. Filled from the environment when 0.
    pub bar_features: usize,
    /// H1: width of the first trunk layer.
    pub trunk1: usize,
    /// H2: width of the second trunk layer.
    pub trunk2: usize,
    /// VH: hidden width of the value head.
    pub value_hidden: usize,
    /// AH: hidden width of each branch head.
    pub branch_hidden: usize,
    /// The heads' hidden layer, `mlp` or `glu`.
    pub head: Head,
    /// Whether the heads' linear layers are noisy ([`crate::noisy`]): W = mu + sigma f(e_out) f(e_in)^T.
    pub noisy: bool,
    /// n_d: number of actions of each branch.
    pub branches: Vec<usize>,
    /// K: atoms of the value distribution.
    pub atoms: usize,
    /// Lower end of the support z.
    #[schemars(extend("unit" = "return"))]
    pub v_min: f32,
    /// Upper end of the support z.
    #[schemars(extend("unit" = "return"))]
    pub v_max: f32,
    /// Negative slope of the LeakyReLU.
    pub leaky_slope: f32,
}

impl Default for ModelShape {
    fn default() -> Self {
        Self {
            state: 0,
            window: 0,
            bar_features: 0,
            trunk1: 256,
            trunk2: 256,
            value_hidden: 128,
            branch_hidden: 128,
            head: Head::Mlp,
            noisy: false,
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

    /// Width of all heads' hidden layers before the activation: [`ModelShape::heads_hidden`], twice that for GLU heads,
    /// of which each has its linear half first and its gate half behind it.
    pub fn heads_pre(&self) -> usize {
        self.pre(self.heads_hidden())
    }

    /// Width before the activation of a head's hidden layer that is `hidden` wide.
    pub fn pre(&self, hidden: usize) -> usize {
        match self.head {
            Head::Mlp => hidden,
            Head::Glu => 2 * hidden,
        }
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
            if value == 0 || value > MAX_WIDTH {
                return Err(format!("{key} = {value}: expected 1 to {MAX_WIDTH}"));
            }
        }
        let (window, features) = (self.window, self.bar_features);
        if (window == 0) != (features == 0) {
            return Err(format!(
                "model.window = {window}, model.bar_features = {features}: a state has both or neither"
            ));
        }
        if window.saturating_mul(features) > self.state {
            return Err(format!(
                "model.window = {window}, model.bar_features = {features}, model.state = {}: the window does not fit \
                 into the state",
                self.state
            ));
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
        let (low, high) = (self.v_min, self.v_max);
        if low.abs().max(high.abs()) > MAX_VALUE {
            return Err(format!(
                "model.v_min = {low}, model.v_max = {high}: expected values between -{MAX_VALUE} and {MAX_VALUE}"
            ));
        }
        // Sixteen steps of the coarsest f32 in between: below that, atoms fall together.
        if self.dz() < 16.0 * f32::EPSILON * low.abs().max(high.abs()) {
            return Err(format!(
                "model.v_min = {low}, model.v_max = {high}, model.atoms = {}: the atoms are too close to each other for \
                 single precision",
                self.atoms
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
    /// Columns of a weight, the input width that sets the initial range; for a bias the input width of its layer. 0 for
    /// a tensor that is zero at first.
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

    /// Whether these are the sigma of a noisy layer: constant at first, not drawn.
    pub fn is_sigma(&self) -> bool {
        self.name.ends_with(SIGMA)
    }
}

/// What the name of a noisy layer's sigma has behind that of its mu: `v1.weight_sigma`.
pub const SIGMA: &str = "_sigma";

/// Where each tensor of one network lies in its flat buffer (parameters, gradients, moments, target).
///
/// [`Layout::main`] is the main network's; [`crate::Flat`] has those of all networks. Order in the main network: trunk1, trunk2, the hidden layers of all heads as one block of rows (`heads1`, so that they are
/// one matrix product), then the output layers. An output layer's rows are padded to a multiple of 4, every
/// tensor starts at a multiple of [`Layout::ALIGN`] floats, except inside `heads1`, whose rows follow each
/// other without a gap. With GLU heads a hidden layer has twice as many rows, the linear half before the gate half.
/// Padding is zero, has zero gradient and stays zero under Adam and EMA.
///
/// With noisy heads a second block of the heads' tensors follows, laid out like the first: the sigma of the parameter at
/// i lies at i + `sigma` - `heads1_weight`.
#[derive(Clone, Debug)]
pub struct Layout {
    /// All tensors in buffer order.
    pub tensors: Vec<Tensor>,
    /// Length of the flat buffer in floats, a multiple of [`Layout::ALIGN`].
    pub len: usize,
    /// First weight of the heads' joint hidden layer, shape `[heads_pre, H2]`; 0 in a network without these heads.
    pub heads1_weight: usize,
    /// First bias of the heads' joint hidden layer, shape `[heads_pre]`; 0 in a network without these heads.
    pub heads1_bias: usize,
    /// First sigma of the noisy heads; `len` in a network without noise.
    pub sigma: usize,
}

impl Layout {
    /// Alignment of tensors in floats (256 bytes: what cuBLASLt's widest kernels like).
    pub const ALIGN: usize = 64;

    /// Lays out the main network (trunk and heads) of a checked shape.
    pub fn main(shape: &ModelShape) -> Self {
        let mut b = Builder::default();
        let (s, h1, h2) = (shape.state, shape.trunk1, shape.trunk2);
        b.linear("trunk1", h1, s);
        b.linear("trunk2", h2, h1);
        let (heads1_weight, heads1_bias) = heads(&mut b, shape, "");
        let plain = b.at.next_multiple_of(Self::ALIGN);
        if shape.noisy {
            heads(&mut b, shape, SIGMA);
        }
        Self { heads1_weight, heads1_bias, sigma: plain, ..b.finish() }
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

/// Adds the heads' tensors, `suffix` behind their names; returns the first weight and the first bias of the joint hidden
/// layer.
fn heads(b: &mut Builder, shape: &ModelShape, suffix: &str) -> (usize, usize) {
    let (h2, vh, ah) = (shape.trunk2, shape.value_hidden, shape.branch_hidden);
    let (v1, a1) = (shape.pre(vh), shape.pre(ah));
    let weight = b.push(format!("v1.weight{suffix}"), vec![v1, h2], h2, v1 * h2, true);
    for d in 0..shape.branches.len() {
        b.push(format!("a1.{d}.weight{suffix}"), vec![a1, h2], h2, a1 * h2, false);
    }
    let bias = b.push(format!("v1.bias{suffix}"), vec![v1], h2, v1, true);
    for d in 0..shape.branches.len() {
        b.push(format!("a1.{d}.bias{suffix}"), vec![a1], h2, a1, false);
    }
    let k = shape.atoms;
    b.push(format!("v2.weight{suffix}"), vec![k, vh], vh, pad4(k) * vh, true);
    b.push(format!("v2.bias{suffix}"), vec![k], vh, pad4(k), true);
    for (d, &n) in shape.branches.iter().enumerate() {
        b.push(format!("a2.{d}.weight{suffix}"), vec![n * k, ah], ah, pad4(n * k) * ah, true);
        b.push(format!("a2.{d}.bias{suffix}"), vec![n * k], ah, pad4(n * k), true);
    }
    (weight, bias)
}

/// Puts tensors one behind the other.
#[derive(Default)]
pub(crate) struct Builder {
    tensors: Vec<Tensor>,
    at: usize,
}

impl Builder {
    /// Adds a tensor that takes `physical` floats, at the next aligned place or without a gap; returns its offset.
    pub(crate) fn push(
        &mut self,
        name: String,
        shape: Vec<usize>,
        fan_in: usize,
        physical: usize,
        align: bool,
    ) -> usize {
        if align {
            self.at = self.at.next_multiple_of(Layout::ALIGN);
        }
        let offset = self.at;
        self.tensors.push(Tensor { name, shape, offset, fan_in });
        self.at += physical;
        offset
    }

    /// Adds `name.weight` [outputs, inputs] and `name.bias` [outputs], both aligned.
    pub(crate) fn linear(&mut self, name: &str, outputs: usize, inputs: usize) {
        self.push(format!("{name}.weight"), vec![outputs, inputs], inputs, outputs * inputs, true);
        self.push(format!("{name}.bias"), vec![outputs], inputs, outputs, true);
    }

    /// The layout, with a length that keeps what follows aligned.
    pub(crate) fn finish(self) -> Layout {
        let len = self.at.next_multiple_of(Layout::ALIGN);
        Layout { tensors: self.tensors, len, heads1_weight: 0, heads1_bias: 0, sigma: len }
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
    fn glu_heads_double_the_rows_of_the_hidden_layers_only() {
        let mlp = ModelShape { state: 80, ..Default::default() };
        let glu = ModelShape { head: Head::Glu, ..mlp.clone() };
        assert_eq!((glu.heads_hidden(), glu.heads_pre()), (512, 1024));
        assert_eq!((mlp.heads_hidden(), mlp.heads_pre()), (512, 512));
        let (a, b) = (Layout::main(&mlp), Layout::main(&glu));
        assert_eq!(b.count() - a.count(), 512 * 256 + 512);
        assert_eq!(b.find("v1.weight").unwrap().shape, [256, 256]);
        assert_eq!(b.offset("a1.1.weight"), b.heads1_weight + 512 * 256);
        assert_eq!(b.find("a2.0.weight").unwrap().shape, a.find("a2.0.weight").unwrap().shape);
    }

    #[test]
    fn the_sigmas_lie_behind_everything_else_like_their_mus() {
        let plain =
            ModelShape { state: 13, branches: vec![2, 5], atoms: 21, trunk2: 33, ..Default::default() };
        let noisy = ModelShape { noisy: true, ..plain.clone() };
        let (a, b) = (Layout::main(&plain), Layout::main(&noisy));
        assert_eq!((a.sigma, b.sigma), (a.len, a.len));
        assert_eq!(b.tensors[..a.tensors.len()], a.tensors);
        let heads = b.sigma - b.heads1_weight;
        assert_eq!(b.len, b.sigma + heads);
        let mus = b.tensors.iter().filter(|t| t.offset >= b.heads1_weight && !t.is_sigma());
        let sigmas: Vec<Tensor> = mus
            .map(|t| Tensor { name: format!("{}{SIGMA}", t.name), offset: t.offset + heads, ..t.clone() })
            .collect();
        assert_eq!(b.tensors[a.tensors.len()..], sigmas);
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
