//! Bodies for `task_step`: Gymnasium's recorded steps, an independent f64 reference, and the CPU's environments, which must
//! have the same bits.

use gpu::action;
use gpu::kernels::task_step::{TaskStep, reference};
use gpu::market::{RUNNING, TERMINATED, TRUNCATED, Transitions};
use gpu::task::{COUNTERS, Finished, LOG_FIELDS, NAMES, Task, VecTask, WORDS};
use host::error::ExecError;

use super::check::same_bits;
use super::data::Random;
use super::tasks::{Recorded, Tasks, UNWRITTEN};
use super::{Backend, Outcome, launch};

fn task(name: &str) -> Task {
    Task::named(name, 0, 0).expect("a task of that name")
}

/// Every recorded step from Gymnasium's own state, one environment for each: the next state within 1e-5, reward and both
/// ends exactly; by the kernel and by the CPU's environments.
fn recorded<B: Backend>(b: &mut B, name: &str, at_least: usize) -> Outcome {
    let steps = Recorded::read(name);
    let (n, width) = (steps.len(), steps.width);
    assert!(n >= at_least, "{n} steps");
    let device = Tasks::new(b, task(name), (n, n, 0), (0.99, 1))?;
    let mut words = vec![0u64; WORDS as usize * n];
    let mut counters = vec![0u32; COUNTERS as usize * n];
    for e in 0..n {
        for i in 0..width {
            words[(1 + i) * n + e] = f64::from(steps.states[e * width + i]).to_bits();
        }
        counters[e] = steps.before[e];
        counters[n + e] = 1;
        counters[2 * n + e] = RUNNING;
    }
    b.upload(device.words, &words)?;
    b.upload(device.counters, &counters)?;
    device.step(b, &steps.actions, 0)?;
    let (rewards, flags) = (b.download(device.ring_rewards)?, b.download(device.flags)?);
    let next = b.download(device.ring_next_states)?;

    let mut host = VecTask::new(device.task, n, 0.99, 1);
    host.set_memory(&words, &counters).expect("memory of as many environments");
    let mut out = Transitions::new(n, device.task.spec().observation as usize);
    host.step(&steps.actions, &mut out, |_, _| ()).expect("actions of the task");

    let mut seen = [0; 2];
    for e in 0..n {
        let (end, cut) = (steps.terminated[e], steps.truncated[e]);
        let expected = if end { TERMINATED } else { 0 } | if cut { TRUNCATED } else { 0 };
        seen = [seen[0] + usize::from(end), seen[1] + usize::from(cut)];
        let from = &steps.states[e * width..][..width];
        let expected_next = observation(name, &steps.next[e * width..][..width]);
        for (path, reward, flags, row) in [
            ("device", rewards[e], flags[e], &next[e * device.stride..][..expected_next.len()]),
            (
                "CPU",
                out.rewards[e],
                out.flags[e],
                &out.next_states[e * expected_next.len()..][..expected_next.len()],
            ),
        ] {
            assert_eq!(flags, expected, "{path}, step {e} from {from:?}: ends");
            assert_eq!(reward, steps.rewards[e], "{path}, step {e} from {from:?}: reward");
            for (i, (&got, &want)) in row.iter().zip(&expected_next).enumerate() {
                assert!(
                    (f64::from(got) - want).abs() <= 1e-5,
                    "{path}, step {e} from {from:?}: element {i} is {got}, Gymnasium has {want}"
                );
            }
        }
    }
    assert!(seen.iter().all(|&count| count >= 20), "{seen:?} ends of each kind: too few to test");
    Ok(())
}

/// Gymnasium's observation of a state.
fn observation(name: &str, state: &[f32]) -> Vec<f64> {
    let state: Vec<f64> = state.iter().map(|&x| x.into()).collect();
    match name {
        "acrobot" => {
            let (a, b) = (state[0], state[1]);
            vec![a.cos(), a.sin(), b.cos(), b.sin(), state[2], state[3]]
        }
        _ => state,
    }
}

