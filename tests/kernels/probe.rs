//! Bodies for `probe_permute` and `probe_difference`, and for the whole probe.

use cpu_path::{Hyper, Oracle, Start, init_parameters};
use gpu::clock;
use gpu::kernels::probe::reference::difference;
use gpu::kernels::probe::{ProbeDifference, ProbePermute, permuted};
use host::step::{Matmul, StepBuffers, StepShape, record_probe};
use settings::Flat;

use super::check::{close, same_bits};
use super::data::Random;
use super::feedback_step::config;
use super::golden::f64s;
use super::{Backend, Outcome, filled, launch, matmuls, put};

/// A permutation for every size, another one for another step and feature; copied rows with that one feature permuted.
pub fn permutation<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(191);
    for batch in [1u32, 2, 3, 16, 17, 64, 1000, 4097] {
        let of =
            |step, feature| (0..batch).map(|i| permuted(7, step, feature, batch, i)).collect::<Vec<u32>>();
        let places = of(5, 3);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..batch), "{batch} rows: {places:?}");
        if batch >= 64 {
            assert!(places != of(6, 3) && places != of(5, 4));
            // A random permutation has one fixed point on average; 12 would be a chance of 1e-9.
            let fixed = places.iter().enumerate().filter(|&(i, &p)| i as u32 == p).count();
            assert!(fixed < 12, "{fixed} of {batch} rows keep their value");
            // Neighbours come from far apart: mean distance of random places is a third.
            let apart = places.windows(2).map(|w| f64::from(w[0].abs_diff(w[1]))).sum::<f64>();
            let share = apart / f64::from(batch - 1) / f64::from(batch);
            assert!((share - 1.0 / 3.0).abs() < 0.15, "mean distance {share} of {batch}");
        }
    }
    for (batch, stride, feature) in [(1usize, 4usize, 0usize), (33, 12, 10), (64, 8, 5)] {
        let states = random.normals(batch * stride, 1.0);
        let mut words = [0u64; clock::WORDS as usize];
        words[clock::STEP as usize] = 9;
        let (words, states_buf) = (put(b, "clock", &words)?, put(b, "states", &states)?);
        let probed = filled(b, "probed", batch * stride, -7.0f32)?;
        launch(
            b,
            ProbePermute {
                batch: batch as u32,
                stride: stride as u32,
                feature: feature as u32,
                seed: 7,
                clock_words: words.into(),
                states: states_buf.into(),
                probed: probed.into(),
            },
        )?;
        let mut want = states.clone();
        for (i, row) in want.chunks_exact_mut(stride).enumerate() {
            let from = permuted(7, 9, feature as u32, batch as u32, i as u32) as usize;
            row[feature] = states[from * stride + feature];
        }
        same_bits("probed states", &b.download(probed)?, &want);
    }
    Ok(())
}

/// Mean differences below, at and above a block's threads; a NaN stays one.
pub fn differences<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(192);
    for len in [1, 31, 1024, 5000] {
        let (base, mut q) = (random.normals(len, 3.0), random.normals(len, 3.0));
        for bad in [false, true] {
            if bad {
                q[len / 2] = f32::NAN;
            }
            let (base_buf, q_buf) = (put(b, "base", &base)?, put(b, "q", &q)?);
            let sensitivity = filled(b, "sensitivity", 1, -7.0f32)?;
            launch(
                b,
                ProbeDifference {
                    len: len as u32,
                    base: base_buf.into(),
                    q: q_buf.into(),
                    sensitivity: sensitivity.into(),
                },
            )?;
            close("sensitivity", &b.download(sensitivity)?, &[difference(&base, &q)]);
        }
    }
    Ok(())
}

/// Every feature's sensitivity against the oracle, with and without attention, and a feature that no weight reads.
pub fn whole_probe<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(193);
    for &matmul in matmuls::<B>() {
        let attention = matmul == Matmul::Rust;
        let mut config = config(9);
        config.attention.enabled = attention;
        config.mamba.enabled = attention;
        config.probe.enabled = true;
        let shape = StepShape::new(&config, matmul);
        let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
        let (parts, flat) = (config.parts(), Flat::new(&config.model, &config.parts()));
        let mut online = init_parameters(&flat, 8);
        for gate in ["att.gate", "mamba.gate"].iter().filter_map(|name| flat.find(name)) {
            online[gate.offset] = 0.5;
        }
        let (width, unread) = (config.model.state, config.model.state - 1);
        let trunk = flat.offset("trunk1.weight");
        online[trunk..][..width * config.model.trunk1]
            .chunks_exact_mut(width)
            .for_each(|row| row[unread] = 0.0);
        b.upload(buffers.parameters.online, &online)?;
        let mut x = vec![0.0f32; 2 * shape.batch * shape.stride];
        for row in x.chunks_exact_mut(shape.stride) {
            row[..width].copy_from_slice(&random.normals(width, 1.0));
        }
        b.upload(buffers.batch.x, &x)?;
        let mut words = vec![0u64; buffers.clock.len()];
        words[clock::STEP as usize] = 4;
        b.upload(buffers.clock, &words)?;
        record_probe(b, &shape, &buffers)?;
        let probe = buffers.probe.expect("the probe is on");
        let got = b.download(probe.sensitivity)?;

        let target = online[..flat.target_len()].to_vec();
        let start = Start { online: f64s(&online), target: f64s(&target), spectral: Default::default() };
        let oracle = Oracle::with_parts(&config.model, &parts, Hyper::from(&config.optimizer), start)
            .expect("the configuration is one that works");
        let states: Vec<f64> =
            x.chunks_exact(shape.stride).take(shape.batch).flat_map(|row| f64s(&row[..width])).collect();
        let q = |states: &[f64]| oracle.act(states).expect("finite values").q;
        let base = q(&states);
        for (feature, &got) in got.iter().enumerate() {
            let mut probed = states.clone();
            for (i, row) in probed.chunks_exact_mut(width).enumerate() {
                let rows = shape.batch as u32;
                let from = permuted(shape.seed, 4, feature as u32, rows, i as u32) as usize;
                row[feature] = states[from * width + feature];
            }
            let sum: f64 = q(&probed).iter().zip(&base).map(|(q, base)| (q - base).abs()).sum();
            let want = sum / base.len() as f64;
            // SPEC section 8: Q within 1e-5 max|z|, of both.
            let bound = 2e-5 * f64::from(shape.model.v_max.abs().max(shape.model.v_min.abs()));
            assert!((f64::from(got) - want).abs() <= bound, "feature {feature}: {got}, expected {want}");
            assert_eq!(want == 0.0, feature == unread, "feature {feature} has {want}");
        }
        assert_eq!(got[unread], 0.0);
    }
    Ok(())
}
