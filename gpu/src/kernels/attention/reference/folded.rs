//! The folded computation in running error analysis (`crate::reference`): its `scale`s bound the kernels' rounding. Its
//! values must be the definition's, which the tests check: that is the identity on which the kernels rest.

use super::{Parameters, Shape, tensor_sizes};
use crate::reference::Bounded;

/// A matrix, row-major.
struct Matrix {
    columns: usize,
    elements: Vec<Bounded>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, element: impl Fn(usize, usize) -> Bounded) -> Matrix {
        let elements = (0..rows * columns).map(|i| element(i / columns, i % columns)).collect();
        Matrix { columns, elements }
    }

    fn stored(columns: usize, elements: &[f32]) -> Matrix {
        Matrix { columns, elements: elements.iter().map(|&x| Bounded::exact(x)).collect() }
    }

    fn at(&self, row: usize, column: usize) -> Bounded {
        self.elements[row * self.columns + column]
    }
}

/// A sum of `len` terms; the kernels join at most a few partial sums at its end.
fn sum(len: usize, term: impl Fn(usize) -> Bounded) -> Bounded {
    Bounded::sum((0..len).map(term), len + 3)
}

/// One network's folded matrices: see the kernels' module.
pub struct Folded {
    shape: Shape,
    /// M: [d, E].
    tokens: Matrix,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    /// G_h, [F + 1, E] each.
    scores: Vec<Matrix>,
    /// U, [d, heads E].
    mix: Matrix,
}

/// One sample's forward.
pub struct Sample {
    /// e_w, [W][E].
    tokens: Vec<Vec<Bounded>>,
    /// [heads][W]
    pub probabilities: Vec<Vec<Bounded>>,
    /// c, [heads E].
    context: Vec<Bounded>,
    /// o, [d].
    pub o: Vec<Bounded>,
}

impl Folded {
    /// Folds one network's parameters.
    pub fn new(shape: Shape, p: &Parameters<f32>) -> Folded {
        let Shape { width: d, features, bars, heads } = shape;
        let columns = features + bars;
        let exact = |x: &[f32], i: usize| Bounded::exact(x[i]);
        let tokens = Matrix::new(d, columns, |r, c| {
            if c < features {
                exact(&p.embedding, r * features + c)
            } else {
                exact(&p.embedding_bias, r) + exact(&p.positions, (c - features) * d + r)
            }
        });
        // Column of M that column c of a projection of `outputs` columns belongs to: the query has one bar, the last.
        let project = |weight: &[f32], bias: &[f32], outputs: usize| {
            Matrix::new(d, outputs, |r, c| {
                let of = if c < features { c } else { c + columns - outputs };
                let projected = sum(d, |k| exact(weight, r * d + k) * tokens.at(k, of));
                if c < features { projected } else { projected + exact(bias, r) }
            })
        };
        let query = project(&p.query, &p.query_bias, features + 1);
        let key = project(&p.key, &p.key_bias, columns);
        let value = project(&p.value, &p.value_bias, columns);
        let size = shape.head_width();
        let factor = shape.factor();
        let scores = (0..heads)
            .map(|h| {
                Matrix::new(features + 1, columns, |i, c| {
                    factor * sum(size, |r| query.at(h * size + r, i) * key.at(h * size + r, c))
                })
            })
            .collect();
        let mix = Matrix::new(d, heads * columns, |r, c| {
            let (head, c) = (c / columns, c % columns);
            sum(size, |j| exact(&p.output, r * d + head * size + j) * value.at(head * size + j, c))
        });
        Folded { shape, tokens, query, key, value, scores, mix }
    }

