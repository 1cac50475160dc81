//! The training step as a sequence of launches on lanes: what one graph holds.
//!
//! Everything begins and ends on the main lane. Beside it run the target network's pass, the weight gradients, and what
//! the parts add: the IQN head from the moment both networks' features are there, the value networks, ensemble and
//! confidence head, the attention's folding, context and backward, the Mamba-2 block's. The pieces are joined before the
//! update.

use cuda_std::Buf;
use gpu::kernels::c51_loss::{C51Loss, C51LossWide};
use gpu::kernels::cql_loss::{CqlLoss, CqlLossWide};
use gpu::kernels::learner_signals::sample;
use gpu::kernels::spectral_norm::{SpectralColumns, SpectralRows, SpectralScale};

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::{Replay, StepBuffers, TermBuffers};
use crate::step::network::{Network, Planes, View};
use crate::step::parts::SpectralBuffers;
use crate::step::replay::{join_weights, sample_batch};
use crate::step::shape::{Layer, Output, StepShape};
use crate::step::update::update;
use crate::step::{attention, auxiliary, iql, iqn, mamba, noisy, vaccine};

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
    if let Some(parts) = &b.parts
        && let Some(iqn) = &parts.iqn
    {
        exec.after(Lane::IQN, Lane::MAIN)?;
        iqn::pack(exec, shape, b, iqn)?;
    }
    if let Some((parts, vaccine, held_out)) = vaccine {
        // With it come the folded attention and block, the step's noise and the spectral norm.
        vaccine::gradient(exec, shape, b, (parts, vaccine), held_out)?;
    } else {
        attention::fold(exec, shape, b)?;
        mamba::fold(exec, shape, b)?;
        noisy::step(exec, shape, b, draw)?;
        // The spectral norm waits for nothing but the last step.
        exec_spectral(exec, shape, b, Lane::GRADIENT)?;
        mamba::join(exec, shape, b)?;
    }
    if let Some(replay) = replay {
        sample_batch(exec, shape, b, replay)?;
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
            iqn::trunk(exec, shape, b, parts, iqn)?;
        }
    }
    auxiliary::forward(exec, shape, b)?;
    heads(exec, shape, b)?;
    if let Some(parts) = &b.parts
        && let Some(iql) = &parts.iql
    {
        exec.after(Lane::IQL, Lane::MAIN)?;
        iql::values(exec, shape, b, parts, iql)?;
        if shape.parts.iql.feeds_losses() {
            exec.after(Lane::MAIN, Lane::IQL)?;
        }
        if let Some(iqn) = &parts.iqn
            && weighted
        {
            exec.after(Lane::IQN, Lane::IQL)?;
            iqn::loss(exec, shape, b, parts, iqn, draw)?;
            iqn::trunk(exec, shape, b, parts, iqn)?;
        }
        iql::backward(exec, shape, b, parts, iql)?;
    }
    losses(exec, shape, b)?;
    auxiliary::backward(exec, shape, b)?;
    backward(exec, shape, b)?;
    if let Some(parts) = &b.parts {
        for (lane, used) in [
            (Lane::IQN, parts.iqn.is_some()),
            (Lane::IQL, parts.iql.is_some()),
            (Lane::AUX, parts.auxiliary.is_some()),
        ] {
            if used {
                exec.after(Lane::MAIN, lane)?;
            }
        }
    }
    update(exec, shape, b, replay, vaccine.is_some())
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
        Section::Spectral => exec_spectral(exec, shape, b, Lane::MAIN),
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
                iqn::pack(exec, shape, b, iqn)?;
                if shape.parts.iql.feeds_losses() {
                    exec.after(Lane::IQN, Lane::IQL)?;
                }
                iqn::next(exec, shape, b, iqn, replay.is_some())?;
                iqn::loss(exec, shape, b, parts, iqn, replay.is_some())?;
                iqn::trunk(exec, shape, b, parts, iqn)?;
                exec.after(Lane::MAIN, Lane::IQN)?;
            }
            if parts.iql.is_some() {
                exec.after(Lane::MAIN, Lane::IQL)?;
            }
            Ok(())
        }
        Section::Backward => backward(exec, shape, b),
        Section::Update => update(exec, shape, b, replay, false),
    }
}

