//! Bodies for `noisy_factors` and `noisy_compose`.

use cuda_std::{Buf, Kernel};
use gpu::kernels::noisy::{NoisyCompose, NoisyFactors, factor, factors, piece, reference};
use gpu::{clock, philox};
use host::error::ExecError;
use host::step::{Matmul, StepBuffers, StepShape, noisy};
use settings::{Config, Head, NoisyLayout};

use super::case::f32s;
use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};
use crate::case;

/// Numbers of the streams.
const ONLINE: u32 = 16;
const TARGET: u32 = 17;
const ACTING: u32 = 18;
/// What E f(e)^2 is: E |x| of a standard normal x.
const VARIANCE: f64 = 0.797_884_560_802_865_4;

/// Factors of a step and a collection step with these numbers.
fn drawn<B: Backend>(
    b: &mut B,
    count: usize,
    networks: usize,
    acting: bool,
    seed: u64,
    [step, collect]: [u64; 2],
) -> Result<Vec<f32>, ExecError> {
    let mut words = vec![99u64; clock::WORDS as usize];
    words[clock::STEP as usize] = step;
    words[clock::COLLECT as usize] = collect;
    let (words, out) = (put(b, "clock", &words)?, filled(b, "out", networks * count + 4, -7.0f32)?);
    launch(
        b,
        NoisyFactors {
            count: count as u32,
            networks: networks as u32,
            acting: acting.into(),
            seed,
            clock_words: words.into(),
            out: out.into(),
        },
    )?;
    let mut got = b.download(out)?;
    same_bits("behind the factors", &got[networks * count..], &[-7.0; 4]);
    got.truncate(networks * count);
    Ok(got)
}

/// The factors of a training and of a collection step agree with the formula in f64, and are the host's bits.
pub fn drawn_factors<B: Backend>(b: &mut B) -> Outcome {
    for (seed, steps) in [(0, [0, 3]), (1, [2, 0]), (0xfedc_ba98_7654_3210, [1 << 40, 77])] {
        for count in [4, 60, 1028] {
            let got = drawn(b, count, 2, false, seed, steps)?;
            let of = |stream| reference::factors(seed, steps[0], stream, count);
            close("factors of both networks", &got, &[of(ONLINE), of(TARGET)].concat());
            let host = |stream| factors(seed, steps[0], stream, count);
            let both = [host(philox::Stream::NoiseOnline), host(philox::Stream::NoiseTarget)].concat();
            same_bits("the host's factors", &got, &both);
            let got = drawn(b, count, 1, true, seed, steps)?;
            close("factors of acting", &got, &reference::factors(seed, steps[1], ACTING, count));
            same_bits(
                "the host's factors",
                &got,
                &factors(seed, steps[1], philox::Stream::NoiseActing, count),
            );
        }
    }
    assert!(
        refused(NoisyFactors {
            count: 6,
            networks: 1,
            acting: 0,
            seed: 0,
            clock_words: Buf::NULL.into(),
            out: Buf::NULL.into()
        }),
        "a count that is no multiple of 4"
    );
    Ok(())
}

fn refused(kernel: impl Kernel) -> bool {
    kernel.check().is_err()
}

/// E f = 0, E f^2 = E|x| = sqrt(2 / pi), E f^4 = E x^2 = 1; neighbours are uncorrelated. Five standard errors.
pub fn moments<B: Backend>(b: &mut B) -> Outcome {
    let (steps, count) = if B::FULL_SIZE { (64, 1 << 16) } else { (8, 4096) };
    let mut all = Vec::new();
    for step in 0..steps {
        all.extend(drawn(b, count, 2, false, 5, [step, 0])?.into_iter().map(f64::from));
    }
    let mean = |values: &mut dyn Iterator<Item = f64>, expected: f64, variance: f64, what: &str| {
        let (mut sum, mut n) = (0.0, 0.0);
        values.for_each(|x| (sum, n) = (sum + x, n + 1.0));
        let error = (variance / n).sqrt();
        assert!((sum / n - expected).abs() < 5.0 * error, "{what}: {} +- {error}", sum / n);
    };
    mean(&mut all.iter().copied(), 0.0, VARIANCE, "mean");
    mean(&mut all.iter().map(|f| f * f), VARIANCE, 1.0 - VARIANCE * VARIANCE, "variance");
    // Var x^2 = 2.
    mean(&mut all.iter().map(|f| f.powi(4)), 1.0, 2.0, "fourth moment");
    mean(&mut all.windows(2).map(|pair| pair[0] * pair[1]), 0.0, VARIANCE * VARIANCE, "neighbours");
    Ok(())
}

