//! What the tests on golden steps share: the files, their batch in a step's buffers.

use cpu_path::C51Batch;
use cpu_path::golden::Golden;
use host::step::{StepBuffers, StepShape};

use super::{Backend, Outcome};

/// A file of `tests/golden`.
pub fn read(file: &str) -> Golden {
    let path = format!("{}/../tests/golden/{file}.safetensors", env!("CARGO_MANIFEST_DIR"));
    // A program that was built here and carried elsewhere finds the file from the repository's root.
    let path =
        if std::path::Path::new(&path).exists() { path } else { format!("tests/golden/{file}.safetensors") };
    Golden::read(path).expect("the golden file is part of the repository")
}

/// Rounded to f32.
pub fn f32s(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// Widened to f64.
pub fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

/// Uploads states, actions, rewards, discounts and weights.
pub fn upload_batch<B: Backend>(
    b: &mut B,
    shape: &StepShape,
    buffers: &StepBuffers,
    batch: &C51Batch<f64>,
) -> Outcome {
    let width = shape.model.state;
    let mut x = vec![0.0f32; 2 * shape.batch * shape.stride];
    let rows = batch.states.chunks_exact(width).chain(batch.next_states.chunks_exact(width));
    for (row, from) in x.chunks_exact_mut(shape.stride).zip(rows) {
        row[..width].copy_from_slice(&f32s(from));
    }
    let actions: Vec<u64> = batch
        .actions
        .chunks_exact(shape.branches)
        .map(|row| gpu::action::pack(&row.iter().map(|&a| a as usize).collect::<Vec<_>>()))
        .collect();
    b.upload(buffers.batch.x, &x)?;
    b.upload(buffers.batch.actions, &actions)?;
    b.upload(buffers.batch.rewards, &f32s(&batch.rewards))?;
    b.upload(buffers.batch.discounts, &f32s(&batch.discounts))?;
    b.upload(buffers.batch.weights, &f32s(&batch.weights))
}
