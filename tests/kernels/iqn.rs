//! Bodies for the IQN kernels against their reference (`gpu/tests/iqn` has further ones, for the emulator alone).

// The cases of the gpu crate's own tests; not all of them are used here.
#[allow(dead_code)]
#[path = "../../gpu/tests/iqn/case.rs"]
mod case;

use cuda_std::Kernel;
use gpu::action;
use gpu::kernels::gemm::reference::Rounding;
use gpu::kernels::iqn::reference::Gradients;
use gpu::kernels::iqn::{
    self, Arithmetic, Below, ChunkArguments, HeadBuffers, LossArguments, LossKernel, PackArguments,
    PackKernel,
};
use gpu::kernels::iqn::{
    ReduceArguments, ReduceKernel, SELECT_AND_GATHER, TargetArguments, TargetKernel, TileSize,
};
use host::error::ExecError;

use self::case::{Case, Dims, distance, norm};
use super::{Backend, Outcome, filled, launch, put, random};

/// SPEC section 8 in fp32. On the tensor cores the reference rounds the same operands to the same bits, and what is left
/// are operands that an error of f32's size moves to the neighbouring rounding.
fn bounds(rounding: Rounding) -> (f64, f64) {
    match rounding {
        Rounding::Exact => (1e-4, 1e-3),
        Rounding::Tf32 => (1e-3, 5e-3),
        Rounding::Bf16 => (1e-2, 4e-2),
    }
}

/// A head in memory, its weights laid out by a launch.
fn head<B: Backend, P: PackKernel>(
    b: &mut B,
    case: &Case,
    size: TileSize,
    arithmetic: Arithmetic,
) -> Result<HeadBuffers, ExecError> {
    let (shape, h) = (case.shape(), put(b, "h", &case.h)?);
    let mut tensors = Vec::new();
    for values in &case.online.0 {
        tensors.push(put(b, "parameters", values)?);
    }
    let packed = filled(b, "packed", size.packed(arithmetic, shape.trunk, shape.outputs), f32::NAN)?;
    let [cos_weight, cos_bias, hid_weight, hid_bias, out_weight, out_bias] =
        tensors.try_into().expect("six tensors");
    launch(b, P::new(&shape, &PackArguments { arithmetic, cos_weight, hid_weight, out_weight, packed }))?;
    Ok(HeadBuffers { h, packed, cos_bias, hid_bias, out_bias })
}

/// Every weight is laid out once, rounded, and beside them there are only zeros. (Where each lies is what the losses show.)
fn packed<B: Backend, K: LossKernel<Pack = P>, P: PackKernel>(
    b: &mut B,
    rounding: Rounding,
    dims: Dims,
) -> Outcome {
    let case = Case::random(dims, 3);
    let packed = head::<B, P>(b, &case, K::SIZE, K::ARITHMETIC)?.packed;
    let words = b.download(packed)?;
    let got: Vec<f32> = match rounding {
        _ if K::ARITHMETIC == Arithmetic::Fp16 => {
            let halves = words.iter().flat_map(|w| [w.to_bits() as u16, (w.to_bits() >> 16) as u16]);
            halves.map(|bits| half::f16::from_bits(bits).to_f32()).collect()
        }
        Rounding::Bf16 => {
            let halves = words.iter().flat_map(|w| [w.to_bits() << 16, w.to_bits() & 0xffff_0000]);
            halves.map(f32::from_bits).collect()
        }
        _ => words,
    };
    let sorted = |mut values: Vec<f64>| {
        values.retain(|&value| value != 0.0);
        values.sort_by(f64::total_cmp);
        values
    };
    let rounded = |value: f32| match rounding {
        _ if K::ARITHMETIC == Arithmetic::Fp16 => half::f16::from_f32(value).to_f64(),
        Rounding::Exact => value.into(),
        _ => rounding.apply(value),
    };
    let weights = [0, 2, 4].into_iter().flat_map(|i| case.online.0[i].iter().copied());
    let (got, want) =
        (sorted(got.into_iter().map(f64::from).collect()), sorted(weights.map(rounded).collect()));
    assert!(got == want, "{}: {} numbers, expected {}", P::DECL.name, got.len(), want.len());
    Ok(())
}

