//! Collected pitfalls of terminal and truncated transitions.

use std::num::NonZeroUsize;

use cpu_path::c51::{Support, project};
use cpu_path::nstep::{End, Step, discount, n_step};
use settings::ModelShape;

use crate::support::{Case, number, numbers};

fn steps(case: &Case) -> Vec<Step> {
    let flags = |key: &str| numbers(case.input(key)).into_iter().map(|x| x != 0.0);
    let ends = flags("terminated")
        .zip(flags("truncated"))
        .map(|(terminated, truncated)| End::new(terminated, truncated));
    numbers(case.input("rewards")).iter().zip(ends).map(|(&r, end)| Step { reward: r as f32, end }).collect()
}

#[test]
fn c26_windows_stop_at_the_terminal_step() {
    let case = Case::read("C26");
    let (steps, gamma) = (steps(&case), number(case.input("gamma")));
    let n = NonZeroUsize::new(number(case.input("n")) as usize).unwrap();
    for start in 0..6 {
        let want = &case.expected("per_start")[start.to_string()];
        let got = n_step(&steps, start, n, gamma).unwrap();
        case.assert_values("R", &[got.reward], &want["R"], &[]);
        assert_eq!(got.steps as f64, number(&want["steps"]));
        case.assert_values("discount", &[got.discount], &want["discount"], &[]);
        // The case numbers observations: the next observation of step i is obs[i + 1].
        let from = (got.discount != 0.0).then(|| format!("obs[{}]", got.last + 1));
        assert_eq!(from.as_deref(), want["bootstrap_from"].as_str());
    }
    let at_3 = [n_step(&steps, 3, n, gamma).unwrap().reward];
    for wrong in ["crosses_boundary_R_at_3", "terminal_reward_dropped_R_at_3"] {
        assert!(!case.close(&at_3, &numbers(case.known_wrong(wrong))), "{wrong}");
    }
    for start in 6..9 {
        assert_eq!(n_step(&steps, start, n, gamma), None, "the window of step {start} is not complete");
    }
}

#[test]
fn c28_termination_wins_over_truncation() {
    let case = Case::read("C28");
    let (steps, gamma) = (steps(&case), number(case.input("gamma")));
    let values = numbers(case.input("V_next"));
    let transitions: Vec<_> =
        (0..3).map(|start| n_step(&steps, start, NonZeroUsize::MIN, gamma).unwrap()).collect();
    let targets: Vec<f64> = transitions.iter().zip(&values).map(|(t, v)| t.reward + t.discount * v).collect();
    case.assert_values("targets", &targets, case.expected("targets"), &[]);
    assert!(!case.close(&targets[2..], &numbers(case.known_wrong("truncated_wins"))));
    let mask: Vec<f64> = transitions.iter().map(|t| f64::from(t.discount != 0.0)).collect();
    assert_eq!(mask, numbers(case.expected("bootstrap_mask")));
}

#[test]
fn a_truncated_window_is_short_and_bootstraps_with_its_own_power() {
    let step = |reward, end| Step { reward, end };
    let steps = [step(1.0, End::Running), step(2.0, End::Truncated), step(100.0, End::Running)];
    let got = n_step(&steps, 0, NonZeroUsize::new(3).unwrap(), 0.5).unwrap();
    assert_eq!((got.reward, got.steps, got.discount, got.last), (2.0, 2, 0.25, 1));
    assert_eq!(discount(0.5, 2, false), 0.25);
    assert_eq!(discount(0.5, 2, true), 0.0);
}

/// What the discount does to the target: a terminal transition puts all mass at its reward, whatever s' is worth.
#[test]
fn a_terminal_target_is_the_reward_alone() {
    let shape = ModelShape { atoms: 21, ..Default::default() };
    let support = Support::new(&shape);
    let at_seven: Vec<f64> = (0..21).map(|k| if k == 17 { 1.0 } else { 0.0 }).collect();
    let probabilities = at_seven.repeat(2);
    let discounts = [discount(0.99, 1, false), discount(0.99, 1, true)];
    let projection = project(&support, &probabilities, 1, &[1.0, 1.0], &discounts);
    let expectation = |row: usize| support.expectation(&projection.mass[row * 21..][..21]);
    // 21 atoms of size up to 10: a few roundings.
    assert!((expectation(0) - (1.0 + 0.99 * 7.0)).abs() < 1e-13);
    assert_eq!(expectation(1), 1.0);
}
