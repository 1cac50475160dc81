//! Test bodies for every machine: random blocks of many shapes against the definition, element by element.

use gpu::kernels::mamba::Shape;
use gpu::kernels::mamba::reference::{Forward, Parameters, tensor_sizes};
use gpu::reference::Bounded;

use super::machine::Machine;
use super::pipeline::{self, Network};
use super::problem::Problem;

/// The kernels multiply the same factors and add the same terms as the definition, but fold Win We first and unroll the
/// scan: an error that the definition makes once may come in at two or three places. The bound of the definition's own
/// order is taken this often.
const REORDERED: f64 = 4.0;

/// The bounds of single elements assume that no two roundings cancel, through a scan and a norm; they are wide. Of a whole
/// tensor most cancel: its error is that of some dozen roundings, 160 of which are allowed, of its norm or, where its
/// elements are differences of larger terms, of a hundredth of the group's.
const WHOLE: f64 = 1e-5;
const FLOOR: f64 = 1e-2;

fn accepts(expected: Bounded, got: f32) -> bool {
    Bounded { scale: REORDERED * expected.scale, ..expected }.accepts(got)
}

const fn shape(features: u32, bars: u32, width: u32, state: u32, heads: u32) -> Shape {
    Shape { features, bars, width, state, heads }
}

/// The rows [o, s]: o within its bound, s as it was.
fn check_forward(problem: &Problem, samples: &[Forward<Bounded>], states: &[f32], joined: &[f32]) {
    let (width, stride) = (problem.shape.width as usize, problem.stride());
    assert_eq!(joined.len(), samples.len() * (width + stride));
    for (row, (got, of)) in joined.chunks_exact(width + stride).zip(samples).enumerate() {
        for (c, (&got, &expected)) in got.iter().zip(&of.o).enumerate() {
            // o has a mean square of about 1.
            let near = (f64::from(got) - expected.value).abs() <= WHOLE * expected.value.abs().max(1.0);
            assert!(
                near && accepts(expected, got),
                "{:?}: o[{row}, {c}] = {got}, expected {expected:?}",
                problem.shape
            );
        }
        assert_eq!(got[width..], states[row * stride..][..stride]);
    }
}

/// Every element within the rounding's bound, and every tensor within that of its norm.
fn check_gradient(
    problem: &Problem,
    expected: &Parameters<Bounded>,
    (got, squares): &(Parameters<f32>, f64),
) {
    let norm = |x: &[Bounded]| x.iter().map(|x| x.value * x.value).sum::<f64>().sqrt();
    let group = expected.tensors.iter().map(|t| norm(t)).map(|x| x * x).sum::<f64>().sqrt();
    let sizes = tensor_sizes(problem.shape, problem.taps, problem.hidden);
    for (((name, len), expected), got) in sizes.into_iter().zip(&expected.tensors).zip(&got.tensors) {
        assert_eq!((len, len), (expected.len(), got.len()));
        for (i, (&expected, &got)) in expected.iter().zip(got).enumerate() {
            assert!(
                accepts(expected, got),
                "{:?}: d {name} [{i}] = {got}, expected {expected:?}",
                problem.shape
            );
        }
        let error =
            expected.iter().zip(got).map(|(e, &g)| (e.value - f64::from(g)).powi(2)).sum::<f64>().sqrt();
        let most = WHOLE * norm(expected).max(FLOOR * group);
        assert!(error <= most, "{:?}: d {name} is off by {error} of at most {most}", problem.shape);
    }
    assert!((squares.sqrt() - group).abs() <= 1e-4 * group, "norm {} expected {group}", squares.sqrt());
}

/// g Wout beside W1, and b1 + g bo: products and sums of two numbers.
fn check_joined(problem: &Problem, [weight, bias]: &[Vec<f32>; 2]) {
    let (width, inputs) = (problem.shape.width as usize, problem.inputs);
    let (tensors, gate) = (&problem.parameters.tensors, problem.parameters.tensors[11][0]);
    for (r, row) in weight.chunks_exact(width + inputs).enumerate() {
        let out: Vec<f32> = tensors[9][r * width..][..width].iter().map(|w| gate * w).collect();
        assert_eq!(row[..width], out);
        assert_eq!(row[width..], problem.trunk[0][r * inputs..][..inputs]);
        assert_eq!(bias[r], gate.mul_add(tensors[10][r], problem.trunk[1][r]));
    }
}

