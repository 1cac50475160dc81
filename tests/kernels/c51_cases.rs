//! Cases on the C51 loss, through the kernel.
//!
//! The kernel takes networks' outputs, the cases give distributions. A distribution m becomes the logits ln m (-1000
//! where m is 0, whose exponential is 0 in f32). On a branch with n actions, the advantage x n / (n - 1) for one action
//! and 0 for the others is, after the mean is subtracted, the logit x for that action.

use gpu::kernels::c51_loss::reference::Transition;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::distribution::reference::Heads;
use host::error::ExecError;

use super::c51_loss::{Sample, run};
use super::case::{Case, list, number, numbers};
use super::rows::Shape;
use super::{Backend, Outcome};
use crate::case;

/// Logits of a distribution.
fn logarithms(p: &[f64]) -> Vec<f64> {
    p.iter().map(|&p| if p > 0.0 { p.ln() } else { -1000.0 }).collect()
}

/// Outputs whose logits for `action` of branch `d` are `logits[d]`.
fn heads_with(shape: &Shape, actions: &[usize], logits: &[Vec<f64>]) -> Heads {
    let mut heads = shape.constant(0.0);
    for (d, branch) in heads.advantage.iter_mut().enumerate() {
        let n = branch.len() as f64;
        for (slot, &x) in branch[actions[d]].iter_mut().zip(&logits[d]) {
            *slot = (x * n / (n - 1.0)) as f32;
        }
    }
    heads
}

/// Outputs of a single branch whose every action has these logits.
fn shared(shape: &Shape, logits: &[f64]) -> Heads {
    Heads { value: logits.iter().map(|&x| x as f32).collect(), ..shape.constant(0.0) }
}

/// Projected masses of one target distribution for several rewards, one sample each. The online distribution at s is
/// uniform and the weight cancels 1 / (B D), so that d loss / d v = 1 / K - m.
fn projected<B: Backend>(
    b: &mut B,
    case: &Case,
    rewards: &[f64],
    wide: bool,
) -> Result<Vec<Vec<f64>>, ExecError> {
    let p = case.numbers("/input/p_next");
    let shape = Shape::new(&[2], p.len());
    let discount = case.number("/input/gamma") * (1.0 - case.number("/input/done"));
    let sample = |&reward: &f64| Sample {
        online: shape.constant(0.0),
        online_next: shape.constant(0.0),
        target_next: shared(&shape, &logarithms(&p)),
        transition: Transition {
            actions: vec![1],
            reward: reward as f32,
            discount: discount as f32,
            weight: rewards.len() as f32,
        },
    };
    let samples: Vec<Sample> = rewards.iter().map(sample).collect();
    let support = [case.number("/input/v_min") as f32, case.number("/input/v_max") as f32];
    let got = run(b, &shape, support, &samples, wide)?;
    let mass = |g: &Heads| g.value.iter().map(|&g| 1.0 / p.len() as f64 - f64::from(g)).collect();
    Ok(got.gradient.iter().map(mass).collect())
}

/// The masses are the case's and sum to 1 within SPEC section 3's 1e-6; a sum that lost integer positions does not.
fn check_masses(case: &Case, what: &str, got: &[f64], expected: &[f64], wrong_sum: f64) {
    const SUM: f64 = 1e-6;
    case.matches(what, got, expected);
    let sum: f64 = got.iter().sum();
    assert!((sum - 1.0).abs() <= SUM, "{what}: the masses sum to {sum}");
    assert!((wrong_sum - 1.0).abs() > SUM, "{what}: the known wrong sum {wrong_sum} would pass");
}

/// Positions that are integers up to rounding keep all their mass, and none goes beyond the last atom.
pub fn c02_integer_positions<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C02");
    for wide in [false, true] {
        let got = projected(b, &case, &case.numbers("/input/rewards"), wide)?;
        for (got, key) in got.iter().zip(["m_r0", "m_r+0.4", "m_r-0.4"]) {
            let expected = case.numbers(&format!("/expected/{key}"));
            check_masses(&case, key, got, &expected, case.number("/known_wrong/l_eq_u_dropped_sum_r0"));
        }
    }
    Ok(())
}

/// Mass beyond the support goes to its end atoms, on an asymmetric support.
pub fn c04_clipping<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C04");
    let rewards = case.numbers("/input/rewards");
    for wide in [false, true] {
        for (got, reward) in projected(b, &case, &rewards, wide)?.iter().zip(&rewards) {
            let key = format!("{reward:.1}");
            let expected = numbers(&case.at("/expected/m")[&key]);
            let wrong = number(&case.at("/known_wrong/l_eq_u_dropped_sum")[&key]);
            check_masses(&case, &key, got, &expected, wrong);
        }
    }
    Ok(())
}