/// 10^5 steps of CartPole-v1.
pub fn gymnasium_cart_pole<B: Backend>(b: &mut B) -> Outcome {
    recorded(b, "cartpole", 100_000)
}

/// 10^5 steps of Acrobot-v1.
pub fn gymnasium_acrobot<B: Backend>(b: &mut B) -> Outcome {
    recorded(b, "acrobot", 100_000)
}

/// 10^4 steps of MountainCar-v0, the worked example of `docs/ENVIRONMENTS.md`.
pub fn gymnasium_mountain_car<B: Backend>(b: &mut B) -> Outcome {
    recorded(b, "mountain_car", 10_000)
}

/// Random states, also such as no episode reaches, against the equations of motion in f64.
pub fn equations_of_motion<B: Backend>(b: &mut B) -> Outcome {
    let n = if B::FULL_SIZE { 100_000 } else { 2000 };
    let mut random = Random::new(5);
    for (name, actions, spreads) in [
        ("cartpole", 2, &[1.5, 2.0, 0.15, 2.0][..]),
        ("acrobot", 3, &[3.1, 3.1, 12.0, 28.0]),
        ("mountain_car", 3, &[1.2, 0.07]),
    ] {
        let width = spreads.len();
        let device = Tasks::new(b, task(name), (n, n, 0), (0.99, 1))?;
        let states: Vec<Vec<f64>> =
            (0..n).map(|_| spreads.iter().map(|s| s * (2.0 * random.uniform() - 1.0)).collect()).collect();
        let taken: Vec<u64> = (0..n).map(|_| random.below(actions) as u64).collect();
        let mut words = vec![0u64; WORDS as usize * n];
        let mut counters = vec![1u32; COUNTERS as usize * n];
        counters[2 * n..].fill(RUNNING);
        for (e, state) in states.iter().enumerate() {
            for (i, x) in state.iter().enumerate() {
                words[(1 + i) * n + e] = x.to_bits();
            }
        }
        b.upload(device.words, &words)?;
        b.upload(device.counters, &counters)?;
        device.step(b, &taken, 0)?;
        let (after, flags) = (b.download(device.words)?, b.download(device.flags)?);
        let (rewards, mut compared) = (b.download(device.ring_rewards)?, 0);
        for e in 0..n {
            let step = match name {
                "cartpole" => reference::cart_pole(&states[e], taken[e]),
                "acrobot" => reference::acrobot(&states[e], taken[e]),
                _ => reference::mountain_car(&states[e], taken[e]),
            };
            assert_eq!(flags[e] == TERMINATED, step.terminated, "{name} {:?}: end", states[e]);
            assert_eq!(f64::from(rewards[e]), step.reward, "{name} {:?}: reward", states[e]);
            if step.terminated {
                continue; // the memory holds the next episode's start
            }
            compared += 1;
            for i in 0..width {
                let (got, want) = (f64::from_bits(after[(1 + i) * n + e]), step.state[i]);
                // Accelerations of up to 10^4 in four slopes, each of some 50 roundings of f64, times the step of 0.2; an
                // angle at pi may be wrapped to either side.
                let error = (got - want).abs();
                let turned = (error - std::f64::consts::TAU).abs();
                let same = error <= 1e-10 || (name == "acrobot" && i < 2 && turned <= 1e-10);
                assert!(same, "{name} {:?}: {i} is {got}, expected {want}", states[e]);
            }
        }
        assert!(compared > n / 4, "{name}: only {compared} steps go on");
    }
    Ok(())
}

