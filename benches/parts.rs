//! Kernels of the parts beside the C51 loss at the sizes of P1 (SPEC section 9), and of the update that they share.

mod device;

use std::process::ExitCode;

use cuda_std::Buf;
use device::Bench;
use gpu::kernels::adam_ema::hyper;
use gpu::kernels::adam_groups::AdamGroups;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::cql_loss::{self, CqlLoss, CqlLossWide};
use gpu::kernels::iql_loss::IqlLoss;
use gpu::kernels::learner_signals::{LearnerSignals, sample};
use gpu::kernels::step_signals::signal;
use gpu::kernels::taken_q::{TakenQ, TakenQWide};
use gpu::kernels::term_reduce::{GroupReduce, GroupSquares, PAIRS, TermReduce};
use gpu::kernels::update_scales::{UpdateScales, scale};
use gpu::{action, clock, logits};
use host::error::ExecError;
use host::exec::Memory;
use host::step::{Matmul, StepShape};
use settings::{Config, Flat};

const BATCH: usize = 1024;

/// P1 with everything that has a gradient.
fn config() -> Config {
    let mut config = Config::default();
    config.model.state = 80;
    config.model.window = 8;
    config.model.bar_features = 9;
    config.cql.enabled = true;
    config.iqn.enabled = true;
    config.iql.enabled = true;
    config.attention.enabled = true;
    config
}

fn main() -> ExitCode {
    device::run(|bench| {
        update(bench, &StepShape::new(&config(), Matmul::Rust))?;
        losses(bench, &config())?;
        let mut wide = config();
        wide.model.branches = vec![9, 3, 3, 5];
        wide.model.atoms = 101;
        losses(bench, &wide)?;
        values(bench, &config())
    })
}

fn update(bench: &mut Bench, shape: &StepShape) -> Result<(), ExecError> {
    let (len, main, trunk) = (shape.flat.len, shape.layout.len, shape.trunk_len());
    let (splits, floats) = (shape.splits, |n: usize| 4 * n as u64);
    let blocks = |n: usize| n.div_ceil(Flat::SEGMENT);
    let ends: Vec<u32> = shape.flat.segments.iter().map(|s| blocks(s.offset + s.len) as u32).collect();
    let groups = ends.len() as u32;
    let range = |s: &settings::Segment| [blocks(s.offset) as u32, blocks(s.offset + s.len) as u32];
    let ranges: Vec<u32> = shape.flat.segments.iter().flat_map(range).collect();
    let ranges = bench.put("ranges", &ranges)?;
    let ends = bench.put("ends", &ends)?;
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
    let budgets = bench.put("budgets", &[6.0f32, 2.5, 1.0, 0.5])?;
    let words = bench.put("clock", &[0u64; clock::WORDS as usize])?;
    let adam_words = bench.put("adam clock", &[0u64; clock::adam::WORDS as usize])?;
    let parts = bench.random("parts", 2 * splits * main)?;
    let trunk_parts = bench.random("trunk parts", splits * trunk)?;
    let grads: Buf<f32> = bench.exec.alloc("grads", 2 * main)?;
    let trunk_grads: Buf<f32> = bench.exec.alloc("trunk grads", trunk)?;
    let group_grads = bench.random("group grads", len)?;
    let sums: Buf<f32> = bench.exec.alloc("sums", PAIRS as usize * blocks(main))?;
    let squares: Buf<f32> = bench.exec.alloc("squares", blocks(len))?;
    let scales: Buf<f32> = bench.exec.alloc("scales", scale::WORDS as usize)?;
    bench.kernel(
        &format!("2 terms of {main}, 1 of {trunk}, {splits} splits"),
        parts.bytes() + trunk_parts.bytes() + grads.bytes() + trunk_grads.bytes(),
        TermReduce {
            len: main as u32,
            trunk: trunk as u32,
            full: 2,
            partial: 1,
            splits: splits as u32,
            products: main as u32,
            scaled: main as u32,
            factors: parts.into(),
            parts: parts.into(),
            trunk_parts: trunk_parts.into(),
            grads: grads.into(),
            trunk_grads: trunk_grads.into(),
            sums: sums.into(),
        },
    )?;
    let group = 26_880;
    let reduce = GroupReduce {
        len: group,
        splits: splits as u32,
        plane: group,
        parts: parts.into(),
        grad: group_grads.into(),
        squares: squares.into(),
    };
    bench.kernel(
        &format!("{group} parameters, {splits} splits"),
        floats((splits + 1) * group as usize),
        reduce,
    )?;
    let own = (len - main) as u32 / 4 * 4;
    let norm = GroupSquares { len: own, grad: group_grads.into(), squares: squares.into() };
    bench.kernel(&format!("{own} parameters"), floats(own as usize), norm)?;
    bench.kernel(
        &format!("{groups} groups, {} blocks", blocks(len)),
        sums.bytes() + squares.bytes(),
        UpdateScales {
            blocks: blocks(main) as u32,
            total: blocks(len) as u32,
            groups,
            ranges: ranges.into(),
            sums: sums.into(),
            squares: squares.into(),
            budgets: budgets.into(),
            hypers: hypers.into(),
            adam_words: adam_words.into(),
            scales: scales.into(),
        },
    )?;
    let target = shape.flat.target_len();
    let (params, goal) = (bench.random("params", len)?, bench.random("target", target)?);
    let (m, v): (Buf<f32>, Buf<f32>) = (bench.exec.alloc("m", len)?, bench.exec.alloc("v", len)?);
    bench.kernel(
        &format!("{len} parameters in {groups} groups"),
        floats(7 * len + 2 * target + 2 * main),
        AdamGroups {
            len: len as u32,
            main: main as u32,
            trunk: trunk as u32,
            full: 2,
            partial: 1,
            with_target: target as u32,
            groups,
            ends: ends.into(),
            hypers: hypers.into(),
            scales: scales.into(),
            grads: grads.into(),
            trunk_grads: trunk_grads.into(),
            group_grads: group_grads.into(),
            params: params.into(),
            m: m.into(),
            v: v.into(),
            target: goal.into(),
        },
    )?;
    let stats = bench.random("stats", BATCH * stat::COLUMNS as usize)?;
    let samples = bench.random("samples", BATCH * sample::ROWS as usize)?;
    let history: Buf<f32> = bench.exec.alloc("history", 64 * signal::COLUMNS as usize)?;
    bench.kernel(
        "1024 samples",
        stats.bytes() + samples.bytes(),
        LearnerSignals {
            batch: BATCH as u32,
            rows: 64,
            stats: stats.into(),
            weights: samples.into(),
            samples: samples.into(),
            scales: scales.into(),
            history: history.into(),
            clock_words: words.into(),
        },
    )
}

