//! Bodies for `c51_loss` and `c51_loss_wide`.

use gpu::kernels::c51_loss::reference::{Loss, Transition, c51_loss};
use gpu::kernels::c51_loss::{C51Loss, C51LossWide, is_narrow, stat};
use gpu::kernels::distribution::reference::Heads;
use gpu::reference::Bounded;
use host::error::ExecError;
use host::exec::Lane;

use super::check::{close, same_bits};
use super::data::Random;
use super::rows::{Shape, pack};
use super::{Backend, Outcome, filled, put};

/// What the padding of the gradient holds before, and must hold after.
const UNTOUCHED: f32 = -7.0;
const STATS: usize = stat::COLUMNS as usize;

/// One sample: the networks' outputs and the transition.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Online network at s.
    pub online: Heads,
    /// Online network at s'.
    pub online_next: Heads,
    /// Target network at s'.
    pub target_next: Heads,
    /// The rest.
    pub transition: Transition,
}

/// What the kernel wrote.
pub struct Written {
    /// d loss / d outputs, one per sample.
    pub gradient: Vec<Heads>,
    /// Rows of statistics.
    pub stats: Vec<Vec<f32>>,
    /// Cross-entropy [B, D].
    pub cross_entropy: Vec<f32>,
    /// Signed error [B, D].
    pub td_error: Vec<f32>,
    /// Mean of the branches' targets [B, K].
    pub mean_target: Vec<f32>,
}

/// Launches the narrow or the wide kernel on a batch. Padding of the logits is NaN and must not be read; padding of the
/// gradient, the end of every output included, must stay as it is.
pub fn run<B: Backend>(
    b: &mut B,
    shape: &Shape,
    support: [f32; 2],
    samples: &[Sample],
    wide: bool,
) -> Result<Written, ExecError> {
    run_scaled(b, shape, support, &vec![1.0; shape.sizes.len()], samples, wide)
}

/// The same with scaled branches.
fn run_scaled<B: Backend>(
    b: &mut B,
    shape: &Shape,
    support: [f32; 2],
    branch_scales: &[f32],
    samples: &[Sample],
    wide: bool,
) -> Result<Written, ExecError> {
    let (batch, branches, stride) = (samples.len(), shape.sizes.len(), shape.columns() + 4);
    let heads = |of: fn(&Sample) -> &Heads| samples.iter().map(|s| of(s).clone()).collect::<Vec<_>>();
    let online = [heads(|s| &s.online), heads(|s| &s.online_next)].concat();
    let transitions =
        |of: fn(&Transition) -> f32| samples.iter().map(|s| of(&s.transition)).collect::<Vec<_>>();
    let actions: Vec<u64> = samples.iter().map(|s| pack(&s.transition.actions)).collect();
    let support = put(b, "support", &support)?;
    let online = put(b, "online", &shape.flat(&online, stride, f32::NAN))?;
    let target = put(b, "target", &shape.flat(&heads(|s| &s.target_next), stride, f32::NAN))?;
    let actions = put(b, "actions", &actions)?;
    let rewards = put(b, "rewards", &transitions(|t| t.reward))?;
    let discounts = put(b, "discounts", &transitions(|t| t.discount))?;
    let weights = put(b, "weights", &transitions(|t| t.weight))?;
    let branch_scales = put(b, "branch scales", branch_scales)?;
    let mean_target = filled(b, "mean target", batch * shape.atoms + 1, UNTOUCHED)?;
    let gradient = filled(b, "gradient", batch * stride + 4, UNTOUCHED)?;
    let stats = filled(b, "stats", batch * STATS + 1, UNTOUCHED)?;
    let cross_entropy = filled(b, "cross-entropy", batch * branches + 1, UNTOUCHED)?;
    let td_error = filled(b, "td error", batch * branches + 1, UNTOUCHED)?;
    macro_rules! launch {
        ($kernel:ident) => {
            b.launch(
                Lane::MAIN,
                &$kernel {
                    batch: batch as u32,
                    branches: branches as u32,
                    sizes: shape.packed(),
                    atoms: shape.atoms as u32,
                    stride: stride as u32,
                    keep_target: 1,
                    support: support.into(),
                    online: online.into(),
                    target: target.into(),
                    actions: actions.into(),
                    rewards: rewards.into(),
                    discounts: discounts.into(),
                    weights: weights.into(),
                    branch_scales: branch_scales.into(),
                    gradient: gradient.into(),
                    stats: stats.into(),
                    cross_entropy: cross_entropy.into(),
                    td_error: td_error.into(),
                    mean_target: mean_target.into(),
                },
            )
        };
    }
    if wide {
        launch!(C51LossWide)?
    } else {
        launch!(C51Loss)?
    }
    let mut take = |buffer, len: usize| {
        let mut values = b.download(buffer)?;
        assert!(values[len..].iter().all(|&x| x == UNTOUCHED), "written behind an output's end");
        values.truncate(len);
        Ok::<Vec<f32>, ExecError>(values)
    };
    let gradient = take(gradient, batch * stride)?;
    let gradient = gradient.chunks(stride).map(|row| {
        let (heads, padding) = shape.split(row);
        same_bits("padding of the gradient", &padding, &vec![UNTOUCHED; padding.len()]);
        heads
    });
    let gradient = gradient.collect();
    let stats = take(stats, batch * STATS)?.chunks(STATS).map(<[f32]>::to_vec).collect();
    let (cross_entropy, td_error) =
        (take(cross_entropy, batch * branches)?, take(td_error, batch * branches)?);
    let mean_target = take(mean_target, batch * shape.atoms)?;
    Ok(Written { gradient, stats, cross_entropy, td_error, mean_target })
}