/// Loss kernel and reduction against the reference.
fn loss<B: Backend, K: LossKernel<Pack = P, Reduce = R>, P: PackKernel, R: ReduceKernel>(
    b: &mut B,
    rounding: Rounding,
    dims: Dims,
    blocks: u32,
) -> Outcome {
    let case = Case::random(dims, 3);
    let (shape, head) = (case.shape(), head::<B, P>(b, &case, K::SIZE, K::ARITHMETIC)?);
    let plane = K::SIZE.plane(K::ARITHMETIC, shape.trunk, shape.outputs);
    let (launched, parts) = (K::blocks(&shape, blocks), K::parts(&shape, blocks));
    let actions: Vec<u64> = case.actions.iter().map(|a| action::pack(a)).collect();
    let arguments = LossArguments {
        kappa: case.kappa,
        draw: false,
        blocks,
        seed: 0,
        clock_words: filled(b, "clock", 4, 0u64)?,
        taus: put(b, "taus", &case.taus)?,
        next: put(b, "next", &case.next)?,
        actions: put(b, "actions", &actions)?,
        rewards: put(b, "rewards", &case.rewards)?,
        discounts: put(b, "discounts", &case.discounts)?,
        weights: put(b, "weights", &case.weights)?,
        loss: filled(b, "loss", dims.batch, f32::NAN)?,
        below: Below { output: put(b, "below", &case.below)?, slope: case.below_slope },
        dh: filled(b, "dh", case.h.len(), f32::NAN)?,
        planes: filled(b, "planes", launched.max(parts) as usize * plane, f32::NAN)?,
        images: filled(b, "images", K::images(&shape).max(4), f32::NAN)?,
    };
    launch(b, K::new(&shape, &head, &arguments))?;
    let LossArguments { images, below, dh, planes, .. } = arguments;
    if let Some(chunks) = K::chunks(&shape, &head, &ChunkArguments { blocks, images, below, dh, planes }) {
        launch(b, chunks)?;
    }
    let mut gradients = Vec::new();
    for values in &case.online.0 {
        gradients.push(filled(b, "gradient", values.len(), f32::NAN)?);
    }
    let to: [_; 6] = gradients.clone().try_into().expect("six tensors");
    let reduce = ReduceArguments { blocks: launched, parts, planes, gradients: to };
    launch(b, R::new(&shape, &reduce))?;

    let expected: Gradients = case.sizes(rounding).gradients(
        &case.online.parameters(),
        &case.samples(&case.taus),
        case.kappa.into(),
    );
    let (loss_bound, gradient_bound) = bounds(rounding);
    let name = K::DECL.name;
    for (i, (&got, &want)) in b.download(arguments.loss)?.iter().zip(&expected.loss).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= loss_bound * want.abs(), "{name}, loss of sample {i}: {got}, expected {want}");
    }
    let p = &expected.parameters;
    let tensors =
        [&p.cos_weight, &p.cos_bias, &p.hid_weight, &p.hid_bias, &p.out_weight, &p.out_bias].map(|t| &t[..]);
    let group = norm(&tensors.map(norm));
    for (i, (buffer, want)) in gradients.iter().zip(tensors).enumerate() {
        let off = distance(&b.download(*buffer)?, want, 1e-3 * group);
        assert!(off <= gradient_bound, "{name}, gradient of tensor {i} is off by {off}");
    }
    let off = distance(&b.download(arguments.dh)?, &case.through(&expected.dh), 0.0);
    assert!(off <= gradient_bound, "{name}, gradient of h is off by {off}");
    Ok(())
}

/// The same of warpgroups, whose backward pass goes on in the kernel `C`.
fn two_losses<B: Backend, K, P: PackKernel, R: ReduceKernel, C: Kernel>(
    b: &mut B,
    rounding: Rounding,
    dims: Dims,
    blocks: u32,
) -> Outcome
where
    K: LossKernel<Pack = P, Reduce = R, Chunks = C>,
{
    assert_ne!(K::DECL.name, C::DECL.name, "one kernel makes all gradients");
    loss::<B, K, P, R>(b, rounding, dims, blocks)
}

