//! Noisy heads, pruning and schedules of the CPU path.

use cpu_path::{CpuLearner, Hyper, Learner, LearnerState, Net, Oracle, init_flat};
use settings::model::SIGMA;
use settings::{Config, Head, Layout, ModelShape, NoisyLayout, Optimizer, Pruning, Schedule};

use crate::support::{batch, narrow, narrow_batch, small_shape, wave};

fn noisy_shape(head: Head) -> ModelShape {
    ModelShape { noisy: true, head, ..small_shape() }
}

/// Factors of both networks, of every sign and size.
fn factors(shape: &ModelShape, phase: f64) -> Vec<f64> {
    wave(2 * NoisyLayout::new(shape).factors, phase).iter().map(|x| 2.0 * x).collect()
}

fn oracle(shape: &ModelShape, online: Vec<f64>) -> Oracle {
    let widen = |seed| init_flat(shape, seed).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    Learner::with_parameters(shape, Hyper::from(&Optimizer::default()), online, widen(4)).unwrap()
}

fn initial(shape: &ModelShape) -> Vec<f64> {
    init_flat(shape, 3).iter().map(|&x| f64::from(x)).collect()
}

/// dloss/dmu and dloss/dsigma of three shapes against central differences: off by h^2 |f'''| / 6 and by
/// 2 eps |loss| / h, about 1e-12 and 1e-9 for h = 1e-6.
#[test]
fn every_derivative_matches_central_differences() {
    let wide = ModelShape { branches: vec![3], trunk2: 4, atoms: 4, ..noisy_shape(Head::Mlp) };
    for shape in [noisy_shape(Head::Mlp), noisy_shape(Head::Glu), wide] {
        let mut batch = batch(&shape, 5);
        batch.noise = factors(&shape, 0.7);
        let online = initial(&shape);
        let base = oracle(&shape, online.clone());
        let evaluation = base.evaluate(&batch).unwrap();
        let h = 1e-6;
        for t in &base.layout().tensors {
            for i in (t.offset..t.offset + t.len()).step_by(3) {
                let at = |x: f64| {
                    let mut moved = online.clone();
                    moved[i] = x;
                    let moved = oracle(&shape, moved).evaluate(&batch).unwrap();
                    assert_eq!(moved.next_actions, evaluation.next_actions, "no greedy action near a tie");
                    moved.loss
                };
                let quotient = (at(online[i] + h) - at(online[i] - h)) / (2.0 * h);
                let difference = (evaluation.gradient[i] - quotient).abs();
                let got = evaluation.gradient[i];
                assert!(difference < 5e-9, "{}[{}]: {got} and {quotient}", t.name, i - t.offset);
            }
            let sum: f64 = evaluation.gradient[t.offset..][..t.len()].iter().map(|g| g.abs()).sum();
            assert!(sum > 0.0, "{} has a gradient", t.name);
        }
    }
}

/// The noise is f(e_out) f(e_in)^T for weights and f(e_out) for biases: the noisy step's function is that of a plain
/// network whose weights were made by hand.
#[test]
fn noisy_weights_are_those_of_the_paper() {
    for head in [Head::Mlp, Head::Glu] {
        let shape = noisy_shape(head);
        let plain = ModelShape { noisy: false, ..shape.clone() };
        let (layout, online) = (Layout::main(&shape), initial(&shape));
        let drawn = factors(&shape, 0.2);
        let mut by_hand = online[..Layout::main(&plain).len].to_vec();
        for layer in &NoisyLayout::new(&shape).layers {
            let at = |tensor: &str| layout.offset(&format!("{}.{tensor}", layer.name));
            let (w, b) = (at("weight"), at("bias"));
            let (sw, sb) = (at(&format!("weight{SIGMA}")), at(&format!("bias{SIGMA}")));
            for o in 0..layer.outputs {
                let out = drawn[layer.output_factors + o];
                by_hand[b + o] += online[sb + o] * out;
                for i in 0..layer.inputs {
                    let k = o * layer.inputs + i;
                    by_hand[w + k] += online[sw + k] * out * drawn[layer.input_factors + i];
                }
            }
        }
        let states = wave(4 * shape.state, 0.3);
        let noise = &drawn[..drawn.len() / 2];
        let noisy = oracle(&shape, online.clone());
        let with = noisy.act_with_noise(&states, noise).unwrap().q;
        let plain_learner = oracle(&plain, by_hand);
        let want = plain_learner.act(&states).unwrap().q;
        for (got, want) in with.iter().zip(&want) {
            assert!((got - want).abs() < 1e-13, "{got} {want}");
        }
        // Without noise the heads act by their mu.
        let mu = oracle(&plain, online[..Layout::main(&plain).len].to_vec());
        assert_eq!(noisy.act(&states).unwrap(), mu.act(&states).unwrap());
        assert_eq!(
            noisy.activations(Net::Online, &states).unwrap().logits,
            mu.activations(Net::Online, &states).unwrap().logits
        );
        assert_ne!(with, mu.act(&states).unwrap().q);
    }
}