/// All elements of a row of gradients.
fn flatten<T: Copy>(value: &[T], advantage: &[Vec<Vec<T>>]) -> Vec<T> {
    value.iter().copied().chain(advantage.iter().flatten().flatten().copied()).collect()
}

/// Compares everything that was written with the reference.
fn compare(what: &str, got: &Written, expected: &[Loss]) {
    let all = |of: fn(&Loss) -> Vec<Bounded>| expected.iter().flat_map(of).collect::<Vec<Bounded>>();
    close(&format!("{what}: cross-entropy"), &got.cross_entropy, &all(|l| l.cross_entropy.clone()));
    close(&format!("{what}: td error"), &got.td_error, &all(|l| l.td_error.clone()));
    close(&format!("{what}: mean target"), &got.mean_target, &all(|l| l.mean_target.clone()));
    for column in 0..STATS {
        let of_column: Vec<f32> = got.stats.iter().map(|row| row[column]).collect();
        let wanted: Vec<Bounded> =
            expected.iter().map(|l| l.statistics.get(column).copied().unwrap_or(Bounded::ZERO)).collect();
        close(&format!("{what}: statistic {column}"), &of_column, &wanted);
    }
    let gradient: Vec<f32> = got.gradient.iter().flat_map(|g| flatten(&g.value, &g.advantage)).collect();
    close(&format!("{what}: gradient"), &gradient, &all(|l| flatten(&l.value, &l.advantage)));
}

/// The reference's results of a batch, whose greedy actions must not hang on a rounding.
fn expected(support: [f32; 2], samples: &[Sample]) -> Vec<Loss> {
    expected_scaled(support, &[1.0; 8], samples)
}

/// The same with scaled branches.
fn expected_scaled(support: [f32; 2], branch_scales: &[f32], samples: &[Sample]) -> Vec<Loss> {
    let loss = |s: &Sample| {
        c51_loss(
            samples.len(),
            support,
            branch_scales,
            &s.online,
            &s.online_next,
            &s.target_next,
            &s.transition,
        )
    };
    let losses: Vec<Loss> = samples.iter().map(loss).collect();
    assert!(losses.iter().all(|l| l.certain), "the test's data has a greedy action that rounding decides");
    losses
}

/// A random sample whose greedy actions do not hang on a rounding: among thousands some would, and f32 and f64 may then
/// rightly disagree.
fn certain_sample(random: &mut Random, shape: &Shape, support: [f32; 2], kind: usize) -> Sample {
    loop {
        let s = random_sample(random, shape, support, kind);
        if c51_loss(1, support, &[1.0; 8], &s.online, &s.online_next, &s.target_next, &s.transition).certain {
            return s;
        }
    }
}

/// A random sample. `kind` goes round: an ordinary transition, a terminal one, integer positions, everything clipped
/// below, everything clipped above, the upper part clipped, a truncated three-step one.
pub fn random_sample(random: &mut Random, shape: &Shape, support: [f32; 2], kind: usize) -> Sample {
    let [low, high] = support;
    let spacing = (high - low) / (shape.atoms - 1) as f32;
    let (reward, discount) = match kind % 7 {
        0 => (random.normal(1.0), 0.99),
        1 => (random.normal(1.0), 0.0),
        2 => (2.0 * spacing, 1.0),
        3 => (low - 2.5 * (high - low), 0.99),
        4 => (high + 2.5 * (high - low), 0.99),
        5 => (0.6 * high, 0.97),
        _ => (random.normal(1.0), 0.99f32.powi(3)),
    };
    let spread = if kind % 5 == 3 { 8.0 } else { 1.5 };
    Sample {
        online: shape.random(random, spread),
        online_next: shape.random(random, spread),
        target_next: shape.random(random, spread),
        transition: Transition {
            actions: shape.sizes.iter().map(|&n| random.below(n)).collect(),
            reward,
            discount,
            weight: if kind % 11 == 10 { 0.0 } else { 0.2 + 0.8 * random.uniform() as f32 },
        },
    }
}

