//! NoisyNet heads (Fortunato et al. 2018, "Noisy Networks for Exploration", equations 10 and 11, factorised noise): which
//! layers are noisy, and where the factors of their noise lie.
//!
//! A noisy layer has W = mu + sigma * f(e_out) f(e_in)^T and b = mu_b + sigma_b * f(e_out), f(x) = sign(x) sqrt|x|, e_in
//! (one per input) and e_out (one per output) standard normal. The factors f(e) of all layers of one network are one
//! list, layer by layer, the inputs' before the outputs', each vector from a multiple of 4 on.

use crate::model::{Layout, ModelShape};

/// sigma is SIGMA0 / sqrt(inputs of the layer) at first, for weights and biases (section 3.2 of the paper).
pub const SIGMA0: f32 = 0.5;

/// One noisy layer of the main network.
#[derive(Clone, Debug, PartialEq)]
pub struct NoisyLayer {
    /// Name of the layer: its tensors are `name.weight`, `name.bias` and the same with `_sigma` behind.
    pub name: String,
    /// Inputs.
    pub inputs: usize,
    /// Outputs, without padding. A gated hidden layer is one layer of twice its width.
    pub outputs: usize,
    /// First f(e_in) in the list of factors.
    pub input_factors: usize,
    /// First f(e_out) in the list of factors.
    pub output_factors: usize,
}

/// The noisy layers of a network in the order of its layout.
#[derive(Clone, Debug, PartialEq)]
pub struct NoisyLayout {
    /// All linear layers of the heads.
    pub layers: Vec<NoisyLayer>,
    /// Length of the list of factors, a multiple of 4.
    pub factors: usize,
}

impl NoisyLayout {
    /// The layers of a checked shape, whether it is noisy or not.
    pub fn new(shape: &ModelShape) -> Self {
        let layout = Layout::main(shape);
        let (mut layers, mut factors) = (Vec::new(), 0);
        let heads = layout.tensors.iter().filter(|t| t.offset >= layout.heads1_weight);
        for t in heads {
            let Some(name) = t.name.strip_suffix(".weight") else { continue };
            let (outputs, inputs) = (t.shape[0], t.shape[1]);
            let input_factors = factors;
            let output_factors = input_factors + usize::next_multiple_of(inputs, 4);
            factors = output_factors + usize::next_multiple_of(outputs, 4);
            layers.push(NoisyLayer { name: name.into(), inputs, outputs, input_factors, output_factors });
        }
        Self { layers, factors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_of_the_heads_has_factors_of_its_own() {
        let shape = ModelShape {
            state: 13,
            trunk2: 33,
            value_hidden: 6,
            branch_hidden: 5,
            branches: vec![2, 5],
            atoms: 21,
            head: crate::Head::Glu,
            noisy: true,
            ..Default::default()
        };
        let noise = NoisyLayout::new(&shape);
        let names: Vec<&str> = noise.layers.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["v1", "a1.0", "a1.1", "v2", "a2.0", "a2.1"]);
        let sizes: Vec<(usize, usize)> = noise.layers.iter().map(|l| (l.inputs, l.outputs)).collect();
        assert_eq!(sizes, [(33, 12), (33, 10), (33, 10), (6, 21), (5, 42), (5, 105)]);
        let mut end = 0;
        for l in &noise.layers {
            assert!(l.input_factors >= end && l.input_factors.is_multiple_of(4), "{l:?}");
            assert!(l.output_factors >= l.input_factors + l.inputs, "{l:?}");
            assert!(l.output_factors.is_multiple_of(4), "{l:?}");
            end = l.output_factors + l.outputs;
        }
        assert!(noise.factors >= end && noise.factors < end + 4);
        assert_eq!(noise, NoisyLayout::new(&ModelShape { noisy: false, ..shape }));
    }
}
