//! Shapes of a training step: everything the buffers and the record functions derive from the configuration.

use settings::model::pad4;
use settings::{Config, Flat, Group, Head, Layout, ModelShape, Parts, Precision, Pruning};

/// Who computes the matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matmul {
    /// cuBLASLt, one product a launch, branch heads on their own lanes.
    #[default]
    CublasLt,
    /// The kernels of `gpu`, with fused epilogues and grouped launches.
    Rust,
}

/// One linear layer: where its parameters lie and how wide it is.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// Name for errors, plans and profiles.
    pub label: &'static str,
    /// First weight in the flat buffer, `[outputs, inputs]`.
    pub weight: usize,
    /// First bias in the flat buffer.
    pub bias: usize,
    /// Input width.
    pub inputs: usize,
    /// Output width; for an output layer padded to a multiple of 4 (the extra rows are zero).
    pub outputs: usize,
}

/// An output layer (value or branch): a [`Layer`] that reads a slice of the heads' hidden row.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The layer.
    pub layer: Layer,
    /// First column of its input in a hidden row.
    pub hidden: usize,
    /// First column of its block in a row of logits.
    pub column: usize,
}

/// Fixed shapes of one step.
#[derive(Clone, Debug)]
pub struct StepShape {
    /// The network.
    pub model: ModelShape,
    /// Where its tensors lie: the main group of `flat`.
    pub layout: Layout,
    /// The parts beside the C51 loss.
    pub parts: Parts,
    /// Where all groups' tensors lie.
    pub flat: Flat,
    /// Pruning of the main group's weights.
    pub pruning: Pruning,
    /// B.
    pub batch: usize,
    /// Row stride of states: S padded to a multiple of 4.
    pub stride: usize,
    /// n_d, one byte per branch.
    pub sizes: u64,
    /// D.
    pub branches: usize,
    /// VH + D * AH.
    pub hidden: usize,
    /// Width of the heads' hidden layers before their activation: `hidden`, or twice that for GLU heads.
    pub pre: usize,
    /// Row stride of logits.
    pub logits: usize,
    /// sum n_d.
    pub actions: usize,
    /// First trunk layer.
    pub trunk1: Layer,
    /// Second trunk layer.
    pub trunk2: Layer,
    /// Hidden layers of all heads side by side.
    pub heads1: Layer,
    /// Value head's output layer, then the branches'.
    pub outputs: Vec<Output>,
    /// Arithmetic of products.
    pub precision: Precision,
    /// Backend of products.
    pub matmul: Matmul,
    /// Parts into which weight gradients split the batch (1 for cuBLASLt).
    pub splits: usize,
    /// Seed of the device's draws.
    pub seed: u64,
    /// Rows of the history buffer.
    pub history: usize,
    /// Priorities and n-step returns.
    pub replay: settings::Replay,
    /// Whether the largest products read copies of their operands in bf16 (`step::stored`), where the shape suits: from
    /// [`StepShape::COPIES_FROM`] activations on.
    pub copies: bool,
}

impl StepShape {
    /// Activations of the trunk's second layer from which on copies in bf16 pay: at P2, with twice as many, a step takes 10% less;
    /// at P1, with a sixteenth, products wait for nothing that copies would bring sooner.
    pub const COPIES_FROM: usize = 1 << 22;
    /// Rows of the history ring: an epoch's curves fit.
    pub const HISTORY: usize = 4096;

    /// Refuses what the GPU's kernels do not take.
    ///
    /// # Errors
    /// Names the key and what to do.
    pub fn check_supported(config: &Config) -> anyhow::Result<()> {
        let model = &config.model;
        if model.head == Head::Glu {
            for (key, width) in
                [("model.value_hidden", model.value_hidden), ("model.branch_hidden", model.branch_hidden)]
            {
                anyhow::ensure!(
                    width.is_multiple_of(4),
                    "{key} = {width}, model.head = \"glu\": gated heads on the GPU have widths that are multiples of 4"
                );
            }
        }
        if config.ensemble.enabled {
            anyhow::ensure!(
                model.value_hidden.is_multiple_of(4),
                "model.value_hidden = {}, ensemble.enabled = true: the members' hidden layers on the GPU have widths that \
                 are multiples of 4",
                model.value_hidden
            );
        }
        let token = model.bar_features + model.window;
        let most = gpu::kernels::attention::MAX_COLUMNS as usize - 1;
        anyhow::ensure!(
            !config.attention.enabled || token <= most,
            "model.window = {} with {} features a bar: attention on the GPU takes up to {most} of both together",
            model.window,
            model.bar_features
        );
        anyhow::ensure!(
            !config.mamba.enabled || crate::step::mamba::kernel_shape(model, &config.mamba).fits(),
            "model.window = {}, mamba.width = {}, mamba.state = {}: the block on the GPU keeps a sample's channels of all \
             bars in shared memory, which has no room for as many",
            model.window,
            config.mamba.width,
            config.mamba.state
        );
        if config.iqn.enabled {
            let (hidden, cosines) = (config.iqn.hidden, config.iqn.cosines);
            anyhow::ensure!(
                gpu::kernels::iqn::choose(hidden as u32, cosines as u32).is_some(),
                "iqn.hidden = {hidden}, iqn.cosines = {cosines}: the head on the GPU takes up to 512 and 256"
            );
            anyhow::ensure!(
                model.trunk2 <= 1024,
                "model.trunk2 = {}, iqn.enabled = true: the head on the GPU takes up to 1024 features",
                model.trunk2
            );
        }
        Ok(())
    }

