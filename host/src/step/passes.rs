//! The main network's passes: both networks forward, and the full terms' gradients back through heads and trunk.

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::{StepBuffers, TermBuffers};
use crate::step::network::{Network, Planes, View};
use crate::step::shape::{Layer, Output, StepShape};
use crate::step::{attention, mamba, noisy, stored};

/// h1, h2 and what the heads read, of the online network on the main lane and of the target network on its own.
pub(super) fn features<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let x = b.batch.x;
    let rows = shape.target_rows();
    let skipped = (2 * shape.batch - rows) * shape.stride;
    let target_x = x.slice(skipped, x.len() - skipped);
    stored::batch(exec, b)?;
    exec.after(Lane::TARGET, Lane::MAIN)?;
    stored::parameters(exec, shape, b)?;
    if shape.parts.mamba.enabled {
        mamba::trunks(exec, shape, b)?;
        return attention::apply(exec, shape, b);
    }
    Network { exec, shape, parameters: b.parameters.target, copies: b.copies.as_ref() }.trunk(
        Lane::TARGET,
        View::new(target_x, shape.stride),
        &b.target,
    )?;
    Network { exec, shape, parameters: b.parameters.online, copies: b.copies.as_ref() }.trunk(
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
    Network { exec, shape, parameters: b.target_heads(), copies: b.copies.as_ref() }
        .heads(Lane::TARGET, &b.target)?;
    Network { exec, shape, parameters: b.online_heads(), copies: b.copies.as_ref() }
        .heads(Lane::MAIN, &b.online)?;
    exec.after(Lane::MAIN, Lane::TARGET)
}

/// The data-gradient chain of all full terms on the main lane; each layer's weight gradient beside it as soon as its dY
/// is there; the attention's backward beside the trunk's. Of two launches that wait for the same one the graph starts the one
/// recorded first, so the chain comes before what is beside it (P1-core: 99 us a step instead of 106).
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
    let mut network = Network { exec, shape, parameters: b.online_heads(), copies: b.copies.as_ref() };

    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let mut gradients = Vec::new();
    for (t, term) in terms.iter().enumerate() {
        let d_logits = View::new(term.d_logits, shape.logits);
        let output = |o: &Output| (of_term(t, o.layer), d_logits.column(o.column), hidden.column(o.hidden));
        gradients.extend(shape.outputs.iter().map(output));
    }
    network.backward_outputs(Lane::MAIN, &b.online, &terms)?;
    network.weight_gradients(Lane::GRADIENT, rows, planes, &gradients)?;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let each = |dy_x: &dyn Fn(&TermBuffers) -> (Layer, View, View)| -> Vec<(Layer, View, View)> {
        let of = |(t, term): (usize, &&TermBuffers)| {
            let (layer, d_y, x) = dy_x(term);
            (of_term(t, layer), d_y, x)
        };
        terms.iter().enumerate().map(of).collect()
    };
    // With attention the C51 term's gradient of h2' is needed as it is, besides its way on through h2.
    let attention = b.parts.as_ref().and_then(|parts| parts.attention.as_ref());
    let bare = attention.map(|attention| View::new(attention.d_features, shape.model.trunk2));
    let heads: Vec<_> = terms.iter().map(|t| (d_pre(t), d_h2(t))).collect();
    network.backward_heads(Lane::MAIN, rows, h2, &heads, bare)?;
    network.parameters = b.parameters.online;
    network.weight_gradients(Lane::GRADIENT, rows, planes, &each(&|t| (shape.heads1, d_pre(t), features)))?;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    attention::backward(network.exec, shape, b)?;
    let layers: Vec<_> = terms.iter().map(|t| (shape.trunk2, d_h2(t), Some(h1), d_h1(t))).collect();
    network.backward(Lane::MAIN, rows, &layers)?;
    network.weight_gradients(Lane::GRADIENT, rows, planes, &each(&|t| (shape.trunk2, d_h2(t), h1)))?;
    mamba::backward(network.exec, shape, b)?;
    network.weight_gradients(Lane::MAIN, rows, planes, &each(&|t| (shape.trunk1, d_h1(t), x)))?;
    network.exec.after(Lane::MAIN, Lane::GRADIENT)
}

/// Lanes that [`backward`] leaves to be joined: the groups with gradients of their own, which the update needs later than
/// the terms'.
pub fn beside_backward(shape: &StepShape) -> Vec<Lane> {
    let parts = &shape.parts;
    [(Lane::ATTENTION, parts.attention.enabled), (Lane::MAMBA, parts.mamba.enabled)]
        .into_iter()
        .filter_map(|(lane, used)| used.then_some(lane))
        .collect()
}
