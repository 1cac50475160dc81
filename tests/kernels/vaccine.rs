//! Bodies for `vaccine_products` and `vaccine_apply`, and for the step that has them.

use cpu_path::{C51Batch, Hyper, Oracle, Start, init_parameters, init_spectral};
use gpu::kernels::ensemble_loss::learns;
use gpu::kernels::noisy::factors;
use gpu::kernels::step_signals::signal;
use gpu::kernels::term_reduce::PAIRS;
use gpu::kernels::update_scales::scale;
use gpu::kernels::vaccine::reference::project;
use gpu::kernels::vaccine::{PRODUCTS, VaccineApply, VaccineProducts};
use gpu::{action, clock, philox};
use host::error::ExecError;
use host::profile::random_replay;
use host::step::{Matmul, Replay, StepBuffers, StepShape, record_vaccinated};
use settings::{Flat, NoisyLayout};

use super::check::same_bits;
use super::data::Random;
use super::feedback_step::{check_state, config, feedback};
use super::golden::f64s;
use super::{Backend, Outcome, filled, launch, matmuls, put};

/// Terms over all parameters and over the trunk, their factors, g_v.
struct Problem {
    trunk: usize,
    full: Vec<Vec<f32>>,
    partial: Vec<Vec<f32>>,
    factors: [f32; 4],
    vaccine: Vec<f32>,
}

impl Problem {
    /// sum_t s_t g_t in f64.
    fn total(&self) -> Vec<f64> {
        let mut total = vec![0.0; self.vaccine.len()];
        for (place, terms) in [(0, &self.full), (2, &self.partial)] {
            for (t, term) in terms.iter().enumerate() {
                let factor = f64::from(self.factors[place + t]);
                total.iter_mut().zip(term).for_each(|(sum, &g)| *sum += factor * f64::from(g));
            }
        }
        total
    }
}

/// The first term after the projection, the terms' inner products and the cosine.
fn run<B: Backend>(b: &mut B, p: &Problem, finite: bool) -> Result<(Vec<f32>, Vec<f32>, f32), ExecError> {
    let (len, blocks) = (p.vaccine.len(), p.vaccine.len().div_ceil(1024));
    let grads = put(b, "grads", &p.full.concat())?;
    let trunk_grads = put(b, "trunk grads", &[p.partial.concat(), vec![0.0; 4]].concat())?;
    let vaccine = put(b, "vaccine", &p.vaccine)?;
    let sums = filled(b, "sums", PAIRS as usize * blocks, 1.0f32)?;
    let products = filled(b, "products", PRODUCTS as usize * blocks, f32::NAN)?;
    launch(
        b,
        VaccineProducts {
            len: len as u32,
            trunk: p.trunk as u32,
            full: p.full.len() as u32,
            partial: p.partial.len() as u32,
            grads: grads.into(),
            trunk_grads: trunk_grads.into(),
            vaccine: vaccine.into(),
            sums: sums.into(),
            products: products.into(),
        },
    )?;
    let mut scales = vec![0.0f32; scale::WORDS as usize];
    scales[scale::FINITE as usize] = f32::from(u8::from(finite));
    scales[scale::TERM as usize..][..4].copy_from_slice(&p.factors);
    // The norm before the clip and the clip: only their product counts.
    let norm = p.total().iter().map(|g| g * g).sum::<f64>().sqrt();
    (scales[scale::GROUP_NORM as usize], scales[scale::GROUP as usize]) = (4.0 * norm as f32, 0.25);
    let mut words = [0u64; clock::WORDS as usize];
    words[clock::STEP as usize] = 3;
    let (scales, words) = (put(b, "scales", &scales)?, put(b, "clock", &words)?);
    let history = filled(b, "history", 2 * signal::COLUMNS as usize, -7.0f32)?;
    launch(
        b,
        VaccineApply {
            len: len as u32,
            rows: 2,
            products: products.into(),
            scales: scales.into(),
            clock_words: words.into(),
            vaccine: vaccine.into(),
            gradient: grads.slice(0, len).into(),
            history: history.into(),
        },
    )?;
    let history = b.download(history)?;
    let place = (signal::COLUMNS + signal::VACCINE_COSINE) as usize;
    assert!((0..history.len()).all(|i| i == place || history[i] == -7.0));
    let grads = b.download(grads)?;
    same_bits("the other terms", &grads[len..], &p.full[1..].concat());
    Ok((grads[..len].to_vec(), b.download(sums)?, history[place]))
}

