//! Lines of a text file by their numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// Characters of a line that are shown.
const SHOWN: usize = 100;

/// The beginnings of some lines, counted as the bars crate counts: a line ends with CR, LF, or both.
pub(super) fn lines(path: &Path, wanted: &BTreeSet<u64>) -> io::Result<BTreeMap<u64, String>> {
    let mut found: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let Some(&last) = wanted.last() else {
        return Ok(BTreeMap::new());
    };
    let (mut line, mut carriage_return) = (1, false);
    let mut reader = BufReader::new(File::open(path)?);
    while line <= last {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        for &byte in buffer {
            match byte {
                b'\n' if carriage_return => {}
                b'\n' | b'\r' => line += 1,
                _ if wanted.contains(&line) => {
                    let text = found.entry(line).or_default();
                    // A character takes four bytes at most.
                    if text.len() < 4 * (SHOWN + 1) {
                        text.push(byte);
                    }
                }
                _ => {}
            }
            carriage_return = byte == b'\r';
        }
        let read = buffer.len();
        reader.consume(read);
    }
    Ok(found.into_iter().map(|(line, bytes)| (line, shown(&bytes))).collect())
}

/// At most [`SHOWN`] characters of a line, control characters escaped: a file must not steer the terminal.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut short: String =
        text.chars().take(SHOWN).map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
    if text.chars().count() > SHOWN {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_found_by_the_numbers_that_errors_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.csv");
        fs::write(&path, format!("a\r\nb\r\n\nd\re\n{}\nx\u{1b}[2J", "é".repeat(200))).unwrap();
        let found = lines(&path, &BTreeSet::from([1, 2, 3, 4, 5, 6, 7, 9])).unwrap();
        let expected = [(1, "a"), (2, "b"), (4, "d"), (5, "e")];
        for (line, text) in expected {
            assert_eq!(found[&line], text, "line {line}");
        }
        assert_eq!(found[&6], format!("{}…", "é".repeat(SHOWN)));
        assert_eq!(found[&7], "x\u{fffd}[2J");
        assert!(!found.contains_key(&3) && !found.contains_key(&9));
    }
}