/// Loss, statistics and gradients against the reference over branch counts that do and do not fill a round of four, action
/// counts that do and do not fill a round of eight, both ends of the sizes, and both widths.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(61);
    let mut shapes = vec![
        (1, Shape::new(&[2], 2)),
        (19, Shape::new(&[3], 21)),
        (7, Shape::new(&[9, 3, 3], 51)),
        (2, Shape::new(&[64, 2], 21)),
        (3, Shape::new(&[2, 3, 2, 4, 2], 33)),
        (3, Shape::new(&[2, 3, 4, 5, 6, 7, 8, 9], 64)),
        (5, Shape::new(&[5, 2], 101)),
        (7, Shape::new(&[3], 128)),
    ];
    if B::FULL_SIZE {
        shapes.extend([(1024, Shape::new(&[9, 3, 3], 51)), (333, Shape::new(&[9, 3, 3, 5], 101))]);
    }
    for (batch, shape) in shapes {
        for support in [[-10.0, 10.0], [-2.0, 6.5]] {
            let samples: Vec<Sample> =
                (0..batch).map(|i| certain_sample(&mut random, &shape, support, i)).collect();
            let expected = expected(support, &samples);
            // Scales between the ends that the value networks may set.
            let scales: Vec<f32> = shape.sizes.iter().map(|_| 0.5 + 1.5 * random.uniform() as f32).collect();
            let scaled = expected_scaled(support, &scales, &samples);
            for wide in [false, true] {
                if wide || is_narrow(shape.atoms, shape.columns() + 4) {
                    let got = run(b, &shape, support, &samples, wide)?;
                    compare(&format!("{shape:?}, wide {wide}"), &got, &expected);
                    let got = run_scaled(b, &shape, support, &scales, &samples, wide)?;
                    compare(&format!("{shape:?}, wide {wide}, scaled"), &got, &scaled);
                }
            }
        }
    }
    Ok(())
}

/// With reward 0 and discount 1 every target atom is an atom of the support: nothing counts as outside, whatever the
/// rounding of the spacing.
pub fn identity_is_never_clipped<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(62);
    for atoms in [2, 3, 11, 21, 31, 50, 51, 64, 77, 101, 127, 128] {
        let shape = Shape::new(&[2], atoms);
        for support in [[-10.0, 10.0], [-0.3, 0.7], [-1.0, 1e-3], [0.1, 123.4]] {
            let mut sample = random_sample(&mut random, &shape, support, 0);
            (sample.transition.reward, sample.transition.discount) = (0.0, 1.0);
            let got = run(b, &shape, support, &[sample], true)?;
            for column in [stat::CLIPPED_LOW, stat::CLIPPED_HIGH] {
                let mass = got.stats[0][column as usize];
                assert_eq!(mass, 0.0, "mass outside with {atoms} atoms on {support:?}");
            }
        }
    }
    Ok(())
}

/// The reported masses outside: all of it, nothing of it, and only what is strictly outside at an end itself.
pub fn clips_at_both_ends<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(63);
    let shape = Shape::new(&[3, 2], 9);
    // Spacing 1: every position below is exact in f32.
    let support = [-2.0, 6.0];
    let outcomes = [
        (-100.0, 0.0, 1.0, 0.0),
        (100.0, 0.0, 0.0, 1.0),
        // A terminal reward on an end of the support is not outside it.
        (-2.0, 0.0, 0.0, 0.0),
        (6.0, 0.0, 0.0, 0.0),
        (0.0, 0.5, 0.0, 0.0),
        (f32::MAX, 0.0, 0.0, 1.0),
        (f32::MIN, 0.0, 1.0, 0.0),
    ];
    for wide in [false, true] {
        for (reward, discount, low, high) in outcomes {
            let mut sample = random_sample(&mut random, &shape, support, 0);
            (sample.transition.reward, sample.transition.discount) = (reward, discount);
            let samples = [sample];
            let got = run(b, &shape, support, &samples, wide)?;
            let mass = |column: u32| f64::from(got.stats[0][column as usize]);
            for (column, wanted) in [(stat::CLIPPED_LOW, low), (stat::CLIPPED_HIGH, high)] {
                // The sum of a softmax is 1 within its nine additions and its division.
                let error = (mass(column) - wanted).abs();
                assert!(error <= 12.0 * gpu::reference::UNIT * wanted, "reward {reward}: {}", mass(column));
            }
            // All mass of a clipped or terminal target is on one atom, or split between two.
            compare(&format!("reward {reward}"), &got, &expected(support, &samples));
        }
    }
    Ok(())
}

