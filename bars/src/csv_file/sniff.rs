//! Delimiter and header of a text file, from its first records.

use csv::ByteRecord;

use crate::csv_file::columns::Role;
use crate::error::{BarError, excerpt};

/// Delimiters that are tried.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];
/// Records that are looked at.
const RECORDS: usize = 1000;
/// Fewest columns: a timestamp and four prices.
const COLUMNS: usize = 5;

/// Finds the delimiter that splits most records into the same number (at least five) of sound fields.
///
/// Sound: no field contains another candidate, except that a comma inside a number may be its decimal mark.
/// So `1,1042;1,1046` is split at the semicolons: split at the commas it would give fields like `1042;1`.
pub(crate) fn delimiter(file: &str, head: &[u8]) -> Result<u8, BarError> {
    let mut scores: Vec<(usize, u8)> =
        DELIMITERS.iter().map(|&delimiter| (score(head, delimiter), delimiter)).collect();
    scores.sort_by_key(|&(score, _)| std::cmp::Reverse(score));
    if scores[0].0 == 0 {
        let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let message = format!(
            "no delimiter found that gives at least {COLUMNS} columns; the first line is {:?}; give delimiter",
            excerpt(line.trim_ascii_end())
        );
        return Err(BarError::file(file, message));
    }
    if scores[0].0 == scores[1].0 {
        let message = format!(
            "{:?} and {:?} divide the lines equally well; give delimiter",
            char::from(scores[0].1),
            char::from(scores[1].1)
        );
        return Err(BarError::file(file, message));
    }
    Ok(scores[0].1)
}

/// Sound records that have the commonest number of fields.
fn score(head: &[u8], delimiter: u8) -> usize {
    let mut reader =
        csv::ReaderBuilder::new().delimiter(delimiter).flexible(true).has_headers(false).from_reader(head);
    let mut record = ByteRecord::new();
    let mut counts = std::collections::BTreeMap::<usize, usize>::new();
    for _ in 0..RECORDS {
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            _ => break,
        }
        let sound = record.iter().all(|field| {
            let number = field.iter().all(|byte| b"0123456789+-.,' \xc2\xa0\xe2\x80\xaf".contains(byte));
            let foreign =
                |byte: &u8| DELIMITERS.contains(byte) && *byte != delimiter && !(*byte == b',' && number);
            !field.iter().any(foreign)
        });
        if sound && record.len() >= COLUMNS {
            *counts.entry(record.len()).or_default() += 1;
        }
    }
    counts.values().copied().max().unwrap_or(0)
}

/// Whether the first record is a header: it names a column, or it has less than four numbers.
pub(crate) fn is_header(first: &[&[u8]]) -> bool {
    let names = first.iter().filter_map(|field| std::str::from_utf8(field).ok());
    let number = |field: &&&[u8]| {
        field.iter().any(u8::is_ascii_digit)
            && field.iter().all(|byte| b"0123456789+-.,'eE \xc2\xa0\xe2\x80\xaf".contains(byte))
    };
    names.filter_map(Role::of_name).count() >= 2 || first.iter().filter(number).count() < 4
}
