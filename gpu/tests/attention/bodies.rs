//! Test bodies for every machine: random blocks of many shapes against the definition, element by element.

use gpu::kernels::attention::reference::Shape;
use gpu::kernels::gemm::reference::{Rounding, element};
use gpu::reference::Bounded;

use super::check::{check_forward, check_gradient, check_largest};
use super::machine::Machine;
use super::pipeline::Pipeline;
use super::problem::Problem;

const fn shape(width: usize, features: usize, bars: usize, heads: usize) -> Shape {
    Shape { width, features, bars, heads }
}

fn check<M: Machine>(machine: &mut M, shape: Shape, rows: usize, seed: u64) -> Result<(), M::Error> {
    let problem = Problem::random(shape, rows, 0.7, seed);
    // The target network has other parameters, and more rows than the online one needs probabilities of.
    let target = Problem::random(shape, rows / 2 + 3, -1.3, seed + 100);
    let mut pipeline = Pipeline::new(machine, shape);
    let folded = pipeline.fold(&problem.parameters, Some(&target.parameters))?;
    let of_target = pipeline.apply(&folded, 1, &target, 2)?;
    let bounds = target.bounds();
    check_forward(&target, &bounds, &of_target, 2);
    check_largest(&bounds, &of_target, &target);
    let online = pipeline.apply(&folded, 0, &problem, rows)?;
    let expected = problem.bounds();
    check_forward(&problem, &expected, &online, rows);
    check_largest(&expected, &online, &problem);
    check_gradient(&problem, &expected.gradient, &pipeline.backward(&folded, &online, &problem)?);
    Ok(())
}

/// The default window and heads, with a narrower trunk.
pub fn default_window<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(64, 9, 8, 4), 40, 1)
}

/// One bar, of which all probability is; one feature.
pub fn one_bar<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(16, 1, 1, 1), 5, 2)?;
    check(machine, shape(12, 3, 1, 2), 9, 3)
}

/// More probabilities and columns than a warp has lanes.
pub fn long_window<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(40, 16, 24, 8), 70, 4)
}

/// Sizes that fill no tile and no vector; a single row.
pub fn odd_sizes<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(21, 5, 7, 3), 67, 5)?;
    check(machine, shape(35, 2, 3, 5), 1, 6)
}

/// Heads wider than a tile; more summed indices than a stage holds; the widest token.
pub fn wide_trunk<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(272, 2, 3, 2), 3, 7)?;
    check(machine, shape(145, 16, 24, 5), 3, 16)?;
    check(machine, shape(6, 100, 27, 1), 3, 17)
}

/// So many rows that a warp takes several samples and a block several tiles: each sample's bits are those of a small batch.
pub fn many_rows<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let few = Problem::random(shape(70, 2, 3, 1), 37, 0.6, 18);
    let rows = (1 << 15) + 5;
    let cycle = |x: &[f32]| x.iter().copied().cycle().take(x.len() / few.rows * rows).collect::<Vec<_>>();
    let many = Problem {
        rows,
        windows: cycle(&few.windows),
        hidden: cycle(&few.hidden),
        gradient: cycle(&few.gradient),
        ..few.clone()
    };
    let mut pipeline = Pipeline::new(machine, few.shape);
    let folded = pipeline.fold(&few.parameters, None)?;
    let [small, large] = [(&few, few.rows), (&many, rows - 1)].map(|(problem, kept)| {
        let forward = pipeline.apply(&folded, 0, problem, kept)?;
        let [tensor_cores, context, _] = pipeline.apply_tf32(&folded, problem, &forward)?;
        Ok([forward.probabilities, context, forward.hidden, tensor_cores])
    });
    for (small, large) in small?.iter().zip(large?) {
        let same = |(small, large): (&f32, &f32)| small.to_bits() == large.to_bits();
        assert!(large.len() > 30_000 && small.iter().cycle().zip(&large).all(same));
    }
    Ok(())
}

