//! Bodies for `bias_lrelu`, `lrelu_backward` and `bias_gradient`.

use gpu::kernels::bias_lrelu::{BiasGradient, BiasLrelu, LreluBackward, reference};
use gpu::reference::Bounded;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Rows, columns, row stride: one vector; several rows in one block; a block's edge inside a row; many blocks.
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 4, 4), (5, 8, 12), (37, 20, 24), (3, 344, 344), (129, 12, 16)];

/// Random numbers with the special values of the activation among them.
fn inputs(random: &mut Random, len: usize) -> Vec<f32> {
    let mut values = random.normals(len, 1.0);
    let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-38, -1e-38];
    for (i, x) in special.into_iter().enumerate() {
        if let Some(value) = values.get_mut(7 * i + 1) {
            *value = x;
        }
    }
    values
}

/// Applies `expect(row, column)` to the columns that the kernel owns and keeps `before` in the rest of each row.
fn check_rows(
    what: &str,
    (rows, cols, stride): (usize, usize, usize),
    before: &[f32],
    got: &[f32],
    expect: impl Fn(usize, usize) -> Bounded,
) {
    let (mut inside, mut expected) = (vec![], vec![]);
    for row in 0..rows {
        let end = (row + 1) * stride;
        let between = row * stride + cols..end.min(got.len());
        same_bits(
            &format!("{what}: columns that are not the kernel's"),
            &got[between.clone()],
            &before[between],
        );
        for column in 0..cols {
            inside.push(got[row * stride + column]);
            expected.push(expect(row, column));
        }
    }
    close(what, &inside, &expected);
}

/// h = lrelu(x + b), in place.
pub fn forward<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(1);
    for shape @ (rows, cols, stride) in SHAPES {
        for slope in [0.01f32, 0.0, 0.3] {
            let (x, bias) = (inputs(&mut random, rows * stride), random.normals(cols, 1.0));
            let (device_x, device_bias) = (put(b, "x", &x)?, put(b, "bias", &bias)?);
            launch(
                b,
                BiasLrelu {
                    rows: rows as u32,
                    cols: cols as u32,
                    stride: stride as u32,
                    slope,
                    bias: device_bias.into(),
                    x: device_x.into(),
                },
            )?;
            let got = b.download(device_x)?;
            check_rows("h", shape, &x, &got, |row, column| {
                reference::bias_lrelu(x[row * stride + column], bias[column], slope)
            });
        }
    }
    Ok(())
}

/// dx = dh * lrelu'(h), in place.
pub fn backward<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(2);
    for shape @ (rows, cols, stride) in SHAPES {
        let slope = 0.01f32;
        // Every sign of h, exact zeros (slope 0) and signed zeros among them.
        let h: Vec<f32> = inputs(&mut random, rows * stride)
            .into_iter()
            .map(|h| if h.is_nan() { 0.0 } else { h })
            .collect();
        let d = random.normals(rows * stride, 1.0);
        let (device_h, device_d) = (put(b, "h", &h)?, put(b, "d", &d)?);
        launch(
            b,
            LreluBackward {
                rows: rows as u32,
                cols: cols as u32,
                stride: stride as u32,
                slope,
                h: device_h.into(),
                d: device_d.into(),
            },
        )?;
        let got = b.download(device_d)?;
        check_rows("dx", shape, &d, &got, |row, column| {
            reference::lrelu_backward(d[row * stride + column], h[row * stride + column], slope)
        });
    }
    Ok(())
}

/// db[c] = sum of column c, for numbers of rows around the unrolling of 64 and the 16 warps.
pub fn bias_gradient<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(3);
    let mut shapes =
        vec![(1, 1), (15, 31), (16, 32), (17, 33), (49, 3), (63, 5), (64, 40), (65, 7), (130, 9)];
    if B::FULL_SIZE {
        shapes.extend([(1024, 459), (4097, 33)]);
    }
    for (rows, cols) in shapes {
        let stride = cols + 3;
        // A mean apart from zero, so that the sum grows and its rounding is the largest it can be.
        let mut d: Vec<f32> = random.normals(rows * stride, 1.0).iter().map(|x| x + 1.0).collect();
        for row in d.chunks_mut(stride) {
            row[cols..].fill(f32::NAN); // belongs to a neighbour and must not be read
        }
        let (device_d, out) = (put(b, "d", &d)?, filled(b, "bias gradient", cols + 1, -7.0f32)?);
        launch(
            b,
            BiasGradient {
                rows: rows as u32,
                cols: cols as u32,
                stride: stride as u32,
                d: device_d.into(),
                bias_gradient: out.into(),
            },
        )?;
        let got = b.download(out)?;
        let expected: Vec<Bounded> = (0..cols)
            .map(|c| reference::bias_gradient(&d.iter().skip(c).step_by(stride).copied().collect::<Vec<_>>()))
            .collect();
        close("bias gradient", &got[..cols], &expected);
        same_bits("behind the bias gradient", &got[cols..], &[-7.0]);
    }
    Ok(())
}
