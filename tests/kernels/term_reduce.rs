//! Bodies for `term_reduce`, `group_reduce` and `group_squares`.

use gpu::kernels::gradient_norm::reference::with_factors;
use gpu::kernels::term_reduce::reference::{block_product, reduce};
use gpu::kernels::term_reduce::{GroupReduce, GroupSquares, PAIRS, TermReduce, pair};
use gpu::reference::Bounded;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Gradients and inner products of one to four terms, lengths around a block, one split and several.
pub fn terms<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(111);
    let mut shapes = vec![
        (4, 4, 1, 0, 1, [4, 4]),
        (1020, 512, 2, 1, 3, [1020, 1020]),
        (2052, 1024, 2, 2, 2, [2052, 2052]),
        (3000, 0, 1, 2, 8, [3000, 3000]),
        // Masks from the first parameter on; noise behind the products' gradients; both.
        (2052, 1024, 2, 2, 2, [2052, 0]),
        (1460, 512, 2, 1, 3, [1024, 1024]),
        (2100, 256, 1, 1, 2, [1064, 0]),
    ];
    if B::FULL_SIZE {
        shapes.push((331_264, 86_528, 2, 1, 8, [331_264, 331_264]));
        shapes.push((576_000, 86_528, 2, 1, 8, [331_264, 0]));
    }
    for (len, trunk, full, partial, splits, [products, scaled]) in shapes {
        let parts = random.normals(full * splits * len, 0.3);
        // An empty trunk still needs a buffer at an address.
        let trunk_parts = random.normals((partial * splits * trunk).max(4), 0.3);
        let factors = random.normals(len - scaled + 4, 0.7);
        let mut expected: Vec<Vec<Bounded>> = (0..full)
            .map(|t| reduce(&parts[t * splits * len..], splits, len, products))
            .map(|sums| with_factors(&sums, len, scaled, &factors))
            .collect();
        expected.resize(2, vec![]);
        expected.extend(
            (0..partial)
                .map(|t| reduce(&trunk_parts[t * splits * trunk..], splits, trunk, trunk))
                .map(|sums| with_factors(&sums, trunk, scaled, &factors)),
        );
        expected.resize(4, vec![]);
        let blocks = len.div_ceil(1024);
        let (parts, trunk_parts) = (put(b, "parts", &parts)?, put(b, "trunk parts", &trunk_parts)?);
        let factors = put(b, "factors", &factors)?;
        let grads = filled(b, "grads", full * len, -7.0f32)?;
        let trunk_grads = filled(b, "trunk grads", partial * trunk + 4, -7.0f32)?;
        let sums = filled(b, "sums", PAIRS as usize * blocks, -7.0f32)?;
        launch(
            b,
            TermReduce {
                len: len as u32,
                trunk: trunk as u32,
                full: full as u32,
                partial: partial as u32,
                splits: splits as u32,
                products: products as u32,
                scaled: scaled as u32,
                factors: factors.into(),
                parts: parts.into(),
                trunk_parts: trunk_parts.into(),
                grads: grads.into(),
                trunk_grads: trunk_grads.into(),
                sums: sums.into(),
            },
        )?;
        close("full terms", &b.download(grads)?, &expected[..2].concat());
        let got = b.download(trunk_grads)?;
        close("trunk terms", &got[..partial * trunk], &expected[2..].concat());
        same_bits("behind the trunk terms", &got[partial * trunk..], &[-7.0; 4]);
        let got = b.download(sums)?;
        for t in 0..4 {
            for u in t..4 {
                let first = pair(t as u32, u as u32) as usize * blocks;
                let of = |block| block_product(&expected[t], &expected[u], block);
                let expected: Vec<Bounded> = (0..blocks).map(of).collect();
                close(
                    &format!("inner products of terms {t} and {u}"),
                    &got[first..first + blocks],
                    &expected,
                );
            }
        }
    }
    Ok(())
}

/// A group's partial gradients and whole gradients, with their sums of squares.
pub fn groups<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(112);
    for (len, splits, plane) in
        [(4usize, 1usize, 4usize), (1020, 3, 1024), (2052, 8, 2052), (50_000, 2, 50_004)]
    {
        let values = random.normals(splits * plane, 0.3);
        let expected = reduce(&values, splits, plane, len);
        let blocks = len.div_ceil(1024);
        let squares: Vec<Bounded> = (0..blocks).map(|i| block_product(&expected, &expected, i)).collect();
        let parts = put(b, "parts", &values)?;
        let (grad, sums) = (filled(b, "grad", len + 4, -7.0f32)?, filled(b, "squares", blocks, -7.0f32)?);
        launch(
            b,
            GroupReduce {
                len: len as u32,
                splits: splits as u32,
                plane: plane as u32,
                parts: parts.into(),
                grad: grad.into(),
                squares: sums.into(),
            },
        )?;
        let got = b.download(grad)?;
        close("group gradient", &got[..len], &expected);
        same_bits("behind the gradient", &got[len..], &[-7.0; 4]);
        let reduced = b.download(sums)?;
        close("squares", &reduced, &squares);
        let again = filled(b, "again", blocks, -7.0f32)?;
        launch(b, GroupSquares { len: len as u32, grad: grad.into(), squares: again.into() })?;
        same_bits("squares of the whole gradient", &b.download(again)?, &reduced);
    }
    Ok(())
}
