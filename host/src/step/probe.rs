//! The causal probe as a sequence of launches (SPEC section 3, `gpu::kernels::probe`): the online network's Q values on the
//! last step's batch, then once for each state feature with that feature permuted. A graph of its own, launched behind the
//! steps that end with it; it writes nothing that a step reads.

use cuda_std::Buf;
use gpu::kernels::dueling_q::{DuelingQ, DuelingQWide};
use gpu::kernels::probe::{ProbeDifference, ProbePermute};

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::attention::{self, Context, Folded};
use crate::step::buffers::{Activations, StepBuffers};
use crate::step::mamba::{self, MambaForwardBuffers};
use crate::step::network::{Network, View};
use crate::step::shape::StepShape;

/// Buffers of the probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeBuffers {
    /// States with one feature permuted `[B, stride]`.
    states: Buf<f32>,
    activations: Activations,
    attention: Option<(Folded, Context)>,
    mamba: Option<MambaForwardBuffers>,
    /// Q of the batch, and with one feature permuted `[B, sum n_d]` each.
    base: Buf<f32>,
    q: Buf<f32>,
    /// Mean |dQ| of each state feature `[S]`.
    pub sensitivity: Buf<f32>,
}

impl ProbeBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let (rows, q) = (shape.batch, shape.batch * shape.actions);
        Ok(Self {
            states: memory.alloc("probe.states", rows * shape.stride)?,
            activations: Activations::alloc(memory, shape, rows, "probe")?,
            attention: match shape.parts.attention.enabled {
                true => Some((
                    Folded::alloc(memory, shape, 1, "probe.folded")?,
                    Context::alloc(memory, shape, rows, 0, "probe")?,
                )),
                false => None,
            },
            mamba: match shape.parts.mamba.enabled {
                true => Some(MambaForwardBuffers::alloc(memory, shape, rows, 0, "probe.mamba")?),
                false => None,
            },
            base: memory.alloc("probe.base", q)?,
            q: memory.alloc("probe.q", q)?,
            sensitivity: memory.alloc("probe.sensitivity", shape.model.state)?,
        })
    }
}

/// All features, one after the other on the main lane; nothing where the probe is off.
pub fn record_probe<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some(probe) = &b.probe else { return Ok(()) };
    let (lane, batch, online) = (Lane::MAIN, shape.batch, b.parameters.online);
    let states = b.batch.x.slice(0, batch * shape.stride);
    if let Some((folded, _)) = &probe.attention {
        attention::fold_networks(exec, shape, lane, folded, online, online)?;
    }
    if let Some(forward) = &probe.mamba {
        mamba::fold_networks(exec, shape, lane, forward, online, online)?;
        mamba::join_networks(exec, shape, lane, forward, online, online)?;
    }
    q_values(exec, shape, b, probe, states, probe.base)?;
    for feature in 0..shape.model.state {
        exec.launch(
            lane,
            &ProbePermute {
                batch: batch as u32,
                stride: shape.stride as u32,
                feature: feature as u32,
                seed: shape.seed,
                clock_words: b.clock.into(),
                states: states.into(),
                probed: probe.states.into(),
            },
        )?;
        q_values(exec, shape, b, probe, probe.states, probe.q)?;
        exec.launch(
            lane,
            &ProbeDifference {
                len: (batch * shape.actions) as u32,
                base: probe.base.into(),
                q: probe.q.into(),
                sensitivity: probe.sensitivity.slice(feature, 1).into(),
            },
        )?;
    }
    Ok(())
}

fn q_values<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    probe: &ProbeBuffers,
    states: Buf<f32>,
    q: Buf<f32>,
) -> Result<(), ExecError> {
    let (lane, rows, online) = (Lane::MAIN, shape.batch, b.parameters.online);
    let x = View::new(states, shape.stride);
    if let Some(forward) = &probe.mamba {
        mamba::block_of(exec, shape, lane, forward, states)?;
        mamba::trunk(exec, shape, lane, forward, 0, online, &probe.activations)?;
    } else {
        Network { exec, shape, parameters: online, copies: None }.trunk(lane, x, &probe.activations)?;
    }
    if let Some((folded, context)) = &probe.attention {
        attention::context_of(exec, shape, lane, folded, 0, context, rows, states)?;
        attention::apply_to(exec, shape, lane, folded, 0, context, &probe.activations, online, None)?;
    }
    Network { exec, shape, parameters: online, copies: None }.heads(lane, &probe.activations)?;
    macro_rules! launch {
        ($kernel:ident) => {
            exec.launch(
                lane,
                &$kernel {
                    rows: rows as u32,
                    branches: shape.branches as u32,
                    sizes: shape.sizes,
                    atoms: shape.model.atoms as u32,
                    stride: shape.logits as u32,
                    support: b.support.into(),
                    logits: probe.activations.logits.into(),
                    q: q.into(),
                },
            )
        };
    }
    if shape.model.atoms <= 64 { launch!(DuelingQ) } else { launch!(DuelingQWide) }
}