fn problem(random: &mut Random, len: usize, trunk: usize, terms: (usize, usize), side: f32) -> Problem {
    let full: Vec<Vec<f32>> = (0..terms.0).map(|_| random.normals(len, 1.0)).collect();
    let partial = (0..terms.1).map(|_| random.normals(trunk, 1.0)).collect();
    // Along the first term or against it, with a part of its own.
    let own = random.normals(len, 0.5);
    let vaccine = full[0].iter().zip(&own).map(|(g, o)| side * g + o).collect();
    Problem { trunk, full, partial, factors: [0.7, 0.2, 0.4, 0.1], vaccine }
}

/// All terms' sum after the projection against f64, along and against g_v, one block and several, all numbers of terms.
pub fn projection<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(181);
    let mut shapes = vec![(4, 0, (1, 0)), (1024, 512, (2, 1)), (3460, 1300, (2, 2)), (2052, 2052, (1, 2))];
    if B::FULL_SIZE {
        shapes.push((323_584, 86_400, (2, 2)));
    }
    for (len, trunk, terms) in shapes {
        for side in [-1.0, 1.0] {
            let mut p = problem(&mut random, len, trunk, terms, side);
            let before = p.total();
            let (want, cosine) = project(&before, &f64s(&p.vaccine));
            let (first, sums, got_cosine) = run(b, &p, true)?;
            assert!(sums.iter().all(|&s| s == 1.0));
            assert_eq!(cosine < 0.0, side < 0.0, "the data point the way they are meant to");
            assert!((f64::from(got_cosine) - cosine).abs() < 1e-5, "{got_cosine}, expected {cosine}");
            if side > 0.0 {
                same_bits("a gradient along g_v", &first, &p.full[0]);
                continue;
            }
            p.full[0] = first;
            let got = p.total();
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let difference: Vec<f64> = got.iter().zip(&want).map(|(a, b)| a - b).collect();
            // Inner products of some thousand rounded products, relative to the lengths; one rounding an element.
            let bound = 2e-6 * norm(&before);
            assert!(norm(&difference) <= bound, "{:e} > {bound:e}", norm(&difference));
            let inner: f64 = got.iter().zip(&p.vaccine).map(|(g, &v)| g * f64::from(v)).sum();
            let lengths = norm(&before) * norm(&f64s(&p.vaccine));
            assert!(inner.abs() <= 2e-6 * lengths, "what is left against g_v: {inner:e}");
        }
    }
    Ok(())
}

/// g_v that is zero or in a skipped step changes nothing; one that is not finite makes the terms' norm NaN.
pub fn extremes<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(182);
    let mut p = problem(&mut random, 2052, 1024, (2, 1), -1.0);
    let (first, ..) = run(b, &p, false)?;
    same_bits("the gradient of a skipped step", &first, &p.full[0]);
    p.vaccine[1500] = f32::INFINITY;
    let (_, sums, _) = run(b, &p, true)?;
    let visible: Vec<bool> = sums.iter().map(|s| s.is_nan()).collect();
    assert!(visible[1] && visible.iter().filter(|v| **v).count() == 1, "{sums:?}");
    p.vaccine.fill(0.0);
    let (first, _, cosine) = run(b, &p, true)?;
    same_bits("the gradient beside zero", &first, &p.full[0]);
    assert_eq!(cosine, 0.0);
    Ok(())
}

/// The batch that a step draws uniformly from a ring.
fn sampled<B: Backend>(
    b: &mut B,
    shape: &StepShape,
    ring: &Replay,
    step: u64,
) -> Result<C51Batch<f64>, ExecError> {
    let (width, stride) = (shape.model.state, shape.stride);
    let [states, next_states] = [b.download(ring.states)?, b.download(ring.next_states)?];
    let (actions, rewards) = (b.download(ring.actions)?, b.download(ring.rewards)?);
    let discounts = b.download(ring.discounts)?;
    let mut batch = C51Batch { weights: vec![1.0; shape.batch], ..C51Batch::default() };
    for i in 0..shape.batch {
        let word = philox::draw(shape.seed, step, philox::Stream::Sample, i as u32, 0);
        let slot = philox::below(word[0], word[1], ring.capacity as u64) as usize;
        batch.states.extend(f64s(&states[slot * stride..][..width]));
        batch.next_states.extend(f64s(&next_states[slot * stride..][..width]));
        batch.actions.extend((0..shape.branches).map(|d| action::branch(actions[slot], d as u32)));
        batch.rewards.push(rewards[slot].into());
        batch.discounts.push(discounts[slot].into());
    }
    Ok(batch)
}

