//! The vaccine (SPEC section 3): a gradient does not go against that of held-out data.

use crate::real::Real;

/// Takes what is against `held_out` away from `gradient`: if <g, v> < 0 then g -= (<g, v> / |v|^2) v. Returns the cosine of
/// the two before; 0 where one of them is zero, not finite where one of them is not.
pub fn project<T: Real>(gradient: &mut [T], held_out: &[T]) -> f64 {
    let dot = |a: &[T], b: &[T]| a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum::<f64>();
    let (inner, square) = (dot(gradient, held_out), dot(held_out, held_out));
    let length = dot(gradient, gradient).sqrt() * square.sqrt();
    if inner < 0.0 && square > 0.0 {
        let factor = T::from_f64(inner / square);
        gradient.iter_mut().zip(held_out).for_each(|(g, &v)| *g -= factor * v);
    }
    if length == 0.0 { 0.0 } else { inner / length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_against_the_held_out_gradient_goes() {
        let mut against = [1.0_f64, -2.0];
        let cosine = project(&mut against, &[0.0, 4.0]);
        assert_eq!((against, cosine), ([1.0, 0.0], -2.0 / 5.0_f64.sqrt()));
        let mut along = [1.0_f64, 2.0];
        assert!(project(&mut along, &[3.0, 4.0]) > 0.0);
        assert_eq!(along, [1.0, 2.0]);
        let mut any = [1.0_f64, 2.0];
        assert_eq!(project(&mut any, &[0.0, 0.0]), 0.0);
        assert!(project(&mut any, &[f64::NAN, 0.0]).is_nan());
        assert_eq!(any, [1.0, 2.0]);
    }
}
