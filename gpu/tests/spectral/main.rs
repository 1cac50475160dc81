//! The spectral norm's three launches in the emulator, against f64, an independent program's values and case C42.

use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, HostBuf};
use gpu::kernels::spectral_norm::reference::{Iteration, iterate};
use gpu::kernels::spectral_norm::{MAX_MATRICES, SpectralColumns, SpectralRows, SpectralScale, matrix};
use gpu::reference::Bounded;

/// Content of memory that a kernel must not write.
const UNTOUCHED: f32 = -77.0;

/// A matrix with its vector u.
struct Problem {
    weight: Vec<f32>,
    u: Vec<f32>,
}

impl Problem {
    /// Numbers in (-1, 1) times `scale`, u of length 1 or so: SplitMix64 (Steele, Lea, Flood 2014).
    fn random(rows: usize, columns: usize, scale: f32, seed: u64) -> Problem {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let weight = (0..rows * columns).map(|_| scale * uniform()).collect();
        let u = (0..rows).map(|_| uniform() / (rows as f32).sqrt()).collect();
        Problem { weight, u }
    }

    fn columns(&self) -> usize {
        self.weight.len() / self.u.len()
    }
}

/// What the launches leave in memory for each matrix.
struct Result {
    weight: Vec<f32>,
    u: Vec<f32>,
    v: Vec<f32>,
    sigma: f32,
}

/// Launches all three kernels over all matrices, with untouchable elements around and between them.
fn run(problems: &[Problem], sigma_max: f32, seed: u64) -> Vec<Result> {
    let stride = problems.iter().map(|p| p.u.len().max(p.columns())).max().expect("a matrix") + 3;
    let mut flat = vec![UNTOUCHED; 4];
    let mut u = vec![UNTOUCHED; problems.len() * stride];
    let mut places = Vec::new();
    for (i, p) in problems.iter().enumerate() {
        places.push(flat.len());
        flat.extend(&p.weight);
        flat.resize((flat.len() + 1).next_multiple_of(4), UNTOUCHED);
        u[i * stride..][..p.u.len()].copy_from_slice(&p.u);
    }
    let mut words = [0; MAX_MATRICES];
    for ((word, p), &first) in words.iter_mut().zip(problems).zip(&places) {
        *word = matrix(first, p.u.len(), p.columns()).expect("a small matrix");
    }
    let [matrix0, matrix1, matrix2, matrix3] = words;
    let stride32 = stride as u32;
    let vector = || HostBuf::from(vec![UNTOUCHED; problems.len() * stride]);
    let (params, u) = (HostBuf::from(flat), HostBuf::from(u));
    let (v, y, z, sigma) = (vector(), vector(), vector(), HostBuf::from(vec![UNTOUCHED; problems.len() + 1]));
    let mut emulator = Emulator::new(seed).watch_global();
    let ran = [
        emulator.launch(&SpectralColumns {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride: stride32,
            params: params.buf().into(),
            u: u.buf().into(),
            y: y.buf().into(),
        }),
        emulator.launch(&SpectralRows {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride: stride32,
            params: params.buf().into(),
            y: y.buf().into(),
            v: v.buf().into(),
            z: z.buf().into(),
        }),
        emulator.launch(&SpectralScale {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride: stride32,
            sigma_max,
            params: params.buf().into(),
            z: z.buf().into(),
            u: u.buf().into(),
            sigma: sigma.buf().into(),
        }),
    ];
    for launched in ran {
        launched.unwrap_or_else(|fault| panic!("{fault}"));
    }
    let (mut flat, mut u, mut v, sigma) = (params.to_vec(), u.to_vec(), v.to_vec(), sigma.to_vec());
    assert_eq!(sigma[problems.len()], UNTOUCHED);
    let take = |from: &mut Vec<f32>, first: usize, len: usize| {
        let taken = from[first..][..len].to_vec();
        from[first..][..len].fill(UNTOUCHED);
        taken
    };
    let results = problems
        .iter()
        .enumerate()
        .map(|(i, p)| Result {
            weight: take(&mut flat, places[i], p.weight.len()),
            u: take(&mut u, i * stride, p.u.len()),
            v: take(&mut v, i * stride, p.columns()),
            sigma: sigma[i],
        })
        .collect();
    assert!([flat, u, v].concat().iter().all(|&x| x == UNTOUCHED), "an element around a matrix was written");
    results
}

