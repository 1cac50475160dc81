//! The training step as a sequence of launches on lanes: what one graph holds.
//!
//! Everything begins and ends on the main lane. Beside it run the target network's pass, the weight gradients, and what
//! the parts add: the IQN head from the moment both networks' features are there, the value networks, ensemble and
//! confidence head, the attention's folding, context and backward, the Mamba-2 block's. The pieces are joined before the
//! update.

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::losses::losses;
use crate::step::passes::{backward, beside_backward, features, heads};
use crate::step::replay::{join_weights, sample_batch};
use crate::step::shape::StepShape;
use crate::step::update::update;
use crate::step::{attention, auxiliary, iql, iqn, mamba, noisy, spectral, vaccine};

/// Sections of the step, in order; `profile` times them one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Index sampling and gather, importance weights.
    Sample,
    /// Spectral norm of the online trunk.
    Spectral,
    /// Online and target network, with attention and Mamba-2 block.
    Forward,
    /// C51 and CQL loss and the gradient of the logits.
    Loss,
    /// IQN head, value networks, ensemble and confidence head, forward to their gradients.
    Aux,
    /// Data and weight gradients of the C51 and CQL terms, of the attention and of the Mamba-2 block.
    Backward,
    /// Norms, budgets, Adam, EMA, priorities, signals.
    Update,
}

impl Section {
    /// All sections.
    pub const ALL: [Section; 7] = [
        Section::Sample,
        Section::Spectral,
        Section::Forward,
        Section::Loss,
        Section::Aux,
        Section::Backward,
        Section::Update,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Section::Sample => "sample",
            Section::Spectral => "spectral",
            Section::Forward => "forward",
            Section::Loss => "loss",
            Section::Aux => "aux",
            Section::Backward => "backward",
            Section::Update => "adam",
        }
    }

    /// Whether a step of this shape has the section.
    pub fn is_in(self, shape: &StepShape, from_replay: bool) -> bool {
        match self {
            Section::Sample => from_replay,
            Section::Spectral => shape.parts.spectral.enabled,
            Section::Aux => shape.parts.iqn.enabled || shape.parts.iql.enabled || shape.parts.auxiliary(),
            _ => true,
        }
    }
}

/// The whole step from index sampling to EMA. With `replay` absent the batch buffers are taken as they are, quantile
/// samples included (tests upload a fixed batch).
pub fn record<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
) -> Result<(), ExecError> {
    whole(exec, shape, b, replay, None)
}

/// The same with the vaccine, from a ring of held-out transitions; the plain step where the vaccine is off.
pub fn record_vaccinated<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: &Replay,
    held_out: &Replay,
) -> Result<(), ExecError> {
    whole(exec, shape, b, Some(replay), Some(held_out))
}

fn whole<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
    held_out: Option<&Replay>,
) -> Result<(), ExecError> {
    let draw = replay.is_some();
    let vaccine = b.parts.as_ref().and_then(|parts| Some((parts, parts.vaccine.as_ref()?, held_out?)));
    // The advantage weights multiply the quantile loss's weights: it then waits for the value networks.
    let weighted = shape.parts.iql.enabled && shape.parts.iql.advantage_weighting;
    // A graph's first kernels start one after the other, some of them 10 us late: the fewer there are that wait for nothing, the
    // sooner the others. So the attention's folding waits for the first of the two packings, the sampling for the spectral norm's
    // first kernel, and the second packing is behind the sampling (P1 in bf16: 218 us a step instead of 223).
    if let Some(parts) = &b.parts
        && let Some(iqn) = &parts.iqn
    {
        exec.after(Lane::IQN, Lane::MAIN)?;
        iqn::pack_target(exec, shape, b, iqn)?;
        if parts.attention.is_some() {
            exec.after(Lane::ATTENTION, Lane::IQN)?;
        }
    }
    if let Some((parts, vaccine, held_out)) = vaccine {
        // With it come the folded attention and block, the step's noise and the spectral norm.
        vaccine::gradient(exec, shape, b, (parts, vaccine), held_out)?;
    } else {
        attention::fold(exec, shape, b)?;
        mamba::fold(exec, shape, b)?;
        noisy::step(exec, shape, b, draw)?;
        // The spectral norm waits for nothing but the last step; what follows on the main lane waits for its first kernel.
        spectral::scale_trunk(exec, shape, b, Lane::GRADIENT)?;
        mamba::join(exec, shape, b)?;
    }
    if let Some(replay) = replay {
        sample_batch(exec, shape, b, replay)?;
    }
    if let Some(parts) = &b.parts
        && let Some(iqn) = &parts.iqn
    {
        iqn::pack_online(exec, shape, b, iqn)?;
    }
    mamba::block(exec, shape, b)?;
    attention::context(exec, shape, b)?;
    if let Some(parts) = &b.parts
        && let Some(iql) = &parts.iql
    {
        exec.after(Lane::IQL, Lane::MAIN)?;
        iql::forward(exec, shape, b, iql)?;
    }
    if b.spectral.is_some() && vaccine.is_none() {
        exec.after(Lane::MAIN, Lane::GRADIENT)?;
    }
    features(exec, shape, b)?;
    join_weights(exec, replay)?;
    if let Some(parts) = &b.parts
        && let Some(iqn) = &parts.iqn
    {
        exec.after(Lane::IQN, Lane::MAIN)?;
        exec.after(Lane::IQN, Lane::TARGET)?;
        iqn::next(exec, shape, b, iqn, draw)?;
        if !weighted {
            iqn::loss(exec, shape, b, parts, iqn, draw)?;
            iqn::head(exec, shape, b, parts, iqn)?;
            iqn::trunk(exec, shape, b, parts, iqn)?;
        }
    }
    auxiliary::forward(exec, shape, b)?;
    heads(exec, shape, b)?;
    // The value networks wait for the heads too, but where they feed no loss nothing waits for them: recorded behind the losses,
    // they start behind them.
    let fed = shape.parts.iql.feeds_losses();
    if let Some(parts) = &b.parts
        && let Some(iql) = &parts.iql
    {
        exec.after(Lane::IQL, Lane::MAIN)?;
        if !fed {
            losses(exec, shape, b)?;
        }
        iql::values(exec, shape, b, parts, iql)?;
        if fed {
            exec.after(Lane::MAIN, Lane::IQL)?;
            losses(exec, shape, b)?;
        }
        if let Some(iqn) = &parts.iqn
            && weighted
        {
            exec.after(Lane::IQN, Lane::IQL)?;
            iqn::loss(exec, shape, b, parts, iqn, draw)?;
            iqn::head(exec, shape, b, parts, iqn)?;
            iqn::trunk(exec, shape, b, parts, iqn)?;
        }
        iql::backward(exec, shape, b, parts, iql)?;
    } else {
        losses(exec, shape, b)?;
    }
    auxiliary::backward(exec, shape, b)?;
    backward(exec, shape, b)?;
    // What has a part in the main parameters' terms is joined here, the other groups' gradients when the terms are added.
    let mut groups = beside_backward(shape);
    if let Some(parts) = &b.parts {
        if parts.iqn.is_some() {
            exec.after(Lane::MAIN, Lane::IQN)?;
            groups.push(iqn::HEAD);
        }
        if parts.auxiliary.is_some() {
            exec.after(Lane::MAIN, Lane::AUX)?;
        }
        if parts.iql.is_some() {
            groups.push(Lane::IQL);
        }
    }
    update(exec, shape, b, replay, &groups, vaccine.is_some())
}

