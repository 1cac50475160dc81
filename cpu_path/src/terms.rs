//! Loss terms on the main parameters and their budgets (SPEC section 3, gradient budgets).

use settings::{Budgets, Group};

use crate::hyper::decimal;
use crate::optimizer::{clip_scale, norm};
use crate::real::Real;

/// A loss term whose gradient reaches the main parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Cross-entropy of the value distribution.
    C51,
    /// Conservative term.
    Cql,
    /// Quantile loss; it reaches the trunk only.
    Iqn,
    /// Ensemble and confidence head together; they reach the trunk only.
    Auxiliary,
}

impl Term {
    /// Name of its norm in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::C51 => "c51",
            Self::Cql => "cql",
            Self::Iqn => "iqn_trunk",
            Self::Auxiliary => "aux_trunk",
        }
    }

    /// Its fraction of max_grad_norm.
    pub fn budget(self, budgets: &Budgets) -> f64 {
        decimal(match self {
            Self::C51 => budgets.c51,
            Self::Cql => budgets.cql,
            Self::Iqn => budgets.iqn,
            Self::Auxiliary => budgets.aux,
        })
    }
}

/// A term's gradient on the main parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct TermGradient<T> {
    /// Which term.
    pub term: Term,
    /// Before its budget, in the main network's flat layout.
    pub gradient: Vec<T>,
    /// Its norm.
    pub norm: f64,
    /// min(1, f max_grad_norm / (norm + 1e-6)); 1 for a term that is alone.
    pub scale: f64,
}

/// Gradient of a group with an Adam of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnGradient<T> {
    /// Which group.
    pub group: Group,
    /// Before its clip, in the group's flat layout.
    pub gradient: Vec<T>,
    /// Its norm.
    pub norm: f64,
    /// min(1, max_grad_norm / (norm + 1e-6)).
    pub scale: f64,
}

impl<T: Real> OwnGradient<T> {
    /// A group's gradient, with the clip by its own norm.
    pub fn new(group: Group, gradient: Vec<T>, max_norm: f64) -> Self {
        let norm = norm(&gradient);
        Self { group, gradient, norm, scale: clip_scale(norm, max_norm) }
    }
}

/// Scales each term to its budget and sums them in order; a single term is neither scaled nor changed.
///
/// # Panics
/// If there is no term, or their gradients differ in length.
pub fn combine<T: Real>(
    gradients: Vec<(Term, Vec<T>)>,
    budgets: &Budgets,
    max_norm: f64,
) -> (Vec<TermGradient<T>>, Vec<T>) {
    let alone = gradients.len() == 1;
    let terms = gradients.into_iter().map(|(term, gradient)| {
        let norm = norm(&gradient);
        let scale = if alone { 1.0 } else { clip_scale(norm, term.budget(budgets) * max_norm) };
        TermGradient { term, gradient, norm, scale }
    });
    let terms: Vec<_> = terms.collect();
    let mut sum = vec![T::default(); terms[0].gradient.len()];
    for term in &terms {
        assert_eq!(term.gradient.len(), sum.len(), "all terms are gradients of the main parameters");
        let scale = T::from_f64(term.scale);
        sum.iter_mut().zip(&term.gradient).for_each(|(sum, &g)| *sum += scale * g);
    }
    (terms, sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_term_is_not_scaled() {
        let (terms, sum) = combine(vec![(Term::C51, vec![300.0_f64, -0.25])], &Budgets::default(), 10.0);
        assert_eq!((terms[0].scale, sum), (1.0, vec![300.0, -0.25]));
    }

    #[test]
    fn terms_above_their_budget_are_scaled_and_those_below_are_not_touched() {
        let gradients = vec![(Term::C51, vec![30.0_f64, 40.0]), (Term::Iqn, vec![0.5, 0.0])];
        let (terms, sum) = combine(gradients, &Budgets::default(), 10.0);
        let scale = 6.0 / (50.0 + 1e-6);
        assert_eq!(terms.iter().map(|t| (t.norm, t.scale)).collect::<Vec<_>>(), [(50.0, scale), (0.5, 1.0)]);
        assert_eq!(sum, [scale * 30.0 + 0.5, scale * 40.0]);
    }
}