#[track_caller]
fn agree(what: &str, got: &[f32], expected: &[Bounded]) {
    assert_eq!(got.len(), expected.len());
    for (i, (&got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(expected.accepts(got), "{what}[{i}] = {got}, expected {expected:?}");
    }
}

fn check(problems: &[Problem], sigma_max: f32, seed: u64) {
    for (p, got) in problems.iter().zip(run(problems, sigma_max, seed)) {
        let expected = iterate(&p.weight, &p.u, sigma_max);
        agree("v", &got.v, &expected.v);
        agree("u", &got.u, &expected.u);
        agree("sigma", &[got.sigma], &[expected.sigma]);
        agree("weight", &got.weight, &expected.weight);
    }
}

#[test]
fn random_matrices() {
    // Scaled and not scaled, tails of every kind, a row, a column, a single element, several sizes in one launch.
    check(&[Problem::random(1, 1, 9.0, 1)], 3.0, 1);
    check(&[Problem::random(33, 65, 0.5, 2), Problem::random(130, 7, 0.01, 3)], 1.5, 2);
    check(
        &[
            Problem::random(1, 70, 1.0, 4),
            Problem::random(70, 1, 1.0, 5),
            Problem::random(40, 300, 0.3, 6),
            Problem::random(270, 150, 0.2, 7),
        ],
        3.0,
        3,
    );
}

#[test]
fn a_matrix_within_the_bound_keeps_its_bits() {
    let p = Problem::random(20, 30, 0.1, 8);
    let before = p.weight.clone();
    let got = run(&[p], 3.0, 1).remove(0);
    assert!(got.sigma > 0.1 && got.sigma < 3.0, "sigma is {}", got.sigma);
    assert_eq!(got.weight, before);
}

#[test]
fn zero_gives_sigma_zero_and_keeps_u() {
    let mut p = Problem::random(9, 5, 1.0, 9);
    p.weight.fill(0.0);
    let u = p.u.clone();
    let got = run(&[p, Problem::random(4, 4, 2.0, 10)], 1.0, 1);
    assert_eq!((got[0].sigma, &got[0].u, &got[0].v), (0.0, &u, &vec![0.0; 5]));
    assert!(got[0].weight.iter().all(|&w| w == 0.0));
    assert!(got[1].sigma > 0.0, "the other matrix is as before");
}

#[test]
fn what_is_not_finite_shows_and_changes_nothing() {
    for wrong in [f32::NAN, f32::INFINITY, 1e30] {
        let mut p = Problem::random(10, 12, 1.0, 11);
        p.weight[25] = wrong; // the square of 1e30 overflows
        let (u, weight) = (p.u.clone(), p.weight.clone());
        let got = run(&[p], 1.0, 1).remove(0);
        assert!(!got.sigma.is_finite(), "{wrong}: sigma is {}", got.sigma);
        assert_eq!(got.u, u, "{wrong}");
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got.weight), bits(&weight), "{wrong}");
    }
}

/// Case C42: v before u, u kept, sigma from the fresh u. Its values are after 1, 2, 5 and 30 iterations.
#[test]
fn c42_power_iteration() {
    let expected = [
        (
            1,
            1.914_103_733_721_941_3,
            [0.873_128_250_130_798_8, 0.485_071_250_072_666, 0.048_507_125_007_266_574],
        ),
        (
            2,
            2.317_858_713_253_055,
            [0.941_514_705_316_371_5, 0.272_417_960_421_488_2, -0.198_339_392_236_697_5],
        ),
        (5, 2.379_012_506_150_077_3, [0.939_041_066_657, 0.171_605_260_829_094_47, -0.297_915_272_499_191_2]),
        (
            30,
            2.379_044_466_695_076_7,
            [0.938_763_296_857_3, 0.169_254_188_707_753_4, -0.300_127_459_720_890_7],
        ),
    ];
    let near = |got: f32, expected: f64| (f64::from(got) - expected).abs() <= 1e-6 + 1e-5 * expected.abs();
    let weight = vec![2.0, 1.0, 0.0, 1.0, -1.0, 0.5];
    let mut u = vec![0.577_350_26; 3];
    for iteration in 1..=30 {
        // A bound above sigma: the case iterates on the same W.
        let got = run(&[Problem { weight: weight.clone(), u: u.clone() }], 4.0, iteration).remove(0);
        if let Some((_, sigma, vector)) = expected.iter().find(|e| e.0 == iteration) {
            assert!(near(got.sigma, *sigma), "sigma {} after {iteration}, expected {sigma}", got.sigma);
            for (i, &expected) in vector.iter().enumerate() {
                assert!(
                    near(got.u[i], expected),
                    "u[{i}] {} after {iteration}, expected {expected}",
                    got.u[i]
                );
            }
        }
        if iteration == 1 {
            assert!(!near(got.sigma, 1.554_563_175_514_802_4), "sigma is the one with the old u");
        }
        u = got.u;
    }
}

