//! Buffers of a training step. They are allocated once; graphs hold their addresses.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::adam_ema::hyper;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::sample_gather::ring;
use gpu::kernels::step_signals::signal;
use settings::Optimizer;

use crate::error::ExecError;
use crate::exec::{Exec, Memory};
use crate::step::noisy::NoiseBuffers;
use crate::step::parts::{PartBuffers, SpectralBuffers};
use crate::step::probe::ProbeBuffers;
use crate::step::prune::PruneBuffers;
use crate::step::replay::{Hindsight, Priorities};
use crate::step::shape::StepShape;
use crate::step::stored::{self, Copies};

/// Flat parameter-shaped buffers, `[flat.len]` each; the main network comes first.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Online network; written by Adam.
    pub online: Buf<f32>,
    /// Target network `[flat.target_len]`; written by Adam's EMA.
    pub target: Buf<f32>,
    /// First moment.
    pub m: Buf<f32>,
    /// Second moment.
    pub v: Buf<f32>,
    /// Gradient of the step; written by the weight-gradient products or their reduction. Where several terms share the
    /// main parameters, its main part is not used (`PartBuffers::grads`).
    pub grad: Buf<f32>,
}

/// Gradients of one loss term, from the logits down to the weights.
#[derive(Clone, Copy, Debug)]
pub struct TermBuffers {
    /// d loss / d logits `[B, logits]`; the padding stays zero.
    pub d_logits: Buf<f32>,
    /// d loss / d hidden `[B, hidden]`; for MLP heads with respect to its argument.
    pub d_hidden: Buf<f32>,
    /// d loss / d (hidden's argument) `[B, pre]`; the same buffer for MLP heads.
    pub d_pre: Buf<f32>,
    /// d loss / d (h2's argument) `[B, H2]`.
    pub d_h2: Buf<f32>,
    /// d loss / d (h1's argument) `[B, H1]`.
    pub d_h1: Buf<f32>,
    /// Partial weight gradients `[splits, layout.len]`.
    pub parts: Buf<f32>,
}

impl TermBuffers {
    /// Allocates; the partial gradients go to `parts`.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        parts: Buf<f32>,
        name: &str,
    ) -> Result<Self, ExecError> {
        let b = shape.batch;
        let d_hidden = memory.alloc(&format!("{name}.d_hidden"), b * shape.hidden)?;
        Ok(Self {
            d_logits: memory.alloc(&format!("{name}.d_logits"), b * shape.logits)?,
            d_hidden,
            d_pre: if shape.glu() {
                memory.alloc(&format!("{name}.d_pre"), b * shape.pre)?
            } else {
                d_hidden
            },
            d_h2: memory.alloc(&format!("{name}.d_h2"), b * shape.model.trunk2)?,
            d_h1: memory.alloc(&format!("{name}.d_h1"), b * shape.model.trunk1)?,
            parts,
        })
    }
}

/// Activations of one forward pass over `rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Rows.
    pub rows: usize,
    /// h1 `[rows, H1]`.
    pub h1: Buf<f32>,
    /// h2 `[rows, H2]`.
    pub h2: Buf<f32>,
    /// What the heads read `[rows, H2]`: h2' with attention, else h2.
    pub features: Buf<f32>,
    /// Arguments of the heads' hidden layers `[rows, pre]`; for MLP heads the hidden layers themselves.
    pub pre: Buf<f32>,
    /// Hidden layers of all heads `[rows, VH + D AH]`.
    pub hidden: Buf<f32>,
    /// Heads' outputs `[rows, logits]`, blocks as in `gpu::logits`.
    pub logits: Buf<f32>,
}

impl Activations {
    /// Allocates for `rows` rows.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        rows: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let h2 = memory.alloc(&format!("{name}.h2"), rows * shape.model.trunk2)?;
        let hidden = memory.alloc(&format!("{name}.hidden"), rows * shape.hidden)?;
        Ok(Self {
            rows,
            h1: memory.alloc(&format!("{name}.h1"), rows * shape.model.trunk1)?,
            h2,
            features: if shape.parts.attention.enabled {
                memory.alloc(&format!("{name}.features"), rows * shape.model.trunk2)?
            } else {
                h2
            },
            pre: if shape.glu() { memory.alloc(&format!("{name}.pre"), rows * shape.pre)? } else { hidden },
            hidden,
            logits: memory.alloc(&format!("{name}.logits"), rows * shape.logits)?,
        })
    }
}

