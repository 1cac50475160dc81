//! Bodies for `exploration_bonus` and `exploration_bonus_wide`, and for the collection step with the bonus.

use cpu_path::{Oracle, init_parameters};
use gpu::clock;
use gpu::kernels::exploration_bonus::reference::{rewarded, uncertainty};
use gpu::kernels::exploration_bonus::{ExplorationBonus, ExplorationBonusWide, weight};
use gpu::market::Part;
use gpu::reference::Bounded;
use host::error::ExecError;
use host::exec::Lane;
use host::step::{Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepShape, TableBuffers};
use settings::{Config, Precision};

use super::check::{close, same_bits};
use super::data::Random;
use super::golden::f64s;
use super::market::support::{Columns, SHAPE, params};
use super::{Backend, Outcome, put};

/// Collection step of the kernel's tests.
const STEP: u64 = 30;

/// Rewards of the ring after the launch: `logits` [E][M][K], the environments' slots from `cursor` on.
fn run<B: Backend>(
    b: &mut B,
    support: [f32; 2],
    logits: &[Vec<Vec<f32>>],
    rewards: &[f32],
    cursor: u64,
    (first, steps): (f32, u64),
    wide: bool,
) -> Result<Vec<f32>, ExecError> {
    let (environments, members, atoms) = (logits.len(), logits[0].len(), logits[0][0].len());
    let block = atoms.next_multiple_of(4);
    let stride = members * block + 4;
    let mut rows = vec![f32::NAN; environments * stride];
    for (row, outputs) in rows.chunks_exact_mut(stride).zip(logits) {
        for (e, output) in outputs.iter().enumerate() {
            row[e * block..][..atoms].copy_from_slice(output);
        }
    }
    let mut words = [0u64; clock::WORDS as usize];
    words[clock::COLLECT as usize] = STEP;
    let (words, support) = (put(b, "clock", &words)?, put(b, "support", &support)?);
    let (rows, ring) = (put(b, "logits", &rows)?, put(b, "ring", &[rewards.len() as u64, cursor])?);
    let rewards = put(b, "rewards", rewards)?;
    macro_rules! launch {
        ($kernel:ident) => {
            b.launch(
                Lane::MAIN,
                &$kernel {
                    environments: environments as u32,
                    members: members as u32,
                    atoms: atoms as u32,
                    stride: stride as u32,
                    capacity: rewards.len() as u32,
                    first,
                    steps,
                    clock_words: words.into(),
                    ring_words: ring.into(),
                    support: support.into(),
                    logits: rows.into(),
                    ring_rewards: rewards.into(),
                },
            )
        };
    }
    if wide {
        launch!(ExplorationBonusWide)?
    } else {
        launch!(ExplorationBonus)?
    }
    b.download(rewards)
}

/// Two members to eight, both widths, a weight that stays, falls and has fallen, slots that go round the ring's end. Other
/// slots keep their rewards.
pub fn random_states<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(171);
    let mut shapes = vec![(1, 2, 2), (7, 5, 51), (3, 8, 33), (4, 5, 101), (2, 3, 128), (5, 4, 56)];
    if B::FULL_SIZE {
        shapes.push((1024, 5, 51));
    }
    for (environments, members, atoms) in shapes {
        let logits: Vec<Vec<Vec<f32>>> =
            (0..environments).map(|_| (0..members).map(|_| random.normals(atoms, 1.5)).collect()).collect();
        let capacity = 2 * environments + 1;
        let rewards: Vec<f32> = random.normals(capacity, 1.0);
        for (support, schedule) in
            [([-10.0, 10.0], (0.5, 0)), ([-1.0, 0.5], (2.0, 100)), ([-10.0, 10.0], (0.5, STEP))]
        {
            let cursor = capacity - environments.div_ceil(2);
            let mut expected: Vec<Bounded> = rewards.iter().map(|&r| Bounded::exact(r)).collect();
            for (e, logits) in logits.iter().enumerate() {
                let slot = (cursor + e) % capacity;
                let (first, steps) = schedule;
                expected[slot] = rewarded(rewards[slot], uncertainty(support, logits), first, steps, STEP);
            }
            for wide in [false, true] {
                if wide || atoms <= 56 {
                    let got = run(b, support, &logits, &rewards, cursor as u64, schedule, wide)?;
                    close("rewards", &got, &expected);
                    if schedule.1 == STEP {
                        same_bits("rewards without a bonus", &got, &rewards);
                    }
                }
            }
        }
    }
    Ok(())
}

