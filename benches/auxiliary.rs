//! What the value networks feed back, the ensemble's, the confidence head's, the vaccine's and the probe's kernels at the
//! sizes of P1 (SPEC section 9).

mod device;

use std::process::ExitCode;

use cuda_std::Buf;
use device::Bench;
use gpu::clock;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::confidence_loss::{ConfidenceLoss, ConfidenceReduce, ConfidenceState, state};
use gpu::kernels::ensemble_loss::{EnsembleLoss, EnsembleLossWide};
use gpu::kernels::exploration_bonus::{ExplorationBonus, ExplorationBonusWide};
use gpu::kernels::iql_derive::{self, IqlDerive, IqlQuantiles, IqlState, derived};
use gpu::kernels::probe::{ProbeDifference, ProbePermute};
use gpu::kernels::step_signals::signal;
use gpu::kernels::term_reduce::PAIRS;
use gpu::kernels::update_scales::scale;
use gpu::kernels::vaccine::{PRODUCTS, VaccineApply, VaccineProducts};
use host::error::ExecError;
use host::exec::Memory;

const BATCH: usize = 1024;
const ROWS: u32 = 64;

fn main() -> ExitCode {
    device::run(|bench| {
        let words = bench.put("clock", &[1u64; clock::WORDS as usize])?;
        let mut scales = [0.5f32; scale::WORDS as usize];
        scales[scale::FINITE as usize] = 1.0;
        let scales = bench.put("scales", &scales)?;
        let history: Buf<f32> = bench.exec.alloc("history", (ROWS * signal::COLUMNS) as usize)?;
        values(bench, words, scales, history)?;
        ensemble(bench, words, 51)?;
        ensemble(bench, words, 101)?;
        exploration(bench, words, 51)?;
        exploration(bench, words, 101)?;
        confidence(bench, words, scales, history)?;
        variants(bench, words, scales, history)
    })
}

fn values(bench: &mut Bench, words: Buf<u64>, scales: Buf<f32>, history: Buf<f32>) -> Result<(), ExecError> {
    let branches = 3;
    let (q, values) = (bench.random("q", BATCH * branches)?, bench.random("values", 2 * BATCH)?);
    let weights = bench.random("weights", BATCH)?;
    let loss_weights: Buf<f32> = bench.exec.alloc("loss weights", BATCH)?;
    let means: Buf<f32> = bench.exec.alloc("means", derived::WORDS as usize)?;
    let branch_scales: Buf<f32> = bench.exec.alloc("branch scales", 8)?;
    let step: Buf<u64> = bench.exec.alloc("step", 1)?;
    let batch = BATCH as u32;
    bench.kernel(
        "1024 samples, 3 branches",
        q.bytes() + values.bytes() + 2 * weights.bytes(),
        IqlDerive {
            batch,
            branches: branches as u32,
            beta: 3.0,
            q: q.into(),
            values: values.into(),
            weights: weights.into(),
            clock_words: words.into(),
            loss_weights: loss_weights.into(),
            means: means.into(),
            branch_scales: branch_scales.into(),
            step: step.into(),
        },
    )?;
    let quantiles = means.slice(derived::QUANTILES as usize, 2);
    bench.kernel(
        "1024 samples",
        values.bytes(),
        IqlQuantiles { batch, values: values.into(), quantiles: quantiles.into() },
    )?;
    let averages: Buf<f32> = bench.exec.alloc("averages", iql_derive::state::WORDS as usize)?;
    let (epsilon, support) = (bench.put("epsilon", &[0.5f32])?, bench.put("support", &[-10.0f32, 10.0])?);
    bench.kernel(
        "one thread",
        means.bytes(),
        IqlState {
            rows: ROWS,
            rate: 0.01,
            epsilon_min: 0.05,
            epsilon_max: 0.5,
            adaptive_support: 1,
            support_rate: 0.001,
            support_margin: 0.1,
            support_floor: 2.0,
            means: means.into(),
            scales: scales.into(),
            step: step.into(),
            averages: averages.into(),
            epsilon: epsilon.into(),
            support: support.into(),
            history: history.into(),
        },
    )
}

