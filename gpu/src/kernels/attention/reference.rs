//! Reference of the attention: the definition token by token in f64, with full projections and nothing folded, forward and
//! backward. [`folded`] says how far the kernels, which group the same products differently, may be from it.

pub mod folded;

use crate::reference::Bounded;

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

    /// 1 / sqrt(d_h), which the kernels round twice.
    fn factor(self) -> Bounded {
        let factor = 1.0 / (self.head_width() as f64).sqrt();
        Bounded { value: factor, scale: 2.0 * factor }
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

impl<T: Clone + Default> Parameters<T> {
    /// Every parameter 0.
    pub fn zero(shape: Shape) -> Parameters<T> {
        Parameters::from_tensors(tensor_sizes(shape).map(|(_, len)| vec![T::default(); len]))
    }
}

/// Everything that one sample's forward gives.
#[derive(Clone, Debug)]
pub struct Forward {
    /// Tokens x_w, [W][d].
    x: Vec<Vec<f64>>,
    /// q, [d].
    q: Vec<f64>,
    /// k_w and v_w, [W][d].
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    /// Probabilities, [heads][W].
    pub probabilities: Vec<Vec<f64>>,
    /// The heads' outputs side by side, [d].
    mixed: Vec<f64>,
    /// o, [d].
    pub o: Vec<f64>,
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|e| e / sum).collect()
}

fn dot(a: &[f64], b: impl IntoIterator<Item = f64>) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// W x + b.
fn linear(weight: &[f64], bias: &[f64], x: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).zip(bias).map(|(row, &bias)| dot(row, x.iter().copied()) + bias).collect()
}

fn add_to(sum: &mut [f64], terms: &[f64]) {
    for (sum, &term) in sum.iter_mut().zip(terms) {
        *sum += term;
    }
}

/// Adds the gradient of `linear` to its parameters and returns that of x.
fn linear_backward(weight: &[f64], dw: &mut [f64], db: &mut [f64], x: &[f64], dy: &[f64]) -> Vec<f64> {
    let mut dx = vec![0.0; x.len()];
    for (r, &dy) in dy.iter().enumerate() {
        for (c, &x) in x.iter().enumerate() {
            let at = r * dx.len() + c;
            dw[at] += dy * x;
            dx[c] += dy * weight[at];
        }
    }
    add_to(db, dy);
    dx
}

/// One sample: window [W, F], oldest bar first.
pub fn forward(shape: Shape, p: &Parameters<f64>, window: &[f64]) -> Forward {
    let tokens = window.chunks_exact(shape.features).zip(p.positions.chunks_exact(shape.width));
    let x: Vec<Vec<f64>> = tokens
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
    let factor = 1.0 / (size as f64).sqrt();
    let (mut probabilities, mut mixed) = (Vec::new(), Vec::new());
    for h in 0..shape.heads {
        let head = h * size..(h + 1) * size;
        let scores: Vec<f64> =
            k.iter().map(|k| factor * dot(&q[head.clone()], k[head.clone()].iter().copied())).collect();
        let a = softmax(&scores);
        mixed.extend(head.map(|r| dot(&a, v.iter().map(|v| v[r]))));
        probabilities.push(a);
    }
    let o = linear(&p.output, &p.output_bias, &mixed);
    Forward { x, q, k, v, probabilities, mixed, o }
}

/// Adds one sample's gradient to `gradient`, from `dy` [d], the gradient of h2' = h2 + g o.
pub fn backward(
    shape: Shape,
    p: &Parameters<f64>,
    window: &[f64],
    of: &Forward,
    dy: &[f64],
    gradient: &mut Parameters<f64>,
) {
    gradient.gate[0] += dot(dy, of.o.iter().copied());
    let d_o: Vec<f64> = dy.iter().map(|&dy| p.gate[0] * dy).collect();
    let d_mixed =
        linear_backward(&p.output, &mut gradient.output, &mut gradient.output_bias, &of.mixed, &d_o);
    let size = shape.head_width();
    let factor = 1.0 / (size as f64).sqrt();
    let mut dq = vec![0.0; shape.width];
    let (mut dk, mut dv) =
        (vec![vec![0.0; shape.width]; shape.bars], vec![vec![0.0; shape.width]; shape.bars]);
    for h in 0..shape.heads {
        let head = h * size..(h + 1) * size;
        let a = &of.probabilities[h];
        let da: Vec<f64> =
            of.v.iter().map(|v| dot(&d_mixed[head.clone()], v[head.clone()].iter().copied())).collect();
        let mean = dot(a, da.iter().copied());
        for w in 0..shape.bars {
            let ds = factor * (a[w] * (da[w] - mean));
            for r in head.clone() {
                dv[w][r] = a[w] * d_mixed[r];
                dk[w][r] = ds * of.q[r];
                dq[r] += ds * of.k[w][r];
            }
        }
    }
    let mut dx = vec![vec![0.0; shape.width]; shape.bars];
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
