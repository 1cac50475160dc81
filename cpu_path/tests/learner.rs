//! Behaviour of the learner: acting, learning, refusing, resuming.

use cpu_path::{C51Batch, CpuError, CpuLearner, LearnerState, Net, Oracle, init_flat};
use settings::{Layout, ModelShape, Optimizer};

use crate::support::{batch, narrow_batch, small_shape, wave};

fn optimizer() -> Optimizer {
    Optimizer { lr: 1e-2, weight_decay: 1e-3, ..Default::default() }
}

fn bits(state: &LearnerState<f32>) -> Vec<u32> {
    [&state.online, &state.target, &state.m, &state.v]
        .iter()
        .flat_map(|x| x.iter().map(|x| x.to_bits()))
        .collect()
}

#[test]
fn a_new_learner_holds_the_common_initial_parameters_in_both_networks() {
    let shape = small_shape();
    let state = CpuLearner::new(&shape, &optimizer(), 11).unwrap().export();
    assert_eq!(state.online, init_flat(&shape, 11));
    assert_eq!(state.target, state.online);
    assert!(state.m.iter().chain(&state.v).all(|x| *x == 0.0));
    let wide = Oracle::new(&shape, &optimizer(), 11).unwrap().export();
    assert!(wide.online.iter().zip(&state.online).all(|(w, n)| *w == f64::from(*n)));
}

#[test]
fn acting_gives_the_q_values_of_the_online_network_and_their_first_maximum() {
    let shape = small_shape();
    let learner = Oracle::new(&shape, &optimizer(), 5).unwrap();
    let states = wave(4 * shape.state, 0.2);
    let decision = learner.act(&states).unwrap();
    let activations = learner.activations(Net::Online, &states).unwrap();
    assert_eq!(decision.q.len(), 4 * shape.actions());
    for row in 0..4 {
        let mut at = row * shape.actions();
        for (d, &n) in shape.branches.iter().enumerate() {
            let q = &decision.q[at..at + n];
            assert_eq!(q, &activations.q[d][row * n..][..n]);
            let largest = q.iter().copied().fold(f64::MIN, f64::max);
            let first = q.iter().position(|x| *x == largest).unwrap();
            assert_eq!(decision.greedy[row * shape.branches.len() + d] as usize, first);
            at += n;
        }
    }
    // Rows do not influence each other.
    let alone = learner.act(&states[shape.state..2 * shape.state]).unwrap();
    assert_eq!(alone.greedy[..], decision.greedy[3..6]);
}

#[test]
fn equal_q_values_choose_the_lowest_index() {
    let shape = small_shape();
    let layout = Layout::main(&shape);
    let mut online = init_flat(&shape, 5);
    // Advantages that do not depend on the action: every Q of a branch is the same number.
    for d in 0..shape.branches.len() {
        for part in ["weight", "bias"] {
            let t = layout.find(&format!("a2.{d}.{part}")).unwrap();
            online[t.offset..t.offset + t.len()].fill(0.0);
        }
    }
    let hyper = cpu_path::Hyper::from(&optimizer());
    let learner = CpuLearner::with_parameters(&shape, hyper, online.clone(), online).unwrap();
    let states: Vec<f32> = wave(3 * shape.state, 0.2).iter().map(|&x| x as f32).collect();
    assert_eq!(learner.act(&states).unwrap().greedy, [0; 9]);
}

