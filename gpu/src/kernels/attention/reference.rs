//! Reference of the attention: the definition token by token, with full projections and nothing folded, forward and
//! backward, over any [`Number`]: f64, or [`Term`] for the bound on the kernels' rounding.
//!
//! The kernels group the same products of parameters differently, so a bound on their error cannot follow the reference's
//! own operations. But however a sum of products is grouped, its error is at most u times the longest chain of operations
//! times the sum of |terms| when every factor is replaced by its absolute value (Higham, "Accuracy and Stability of
//! Numerical Algorithms", section 3.5). `Term` carries that sum; the probabilities, which are not linear, pass the error of
//! their scores on as an absolute one.

use std::ops::{Add, Mul, Sub};

use crate::reference::{Bounded, UNIT};

/// What the reference computes with.
pub trait Number: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// A number that the kernels hold exactly.
    fn exact(value: f64) -> Self;
    /// Softmax. The scores went through at most `chain` roundings.
    fn softmax(scores: &[Self], chain: f64) -> Vec<Self>;
}

impl Number for f64 {
    fn exact(value: f64) -> f64 {
        value
    }

    fn softmax(scores: &[f64], _chain: f64) -> Vec<f64> {
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponentials: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.into_iter().map(|e| e / sum).collect()
    }
}

/// A value with what bounds its error in f32.
#[derive(Clone, Copy, Debug, Default)]
pub struct Term {
    /// The value in f64.
    pub value: f64,
    /// Sum of the absolute values of the products that it is a sum of.
    pub magnitude: f64,
    /// Error that does not grow with the length of chains: what the probabilities inherited.
    pub error: f64,
}

impl Term {
    /// The value with its bound, when no product went through more than `chain` roundings.
    pub fn bounded(self, chain: f64) -> Bounded {
        Bounded { value: self.value, scale: chain * self.magnitude + self.error / UNIT }
    }
}

impl Number for Term {
    fn exact(value: f64) -> Term {
        Term { value, magnitude: value.abs(), error: 0.0 }
    }

    /// A score that is off by delta changes a probability by a factor of at most exp(2 delta), all scores together.
    /// Besides: the exponential (two units, and one of its argument's difference, which is at most the scores' magnitude),
    /// the sum of W of them and the quotient.
    fn softmax(scores: &[Term], chain: f64) -> Vec<Term> {
        let delta = |s: &Term| s.error + UNIT * (chain + 1.0) * s.magnitude;
        let delta = scores.iter().map(delta).fold(0.0, f64::max);
        let relative = (2.0 * delta).exp_m1() + UNIT * (scores.len() as f64 + 6.0);
        let values: Vec<f64> = scores.iter().map(|s| s.value).collect();
        let terms = <f64 as Number>::softmax(&values, chain).into_iter();
        terms.map(|a| Term { value: a, magnitude: a, error: relative * a }).collect()
    }
}

impl Add for Term {
    type Output = Term;
    fn add(self, other: Term) -> Term {
        Term {
            value: self.value + other.value,
            magnitude: self.magnitude + other.magnitude,
            error: self.error + other.error,
        }
    }
}

impl Sub for Term {
    type Output = Term;
    fn sub(self, other: Term) -> Term {
        Term { value: self.value - other.value, ..self + other }
    }
}

impl Mul for Term {
    type Output = Term;
    fn mul(self, other: Term) -> Term {
        Term {
            value: self.value * other.value,
            magnitude: self.magnitude * other.magnitude,
            error: self.error * other.magnitude + self.magnitude * other.error + self.error * other.error,
        }
    }
}

/// Sizes of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// d.
    pub width: usize,
    /// F.
    pub features: usize,
    /// W.
    pub bars: usize,
    /// Heads.
    pub heads: usize,
}

impl Shape {
    /// d / heads.
    pub fn head_width(self) -> usize {
        self.width / self.heads
    }

    /// Most roundings of a product on its way into a score: Aq and Ak (d terms, the sum in the embedding, the bias, the two
    /// halves' sum), G (d_h terms, halves, factor), t and the score (F + 1 terms each).
    pub fn score_chain(self) -> f64 {
        (2 * (self.width + 4) + self.head_width() + 4 + 2 * (self.features + 2)) as f64
    }

    /// On its way into o and h2': Av and U as Aq and G, c (W terms), o (C terms), the bias and the gate.
    pub fn output_chain(self) -> f64 {
        let context = self.heads * (self.features + self.bars) + 4;
        (self.width + 4 + self.head_width() + 2 + self.bars + context + 3) as f64
    }

