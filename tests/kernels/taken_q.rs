//! Bodies for `taken_q` and `taken_q_wide`.

use gpu::kernels::distribution::reference::Heads;
use gpu::kernels::taken_q::reference::taken_q;
use gpu::kernels::taken_q::{TakenQ, TakenQWide};
use gpu::reference::Bounded;

use super::check::close;
use super::data::Random;
use super::rows::{Shape, pack};
use super::{Backend, Outcome, filled, launch, put};

/// Rows that do and do not fill a block, one branch and eight, both widths; padding of the logits is NaN.
pub fn random_rows<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(81);
    let mut shapes = vec![
        (1, Shape::new(&[2], 2)),
        (7, Shape::new(&[9, 3, 3], 51)),
        (3, Shape::new(&[64, 2], 21)),
        (3, Shape::new(&[2, 3, 4, 5, 6, 7, 8, 9], 64)),
        (5, Shape::new(&[5, 2], 101)),
    ];
    if B::FULL_SIZE {
        shapes.push((1024, Shape::new(&[9, 3, 3], 51)));
    }
    let range = [-10.0, 10.0];
    for (rows, shape) in shapes {
        let (branches, stride) = (shape.sizes.len(), shape.columns() + 4);
        let heads: Vec<Heads> = (0..rows).map(|_| shape.random(&mut random, 1.5)).collect();
        let taken: Vec<Vec<usize>> =
            (0..rows).map(|_| shape.sizes.iter().map(|&n| random.below(n)).collect()).collect();
        let expected: Vec<Bounded> =
            heads.iter().zip(&taken).flat_map(|(heads, taken)| taken_q(range, heads, taken)).collect();
        let support = put(b, "support", &range)?;
        let logits = put(b, "logits", &shape.flat(&heads, stride, f32::NAN))?;
        let actions = put(b, "actions", &taken.iter().map(|t| pack(t)).collect::<Vec<_>>())?;
        for wide in [false, true] {
            if !wide && shape.atoms > 64 {
                continue;
            }
            let q = filled(b, "q", rows * branches, -7.0f32)?;
            macro_rules! run {
                ($kernel:ident) => {
                    launch(
                        b,
                        $kernel {
                            rows: rows as u32,
                            branches: branches as u32,
                            sizes: shape.packed(),
                            atoms: shape.atoms as u32,
                            stride: stride as u32,
                            support: support.into(),
                            logits: logits.into(),
                            actions: actions.into(),
                            q: q.into(),
                        },
                    )?
                };
            }
            if wide {
                run!(TakenQWide)
            } else {
                run!(TakenQ)
            }
            close(&format!("{shape:?}, wide {wide}"), &b.download(q)?, &expected);
        }
    }
    Ok(())
}