fn ensemble(bench: &mut Bench, words: Buf<u64>, atoms: usize) -> Result<(), ExecError> {
    let members = 5;
    let stride = members * atoms.next_multiple_of(4);
    let support = bench.put("support", &[-10.0f32, 10.0])?;
    let logits = bench.random("logits", BATCH * stride)?;
    let target = bench.put("target", &vec![1.0 / atoms as f32; BATCH * atoms])?;
    let weights = bench.random("weights", BATCH)?;
    let d_logits: Buf<f32> = bench.exec.alloc("d logits", BATCH * stride)?;
    let (loss, uncertainty): (Buf<f32>, Buf<f32>) =
        (bench.exec.alloc("loss", BATCH)?, bench.exec.alloc("uncertainty", BATCH)?);
    macro_rules! measure {
        ($kernel:ident) => {
            bench.kernel(
                &format!("1024 x {members} x {atoms}"),
                logits.bytes() + target.bytes() + d_logits.bytes(),
                $kernel {
                    batch: BATCH as u32,
                    members: members as u32,
                    atoms: atoms as u32,
                    stride: stride as u32,
                    mask: 0.8,
                    lambda: 0.01,
                    seed: 1,
                    clock_words: words.into(),
                    support: support.into(),
                    logits: logits.into(),
                    target: target.into(),
                    weights: weights.into(),
                    d_logits: d_logits.into(),
                    loss: loss.into(),
                    uncertainty: uncertainty.into(),
                },
            )
        };
    }
    if atoms <= 64 { measure!(EnsembleLoss) } else { measure!(EnsembleLossWide) }
}

fn exploration(bench: &mut Bench, words: Buf<u64>, atoms: usize) -> Result<(), ExecError> {
    let members = 5;
    let stride = members * atoms.next_multiple_of(4);
    let support = bench.put("support", &[-10.0f32, 10.0])?;
    let logits = bench.random("logits", BATCH * stride)?;
    let (ring, rewards) = (bench.put("ring", &[BATCH as u64, 0])?, bench.random("rewards", BATCH)?);
    macro_rules! measure {
        ($kernel:ident) => {
            bench.kernel(
                &format!("1024 x {members} x {atoms}"),
                logits.bytes() + rewards.bytes(),
                $kernel {
                    environments: BATCH as u32,
                    members: members as u32,
                    atoms: atoms as u32,
                    stride: stride as u32,
                    capacity: BATCH as u32,
                    first: 0.1,
                    steps: 0,
                    clock_words: words.into(),
                    ring_words: ring.into(),
                    support: support.into(),
                    logits: logits.into(),
                    ring_rewards: rewards.into(),
                },
            )
        };
    }
    if atoms <= 56 { measure!(ExplorationBonus) } else { measure!(ExplorationBonusWide) }
}

