//! Loss, gradients, draws and their independence of the launch.

use gpu::kernels::gemm::reference::Rounding;
use gpu::kernels::iqn::reference::Gradients;
use gpu::kernels::iqn::{self, LossKernel};
use gpu::philox::{self, Stream};

use crate::case::{Case, Dims, Draw, Losses, distance, norm};

/// Odd in every size; a tile is not full, and neither is a chunk.
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
/// One branch, nothing a multiple of 4, buffers off 16 bytes, two chunks of the trunk, several tiles.
const UNALIGNED: Dims =
    Dims { batch: 7, trunk: 70, cosines: 9, hidden: 33, actions: &[5], quantiles: 33, targets: 3, offset: 1 };
/// The defaults, with a small batch that does not fill its second tile.
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
/// More tiles for one block than the kernel behind the loss keeps in registers before it adds them to its plane.
const LONG: Dims = Dims { batch: 70, trunk: 40, actions: &[3, 2], quantiles: 32, targets: 3, ..ODD };
/// More than one group of outputs, a single quantile.
const MANY_OUTPUTS: Dims = Dims {
    batch: 17,
    trunk: 40,
    cosines: 16,
    hidden: 24,
    actions: &[40, 2, 30, 3],
    quantiles: 1,
    targets: 1,
    offset: 0,
};
/// As many of everything as the medium size takes of it.
const WIDE: Dims = Dims {
    batch: 3,
    trunk: 96,
    cosines: 64,
    hidden: 256,
    actions: &[9, 3, 3, 5],
    quantiles: 32,
    targets: 32,
    offset: 0,
};
/// More quantiles than the large size has rows: several tiles a sample.
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
const LARGEST: Dims = Dims {
    batch: 2,
    trunk: 33,
    cosines: 256,
    hidden: 512,
    actions: &[2, 2],
    quantiles: 7,
    targets: 64,
    offset: 0,
};

/// SPEC section 8: each gradient tensor within 1e-3 of max(its norm, 1e-3 of its group's), each sample's loss within 1e-4
/// relative. On the tensor cores too, as the reference rounds the same operands: what differs is that an operand that
/// is off by f32's rounding is rounded to the other side once in about 2^13 (tf32) or 2^16 (bf16) times, by 2^-11 or 2^-8.
const GRADIENT: f64 = 1e-3;
const LOSS: f64 = 1e-4;

fn tensors(expected: &Gradients) -> [&[f64]; 6] {
    let p = &expected.parameters;
    [&p.cos_weight, &p.cos_bias, &p.hid_weight, &p.hid_bias, &p.out_weight, &p.out_bias]
}

/// Largest distances of losses and of gradients.
fn distances(case: &Case, got: &Losses, expected: &Gradients) -> (f64, [f64; 7]) {
    let loss = got
        .loss
        .iter()
        .zip(&expected.loss)
        .map(|(&g, &e)| (f64::from(g) - e).abs() / e.abs())
        // A NaN counts as infinite.
        .fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
    let tensors = tensors(expected);
    let group = norm(&tensors.map(norm));
    let mut gradients = [0.0; 7];
    for i in 0..6 {
        gradients[i] = distance(&got.gradients[i], tensors[i], 1e-3 * group);
    }
    gradients[6] = distance(&got.dh, &case.through(&expected.dh), 0.0);
    (loss, gradients)
}

fn check<K: LossKernel>(rounding: Rounding, dims: Dims, blocks: u32) {
    let case = Case::random(dims, 3);
    let got = case.losses::<K>(blocks, Draw::Given, 1);
    assert_eq!(got.taus, case.taus);
    let expected = case.sizes(rounding).gradients(
        &case.online.parameters(),
        &case.samples(&case.taus),
        case.kappa.into(),
    );
    let (loss, gradients) = distances(&case, &got, &expected);
    println!("{} {dims:?}: loss {loss:.1e}, gradients {gradients:?}", K::DECL.name);
    assert!(loss <= LOSS, "{} {dims:?}: loss off by {loss}", K::DECL.name);
    for (i, d) in gradients.into_iter().enumerate() {
        let name = ["Wc", "bc", "Wh", "bh", "Wo", "bo", "h"][i];
        assert!(d <= GRADIENT, "{} {dims:?}: d{name} off by {d}", K::DECL.name);
    }
    if rounding != Rounding::Exact {
        let exact = case.sizes(Rounding::Exact).gradients(
            &case.online.parameters(),
            &case.samples(&case.taus),
            case.kappa.into(),
        );
        let (loss, gradients) = distances(&case, &got, &exact);
        // Six products stand between a tau and dWc, and each rounds two operands by up to a unit: 12 units if all errors
        // went in one direction. Beside that an activation takes its other branch where its argument is within its error,
        // about two units of its usual size, of zero: that many of all derivatives are wrong by all they are, which moves
        // a norm by the square root of their part. (Losses are differences of targets and z, so their relative error has
        // no such bound where they are close.)
        let unit = if rounding == Rounding::Tf32 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        let bound = 12.0 * unit + (2.0 * unit).sqrt();
        println!("  from exact: loss {loss:.1e}, gradients {gradients:?}, bound {bound}");
        assert!(gradients.iter().all(|&d| d <= bound), "{} {dims:?}: {gradients:?}", K::DECL.name);
    }
}

