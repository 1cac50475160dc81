//! Test bodies for every machine: the spectral norm's three launches against f64, an independent program's values and
//! case C42.

use gpu::kernels::spectral_norm::reference::{Iteration, iterate};
use gpu::kernels::spectral_norm::{MAX_MATRICES, SpectralColumns, SpectralRows, SpectralScale, matrix};
use gpu::reference::Bounded;

use super::machine::{Machine, UNTOUCHED};

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
struct Normed {
    weight: Vec<f32>,
    u: Vec<f32>,
    v: Vec<f32>,
    sigma: f32,
}

/// Launches all three kernels over all matrices, with untouchable elements around and between them.
fn run<M: Machine>(machine: &mut M, problems: &[Problem], sigma_max: f32) -> Result<Vec<Normed>, M::Error> {
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
    let (params, u) = (machine.put(&flat)?, machine.put(&u)?);
    let vector = vec![UNTOUCHED; problems.len() * stride];
    let (v, y, z) = (machine.put(&vector)?, machine.put(&vector)?, machine.put(&vector)?);
    let sigma = machine.output(problems.len())?;
    machine.launch(SpectralColumns {
        matrix0,
        matrix1,
        matrix2,
        matrix3,
        stride: stride32,
        params: params.into(),
        u: u.into(),
        y: y.into(),
    })?;
    machine.launch(SpectralRows {
        matrix0,
        matrix1,
        matrix2,
        matrix3,
        stride: stride32,
        params: params.into(),
        y: y.into(),
        v: v.into(),
        z: z.into(),
    })?;
    machine.launch(SpectralScale {
        matrix0,
        matrix1,
        matrix2,
        matrix3,
        stride: stride32,
        sigma_max,
        params: params.into(),
        z: z.into(),
        u: u.into(),
        sigma: sigma.into(),
    })?;
    let (mut flat, mut u, mut v) = (machine.get(params)?, machine.get(u)?, machine.get(v)?);
    let sigma = machine.written(sigma)?;
    let take = |from: &mut Vec<f32>, first: usize, len: usize| {
        let taken = from[first..][..len].to_vec();
        from[first..][..len].fill(UNTOUCHED);
        taken
    };
    let results = problems
        .iter()
        .enumerate()
        .map(|(i, p)| Normed {
            weight: take(&mut flat, places[i], p.weight.len()),
            u: take(&mut u, i * stride, p.u.len()),
            v: take(&mut v, i * stride, p.columns()),
            sigma: sigma[i],
        })
        .collect();
    assert!([flat, u, v].concat().iter().all(|&x| x == UNTOUCHED), "an element around a matrix was written");
    Ok(results)
}

#[track_caller]
fn agree(what: &str, got: &[f32], expected: &[Bounded]) {
    assert_eq!(got.len(), expected.len());
    for (i, (&got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(expected.accepts(got), "{what}[{i}] = {got}, expected {expected:?}");
    }
}

fn check<M: Machine>(machine: &mut M, problems: &[Problem], sigma_max: f32) -> Result<(), M::Error> {
    for (p, got) in problems.iter().zip(run(machine, problems, sigma_max)?) {
        let expected = iterate(&p.weight, &p.u, sigma_max);
        agree("v", &got.v, &expected.v);
        agree("u", &got.u, &expected.u);
        agree("sigma", &[got.sigma], &[expected.sigma]);
        agree("weight", &got.weight, &expected.weight);
    }
    Ok(())
}

/// Scaled and not scaled, tails of every kind, a row, a column, a single element, several sizes in one launch.
pub fn random_matrices<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, &[Problem::random(1, 1, 9.0, 1)], 3.0)?;
    check(machine, &[Problem::random(33, 65, 0.5, 2), Problem::random(130, 7, 0.01, 3)], 1.5)?;
    check(
        machine,
        &[
            Problem::random(1, 70, 1.0, 4),
            Problem::random(70, 1, 1.0, 5),
            Problem::random(40, 300, 0.3, 6),
            Problem::random(270, 150, 0.2, 7),
        ],
        3.0,
    )?;
    Ok(())
}

/// A factor of 1 is no multiplication.
pub fn a_matrix_within_the_bound_keeps_its_bits<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let p = Problem::random(20, 30, 0.1, 8);
    let before = p.weight.clone();
    let got = run(machine, &[p], 3.0)?.remove(0);
    assert!(got.sigma > 0.1 && got.sigma < 3.0, "sigma is {}", got.sigma);
    assert_eq!(got.weight, before);
    Ok(())
}

/// W = 0: nothing to divide by.
pub fn zero_gives_sigma_zero_and_keeps_u<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut p = Problem::random(9, 5, 1.0, 9);
    p.weight.fill(0.0);
    let u = p.u.clone();
    let got = run(machine, &[p, Problem::random(4, 4, 2.0, 10)], 1.0)?;
    assert_eq!((got[0].sigma, &got[0].u, &got[0].v), (0.0, &u, &vec![0.0; 5]));
    assert!(got[0].weight.iter().all(|&w| w == 0.0));
    assert!(got[1].sigma > 0.0, "the other matrix is as before");
    Ok(())
}

/// NaN, infinity, and a square that overflows.
pub fn what_is_not_finite_shows_and_changes_nothing<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    for wrong in [f32::NAN, f32::INFINITY, 1e30] {
        let mut p = Problem::random(10, 12, 1.0, 11);
        p.weight[25] = wrong; // the square of 1e30 overflows
        let (u, weight) = (p.u.clone(), p.weight.clone());
        let got = run(machine, &[p], 1.0)?.remove(0);
        assert!(!got.sigma.is_finite(), "{wrong}: sigma is {}", got.sigma);
        assert_eq!(got.u, u, "{wrong}");
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got.weight), bits(&weight), "{wrong}");
    }
    Ok(())
}

/// Case C42: v before u, u kept, sigma from the fresh u. Its values are after 1, 2, 5 and 30 iterations.
pub fn c42_power_iteration<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
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
        let got = run(machine, &[Problem { weight: weight.clone(), u: u.clone() }], 4.0)?.remove(0);
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
    Ok(())
}

/// Trunk matrices of a complete step that an independent program computed in f64: lines of a name and numbers.
fn golden<M: Machine>(machine: &mut M, text: &str) -> Result<(), M::Error> {
    let values = |name: &str| -> Vec<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no {name} in the file"));
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    };
    let f32s = |name: &str| values(name).into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let problems =
        ["1", "2"].map(|i| Problem { weight: f32s(&format!("weight{i}")), u: f32s(&format!("u{i}")) });
    let sigma_max = values("sigma_max")[0] as f32;
    for ((i, p), got) in ["1", "2"].iter().zip(&problems).zip(run(machine, &problems, sigma_max)?) {
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
    Ok(())
}

/// The trunks of two complete steps.
pub fn golden_steps<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    golden(machine, include_str!("t1.txt"))?;
    golden(machine, include_str!("t2.txt"))?;
    Ok(())
}
