//! The end of a step: norms, budgets and clips, the optimizer, the target, the priorities, the signals.

use std::ops::Range;

use cuda_std::{Access, Buf, Kernel};
use gpu::kernels::adam_ema::AdamEma;
use gpu::kernels::adam_groups::AdamGroups;
use gpu::kernels::gradient_norm::{GradientNorm, GradientReduce};
use gpu::kernels::learner_signals::LearnerSignals;
use gpu::kernels::step_signals::{StepSignals, signal};
use gpu::kernels::term_reduce::TermReduce;
use gpu::kernels::update_scales::UpdateScales;
use settings::Flat;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Touch};
use crate::extent::Extent;
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::parts::PartBuffers;
use crate::step::replay::update_priorities;
use crate::step::shape::StepShape;
use crate::step::{confidence, iql, vaccine};

/// Begins and ends on the main lane, which joins the lanes of further parameter groups, `groups_on`, when it has added the
/// terms; `vaccinated` where the step's held-out gradient is there.
pub fn update<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
    groups_on: &[Lane],
    vaccinated: bool,
) -> Result<(), ExecError> {
    match &b.parts {
        Some(parts) => groups(exec, shape, b, parts, replay, groups_on, vaccinated),
        None => plain(exec, shape, b, replay),
    }
}

/// One term, one group: the norm's first stage, then Adam, which adds it up.
fn plain<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
) -> Result<(), ExecError> {
    let (len, p) = (shape.layout.len as u32, &b.parameters);
    if shape.whole_gradient() {
        let norm = GradientNorm {
            len,
            grad: p.grad.into(),
            sums: b.sums.into(),
            clock_words: b.clock.into(),
            adam_words: b.adam.into(),
        };
        exec.launch(Lane::MAIN, &norm)?;
    } else {
        let reduce = GradientReduce {
            len,
            splits: shape.splits as u32,
            products: shape.layout.sigma as u32,
            scaled: shape.scaled() as u32,
            parts: b.c51.parts.into(),
            factors: b.factors.into(),
            grad: p.grad.into(),
            sums: b.sums.into(),
            clock_words: b.clock.into(),
            adam_words: b.adam.into(),
        };
        exec.launch(Lane::MAIN, &reduce)?;
    }
    let prioritized = update_priorities(exec, shape, b, replay)?;
    exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let signals = StepSignals {
        batch: shape.batch as u32,
        len,
        rows: shape.history as u32,
        stats: b.stats.into(),
        sums: b.sums.into(),
        history: b.history.into(),
        clock_words: b.clock.into(),
    };
    exec.launch(Lane::GRADIENT, &signals)?;
    let adam = AdamEma {
        len,
        hypers: b.hyper.into(),
        adam_words: b.adam.into(),
        sums: b.sums.into(),
        grad: p.grad.into(),
        params: p.online.into(),
        m: p.m.into(),
        v: p.v.into(),
        target: p.target.into(),
    };
    exec.launch(Lane::MAIN, &adam)?;
    if prioritized {
        exec.after(Lane::MAIN, Lane::REPLAY)?;
    }
    exec.after(Lane::MAIN, Lane::GRADIENT)
}

/// Launches a kernel that reads and writes some columns of the history alone: others are written beside it on another lane.
pub fn launch_on_columns<E: Exec, K: Kernel>(
    exec: &mut E,
    lane: Lane,
    kernel: &K,
    shape: &StepShape,
    history: Buf<f32>,
    (reads, writes): (Range<u32>, Range<u32>),
) -> Result<(), ExecError> {
    let touch = |columns: &Range<u32>, writes: bool| {
        let first = history.addr() + 4 * u64::from(columns.start);
        Touch {
            extent: Extent::matrix(first, shape.history, columns.len(), signal::COLUMNS as usize),
            writes,
        }
    };
    let touches = |access: &Access| match access.addr == history.addr() {
        true => vec![touch(&reads, false), touch(&writes, true)],
        false => vec![Touch::whole(access)],
    };
    let touches: Vec<Touch> = kernel.accesses().iter().flat_map(touches).collect();
    exec.launch_touching(lane, kernel, &touches)
}

