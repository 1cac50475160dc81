//! `[mamba]`: the Mamba-2 block over the window's bars (SPEC section 2) and where its tensors lie.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::model::{Builder, Layout, ModelShape};
use crate::parts::{check, invalid};

/// Most channels and largest state of the block.
pub const MAX_WIDTH: usize = 128;
/// Most bars that the block's convolution reaches over.
pub const MAX_CONV: usize = 4;

/// `[mamba]`: a Mamba-2 block over the window's bars beside the first trunk layer, h1 = lrelu(W1 s + b1 + gate * m).
///
/// Dao and Gu, "Transformers are SSMs" (2024), section 7, with one group and without expansion: the heads' channels are
/// as many as the embedding's. The window is the first `model.window` * `model.bar_features` entries of a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mamba {
    /// Whether the first trunk layer has the block beside it.
    pub enabled: bool,
    /// U: width of the embedded bars and channels of all heads together; a multiple of 4 and of `heads`.
    pub width: usize,
    /// Heads; each has a step size and a decay of its own.
    pub heads: usize,
    /// N: numbers of a channel's state.
    pub state: usize,
    /// Bars that the causal convolution reaches over, the current one included.
    #[schemars(extend("unit" = "bars"))]
    pub conv: usize,
}

impl Default for Mamba {
    fn default() -> Self {
        Self { enabled: false, width: 32, heads: 4, state: 16, conv: 4 }
    }
}

impl Mamba {
    /// U + 2 N: channels of the convolution.
    pub fn channels(&self) -> usize {
        self.width + 2 * self.state
    }

    /// Rows of the input projection: gate, channels, step sizes.
    pub fn rows(&self) -> usize {
        self.width + self.channels() + self.heads
    }

    /// Checks values, and the combinations with a checked shape.
    pub(crate) fn check(&self, shape: &ModelShape) -> Result<(), ConfigError> {
        let within = |key: &str, value: usize, high: usize| {
            check(key, value, (1..=high).contains(&value), &format!("1 to {high}"))
        };
        within("mamba.width", self.width, MAX_WIDTH)?;
        check("mamba.width", self.width, self.width.is_multiple_of(4), "a multiple of 4")?;
        within("mamba.heads", self.heads, MAX_WIDTH)?;
        within("mamba.state", self.state, MAX_WIDTH)?;
        within("mamba.conv", self.conv, MAX_CONV)?;
        if !self.width.is_multiple_of(self.heads) {
            return invalid(format!(
                "mamba.heads = {}, mamba.width = {}: the width is split into the heads, so it must be a multiple",
                self.heads, self.width
            ));
        }
        if !self.enabled {
            return Ok(());
        }
        for (key, value) in [("model.window", shape.window), ("model.bar_features", shape.bar_features)] {
            if value == 0 {
                return invalid(format!(
                    "mamba.enabled = true, {key} = 0: the block needs states that begin with a window of bars"
                ));
            }
        }
        Ok(())
    }

    /// Embedding, input projection, convolution, step sizes, decays, skip and norm one behind the other without a gap,
    /// so that they are one block in memory; then the output projection to H1 and the gate (0 at first: no effect at
    /// step 0).
    pub(crate) fn layout(&self, shape: &ModelShape) -> Layout {
        let (width, features, rows, channels) =
            (self.width, shape.bar_features, self.rows(), self.channels());
        let mut b = Builder::default();
        for (name, axes, fan_in) in [
            ("mamba.emb.weight", vec![width, features], features),
            ("mamba.emb.bias", vec![width], features),
            ("mamba.in.weight", vec![rows, width], width),
            ("mamba.conv.weight", vec![channels, self.conv], self.conv),
            ("mamba.conv.bias", vec![channels], self.conv),
            ("mamba.dt_bias", vec![self.heads], 0),
            ("mamba.a_log", vec![self.heads], 0),
            ("mamba.skip", vec![self.heads], 0),
            ("mamba.norm", vec![width], 0),
        ] {
            let len = axes.iter().product();
            b.push(name.into(), axes, fan_in, len, name == "mamba.emb.weight");
        }
        b.linear("mamba.out", shape.trunk1, width);
        b.push("mamba.gate".into(), vec![1], 0, 1, true);
        b.finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Flat, Group, ModelShape};

    fn market() -> ModelShape {
        ModelShape { state: 80, window: 8, bar_features: 9, ..Default::default() }
    }

    fn message(sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        config.model.state = 80;
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn the_documented_count_at_the_defaults() {
        let mut config = Config { model: market(), ..Config::default() };
        config.mamba.enabled = true;
        config.check().unwrap();
        assert_eq!(config.parts().enabled(), ["mamba"]);
        assert!(!config.parts().budgeted());
        let flat = Flat::new(&config.model, &config.parts());
        assert_eq!(flat.counts().last(), Some(&("mamba block", 12_333)));
        let segment = flat.segment(Group::Mamba).unwrap();
        assert_eq!(flat.target_len(), segment.offset + segment.len);
        assert!(flat.segment(Group::Attention).is_none());
    }

    #[test]
    fn what_lies_before_the_output_has_no_gap() {
        let mut config = Config { model: market(), ..Config::default() };
        (config.mamba.enabled, config.mamba.width, config.mamba.heads) = (true, 12, 3);
        (config.mamba.state, config.mamba.conv) = (5, 3);
        let flat = Flat::new(&config.model, &config.parts());
        let tensors: Vec<_> = flat.tensors().filter(|t| t.name.starts_with("mamba.")).collect();
        assert_eq!(tensors.len(), 12);
        for pair in tensors[..9].windows(2) {
            assert_eq!(pair[0].offset + pair[0].len(), pair[1].offset, "{pair:?}");
        }
    }

    #[test]
    fn values_and_combinations_that_cannot_work_name_their_keys() {
        for (sets, expected) in [
            (&["mamba.width=30"][..], "mamba.width = 30: expected a multiple of 4"),
            (&["mamba.width=132"], "mamba.width = 132: expected 1 to 128"),
            (&["mamba.heads=0"], "mamba.heads = 0: expected 1 to 128"),
            (&["mamba.state=0"], "mamba.state = 0: expected 1 to 128"),
            (&["mamba.conv=5"], "mamba.conv = 5: expected 1 to 4"),
        ] {
            assert_eq!(message(sets), expected);
        }
        let heads = message(&["mamba.heads=3"]);
        assert!(heads.starts_with("mamba.heads = 3, mamba.width = 32: "), "{heads}");
        let window = message(&["mamba.enabled=true"]);
        assert!(window.starts_with("mamba.enabled = true, model.window = 0: "), "{window}");
    }
}
