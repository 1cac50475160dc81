//! `metrics.jsonl`: one JSON object a line, with its kind beside its fields.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

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

/// All rows of a file. A last line without its end is a row that a killed run did not finish, and is left out.
///
/// # Errors
/// [`ReportError`] with the line of anything else that is not a JSON object with a kind.
pub fn read(path: &Path) -> Result<Vec<Row>, ReportError> {
    let mut reader = BufReader::new(File::open(path).map_err(ReportError::io(path))?);
    let (mut rows, mut line) = (Vec::new(), String::new());
    for number in 1.. {
        line.clear();
        if reader.read_line(&mut line).map_err(ReportError::io(path))? == 0 || !line.ends_with('\n') {
            break;
        }
        let bad = |problem: &dyn std::fmt::Display| ReportError::content(path, Some(number), problem);
        let value = serde_json::from_str(&line).map_err(|e| bad(&e))?;
        rows.push(Row::of(value).ok_or_else(|| bad(&"a row without a kind"))?);
    }
    Ok(rows)
}

/// Values of one field over the rows of a kind, with their steps. Where the numbering starts anew, as with a new fold, it
/// goes on behind what was before, so that the curve reads from left to right.
pub fn column(rows: &[Row], kind: &str, field: &str) -> Vec<(f64, f64)> {
    let (mut offset, mut last) = (0.0, 0.0);
    let mut points = Vec::new();
    for row in rows.iter().filter(|row| row.kind == kind) {
        let Some(step) = row.number("step").or_else(|| row.number("epoch")) else { continue };
        if step + offset < last {
            offset = last;
        }
        last = step + offset;
        if let Some(value) = row.number(field) {
            points.push((last, value));
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<Row>, ReportError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
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
            ("{\"kind\":\"a\"}\nnot json\n", " line 2: "),
            ("{\"step\":1}\n", "without a kind"),
            ("3\n", "without a kind"),
        ] {
            let message = rows(text).unwrap_err().to_string();
            assert!(message.contains(problem), "{message}");
        }
    }

    #[test]
    fn a_numbering_that_starts_anew_goes_on() {
        let text: String = [1, 2, 3, 1, 2]
            .iter()
            .map(|step| format!("{{\"kind\":\"step\",\"step\":{step},\"loss\":{step}}}\n"))
            .collect();
        let column = column(&rows(&text).unwrap(), "step", "loss");
        assert_eq!(column, [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 1.0), (5.0, 2.0)]);
    }
}