    /// Derives the shapes; the model must have passed [`ModelShape::check`].
    pub fn new(config: &Config, matmul: Matmul) -> Self {
        let model = config.model.clone();
        let layout = Layout::main(&model);
        let (s, h1, h2, k) = (model.state, model.trunk1, model.trunk2, model.atoms);
        let (hidden, pre) = (model.heads_hidden(), model.heads_pre());
        let parts = config.parts();
        let flat = Flat::new(&model, &parts);
        let layer = |label, name: &str, inputs, outputs| Layer {
            label,
            weight: layout.offset(&format!("{name}.weight")),
            bias: layout.offset(&format!("{name}.bias")),
            inputs,
            outputs,
        };
        let trunk1 = layer("trunk1", "trunk1", s, h1);
        let trunk2 = layer("trunk2", "trunk2", h1, h2);
        let heads1 = Layer {
            label: "heads1",
            weight: layout.heads1_weight,
            bias: layout.heads1_bias,
            inputs: h2,
            outputs: pre,
        };
        let mut outputs =
            vec![Output { layer: layer("v2", "v2", model.value_hidden, pad4(k)), hidden: 0, column: 0 }];
        let mut column = pad4(k);
        for (d, &n) in model.branches.iter().enumerate() {
            let name = format!("a2.{d}");
            let layer = layer("a2", &name, model.branch_hidden, pad4(n * k));
            outputs.push(Output { layer, hidden: model.value_hidden + d * model.branch_hidden, column });
            column += pad4(n * k);
        }
        Self {
            batch: config.train.batch,
            stride: pad4(s),
            sizes: gpu::action::pack(&model.branches),
            branches: model.branches.len(),
            hidden,
            pre,
            logits: column,
            actions: model.actions(),
            trunk1,
            trunk2,
            heads1,
            outputs,
            precision: config.train.precision,
            splits: if matmul == Matmul::Rust { 8 } else { 1 },
            matmul,
            seed: config.train.seed,
            history: Self::HISTORY,
            replay: config.replay.clone(),
            copies: config.train.batch * model.trunk2 >= Self::COPIES_FROM,
            layout,
            flat,
            parts,
            pruning: config.pruning.clone(),
            model,
        }
    }

    /// Whether the step has more than the C51 loss on the main network: several terms, or groups with a norm of their
    /// own. It then ends with `update_scales` and `adam_groups` instead of `adam_ema`.
    pub fn has_parts(&self) -> bool {
        let p = &self.parts;
        let groups =
            p.iqn.enabled || p.iql.enabled || p.attention.enabled || p.mamba.enabled || p.auxiliary();
        // The vaccine's projection needs the factors before the optimizer runs.
        p.cql.enabled || groups || p.vaccine.enabled
    }

    /// Whether the products write the gradient itself: one split, one term, no factors.
    pub fn whole_gradient(&self) -> bool {
        self.splits == 1 && !self.has_parts() && self.scaled() == self.layout.len
    }

    /// First parameter whose gradient has a factor (`gradient_norm`); the main group's length for none.
    pub fn scaled(&self) -> usize {
        if self.pruning.enabled { 0 } else { self.layout.sigma }
    }

    /// Whether the heads are gated linear units.
    pub fn glu(&self) -> bool {
        self.model.head == Head::Glu
    }

    /// Terms with a gradient over all main parameters: C51, CQL.
    pub fn full_terms(&self) -> usize {
        1 + usize::from(self.parts.cql.enabled)
    }

    /// Terms with a gradient over the trunk alone: IQN, then ensemble and confidence head together.
    pub fn trunk_terms(&self) -> usize {
        usize::from(self.parts.iqn.enabled) + usize::from(self.parts.auxiliary())
    }

    /// Floats of all full terms' partial gradients: `[full_terms, splits, layout.len]`.
    pub fn terms_len(&self) -> usize {
        self.full_terms() * self.splits * self.layout.len
    }

    /// Floats of the trunk, which come first in the flat buffer.
    pub fn trunk_len(&self) -> usize {
        self.layout.heads1_weight
    }

    /// Floats of the heads' mu, and of their sigma where they are noisy.
    pub fn heads_len(&self) -> usize {
        self.layout.sigma - self.layout.heads1_weight
    }

    /// Rows of the target network's pass: s and s' where the value networks need Q(s, a), else s'.
    pub fn target_rows(&self) -> usize {
        if self.parts.iql.enabled { 2 * self.batch } else { self.batch }
    }

    /// A layer of a further group, by its name in the flat layout.
    pub fn layer(&self, label: &'static str, name: &str, inputs: usize, outputs: usize) -> Layer {
        Layer {
            label,
            weight: self.flat.offset(&format!("{name}.weight")),
            bias: self.flat.offset(&format!("{name}.bias")),
            inputs,
            outputs,
        }
    }

    /// First float and length of a group's segment that is known to exist.
    ///
    /// # Panics
    /// If the group is off: a programming error.
    pub fn segment(&self, group: Group) -> (usize, usize) {
        let segment = self.flat.segment(group).unwrap_or_else(|| panic!("no segment {}", group.name()));
        (segment.offset, segment.len)
    }

    /// Partial sums of squares of the gradient.
    pub fn sums(&self) -> usize {
        gpu::kernels::gradient_norm::partials(self.layout.len as u32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logit_columns_agree_with_the_kernels() {
        let mut config = Config::default();
        config.model.state = 80;
        config.model.branches = vec![9, 3, 3, 64];
        let shape = StepShape::new(&config, Matmul::Rust);
        for (d, output) in shape.outputs.iter().skip(1).enumerate() {
            assert_eq!(output.column as u32, gpu::logits::branch_column(shape.sizes, 51, d as u32));
        }
        assert_eq!(shape.logits as u32, gpu::logits::columns(shape.sizes, 4, 51));
    }
}