/// Bit flipping against the rule on lists of bits, until every goal is reached or given up.
pub fn bit_flip_rule<B: Backend>(b: &mut B) -> Outcome {
    for bits in [2usize, 5, 30, 33, 64] {
        let task = Task::named("bit_flip", bits as u32, 0).expect("a size that is allowed");
        let (n, gamma) = (7, 0.98);
        let device = Tasks::new(b, task, (n, n, 0), (gamma, 3))?;
        launch(b, device.kernel(0))?;
        let mut random = Random::new(bits as u64);
        let mut ends = 0;
        for step in 0..bits + 3 {
            let rows = b.download(device.states)?;
            let row = |e: usize| &rows[e * device.stride..][..device.stride];
            // Flips towards the goal three times of four.
            let taken: Vec<u64> = (0..n)
                .map(|e| {
                    let wrong = (0..bits).find(|&i| row(e)[i] != row(e)[bits + i]);
                    let by_chance = random.below(4) == 0;
                    wrong.filter(|_| !by_chance).unwrap_or_else(|| random.below(bits)) as u64
                })
                .collect();
            device.step(b, &taken, 0)?;
            let (next, rewards) = (b.download(device.ring_next_states)?, b.download(device.ring_rewards)?);
            let (discounts, flags) = (b.download(device.ring_discounts)?, b.download(device.flags)?);
            for e in 0..n {
                let goal = &row(e)[bits..2 * bits];
                let (expected, outcome) = reference::bit_flip(&row(e)[..bits], goal, taken[e]);
                let got = &next[e * device.stride..][..device.stride];
                assert_eq!(got[..bits], expected, "{bits} bits, step {step}: s'");
                assert_eq!(got[bits..2 * bits], *goal, "{bits} bits, step {step}: the goal stays");
                assert!(got[2 * bits..].iter().all(|&x| x == 0.0), "padding");
                assert_eq!(f64::from(rewards[e]), outcome.reward);
                assert_eq!(discounts[e], if outcome.terminated { 0.0 } else { gamma as f32 });
                assert_eq!(flags[e] & TERMINATED != 0, outcome.terminated);
                ends += usize::from(flags[e] != 0);
            }
        }
        assert!(ends >= n, "{bits} bits: {ends} episodes ended");
    }
    Ok(())
}

/// Every task beside the CPU's environments, bit for bit: accounts, ring, flags, log, over a ring that wraps inside a step
/// and episodes that end; `s'` of a step that ends an episode is not the next episode's start.
pub fn as_the_cpu<B: Backend>(b: &mut B) -> Outcome {
    for name in NAMES {
        let task = Task { limit: 9, ..task(name) };
        let spec = task.spec();
        let state = spec.observation as usize;
        let (n, capacity, steps, log_rows) =
            if B::FULL_SIZE { (4096, 10_000, 50, 2) } else { (37, 100, 25, 2) };
        let device = Tasks::new(b, task, (n, capacity, log_rows), (0.97, 77))?;
        launch(b, device.kernel(0))?;
        let mut host = VecTask::new(task, n, 0.97, 77);
        let mut out = Transitions::new(n, state);
        let mut log: Vec<Vec<Finished>> = vec![Vec::new(); n];
        let mut restarted = 0;
        for step in 0..steps {
            let rows = b.download(device.states)?;
            for (row, expected) in rows.chunks(device.stride).zip(host.states().chunks(state)) {
                same_bits("s", &row[..state], expected);
                same_bits("padding", &row[state..], &vec![0.0; device.stride - state]);
            }
            let actions: Vec<u64> = (0..n)
                .map(|e| ((step * 31 + e * 7 + e * e) % action::branch(spec.branches, 0) as usize) as u64)
                .collect();
            let cursor = step * n % capacity;
            device.step(b, &actions, cursor)?;
            let before = host.states().to_vec();
            host.step(&actions, &mut out, |e, finished| log[e].push(finished)).expect("actions of the task");
            assert_eq!(b.download(device.words)?, host.memory().0, "{name}, step {step}: states");
            assert_eq!(b.download(device.counters)?, host.memory().1, "{name}, step {step}: counters");
            assert_eq!(b.download(device.flags)?, out.flags, "{name}, step {step}: flags");
            let (ring_states, ring_next) =
                (b.download(device.ring_states)?, b.download(device.ring_next_states)?);
            let (rewards, discounts) = (b.download(device.ring_rewards)?, b.download(device.ring_discounts)?);
            let (taken, ends) = (b.download(device.ring_actions)?, b.download(device.ring_ends)?);
            for e in 0..n {
                let slot = (cursor + e) % capacity;
                let row = e * state..(e + 1) * state;
                same_bits(
                    "s in the ring",
                    &ring_states[slot * device.stride..][..state],
                    &before[row.clone()],
                );
                let next = &ring_next[slot * device.stride..][..state];
                same_bits("s' in the ring", next, &out.next_states[row.clone()]);
                same_bits("reward", &[rewards[slot]], &[out.rewards[e]]);
                same_bits("discount", &[discounts[slot]], &[out.discounts[e]]);
                assert_eq!((taken[slot], ends[slot]), (actions[e], out.flags[e]));
                restarted += usize::from(out.flags[e] != 0 && *next != host.states()[row]);
            }
            if step == 0 && capacity > n {
                same_bits("a slot behind the step", &ring_states[n * device.stride..][..1], &[UNWRITTEN]);
            }
        }
        assert!(restarted > n, "{name}: {restarted} episodes ended");
        let rows = b.download(device.log)?;
        for (e, finished) in log.iter().enumerate() {
            for (k, episode) in finished.iter().take(log_rows).enumerate() {
                let row = &rows[(e * log_rows + k) * LOG_FIELDS as usize..][..LOG_FIELDS as usize];
                let expected = [episode.total, episode.steps.into(), episode.flags.into()];
                assert_eq!(row, expected, "{name}: episode {k} of environment {e}");
            }
        }
    }
    Ok(())
}

