//! The losses on the heads' logits: C51, and CQL beside it.

use cuda_std::Buf;
use gpu::kernels::c51_loss::{self, C51Loss, C51LossWide};
use gpu::kernels::cql_loss::{self, CqlLoss, CqlLossWide};
use gpu::kernels::learner_signals::sample;

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::StepBuffers;
use crate::step::shape::StepShape;

/// The C51 loss, and the CQL loss beside it. The former takes longer and more waits for it: it is recorded first, so that it starts
/// first (P1 in bf16: 223 us a step instead of 229).
pub(super) fn losses<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let parts = b.parts.as_ref();
    let ensemble = parts.and_then(|parts| parts.auxiliary?.ensemble);
    let cql = parts.and_then(|parts| Some((parts, parts.cql.as_ref()?)));
    if cql.is_some() {
        exec.after(Lane::CQL, Lane::MAIN)?;
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
    if c51_loss::is_narrow(shape.model.atoms, shape.logits) {
        launch!(C51Loss)?
    } else {
        launch!(C51LossWide)?
    }
    if let Some((parts, cql)) = cql {
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
        if cql_loss::is_narrow(shape.model.atoms, shape.logits) {
            launch!(CqlLoss)?
        } else {
            launch!(CqlLossWide)?
        }
        exec.after(Lane::MAIN, Lane::CQL)?;
    }
    Ok(())
}
