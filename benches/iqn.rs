//! The IQN head's kernels at the head of P1 (SPEC section 9: B = 1024, trunk 256, hidden 128, 64 cosines, 32 quantiles, 15
//! outputs), and the larger sizes at a quarter of P2's batch.

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::{Buf, Kernel};
use device::Bench;
use gpu::action;
use gpu::kernels::iqn::{
    self, Below, ChunkArguments, HeadBuffers, LossArguments, LossKernel, PackArguments, PackKernel,
};
use gpu::kernels::iqn::{Arithmetic, SELECT_AND_GATHER, TargetArguments, TargetKernel, TileSize};
use gpu::kernels::iqn::{ReduceArguments, ReduceKernel, Shape};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

const BLOCKS: u32 = 132;

/// Most blocks of a kernel, as in the step.
fn most<K: Kernel>() -> u32 {
    BLOCKS * K::DECL.resident.max(1)
}

fn main() -> ExitCode {
    device::run(|bench| {
        let p1 = shape(1024, 256, 64, 128, &[9, 3, 3]);
        let p2 = shape(4096, 512, 64, 256, &[9, 3, 3, 5]);
        let large = shape(1024, 256, 128, 512, &[9, 3, 3]);
        targets::<iqn::IqnTargetFp32Small>(bench, &p1)?;
        targets::<iqn::IqnTargetTf32Small>(bench, &p1)?;
        targets::<iqn::IqnTargetBf16Small>(bench, &p1)?;
        targets::<iqn::IqnTargetBf16GroupSmall>(bench, &p1)?;
        targets::<iqn::IqnTargetFp16GroupSmall>(bench, &p1)?;
        targets::<iqn::IqnTargetFp32Medium>(bench, &p2)?;
        targets::<iqn::IqnTargetTf32Medium>(bench, &p2)?;
        targets::<iqn::IqnTargetBf16Medium>(bench, &p2)?;
        targets::<iqn::IqnTargetBf16GroupMedium>(bench, &p2)?;
        targets::<iqn::IqnTargetFp16GroupMedium>(bench, &p2)?;
        targets::<iqn::IqnTargetFp32Large>(bench, &large)?;
        targets::<iqn::IqnTargetTf32Large>(bench, &large)?;
        targets::<iqn::IqnTargetBf16Large>(bench, &large)?;
        losses::<iqn::IqnLossFp32Small>(bench, &p1)?;
        losses::<iqn::IqnLossTf32Small>(bench, &p1)?;
        losses::<iqn::IqnLossBf16Small>(bench, &p1)?;
        two_losses::<iqn::IqnLossBf16GroupSmall, iqn::IqnChunksBf16Small>(bench, &p1)?;
        two_losses::<iqn::IqnLossFp16GroupSmall, iqn::IqnChunksFp16Small>(bench, &p1)?;
        losses::<iqn::IqnLossFp32Medium>(bench, &p2)?;
        losses::<iqn::IqnLossTf32Medium>(bench, &p2)?;
        losses::<iqn::IqnLossBf16Medium>(bench, &p2)?;
        two_losses::<iqn::IqnLossBf16GroupMedium, iqn::IqnChunksBf16Medium>(bench, &p2)?;
        two_losses::<iqn::IqnLossFp16GroupMedium, iqn::IqnChunksFp16Medium>(bench, &p2)?;
        losses::<iqn::IqnLossFp32Large>(bench, &large)?;
        losses::<iqn::IqnLossTf32Large>(bench, &large)?;
        losses::<iqn::IqnLossBf16Large>(bench, &large)?;
        reduce::<iqn::IqnLossTf32Small, iqn::IqnReduceSmall>(bench, &p1)?;
        reduce::<iqn::IqnLossTf32Medium, iqn::IqnReduceMedium>(bench, &p2)?;
        reduce::<iqn::IqnLossTf32Large, iqn::IqnReduceLarge>(bench, &large)?;
        reduce::<iqn::IqnLossBf16Small, iqn::IqnReduceHalfSmall>(bench, &p1)?;
        reduce::<iqn::IqnLossBf16Medium, iqn::IqnReduceHalfMedium>(bench, &p2)?;
        reduce::<iqn::IqnLossBf16Large, iqn::IqnReduceHalfLarge>(bench, &large)?;
        reduce::<iqn::IqnLossBf16GroupSmall, iqn::IqnReduceGroupSmall>(bench, &p1)?;
        reduce::<iqn::IqnLossBf16GroupMedium, iqn::IqnReduceGroupMedium>(bench, &p2)?;
        pack::<iqn::IqnLossTf32Small, iqn::IqnPackSmall>(bench, &p1)?;
        pack::<iqn::IqnLossTf32Medium, iqn::IqnPackMedium>(bench, &p2)?;
        pack::<iqn::IqnLossTf32Large, iqn::IqnPackLarge>(bench, &large)?;
        pack::<iqn::IqnLossBf16Small, iqn::IqnPackHalfSmall>(bench, &p1)?;
        pack::<iqn::IqnLossBf16Medium, iqn::IqnPackHalfMedium>(bench, &p2)?;
        pack::<iqn::IqnLossBf16Large, iqn::IqnPackHalfLarge>(bench, &large)?;
        pack::<iqn::IqnLossFp16GroupSmall, iqn::IqnPackFp16Small>(bench, &p1)?;
        pack::<iqn::IqnLossFp16GroupMedium, iqn::IqnPackFp16Medium>(bench, &p2)
    })
}

