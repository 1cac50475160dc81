//! What may be set: every key of the configuration with its type, default, unit and meaning, read off the types of
//! [`Config`] and their doc comments. The reference page, the comments of a printed configuration and the errors about
//! unknown keys and wrong types are made of it, so that none of them can differ from what is read.

mod print;

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::config::Config;
pub use print::{commented, reference};

/// Keys further apart than this (1 is the same word) are no likely slip of one another.
const SIMILAR: f64 = 0.7;

/// One key.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Section and key, `train.batch`.
    pub name: String,
    /// What its value is, in words: `an integer, 0 or more`.
    pub kind: String,
    /// Whether it may be absent.
    pub optional: bool,
    /// Unit of the value, where it has one.
    pub unit: Option<String>,
    /// What it means, one line.
    pub meaning: String,
    /// Further names that are read.
    pub aliases: Vec<String>,
    /// What a value is checked against.
    schema: Value,
}

/// A section with its keys, in the order of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Its name, `train`.
    pub name: String,
    /// What it is for.
    pub meaning: String,
    /// Its keys.
    pub keys: Vec<Key>,
}

/// All sections of the configuration, in the order in which it is written.
pub fn sections() -> &'static [Section] {
    static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(read_sections);
    &SECTIONS
}

fn read_sections() -> Vec<Section> {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Config>();
    // Objects of a schema are sorted by name; a written configuration has the order of the types.
    let written = places(&Config::default().to_toml());
    let at = |name: &str| written.iter().position(|(_, written)| written == name).unwrap_or(usize::MAX);
    let mut sections: Vec<Section> = properties(schema.as_value())
        .map(|(section, schema)| {
            let mut keys: Vec<Key> = properties(schema)
                .map(|(key, schema)| Key::new(format!("{section}.{key}"), schema))
                .collect();
            keys.sort_by_key(|key| at(&key.name));
            Section { name: section.clone(), meaning: text(schema, "description"), keys }
        })
        .collect();
    let first = |section: &Section| section.keys.iter().map(|key| at(&key.name)).min();
    sections.sort_by_key(first);
    sections
}

/// Compares a table that is to be laid over a configuration with what may be set.
///
/// # Errors
/// The first key that does not exist, with the nearest one that does, or the first value of another type, with both
/// types: `(key, what is wrong)`.
pub fn check(table: &toml::Table) -> Result<(), (String, String)> {
    let sections = sections();
    for (name, value) in table {
        let Some(section) = sections.iter().find(|section| section.name == *name) else {
            let names = sections.iter().map(|section| section.name.as_str());
            let keys = sections.iter().flat_map(|section| &section.keys);
            let near = nearest(name, names.clone())
                .map(|near| format!("[{near}]"))
                // A key without its section is a frequent slip.
                .or_else(|| keys.clone().find(|key| key.last() == name).map(|key| key.name.clone()));
            return Err((name.clone(), unknown(near, &format!("sections: {}", list(names)))));
        };
        let toml::Value::Table(inner) = value else {
            let found = kind_of(value);
            return Err((
                name.clone(),
                format!("is a section, found {found}; set its keys, for example {}", section.keys[0].name),
            ));
        };
        for (key, value) in inner {
            let found = section.keys.iter().find(|k| k.last() == key || k.aliases.contains(key));
            let Some(known) = found else {
                let own = section.keys.iter().map(Key::last);
                let everywhere = || sections.iter().flat_map(|section| &section.keys);
                let near = nearest(key, own.clone())
                    .map(|near| format!("{name}.{near}"))
                    .or_else(|| everywhere().find(|k| k.last() == key).map(|k| k.name.clone()));
                let all = format!("keys of [{name}]: {}", list(own));
                return Err((format!("{name}.{key}"), unknown(near, &all)));
            };
            if !fits(&known.schema, value) {
                let (expected, found) = (&known.kind, kind_of(value));
                return Err((format!("{name}.{key}"), format!("expected {expected}, found {found}")));
            }
        }
    }
    Ok(())
}

impl Key {
    fn new(name: String, schema: &Value) -> Self {
        let texts = |key: &str| -> Vec<String> {
            let list = schema.get(key).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(|x| x.as_str().map(str::to_owned)).collect()
        };
        let unit = text(schema, "unit");
        Self {
            name,
            kind: kind(schema),
            optional: texts("type").iter().any(|name| name == "null"),
            unit: (!unit.is_empty()).then_some(unit),
            meaning: text(schema, "description"),
            aliases: texts("aliases"),
            schema: schema.clone(),
        }
    }