fn confidence(
    bench: &mut Bench,
    words: Buf<u64>,
    scales: Buf<f32>,
    history: Buf<f32>,
) -> Result<(), ExecError> {
    let width = 256;
    let batch = BATCH as u32;
    let features = bench.random("features", BATCH * width)?;
    let d_hidden = bench.random("d hidden", BATCH * width)?;
    let stats = bench.random("stats", BATCH * stat::COLUMNS as usize)?;
    let (weight, signal_weight) = (bench.random("weight", width)?, bench.random("signal weight", 8)?);
    let bias = bench.random("bias", 1)?;
    let kept = bench.random("kept", state::WORDS as usize)?;
    let (loss, d_logit): (Buf<f32>, Buf<f32>) =
        (bench.exec.alloc("loss", BATCH)?, bench.exec.alloc("d logit", BATCH)?);
    bench.kernel(
        "1024 x 256",
        2 * features.bytes() + 2 * d_hidden.bytes(),
        ConfidenceLoss {
            batch,
            width: width as u32,
            slope: 0.01,
            accumulate: 1,
            features: features.into(),
            hidden: features.into(),
            stats: stats.into(),
            weight: weight.into(),
            signal_weight: signal_weight.into(),
            bias: bias.into(),
            kept: kept.into(),
            loss: loss.into(),
            d_logit: d_logit.into(),
            d_hidden: d_hidden.into(),
        },
    )?;
    let d_weight: Buf<f32> = bench.exec.alloc("d weight", width)?;
    let d_signal_weight: Buf<f32> = bench.exec.alloc("d signal weight", 8)?;
    let d_bias: Buf<f32> = bench.exec.alloc("d bias", 1)?;
    bench.kernel(
        "1024 x 256",
        features.bytes(),
        ConfidenceReduce {
            batch,
            width: width as u32,
            features: features.into(),
            d_logit: d_logit.into(),
            kept: kept.into(),
            d_weight: d_weight.into(),
            d_signal_weight: d_signal_weight.into(),
            d_bias: d_bias.into(),
        },
    )?;
    bench.kernel(
        "1024 samples",
        stats.bytes(),
        ConfidenceState {
            batch,
            rows: ROWS,
            rate: 0.01,
            stats: stats.into(),
            scales: scales.into(),
            clock_words: words.into(),
            kept: kept.into(),
            history: history.into(),
        },
    )
}

fn variants(
    bench: &mut Bench,
    words: Buf<u64>,
    scales: Buf<f32>,
    history: Buf<f32>,
) -> Result<(), ExecError> {
    // The main parameters and the trunk's share of them.
    let (len, trunk) = (323_584usize, 86_528usize);
    let blocks = len.div_ceil(1024);
    let grads = bench.random("grads", 2 * len)?;
    let trunk_grads = bench.random("trunk grads", 2 * trunk)?;
    let vaccine = bench.random("vaccine", len)?;
    let sums: Buf<f32> = bench.exec.alloc("sums", PAIRS as usize * blocks)?;
    let products: Buf<f32> = bench.exec.alloc("products", PRODUCTS as usize * blocks)?;
    let shape = format!("4 terms of {len}");
    bench.kernel(
        &shape,
        grads.bytes() + trunk_grads.bytes() + vaccine.bytes(),
        VaccineProducts {
            len: len as u32,
            trunk: trunk as u32,
            full: 2,
            partial: 2,
            grads: grads.into(),
            trunk_grads: trunk_grads.into(),
            vaccine: vaccine.into(),
            sums: sums.into(),
            products: products.into(),
        },
    )?;
    bench.kernel(
        &shape,
        3 * vaccine.bytes(),
        VaccineApply {
            len: len as u32,
            rows: ROWS,
            products: products.into(),
            scales: scales.into(),
            clock_words: words.into(),
            vaccine: vaccine.into(),
            gradient: grads.slice(0, len).into(),
            history: history.into(),
        },
    )?;
    let (stride, actions) = (80, 15);
    let states = bench.random("states", BATCH * stride)?;
    let probed: Buf<f32> = bench.exec.alloc("probed", BATCH * stride)?;
    bench.kernel(
        "1024 x 80",
        states.bytes() + probed.bytes(),
        ProbePermute {
            batch: BATCH as u32,
            stride: stride as u32,
            feature: 41,
            seed: 1,
            clock_words: words.into(),
            states: states.into(),
            probed: probed.into(),
        },
    )?;
    let (base, q) = (bench.random("base", BATCH * actions)?, bench.random("probed q", BATCH * actions)?);
    let sensitivity: Buf<f32> = bench.exec.alloc("sensitivity", 1)?;
    bench.kernel(
        "1024 x 15",
        base.bytes() + q.bytes(),
        ProbeDifference {
            len: (BATCH * actions) as u32,
            base: base.into(),
            q: q.into(),
            sensitivity: sensitivity.into(),
        },
    )
}