fn shape(batch: u32, trunk: u32, cosines: u32, hidden: u32, actions: &[usize]) -> Shape {
    Shape {
        batch,
        trunk,
        cosines,
        hidden,
        outputs: actions.iter().sum::<usize>() as u32,
        branches: actions.len() as u32,
        sizes: action::pack(actions),
        quantiles: 32,
        targets: 32,
        slope: 0.01,
    }
}

fn workload(s: &Shape) -> String {
    format!("{} x 32 x ({}, {}, {}, {})", s.batch, s.cosines, s.trunk, s.hidden, s.outputs)
}

/// Multiply-adds of one pass through the head count as two operations each.
fn forward(s: &Shape) -> u64 {
    let products = s.cosines * s.trunk + s.trunk * s.hidden + s.hidden * s.outputs;
    2 * u64::from(s.batch) * 32 * u64::from(products)
}

fn sizes(s: &Shape) -> [usize; 6] {
    let size = |a: u32, b: u32| (a * b) as usize;
    [
        size(s.trunk, s.cosines),
        size(s.trunk, 1),
        size(s.hidden, s.trunk),
        size(s.hidden, 1),
        size(s.outputs, s.hidden),
        size(s.outputs, 1),
    ]
}

fn packing(
    bench: &mut Bench,
    s: &Shape,
    size: TileSize,
    arithmetic: Arithmetic,
) -> Result<PackArguments, ExecError> {
    let [a, _, c, _, e, _] = sizes(s);
    Ok(PackArguments {
        arithmetic,
        cos_weight: bench.random("Wc", a)?,
        hid_weight: bench.random("Wh", c)?,
        out_weight: bench.random("Wo", e)?,
        packed: bench.exec.alloc("packed", size.packed(arithmetic, s.trunk, s.outputs))?,
    })
}

fn head<P: PackKernel>(
    bench: &mut Bench,
    s: &Shape,
    size: TileSize,
    arithmetic: Arithmetic,
) -> Result<HeadBuffers, ExecError> {
    let [_, b, _, d, _, f] = sizes(s);
    let arguments = packing(bench, s, size, arithmetic)?;
    bench.exec.launch(Lane::MAIN, &P::new(s, &arguments))?;
    Ok(HeadBuffers {
        h: bench.random("h", (s.batch * s.trunk) as usize)?,
        packed: arguments.packed,
        cos_bias: bench.random("bc", b)?,
        hid_bias: bench.random("bh", d)?,
        out_bias: bench.random("bo", f)?,
    })
}

/// Whether the loaded image has the kernel; says so when it has not.
fn there<K: Kernel>(bench: &Bench) -> bool {
    let there = bench.exec.has(&K::DECL);
    if !there {
        eprintln!("{}: not in the kernel image of this GPU", K::DECL.name);
    }
    there
}