/// The replay ring in device memory; slot i of every buffer is one transition.
#[derive(Clone, Copy, Debug)]
pub struct Replay {
    /// Slots.
    pub capacity: usize,
    /// s `[capacity, stride]`.
    pub states: Buf<f32>,
    /// s' `[capacity, stride]`: the final observation of an episode where it ended.
    pub next_states: Buf<f32>,
    /// One byte per branch `[capacity]`.
    pub actions: Buf<u64>,
    /// r_n: the rewards of the window so far, discounted `[capacity]`.
    pub rewards: Buf<f32>,
    /// gamma^m (1 - terminated) `[capacity]`.
    pub discounts: Buf<f32>,
    /// Size and cursor.
    pub words: Buf<u64>,
    /// Newest slots that must not be drawn, because their n-step windows are not complete: (n - 1) E.
    pub pending: usize,
    /// The tree, where sampling is prioritized.
    pub priorities: Option<Priorities>,
    /// End bits of every step, of a control task's ring `[capacity]`; none otherwise.
    pub ends: Buf<u32>,
    /// Which samples get another goal, where that is on.
    pub hindsight: Option<Hindsight>,
}

impl Replay {
    /// Allocates an empty ring.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape, capacity: usize) -> Result<Self, ExecError> {
        Ok(Self {
            capacity,
            states: memory.alloc("replay.states", capacity * shape.stride)?,
            next_states: memory.alloc("replay.next_states", capacity * shape.stride)?,
            actions: memory.alloc("replay.actions", capacity)?,
            rewards: memory.alloc("replay.rewards", capacity)?,
            discounts: memory.alloc("replay.discounts", capacity)?,
            words: memory.alloc("replay.words", ring::WORDS as usize)?,
            pending: 0,
            priorities: match shape.replay.prioritized {
                true => Some(Priorities::alloc(memory, capacity, shape.batch)?),
                false => None,
            },
            ends: Buf::NULL,
            hindsight: None,
        })
    }
}

/// The batch of a step; written by sampling (or uploaded by a test).
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// s, then s' `[2B, stride]`.
    pub x: Buf<f32>,
    /// One byte per branch `[B]`.
    pub actions: Buf<u64>,
    /// `[B]`.
    pub rewards: Buf<f32>,
    /// `[B]`.
    pub discounts: Buf<f32>,
    /// Importance weights `[B]`.
    pub weights: Buf<f32>,
    /// Replay slots `[B]`.
    pub indices: Buf<u32>,
}

/// Everything a training step reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct StepBuffers {
    /// Parameters and optimizer state.
    pub parameters: Parameters,
    /// The batch.
    pub batch: Batch,
    /// Online network on s and s', 2B rows.
    pub online: Activations,
    /// Target network on s' (B rows), or on s and s' (2B rows) where the value networks need both.
    pub target: Activations,
    /// Gradients of the C51 term.
    pub c51: TermBuffers,
    /// Per-sample statistics `[B, 8]` (`c51_loss::stat`).
    pub stats: Buf<f32>,
    /// Cross-entropy per branch `[B, D]`.
    pub cross_entropy: Buf<f32>,
    /// E_m[z] - Q per branch `[B, D]`.
    pub td_error: Buf<f32>,
    /// Partial sums of squares of the gradient.
    pub sums: Buf<f32>,
    /// `[v_min, v_max]`; moved by `iql_state` where it adapts.
    pub support: Buf<f32>,
    /// Scales of the branches' losses where the value networks do not set them: 1 `[8]`.
    pub branch_scales: Buf<f32>,
    /// Optimizer numbers (`adam_ema::hyper`).
    pub hyper: Buf<f64>,
    /// Counters (`gpu::clock`).
    pub clock: Buf<u64>,
    /// Adam's own counter (`gpu::clock::adam`).
    pub adam: Buf<u64>,
    /// History rows `[history, signal::COLUMNS]` (`step_signals::signal`).
    pub history: Buf<f32>,
    /// What the parts beside the C51 loss need, where there are any.
    pub parts: Option<PartBuffers>,
    /// Power iteration of the trunk's spectral norm.
    pub spectral: Option<SpectralBuffers>,
    /// Causal probe.
    pub probe: Option<ProbeBuffers>,
    /// Factors of the gradient from parameter `StepShape::scaled` on: masks, noise of the heads' sigma, else 1.
    pub factors: Buf<f32>,
    /// Noise of the heads, where they are noisy.
    pub noise: Option<NoiseBuffers>,
    /// Pruning, where it is on.
    pub pruning: Option<PruneBuffers>,
    /// Copies in bf16 of what the largest products read.
    pub copies: Option<Copies>,
}