fn losses(bench: &mut Bench, config: &Config) -> Result<(), ExecError> {
    let model = &config.model;
    let (sizes, branches, atoms) = (action::pack(&model.branches), model.branches.len(), model.atoms);
    let (branch_count, atom_count) = (branches as u32, atoms as u32);
    let stride = logits::columns(sizes, branch_count, atom_count);
    let shape = format!("1024 x {:?} x {atoms}", model.branches);
    let support = bench.put("support", &[model.v_min, model.v_max])?;
    let online = bench.random("online", BATCH * stride as usize)?;
    let taken = |i: usize| action::pack(&model.branches.iter().map(|n| i % n).collect::<Vec<_>>());
    let actions = bench.put("actions", &(0..BATCH).map(taken).collect::<Vec<u64>>())?;
    let gradient: Buf<f32> = bench.exec.alloc("gradient", BATCH * stride as usize)?;
    let loss: Buf<f32> = bench.exec.alloc("loss", BATCH)?;
    let per_branch: Buf<f32> = bench.exec.alloc("per branch", BATCH * branches)?;
    macro_rules! measure {
        ($cql:ident, $taken:ident) => {{
            bench.kernel(
                &shape,
                2 * online.bytes(),
                $cql {
                    batch: BATCH as u32,
                    branches: branch_count,
                    sizes,
                    atoms: atom_count,
                    stride,
                    alpha: 0.1,
                    support: support.into(),
                    logits: online.into(),
                    actions: actions.into(),
                    gradient: gradient.into(),
                    loss: loss.into(),
                    per_branch: per_branch.into(),
                },
            )?;
            bench.kernel(
                &shape,
                online.bytes(),
                $taken {
                    rows: BATCH as u32,
                    branches: branch_count,
                    sizes,
                    atoms: atom_count,
                    stride,
                    support: support.into(),
                    logits: online.into(),
                    actions: actions.into(),
                    q: per_branch.into(),
                },
            )
        }};
    }
    if cql_loss::is_narrow(atoms, stride as usize) {
        measure!(CqlLoss, TakenQ)
    } else {
        measure!(CqlLossWide, TakenQWide)
    }
}

fn values(bench: &mut Bench, config: &Config) -> Result<(), ExecError> {
    let (width, branches) = (config.iql.hidden, config.model.branches.len());
    let q = bench.random("q", BATCH * branches)?;
    let hidden = bench.random("hidden", 2 * BATCH * width)?;
    let parameters = bench.random("parameters", 2 * (width + 1))?;
    let values: Buf<f32> = bench.exec.alloc("values", 2 * BATCH)?;
    let loss: Buf<f32> = bench.exec.alloc("loss", 2 * BATCH)?;
    let d_value: Buf<f32> = bench.exec.alloc("d value", 2 * BATCH)?;
    let d_hidden: Buf<f32> = bench.exec.alloc("d hidden", 2 * BATCH * width)?;
    bench.kernel(
        &format!("2 x 1024 x {width}"),
        hidden.bytes() + d_hidden.bytes(),
        IqlLoss {
            batch: BATCH as u32,
            branches: branches as u32,
            width: width as u32,
            slope: 0.01,
            tau_high: 0.7,
            tau_low: 0.3,
            weight_high: 0,
            bias_high: width as u32,
            weight_low: width as u32 + 1,
            bias_low: 2 * width as u32 + 1,
            q: q.into(),
            hidden: hidden.into(),
            parameters: parameters.into(),
            values: values.into(),
            loss: loss.into(),
            d_value: d_value.into(),
            d_hidden: d_hidden.into(),
        },
    )
}