/// Power iteration and scaling of the online trunk's weights, in place, on `lane`.
pub(super) fn exec_spectral<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    lane: Lane,
) -> Result<(), ExecError> {
    let Some(s) = &b.spectral else { return Ok(()) };
    let SpectralBuffers { matrices: [matrix0, matrix1, matrix2, matrix3], u, v, y, z, sigma, .. } = *s;
    // The trunk comes first; what lies behind it is read beside this.
    let (stride, params) = (s.stride as u32, b.parameters.online.slice(0, shape.trunk_len()));
    if lane != Lane::MAIN {
        exec.after(lane, Lane::MAIN)?;
    }
    exec.launch(
        lane,
        &SpectralColumns {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            u: u.into(),
            y: y.into(),
        },
    )?;
    exec.launch(
        lane,
        &SpectralRows {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            y: y.into(),
            v: v.into(),
            z: z.into(),
        },
    )?;
    exec.launch(
        lane,
        &SpectralScale {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            sigma_max: shape.parts.spectral.sigma_max,
            params: params.into(),
            z: z.into(),
            u: u.into(),
            sigma: sigma.into(),
        },
    )
}

/// h1, h2 and what the heads read, of the online network on the main lane and of the target network on its own.
pub(super) fn features<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let x = b.batch.x;
    let rows = shape.target_rows();
    let skipped = (2 * shape.batch - rows) * shape.stride;
    let target_x = x.slice(skipped, x.len() - skipped);
    exec.after(Lane::TARGET, Lane::MAIN)?;
    if shape.parts.mamba.enabled {
        mamba::trunks(exec, shape, b)?;
        return attention::apply(exec, shape, b);
    }
    Network { exec, shape, parameters: b.parameters.target }.trunk(
        Lane::TARGET,
        View::new(target_x, shape.stride),
        &b.target,
    )?;
    Network { exec, shape, parameters: b.parameters.online }.trunk(
        Lane::MAIN,
        View::new(x, shape.stride),
        &b.online,
    )?;
    attention::apply(exec, shape, b)
}

/// The heads of both networks; joins the target's lane.
pub(super) fn heads<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    if b.noise.is_some() {
        exec.after(Lane::TARGET, noisy::LANE)?;
        exec.after(Lane::MAIN, noisy::LANE)?;
    }
    Network { exec, shape, parameters: b.target_heads() }.heads(Lane::TARGET, &b.target)?;
    Network { exec, shape, parameters: b.online_heads() }.heads(Lane::MAIN, &b.online)?;
    exec.after(Lane::MAIN, Lane::TARGET)
}

/// The C51 loss, and the CQL loss beside it.
pub(super) fn losses<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let parts = b.parts.as_ref();
    let ensemble = parts.and_then(|parts| parts.auxiliary?.ensemble);
    if let Some((parts, cql)) = parts.and_then(|parts| Some((parts, parts.cql.as_ref()?))) {
        exec.after(Lane::CQL, Lane::MAIN)?;
        macro_rules! launch {
            ($kernel:ident) => {
                exec.launch(
                    Lane::CQL,
                    &$kernel {
                        batch: shape.batch as u32,
                        branches: shape.branches as u32,
                        sizes: shape.sizes,
                        atoms: shape.model.atoms as u32,
                        stride: shape.logits as u32,
                        alpha: shape.parts.cql.alpha,
                        support: b.support.into(),
                        logits: b.online.logits.slice(0, shape.batch * shape.logits).into(),
                        actions: b.batch.actions.into(),
                        gradient: cql.d_logits.into(),
                        loss: parts.sample(shape, sample::CQL, 1).into(),
                        per_branch: parts.cql_excess.into(),
                    },
                )
            };
        }
        if shape.model.atoms <= 64 { launch!(CqlLoss)? } else { launch!(CqlLossWide)? }
    }
    macro_rules! launch {
        ($kernel:ident) => {
            exec.launch(
                Lane::MAIN,
                &$kernel {
                    batch: shape.batch as u32,
                    branches: shape.branches as u32,
                    sizes: shape.sizes,
                    atoms: shape.model.atoms as u32,
                    stride: shape.logits as u32,
                    keep_target: ensemble.is_some().into(),
                    support: b.support.into(),
                    online: b.online.logits.into(),
                    target: b.target_next_logits(shape).into(),
                    actions: b.batch.actions.into(),
                    rewards: b.batch.rewards.into(),
                    discounts: b.batch.discounts.into(),
                    weights: b.loss_weights(shape).into(),
                    branch_scales: b.loss_scales(shape).into(),
                    gradient: b.c51.d_logits.into(),
                    stats: b.stats.into(),
                    cross_entropy: b.cross_entropy.into(),
                    td_error: b.td_error.into(),
                    mean_target: ensemble.map_or(Buf::NULL, |ensemble| ensemble.target).into(),
                },
            )
        };
    }
    if shape.model.atoms <= 64 {
        launch!(C51Loss)?
    } else {
        launch!(C51LossWide)?
    }
    if parts.is_some_and(|parts| parts.cql.is_some()) {
        exec.after(Lane::MAIN, Lane::CQL)?;
    }
    Ok(())
}