    /// One sample's forward.
    pub fn sample(&self, p: &Parameters<f32>, window: &[f32]) -> Sample {
        let Shape { features, bars, heads, width } = self.shape;
        let columns = features + bars;
        let tokens: Vec<Vec<Bounded>> = (0..bars)
            .map(|w| {
                let mut token = vec![Bounded::ZERO; columns];
                for f in 0..features {
                    token[f] = Bounded::exact(window[w * features + f]);
                }
                token[features + w] = Bounded::exact(1.0);
                token
            })
            .collect();
        let last = self.last(&tokens);
        let (mut probabilities, mut context) = (Vec::new(), Vec::new());
        for h in 0..heads {
            let t: Vec<_> =
                (0..columns).map(|c| sum(features + 1, |i| last[i] * self.scores[h].at(i, c))).collect();
            let score: Vec<_> = tokens.iter().map(|e| dot_token(&t, e, features)).collect();
            let most = score.iter().copied().reduce(|a, b| if b.value > a.value { b } else { a });
            let most = most.expect("a bar");
            let exponentials: Vec<_> = score.iter().map(|&s| (s - most).exp()).collect();
            let total = sum(bars, |w| exponentials[w]);
            let a: Vec<_> = exponentials.iter().map(|&e| e / total).collect();
            context.extend(mix_tokens(&a, &tokens));
            probabilities.push(a);
        }
        let o = (0..width)
            .map(|r| {
                sum(heads * columns, |c| context[c] * self.mix.at(r, c)) + Bounded::exact(p.output_bias[r])
            })
            .collect();
        Sample { tokens, probabilities, context, o }
    }

    /// [f_{W-1}; 1]
    fn last(&self, tokens: &[Vec<Bounded>]) -> Vec<Bounded> {
        let features = &tokens[self.shape.bars - 1][..self.shape.features];
        features.iter().copied().chain([Bounded::exact(1.0)]).collect()
    }

    /// The gradient of all samples in `splits` planes, from dh2' [rows, d].
    pub fn gradient(
        &self,
        p: &Parameters<f32>,
        samples: &[Sample],
        gradient: &[f32],
        splits: usize,
    ) -> Parameters<Bounded> {
        let Shape { width: d, features, bars, heads } = self.shape;
        let (columns, size, rows) = (features + bars, self.shape.head_width(), samples.len());
        let gate = Bounded::exact(p.gate[0]);
        let y = Matrix::stored(d, gradient);
        // Each plane's chain is shorter; at most eight partial sums join in a product's block.
        let over_batch =
            |term: &dyn Fn(usize) -> Bounded| Bounded::sum((0..rows).map(term), rows + splits + 8);

        let product =
            Matrix::new(d, heads * columns, |r, c| over_batch(&|b| y.at(b, r) * samples[b].context[c]));
        let total: Vec<_> = (0..d).map(|r| over_batch(&|b| y.at(b, r))).collect();
        let d_mix = Matrix::new(d, heads * columns, |r, c| gate * product.at(r, c));
        let tokens: Vec<Vec<Bounded>> =
            (0..rows).map(|b| self.score_tokens(&samples[b], &y, b, gate)).collect();
        let last: Vec<Vec<Bounded>> = samples.iter().map(|s| self.last(&s.tokens)).collect();
        let d_scores =
            Matrix::new(features + 1, heads * columns, |i, c| over_batch(&|b| last[b][i] * tokens[b][c]));

        let factor = self.shape.factor();
        let exact = |x: &[f32], i: usize| Bounded::exact(x[i]);
        let d_value = Matrix::new(d, columns, |j, c| {
            sum(d, |r| exact(&p.output, r * d + j) * d_mix.at(r, j / size * columns + c))
        });
        let d_query = Matrix::new(d, features + 1, |r, i| {
            factor * sum(columns, |c| self.key.at(r, c) * d_scores.at(i, r / size * columns + c))
        });
        let d_key = Matrix::new(d, columns, |r, c| {
            factor * sum(features + 1, |i| self.query.at(r, i) * d_scores.at(i, r / size * columns + c))
        });

        let of_tokens = |gradient: &Matrix, outputs: usize| {
            Matrix::new(d, d, |r, c| {
                let of = |k: usize| if k < features { k } else { k + columns - outputs };
                sum(outputs, |k| gradient.at(r, k) * self.tokens.at(c, of(k)))
            })
        };
        let over_bars = |gradient: &Matrix, outputs: usize| -> Vec<Bounded> {
            (0..d).map(|r| sum(outputs - features, |w| gradient.at(r, features + w))).collect()
        };
        let d_tokens = Matrix::new(d, columns, |c, k| {
            sum(3 * d, |r| {
                let at = r % d * d + c;
                match r / d {
                    0 if k < features => exact(&p.query, at) * d_query.at(r % d, k),
                    0 if k + 1 == columns => exact(&p.query, at) * d_query.at(r % d, features),
                    0 => Bounded::ZERO,
                    1 => exact(&p.key, at) * d_key.at(r % d, k),
                    _ => exact(&p.value, at) * d_value.at(r % d, k),
                }
            })
        });
        let gate_gradient = Bounded::sum(
            // Within blocks of 256, 32 lanes and over their turns.
            (0..d * heads * columns)
                .map(|i| self.mix.elements[i] * product.elements[i])
                .chain((0..d).map(|r| exact(&p.output_bias, r) * total[r])),
            13 + 5 + d * (heads * columns + 8) / (256 * 32) + 1,
        );
        let embedding = Matrix::new(d, features, |r, f| d_tokens.at(r, f));
        let positions = Matrix::new(bars, d, |w, r| d_tokens.at(r, features + w));
        let output = Matrix::new(d, d, |r, j| {
            sum(columns, |c| d_mix.at(r, j / size * columns + c) * self.value.at(j, c))
        });
        let gradients = Parameters {
            embedding: embedding.elements,
            embedding_bias: (0..d)
                .map(|r| Bounded::sum((0..bars).map(|w| d_tokens.at(r, features + w)), bars + 3))
                .collect(),
            positions: positions.elements,
            query: of_tokens(&d_query, features + 1).elements,
            query_bias: over_bars(&d_query, features + 1),
            key: of_tokens(&d_key, columns).elements,
            key_bias: over_bars(&d_key, columns),
            value: of_tokens(&d_value, columns).elements,
            value_bias: over_bars(&d_value, columns),
            output: output.elements,
            output_bias: total.iter().map(|&s| gate * s).collect(),
            gate: vec![gate_gradient],
        };
        for ((name, len), tensor) in tensor_sizes(self.shape).into_iter().zip(gradients.tensors()) {
            debug_assert_eq!(len, tensor.len(), "{name}");
        }
        gradients
    }