/// log-softmax, not the logarithm of a softmax: finite where a probability underflows.
pub fn c06_extreme_logits<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C06");
    let (logits, targets) = (case.rows("/input/logits"), case.rows("/input/target"));
    let shape = Shape::new(&[2], logits[0].len());
    // Discount 1, reward 0, spacing 1: the projection is the identity, exactly.
    let support = [0.0, (shape.atoms - 1) as f32];
    let sample = |(logits, target): (&Vec<f64>, &Vec<f64>)| Sample {
        online: shared(&shape, logits),
        online_next: shape.constant(0.0),
        target_next: shared(&shape, &logarithms(target)),
        transition: Transition { actions: vec![0], reward: 0.0, discount: 1.0, weight: 1.0 },
    };
    let samples: Vec<Sample> = logits.iter().zip(&targets).map(sample).collect();
    let (losses, gradients) = (case.numbers("/expected/loss"), case.rows("/expected/dloss_dlogits"));
    for wide in [false, true] {
        let got = run(b, &shape, support, &samples, wide)?;
        let written: Vec<f64> = got.cross_entropy.iter().map(|&x| x.into()).collect();
        case.matches("loss", &written, &losses);
        for (got, expected) in got.gradient.iter().zip(&gradients) {
            // The kernel's gradient is of the batch's mean.
            let value: Vec<f64> = got.value.iter().map(|&g| f64::from(g) * samples.len() as f64).collect();
            case.matches("gradient", &value, expected);
        }
    }
    case.tells_apart("clamped probabilities", &case.numbers("/known_wrong/clamped_probs_1e-5_loss"), &losses);
    Ok(())
}

/// The mean over branches, weighted per sample; the per-sample values that feed priorities are not weighted.
pub fn c08_branches_and_weights<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C08");
    let sizes: Vec<usize> = case.numbers("/input/branch_sizes").iter().map(|&n| n as usize).collect();
    let shape = Shape::new(&sizes, case.number("/input/num_atoms") as usize);
    let support = [0.0, (shape.atoms - 1) as f32];
    let weights = case.numbers("/input/is_weights");
    let actions = case.rows("/input/actions");
    let samples: Vec<Sample> = (0..weights.len())
        .map(|i| {
            let taken: Vec<usize> = actions[i].iter().map(|&a| a as usize).collect();
            let branches = list(&case.at("/input/logits[b][d][a][n]")[i]);
            let logits: Vec<Vec<f64>> = branches.iter().zip(&taken).map(|(d, &a)| numbers(&d[a])).collect();
            let target: Vec<Vec<f64>> = list(&case.at("/input/target_dist[b][d][n]")[i])
                .iter()
                .map(|p| logarithms(&numbers(p)))
                .collect();
            Sample {
                online: heads_with(&shape, &taken, &logits),
                // All next values are equal, so action 0 is the greedy one.
                online_next: shape.constant(0.0),
                target_next: heads_with(&shape, &vec![0; sizes.len()], &target),
                transition: Transition {
                    actions: taken,
                    reward: 0.0,
                    discount: 1.0,
                    weight: weights[i] as f32,
                },
            }
        })
        .collect();
    let loss = [case.number("/expected/loss")];
    for wide in [false, true] {
        let got = run(b, &shape, support, &samples, wide)?;
        let column = |c: u32| -> Vec<f64> { got.stats.iter().map(|row| row[c as usize].into()).collect() };
        let weighted = column(stat::WEIGHTED_LOSS);
        case.matches("loss", &[weighted.iter().sum::<f64>() / weighted.len() as f64], &loss);
        let per_sample = case.numbers("/expected/per_sample_cross_entropy");
        case.matches("per-sample cross-entropy", &column(stat::LOSS), &per_sample);
        for (i, got) in got.gradient.iter().enumerate() {
            let expected: Vec<Vec<Vec<f64>>> = list(&case.at("/expected/dL_dlogits")[i])
                .iter()
                .map(|branch| list(branch).iter().map(numbers).collect())
                .collect();
            check_dueling_gradient(&case, got, &expected);
        }
    }
    for bug in ["sum_over_branches", "divided_by_sum_w"] {
        case.tells_apart(bug, &[case.number(&format!("/known_wrong/{bug}"))], &loss);
    }
    Ok(())
}

/// The chain rule through l[a] = v + adv[a] - mean adv turns the case's d L / d l into the kernel's two gradients.
fn check_dueling_gradient(case: &Case, got: &Heads, by_logits: &[Vec<Vec<f64>>]) {
    let mut value = vec![0.0; got.value.len()];
    for (branch, written) in by_logits.iter().zip(&got.advantage) {
        for k in 0..value.len() {
            let sum: f64 = branch.iter().map(|row| row[k]).sum();
            value[k] += sum;
            for (a, row) in branch.iter().enumerate() {
                let expected = row[k] - sum / branch.len() as f64;
                assert!(case.accepts(written[a][k].into(), expected), "{} is not {expected}", written[a][k]);
            }
        }
    }
    let written: Vec<f64> = got.value.iter().map(|&g| g.into()).collect();
    case.matches("gradient of the value", &written, &value);
}