#[test]
fn sigma_begins_at_half_over_the_root_of_the_inputs() {
    let shape = noisy_shape(Head::Mlp);
    let (layout, values) = (Layout::main(&shape), init_flat(&shape, 7));
    for (name, inputs) in [("v1.weight", 7.0f32), ("v1.bias", 7.0), ("a2.2.weight", 5.0), ("v2.bias", 6.0)] {
        let t = layout.find(&format!("{name}{SIGMA}")).unwrap();
        assert!(values[t.offset..t.offset + t.len()].iter().all(|&x| x == 0.5 / inputs.sqrt()), "{name}");
    }
    // The mus are what they are without noise.
    let plain = init_flat(&ModelShape { noisy: false, ..shape }, 7);
    assert_eq!(values[..plain.len()], plain);
}

#[test]
fn a_batch_without_its_noise_names_it() {
    let shape = noisy_shape(Head::Mlp);
    let learner = oracle(&shape, initial(&shape));
    let mut batch = batch(&shape, 4);
    let message = learner.evaluate(&batch).unwrap_err().to_string();
    let count = 2 * NoisyLayout::new(&shape).factors;
    assert_eq!(message, format!("batch.noise [2, factors] has 0 elements: expected {count}"));
    batch.noise = vec![0.5; count];
    let plain = ModelShape { noisy: false, ..shape };
    let message = oracle(&plain, initial(&plain)).evaluate(&batch).unwrap_err().to_string();
    assert!(message.starts_with("batch.noise [2, factors] has "), "{message}");
    let short = learner.act_with_noise(&batch.states, &[0.0]).unwrap_err().to_string();
    assert!(short.starts_with("factors of the noise has 1 elements"), "{short}");
}

fn config() -> Config {
    let mut config = Config { model: noisy_shape(Head::Mlp), ..Config::default() };
    (config.optimizer.lr, config.train.seed) = (1e-2, 11);
    config.pruning = Pruning { enabled: true, sparsity: 0.6, begin: 1, end: 7, every: 2 };
    config
}

fn bits(state: &LearnerState<f32>) -> (Vec<u32>, Vec<bool>) {
    let vectors = [&state.online, &state.target, &state.m, &state.v];
    (vectors.iter().flat_map(|x| x.iter().map(|x| x.to_bits())).collect(), state.pruned.clone())
}

