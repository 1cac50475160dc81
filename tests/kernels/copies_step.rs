//! The step in bf16 with copies of what its largest products read (`host::step::stored`), beside the same step without and the
//! oracle in f64.
//!
//! Both round the same operands, once here and in every block there; the bias gradients alone are sums of rounded numbers with
//! copies. A copy that is not written, or is of another step's batch, would be wrong by as much as the gradients are large.

use host::step::{Matmul, StepShape, record};
use settings::{Config, Head, Precision};

use super::oracle_step::{Beside, everything, two_terms};
use super::{Backend, Outcome};

/// Widths in pieces of eight, so that the copies can be read.
fn eights(mut config: Config) -> Config {
    let model = &mut config.model;
    (model.state, model.trunk1, model.trunk2) = (16, 24, 32);
    (model.value_hidden, model.branch_hidden) = (8, 16);
    if model.window > 0 {
        (model.window, model.bar_features) = (3, 4);
    }
    (config.train.batch, config.train.precision) = (24, Precision::Bf16);
    // The second step is measured too: its parameters are still the oracle's, its batch is another one.
    config.optimizer.lr = 1e-9;
    config
}

/// Errors of two steps' gradients, with copies or without.
fn errors<B: Backend>(
    b: &mut B,
    config: &Config,
    copies: bool,
) -> Result<Vec<(String, f64)>, host::error::ExecError> {
    let shape = StepShape { copies, ..StepShape::new(config, Matmul::Rust) };
    assert!(shape.suits_copies());
    let mut beside = Beside::of_shape(b, config, shape)?;
    assert_eq!(beside.buffers.copies.is_some(), copies, "copies need the kernels of sm_90a");
    let mut all = Vec::new();
    for step in 0..2 {
        record(b, &beside.shape, &beside.buffers, Some(&beside.replay))?;
        let batch = beside.batch(b)?;
        let errors = beside.gradient_errors(b, &batch)?;
        all.extend(errors.into_iter().map(|(what, error)| (format!("step {step}, {what}"), error)));
        beside.oracle.train_step(&batch).expect("a step that works");
    }
    Ok(all)
}

fn check<B: Backend>(b: &mut B, config: &Config) -> Outcome {
    let plain = errors(b, config, false)?;
    let copied = errors(b, config, true)?;
    assert_eq!(plain.len(), copied.len());
    for ((what, plain), (_, copied)) in plain.iter().zip(&copied) {
        // Weights: the same numbers are multiplied and the sums rounded elsewhere. Biases are sums of numbers rounded to 2^-9,
        // and the terms' norms are of weights and biases together.
        let more = if what.contains("bias") || what.contains("norm") { 2f64.powi(-8) } else { 1e-4 };
        assert!(*copied <= plain + more, "{what}: {copied:e} with copies, {plain:e} without");
        // Before the heads stand rounded activations of which some have the other sign; measured: 0.005 and 0.15.
        let head = ["v1", "v2", "a1", "a2"].iter().any(|name| what.contains(&format!(" {name}.")));
        let bound = if head { 0.01 } else { 0.25 };
        assert!(*copied <= bound, "{what}: {copied:e}, expected at most {bound}");
    }
    Ok(())
}

/// C51 and CQL with plain heads.
pub fn plain_heads<B: Backend>(b: &mut B) -> Outcome {
    check(b, &eights(two_terms()))
}

/// Gated heads and every part.
pub fn all_parts<B: Backend>(b: &mut B) -> Outcome {
    check(b, &eights(everything()))
}

/// Gated heads and every part but the attention: the features are the trunk's own.
pub fn without_attention<B: Backend>(b: &mut B) -> Outcome {
    let mut config = everything();
    config.attention.enabled = false;
    config.model.head = Head::Glu;
    check(b, &eights(config))
}