    /// On its way into any gradient of `rows` samples in `splits` planes. The longest way is into the embedding through the
    /// query: y U (U as above, d terms), the gate, da (F + 1), ds (W + 2), r (W), the sum over samples and its planes,
    /// dAq (E terms, Ak as above, the factor), dM (3 d terms and the bars' sum).
    pub fn gradient_chain(self, rows: usize, splits: usize) -> f64 {
        let mix = self.width + 4 + self.head_width() + 2;
        let scores = mix + self.width + 2 + self.features + 2 + 2 * self.bars + 4;
        let columns = self.features + self.bars;
        let back = columns + self.width + 4 + 6 + 3 * self.width + self.bars + 2;
        (scores + rows + splits + 8 + back) as f64
    }
}

/// One value for each parameter, or its gradient. Weights are [d, d] or [d, F], row-major.
#[derive(Clone, Debug)]
pub struct Parameters<T> {
    /// We, [d, F].
    pub embedding: Vec<T>,
    /// be, [d].
    pub embedding_bias: Vec<T>,
    /// pos, [W, d].
    pub positions: Vec<T>,
    /// Wq.
    pub query: Vec<T>,
    /// bq.
    pub query_bias: Vec<T>,
    /// Wk.
    pub key: Vec<T>,
    /// bk.
    pub key_bias: Vec<T>,
    /// Wv.
    pub value: Vec<T>,
    /// bv.
    pub value_bias: Vec<T>,
    /// Wo.
    pub output: Vec<T>,
    /// bo.
    pub output_bias: Vec<T>,
    /// g, [1].
    pub gate: Vec<T>,
}