/// Greedy actions and their quantiles against the reference.
fn target<B: Backend, K: TargetKernel>(b: &mut B, rounding: Rounding, dims: Dims, blocks: u32) -> Outcome {
    let case = Case::random(dims, 9);
    let (shape, head) = (case.shape(), head::<B, K::Pack>(b, &case, K::SIZE, K::ARITHMETIC)?);
    let arguments = TargetArguments {
        mode: SELECT_AND_GATHER,
        draw: false,
        blocks,
        seed: 0,
        clock_words: filled(b, "clock", 4, 0u64)?,
        taus: put(b, "taus", &case.taus_target())?,
        greedy: filled(b, "greedy", dims.batch, u64::MAX)?,
        next: filled(b, "next", case.next.len(), f32::NAN)?,
    };
    launch(b, K::new(&shape, &head, &arguments))?;
    let (greedy, next) = (b.download(arguments.greedy)?, b.download(arguments.next)?);
    let (sizes, p, taus) = (case.sizes(rounding), case.online.parameters(), case.taus_target());
    let branches = dims.actions.len();
    for i in 0..dims.batch {
        let taus: Vec<f64> = taus[i * dims.targets..][..dims.targets].iter().map(|&t| t.into()).collect();
        let rows: Vec<_> = taus.iter().map(|&tau| sizes.row(&p, &case.h(i), tau)).collect();
        let largest = rows.iter().flat_map(|row| &row.z).fold(0.0f64, |most, z| most.max(z.abs()));
        // In fp32 as SPEC section 8 bounds Q; else a unit of the operands' rounding: among ten thousand rows there are some
        // where two operands of full size are rounded to the other side.
        let unit = match rounding {
            Rounding::Exact => 1e-5,
            Rounding::Tf32 => 2f64.powi(-11),
            Rounding::Bf16 => 2f64.powi(-8),
        };
        let tolerance = largest * unit;
        let means = sizes.means(&p, &case.h(i), &taus);
        for d in 0..branches {
            let of_branch = &means[sizes.first_output(d)..][..dims.actions[d]];
            let best = of_branch.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let chosen = action::branch(greedy[i], d as u32) as usize;
            assert!(
                of_branch[chosen] >= best - 2.0 * tolerance,
                "{}: {chosen} of {of_branch:?}",
                K::DECL.name
            );
            for (j, row) in rows.iter().enumerate() {
                let got = f64::from(next[(i * branches + d) * dims.targets + j]);
                let want = row.z[sizes.first_output(d) + chosen];
                assert!((got - want).abs() <= tolerance, "{}: {got}, expected {want}", K::DECL.name);
            }
        }
    }
    Ok(())
}

const ODD: Dims = Dims {
    batch: 5,
    trunk: 24,
    cosines: 12,
    hidden: 20,
    actions: &[3, 2, 2],
    quantiles: 8,
    targets: 6,
    offset: 0,
};
/// Nothing a multiple of 4, two chunks of the trunk, several tiles.
const UNEVEN: Dims =
    Dims { batch: 7, trunk: 70, cosines: 9, hidden: 33, actions: &[5], quantiles: 33, targets: 3, offset: 0 };
/// The defaults, with a batch that does not fill its last tile.
const DEFAULTS: Dims = Dims {
    batch: 6,
    trunk: 256,
    cosines: 64,
    hidden: 128,
    actions: &[9, 3, 3],
    quantiles: 32,
    targets: 32,
    offset: 0,
};
const WIDE: Dims = Dims { batch: 3, trunk: 96, hidden: 256, actions: &[9, 3, 3, 5], ..DEFAULTS };
/// The same with more tiles for one block than the kernel behind the loss keeps in registers before it adds them to its plane.
const LONG: Dims = Dims { batch: 70, ..WIDE };
/// More quantiles than the large size has rows.
const PIECES: Dims = Dims {
    batch: 2,
    trunk: 36,
    cosines: 68,
    hidden: 260,
    actions: &[3, 33],
    quantiles: 40,
    targets: 5,
    offset: 0,
};

