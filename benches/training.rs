//! Kernels of the training step at P1-core (SPEC section 9: B = 1024, branches 9, 3, 3, K = 51, S = 80, hidden 256, 256,
//! heads 128), and the same kernels at sizes that another configuration would give.

mod device;

use std::process::ExitCode;

use cuda_std::Buf;
use device::Bench;
use gpu::kernels::adam_ema::{AdamEma, hyper};
use gpu::kernels::bias_lrelu::{BiasGradient, BiasLrelu, LreluBackward};
use gpu::kernels::c51_loss::{self, C51Loss, C51LossWide, stat};
use gpu::kernels::dueling_q::{DuelingLogP, DuelingLogPWide, DuelingQ, DuelingQWide};
use gpu::kernels::gradient_norm::{GradientNorm, GradientReduce, partials};
use gpu::kernels::step_signals::{StepSignals, signal};
use gpu::{action, clock, logits};
use host::error::ExecError;
use host::exec::Memory;
use settings::{Layout, ModelShape};

const BATCH: usize = 1024;

fn main() -> ExitCode {
    device::run(|bench| {
        let network = ModelShape { state: 80, ..ModelShape::default() };
        activations(bench, &network)?;
        optimizer(bench, &network)?;
        losses(bench, &network, "1024 x (9, 3, 3) x 51")?;
        let wide = ModelShape { branches: vec![9, 3, 3, 5], atoms: 101, ..network };
        losses(bench, &wide, "1024 x (9, 3, 3, 5) x 101")
    })
}

fn activations(bench: &mut Bench, network: &ModelShape) -> Result<(), ExecError> {
    for (rows, cols) in [(2 * BATCH, network.trunk1), (2 * BATCH, network.heads_hidden())] {
        let (h, d) = (bench.random("h", rows * cols)?, bench.random("d", rows * cols)?);
        let bias = bench.random("bias", cols)?;
        let bytes = 4 * (rows * cols) as u64;
        let (rows, cols) = (rows as u32, cols as u32);
        let shape = format!("{rows} x {cols}");
        let slope = network.leaky_slope;
        let forward = BiasLrelu { rows, cols, stride: cols, slope, bias: bias.into(), x: h.into() };
        bench.kernel(&shape, 2 * bytes, forward)?;
        bench.kernel(
            &shape,
            3 * bytes,
            LreluBackward { rows, cols, stride: cols, slope, h: h.into(), d: d.into() },
        )?;
        let gradient = BiasGradient { rows, cols, stride: cols, d: d.into(), bias_gradient: bias.into() };
        bench.kernel(&shape, bytes, gradient)?;
    }
    Ok(())
}

fn optimizer(bench: &mut Bench, network: &ModelShape) -> Result<(), ExecError> {
    const SPLITS: usize = 4;
    const ROWS: usize = 64;
    let len = Layout::main(network).len;
    let (parameters, splits) = (len as u32, SPLITS as u32);
    let words = bench.put("clock", &[0u64; clock::WORDS as usize])?;
    let adam_words = bench.put("adam clock", &[0u64; clock::adam::WORDS as usize])?;
    let mut hypers = [0.0f64; hyper::WORDS as usize];
    for (at, value) in [
        (hyper::LR, 1e-4),
        (hyper::BETA1, 0.9),
        (hyper::BETA2, 0.999),
        (hyper::EPS, 1.5e-4),
        (hyper::MAX_NORM, 10.0),
        (hyper::TAU, 0.005),
        (hyper::LN_BETA1, 0.9f64.ln()),
        (hyper::LN_BETA2, 0.999f64.ln()),
    ] {
        hypers[at as usize] = value;
    }
    let hypers = bench.put("hypers", &hypers)?;
    let parts = bench.random("parts", SPLITS * len)?;
    let grad = bench.random("grad", len)?;
    let sums: Buf<f32> = bench.exec.alloc("sums", partials(parameters) as usize)?;
    let (params, target) = (bench.random("params", len)?, bench.random("target", len)?);
    let (m, v): (Buf<f32>, Buf<f32>) = (bench.exec.alloc("m", len)?, bench.exec.alloc("v", len)?);
    let stats = bench.random("stats", BATCH * stat::COLUMNS as usize)?;
    let history: Buf<f32> = bench.exec.alloc("history", ROWS * signal::COLUMNS as usize)?;
    let bytes = 4 * len as u64;
    let shape = format!("{len} parameters");
    bench.kernel(
        &format!("{shape}, {SPLITS} splits"),
        bytes * (SPLITS as u64 + 1),
        GradientReduce {
            len: parameters,
            splits,
            products: parameters,
            scaled: parameters,
            parts: parts.into(),
            factors: parts.into(),
            grad: grad.into(),
            sums: sums.into(),
            clock_words: words.into(),
            adam_words: adam_words.into(),
        },
    )?;
    bench.kernel(
        &shape,
        bytes,
        GradientNorm {
            len: parameters,
            grad: grad.into(),
            sums: sums.into(),
            clock_words: words.into(),
            adam_words: adam_words.into(),
        },
    )?;
    bench.kernel(
        &shape,
        9 * bytes,
        AdamEma {
            len: parameters,
            hypers: hypers.into(),
            adam_words: adam_words.into(),
            sums: sums.into(),
            grad: grad.into(),
            params: params.into(),
            m: m.into(),
            v: v.into(),
            target: target.into(),
        },
    )?;
    bench.kernel(
        "1024 rows",
        stats.bytes(),
        StepSignals {
            batch: BATCH as u32,
            len: parameters,
            rows: ROWS as u32,
            stats: stats.into(),
            sums: sums.into(),
            history: history.into(),
            clock_words: words.into(),
        },
    )
}

