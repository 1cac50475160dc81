//! The projection in f64, on the whole sum of the terms.

/// g - min(0, <g, v>) / |v|^2 v, and the cosine of g and v.
pub fn project(g: &[f64], v: &[f64]) -> (Vec<f64>, f64) {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (inner, square) = (dot(g, v), dot(v, v));
    let factor = if inner < 0.0 && square > 0.0 { inner / square } else { 0.0 };
    let projected = g.iter().zip(v).map(|(g, v)| g - factor * v).collect();
    (projected, inner / (dot(g, g) * square).sqrt())
}
