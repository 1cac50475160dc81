//! From the device's history to rows of metrics.

use gpu::kernels::learner_signals::sample;
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use settings::Group;

use crate::step::StepShape;
use crate::train::agent::PartRow;

/// The parts' columns of a history row.
pub(super) fn part_row(shape: &StepShape, row: &[f32], step: u64) -> PartRow {
    let parts = &shape.parts;
    let column = |on: bool, column: u32| on.then(|| row[column as usize]);
    let loss = |on: bool, sample: u32| column(on, signal::SAMPLES + sample);
    let norm = |place: u32| row[(signal::NORM + place - scale::TERM_NORM) as usize];
    let term = |on: bool, term: u32| on.then(|| norm(scale::TERM_NORM + term));
    let group = |group: Group| {
        let place = shape.flat.segments.iter().position(|s| s.group == group)?;
        Some(norm(scale::GROUP_NORM + place as u32))
    };
    PartRow {
        loss_cql: loss(parts.cql.enabled, sample::CQL),
        loss_iqn: loss(parts.iqn.enabled, sample::IQN),
        loss_iql_high: loss(parts.iql.enabled, sample::IQL_LOSS),
        loss_iql_low: loss(parts.iql.enabled, sample::IQL_LOSS + 1),
        loss_ensemble: loss(parts.ensemble.enabled, sample::ENSEMBLE),
        uncertainty: loss(parts.ensemble.enabled, sample::UNCERTAINTY),
        loss_confidence: loss(parts.confidence.enabled, sample::CONFIDENCE),
        iql_gap: column(parts.iql.enabled, signal::IQL_GAP),
        iql_epsilon: column(parts.iql.enabled, signal::IQL_EPSILON),
        v_min: column(parts.iql.adaptive_support, signal::V_MIN),
        v_max: column(parts.iql.adaptive_support, signal::V_MAX),
        vaccine_cosine: column(parts.vaccine.is_in(step), signal::VACCINE_COSINE),
        td_median: column(parts.confidence.enabled, signal::TD_MEDIAN),
        norm_c51: term(parts.budgeted(), 0),
        norm_cql: term(parts.cql.enabled, 1),
        norm_iqn_trunk: term(parts.iqn.enabled, 2),
        norm_aux_trunk: term(parts.auxiliary(), 1 + shape.trunk_terms() as u32),
        norm_iqn: group(Group::Iqn),
        norm_attention: group(Group::Attention),
        norm_mamba: group(Group::Mamba),
        norm_iql_high: group(Group::IqlHigh),
        norm_iql_low: group(Group::IqlLow),
        norm_ensemble: group(Group::Ensemble),
        norm_confidence: group(Group::Confidence),
    }
}