    /// r of sample b: [heads E].
    fn score_tokens(&self, sample: &Sample, y: &Matrix, b: usize, gate: Bounded) -> Vec<Bounded> {
        let Shape { width: d, features, bars, heads } = self.shape;
        let columns = features + bars;
        let mut tokens = Vec::new();
        for h in 0..heads {
            let dc: Vec<_> = (0..columns)
                .map(|c| {
                    gate * Bounded::sum((0..d).map(|r| y.at(b, r) * self.mix.at(r, h * columns + c)), d + 4)
                })
                .collect();
            let da: Vec<_> = sample.tokens.iter().map(|e| dot_token(&dc, e, features)).collect();
            let a = &sample.probabilities[h];
            let mean = sum(bars, |w| a[w] * da[w]);
            let ds: Vec<_> = a.iter().zip(&da).map(|(&a, &da)| a * (da - mean)).collect();
            tokens.extend(mix_tokens(&ds, &sample.tokens));
        }
        tokens
    }
}

/// x . e_w, of which the kernels skip what is multiplied by 0.
fn dot_token(x: &[Bounded], token: &[Bounded], features: usize) -> Bounded {
    Bounded::sum(x.iter().zip(token).map(|(&x, &e)| x * e), features + 1)
}

/// sum over w of x_w e_w.
fn mix_tokens(x: &[Bounded], tokens: &[Vec<Bounded>]) -> Vec<Bounded> {
    (0..tokens[0].len()).map(|c| sum(tokens.len(), |w| x[w] * tokens[w][c])).collect()
}
