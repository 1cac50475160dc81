//! Greedy actions and their quantiles.

use gpu::action;
use gpu::kernels::gemm::reference::Rounding;
use gpu::kernels::iqn::{self, GATHER, SELECT, SELECT_AND_GATHER, TargetKernel};
use gpu::philox::{self, Stream};

use crate::case::{Case, Dims, Draw};

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
const UNALIGNED: Dims = Dims { batch: 7, trunk: 70, cosines: 9, hidden: 33, targets: 33, offset: 1, ..ODD };
const DEFAULTS: Dims = Dims {
    batch: 5,
    trunk: 256,
    cosines: 64,
    hidden: 128,
    actions: &[9, 3, 3],
    quantiles: 32,
    targets: 32,
    offset: 0,
};
const MANY_OUTPUTS: Dims = Dims { batch: 17, actions: &[40, 2, 30, 3], targets: 1, ..ODD };
const WIDE: Dims =
    Dims { batch: 3, trunk: 80, cosines: 64, hidden: 256, actions: &[9, 3, 3, 5], targets: 32, ..ODD };
/// More quantiles than the large size has rows.
const PIECES: Dims =
    Dims { batch: 2, trunk: 36, cosines: 68, hidden: 260, actions: &[3, 33], targets: 40, ..ODD };

/// Error of z in units of the operands' rounding, times the largest |z| of the row: three products of two rounded operands
/// stand between tau and z, and with random signs the errors add up to less than the operands' own.
const Z_UNITS: f64 = 6.0;

fn unit(rounding: Rounding) -> f64 {
    if rounding == Rounding::Tf32 { 2f64.powi(-11) } else { 2f64.powi(-8) }
}

