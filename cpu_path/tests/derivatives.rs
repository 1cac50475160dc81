//! Autograd against central differences in f64, and the operations of candle that the losses stand on.

use candle_core::{Device, Tensor, Var};
use cpu_path::{Hyper, Learner};

use crate::support::{batch, small_shape, wave};

/// dloss/dparameter for every parameter of a network with unequal branches, target network unlike the online one.
///
/// With step h the quotient is off by h^2 |f'''| / 6 and by 2 eps |loss| / h: about 1e-12 and 1e-9 for h = 1e-6.
#[test]
fn every_derivative_matches_central_differences() {
    let shape = small_shape();
    let batch = batch(&shape, 6);
    let settings = settings::Optimizer::default();
    let widen = |seed| cpu_path::init_flat(&shape, seed).iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let (online, target) = (widen(3), widen(4));
    let learner = |online: Vec<f64>| {
        Learner::with_parameters(&shape, Hyper::from(&settings), online, target.clone()).unwrap()
    };
    let base = learner(online.clone());
    let (evaluation, layout) = (base.evaluate(&batch).unwrap(), base.layout().clone());
    let h = 1e-6;
    for t in &layout.tensors {
        for i in t.offset..t.offset + t.len() {
            let at = |x: f64| {
                let mut moved = online.clone();
                moved[i] = x;
                let moved = learner(moved).evaluate(&batch).unwrap();
                assert_eq!(
                    moved.next_actions, evaluation.next_actions,
                    "the greedy actions are not near a tie"
                );
                moved.loss
            };
            let quotient = (at(online[i] + h) - at(online[i] - h)) / (2.0 * h);
            let difference = (evaluation.gradient[i] - quotient).abs();
            assert!(
                difference < 5e-9,
                "{}[{}]: {} and {quotient}",
                t.name,
                i - t.offset,
                evaluation.gradient[i]
            );
        }
    }
    let parameters: usize = layout.count();
    let nonzero = evaluation.gradient.iter().filter(|g| **g != 0.0).count();
    assert!(
        nonzero > parameters / 2 && nonzero <= parameters,
        "{nonzero} of {parameters} derivatives are not 0"
    );
}

/// The same row may be picked several times: its gradient is the sum.
#[test]
fn gradients_of_index_select_and_gather_add_up_over_repeated_rows() {
    let x = Var::from_vec(wave(12, 0.3), (4, 3), &Device::Cpu).unwrap();
    let rows = Tensor::new(&[2u32, 0, 2], &Device::Cpu).unwrap();
    let weights = Tensor::from_vec(wave(9, 1.1), (3, 3), &Device::Cpu).unwrap();
    let w = weights.to_vec2::<f64>().unwrap();
    let picked = x.index_select(&rows, 0).unwrap();
    let grads = (picked * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    let got = grads.get(&x).unwrap().to_vec2::<f64>().unwrap();
    for k in 0..3 {
        assert_eq!([got[0][k], got[1][k], got[2][k], got[3][k]], [w[1][k], 0.0, w[0][k] + w[2][k], 0.0]);
    }

    let columns = Tensor::new(&[[1u32, 1], [0, 2], [2, 2], [0, 1]], &Device::Cpu).unwrap();
    let weights = Tensor::from_vec(wave(8, 0.7), (4, 2), &Device::Cpu).unwrap();
    let w = weights.to_vec2::<f64>().unwrap();
    let picked = x.gather(&columns, 1).unwrap();
    let grads = (picked * &weights).unwrap().sum_all().unwrap().backward().unwrap();
    let got = grads.get(&x).unwrap().to_vec2::<f64>().unwrap();
    assert_eq!(got[0], [0.0, w[0][0] + w[0][1], 0.0]);
    assert_eq!(got[1], [w[1][0], 0.0, w[1][1]]);
    assert_eq!(got[2], [0.0, 0.0, w[2][0] + w[2][1]]);
    assert_eq!(got[3], [w[3][0], w[3][1], 0.0]);
}