impl StepBuffers {
    /// The target network's logits on s' `[B, logits]`.
    pub fn target_next_logits(&self, shape: &StepShape) -> Buf<f32> {
        let len = shape.batch * shape.logits;
        self.target.logits.slice(self.target.logits.len() - len, len)
    }

    /// What the losses of the batch are weighted with `[B]`: the importance weights, times the advantage weights where
    /// these are on.
    pub fn loss_weights(&self, shape: &StepShape) -> Buf<f32> {
        let iql = self.parts.and_then(|parts| parts.iql);
        iql.filter(|_| shape.parts.iql.advantage_weighting).map_or(self.batch.weights, |iql| iql.loss_weights)
    }

    /// Scales of the branches' C51 losses `[8]`.
    pub fn loss_scales(&self, shape: &StepShape) -> Buf<f32> {
        let iql = self.parts.and_then(|parts| parts.iql);
        iql.filter(|_| shape.parts.iql.branch_scaling).map_or(self.branch_scales, |iql| iql.branch_scales())
    }

    /// Everything that is kept from step to step besides parameters, moments and counters, back at its beginning: power
    /// iterations, support, the value networks' averages, the confidence head's median and signals.
    pub fn start(&self, memory: &mut impl Memory, shape: &StepShape) -> Result<(), ExecError> {
        self.start_spectral(memory, shape)?;
        memory.upload(self.support, &[shape.model.v_min, shape.model.v_max])?;
        let Some(parts) = &self.parts else { return Ok(()) };
        if let Some(iql) = &parts.iql {
            memory.upload(iql.averages, &vec![0.0f32; iql.averages.len()])?;
            memory.upload(iql.epsilon, &[shape.parts.iql.epsilon_max])?;
        }
        let confidence = parts.auxiliary.and_then(|auxiliary| auxiliary.confidence);
        confidence.map_or(Ok(()), |c| memory.upload(c.kept, &vec![0.0f32; c.kept.len()]))
    }

    /// What the online network's heads are read from, in the flat layout: the step's noisy weights, or the parameters.
    pub fn online_heads(&self) -> Buf<f32> {
        self.noise.as_ref().map_or(self.parameters.online, NoiseBuffers::online)
    }

    /// The same of the target network.
    pub fn target_heads(&self) -> Buf<f32> {
        self.noise.as_ref().map_or(self.parameters.target, NoiseBuffers::target)
    }

    /// Starts the power iterations of the spectral norm anew, where it is on.
    pub fn start_spectral(&self, memory: &mut impl Memory, shape: &StepShape) -> Result<(), ExecError> {
        self.spectral.as_ref().map_or(Ok(()), |spectral| spectral.start(memory, shape))
    }

    /// Nothing is pruned; the noise is written by the step.
    pub fn start_factors(&self, memory: &mut impl Memory) -> Result<(), ExecError> {
        if let Some(pruning) = &self.pruning {
            memory.upload(pruning.zeros, &vec![0; pruning.zeros.len()])?;
        }
        memory.upload(self.factors, &vec![1.0; self.factors.len()])
    }