    /// The key without its section.
    pub fn last(&self) -> &str {
        self.name.split_once('.').map_or(self.name.as_str(), |(_, key)| key)
    }
}

/// The keys of a TOML text with their sections, in the order of its lines: `(line from 1, section.key)`.
pub(crate) fn places(text: &str) -> Vec<(usize, String)> {
    let (mut section, mut places) = (String::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split(']').next()) {
            section = name.trim().to_owned();
            places.push((number + 1, section.clone()));
        } else if let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let key = key.trim().trim_matches('"');
            let name = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            places.push((number + 1, name));
        }
    }
    places
}

fn unknown(near: Option<String>, all: &str) -> String {
    match near {
        Some(near) => format!("there is no such key; did you mean {near}? ({all})"),
        None => format!("there is no such key ({all})"),
    }
}

/// The nearest of the names, if one is near enough.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |other: &str| {
        // A word that was cut short or is a part of the other is as good as a slip of the fingers.
        let part = name.len() > 2 && (other.contains(name) || name.contains(other));
        let typed =
            strsim::normalized_damerau_levenshtein(name, other).max(strsim::jaro_winkler(name, other) - 0.1);
        if part { typed.max(SIMILAR) } else { typed }
    };
    let scored = names.map(|other| (likeness(other), other)).filter(|(score, _)| *score >= SIMILAR);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// A text of a schema on one line, without the links of rustdoc.
fn text(schema: &Value, key: &str) -> String {
    let text = schema.get(key).and_then(Value::as_str).unwrap_or_default();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace("[`", "`").replace("`]", "`").replace("\\[", "[").replace("\\]", "]")
}