fn check<K: TargetKernel>(rounding: Rounding, dims: Dims, blocks: u32) {
    let case = Case::random(dims, 9);
    let unwritten = vec![u64::MAX; dims.batch];
    let (taus, greedy, next) = case.targets::<K>(SELECT_AND_GATHER, &unwritten, blocks, Draw::Given, 1);
    assert_eq!(taus, case.taus_target());
    let sizes = case.sizes(rounding);
    let p = case.online.parameters();
    let branches = dims.actions.len();
    for b in 0..dims.batch {
        let taus: Vec<f64> = taus[b * dims.targets..][..dims.targets].iter().map(|&t| t.into()).collect();
        let rows: Vec<_> = taus.iter().map(|&tau| sizes.row(&p, &case.h(b), tau)).collect();
        let largest = rows.iter().flat_map(|row| &row.z).fold(0.0f64, |most, z| most.max(z.abs()));
        // In fp32 as SPEC section 8 bounds Q values. On the tensor cores the reference rounds the same operands, but one that
        // is off by f32's rounding is now and then rounded to the other side: by a unit, and it is one term of many.
        let tolerance = largest * if rounding == Rounding::Exact { 1e-5 } else { unit(rounding) / 2.0 };
        let means = sizes.means(&p, &case.h(b), &taus);
        for d in 0..branches {
            let of_branch = &means[sizes.first_output(d)..][..dims.actions[d]];
            let best = of_branch.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let chosen = action::branch(greedy[b], d as u32) as usize;
            // One that is as good within the errors of both will do.
            assert!(
                of_branch[chosen] >= best - 2.0 * tolerance,
                "sample {b}, branch {d}: {chosen} of {of_branch:?}"
            );
            for (j, row) in rows.iter().enumerate() {
                let got = f64::from(next[(b * branches + d) * dims.targets + j]);
                let expected = row.z[sizes.first_output(d) + chosen];
                assert!(
                    (got - expected).abs() <= tolerance,
                    "next[{b}, {d}, {j}] = {got}, expected {expected}"
                );
            }
        }
        assert_eq!(greedy[b] >> (8 * branches), 0, "bytes beyond the branches");
        if rounding != Rounding::Exact {
            for (j, &tau) in taus.iter().enumerate() {
                let exact = case.sizes(Rounding::Exact).row(&p, &case.h(b), tau);
                for d in 0..branches {
                    let a = sizes.first_output(d) + action::branch(greedy[b], d as u32) as usize;
                    let got = f64::from(next[(b * branches + d) * dims.targets + j]);
                    let error = (got - exact.z[a]).abs() / (unit(rounding) * largest);
                    assert!(error <= Z_UNITS, "next[{b}, {d}, {j}] is {error} units from exact");
                }
            }
        }
    }

    // In two launches the same bits.
    let (_, selected, untouched) = case.targets::<K>(SELECT, &unwritten, blocks, Draw::Given, 2);
    assert_eq!(selected, greedy);
    assert!(untouched.iter().all(|z| z.is_nan()));
    let (_, kept, gathered) = case.targets::<K>(GATHER, &greedy, blocks, Draw::Given, 3);
    assert_eq!(kept, greedy);
    assert_eq!(gathered, next);

    // Given actions that are not greedy.
    let others: Vec<u64> = (0..dims.batch)
        .map(|b| action::pack(&dims.actions.iter().map(|n| (b + 1) % n).collect::<Vec<_>>()))
        .collect();
    let (_, _, gathered) = case.targets::<K>(GATHER, &others, 1, Draw::Given, 4);
    assert!(gathered.iter().all(|z| z.is_finite()));
    for b in 0..dims.batch {
        for d in 0..branches {
            let tau = taus[b * dims.targets].into();
            let row = sizes.row(&p, &case.h(b), tau);
            let expected = row.z[sizes.first_output(d) + (b + 1) % dims.actions[d]];
            let largest = row.z.iter().fold(0.0f64, |most, z| most.max(z.abs()));
            let got = f64::from(gathered[(b * branches + d) * dims.targets]);
            assert!((got - expected).abs() <= 1e-3 * largest, "given action of sample {b}, branch {d}");
        }
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
    fp32_small_odd: IqnTargetFp32Small, Exact, ODD, 1;
    fp32_small_unaligned: IqnTargetFp32Small, Exact, UNALIGNED, 2;
    fp32_small_many_outputs: IqnTargetFp32Small, Exact, MANY_OUTPUTS, 1;
    fp32_medium_wide: IqnTargetFp32Medium, Exact, WIDE, 2;
    fp32_large_pieces: IqnTargetFp32Large, Exact, PIECES, 1;
    tf32_small_odd: IqnTargetTf32Small, Tf32, ODD, 1;
    tf32_small_defaults: IqnTargetTf32Small, Tf32, DEFAULTS, 2;
    tf32_small_many_outputs: IqnTargetTf32Small, Tf32, MANY_OUTPUTS, 2;
    tf32_medium_wide: IqnTargetTf32Medium, Tf32, WIDE, 1;
    tf32_large_pieces: IqnTargetTf32Large, Tf32, PIECES, 2;
    bf16_small_odd: IqnTargetBf16Small, Bf16, ODD, 1;
    bf16_small_unaligned: IqnTargetBf16Small, Bf16, UNALIGNED, 2;
    bf16_small_defaults: IqnTargetBf16Small, Bf16, DEFAULTS, 2;
    bf16_medium_wide: IqnTargetBf16Medium, Bf16, WIDE, 1;
    bf16_small_many_outputs: IqnTargetBf16Small, Bf16, MANY_OUTPUTS, 2;
    bf16_large_pieces: IqnTargetBf16Large, Bf16, PIECES, 2;
    bf16_group_small_odd: IqnTargetBf16GroupSmall, Bf16, ODD, 1;
    bf16_group_small_unaligned: IqnTargetBf16GroupSmall, Bf16, UNALIGNED, 2;
    bf16_group_small_defaults: IqnTargetBf16GroupSmall, Bf16, DEFAULTS, 2;
    bf16_group_small_many_outputs: IqnTargetBf16GroupSmall, Bf16, MANY_OUTPUTS, 2;
    bf16_group_medium_wide: IqnTargetBf16GroupMedium, Bf16, WIDE, 1;
    fp16_group_small_odd: IqnTargetFp16GroupSmall, Tf32, ODD, 1;
    fp16_group_small_defaults: IqnTargetFp16GroupSmall, Tf32, DEFAULTS, 2;
    fp16_group_medium_wide: IqnTargetFp16GroupMedium, Tf32, WIDE, 1;
    bf16_group_medium_unaligned: IqnTargetBf16GroupMedium, Bf16, UNALIGNED, 1;
}

#[test]
fn taus_are_drawn_by_seed_step_and_index() {
    let case = Case::random(ODD, 5);
    let greedy = vec![0; ODD.batch];
    let draw = Draw::Philox(77, 3);
    let (taus, ..) = case.targets::<iqn::IqnTargetTf32Small>(SELECT_AND_GATHER, &greedy, 1, draw, 1);
    for (i, tau) in taus.iter().enumerate() {
        assert_eq!(*tau, philox::uniform_open(philox::draw(77, 3, Stream::IqnTauTarget, i as u32, 0)[0]));
    }
}

/// Equal means: the lowest index. A NaN: is taken, so that it is seen.
#[test]
fn ties_take_the_first_and_a_nan_is_not_passed_over() {
    let mut case = Case::random(ODD, 5);
    // Outputs 1 and 2 of the first branch are the same function, larger than output 0's.
    let [.., out_weight, out_bias] = &mut case.online.0;
    let row = out_weight[20..40].to_vec();
    out_weight[40..60].copy_from_slice(&row);
    (out_bias[0], out_bias[1], out_bias[2]) = (-50.0, 50.0, 50.0);
    let run =
        |case: &Case| case.targets::<iqn::IqnTargetFp32Small>(SELECT_AND_GATHER, &[0; 5], 1, Draw::Given, 1);
    let (_, greedy, _) = run(&case);
    assert!(greedy.iter().all(|&g| action::branch(g, 0) == 1));
    case.online.0[5][2] = f32::NAN;
    let (_, greedy, next) = run(&case);
    assert!(greedy.iter().all(|&g| action::branch(g, 0) == 2));
    assert!((0..5).all(|b| next[b * 18].is_nan()));
}