fn losses(bench: &mut Bench, network: &ModelShape, shape: &str) -> Result<(), ExecError> {
    let (sizes, branches, atoms) = (action::pack(&network.branches), network.branches.len(), network.atoms);
    let (branch_count, atom_count) = (branches as u32, atoms as u32);
    let stride = logits::columns(sizes, branch_count, atom_count);
    let floats = BATCH * stride as usize;
    let support = bench.put("support", &[network.v_min, network.v_max])?;
    let (online, target) = (bench.random("online", 2 * floats)?, bench.random("target", floats)?);
    let rewards = bench.random("rewards", BATCH)?;
    let (discounts, weights) =
        (bench.put("discounts", &[0.99f32; BATCH])?, bench.put("weights", &[1.0f32; BATCH])?);
    // Every action is taken by some sample.
    let taken = |i: usize| action::pack(&network.branches.iter().map(|n| i % n).collect::<Vec<_>>());
    let actions = bench.put("actions", &(0..BATCH).map(taken).collect::<Vec<u64>>())?;
    let gradient: Buf<f32> = bench.exec.alloc("gradient", floats)?;
    let stats: Buf<f32> = bench.exec.alloc("stats", BATCH * stat::COLUMNS as usize)?;
    let cross_entropy: Buf<f32> = bench.exec.alloc("cross-entropy", BATCH * branches)?;
    let td_error: Buf<f32> = bench.exec.alloc("td error", BATCH * branches)?;
    let mean_target: Buf<f32> = bench.exec.alloc("mean target", BATCH * atoms)?;
    let branch_scales = bench.put("branch scales", &[1.0f32; 8])?;
    let q: Buf<f32> = bench.exec.alloc("q", BATCH * network.actions())?;
    let log_p: Buf<f32> = bench.exec.alloc("log p", BATCH * network.actions() * atoms)?;
    let bytes = 4 * floats as u64;
    macro_rules! measure {
        ($loss:ident, $q:ident, $log_p:ident) => {{
            bench.kernel(
                shape,
                4 * bytes,
                $loss {
                    batch: BATCH as u32,
                    branches: branch_count,
                    sizes,
                    atoms: atom_count,
                    stride,
                    keep_target: 1,
                    support: support.into(),
                    online: online.into(),
                    target: target.into(),
                    actions: actions.into(),
                    rewards: rewards.into(),
                    discounts: discounts.into(),
                    weights: weights.into(),
                    branch_scales: branch_scales.into(),
                    gradient: gradient.into(),
                    stats: stats.into(),
                    cross_entropy: cross_entropy.into(),
                    td_error: td_error.into(),
                    mean_target: mean_target.into(),
                },
            )?;
            bench.kernel(
                shape,
                bytes + q.bytes(),
                $q {
                    rows: BATCH as u32,
                    branches: branch_count,
                    sizes,
                    atoms: atom_count,
                    stride,
                    support: support.into(),
                    logits: target.into(),
                    q: q.into(),
                },
            )?;
            bench.kernel(
                shape,
                bytes + log_p.bytes(),
                $log_p {
                    rows: BATCH as u32,
                    branches: branch_count,
                    sizes,
                    atoms: atom_count,
                    stride,
                    logits: target.into(),
                    log_p: log_p.into(),
                },
            )
        }};
    }
    if c51_loss::is_narrow(atoms, stride as usize) {
        measure!(C51Loss, DuelingQ, DuelingLogP)
    } else {
        measure!(C51LossWide, DuelingQWide, DuelingLogPWide)
    }
}