macro_rules! all {
    ($($name:ident: $kernel:ident, $rounding:ident, $dims:ident, $blocks:literal;)*) => { $(
        #[test]
        fn $name() {
            check::<iqn::$kernel>(Rounding::$rounding, $dims, $blocks);
        }
    )* };
}

all! {
    fp32_small_odd: IqnLossFp32Small, Exact, ODD, 4;
    fp32_small_unaligned: IqnLossFp32Small, Exact, UNALIGNED, 2;
    fp32_small_defaults: IqnLossFp32Small, Exact, DEFAULTS, 1;
    fp32_small_many_outputs: IqnLossFp32Small, Exact, MANY_OUTPUTS, 132;
    fp32_medium_odd: IqnLossFp32Medium, Exact, ODD, 1;
    fp32_medium_wide: IqnLossFp32Medium, Exact, WIDE, 1;
    fp32_large_odd: IqnLossFp32Large, Exact, ODD, 2;
    fp32_large_pieces: IqnLossFp32Large, Exact, PIECES, 1;
    fp32_large_largest: IqnLossFp32Large, Exact, LARGEST, 2;
    tf32_small_odd: IqnLossTf32Small, Tf32, ODD, 4;
    tf32_small_unaligned: IqnLossTf32Small, Tf32, UNALIGNED, 2;
    tf32_small_defaults: IqnLossTf32Small, Tf32, DEFAULTS, 1;
    tf32_small_many_outputs: IqnLossTf32Small, Tf32, MANY_OUTPUTS, 132;
    tf32_medium_unaligned: IqnLossTf32Medium, Tf32, UNALIGNED, 3;
    tf32_medium_wide: IqnLossTf32Medium, Tf32, WIDE, 1;
    tf32_large_pieces: IqnLossTf32Large, Tf32, PIECES, 2;
    bf16_small_odd: IqnLossBf16Small, Bf16, ODD, 4;
    bf16_small_unaligned: IqnLossBf16Small, Bf16, UNALIGNED, 2;
    bf16_small_defaults: IqnLossBf16Small, Bf16, DEFAULTS, 1;
    bf16_medium_wide: IqnLossBf16Medium, Bf16, WIDE, 1;
    bf16_small_many_outputs: IqnLossBf16Small, Bf16, MANY_OUTPUTS, 132;
    bf16_medium_odd: IqnLossBf16Medium, Bf16, ODD, 1;
    bf16_medium_unaligned: IqnLossBf16Medium, Bf16, UNALIGNED, 1;
    bf16_large_pieces: IqnLossBf16Large, Bf16, PIECES, 2;
    bf16_large_largest: IqnLossBf16Large, Bf16, LARGEST, 2;
    bf16_group_small_odd: IqnLossBf16GroupSmall, Bf16, ODD, 4;
    bf16_group_small_unaligned: IqnLossBf16GroupSmall, Bf16, UNALIGNED, 2;
    bf16_group_small_defaults: IqnLossBf16GroupSmall, Bf16, DEFAULTS, 1;
    bf16_group_small_many_outputs: IqnLossBf16GroupSmall, Bf16, MANY_OUTPUTS, 132;
    bf16_group_small_long: IqnLossBf16GroupSmall, Bf16, LONG, 1;
    bf16_group_medium_odd: IqnLossBf16GroupMedium, Bf16, ODD, 1;
    bf16_group_medium_unaligned: IqnLossBf16GroupMedium, Bf16, UNALIGNED, 1;
    bf16_group_medium_wide: IqnLossBf16GroupMedium, Bf16, WIDE, 1;
    bf16_group_medium_long: IqnLossBf16GroupMedium, Bf16, LONG, 1;
    fp16_group_small_odd: IqnLossFp16GroupSmall, Tf32, ODD, 4;
    fp16_group_small_unaligned: IqnLossFp16GroupSmall, Tf32, UNALIGNED, 2;
    fp16_group_small_defaults: IqnLossFp16GroupSmall, Tf32, DEFAULTS, 1;
    fp16_group_small_many_outputs: IqnLossFp16GroupSmall, Tf32, MANY_OUTPUTS, 132;
    fp16_group_medium_unaligned: IqnLossFp16GroupMedium, Tf32, UNALIGNED, 1;
    fp16_group_small_long: IqnLossFp16GroupSmall, Tf32, LONG, 1;
    fp16_group_medium_wide: IqnLossFp16GroupMedium, Tf32, WIDE, 1;
}