/// The tensor cores' h2' of a block, element by element against the rounded factors.
fn check_tf32<M: Machine>(machine: &mut M, shape: Shape, rows: usize, seed: u64) -> Result<(), M::Error> {
    let problem = Problem::random(shape, rows, 0.7, seed);
    let mut pipeline = Pipeline::new(machine, shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, 0)?;
    let [applied, context, mix] = pipeline.apply_tf32(&folded, &problem, &forward)?;
    let depth = context.len() / rows;
    // Ten bits of mantissa, ties away from zero.
    let round = |x: f32| {
        if x == 0.0 {
            return 0.0;
        }
        let unit = 2.0f64.powi(f64::from(x).abs().log2().floor() as i32 - 10);
        (unit * (f64::from(x) / unit).round()) as f32
    };
    for (i, &got) in applied.iter().enumerate() {
        let (row, column) = (i / shape.width, i % shape.width);
        let product = element(
            Rounding::Tf32,
            depth,
            0,
            |k| round(context[row * depth + k]),
            |k| round(mix[column * depth + k]),
        );
        let o = product + Bounded::exact(problem.parameters.output_bias[column]);
        let expected = Bounded::exact(problem.hidden[i]) + Bounded::exact(problem.parameters.gate[0]) * o;
        assert!(expected.accepts(got), "{shape:?}: h2' [{row}, {column}] = {got}, expected {expected:?}");
    }
    Ok(())
}

/// Contexts that fill whole eights of summed indices and that do not, rows and columns that fill no tile.
pub fn tensor_cores<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check_tf32(machine, shape(64, 9, 8, 4), 70, 12)?;
    check_tf32(machine, shape(40, 16, 24, 8), 9, 13)?;
    check_tf32(machine, shape(21, 5, 7, 3), 67, 14)?;
    check_tf32(machine, shape(70, 1, 1, 1), 3, 15)
}

/// A gate of 0 leaves h2 as it is, and still learns. One network only.
pub fn closed_gate<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let problem = Problem::random(shape(24, 4, 5, 4), 11, 0.0, 8);
    let mut pipeline = Pipeline::new(machine, problem.shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows)?;
    assert_eq!(forward.hidden, problem.hidden);
    let gradient = pipeline.backward(&folded, &forward, &problem)?;
    check_gradient(&problem, &problem.bounds().gradient, &gradient);
    assert!(gradient.gate[0].abs() > 1e-3, "the gate's gradient is {}", gradient.gate[0]);
    let others = &gradient.tensors()[..11];
    assert!(others.iter().all(|tensor| tensor.iter().all(|&x| x == 0.0)), "only the gate learns at first");
    Ok(())
}

/// Large scores: the maximum is subtracted, and probabilities become one-hot.
pub fn large_scores<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut problem = Problem::random(shape(24, 4, 6, 2), 9, 0.5, 9);
    for weight in [&mut problem.parameters.query, &mut problem.parameters.key] {
        weight.iter_mut().for_each(|w| *w *= 12.0);
    }
    let mut pipeline = Pipeline::new(machine, problem.shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows)?;
    check_forward(&problem, &problem.bounds(), &forward, problem.rows);
    assert!(forward.probabilities.iter().any(|&a| a > 0.999_99), "scores are large");
    Ok(())
}

/// A NaN in one sample's window stays in that sample's h2' and shows in the gradient.
pub fn nan_shows<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut problem = Problem::random(shape(24, 4, 5, 4), 7, 0.5, 10);
    problem.windows[2 * 20 + 3] = f32::NAN;
    let mut pipeline = Pipeline::new(machine, problem.shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows)?;
    for (row, hidden) in forward.hidden.chunks_exact(24).enumerate() {
        assert!(hidden.iter().all(|x| x.is_nan() == (row == 2)), "row {row}");
    }
    let gradient = pipeline.backward(&folded, &forward, &problem)?;
    assert!(gradient.key.iter().chain(&gradient.output).chain(&gradient.gate).all(|x| x.is_nan()));
    Ok(())
}

/// The bits of everything that a step of one network computes.
pub fn bits<M: Machine>(machine: &mut M) -> Result<Vec<u32>, M::Error> {
    let problem = Problem::random(shape(20, 3, 4, 2), 35, 0.4, 11);
    let mut pipeline = Pipeline::new(machine, problem.shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows)?;
    let gradient = pipeline.backward(&folded, &forward, &problem)?;
    let all = gradient.tensors().into_iter().flatten().chain(&forward.hidden);
    Ok(all.map(|x| x.to_bits()).collect())
}

/// The same launches give the same bits.
pub fn reproducible<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let first = bits(machine)?;
    assert!(bits(machine)? == first);
    Ok(())
}