/// Exact counts, masks that only grow, weights and moments that stay zero, targets that shrink; resume bit for bit.
#[test]
fn pruned_weights_stay_exactly_zero_also_after_a_resume() {
    let config = config();
    let shape = config.model.clone();
    let step_batch = |step: usize| {
        let mut batch = batch(&shape, 6);
        batch.noise = factors(&shape, step as f64);
        narrow_batch::<f32>(&batch)
    };
    let mut learner = CpuLearner::from_config(&config).unwrap();
    let layout = Layout::main(&shape);
    let mut before = learner.export();
    let mut resumed: Option<CpuLearner> = None;
    for step in 0..11 {
        assert!(!learner.train_step(&step_batch(step)).unwrap().skipped);
        let state = learner.export();
        let last = (0..=step as u64).rev().find(|&step| config.pruning.due(step));
        for t in Pruning::matrices(&layout) {
            let expected = last.map_or(0, |step| config.pruning.zeros(step, t.len()));
            let range = t.offset..t.offset + t.len();
            let pruned: Vec<usize> = range.filter(|&i| state.pruned[i]).collect();
            assert_eq!(pruned.len(), expected, "{} at step {step}", t.name);
            for i in pruned {
                assert_eq!((state.online[i], state.m[i], state.v[i]), (0.0, 0.0, 0.0), "{} {i}", t.name);
                let shrunk = before.target[i] * (1.0 - config.optimizer.tau);
                assert!((state.target[i] - shrunk).abs() <= 1e-6 * before.target[i].abs());
            }
        }
        assert!(before.pruned.iter().zip(&state.pruned).all(|(before, now)| !before || *now));
        if let Some(resumed) = &mut resumed {
            resumed.train_step(&step_batch(step)).unwrap();
            assert_eq!(bits(&resumed.export()), bits(&state), "resumed, step {step}");
        }
        if step == 4 {
            let mut other = CpuLearner::from_config(&config).unwrap();
            other.import(state.clone()).unwrap();
            resumed = Some(other);
        }
        before = state;
    }
    assert!(learner.sparsity().iter().all(|(_, share)| *share > 0.5 && *share < 0.7));
    let mut plain = config.clone();
    plain.pruning.enabled = false;
    let message = CpuLearner::from_config(&plain).unwrap().import(before).unwrap_err().to_string();
    assert!(message.starts_with("learner state: pruned has "), "{message}");
}

/// The rate of every update: half a cosine and a line by their own formulas, constant without a schedule.
#[test]
fn schedules_follow_their_formulas() {
    let base = Optimizer { lr: 1e-3, warmup_steps: 4, total_steps: 14, lr_end: 1e-4, ..Optimizer::default() };
    for schedule in [Schedule::Cosine, Schedule::Linear] {
        let hyper = Hyper::from(&Optimizer { schedule, ..base.clone() });
        hyper.check().unwrap();
        for t in 1..=20u64 {
            let x = (t as f64 - 4.0) / 10.0;
            let want = match (t, schedule) {
                (..=4, _) => 1e-3 * t as f64 / 4.0,
                (14.., _) => 1e-4,
                (_, Schedule::Cosine) => 1e-4 + 9e-4 * (1.0 + (std::f64::consts::PI * x).cos()) / 2.0,
                _ => 1e-3 - 9e-4 * x,
            };
            assert!((hyper.rate(t) - want).abs() < 1e-15, "{schedule:?} {t}: {} {want}", hyper.rate(t));
        }
    }
    let constant = Hyper::from(&Optimizer { warmup_steps: 0, total_steps: 0, ..base });
    assert!([1, 5, 1_000_000].iter().all(|&t| constant.rate(t) == 1e-3));
}

/// One parameter moves by about lr in an Adam step whose gradients keep their sign: so the schedule is what moves it.
#[test]
fn the_learner_uses_the_rate_of_its_schedule() {
    let shape = small_shape();
    let optimizer = Optimizer {
        lr: 1e-3,
        eps: 1e-12,
        schedule: Schedule::Linear,
        warmup_steps: 2,
        total_steps: 6,
        ..Optimizer::default()
    };
    let batch = narrow_batch::<f64>(&batch(&shape, 6));
    let mut learner = Oracle::new(&shape, &optimizer, 5).unwrap();
    let mut moved = Vec::new();
    let mut before: Vec<f64> = narrow(&learner.export().online);
    for _ in 0..8 {
        learner.train_step(&batch).unwrap();
        let now = learner.export().online;
        moved.push(now.iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max));
        before = now;
    }
    for (moved, share) in moved.iter().zip([0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]) {
        let rate = 1e-3 * share;
        // |m_hat| / sqrt(v_hat) of a gradient that hardly changes is within a few percent of 1.
        assert!((moved - rate).abs() <= 0.05 * rate, "{moved} at a rate of {rate}");
    }
}