/// The data-gradient chain of all full terms on the main lane; each layer's weight gradient beside it as soon as its dY
/// is there; the attention's backward beside the trunk's.
pub(super) fn backward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let rows = shape.batch;
    let x = View::new(b.batch.x, shape.stride);
    let h1 = View::new(b.online.h1, shape.model.trunk1);
    let h2 = View::new(b.online.h2, shape.model.trunk2);
    let features = View::new(b.online.features, shape.model.trunk2);
    let hidden = View::new(b.online.hidden, shape.hidden);
    let mut terms = vec![&b.c51];
    terms.extend(b.parts.as_ref().and_then(|parts| parts.cql.as_ref()));
    let d_pre = |t: &TermBuffers| View::new(t.d_pre, shape.pre);
    let d_h2 = |t: &TermBuffers| View::new(t.d_h2, shape.model.trunk2);
    let d_h1 = |t: &TermBuffers| View::new(t.d_h1, shape.model.trunk1);
    // The terms' planes lie one behind the other, so that one launch takes the gradients of all terms.
    let data = b.parts.as_ref().map_or(b.c51.parts, |parts| parts.partial);
    let planes = Planes { data, first: 0, len: shape.layout.len };
    let of_term = |t: usize, layer: Layer| {
        let shift = t * shape.splits * shape.layout.len;
        Layer { weight: layer.weight + shift, bias: layer.bias + shift, ..layer }
    };
    let mut network = Network { exec, shape, parameters: b.online_heads() };

    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let mut gradients = Vec::new();
    for (t, term) in terms.iter().enumerate() {
        let d_logits = View::new(term.d_logits, shape.logits);
        let output = |o: &Output| (of_term(t, o.layer), d_logits.column(o.column), hidden.column(o.hidden));
        gradients.extend(shape.outputs.iter().map(output));
    }
    network.weight_gradients(Lane::GRADIENT, rows, planes, &gradients)?;

    network.backward_outputs(Lane::MAIN, &b.online, &terms)?;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let each = |dy_x: &dyn Fn(&TermBuffers) -> (Layer, View, View)| -> Vec<(Layer, View, View)> {
        let of = |(t, term): (usize, &&TermBuffers)| {
            let (layer, d_y, x) = dy_x(term);
            (of_term(t, layer), d_y, x)
        };
        terms.iter().enumerate().map(of).collect()
    };
    network.weight_gradients(Lane::GRADIENT, rows, planes, &each(&|t| (shape.heads1, d_pre(t), features)))?;

    // With attention the C51 term's gradient of h2' is needed as it is, besides its way on through h2.
    let mut layers: Vec<_> = terms.iter().map(|t| (shape.heads1, d_pre(t), Some(h2), d_h2(t))).collect();
    let attention = b.parts.as_ref().and_then(|parts| parts.attention.as_ref());
    if let Some(attention) = attention {
        let raw = View::new(attention.d_features, shape.model.trunk2);
        layers.push((shape.heads1, d_pre(&b.c51), None, raw));
    }
    network.backward(Lane::MAIN, rows, &layers)?;
    network.parameters = b.parameters.online;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    attention::backward(network.exec, shape, b)?;
    network.weight_gradients(Lane::GRADIENT, rows, planes, &each(&|t| (shape.trunk2, d_h2(t), h1)))?;

    let layers: Vec<_> = terms.iter().map(|t| (shape.trunk2, d_h2(t), Some(h1), d_h1(t))).collect();
    network.backward(Lane::MAIN, rows, &layers)?;
    mamba::backward(network.exec, shape, b)?;
    network.weight_gradients(Lane::MAIN, rows, planes, &each(&|t| (shape.trunk1, d_h1(t), x)))?;
    network.exec.after(Lane::MAIN, Lane::GRADIENT)?;
    if attention.is_some() {
        network.exec.after(Lane::MAIN, Lane::ATTENTION)?;
    }
    if shape.parts.mamba.enabled {
        network.exec.after(Lane::MAIN, Lane::MAMBA)?;
    }
    Ok(())
}
