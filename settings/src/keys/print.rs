//! All keys in words: the reference page, and a configuration with a comment above every key.

use std::fmt::Write as _;

use super::{Key, Section, sections};
use crate::config::Config;

/// A configuration as TOML with every key's meaning above it. Keys that are not set stand there as comments.
pub fn commented(config: &Config) -> String {
    let sections = sections();
    let (mut text, mut section) = (String::new(), None::<&Section>);
    let mut written: Vec<&str> = Vec::new();
    let toml = config.to_toml();
    let end = |text: &mut String, section: Option<&Section>, written: &[&str]| {
        let Some(section) = section else { return };
        for key in section.keys.iter().filter(|key| !written.contains(&key.last())) {
            let _ = writeln!(text, "{}# {} =", comment(key), key.last());
        }
    };
    for line in toml.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            end(&mut text, section, &written);
            written.clear();
            section = sections.iter().find(|section| section.name == name);
            let meaning = section.map_or("", |section| section.meaning.as_str());
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{gap}# {meaning}\n{line}\n");
            continue;
        }
        let key = line.split_once(" = ").map(|(key, _)| key);
        if let (Some(section), Some(name)) = (section, key)
            && let Some(key) = section.keys.iter().find(|key| key.last() == name)
        {
            text.push_str(&comment(key));
            written.push(name);
        }
        if !line.is_empty() {
            text.push_str(line);
            text.push('\n');
        }
    }
    end(&mut text, section, &written);
    text
}

/// The reference page: a table of every section.
pub fn reference() -> String {
    let defaults = toml::from_str::<toml::Table>(&Config::default().to_toml()).unwrap_or_default();
    let mut page = String::from(
        "# Configuration\n\n\
         Made from the types and their comments by `settings::keys`; do not edit (a test compares it, and says how to \
         write it anew).\n\n\
         Every key can stand in a TOML file (`--config run.toml`) or be set on the command line (`--set \
         train.batch=512`); what is set later wins: preset (`--preset NAME`), file, `--set`. `host config` prints the \
         result of all three with these meanings as comments. An unknown key or a value of another type is an error \
         that names the nearest key or both types.\n\n## Presets\n\n",
    );
    for preset in crate::presets::PRESETS {
        let _ = writeln!(page, "- `{}`: {}", preset.name, preset.meaning);
    }
    for section in sections() {
        let _ = write!(
            page,
            "\n## [{}]\n\n{}\n\n| key | type | default | unit | meaning |\n|---|---|---|---|---|\n",
            section.name, section.meaning
        );
        for key in &section.keys {
            let default = defaults.get(&section.name).and_then(|table| table.get(key.last()));
            let default = default.map_or("absent".into(), |value| format!("`{value}`"));
            let _ = writeln!(
                page,
                "| `{}` | {} | {default} | {} | {} |",
                key.last(),
                key.kind.replace('|', "\\|"),
                key.unit.as_deref().unwrap_or(""),
                key.meaning.replace('|', "\\|")
            );
        }
    }
    page
}

fn comment(key: &Key) -> String {
    let unit = key.unit.as_ref().map_or(String::new(), |unit| format!(" Unit: {unit}."));
    format!("# {}{unit} ({})\n", key.meaning, key.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commented_configuration_reads_back_and_holds_every_key() {
        let mut config = Config::cpu_preset();
        config.model.branches = vec![3, 3, 3, 3];
        let text = commented(&config);
        assert_eq!(Config::layered(&Config::default(), Some(("x", &text)), &[]).unwrap(), config);
        for section in sections() {
            for key in &section.keys {
                let lines = [format!("\n{} = ", key.last()), format!("\n# {} =\n", key.last())];
                assert!(lines.iter().any(|line| text.contains(line)), "{} is missing in\n{text}", key.name);
            }
        }
        assert!(
            text.contains(
                "\n# B: samples per training step. Unit: samples. (an integer, 0 or more)\nbatch = 256\n"
            ),
            "{text}"
        );
    }

    /// `STEPGRAPH_WRITE_DOCS=1 cargo test -p settings reference` writes the page anew.
    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/CONFIGURATION.md");
        if std::env::var_os("STEPGRAPH_WRITE_DOCS").is_some() {
            std::fs::write(&path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(
            page == reference(),
            "docs/CONFIGURATION.md is not what the types say; write it anew with\n  STEPGRAPH_WRITE_DOCS=1 cargo test -p \
             settings reference"
        );
    }
}