    /// Allocates all buffers, zeroed, and writes support and hyper-parameters.
    pub fn alloc(
        memory: &mut (impl Memory + Exec),
        shape: &StepShape,
        optimizer: &Optimizer,
    ) -> Result<Self, ExecError> {
        let (b, len) = (shape.batch, shape.flat.len);
        let grad = memory.alloc("grad", len)?;
        let whole = shape.whole_gradient();
        let partial = if whole { grad } else { memory.alloc("grad.parts", shape.terms_len())? };
        let mut buffers = Self {
            parameters: Parameters {
                online: memory.alloc("online", len)?,
                target: memory.alloc("target", shape.flat.target_len())?,
                m: memory.alloc("adam.m", len)?,
                v: memory.alloc("adam.v", len)?,
                grad,
            },
            batch: Batch {
                x: memory.alloc("batch.x", 2 * b * shape.stride)?,
                actions: memory.alloc("batch.actions", b)?,
                rewards: memory.alloc("batch.rewards", b)?,
                discounts: memory.alloc("batch.discounts", b)?,
                weights: memory.alloc("batch.weights", b)?,
                indices: memory.alloc("batch.indices", b)?,
            },
            online: Activations::alloc(memory, shape, 2 * b, "online")?,
            target: Activations::alloc(memory, shape, shape.target_rows(), "target")?,
            c51: TermBuffers::alloc(memory, shape, partial.slice(0, shape.splits * shape.layout.len), "c51")?,
            stats: memory.alloc("stats", b * stat::COLUMNS as usize)?,
            cross_entropy: memory.alloc("cross_entropy", b * shape.branches)?,
            td_error: memory.alloc("td_error", b * shape.branches)?,
            sums: memory.alloc("grad.sums", shape.sums())?,
            support: memory.alloc("support", 2)?,
            branch_scales: memory.alloc("branch_scales", gpu::action::MAX_BRANCHES as usize)?,
            hyper: memory.alloc("hyper", hyper::WORDS as usize)?,
            clock: memory.alloc("clock", clock::WORDS as usize)?,
            adam: memory.alloc("adam.clock", clock::adam::WORDS as usize)?,
            history: memory.alloc("history", shape.history * signal::COLUMNS as usize)?,
            parts: if shape.has_parts() {
                Some(PartBuffers::alloc(memory, shape, optimizer, partial)?)
            } else {
                None
            },
            probe: if shape.parts.probe.enabled { Some(ProbeBuffers::alloc(memory, shape)?) } else { None },
            spectral: if shape.parts.spectral.enabled {
                Some(SpectralBuffers::alloc(memory, shape)?)
            } else {
                None
            },
            // A buffer has an address even where no parameter has a factor.
            factors: memory.alloc("grad.factors", (shape.layout.len - shape.scaled()).max(4))?,
            noise: if shape.model.noisy {
                Some(NoiseBuffers::alloc(memory, shape, 2, "noise")?)
            } else {
                None
            },
            pruning: if shape.pruning.enabled { Some(PruneBuffers::alloc(memory, shape)?) } else { None },
            copies: None,
        };
        buffers.copies = stored::alloc(memory, shape, &buffers)?;
        buffers.start_factors(memory)?;
        memory.upload(buffers.support, &[shape.model.v_min, shape.model.v_max])?;
        memory.upload(buffers.branch_scales, &[1.0; gpu::action::MAX_BRANCHES as usize])?;
        memory.upload(buffers.hyper, &hyper_words(optimizer))?;
        Ok(buffers)
    }
}

/// The optimizer's numbers as the device reads them. They are the decimal numbers of the configuration in f64, not
/// their f32 roundings: 1 - beta2 of an f32 is wrong in its fifth digit.
pub fn hyper_words(optimizer: &Optimizer) -> [f64; hyper::WORDS as usize] {
    let numbers = cpu_path::Hyper::from(optimizer);
    let mut words = [0.0; hyper::WORDS as usize];
    words[hyper::LR as usize] = numbers.lr;
    words[hyper::BETA1 as usize] = numbers.beta1;
    words[hyper::BETA2 as usize] = numbers.beta2;
    words[hyper::EPS as usize] = numbers.eps;
    words[hyper::WEIGHT_DECAY as usize] = numbers.weight_decay;
    words[hyper::MAX_NORM as usize] = numbers.max_grad_norm;
    words[hyper::TAU as usize] = numbers.tau;
    words[hyper::LN_BETA1 as usize] = numbers.beta1.ln();
    words[hyper::LN_BETA2 as usize] = numbers.beta2.ln();
    words[hyper::WARMUP as usize] = numbers.schedule.warmup;
    words[hyper::DECAY as usize] = numbers.schedule.decay;
    words[hyper::LR_END as usize] = numbers.schedule.end;
    words[hyper::LINEAR as usize] = f64::from(u8::from(numbers.schedule.linear));
    words
}