/// Trunk matrices of a complete step that an independent program computed in f64: lines of a name and numbers.
fn golden(text: &str) {
    let values = |name: &str| -> Vec<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no {name} in the file"));
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    };
    let f32s = |name: &str| values(name).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let problems =
        ["1", "2"].map(|i| Problem { weight: f32s(&format!("weight{i}")), u: f32s(&format!("u{i}")) });
    let sigma_max = values("sigma_max")[0] as f32;
    for ((i, p), got) in ["1", "2"].iter().zip(&problems).zip(run(&problems, sigma_max, 1)) {
        let Iteration { v, u, sigma, weight } = iterate(&p.weight, &p.u, sigma_max);
        // The file's value with the reference's bound on the rounding. The file has as many digits as an f32 needs, so
        // its value may be half a unit in the last place off, which is one unit of the scale.
        let bounded = |name: &str, bounds: &[Bounded]| -> Vec<Bounded> {
            let values = values(&format!("{name}{i}.expected"));
            assert_eq!(values.len(), bounds.len());
            let pairs = values.into_iter().zip(bounds);
            pairs.map(|(value, bound)| Bounded { value, scale: bound.scale + value.abs() }).collect()
        };
        agree("v", &got.v, &bounded("v", &v));
        agree("u", &got.u, &bounded("u", &u));
        agree("sigma", &[got.sigma], &bounded("sigma", &[sigma]));
        agree("weight", &got.weight, &bounded("weight", &weight));
        assert_eq!(got.weight != p.weight, sigma.value > f64::from(sigma_max), "weight{i}");
    }
}

#[test]
fn golden_steps() {
    golden(include_str!("t1.txt"));
    golden(include_str!("t2.txt"));
}

#[test]
fn contract() {
    let (params, vectors) = (HostBuf::<f32>::zeroed(100), HostBuf::<f32>::zeroed(40));
    let refused = |words: [Option<u64>; 2], stride: u32| {
        SpectralColumns {
            matrix0: words[0].expect("a small matrix"),
            matrix1: words[1].expect("a small matrix"),
            matrix2: 0,
            matrix3: 0,
            stride,
            params: params.buf().into(),
            u: vectors.buf().into(),
            y: vectors.buf().into(),
        }
        .check()
        .is_err()
    };
    let none = Some(0);
    assert!(!refused([matrix(4, 12, 8), none], 12));
    assert!(!refused([matrix(4, 12, 4), matrix(52, 6, 8)], 12));
    assert!(refused([matrix(8, 12, 8), none], 12), "it ends behind the parameters");
    assert!(refused([matrix(4, 12, 4), matrix(56, 6, 8)], 12), "the second one does");
    assert!(refused([matrix(2, 12, 8), none], 12), "not at a 16-byte boundary");
    assert!(refused([matrix(0, 12, 8), none], 11), "u is longer than the stride");
    assert!(refused([matrix(4, 0, 8), none], 12), "an empty matrix");
    assert!(refused([none, matrix(4, 12, 8)], 12), "no first matrix");
    assert!(refused([matrix(0, 1, 50), none], 50), "the vectors are shorter");
    assert_eq!(matrix(0, 1 << 16, 1), None);
}
