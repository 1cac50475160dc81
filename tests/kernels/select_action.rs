//! Bodies for `select_action`.

use gpu::clock;
use gpu::kernels::select_action::{SelectAction, reference};
use host::error::ExecError;

use super::check::equally_likely;
use super::data::Random;
use super::rows::pack;
use super::{Backend, Outcome, filled, launch, put};

/// Launches over rows of Q values [D, n_d] and returns each row's packed actions.
fn select<B: Backend>(
    b: &mut B,
    q: &[Vec<Vec<f32>>],
    epsilon: f32,
    seed: u64,
    step: u64,
) -> Result<Vec<u64>, ExecError> {
    let sizes: Vec<usize> = q[0].iter().map(Vec::len).collect();
    let mut words = vec![99u64; clock::WORDS as usize];
    words[clock::COLLECT as usize] = step;
    let (words, epsilon) = (put(b, "clock", &words)?, put(b, "epsilon", &[epsilon])?);
    let flat: Vec<f32> = q.iter().flatten().flatten().copied().collect();
    let (q_values, actions) = (put(b, "q", &flat)?, filled(b, "actions", q.len() + 1, 7u64)?);
    launch(
        b,
        SelectAction {
            rows: q.len() as u32,
            branches: sizes.len() as u32,
            sizes: pack(&sizes),
            seed,
            clock_words: words.into(),
            epsilon: epsilon.into(),
            q: q_values.into(),
            actions: actions.into(),
        },
    )?;
    let mut got = b.download(actions)?;
    assert_eq!(got.pop(), Some(7), "behind the actions");
    Ok(got)
}

fn random_q(random: &mut Random, sizes: &[usize], rows: usize) -> Vec<Vec<Vec<f32>>> {
    (0..rows).map(|_| sizes.iter().map(|&n| random.normals(n, 1.0)).collect()).collect()
}

/// The reference's choice for every row, over branch shapes, exploration rates, seeds and steps.
pub fn as_the_reference<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(41);
    for sizes in [&[2][..], &[64], &[9, 3, 3], &[2, 3, 4, 5, 6, 7, 8, 64]] {
        for (rows, epsilon, seed, step) in
            [(1, 0.5, 1, 0), (127, 0.0, 2, 3), (129, 0.4, 0xfedc_ba98_7654_3210, 1 << 40), (130, 1.0, 4, 5)]
        {
            let q = random_q(&mut random, sizes, rows);
            let got = select(b, &q, epsilon, seed, step)?;
            for (row, (&got, q)) in got.iter().zip(&q).enumerate() {
                let expected = reference::select_action(q, epsilon, seed, step, row as u32);
                assert_eq!(got, pack(&expected), "row {row} of {sizes:?} at epsilon {epsilon}");
            }
        }
    }
    Ok(())
}

/// Without exploration: the largest Q, the lowest index of equal ones, negative and infinite values included.
pub fn greedy_and_ties<B: Backend>(b: &mut B) -> Outcome {
    let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
    let rows = [
        ([1.0, 2.0, 3.0, 2.0], [0.0, 0.0], [2, 0]),
        ([3.0, 3.0, 3.0, 3.0], [-1.0, -1.0], [0, 0]),
        ([-3.0, -1.0, -1.0, -2.0], [-2.0, -1.0], [1, 1]),
        ([0.0, -0.0, 0.0, 0.0], [-0.0, 0.0], [0, 0]),
        ([low, low, -3e38, low], [low, low], [2, 0]),
        ([1.0, high, high, 2.0], [3e38, high], [1, 1]),
    ];
    let q: Vec<_> = rows.iter().map(|(a, b, _)| vec![a.to_vec(), b.to_vec()]).collect();
    let expected: Vec<u64> = rows.iter().map(|(_, _, actions)| pack(actions)).collect();
    assert_eq!(select(b, &q, 0.0, 1, 0)?, expected);
    Ok(())
}

/// Random actions are equally likely in every branch, branches are independent, and exploration has its rate.
pub fn frequencies<B: Backend>(b: &mut B) -> Outcome {
    let (rows, steps) = if B::FULL_SIZE { (4096, 64) } else { (512, 12) };
    // The greedy action is 0 everywhere.
    let q = vec![vec![vec![1.0, 0.0, 0.0, 0.0, 0.0], vec![1.0, 0.0, 0.0]]; rows];
    let (mut first, mut second, mut joint) = (vec![0; 5], vec![0; 3], vec![0; 15]);
    let mut elsewhere = 0;
    let epsilon = 0.3f32;
    for step in 0..steps {
        for actions in select(b, &q, 1.0, 8, step)? {
            let (a, b) = ((actions & 0xff) as usize, (actions >> 8) as usize);
            first[a] += 1;
            second[b] += 1;
            joint[3 * a + b] += 1;
        }
        elsewhere += select(b, &q, epsilon, 9, step)?.iter().filter(|&&actions| actions != 0).count();
    }
    equally_likely("actions of branch 0", &first);
    equally_likely("actions of branch 1", &second);
    equally_likely("pairs of actions", &joint);
    // An exploring row draws (0, 0) once in 15 times. Five standard errors.
    let (n, p) = (rows as f64 * steps as f64, f64::from(epsilon) * 14.0 / 15.0);
    let error = (n * p * (1.0 - p)).sqrt();
    assert!(
        (elsewhere as f64 - n * p).abs() < 5.0 * error,
        "{elsewhere} of {n}, expected {} +- {error}",
        n * p
    );
    Ok(())
}