/// Several terms or groups: inner products of the terms, all factors in one block, then one pass over all groups.
fn groups<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    replay: Option<&Replay>,
    groups_on: &[Lane],
    vaccinated: bool,
) -> Result<(), ExecError> {
    let (main, trunk, p) = (shape.layout.len as u32, shape.trunk_len() as u32, &b.parameters);
    let (full, partial) = (shape.full_terms() as u32, shape.trunk_terms() as u32);
    let splits = shape.splits as u32;
    let reduce = TermReduce {
        len: main,
        trunk,
        full,
        partial,
        splits,
        products: shape.layout.sigma as u32,
        scaled: shape.scaled() as u32,
        factors: b.factors.into(),
        parts: parts.partial.into(),
        trunk_parts: parts.trunk_parts.into(),
        grads: parts.grads.into(),
        trunk_grads: parts.trunk_grads.into(),
        sums: parts.sums.into(),
    };
    exec.launch(Lane::MAIN, &reduce)?;
    for &lane in groups_on {
        exec.after(Lane::MAIN, lane)?;
    }
    let vaccine = parts.vaccine.as_ref().filter(|_| vaccinated);
    if let Some(vaccine) = vaccine {
        vaccine::products(exec, shape, parts, vaccine)?;
    }
    let blocks = |floats: usize| floats.div_ceil(Flat::SEGMENT) as u32;
    let count = shape.flat.segments.len() as u32;
    let scales = UpdateScales {
        blocks: blocks(shape.layout.len),
        total: parts.squares.len() as u32,
        groups: count,
        ranges: parts.ranges.into(),
        sums: parts.sums.into(),
        squares: parts.squares.into(),
        budgets: parts.budgets.into(),
        hypers: b.hyper.into(),
        adam_words: b.adam.into(),
        scales: parts.scales.into(),
    };
    exec.launch(Lane::MAIN, &scales)?;
    if let Some(vaccine) = vaccine {
        vaccine::apply(exec, shape, b, parts, vaccine)?;
    }
    let prioritized = update_priorities(exec, shape, b, replay)?;
    exec.after(Lane::GRADIENT, Lane::MAIN)?;
    if let Some(buffers) = &parts.iql {
        // Beside the signals: one after the other, the two would end after Adam.
        exec.after(Lane::IQL, Lane::MAIN)?;
        iql::finish(exec, shape, b, parts, buffers)?;
    }
    let signals = LearnerSignals {
        batch: shape.batch as u32,
        rows: shape.history as u32,
        stats: b.stats.into(),
        weights: b.loss_weights(shape).into(),
        samples: parts.samples.into(),
        scales: parts.scales.into(),
        history: b.history.into(),
        clock_words: b.clock.into(),
    };
    launch_on_columns(exec, Lane::GRADIENT, &signals, shape, b.history, (0..0, 0..signal::IQL_GAP))?;
    if let Some(buffers) = parts.auxiliary.and_then(|auxiliary| auxiliary.confidence) {
        // One of its signals is the value networks' gap.
        if parts.iql.is_some() {
            exec.after(Lane::GRADIENT, Lane::IQL)?;
        }
        confidence::finish(exec, Lane::GRADIENT, shape, b, parts, &buffers)?;
    }
    let adam = AdamGroups {
        len: shape.flat.len as u32,
        main,
        trunk,
        full,
        partial,
        with_target: shape.flat.target_len() as u32,
        groups: count,
        ends: parts.ends.into(),
        hypers: b.hyper.into(),
        scales: parts.scales.into(),
        grads: parts.grads.into(),
        trunk_grads: parts.trunk_grads.into(),
        group_grads: p.grad.into(),
        params: p.online.into(),
        m: p.m.into(),
        v: p.v.into(),
        target: p.target.into(),
    };
    exec.launch(Lane::MAIN, &adam)?;
    if prioritized {
        exec.after(Lane::MAIN, Lane::REPLAY)?;
    }
    if parts.iql.is_some() {
        exec.after(Lane::MAIN, Lane::IQL)?;
    }
    exec.after(Lane::MAIN, Lane::GRADIENT)
}