fn check<M: Machine>(
    machine: &mut M,
    shape: Shape,
    taps: usize,
    hidden: usize,
    rows: usize,
    seed: u64,
) -> Result<(), M::Error> {
    let problem = Problem::random(shape, taps, hidden, rows, 0.7, seed);
    // The target network has other parameters, and only the later rows.
    let mut target = Problem::random(shape, taps, hidden, rows, -1.3, seed + 100);
    let second_from = rows / 3;
    target.states = problem.states[second_from * problem.stride()..].to_vec();
    let networks = [Network::put(machine, &problem)?, Network::put(machine, &target)?];
    let (folded, _) = pipeline::fold(machine, &problem, &networks)?;
    let joined = pipeline::join(machine, &problem, &networks)?;
    check_joined(&problem, &joined[0]);
    check_joined(&target, &joined[1]);
    let second = rows - second_from;
    let out = pipeline::forward(machine, &problem, folded, [rows, second, second_from])?;
    let (online, of_target) = out.split_at(rows * (shape.width as usize + problem.stride()));
    let (samples, gradient) = problem.expected::<Bounded>();
    check_forward(&problem, &samples, &problem.states, online);
    check_forward(&target, &target.expected::<Bounded>().0, &target.states, of_target);
    let got = pipeline::backward(machine, &problem, &networks[0], folded, online)?;
    check_gradient(&problem, &gradient, &got);
    Ok(())
}

/// The default sizes and window, with a narrower trunk; a batch that fills no block.
pub fn default_sizes<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(9, 8, 32, 16, 4), 4, 24, 37, 1)
}

/// One bar, of which the scan is one step; one feature, one channel a head, one state, a single row.
pub fn one_bar<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(1, 1, 4, 1, 4), 4, 5, 1, 2)?;
    check(machine, shape(3, 1, 32, 16, 4), 4, 8, 9, 3)
}

/// More bars than the convolution has taps and than a few groups of four.
pub fn long_window<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(10, 24, 32, 16, 4), 4, 12, 11, 4)
}

/// Sizes that fill no group of lanes, bars or floats.
pub fn odd_sizes<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(5, 7, 12, 5, 3), 4, 9, 23, 5)?;
    check(machine, shape(2, 3, 20, 7, 5), 4, 3, 2, 6)
}

/// More channels, heads and bars than a warp has lanes.
pub fn wide_block<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(3, 6, 64, 24, 8), 4, 6, 5, 7)?;
    check(machine, shape(2, 40, 36, 3, 36), 4, 4, 3, 8)
}

/// Convolutions of one to three bars.
pub fn fewer_taps<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, shape(4, 5, 16, 4, 2), 1, 7, 6, 9)?;
    check(machine, shape(4, 5, 16, 4, 2), 2, 7, 6, 10)?;
    check(machine, shape(4, 2, 16, 4, 2), 3, 7, 6, 11)
}

/// So many rows that a warp takes several samples forward and backward: each sample's o has the bits of a small batch's,
/// and the gradient of copies is that of one batch.
pub fn many_rows<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let few = Problem::random(shape(2, 3, 8, 2, 2), 4, 3, 37, 0.6, 12);
    let rows = (1 << 14) + 5;
    let cycle = |x: &[f32]| x.iter().copied().cycle().take(x.len() / few.rows * rows).collect::<Vec<_>>();
    let scale = 37.0 / rows as f32;
    let gradient = cycle(&few.gradient).iter().map(|g| scale * g).collect();
    let many = Problem { rows, states: cycle(&few.states), gradient, ..few.clone() };
    let network = Network::put(machine, &few)?;
    let (folded, _) = pipeline::fold(machine, &few, &[network])?;
    let small = pipeline::forward(machine, &few, folded, [few.rows, 0, 0])?;
    let large = pipeline::forward(machine, &many, folded, [rows, 0, 0])?;
    let same = |(small, large): (&f32, &f32)| small.to_bits() == large.to_bits();
    assert!(large.len() > 100_000 && small.iter().cycle().zip(&large).all(same));
    let got = pipeline::backward(machine, &many, &network, folded, &large)?;
    check_gradient(&many, &many.expected::<Bounded>().1, &got);
    Ok(())
}