/// Factors of inputs and outputs, of layers, of networks and of steps are independent (the correlations of 2000 updates
/// are below four standard errors), and acting does not reuse a training step's noise.
pub fn streams_are_independent<B: Backend>(b: &mut B) -> Outcome {
    let (updates, count) = (2000, 16);
    // The first factor of inputs and outputs of two layers, of both networks; then of acting.
    let places = [0, 4, 8, 12];
    let mut series = vec![Vec::new(); 12];
    for step in 0..updates {
        let both = drawn(b, count, 2, false, 3, [step, step])?;
        let acting = drawn(b, count, 1, true, 3, [step, step])?;
        for (i, &value) in [0, 1]
            .iter()
            .flat_map(|network| places.map(|place| &both[network * count + place]))
            .chain(places.iter().map(|&place| &acting[place]))
            .enumerate()
        {
            series[i].push(f64::from(value));
        }
    }
    let correlation = |x: &[f64], y: &[f64]| {
        let n = x.len() as f64;
        let mean = |v: &[f64]| v.iter().sum::<f64>() / n;
        let (mx, my) = (mean(x), mean(y));
        let product = |a: &[f64], ma: f64, c: &[f64], mc: f64| {
            a.iter().zip(c).map(|(a, c)| (a - ma) * (c - mc)).sum::<f64>()
        };
        product(x, mx, y, my) / (product(x, mx, x, mx) * product(y, my, y, my)).sqrt()
    };
    for i in 0..series.len() {
        for j in i + 1..series.len() {
            let r = correlation(&series[i], &series[j]);
            assert!(r.abs() < 0.09, "series {i} and {j}: correlation {r}");
        }
        let len = series[i].len() - 1;
        let lag = correlation(&series[i][..len], &series[i][1..]);
        assert!(lag.abs() < 0.09, "series {i}: autocorrelation {lag}");
    }
    Ok(())
}

/// Whole networks with noise: the heads' weights layer by layer against f64, padding, and what must not be touched.
pub fn noisy_weights<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(141);
    for (trunk2, [value, branch], branches, atoms, head) in [
        (16, [8, 4], vec![3, 2], 11, Head::Mlp),
        (33, [6, 5], vec![2, 5], 21, Head::Mlp),
        (7, [1, 1], vec![2; 8], 2, Head::Mlp),
        (20, [12, 4], vec![9, 3, 3], 51, Head::Glu),
    ] {
        let mut config = Config::default();
        let model = &mut config.model;
        (model.state, model.trunk1, model.trunk2, model.branches) = (5, 9, trunk2, branches);
        (model.value_hidden, model.branch_hidden) = (value, branch);
        (model.atoms, model.head, model.noisy) = (atoms, head, true);
        config.train.batch = 3;
        let shape = StepShape::new(&config, Matmul::Rust);
        let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
        let layout = &shape.layout;
        let noise = NoisyLayout::new(&shape.model);
        let mut parameters = || {
            let mut values = vec![0.0; layout.len];
            for t in &layout.tensors {
                values[t.offset..t.offset + t.len()].copy_from_slice(&random.normals(t.len(), 0.5));
            }
            values
        };
        let networks = [parameters(), parameters()];
        let drawn = random.normals(2 * noise.factors, 1.0);
        b.upload(buffers.parameters.online, &networks[0])?;
        b.upload(buffers.parameters.target, &networks[1])?;
        b.upload(buffers.noise.expect("the heads are noisy").factors, &drawn)?;
        noisy::step(b, &shape, &buffers, false)?;
        let heads = [b.download(buffers.online_heads())?, b.download(buffers.target_heads())?];
        let kept = b.download(buffers.factors)?;
        assert_eq!(kept.len(), layout.len - layout.sigma);
        let distance = layout.sigma - layout.heads1_weight;
        for (n, (got, parameters)) in heads.iter().zip(&networks).enumerate() {
            let mut described = vec![false; layout.sigma];
            for layer in &noise.layers {
                let f = &drawn[n * noise.factors..][..noise.factors];
                let (input, output) =
                    (&f[layer.input_factors..][..layer.inputs], &f[layer.output_factors..][..layer.outputs]);
                let bias = output.iter().map(|&f| gpu::reference::Bounded::exact(f)).collect();
                for (tensor, product) in [("weight", reference::weight_noise(output, input)), ("bias", bias)]
                {
                    let name = format!("{}.{tensor}", layer.name);
                    let first = layout.offset(&name);
                    assert_eq!(layout.offset(&format!("{name}_sigma")), first + distance);
                    let of = |i: usize| {
                        reference::weight(parameters[first + i], parameters[first + distance + i], product[i])
                    };
                    let expected: Vec<_> = (0..product.len()).map(of).collect();
                    close(&format!("{name} of network {n}"), &got[first..][..product.len()], &expected);
                    if n == 0 {
                        let kept = &kept[first - layout.heads1_weight..][..product.len()];
                        close(&format!("noise of {name}"), kept, &product);
                    }
                    described[first..first + product.len()].fill(true);
                }
            }
            for i in (0..layout.sigma).filter(|&i| !described[i]) {
                assert_eq!(got[i].to_bits(), 0, "padding, or the trunk's place, at {i} of network {n}");
                if n == 0 && i >= layout.heads1_weight {
                    assert_eq!(kept[i - layout.heads1_weight], 0.0, "noise of padding at {i}");
                }
            }
        }
    }
    Ok(())
}

