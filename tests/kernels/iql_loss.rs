//! Bodies for `iql_loss`.

use gpu::kernels::iql_loss::IqlLoss;
use gpu::kernels::iql_loss::reference::{Loss, iql_loss};
use gpu::reference::Bounded;

use super::check::close;
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Values, losses and gradients of both networks; widths around a warp, one branch and eight, batches that do not fill a
/// block, expectiles at and near the ends.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(91);
    let mut shapes = vec![(1, 1, 1), (7, 3, 31), (16, 4, 128), (33, 8, 70)];
    if B::FULL_SIZE {
        shapes.push((1024, 3, 128));
    }
    for (batch, branches, width) in shapes {
        for taus in [[0.7, 0.3], [0.99, 0.5]] {
            // Output weights and biases somewhere in the flat parameters, not aligned.
            let parameters = random.normals(3 * width + 11, 0.3);
            let (weights, biases) = ([5, width + 7], [1, 2 * width + 9]);
            let q = random.normals(batch * branches, 1.0);
            let hidden = random.normals(2 * batch * width, 1.0);
            let mut expected: Vec<Loss> = vec![];
            for network in 0..2 {
                for i in 0..batch {
                    let row = (network * batch + i) * width;
                    expected.push(iql_loss(
                        batch,
                        taus[network],
                        0.01,
                        &q[i * branches..][..branches],
                        &hidden[row..][..width],
                        &parameters[weights[network]..][..width],
                        parameters[biases[network]],
                    ));
                }
            }
            let (q, hidden) = (put(b, "q", &q)?, put(b, "hidden", &hidden)?);
            let parameters = put(b, "parameters", &parameters)?;
            let [values, loss, d_value] =
                ["values", "loss", "d_value"].map(|n| filled(b, n, 2 * batch, -7.0f32));
            let (values, loss, d_value) = (values?, loss?, d_value?);
            let d_hidden = filled(b, "d_hidden", 2 * batch * width, -7.0f32)?;
            launch(
                b,
                IqlLoss {
                    batch: batch as u32,
                    branches: branches as u32,
                    width: width as u32,
                    slope: 0.01,
                    tau_high: taus[0],
                    tau_low: taus[1],
                    weight_high: weights[0] as u32,
                    bias_high: biases[0] as u32,
                    weight_low: weights[1] as u32,
                    bias_low: biases[1] as u32,
                    q: q.into(),
                    hidden: hidden.into(),
                    parameters: parameters.into(),
                    values: values.into(),
                    loss: loss.into(),
                    d_value: d_value.into(),
                    d_hidden: d_hidden.into(),
                },
            )?;
            let all = |of: fn(&Loss) -> Bounded| expected.iter().map(of).collect::<Vec<_>>();
            close("values", &b.download(values)?, &all(|l| l.value));
            close("loss", &b.download(loss)?, &all(|l| l.loss));
            close("d_value", &b.download(d_value)?, &all(|l| l.d_value));
            let rows: Vec<Bounded> = expected.iter().flat_map(|l| l.d_hidden.clone()).collect();
            close("d_hidden", &b.download(d_hidden)?, &rows);
        }
    }
    Ok(())
}