/// Three steps with the vaccine in each against the oracle, with several terms, attention and spectral norm.
pub fn whole_step<B: Backend>(b: &mut B) -> Outcome {
    let everything = matmuls::<B>().iter().map(|&matmul| (true, matmul));
    for (everything, matmul) in everything.chain([(false, Matmul::Rust)]) {
        let mut config = config(10);
        config.vaccine.enabled = true;
        if everything {
            feedback(&mut config);
            config.cql.enabled = true;
            config.ensemble.enabled = true;
            config.attention.enabled = true;
            config.mamba.enabled = true;
            (config.spectral.enabled, config.spectral.sigma_max) = (true, 0.6);
            config.model.noisy = matmul == Matmul::Rust;
        }
        let shape = StepShape::new(&config, matmul);
        let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
        buffers.start(b, &shape)?;
        let ring =
            |b: &mut B, slots| Ok::<_, ExecError>(random_replay(b, &shape, slots).expect("a full ring"));
        let (replay, held_out) = (ring(b, 61)?, ring(b, 61)?);
        // The same states and actions with the opposite of high returns: the gradients point apart.
        let rewards: Vec<f32> = b.download(replay.rewards)?.iter().map(|r| 2.0 + 0.5 * r).collect();
        b.upload(replay.rewards, &rewards)?;
        b.upload(held_out.rewards, &rewards.iter().map(|r| -r).collect::<Vec<f32>>())?;
        let (parts, flat) = (config.parts(), Flat::new(&config.model, &config.parts()));
        let mut online = init_parameters(&flat, 5);
        for gate in ["att.gate", "mamba.gate"].iter().filter_map(|name| flat.find(name)) {
            online[gate.offset] = 0.5;
        }
        let target = init_parameters(&flat, 6)[..flat.target_len()].to_vec();
        b.upload(buffers.parameters.online, &online)?;
        b.upload(buffers.parameters.target, &target)?;
        let spectral = init_spectral(&config.model, config.train.seed).map(|u| f64s(&u));
        let start = Start { online: f64s(&online), target: f64s(&target), spectral };
        let mut oracle = Oracle::with_parts(&config.model, &parts, Hyper::from(&config.optimizer), start)
            .expect("the configuration is one that works");
        let mut against = 0;
        for step in 0..3u64 {
            let mut batch = sampled(b, &shape, &replay, step)?;
            let members = config.ensemble.members as u32;
            if config.ensemble.enabled {
                let mask = |i: u32| learns(shape.seed, step, i / members, i % members, config.ensemble.mask);
                batch.masks = (0..shape.batch as u32 * members).map(mask).collect();
            }
            let mut other = sampled(b, &shape, &held_out, step)?;
            if config.model.noisy {
                let count = NoisyLayout::new(&config.model).factors;
                let of = |stream| f64s(&factors(shape.seed, step, stream, count));
                batch.noise = [of(philox::Stream::NoiseOnline), of(philox::Stream::NoiseTarget)].concat();
                other.noise = batch.noise.clone();
            }
            record_vaccinated(b, &shape, &buffers, &replay, &held_out)?;
            let metrics = oracle.train_step_against(&batch, Some(&other)).expect("the batches fit");
            assert!(!metrics.skipped);
            let cosine = metrics.kept.iter().find(|(name, _)| *name == "vaccine_cosine").expect("a cosine").1;
            against += usize::from(cosine < 0.0);
            let history = b.download(buffers.history)?;
            let got = history[step as usize * signal::COLUMNS as usize + signal::VACCINE_COSINE as usize];
            assert!((f64::from(got) - cosine).abs() < 1e-3, "cosine {got}, expected {cosine}");
            let state = oracle.export();
            check_state(b, (&shape, &config), &buffers, &online, &state, step as usize + 1)?;
        }
        assert!(against > 0, "no step's gradient was against the held-out one");
    }
    Ok(())
}