fn small(case: &Case, blocks: u32, draw: Draw, seed: u64) -> Losses {
    case.losses::<iqn::IqnLossTf32Small>(blocks, draw, seed)
}

fn bits(losses: &Losses) -> Vec<u32> {
    let all = [&losses.loss, &losses.dh].into_iter().chain(&losses.gradients);
    all.flatten().map(|x| x.to_bits()).collect()
}

#[test]
fn kappa_other_than_one_and_another_slope() {
    let case = Case { kappa: 0.3, slope: 0.25, ..Case::random(ODD, 8) };
    let got = case.losses::<iqn::IqnLossFp32Small>(1, Draw::Given, 2);
    let expected = case.sizes(Rounding::Exact).gradients(
        &case.online.parameters(),
        &case.samples(&case.taus),
        case.kappa.into(),
    );
    let (loss, gradients) = distances(&case, &got, &expected);
    assert!(loss <= LOSS && gradients.iter().all(|&d| d <= GRADIENT), "{loss}, {gradients:?}");
}

/// The threads' order changes nothing, and the number of blocks only the order of the parameters' sums.
#[test]
fn results_do_not_depend_on_the_interleaving() {
    let case = Case::random(Dims { batch: 40, trunk: 24, quantiles: 8, ..ODD }, 4);
    let runs: Vec<_> = (0..3).map(|seed| small(&case, 2, Draw::Given, seed)).collect();
    assert!(runs.iter().all(|run| bits(run) == bits(&runs[0])));
    let one = small(&case, 1, Draw::Given, 0);
    assert_eq!(one.loss, runs[0].loss);
    assert_eq!(one.dh, runs[0].dh);
}

#[test]
fn taus_are_drawn_by_seed_step_and_index() {
    let case = Case::random(ODD, 5);
    let (seed, step) = (0x1234_5678_9abc_def0, (1 << 33) + 7);
    let got = small(&case, 1, Draw::Philox(seed, step), 1);
    let expected: Vec<f32> = (0..case.taus.len() as u32)
        .map(|i| philox::uniform_open(philox::draw(seed, step, Stream::IqnTau, i, 0)[0]))
        .collect();
    assert_eq!(got.taus, expected);
    // The same as if they had been given.
    let given = Case { taus: expected, ..Case::random(ODD, 5) };
    assert_eq!(bits(&got), bits(&small(&given, 1, Draw::Given, 1)));
}

/// What is not finite must show in the loss, or the step's guard would not see it.
#[test]
fn a_nan_anywhere_reaches_the_loss() {
    let poisoned = |poison: &dyn Fn(&mut Case)| {
        let mut case = Case::random(ODD, 6);
        poison(&mut case);
        small(&case, 1, Draw::Given, 1)
    };
    let other = small(&Case::random(ODD, 6), 1, Draw::Given, 1);
    let sample = |got: &Losses| {
        assert!(got.loss[2].is_nan());
        for b in [0, 1, 3, 4] {
            assert_eq!(got.loss[b], other.loss[b], "sample {b}");
        }
    };
    sample(&poisoned(&|case| case.h[2 * 24 + 5] = f32::NAN));
    sample(&poisoned(&|case| case.next[2 * 18 + 7] = f32::NAN));
    sample(&poisoned(&|case| case.rewards[2] = f32::NAN));
    sample(&poisoned(&|case| case.taus[2 * 8 + 3] = f32::NAN));
    for parameter in 0..4 {
        let got = poisoned(&|case| case.online.0[parameter][1] = f32::NAN);
        assert!(got.loss.iter().all(|l| l.is_nan()), "parameter {parameter}");
    }
}