#[test]
fn the_loss_on_a_fixed_batch_falls_towards_the_entropy_of_its_target() {
    let shape = small_shape();
    let mut batch = narrow_batch::<f32>(&batch(&shape, 16));
    // No bootstrap: the target does not move, and its entropy is the least cross-entropy there is.
    batch.discounts.fill(0.0);
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    let mass = learner.evaluate(&batch).unwrap().target_mass;
    let rows = mass.chunks_exact(shape.atoms).enumerate();
    let entropy =
        |m: &[f32]| m.iter().filter(|m| **m > 0.0).map(|&m| -f64::from(m) * f64::from(m).ln()).sum::<f64>();
    let branches = shape.branches.len();
    let floor = rows.map(|(i, m)| f64::from(batch.weights[i / branches]) * entropy(m)).sum::<f64>();
    let floor = floor / (batch.len() * branches) as f64;
    let first = learner.train_step(&batch).unwrap().loss - floor;
    for _ in 0..199 {
        learner.train_step(&batch).unwrap();
    }
    let last = learner.evaluate(&batch).unwrap().loss as f64 - floor;
    assert!(last > 0.0 && last < 0.1 * first, "distance to the floor {first} -> {last}");
    assert_eq!(learner.step(), 200);
}

#[test]
fn two_runs_and_a_resumed_run_are_equal_bit_for_bit() {
    let shape = ModelShape { trunk1: 64, trunk2: 64, ..small_shape() };
    let batches: Vec<C51Batch<f32>> = (0..6).map(|i| narrow_batch(&batch(&shape, 16 + i))).collect();
    let new = || CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    let run = |learner: &mut CpuLearner, batches: &[C51Batch<f32>]| {
        batches.iter().map(|b| learner.train_step(b).unwrap().loss.to_bits()).collect::<Vec<_>>()
    };
    let (mut a, mut b) = (new(), new());
    assert_eq!(run(&mut a, &batches), run(&mut b, &batches));
    assert_eq!(bits(&a.export()), bits(&b.export()));

    let mut first = new();
    run(&mut first, &batches[..3]);
    let saved = first.export();
    let mut second = CpuLearner::new(&shape, &optimizer(), 999).unwrap();
    second.import(saved).unwrap();
    run(&mut second, &batches[3..]);
    assert_eq!(bits(&second.export()), bits(&a.export()));
    assert_eq!(second.step(), 6);
    assert_eq!(second.act(&batches[0].states).unwrap(), a.act(&batches[0].states).unwrap());
}

#[test]
fn a_non_finite_gradient_skips_the_whole_step_and_is_counted() {
    let shape = small_shape();
    let good = narrow_batch::<f32>(&batch(&shape, 8));
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    learner.train_step(&good).unwrap();
    let before = learner.export();
    for (i, poison) in [f32::NAN, f32::INFINITY].into_iter().enumerate() {
        let mut bad = good.clone();
        bad.states[3] = poison;
        let metrics = learner.train_step(&bad).unwrap();
        assert!(metrics.skipped && !metrics.grad_norm.is_finite());
        assert_eq!(learner.skipped(), (i as u64 + 1, i as u32 + 1));
    }
    let mut bad = good.clone();
    bad.rewards[0] = f32::NAN;
    assert!(learner.train_step(&bad).unwrap().skipped);
    let after = learner.export();
    assert_eq!(bits(&after), bits(&before));
    assert_eq!((after.step, after.skipped, after.skipped_in_row), (1, 3, 3));
    assert!(!learner.train_step(&good).unwrap().skipped);
    assert_eq!(learner.skipped(), (3, 0));
}

#[test]
fn padding_stays_zero_through_decay_and_averaging() {
    let shape = small_shape();
    let layout = Layout::main(&shape);
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    for _ in 0..3 {
        learner.train_step(&narrow_batch(&batch(&shape, 8))).unwrap();
    }
    let state = learner.export();
    let mut inside = vec![false; layout.len];
    layout.tensors.iter().for_each(|t| inside[t.offset..t.offset + t.len()].fill(true));
    for vector in [&state.online, &state.target, &state.m, &state.v] {
        assert!(vector.iter().zip(&inside).all(|(x, inside)| *inside || x.to_bits() == 0));
    }
}