/// Names and sizes of the tensors in the order of [`Parameters::tensors`].
pub fn tensor_sizes(shape: Shape) -> [(&'static str, usize); 12] {
    let Shape { width: d, features, bars, .. } = shape;
    [
        ("emb.weight", d * features),
        ("emb.bias", d),
        ("pos", bars * d),
        ("q.weight", d * d),
        ("q.bias", d),
        ("k.weight", d * d),
        ("k.bias", d),
        ("v.weight", d * d),
        ("v.bias", d),
        ("o.weight", d * d),
        ("o.bias", d),
        ("gate", 1),
    ]
}

impl<T> Parameters<T> {
    /// From tensors in the order of [`tensor_sizes`].
    pub fn from_tensors(tensors: [Vec<T>; 12]) -> Parameters<T> {
        let [
            embedding,
            embedding_bias,
            positions,
            query,
            query_bias,
            key,
            key_bias,
            value,
            value_bias,
            output,
            output_bias,
            gate,
        ] = tensors;
        Parameters {
            embedding,
            embedding_bias,
            positions,
            query,
            query_bias,
            key,
            key_bias,
            value,
            value_bias,
            output,
            output_bias,
            gate,
        }
    }

    /// All tensors in order.
    pub fn tensors(&self) -> [&Vec<T>; 12] {
        [
            &self.embedding,
            &self.embedding_bias,
            &self.positions,
            &self.query,
            &self.query_bias,
            &self.key,
            &self.key_bias,
            &self.value,
            &self.value_bias,
            &self.output,
            &self.output_bias,
            &self.gate,
        ]
    }
}

impl<T: Number> Parameters<T> {
    /// Every parameter 0.
    pub fn zero(shape: Shape) -> Parameters<T> {
        Parameters::from_tensors(tensor_sizes(shape).map(|(_, len)| vec![T::exact(0.0); len]))
    }
}

/// Everything that one sample's forward gives.
#[derive(Clone, Debug)]
pub struct Forward<T> {
    /// Tokens x_w, [W][d].
    x: Vec<Vec<T>>,
    /// q, [d].
    q: Vec<T>,
    /// k_w and v_w, [W][d].
    k: Vec<Vec<T>>,
    v: Vec<Vec<T>>,
    /// Probabilities, [heads][W].
    pub probabilities: Vec<Vec<T>>,
    /// The heads' outputs side by side, [d].
    mixed: Vec<T>,
    /// o, [d].
    pub o: Vec<T>,
}

fn dot<T: Number>(a: &[T], b: impl IntoIterator<Item = T>) -> T {
    a.iter().zip(b).fold(T::exact(0.0), |sum, (&a, b)| sum + a * b)
}

/// W x + b.
fn linear<T: Number>(weight: &[T], bias: &[T], x: &[T]) -> Vec<T> {
    weight.chunks_exact(x.len()).zip(bias).map(|(row, &bias)| dot(row, x.iter().copied()) + bias).collect()
}

fn add_to<T: Number>(sum: &mut [T], terms: &[T]) {
    for (sum, &term) in sum.iter_mut().zip(terms) {
        *sum = *sum + term;
    }
}

/// Adds the gradient of `linear` to its parameters and returns that of x.
fn linear_backward<T: Number>(weight: &[T], dw: &mut [T], db: &mut [T], x: &[T], dy: &[T]) -> Vec<T> {
    let mut dx = vec![T::exact(0.0); x.len()];
    for (r, &dy) in dy.iter().enumerate() {
        for (c, &x) in x.iter().enumerate() {
            let at = r * dx.len() + c;
            dw[at] = dw[at] + dy * x;
            dx[c] = dx[c] + dy * weight[at];
        }
    }
    add_to(db, dy);
    dx
}

/// One sample: window [W, F], oldest bar first.
pub fn forward<T: Number>(shape: Shape, p: &Parameters<T>, window: &[T]) -> Forward<T> {
    let tokens = window.chunks_exact(shape.features).zip(p.positions.chunks_exact(shape.width));
    let x: Vec<Vec<T>> = tokens
        .map(|(bar, position)| {
            let mut token = linear(&p.embedding, &p.embedding_bias, bar);
            add_to(&mut token, position);
            token
        })
        .collect();
    let q = linear(&p.query, &p.query_bias, &x[shape.bars - 1]);
    let k: Vec<_> = x.iter().map(|x| linear(&p.key, &p.key_bias, x)).collect();
    let v: Vec<_> = x.iter().map(|x| linear(&p.value, &p.value_bias, x)).collect();
    let size = shape.head_width();
    let factor = T::exact(1.0 / (size as f64).sqrt());
    let (mut probabilities, mut mixed) = (Vec::new(), Vec::new());
    for h in 0..shape.heads {
        let head = h * size..(h + 1) * size;
        let scores: Vec<T> =
            k.iter().map(|k| factor * dot(&q[head.clone()], k[head.clone()].iter().copied())).collect();
        let a = T::softmax(&scores, shape.score_chain());
        mixed.extend(head.map(|r| dot(&a, v.iter().map(|v| v[r]))));
        probabilities.push(a);
    }
    let o = linear(&p.output, &p.output_bias, &mixed);
    Forward { x, q, k, v, probabilities, mixed, o }
}

/// Adds one sample's gradient to `gradient`, from `dy` [d], the gradient of h2' = h2 + g o.
pub fn backward<T: Number>(
    shape: Shape,
    p: &Parameters<T>,
    window: &[T],
    of: &Forward<T>,
    dy: &[T],
    gradient: &mut Parameters<T>,
) {
    let zero = T::exact(0.0);
    gradient.gate[0] = gradient.gate[0] + dot(dy, of.o.iter().copied());
    let d_o: Vec<T> = dy.iter().map(|&dy| p.gate[0] * dy).collect();
    let d_mixed =
        linear_backward(&p.output, &mut gradient.output, &mut gradient.output_bias, &of.mixed, &d_o);
    let size = shape.head_width();
    let factor = T::exact(1.0 / (size as f64).sqrt());
    let mut dq = vec![zero; shape.width];
    let (mut dk, mut dv) =
        (vec![vec![zero; shape.width]; shape.bars], vec![vec![zero; shape.width]; shape.bars]);
    for h in 0..shape.heads {
        let head = h * size..(h + 1) * size;
        let a = &of.probabilities[h];
        let da: Vec<T> =
            of.v.iter().map(|v| dot(&d_mixed[head.clone()], v[head.clone()].iter().copied())).collect();
        let mean = dot(a, da.iter().copied());
        for w in 0..shape.bars {
            let ds = factor * (a[w] * (da[w] - mean));
            for r in head.clone() {
                dv[w][r] = a[w] * d_mixed[r];
                dk[w][r] = ds * of.q[r];
                dq[r] = dq[r] + ds * of.k[w][r];
            }
        }
    }
    let mut dx = vec![vec![zero; shape.width]; shape.bars];
    let last = shape.bars - 1;
    let g = gradient;
    add_to(&mut dx[last], &linear_backward(&p.query, &mut g.query, &mut g.query_bias, &of.x[last], &dq));
    for w in 0..shape.bars {
        let from_key = linear_backward(&p.key, &mut g.key, &mut g.key_bias, &of.x[w], &dk[w]);
        let from_value = linear_backward(&p.value, &mut g.value, &mut g.value_bias, &of.x[w], &dv[w]);
        add_to(&mut dx[w], &from_key);
        add_to(&mut dx[w], &from_value);
        let bar = &window[w * shape.features..][..shape.features];
        // The gradient of the window itself is not asked for.
        let _ = linear_backward(&p.embedding, &mut g.embedding, &mut g.embedding_bias, bar, &dx[w]);
        add_to(&mut g.positions[w * shape.width..][..shape.width], &dx[w]);
    }
}