/// One layer by hand: value, and derivatives of mu and sigma.
pub fn c32_noisy_layer<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C32");
    let list = |path: &str| case.numbers(path);
    let rows = |path: &str| case.rows(path).concat();
    let block = |weight: &[f64], bias: &[f64]| {
        let mut block = vec![0.0; 12];
        block[..6].copy_from_slice(weight);
        block[8..10].copy_from_slice(bias);
        block
    };
    let mu = block(&rows("/input/mu_w"), &list("/input/mu_b"));
    let sigma = block(&rows("/input/sigma_w"), &list("/input/sigma_b"));
    let (x, d_y) = (list("/input/x"), list("/input/grad_out"));
    let run = |b: &mut B, f: fn(f32) -> f32| -> Result<[Vec<f32>; 2], ExecError> {
        let mut factors = vec![0.0; 8];
        for (at, path) in [(0, "/input/raw_eps_in"), (4, "/input/raw_eps_out")] {
            let raw = f32s(&case.numbers(path));
            factors[at..at + raw.len()].copy_from_slice(&raw.into_iter().map(f).collect::<Vec<f32>>());
        }
        let table = put(b, "table", &[0, 6, 3, 0, 4, 0, 0, 0, 8, 10, 1, piece::BIAS, 4, 0, 0, 0])?;
        let factors = put(b, "factors", &factors)?;
        let online = put(b, "online", &f32s(&[mu.clone(), sigma.clone()].concat()))?;
        let effective = filled(b, "effective", 4 + 12 + 4, -7.0f32)?;
        let noise = filled(b, "noise", 12 + 4, -7.0f32)?;
        let mut kernel = NoisyCompose {
            heads: 12,
            first: 4,
            networks: 1,
            keep: 1,
            pieces: 2,
            count: 8,
            table: table.into(),
            factors: factors.into(),
            online: online.into(),
            target: online.into(),
            effective: effective.into(),
            noise: noise.into(),
        };
        launch(b, kernel)?;
        let (effective, noise) = (b.download(effective)?, b.download(noise)?);
        same_bits("before the heads", &effective[..4], &[-7.0; 4]);
        same_bits("behind the heads", &effective[16..], &[-7.0; 4]);
        same_bits("behind the noise", &noise[12..], &[-7.0; 4]);
        (kernel.networks, kernel.target) = (2, Buf::NULL.into());
        assert!(kernel.check().is_err(), "a second network without parameters");
        Ok([effective[4..16].to_vec(), noise[..12].to_vec()])
    };
    let y = |w: &[f32]| -> Vec<f64> {
        let product = |o: usize| (0..3).map(|i| f64::from(w[3 * o + i]) * x[i]).sum::<f64>();
        (0..2).map(|o| product(o) + f64::from(w[8 + o])).collect()
    };
    let [weights, noise] = run(b, factor)?;
    case.matches("y", &y(&weights), &list("/expected/y"));
    let d_mu: Vec<f64> = d_y.iter().flat_map(|d| x.iter().map(move |x| d * x)).collect();
    case.matches("dmu", &d_mu, &rows("/expected/grads/dmu_w"));
    let d_sigma: Vec<f64> = d_mu.iter().zip(&noise).map(|(d, &n)| d * f64::from(n)).collect();
    case.matches("dsigma of the weights", &d_sigma, &rows("/expected/grads/dsigma_w"));
    let d_sigma: Vec<f64> = d_y.iter().zip(&noise[8..]).map(|(d, &n)| d * f64::from(n)).collect();
    case.matches("dsigma of the biases", &d_sigma, &list("/expected/grads/dsigma_b"));
    let d_x: Vec<f64> =
        (0..3).map(|i| (0..2).map(|o| d_y[o] * f64::from(weights[3 * o + i])).sum()).collect();
    case.matches("dx", &d_x, &list("/expected/grads/dx"));
    let [raw, _] = run(b, |x| x)?;
    case.matches("y without f", &y(&raw), &list("/known_wrong/no_f"));
    case.tells_apart("y", &y(&raw), &list("/expected/y"));
    Ok(())
}
