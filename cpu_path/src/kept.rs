//! What a learner keeps from step to step beside its networks, and its whole state for a checkpoint.

use crate::c51::Support;
use crate::error::CpuError;
use crate::group::check_len;
use crate::hyper::decimal;
use crate::learner::Learner;
use crate::real::Real;
use crate::state::LearnerState;
use crate::values::Evaluation;
use crate::{confidence, iql};

/// 1 for true.
fn flag<T: Real>(on: bool) -> T {
    T::from_f64(f64::from(u8::from(on)))
}

impl<T: Real> Learner<T> {
    /// The exploration rate that the value networks set, from their first accepted step on; none where they do not.
    pub fn epsilon(&self) -> Option<f64> {
        (self.parts.iql.adaptive_epsilon && self.kept.started).then(|| self.kept.epsilon.to_f64())
    }

    /// Lowest and highest atom of the value distribution, which move where the support adapts.
    pub fn support(&self) -> [f64; 2] {
        self.support.ends()
    }

    /// What an accepted step leaves for the next one: the value networks' averages and support, the confidence head's
    /// median and signals.
    pub(crate) fn advance(&mut self, e: &Evaluation<T>) {
        if let Some(iql) = &e.iql {
            self.kept.advance(&self.parts.iql, &iql.derived);
            if self.parts.iql.adaptive_support {
                let [low, high] = Support::new(&self.shape).ends();
                let ends = self.support.ends();
                let ends = iql::moved_support(&self.parts.iql, ends, iql.derived.quantiles, high - low);
                // A checkpoint holds them in the learner's precision.
                let [low, high] = ends.map(|x| T::from_f64(x).to_f64());
                self.support = Support::between(low, high, self.shape.atoms);
            }
        }
        if e.confidence.is_some() {
            let mean = |x: &[T]| x.iter().map(|x| x.to_f64()).sum::<f64>() / x.len() as f64;
            let signals = [
                e.loss.to_f64(),
                mean(&e.td),
                e.mean_q,
                e.mean_next_q,
                mean(&e.clipped_low),
                mean(&e.clipped_high),
                e.gradient_norm,
                e.iql.as_ref().map_or(0.0, |iql| iql.derived.gap),
            ];
            self.confidence.advance(decimal(self.parts.confidence.rate), &e.td, signals);
        }
    }

    /// What a step reports of it, after the step.
    pub(crate) fn kept_metrics(&self, e: &Evaluation<T>) -> Vec<(&'static str, f64)> {
        let mut kept = Vec::new();
        if let Some(iql) = &e.iql {
            kept.extend([("iql_gap", iql.derived.gap), ("iql_epsilon", self.kept.epsilon.to_f64())]);
            if self.parts.iql.adaptive_support {
                let [low, high] = self.support.ends();
                kept.extend([("v_min", low), ("v_max", high)]);
            }
        }
        if e.confidence.is_some() {
            kept.push(("td_median", self.confidence.median.to_f64()));
        }
        kept
    }

    /// Copies the whole state for a checkpoint.
    pub fn export(&self) -> LearnerState<T> {
        LearnerState {
            online: self.networks.gather(|g| g.values()),
            target: self.networks.target_values().to_vec(),
            m: self.networks.gather(|g| &g.adam().m),
            v: self.networks.gather(|g| &g.adam().v),
            spectral: self.spectral.concat(),
            pruned: self.mask.as_ref().map_or(Vec::new(), |mask| mask.pruned.clone()),
            iql: self.export_iql(),
            confidence: self.export_confidence(),
            step: self.step,
            skipped: self.skipped,
            skipped_in_row: self.skipped_in_row,
        }
    }

    fn export_iql(&self) -> Vec<T> {
        if !self.parts.iql.enabled {
            return Vec::new();
        }
        let [low, high] = self.support.ends().map(T::from_f64);
        vec![self.kept.gap, self.kept.size, flag(self.kept.started), self.kept.epsilon, low, high]
    }

    fn export_confidence(&self) -> Vec<T> {
        if !self.parts.confidence.enabled {
            return Vec::new();
        }
        let kept = &self.confidence;
        [&[kept.median, kept.mean, flag(kept.started)], &kept.signals[..]].concat()
    }

    /// Goes on from an exported state of a learner with the same shape and parts; the learner is unchanged on an error.
    ///
    /// # Errors
    /// A vector of the wrong length, or a value that no run can have written.
    pub fn import(&mut self, state: LearnerState<T>) -> Result<(), CpuError> {
        state.check(self.networks.flat(), self.spectral.iter().map(Vec::len).sum())?;
        let masked = self.mask.as_ref().map_or(0, |mask| mask.pruned.len());
        check_len("learner state: pruned", state.pruned.len(), masked)?;
        self.networks.restore(&state.online, state.target, &state.m, &state.v)?;
        if let Some(mask) = &mut self.mask {
            mask.pruned = state.pruned;
        }
        let mut rest = &state.spectral[..];
        for u in &mut self.spectral {
            let (own, behind) = rest.split_at(u.len());
            u.copy_from_slice(own);
            rest = behind;
        }
        if let [gap, size, started, epsilon, low, high] = state.iql[..] {
            self.kept = iql::Kept { gap, size, started: started.to_f64() != 0.0, epsilon };
            // A step moves the support only where it adapts; elsewhere it is the configuration's, unrounded.
            if self.parts.iql.adaptive_support && self.kept.started {
                self.support = Support::between(low.to_f64(), high.to_f64(), self.shape.atoms);
            }
        }
        if let [median, mean, started, signals @ ..] = &state.confidence[..] {
            let started = started.to_f64() != 0.0;
            self.confidence = confidence::Kept { median: *median, mean: *mean, started, ..self.confidence };
            self.confidence.signals.copy_from_slice(signals);
        }
        self.step = state.step;
        self.skipped = state.skipped;
        self.skipped_in_row = state.skipped_in_row;
        Ok(())
    }
}
