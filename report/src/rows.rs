//! `metrics.jsonl`: one JSON object a line, with its kind beside its fields.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::ReportError;

/// A row of the metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `run`, `step`, `epoch`, `values`, `sensitivity`, `test`, ...
    pub kind: String,
    /// Its fields.
    pub fields: Map<String, Value>,
}

impl Row {
    /// Of a JSON object with a kind; `None` for anything else.
    pub fn of(value: Value) -> Option<Self> {
        let Value::Object(mut fields) = value else { return None };
        match fields.remove("kind") {
            Some(Value::String(kind)) => Some(Self { kind, fields }),
            _ => None,
        }
    }

    /// A finite number; `None` where the field is absent, undefined or no number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.fields.get(name)?.as_f64().filter(|x| x.is_finite())
    }

    /// A list of numbers, empty where there is none.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        let list = self.fields.get(name).and_then(Value::as_array);
        list.map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_f64).collect())
    }

    /// A text, empty where there is none.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).and_then(Value::as_str).unwrap_or_default()
    }
}

/// The kind of a row, read without the rest of it.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

/// Hands over the rows of the kinds that are wanted, in order, one at a time: a long run's file does not fit into memory. A
/// last line without its end is a row that a killed run did not finish, and is left out.
///
/// # Errors
/// [`ReportError`] with the line of anything that is not a JSON object with a kind; of rows that are not wanted the kind
/// alone is looked at.
pub fn visit(
    path: &Path,
    wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(Row) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    let mut reader = BufReader::new(File::open(path).map_err(ReportError::io(path))?);
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        if reader.read_line(&mut line).map_err(ReportError::io(path))? == 0 || !line.ends_with('\n') {
            break;
        }
        if serde_json::from_str::<Kind<'_>>(&line).is_ok_and(|row| !wanted(&row.kind)) {
            continue;
        }
        let bad = |problem: &dyn std::fmt::Display| ReportError::content(path, Some(number), problem);
        let value = serde_json::from_str(&line).map_err(|e| bad(&e))?;
        take(Row::of(value).ok_or_else(|| bad(&"a row without a kind"))?)?;
    }
    Ok(())
}

/// All rows of the kinds that are wanted.
///
/// # Errors
/// As for [`visit`].
pub fn read(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>, ReportError> {
    let mut rows = Vec::new();
    visit(path, wanted, |row| {
        rows.push(row);
        Ok(())
    })?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<Row>, ReportError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), |kind| kind != "unwanted")
    }

    #[test]
    fn rows_of_a_killed_run_are_those_that_ended() {
        let read = rows("{\"kind\":\"step\",\"step\":1,\"loss\":2.5}\n{\"kind\":\"step\",\"st").unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(
            (read[0].kind.as_str(), read[0].number("loss"), read[0].number("td")),
            ("step", Some(2.5), None)
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, problem) in [
            ("{\"kind\":\"unwanted\"}\nnot json\n", " line 2: "),
            ("{\"step\":1}\n", "without a kind"),
            ("3\n", "without a kind"),
        ] {
            let message = rows(text).unwrap_err().to_string();
            assert!(message.contains(problem), "{message}");
        }
    }
}