macro_rules! body {
    (
        $name:ident, $rounding:ident, [$small:ident, $medium:ident, $large:ident], [$ts:ident, $tm:ident, $tl:ident],
        [$ps:ident, $pm:ident, $pl:ident], [$rs:ident, $rm:ident, $rl:ident]
    ) => {
        /// Every kernel of one arithmetic, losses, gradients and targets.
        pub fn $name<B: Backend>(b: &mut B) -> Outcome {
            let r = Rounding::$rounding;
            packed::<B, iqn::$small, iqn::$ps>(b, r, UNEVEN)?;
            packed::<B, iqn::$medium, iqn::$pm>(b, r, ODD)?;
            packed::<B, iqn::$large, iqn::$pl>(b, r, WIDE)?;
            loss::<B, iqn::$small, iqn::$ps, iqn::$rs>(b, r, ODD, 4)?;
            loss::<B, iqn::$small, iqn::$ps, iqn::$rs>(b, r, UNEVEN, 2)?;
            loss::<B, iqn::$medium, iqn::$pm, iqn::$rm>(b, r, UNEVEN, 3)?;
            loss::<B, iqn::$large, iqn::$pl, iqn::$rl>(b, r, ODD, 2)?;
            target::<B, iqn::$ts>(b, r, ODD, 1)?;
            target::<B, iqn::$tm>(b, r, UNEVEN, 2)?;
            target::<B, iqn::$tl>(b, r, ODD, 2)?;
            if B::FULL_SIZE {
                let many = Dims { batch: 97, ..DEFAULTS };
                loss::<B, iqn::$small, iqn::$ps, iqn::$rs>(b, r, many, 132)?;
                loss::<B, iqn::$medium, iqn::$pm, iqn::$rm>(b, r, WIDE, 1)?;
                loss::<B, iqn::$large, iqn::$pl, iqn::$rl>(b, r, PIECES, 1)?;
                target::<B, iqn::$ts>(b, r, many, 132)?;
                target::<B, iqn::$tm>(b, r, WIDE, 1)?;
                target::<B, iqn::$tl>(b, r, PIECES, 2)?;
            }
            Ok(())
        }
    };
}

body!(
    fp32,
    Exact,
    [IqnLossFp32Small, IqnLossFp32Medium, IqnLossFp32Large],
    [IqnTargetFp32Small, IqnTargetFp32Medium, IqnTargetFp32Large],
    [IqnPackSmall, IqnPackMedium, IqnPackLarge],
    [IqnReduceSmall, IqnReduceMedium, IqnReduceLarge]
);
body!(
    tf32,
    Tf32,
    [IqnLossTf32Small, IqnLossTf32Medium, IqnLossTf32Large],
    [IqnTargetTf32Small, IqnTargetTf32Medium, IqnTargetTf32Large],
    [IqnPackSmall, IqnPackMedium, IqnPackLarge],
    [IqnReduceSmall, IqnReduceMedium, IqnReduceLarge]
);
body!(
    bf16,
    Bf16,
    [IqnLossBf16Small, IqnLossBf16Medium, IqnLossBf16Large],
    [IqnTargetBf16Small, IqnTargetBf16Medium, IqnTargetBf16Large],
    [IqnPackHalfSmall, IqnPackHalfMedium, IqnPackHalfLarge],
    [IqnReduceHalfSmall, IqnReduceHalfMedium, IqnReduceHalfLarge]
);