/// A NaN among a member's outputs makes the reward NaN: it is not lost in a comparison.
pub fn nan_shows<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(172);
    let mut logits: Vec<Vec<Vec<f32>>> =
        (0..3).map(|_| (0..6).map(|_| random.normals(21, 1.0)).collect()).collect();
    logits[1][5][20] = f32::NAN;
    let got = run(b, [-10.0, 10.0], &logits, &[0.0; 3], 0, (1.0, 0), false)?;
    assert_eq!(got.iter().map(|r| r.is_nan()).collect::<Vec<_>>(), [false, true, false]);
    Ok(())
}

/// Two collectors that differ in the bonus alone: the same actions and states, and rewards that differ by the discounted
/// bonuses of the window, as the oracle's members disagree.
pub fn collection<B: Backend>(b: &mut B) -> Outcome {
    let environments = 5;
    let mut config = Config::default();
    (config.model.window, config.model.bar_features) = (SHAPE.window as usize, SHAPE.features as usize);
    config.model.state = SHAPE.len() as usize;
    (config.model.trunk1, config.model.trunk2) = (24, 20);
    (config.model.value_hidden, config.model.branch_hidden) = (12, 8);
    (config.model.branches, config.model.atoms) = (vec![9, 3, 3], 11);
    config.train.precision = Precision::Fp32;
    config.ensemble.enabled = true;
    (config.ensemble.explore, config.ensemble.explore_steps) = (0.75, 8);
    config.replay.n_step = 2;
    let shape = StepShape::new(&config, Matmul::Rust);
    let oracle = Oracle::from_config(&config).expect("a configuration that works");
    let online = put(b, "online", &init_parameters(&shape.flat, config.train.seed))?;
    let columns = Columns::random(35, 90, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..90).expect("a part of the table");
    let params = params();
    let on_device = TableBuffers::upload(b, &table)?;
    let steps = 5;
    let capacity = steps * environments;
    let mut collectors = Vec::new();
    for explores in [false, true] {
        let input = CollectorInput {
            environment: EnvironmentInput::Market { params: &params, part: &part, table: on_device },
            environments,
            log_rows: 0,
            clock: None,
            support: None,
            epsilon: None,
            explores,
        };
        let replay = Replay::alloc(b, &shape, capacity)?;
        let collector = Collector::alloc(b, &shape, input, replay, "collect")?;
        collector.record_first(b, &shape)?;
        collectors.push(collector);
    }
    let mut bonuses = vec![vec![0.0; environments]; steps];
    let mut ended = vec![vec![false; environments]; steps];
    for step in 0..steps {
        let rows = b.download(collectors[1].states)?;
        let states: Vec<f64> =
            rows.chunks_exact(shape.stride).flat_map(|row| f64s(&row[..shape.model.state])).collect();
        let kappa = f64::from(weight(0.75, 8, step as u64));
        assert!((kappa - 0.75 * (1.0 - step as f64 / 8.0)).abs() < 1e-7);
        let disagreement = oracle.uncertainty(&states).expect("states that fit");
        bonuses[step] = disagreement.iter().map(|u| kappa * u).collect();
        for collector in &collectors {
            collector.record(b, &shape, online)?;
        }
        ended[step] = b.download(collectors[1].flags)?.iter().map(|&flags| flags != 0).collect();
    }
    assert!(bonuses.iter().flatten().all(|&bonus| bonus > 1e-3), "members that disagree: {bonuses:?}");
    let mut rings = Vec::new();
    for collector in &collectors {
        rings.push((b.download(collector.replay.rewards)?, b.download(collector.replay.actions)?));
    }
    assert_eq!(rings[0].1, rings[1].1, "the bonus changed an action");
    for step in 0..steps {
        for e in 0..environments {
            let next = match step + 1 < steps && !ended[step][e] {
                true => params.gamma * bonuses[step + 1][e],
                false => 0.0,
            };
            let slot = step * environments + e;
            let got = f64::from(rings[1].0[slot]) - f64::from(rings[0].0[slot]);
            let want = bonuses[step][e] + next;
            // Values of up to 10 that the products' rounding moves by 1e-5, and rewards rounded to f32.
            assert!((got - want).abs() <= 1e-4, "step {step}, environment {e}: bonus {got}, expected {want}");
        }
    }
    Ok(())
}
