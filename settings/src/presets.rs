//! Named configurations: what a file of `presets/` sets, laid over the defaults.

use crate::config::{Config, ConfigError};
use crate::keys::nearest;

/// A named configuration.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// As given to `--preset`.
    pub name: &'static str,
    /// What it is for, one line.
    pub meaning: &'static str,
    /// The TOML text of what differs from the defaults.
    pub text: &'static str,
}

/// All presets. A file in `presets/` and a row here make one.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "market-cpu",
        meaning: "bars, on a machine without a GPU: a small C51 learner that ends within minutes on two cores",
        text: include_str!("presets/market-cpu.toml"),
    },
    Preset {
        name: "market-quick",
        meaning: "bars, on a GPU: C51 alone at the default size, a few epochs, to see whether there is anything to learn",
        text: include_str!("presets/market-quick.toml"),
    },
    Preset {
        name: "market-full",
        meaning: "bars, on a GPU: the losses and parts that did no harm in an ablation, n-step returns, a cosine schedule",
        text: include_str!("presets/market-full.toml"),
    },
    Preset {
        name: "cartpole",
        meaning: "the control task CartPole-v1: 10^6 steps of the environments",
        text: include_str!("presets/cartpole.toml"),
    },
    Preset {
        name: "acrobot",
        meaning: "the control task Acrobot-v1: 10^6 steps of the environments",
        text: include_str!("presets/acrobot.toml"),
    },
    Preset {
        name: "bit_flip",
        meaning: "30 bits to flip to a goal, with hindsight: 10^6 steps of the environments",
        text: include_str!("presets/bit_flip.toml"),
    },
    Preset {
        name: "p1-core",
        meaning: "workload of the benchmarks: batch 1024, C51 alone",
        text: include_str!("presets/p1-core.toml"),
    },
    Preset {
        name: "p1",
        meaning: "workload of the benchmarks: p1-core with CQL, IQN, IQL, attention and spectral norm",
        text: include_str!("presets/p1.toml"),
    },
    Preset {
        name: "p2",
        meaning: "workload of the benchmarks: batch 16384, a wider trunk, four branches, gated heads, the parts of p1",
        text: include_str!("presets/p2.toml"),
    },
    Preset {
        name: "p2-full",
        meaning: "workload of the benchmarks: p2 with Mamba-2, ensemble, confidence head, noisy heads and pruning",
        text: include_str!("presets/p2-full.toml"),
    },
];

/// The preset of that name.
///
/// # Errors
/// [`ConfigError::Invalid`] with the nearest name and all names.
pub fn find(name: &str) -> Result<&'static Preset, ConfigError> {
    let names = || PRESETS.iter().map(|preset| preset.name);
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let near = nearest(name, names()).map_or(String::new(), |near| format!("; did you mean {near}?"));
        let all = names().collect::<Vec<_>>().join(", ");
        ConfigError::Invalid(format!("there is no preset {name}{near} (presets: {all})"))
    })
}

/// Names and meanings, a line each.
pub fn list() -> String {
    let width = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    PRESETS.iter().map(|preset| format!("{:width$}  {}\n", preset.name, preset.meaning)).collect()
}

impl Preset {
    /// The configuration: the defaults with what the preset sets.
    ///
    /// # Errors
    /// [`ConfigError::Parse`] for a text that is no configuration; a test reads all of them.
    pub fn config(&self) -> Result<Config, ConfigError> {
        Config::layered(&Config::default(), Some((&format!("preset {}", self.name), self.text)), &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_a_configuration_that_passes_the_check() {
        for preset in PRESETS {
            let mut config = preset.config().unwrap();
            // What a market or a task fills in.
            if config.model.state == 0 {
                config.model.state = 80;
                if config.task.is_market() {
                    (config.model.window, config.model.bar_features) = (8, 9);
                }
            }
            config.check().unwrap_or_else(|error| panic!("{}: {error}", preset.name));
        }
    }

    #[test]
    fn every_file_is_in_the_table() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/presets");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut names: Vec<String> = PRESETS.iter().map(|preset| format!("{}.toml", preset.name)).collect();
        names.sort();
        assert_eq!(files, names);
    }

    #[test]
    fn an_unknown_preset_names_the_nearest() {
        let text = find("market-qick").unwrap_err().to_string();
        assert!(text.contains("did you mean market-quick?") && text.contains("p2-full"), "{text}");
        assert!(list().lines().count() == PRESETS.len());
    }

    /// The numbers of SPEC section 9, as the profile's workloads were written out before they were presets.
    #[test]
    fn the_workloads_are_those_of_the_benchmarks() {
        let core = find("p1-core").unwrap().config().unwrap();
        let mut expected = Config::default();
        (expected.model.state, expected.model.window, expected.model.bar_features) = (80, 8, 9);
        assert_eq!(core, expected);
        let on = |config: &mut Config| {
            for enabled in [
                &mut config.cql.enabled,
                &mut config.iqn.enabled,
                &mut config.iql.enabled,
                &mut config.attention.enabled,
                &mut config.spectral.enabled,
            ] {
                *enabled = true;
            }
        };
        on(&mut expected);
        assert_eq!(find("p1").unwrap().config().unwrap(), expected);
        expected.train.batch = 16_384;
        let model = &mut expected.model;
        (model.state, model.window, model.bar_features) = (128, 12, 10);
        (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (512, 512, 32, 32);
        (model.branches, model.head) = (vec![9, 3, 3, 5], crate::Head::Glu);
        expected.iqn.hidden = 256;
        assert_eq!(find("p2").unwrap().config().unwrap(), expected);
        (expected.mamba.enabled, expected.ensemble.enabled, expected.confidence.enabled) = (true, true, true);
        (expected.model.noisy, expected.pruning.enabled) = (true, true);
        assert_eq!(find("p2-full").unwrap().config().unwrap(), expected);
    }
}