/// The types that a schema allows, `null` left out.
fn types(schema: &Value) -> Vec<&str> {
    let names = match schema.get("type") {
        Some(Value::String(name)) => vec![name.as_str()],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    names.into_iter().filter(|name| *name != "null").collect()
}

/// The texts that a schema allows, where it is a list of them (or of one of them and `null`, when the key is optional).
fn choices(schema: &Value) -> Vec<&str> {
    let any = |of: &str| schema.get(of).and_then(Value::as_array).into_iter().flatten();
    let plain = any("enum").filter_map(Value::as_str);
    let named = any("oneOf").chain(any("anyOf")).flat_map(choices);
    schema.get("const").and_then(Value::as_str).into_iter().chain(plain).chain(named).collect()
}

/// What a value has to be, in words.
fn kind(schema: &Value) -> String {
    let choices = choices(schema);
    if !choices.is_empty() {
        return choices.iter().map(|choice| format!("`\"{choice}\"`")).collect::<Vec<_>>().join(" or ");
    }
    if let Some(form) = schema.get("form").and_then(Value::as_str) {
        return form.to_owned();
    }
    let item = schema.get("items").map(kind).unwrap_or_default();
    let from_zero = schema.get("minimum").and_then(Value::as_f64) == Some(0.0);
    match types(schema)[..] {
        ["integer"] if from_zero => "an integer, 0 or more".into(),
        ["integer"] => "an integer".into(),
        ["number"] => "a number".into(),
        ["boolean"] => "`true` or `false`".into(),
        ["string"] if schema.get("maxLength").and_then(Value::as_u64) == Some(1) => "one character".into(),
        ["string"] => "a text".into(),
        ["array"] => format!("a list, each {item}"),
        ["object"] => "a table".into(),
        _ => "a value".into(),
    }
}

/// Whether a value is of the type that a schema asks for. Ranges beyond the sign are checked with the combinations, by
/// [`Config::check`]; a schema that is none of these kinds is left to the types themselves.
fn fits(schema: &Value, value: &toml::Value) -> bool {
    let choices = choices(schema);
    if !choices.is_empty() {
        return value.as_str().is_some_and(|value| choices.contains(&value));
    }
    if schema.get("form").is_some() {
        return true;
    }
    match types(schema)[..] {
        ["integer"] => {
            let low = schema.get("minimum").and_then(Value::as_i64).unwrap_or(i64::MIN);
            value.as_integer().is_some_and(|value| value >= low)
        }
        ["number"] => value.is_float() || value.is_integer(),
        ["boolean"] => value.is_bool(),
        ["string"] => {
            let most = schema.get("maxLength").and_then(Value::as_u64);
            value.as_str().is_some_and(|text| most != Some(1) || text.chars().count() == 1)
        }
        ["array"] => {
            let no_schema = Value::Object(Map::new());
            let item = schema.get("items").unwrap_or(&no_schema);
            value.as_array().is_some_and(|list| list.iter().all(|value| fits(item, value)))
        }
        ["object"] => value.is_table(),
        _ => true,
    }
}

/// What a value is, in words, with the value where it is short.
fn kind_of(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => format!("the text {text:?}"),
        toml::Value::Integer(number) => format!("the integer {number}"),
        toml::Value::Float(number) => format!("the number {number}"),
        toml::Value::Boolean(flag) => format!("{flag}"),
        toml::Value::Datetime(time) => format!("the time {time}"),
        toml::Value::Array(list) => {
            let inner: Vec<String> = list.iter().take(3).map(kind_of).collect();
            let more = if list.len() > 3 { ", ..." } else { "" };
            format!("a list ({}{more})", inner.join(", "))
        }
        toml::Value::Table(_) => "a table".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(set: &str) -> String {
        Config::layered(&Config::default(), None, &[set.to_string()]).unwrap_err().to_string()
    }

    #[test]
    fn every_key_has_a_type_and_a_meaning() {
        let sections = sections();
        assert_eq!(sections[0].name, "task");
        for section in sections {
            assert!(!section.meaning.is_empty() && !section.keys.is_empty(), "[{}]", section.name);
            for key in &section.keys {
                assert!(!key.meaning.is_empty(), "{} has no comment", key.name);
                assert_ne!(key.kind, "a value", "{}: its type has no words", key.name);
            }
        }
        // As in the types: batch comes first.
        let train = sections.iter().find(|section| section.name == "train").unwrap();
        assert_eq!((train.keys[0].name.as_str(), train.keys[1].last()), ("train.batch", "gamma"));
    }

    #[test]
    fn what_is_written_passes_its_own_check() {
        for config in [Config::gpu_preset(), Config::cpu_preset()] {
            assert_eq!(check(&toml::from_str(&config.to_toml()).unwrap()), Ok(()));
        }
    }

    #[test]
    fn the_nearest_key_is_named() {
        for (set, near) in [
            ("train.bach=512", "did you mean train.batch?"),
            ("model.trunk=512", "did you mean model.trunk"),
            ("trian.batch=512", "did you mean [train]?"),
            // A key of another section, and one without its section.
            ("train.atoms=51", "did you mean model.atoms?"),
            ("atoms=51", "did you mean model.atoms?"),
            ("optimizer.learning_rate=0.1", "keys of [optimizer]: lr, "),
            ("colect.capacity=1", "did you mean [collect]?"),
        ] {
            let text = refused(set);
            assert!(text.starts_with(&format!("--set {set}: ")) && text.contains(near), "{text}");
        }
    }

    #[test]
    fn a_wrong_type_names_both_types() {
        for (set, expected) in [
            ("train.batch=many", "train.batch: expected an integer, 0 or more, found the text \"many\""),
            ("train.batch=-1", "train.batch: expected an integer, 0 or more, found the integer -1"),
            ("train.batch=1.5", "train.batch: expected an integer, 0 or more, found the number 1.5"),
            ("cql.enabled=1", "cql.enabled: expected `true` or `false`, found the integer 1"),
            ("model.head=gru", "model.head: expected `\"mlp\"` or `\"glu\"`, found the text \"gru\""),
            (
                "model.branches=[9, \"x\"]",
                "model.branches: expected a list, each an integer, 0 or more, found a list (the integer 9, the text \"x\")",
            ),
            ("train=5", "train: is a section, found the integer 5; set its keys, for example train.batch"),
        ] {
            assert_eq!(refused(set), format!("--set {set}: {expected}"));
        }
        // An integer is a number, a text is a list of one repair.
        let fine = ["train.gamma=1", "data.repair=sort"].map(str::to_string);
        Config::layered(&Config::default(), None, &fine).unwrap();
    }

    #[test]
    fn a_file_is_refused_with_its_line() {
        let text = "# mine\n[train]\nbatch = 64\nepoch = 3\n";
        let error =
            Config::layered(&Config::default(), Some(("run.toml", text)), &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("run.toml, line 4: train.epoch: ") && error.contains("train.epochs?"),
            "{error}"
        );
        let broken = Config::layered(&Config::default(), Some(("run.toml", "[train]\nbatch = \n")), &[]);
        assert!(broken.unwrap_err().to_string().contains("line 2"));
    }
}