#[test]
fn the_learning_rate_of_the_next_step_can_be_set() {
    let shape = small_shape();
    let batch = narrow_batch::<f32>(&batch(&shape, 8));
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    learner.set_learning_rate(0.0).unwrap();
    learner.train_step(&batch).unwrap();
    assert_eq!(learner.export().online, init_flat(&shape, 2));
    assert!(learner.set_learning_rate(-1.0).unwrap_err().to_string().contains("optimizer.lr = -1"));
    learner.set_learning_rate(1e-3).unwrap();
    learner.train_step(&batch).unwrap();
    assert_ne!(learner.export().online, init_flat(&shape, 2));
}

#[test]
fn a_batch_that_does_not_fit_names_what_is_wrong() {
    let shape = small_shape();
    let good = narrow_batch::<f32>(&batch(&shape, 8));
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    let mut message = |change: &dyn Fn(&mut C51Batch<f32>)| {
        let mut bad = good.clone();
        change(&mut bad);
        learner.train_step(&bad).unwrap_err().to_string()
    };
    assert_eq!(message(&|b| b.actions[4] = 4), "batch.actions[1][1] = 4: branch 1 has 4 actions");
    assert_eq!(
        message(&|b| b.next_states.truncate(39)),
        "batch.next_states [batch, state] has 39 elements: expected 40"
    );
    assert_eq!(message(&|b| b.weights.push(1.0)), "batch.weights [batch] has 9 elements: expected 8");
    assert_eq!(message(&|b| *b = C51Batch::default()), "batch.rewards [batch] has 0 elements: expected 1");
}

#[test]
fn states_that_do_not_fit_or_give_no_number_are_refused() {
    let shape = small_shape();
    let learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    assert!(matches!(learner.act(&[0.0; 7]), Err(CpuError::Length { got: 7, expected: 5, .. })));
    assert!(matches!(learner.act(&[]), Err(CpuError::Length { got: 0, expected: 5, .. })));
    let mut states = vec![0.0; 2 * shape.state];
    states[7] = f32::NAN;
    assert!(matches!(
        learner.act(&states),
        Err(CpuError::NonFiniteValue { row: 1, branch: 0, action: 0, .. })
    ));
}

#[test]
fn a_damaged_state_is_refused_and_leaves_the_learner_as_it_was() {
    let shape = small_shape();
    let mut learner = CpuLearner::new(&shape, &optimizer(), 2).unwrap();
    learner.train_step(&narrow_batch(&batch(&shape, 8))).unwrap();
    let good = learner.export();
    let mut message = |change: &dyn Fn(&mut LearnerState<f32>)| {
        let mut bad = good.clone();
        change(&mut bad);
        let message = learner.import(bad).unwrap_err().to_string();
        assert_eq!(learner.export(), good);
        message
    };
    assert_eq!(
        message(&|s| s.v[2] = -1.0),
        "learner state: v[2] = -1: expected 0 or more, it is a mean of squares"
    );
    assert_eq!(
        message(&|s| s.online[0] = f32::NAN),
        "learner state: online[0] = NaN: expected a finite number"
    );
    // trunk1.weight has 45 elements, the next tensor starts at 64.
    assert_eq!(message(&|s| s.m[50] = 1.0), "learner state: m[50] = 1: expected 0, it is padding");
    assert!(message(&|s| s.target.truncate(9)).starts_with("learner state: target has 9 elements"));
}

#[test]
fn shapes_and_settings_that_cannot_work_are_refused() {
    let shape = ModelShape { state: 4, branches: vec![9, 1], ..Default::default() };
    let message = CpuLearner::new(&shape, &optimizer(), 0).unwrap_err().to_string();
    assert_eq!(message, "model.branches[1] = 1: expected 2 to 64 actions");
    let bad = Optimizer { beta1: 1.5, ..optimizer() };
    let message = CpuLearner::new(&small_shape(), &bad, 0).unwrap_err().to_string();
    assert_eq!(message, "optimizer.beta1 = 1.5: expected 0 <= beta1 < 1");
}