/// A gate of 0 adds zero columns to W1 and nothing to b1, and still learns.
pub fn closed_gate<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let problem = Problem::random(shape(4, 5, 16, 4, 2), 4, 7, 11, 0.0, 13);
    let network = Network::put(machine, &problem)?;
    let (folded, _) = pipeline::fold(machine, &problem, &[network])?;
    let joined = pipeline::join(machine, &problem, &[network])?;
    assert_eq!(joined[0][1], problem.trunk[1]);
    assert!(joined[0][0].chunks_exact(16 + problem.inputs).all(|row| row[..16].iter().all(|x| *x == 0.0)));
    let out = pipeline::forward(machine, &problem, folded, [11, 0, 0])?;
    let got = pipeline::backward(machine, &problem, &network, folded, &out)?;
    check_gradient(&problem, &problem.expected::<Bounded>().1, &got);
    assert!(got.0.tensors[11][0].abs() > 1e-3, "the gate's gradient is {:?}", got.0.tensors[11]);
    let others = &got.0.tensors[..11];
    assert!(others.iter().all(|tensor| tensor.iter().all(|&x| x == 0.0)), "only the gate learns at first");
    Ok(())
}

/// Steps so small that 1 + e^dt rounds to 1 and so large that a state forgets at once; inputs that saturate SiLU.
pub fn fast_and_slow<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut problem = Problem::random(shape(4, 6, 16, 4, 4), 4, 5, 9, 0.5, 14);
    problem.parameters.tensors[5] = vec![-18.0, -6.9, 3.0, 30.0];
    problem.parameters.tensors[6] = vec![2.7, 0.0, 2.7, 1.0];
    problem.parameters.tensors[4].iter_mut().step_by(3).for_each(|b| *b = 25.0);
    problem.parameters.tensors[4].iter_mut().skip(1).step_by(3).for_each(|b| *b = -25.0);
    let network = Network::put(machine, &problem)?;
    let (folded, _) = pipeline::fold(machine, &problem, &[network])?;
    let out = pipeline::forward(machine, &problem, folded, [9, 0, 0])?;
    let (samples, gradient) = problem.expected::<Bounded>();
    check_forward(&problem, &samples, &problem.states, &out);
    let got = pipeline::backward(machine, &problem, &network, folded, &out)?;
    check_gradient(&problem, &gradient, &got);
    Ok(())
}

/// A NaN in one sample's window stays in that sample's o and shows in the gradient.
pub fn nan_shows<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut problem = Problem::random(shape(4, 5, 16, 4, 2), 4, 7, 7, 0.5, 15);
    let stride = problem.stride();
    problem.states[2 * stride + 3] = f32::NAN;
    let network = Network::put(machine, &problem)?;
    let (folded, _) = pipeline::fold(machine, &problem, &[network])?;
    let out = pipeline::forward(machine, &problem, folded, [7, 0, 0])?;
    for (row, values) in out.chunks_exact(16 + stride).enumerate() {
        assert!(values[..16].iter().all(|x| x.is_nan() == (row == 2)), "row {row}: {values:?}");
    }
    let (gradient, squares) = pipeline::backward(machine, &problem, &network, folded, &out)?;
    for i in [2, 3, 4, 5, 6, 7, 8, 9, 11] {
        assert!(gradient.tensors[i].iter().any(|x| x.is_nan()), "tensor {i}");
    }
    assert!(squares.is_nan());
    Ok(())
}

/// The bits of everything that a step of one network computes.
pub fn bits<M: Machine>(machine: &mut M) -> Result<Vec<u32>, M::Error> {
    let problem = Problem::random(shape(3, 6, 20, 3, 5), 4, 10, 35, 0.4, 16);
    let network = Network::put(machine, &problem)?;
    let (folded, parameters) = pipeline::fold(machine, &problem, &[network])?;
    let out = pipeline::forward(machine, &problem, folded, [35, 0, 0])?;
    let (gradient, _) = pipeline::backward(machine, &problem, &network, folded, &out)?;
    let all = gradient.tensors.iter().flatten().chain(&out).chain(&parameters);
    Ok(all.map(|x| x.to_bits()).collect())
}

/// The same launches give the same bits.
pub fn reproducible<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let first = bits(machine)?;
    assert!(bits(machine)? == first);
    Ok(())
}
