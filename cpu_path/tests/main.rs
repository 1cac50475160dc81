//! Tests of the CPU path: the golden training step, the collected pitfalls, derivatives, resume.

mod c51_cases;
mod derivatives;
mod feedback;
mod golden_full;
mod golden_step;
mod learner;
mod noisy;
mod optimizer_cases;
mod parts;
mod parts_cases;
mod replay;
mod support;
mod transition_cases;
