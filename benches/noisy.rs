//! Noisy heads and pruning at the sizes of P1 (SPEC section 9).

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::Buf;
use device::Bench;
use gpu::clock;
use gpu::kernels::noisy::{NoisyCompose, NoisyFactors, piece};
use gpu::kernels::prune::{DIGITS, PruneApply, PruneBegin, PruneDigits, PruneTies, ROUNDS, WARPS};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};
use host::step::{Matmul, StepBuffers, StepShape, noisy, prune};
use settings::{Config, NoisyLayout};

fn main() -> ExitCode {
    let mut config = Config::default();
    config.model.state = 80;
    config.model.noisy = true;
    (config.pruning.enabled, config.pruning.begin, config.pruning.end) = (true, 0, 1);
    device::run(|bench| {
        let shape = StepShape::new(&config, Matmul::Rust);
        noise(bench, &shape)?;
        pruning(bench, &shape)?;
        // What a step gets: both launches of the noise; all launches of a pruning.
        let buffers = StepBuffers::alloc(&mut bench.exec, &shape, &config.optimizer)?;
        let initial = cpu_path::init_parameters(&shape.flat, 1);
        bench.exec.upload(buffers.parameters.online, &initial)?;
        let bytes = Throughput::Bytes(4 * 7 * shape.heads_len() as u64);
        bench.sequence("noise of a step", "both networks", bytes, |exec, _| {
            exec.after(noisy::LANE, Lane::MAIN)?;
            noisy::step(exec, &shape, &buffers, true)?;
            exec.after(Lane::MAIN, noisy::LANE)
        })?;
        let bytes = Throughput::Bytes(4 * 2 * 9 * shape.layout.sigma as u64);
        bench.sequence("pruning", "all matrices", bytes, |exec, _| prune::prune(exec, &shape, &buffers))
    })
}

fn noise(bench: &mut Bench, shape: &StepShape) -> Result<(), ExecError> {
    let (heads, count) = (shape.heads_len(), NoisyLayout::new(&shape.model).factors);
    let words = bench.put("clock", &[0u64; clock::WORDS as usize])?;
    let factors: Buf<f32> = bench.exec.alloc("factors", 2 * count)?;
    let draw = NoisyFactors {
        count: count as u32,
        networks: 2,
        acting: 0,
        seed: 1,
        clock_words: words.into(),
        out: factors.into(),
    };
    bench.kernel(&format!("2 x {count}"), factors.bytes(), draw)?;
    // Sixteen matrices of the same size stand for the heads' tensors: the search among pieces is what counts.
    let each = heads / 16 / 256 * 256;
    let table: Vec<u32> = (0..16)
        .flat_map(|i| {
            let mut words = [0; piece::WORDS as usize];
            words[piece::FIRST as usize] = (i * each) as u32;
            words[piece::END as usize] = ((i + 1) * each) as u32;
            words[piece::INPUTS as usize] = 256;
            words[piece::OUTPUT_FACTORS as usize] = 256;
            words
        })
        .collect();
    let table = bench.put("table", &table)?;
    let (online, target) = (bench.random("online", 2 * heads)?, bench.random("target", 2 * heads)?);
    let effective: Buf<f32> = bench.exec.alloc("effective", 2 * heads)?;
    let noise: Buf<f32> = bench.exec.alloc("noise", heads)?;
    bench.kernel(
        &format!("2 x {heads} parameters"),
        online.bytes() + target.bytes() + effective.bytes() + noise.bytes(),
        NoisyCompose {
            heads: heads as u32,
            first: 0,
            networks: 2,
            keep: 1,
            pieces: 16,
            count: count as u32,
            table: table.into(),
            factors: factors.into(),
            online: online.into(),
            target: target.into(),
            effective: effective.into(),
            noise: noise.into(),
        },
    )
}

fn pruning(bench: &mut Bench, shape: &StepShape) -> Result<(), ExecError> {
    let matrices: Vec<_> = settings::Pruning::matrices(&shape.layout).collect();
    let words: Vec<u32> = matrices.iter().flat_map(|t| [t.offset as u32, t.len() as u32]).collect();
    let (count, blocks, len) = (matrices.len() as u32, 16, shape.layout.len as u32);
    let table = bench.put("table", &words)?;
    let clock_words = bench.put("clock", &[5u64; clock::WORDS as usize])?;
    let targets: Buf<u32> = bench.exec.alloc("targets", matrices.len())?;
    let zeros: Buf<u32> = bench.exec.alloc("zeros", matrices.len())?;
    let digits: Buf<u32> = bench.exec.alloc("digits", (ROUNDS * DIGITS) as usize * matrices.len())?;
    let ties: Buf<u32> = bench.exec.alloc("ties", (count * blocks * WARPS) as usize)?;
    let params = bench.random("params", len as usize)?;
    let (m, v) = (bench.random("m", len as usize)?, bench.random("v", len as usize)?);
    let mask = bench.put("mask", &vec![1.0f32; len as usize])?;
    let begin = PruneBegin {
        matrices: count,
        begin: 0,
        end: 1,
        sparsity: 0.5,
        table: table.into(),
        clock_words: clock_words.into(),
        targets: targets.into(),
        zeros: zeros.into(),
        digits: digits.into(),
    };
    bench.kernel(&format!("{count} matrices"), digits.bytes(), begin)?;
    let bytes = 2 * 4 * shape.layout.sigma as u64;
    let workload = format!("{} parameters in {count} matrices", shape.layout.sigma);
    // A round that counts again and again counts too much, which takes the same time.
    let digits_of = |round| PruneDigits {
        blocks,
        matrices: count,
        round,
        len,
        table: table.into(),
        targets: targets.into(),
        params: params.into(),
        mask: mask.into(),
        digits: digits.into(),
    };
    bench.kernel(&format!("{workload}, first digit"), bytes, digits_of(0))?;
    bench.kernel(&format!("{workload}, last digit"), bytes, digits_of(ROUNDS - 1))?;
    bench.kernel(
        &workload,
        bytes,
        PruneTies {
            blocks,
            matrices: count,
            len,
            table: table.into(),
            targets: targets.into(),
            params: params.into(),
            mask: mask.into(),
            digits: digits.into(),
            ties: ties.into(),
        },
    )?;
    bench.kernel(
        &workload,
        bytes,
        PruneApply {
            blocks,
            matrices: count,
            len,
            table: table.into(),
            targets: targets.into(),
            digits: digits.into(),
            ties: ties.into(),
            params: params.into(),
            m: m.into(),
            v: v.into(),
            mask: mask.into(),
            zeros: zeros.into(),
        },
    )
}