fn targets<K: TargetKernel>(bench: &mut Bench, s: &Shape) -> Result<(), ExecError> {
    if !there::<K>(bench) {
        return Ok(());
    }
    let head = head::<K::Pack>(bench, s, K::SIZE, K::ARITHMETIC)?;
    let b = s.batch as usize;
    let arguments = TargetArguments {
        mode: SELECT_AND_GATHER,
        draw: true,
        blocks: most::<K>(),
        seed: 1,
        clock_words: bench.put("clock", &[0u64; 4])?,
        taus: bench.exec.alloc("taus", b * 32)?,
        greedy: bench.exec.alloc("greedy", b)?,
        next: bench.exec.alloc("next", b * s.branches as usize * 32)?,
    };
    let kernel = K::new(s, &head, &arguments);
    bench.sequence(K::DECL.name, &workload(s), Throughput::Elements(forward(s)), move |exec, _| {
        exec.launch(Lane::MAIN, &kernel)
    })
}

/// Floats of the planes of gradients.
fn planes<K: LossKernel>(s: &Shape) -> usize {
    K::blocks(s, most::<K>()).max(K::parts(s, BLOCKS)) as usize
        * K::SIZE.plane(K::ARITHMETIC, s.trunk, s.outputs)
}

fn losses<K: LossKernel>(bench: &mut Bench, s: &Shape) -> Result<(), ExecError> {
    if !there::<K>(bench) {
        return Ok(());
    }
    let head = head::<K::Pack>(bench, s, K::SIZE, K::ARITHMETIC)?;
    let b = s.batch as usize;
    let planes = planes::<K>(s);
    let arguments = LossArguments {
        kappa: 1.0,
        draw: true,
        blocks: most::<K>(),
        seed: 1,
        clock_words: bench.put("clock", &[0u64; 4])?,
        taus: bench.exec.alloc("taus", b * 32)?,
        next: bench.random("next", b * s.branches as usize * 32)?,
        actions: bench.exec.alloc("actions", b)?,
        rewards: bench.random("rewards", b)?,
        discounts: bench.put("discounts", &vec![0.99f32; b])?,
        weights: bench.put("weights", &vec![1.0f32; b])?,
        loss: bench.exec.alloc("loss", b)?,
        below: Below { output: head.h, slope: 0.01 },
        dh: bench.exec.alloc("dh", b * s.trunk as usize)?,
        planes: bench.exec.alloc("planes", planes)?,
        images: bench.exec.alloc("images", K::images(s).max(4))?,
    };
    let kernel = K::new(s, &head, &arguments);
    let LossArguments { images, below, dh, planes, .. } = arguments;
    let Some(chunks) = K::chunks(s, &head, &ChunkArguments { blocks: BLOCKS, images, below, dh, planes })
    else {
        let work = Throughput::Elements(3 * forward(s));
        return bench
            .sequence(K::DECL.name, &workload(s), work, move |exec, _| exec.launch(Lane::MAIN, &kernel));
    };
    // The first makes the forward pass, the second the rest: once more the trunk's part, and both gradients.
    let work = Throughput::Elements(forward(s));
    bench.sequence(K::DECL.name, &workload(s), work, move |exec, _| exec.launch(Lane::MAIN, &kernel))?;
    let work = Throughput::Elements(2 * forward(s));
    bench.sequence(K::Chunks::DECL.name, &workload(s), work, move |exec, _| exec.launch(Lane::MAIN, &chunks))
}

/// Those of warpgroups, whose backward pass goes on in the kernel `C`.
fn two_losses<K: LossKernel<Chunks = C>, C: Kernel>(bench: &mut Bench, s: &Shape) -> Result<(), ExecError> {
    losses::<K>(bench, s)
}

fn reduce<K: LossKernel<Reduce = R>, R: ReduceKernel>(bench: &mut Bench, s: &Shape) -> Result<(), ExecError> {
    let planes = planes::<K>(s);
    let planes = bench.random("planes", planes)?;
    let mut gradients = Vec::new();
    for len in sizes(s) {
        let buffer: Buf<f32> = bench.exec.alloc("gradient", len)?;
        gradients.push(buffer);
    }
    let gradients: [_; 6] = gradients.try_into().expect("six tensors");
    bench.kernel(
        &workload(s),
        planes.bytes(),
        R::new(
            s,
            &ReduceArguments {
                blocks: K::blocks(s, most::<K>()),
                parts: K::parts(s, BLOCKS),
                planes,
                gradients,
            },
        ),
    )
}

fn pack<K: LossKernel<Pack = P>, P: PackKernel>(bench: &mut Bench, s: &Shape) -> Result<(), ExecError> {
    let arguments = packing(bench, s, K::SIZE, K::ARITHMETIC)?;
    bench.kernel(&workload(s), arguments.packed.bytes(), P::new(s, &arguments))
}