/// Equal Q values: the lowest of the equal actions is taken, which shows because each action's target differs.
pub fn ties_take_the_lowest_action<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(64);
    let shape = Shape::new(&[7, 2], 21);
    let support = [-10.0, 10.0];
    let mut samples: Vec<Sample> = (0..3).map(|_| random_sample(&mut random, &shape, support, 0)).collect();
    // All equal; equal from the third on and larger than the first two; equal only in the last two.
    samples[0].online_next = shape.constant(0.25);
    for (sample, first) in samples[1..].iter_mut().zip([2, 5]) {
        let branch = &mut sample.online_next.advantage[0];
        for (a, atoms) in branch.iter_mut().enumerate() {
            let (end, height) = if a >= first { (20, 3.0) } else { (a, 2.0) };
            atoms.fill(0.0);
            atoms[end] = height;
        }
    }
    for wide in [false, true] {
        compare("ties", &run(b, &shape, support, &samples, wide)?, &expected(support, &samples));
    }
    Ok(())
}

/// Whether a sample's loss and its whole gradient are NaN.
fn is_visible(got: &Written, sample: usize) -> bool {
    let gradient = flatten(&got.gradient[sample].value, &got.gradient[sample].advantage);
    got.stats[sample][stat::LOSS as usize].is_nan() && gradient.iter().all(|g| g.is_nan())
}

/// A reward or discount that is not finite makes the sample's loss and gradient NaN, so that the norm becomes NaN and
/// the step is skipped and counted; it never becomes an end of the support. Other samples are not touched.
pub fn non_finite_reward_shows<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(65);
    let shape = Shape::new(&[3, 2], 51);
    let support = [-10.0, 10.0];
    let samples: Vec<Sample> = (0..6).map(|i| random_sample(&mut random, &shape, support, i)).collect();
    for wide in [false, true] {
        let clean = run(b, &shape, support, &samples, wide)?;
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut dirty = samples.clone();
            (dirty[1].transition.reward, dirty[4].transition.discount) = (bad, bad);
            let got = run(b, &shape, support, &dirty, wide)?;
            for sample in 0..samples.len() {
                let damaged = sample == 1 || sample == 4;
                assert_eq!(is_visible(&got, sample), damaged, "sample {sample} with {bad}");
                if !damaged {
                    let row = |w: &Written| flatten(&w.gradient[sample].value, &w.gradient[sample].advantage);
                    same_bits("gradient of another sample", &row(&got), &row(&clean));
                    same_bits("statistics of another sample", &got.stats[sample], &clean.stats[sample]);
                }
            }
        }
    }
    Ok(())
}

/// A NaN in any network's output shows in the sample, also where only the choice of the next action depends on it.
pub fn nan_outputs_show<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(66);
    let shape = Shape::new(&[6, 2], 51);
    let support = [-10.0, 10.0];
    let samples: Vec<Sample> = (0..2).map(|_| random_sample(&mut random, &shape, support, 0)).collect();
    for place in 0..3 {
        for action in [0, 2, 5] {
            let mut dirty = samples.clone();
            let heads = match place {
                0 => &mut dirty[0].online,
                1 => &mut dirty[0].online_next,
                _ => &mut dirty[0].target_next,
            };
            for branch in &mut heads.advantage {
                let last = branch.len() - 1;
                branch[action.min(last)][7] = f32::NAN;
            }
            let got = run(b, &shape, support, &dirty, false)?;
            assert!(is_visible(&got, 0), "NaN in network {place}, action {action}");
            assert!(!is_visible(&got, 1), "the other sample, NaN in network {place}");
        }
    }
    Ok(())
}

/// Sizes that do not fit together are refused before the launch.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(67);
    let support = [-10.0, 10.0];
    for (shape, wide, relation) in [
        (Shape::new(&[2], 57), false, "atoms"),
        (Shape::new(&[2], 129), true, "atoms"),
        (Shape::new(&[2], 1), false, "atoms"),
        (Shape::new(&[], 21), false, "branches"),
    ] {
        let samples = [random_sample(&mut random, &shape, support, 1)];
        match run(b, &shape, support, &samples, wide) {
            Err(ExecError::Contract(error)) => {
                let text = error.to_string();
                assert!(text.contains(relation) && text.contains("c51_loss"), "{text}");
            }
            Err(other) => panic!("{shape:?}: {other}"),
            Ok(_) => panic!("{shape:?} was launched"),
        }
    }
    Ok(())
}
