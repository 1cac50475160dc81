//! Mean and standard deviation per feature, fitted once on training rows and stored with the model.

use serde::{Deserialize, Serialize};

use crate::error::BarError;

/// z = (x - mean) / std per feature, then clamped to -clip ..= clip.
///
/// The numbers are serialised as decimal text that reads back to the same bits in every format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normaliser {
    /// Mean per feature.
    #[serde(with = "exact::list")]
    pub mean: Vec<f64>,
    /// Standard deviation per feature (divisor n, not n - 1); 1 for a feature that is constant.
    #[serde(with = "exact::list")]
    pub std: Vec<f64>,
    /// Largest magnitude of a normalised value.
    #[serde(with = "exact")]
    pub clip: f64,
}

impl Normaliser {
    /// Fits on rows of `width` values each.
    ///
    /// # Errors
    /// If there is no row, a value is not finite, or the clip is not positive.
    ///
    /// # Panics
    /// If a row has another width.
    pub fn fit<'a>(
        width: usize,
        rows: impl Iterator<Item = &'a [f64]> + Clone,
        clip: f64,
    ) -> Result<Self, BarError> {
        if clip.is_nan() || clip <= 0.0 {
            return Err(BarError::option("clip", clip, "expected a positive number of standard deviations"));
        }
        let mut sums = vec![0.0; width];
        let mut extremes = vec![(f64::INFINITY, f64::NEG_INFINITY); width];
        let mut count = 0_usize;
        for row in rows.clone() {
            assert_eq!(row.len(), width, "rows have one value per feature");
            count += 1;
            for ((sum, (low, high)), &x) in sums.iter_mut().zip(&mut extremes).zip(row) {
                *sum += x;
                (*low, *high) = (low.min(x), high.max(x));
            }
        }
        if count == 0 {
            return Err(BarError::Split("no row to fit the normaliser on".to_owned()));
        }
        let mean: Vec<f64> = sums.iter().map(|sum| sum / count as f64).collect();
        let mut squares = vec![0.0; width];
        for row in rows {
            for ((square, mean), x) in squares.iter_mut().zip(&mean).zip(row) {
                *square += (x - mean) * (x - mean);
            }
        }
        if let Some(feature) = squares.iter().position(|square: &f64| !square.is_finite()) {
            return Err(BarError::Split(format!(
                "feature {feature} is not finite or too large in the training part"
            )));
        }
        let std = squares.iter().zip(&extremes).map(|(square, (low, high))| {
            let std = (square / count as f64).sqrt();
            // The computed mean of equal values may be off by a rounding error, which must not become a scale.
            if low == high || std == 0.0 { 1.0 } else { std }
        });
        Ok(Self { std: std.collect(), mean, clip })
    }

    /// The z-score of feature `j` before clamping.
    pub fn z(&self, j: usize, x: f64) -> f64 {
        (x - self.mean[j]) / self.std[j]
    }

    /// Normalises one row.
    ///
    /// # Panics
    /// If the row or the output has another width than the fit.
    pub fn apply(&self, row: &[f64], out: &mut [f32]) {
        assert!(row.len() == self.mean.len() && out.len() == row.len(), "one value per feature");
        for (j, (x, out)) in row.iter().zip(out).enumerate() {
            *out = self.z(j, *x).clamp(-self.clip, self.clip) as f32;
        }
    }

    /// Refuses a normaliser from a file that is not one for `width` features.
    pub fn check(&self, width: usize) -> Result<(), BarError> {
        let sound = self.mean.len() == width
            && self.std.len() == width
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_finite() && *std > 0.0)
            && self.clip > 0.0;
        if sound {
            return Ok(());
        }
        let value = format!("{} means, {} deviations, clip {}", self.mean.len(), self.std.len(), self.clip);
        Err(BarError::option(
            "normaliser",
            value,
            format!("expected {width} finite means, deviations above 0, clip above 0"),
        ))
    }
}

/// f64 as its shortest decimal text that reads back to the same bits. JSON numbers would do in principle, but
/// readers differ in how exactly they read them, and a resumed run must be equal bit for bit.
pub(crate) mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:?}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a number")))
    }

    pub(crate) mod list {
        use serde::de::Error;
        use serde::{Deserialize, Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_seq(values.iter().map(|value| format!("{value:?}")))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
            Vec::<String>::deserialize(deserializer)?
                .iter()
                .map(|text| text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not a number"))))
                .collect()
        }
    }
}