/// One section alone; each begins and ends on the main lane.
pub fn record_section<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
    section: Section,
) -> Result<(), ExecError> {
    match section {
        Section::Sample => {
            let Some(drawn) = replay else { return Ok(()) };
            sample_batch(exec, shape, b, drawn)?;
            join_weights(exec, replay)
        }
        Section::Spectral => spectral::scale_trunk(exec, shape, b, Lane::MAIN),
        Section::Forward => {
            attention::fold(exec, shape, b)?;
            mamba::fold(exec, shape, b)?;
            mamba::join(exec, shape, b)?;
            mamba::block(exec, shape, b)?;
            noisy::step(exec, shape, b, replay.is_some())?;
            attention::context(exec, shape, b)?;
            features(exec, shape, b)?;
            heads(exec, shape, b)
        }
        Section::Loss => {
            // What the losses are weighed with is theirs.
            if let Some(parts) = &b.parts
                && let Some(iql) = &parts.iql
                && shape.parts.iql.feeds_losses()
            {
                exec.after(Lane::IQL, Lane::MAIN)?;
                iql::forward(exec, shape, b, iql)?;
                iql::values(exec, shape, b, parts, iql)?;
                exec.after(Lane::MAIN, Lane::IQL)?;
            }
            losses(exec, shape, b)
        }
        Section::Aux => {
            let Some(parts) = &b.parts else { return Ok(()) };
            if let Some(iql) = &parts.iql {
                exec.after(Lane::IQL, Lane::MAIN)?;
                if !shape.parts.iql.feeds_losses() {
                    iql::forward(exec, shape, b, iql)?;
                    iql::values(exec, shape, b, parts, iql)?;
                }
                iql::backward(exec, shape, b, parts, iql)?;
            }
            if parts.auxiliary.is_some() {
                auxiliary::forward(exec, shape, b)?;
                auxiliary::backward(exec, shape, b)?;
                exec.after(Lane::MAIN, Lane::AUX)?;
            }
            if let Some(iqn) = &parts.iqn {
                exec.after(Lane::IQN, Lane::MAIN)?;
                iqn::pack_target(exec, shape, b, iqn)?;
                iqn::pack_online(exec, shape, b, iqn)?;
                if shape.parts.iql.feeds_losses() {
                    exec.after(Lane::IQN, Lane::IQL)?;
                }
                iqn::next(exec, shape, b, iqn, replay.is_some())?;
                iqn::loss(exec, shape, b, parts, iqn, replay.is_some())?;
                iqn::head(exec, shape, b, parts, iqn)?;
                iqn::trunk(exec, shape, b, parts, iqn)?;
                exec.after(Lane::MAIN, Lane::IQN)?;
                exec.after(Lane::MAIN, iqn::HEAD)?;
            }
            if parts.iql.is_some() {
                exec.after(Lane::MAIN, Lane::IQL)?;
            }
            Ok(())
        }
        Section::Backward => {
            backward(exec, shape, b)?;
            beside_backward(shape).into_iter().try_for_each(|lane| exec.after(Lane::MAIN, lane))
        }
        Section::Update => update(exec, shape, b, replay, &[], false),
    }
}
