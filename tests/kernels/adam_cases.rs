//! Cases on Adam, clipping and the moving average, through the kernels that end a training step.

use gpu::clock;
use gpu::kernels::adam_ema::reference::Hyper;

use super::adam_ema::{Optimizer, USUAL, hyper_words};
use super::case::{Case, f32s, f64s, list, numbers};
use super::check::same_bits;
use super::{Backend, Outcome, put};
use crate::case;

/// The case's optimizer settings, without clipping.
fn settings(case: &Case, lr: f64) -> Hyper {
    let betas = case.numbers("/input/betas");
    Hyper { lr, beta1: betas[0], beta2: betas[1], eps: case.number("/input/eps"), max_norm: 1e30, ..USUAL }
}

/// eps is added to the root of the corrected second moment, not before the correction and not inside the root.
pub fn c36_eps_outside_the_root<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C36");
    let p0 = f32s(&case.numbers("/input/p0"));
    let optimizer = Optimizer::new(b, &settings(&case, case.number("/input/lr")), &p0, &p0)?;
    let expected = case.rows("/expected/p_after_each_step");
    for (grad, expected) in case.rows("/input/grads_per_step").iter().zip(&expected) {
        optimizer.step(b, &f32s(grad))?;
        let p = b.download(optimizer.params)?;
        case.matches("p", &f64s(&p[..p0.len()]), expected);
    }
    for bug in ["eps_before_bias_correction", "eps_inside_sqrt"] {
        for (wrong, expected) in case.rows(&format!("/known_wrong/{bug}")).iter().zip(&expected) {
            case.tells_apart(bug, wrong, expected);
        }
    }
    Ok(())
}

/// One norm over all tensors; no scaling up; zeros stay zeros. With beta1 = 0 the first moment is the clipped gradient.
pub fn c38_one_global_norm<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C38");
    let flat = |path: &str| -> Vec<f64> {
        let tensors = case.at(path);
        [numbers(&tensors["a"][0]), numbers(&tensors["b"]), numbers(&tensors["c"])].concat()
    };
    let (grads, clipped) = (f32s(&flat("/input/grads")), flat("/expected/clipped"));
    let norm: f64 = grads.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
    assert_eq!(norm, case.number("/expected/global_norm"));
    let mut first_moment = |grads: &[f32], max_norm: f64| {
        let h = Hyper { beta1: 0.0, max_norm, ..USUAL };
        let optimizer = Optimizer::new(b, &h, &vec![0.0; grads.len()], &vec![0.0; grads.len()])?;
        optimizer.step(b, grads)?;
        let [p, m, ..] = optimizer.state(b)?;
        assert!(p.iter().all(|p| p.is_finite()), "parameters {p:?}");
        Ok::<_, host::error::ExecError>(m[..grads.len()].to_vec())
    };
    let max_norm = case.number("/input/max_norm");
    case.matches("clipped gradient", &f64s(&first_moment(&grads, max_norm)?), &clipped);
    same_bits("a gradient below the clip", &first_moment(&grads, 100.0)?, &grads);
    same_bits("a zero gradient", &first_moment(&vec![0.0; grads.len()], max_norm)?, &vec![0.0; grads.len()]);
    case.tells_apart("per tensor", &flat("/known_wrong/per_tensor"), &clipped);
    Ok(())
}

/// The target moves by updates far below the resolution of 16-bit floats.
pub fn c40_average_in_f32<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C40");
    let h = Hyper { lr: 0.0, tau: case.number("/input/tau"), ..USUAL };
    let (online, target) = (case.number("/input/online") as f32, case.number("/input/target0") as f32);
    let optimizer = Optimizer::new(b, &h, &[online], &[target])?;
    for _ in 0..case.number("/input/steps") as usize {
        optimizer.repeat(b)?;
    }
    let [p, _, _, target] = optimizer.state(b)?;
    same_bits("the online parameter at learning rate 0", &p[..1], &[online]);
    let expected = [case.number("/expected/target_after")];
    case.matches("target", &[target[0].into()], &expected);
    for bug in ["bf16_in_place", "f16_in_place"] {
        case.tells_apart(bug, &[case.number(&format!("/known_wrong/{bug}"))], &expected);
    }
    // The third bug shows after the first step already: the target would jump to the online value.
    let first = Optimizer::new(b, &h, &[online], &[1.0])?;
    first.repeat(b)?;
    let after = f64::from(b.download(first.target)?[0]);
    case.matches("target after one step", &[after], &[1.0 + h.tau * (case.number("/input/online") - 1.0)]);
    case.tells_apart("swapped tau", &[case.number("/known_wrong/swapped_tau_after_1")], &[after]);
    Ok(())
}