/// The kernels of warpgroups. On a GPU whose image is without them the launch fails with the reason: a body that does not
/// run must not pass.
pub fn bf16_groups<B: Backend>(b: &mut B) -> Outcome {
    let r = Rounding::Bf16;
    type SmallPack = iqn::IqnPackHalfSmall;
    type MediumPack = iqn::IqnPackHalfMedium;
    two_losses::<B, iqn::IqnLossBf16GroupSmall, SmallPack, iqn::IqnReduceGroupSmall, iqn::IqnChunksBf16Small>(
        b, r, ODD, 4,
    )?;
    two_losses::<B, iqn::IqnLossBf16GroupSmall, SmallPack, iqn::IqnReduceGroupSmall, iqn::IqnChunksBf16Small>(
        b, r, UNEVEN, 2,
    )?;
    two_losses::<
        B,
        iqn::IqnLossBf16GroupMedium,
        MediumPack,
        iqn::IqnReduceGroupMedium,
        iqn::IqnChunksBf16Medium,
    >(b, r, UNEVEN, 3)?;
    target::<B, iqn::IqnTargetBf16GroupSmall>(b, r, ODD, 1)?;
    target::<B, iqn::IqnTargetBf16GroupMedium>(b, r, UNEVEN, 2)?;
    if B::FULL_SIZE {
        let many = Dims { batch: 97, ..DEFAULTS };
        two_losses::<
            B,
            iqn::IqnLossBf16GroupSmall,
            SmallPack,
            iqn::IqnReduceGroupSmall,
            iqn::IqnChunksBf16Small,
        >(b, r, many, 132)?;
        two_losses::<
            B,
            iqn::IqnLossBf16GroupSmall,
            SmallPack,
            iqn::IqnReduceGroupSmall,
            iqn::IqnChunksBf16Small,
        >(b, r, many, 1)?;
        two_losses::<
            B,
            iqn::IqnLossBf16GroupMedium,
            MediumPack,
            iqn::IqnReduceGroupMedium,
            iqn::IqnChunksBf16Medium,
        >(b, r, LONG, 1)?;
        target::<B, iqn::IqnTargetBf16GroupSmall>(b, r, many, 132)?;
        target::<B, iqn::IqnTargetBf16GroupMedium>(b, r, WIDE, 1)?;
    }
    Ok(())
}

/// Those of fp16 against the reference in tf32, whose significant bits they have: what a weight below 2^-14 loses is less
/// than f32's rounding of the others.
pub fn fp16_groups<B: Backend>(b: &mut B) -> Outcome {
    let r = Rounding::Tf32;
    type Small = iqn::IqnLossFp16GroupSmall;
    type SmallPack = iqn::IqnPackFp16Small;
    type Medium = iqn::IqnLossFp16GroupMedium;
    type MediumPack = iqn::IqnPackFp16Medium;
    type SmallChunks = iqn::IqnChunksFp16Small;
    type MediumChunks = iqn::IqnChunksFp16Medium;
    packed::<B, Small, SmallPack>(b, r, UNEVEN)?;
    packed::<B, Medium, MediumPack>(b, r, ODD)?;
    two_losses::<B, Small, SmallPack, iqn::IqnReduceGroupSmall, SmallChunks>(b, r, ODD, 4)?;
    two_losses::<B, Small, SmallPack, iqn::IqnReduceGroupSmall, SmallChunks>(b, r, UNEVEN, 2)?;
    two_losses::<B, Medium, MediumPack, iqn::IqnReduceGroupMedium, MediumChunks>(b, r, UNEVEN, 3)?;
    target::<B, iqn::IqnTargetFp16GroupSmall>(b, r, ODD, 1)?;
    target::<B, iqn::IqnTargetFp16GroupMedium>(b, r, UNEVEN, 2)?;
    if B::FULL_SIZE {
        let many = Dims { batch: 97, ..DEFAULTS };
        two_losses::<B, Small, SmallPack, iqn::IqnReduceGroupSmall, SmallChunks>(b, r, many, 132)?;
        two_losses::<B, Small, SmallPack, iqn::IqnReduceGroupSmall, SmallChunks>(b, r, many, 1)?;
        two_losses::<B, Medium, MediumPack, iqn::IqnReduceGroupMedium, MediumChunks>(b, r, LONG, 1)?;
        target::<B, iqn::IqnTargetFp16GroupSmall>(b, r, many, 132)?;
        target::<B, iqn::IqnTargetFp16GroupMedium>(b, r, WIDE, 1)?;
    }
    Ok(())
}
