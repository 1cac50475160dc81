//! Optimizer settings at the learner's precision.

use settings::Schedule;

use crate::error::CpuError;

/// The decimal number a user wrote for an f32 setting, as f64.
///
/// Settings are f32 because the GPU step is. Widening `0.01_f32` gives 0.009999999776, which is 2e-8 off what
/// the user meant and would show in an f64 oracle that is right to 1e-12. The shortest decimal that names the
/// f32 is that intention; rounding the result to f32 gives the setting back, bit for bit.
pub fn decimal(setting: f32) -> f64 {
    match setting.to_string().parse::<f64>() {
        Ok(value) if value as f32 == setting => value,
        // NaN, or a decimal that a second rounding would move: the exact widening is always faithful.
        _ => f64::from(setting),
    }
}

/// `[optimizer]` as f64 (SPEC section 4). The f32 learner rounds each to f32 where it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// Learning rate, before the schedule.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to sqrt(v_hat), outside the root and after bias correction.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Global norm to which the gradient is clipped.
    pub max_grad_norm: f64,
    /// target += tau * (online - target), every step.
    pub tau: f64,
    /// How the learning rate changes from update to update.
    pub schedule: RateSchedule,
}

/// The learning rate's schedule (SPEC section 4), in updates; the default leaves the rate as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateSchedule {
    /// Updates over which the rate rises linearly, 0 for none.
    pub warmup: f64,
    /// Updates after the warm-up over which it falls, 0 for a constant rate.
    pub decay: f64,
    /// Fraction of the rate at the end of the decay.
    pub end: f64,
    /// Whether it falls on a line, else as half a cosine (Loshchilov and Hutter 2017, equation 5).
    pub linear: bool,
}

impl RateSchedule {
    /// What the rate is multiplied with in update number `t`, from 1.
    pub fn share(&self, t: u64) -> f64 {
        let t = t as f64;
        if t < self.warmup {
            return t / self.warmup;
        }
        if self.decay <= 0.0 || t <= self.warmup {
            return 1.0;
        }
        let left = ((self.warmup + self.decay - t) / self.decay).max(0.0);
        // (1 + cos(pi x)) / 2 with x = 1 - left, in the form that keeps its digits at the end.
        let share = if self.linear { left } else { (std::f64::consts::FRAC_PI_2 * left).sin().powi(2) };
        self.end + (1.0 - self.end) * share
    }
}

impl From<&settings::Optimizer> for Hyper {
    fn from(o: &settings::Optimizer) -> Self {
        Self {
            lr: decimal(o.lr),
            beta1: decimal(o.beta1),
            beta2: decimal(o.beta2),
            eps: decimal(o.eps),
            weight_decay: decimal(o.weight_decay),
            max_grad_norm: decimal(o.max_grad_norm),
            tau: decimal(o.tau),
            schedule: RateSchedule {
                warmup: o.warmup_steps as f64,
                decay: match o.schedule {
                    Schedule::Constant => 0.0,
                    _ => o.total_steps.saturating_sub(o.warmup_steps) as f64,
                },
                // A rate of 0 has no fractions; it stays 0.
                end: if o.lr > 0.0 { decimal(o.lr_end) / decimal(o.lr) } else { 0.0 },
                linear: o.schedule == Schedule::Linear,
            },
        }
    }
}

impl Hyper {
    /// The learning rate of update number `t`, from 1.
    pub fn rate(&self, t: u64) -> f64 {
        self.lr * self.schedule.share(t)
    }

    /// Refuses settings for which Adam, the clip or the target update is undefined.
    ///
    /// # Errors
    /// [`CpuError::Setting`] with key, value and range.
    pub fn check(&self) -> Result<(), CpuError> {
        let finite_from_zero = |x: f64| x.is_finite() && x >= 0.0;
        let decay = |x: f64| (0.0..1.0).contains(&x);
        // eps keeps 0/0 away from parameters whose gradient has always been zero, the padding for one.
        let f32_positive = |x: f64| x.is_finite() && x as f32 > 0.0;
        let rules = [
            ("lr", self.lr, finite_from_zero(self.lr), "a finite number, 0 or more"),
            ("beta1", self.beta1, decay(self.beta1), "0 <= beta1 < 1"),
            ("beta2", self.beta2, decay(self.beta2), "0 <= beta2 < 1"),
            ("eps", self.eps, f32_positive(self.eps), "a positive number that f32 can hold"),
            (
                "weight_decay",
                self.weight_decay,
                finite_from_zero(self.weight_decay),
                "a finite number, 0 or more",
            ),
            (
                "max_grad_norm",
                self.max_grad_norm,
                f32_positive(self.max_grad_norm),
                "a positive finite number",
            ),
            ("tau", self.tau, (0.0..=1.0).contains(&self.tau), "0 <= tau <= 1"),
            (
                "lr_end / lr",
                self.schedule.end,
                (0.0..=1.0).contains(&self.schedule.end),
                "a rate that does not rise",
            ),
        ];
        for (key, value, ok, expected) in rules {
            if !ok {
                return Err(CpuError::Setting { key, value, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_becomes_the_decimal_that_was_written() {
        assert_eq!(decimal(0.01), 0.01_f64);
        assert_eq!(decimal(1.5e-4), 1.5e-4_f64);
        assert_eq!(decimal(0.999), 0.999_f64);
        assert_eq!(decimal(-10.0), -10.0_f64);
        assert!(decimal(f32::NAN).is_nan());
        assert_eq!(decimal(f32::INFINITY), f64::INFINITY);
    }

    #[test]
    fn rounding_back_gives_the_setting_bit_for_bit() {
        // Every 9973rd bit pattern: both signs, all exponents, subnormals.
        for bits in (0..=u32::MAX).step_by(9973) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                assert_eq!((decimal(x) as f32).to_bits(), bits, "{x:e}");
            }
        }
    }

    #[test]
    fn a_bad_setting_names_key_and_value() {
        let hyper = Hyper { beta2: 1.0, ..Hyper::from(&settings::Optimizer::default()) };
        assert_eq!(hyper.check().unwrap_err().to_string(), "optimizer.beta2 = 1: expected 0 <= beta2 < 1");
        let hyper = Hyper { eps: 0.0, ..Hyper::from(&settings::Optimizer::default()) };
        assert!(hyper.check().unwrap_err().to_string().starts_with("optimizer.eps = 0: "));
        let hyper = Hyper { lr: f64::NAN, ..Hyper::from(&settings::Optimizer::default()) };
        assert!(hyper.check().is_err());
    }
}