/// The learning rate is read from device memory at every launch: the launches' arguments stay the same.
pub fn c46_lr_between_launches<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C46");
    let schedule = case.numbers("/input/lr_schedule");
    let p0 = f32s(&case.numbers("/input/p0"));
    let optimizer = Optimizer::new(b, &settings(&case, f64::NAN), &p0, &p0)?;
    let expected = case.rows("/expected/p_after_each_step");
    for ((grad, &lr), expected) in case.rows("/input/grads_per_step").iter().zip(&schedule).zip(&expected) {
        b.upload(optimizer.hypers, &hyper_words(&settings(&case, lr)))?;
        optimizer.step(b, &f32s(grad))?;
        case.matches("p", &[b.download(optimizer.params)?[0].into()], expected);
    }
    // The first learning rate is the frozen one, so the first step cannot tell.
    for (wrong, expected) in case.rows("/known_wrong/lr_frozen_at_first").iter().zip(&expected).skip(1) {
        case.tells_apart("frozen learning rate", wrong, expected);
    }
    Ok(())
}

/// Parameters, both moments and the counters resume a run bit for bit; less than that gives the case's wrong values.
pub fn c48_resume<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C48");
    let weight_decay = case.number("/input/weight_decay(adamw)");
    let h = Hyper { weight_decay, ..settings(&case, case.number("/input/lr")) };
    let p0 = f32s(&case.numbers("/input/p0"));
    let grads: Vec<Vec<f32>> = case.rows("/input/grads_per_step").iter().map(|g| f32s(g)).collect();
    let saved_after = case.number("/input/save_after") as usize;

    let whole = Optimizer::new(b, &h, &p0, &p0)?;
    let mut saved = None;
    let mut run = vec![];
    for (step, grad) in grads.iter().enumerate() {
        whole.step(b, grad)?;
        run.push(whole.state(b)?);
        let expected = numbers(&list(case.at("/expected/p_after_each_step"))[step]);
        case.matches("p", &[run[step][0][0].into()], &expected);
        if step + 1 == saved_after {
            case.matches("m", &[run[step][1][0].into()], &case.numbers("/expected/m_at_3"));
            case.matches("v", &[run[step][2][0].into()], &case.numbers("/expected/v_at_3"));
            assert_eq!(whole.updates(b)? as f64, case.number("/expected/t_at_3"));
            saved = Some([b.download(whole.words)?, b.download(whole.adam_words)?]);
        }
    }
    let words = saved.expect("the case saves before its last step");

    let [p, m, v, target] = &run[saved_after - 1];
    let fresh = [vec![0u64; clock::WORDS as usize], vec![0u64; clock::adam::WORDS as usize]];
    for (what, m, v, words, wrong) in [
        ("everything", Some(m), Some(v), &words, None),
        ("the weights only", None, None, &fresh, Some("/known_wrong/weights_only")),
        ("all but the counters", Some(m), Some(v), &fresh, Some("/known_wrong/moments_but_t_reset")),
    ] {
        let mut resumed = Optimizer::new(b, &h, p, target)?;
        if let (Some(m), Some(v)) = (m, v) {
            (resumed.m, resumed.v) = (put(b, "m", m)?, put(b, "v", v)?);
        }
        b.upload(resumed.words, &words[0])?;
        b.upload(resumed.adam_words, &words[1])?;
        for (step, grad) in grads.iter().enumerate().skip(saved_after) {
            resumed.step(b, grad)?;
            let state = resumed.state(b)?;
            let Some(path) = wrong else {
                for (got, expected) in state.iter().zip(&run[step]) {
                    same_bits("the resumed run", got, expected);
                }
                continue;
            };
            let bug = numbers(&list(case.at(path))[step - saved_after]);
            case.matches(what, &[state[0][0].into()], &bug);
            case.tells_apart(what, &bug, &[run[step][0][0].into()]);
        }
    }
    Ok(())
}