/// Starts are uniform over their range, differ between environments, episodes and seeds, and are the same for the same.
pub fn starts<B: Backend>(b: &mut B) -> Outcome {
    let n = if B::FULL_SIZE { 10_000 } else { 1000 };
    let first = |b: &mut B, seed: u64| -> Result<Vec<f64>, ExecError> {
        let device = Tasks::new(b, task("cartpole"), (n, n, 0), (0.99, seed))?;
        launch(b, device.kernel(0))?;
        let words = b.download(device.words)?;
        Ok(words[n..5 * n].iter().map(|&bits| f64::from_bits(bits)).collect())
    };
    let all = first(b, 1)?;
    assert!(all.iter().all(|x| (-0.05..0.05).contains(x)));
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    // Five standard errors of a uniform distribution of width 0.1.
    assert!(mean.abs() < 5.0 * 0.1 / (12.0 * all.len() as f64).sqrt(), "{mean}");
    let mut sorted = all.clone();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    assert_eq!(sorted.len(), all.len(), "no number comes twice");
    assert_eq!(all, first(b, 1)?);
    let other = first(b, 2)?;
    assert!(all.iter().zip(&other).all(|(a, b)| a != b), "another seed gives other starts");
    Ok(())
}

/// A kind that is not in the list, rows too short for the observation: refused before the launch.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    let device = Tasks::new(b, task("acrobot"), (4, 8, 0), (0.99, 1))?;
    let good = device.kernel(1);
    launch(b, good)?;
    for (wrong, relation) in [
        (TaskStep { kind: NAMES.len() as u32, ..good }, "kind < "),
        (TaskStep { stride: 5, ..good }, "stride >="),
        (TaskStep { limit: 0, ..good }, "limit > 0"),
        (TaskStep { environments: 9, ..good }, "environments <= capacity"),
    ] {
        match launch(b, wrong) {
            Err(ExecError::Contract(error)) => {
                let text = error.to_string();
                assert!(text.contains("task_step") && text.contains(relation), "{text}");
            }
            Err(other) => return Err(other),
            Ok(()) => panic!("launched although not {relation}"),
        }
    }
    Ok(())
}
