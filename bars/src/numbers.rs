//! How numbers are written in a text file, found over the whole file.
//!
//! A format is a decimal mark and a thousands mark. Every number of the file is held against all formats;
//! the file's format is one that fits them all. "1,234" fits two formats with different values: if nothing
//! else in the file decides, that is an error that asks for the option, not a guess.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{BarError, Problem};

/// A way to write numbers: decimal mark and thousands mark. Thousands marks must separate groups of three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NumberFormat {
    /// `b'.'` or `b','`.
    decimal: u8,
    /// `0` (none), `b','`, `b'.'`, `b' '` or `b'\''`.
    thousands: u8,
}

/// All formats with their names for options and reports; a bit mask over this list is a set of formats.
const FORMATS: [(NumberFormat, &str); 8] = [
    (NumberFormat { decimal: b'.', thousands: 0 }, "1234.5"),
    (NumberFormat { decimal: b'.', thousands: b',' }, "1,234.5"),
    (NumberFormat { decimal: b'.', thousands: b' ' }, "1 234.5"),
    (NumberFormat { decimal: b'.', thousands: b'\'' }, "1'234.5"),
    (NumberFormat { decimal: b',', thousands: 0 }, "1234,5"),
    (NumberFormat { decimal: b',', thousands: b'.' }, "1.234,5"),
    (NumberFormat { decimal: b',', thousands: b' ' }, "1 234,5"),
    (NumberFormat { decimal: b',', thousands: b'\'' }, "1'234,5"),
];
const ALL: u8 = 0xff;
const POINT: u8 = 0x0f;
const COMMA: u8 = 0xf0;

impl NumberFormat {
    /// Decimal point, no thousands mark: what programs write.
    pub const PLAIN: NumberFormat = FORMATS[0].0;

    /// The format as an example of itself, for instance `1.234,5`.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(format, _)| *format == self).map_or("", |(_, name)| name)
    }

    /// Reads a trimmed field.
    pub fn parse(self, field: &[u8]) -> Result<f64, Problem> {
        if is_missing(field) {
            return Err(Problem::Missing);
        }
        let mut text = [0_u8; 64];
        let length = self.normalise(field, &mut text).ok_or_else(|| {
            // Rust would read inf and infinity; a price file has no use for them.
            let word = field.strip_prefix(b"-").or(field.strip_prefix(b"+")).unwrap_or(field);
            let infinite = word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"infinity");
            if infinite { Problem::NotFinite } else { Problem::NotANumber }
        })?;
        let text = std::str::from_utf8(&text[..length]).map_err(|_| Problem::NotANumber)?;
        let value: f64 = text.parse().map_err(|_| Problem::NotANumber)?;
        if value.is_finite() { Ok(value) } else { Err(Problem::NotFinite) }
    }

    /// Whether the field is a number of this format.
    fn fits(self, field: &[u8]) -> bool {
        self.normalise(field, &mut [0; 64]).is_some()
    }

    /// Rewrites a number as `[+-]digits[.digits][e[+-]digits]`; None if it is not one of this format.
    fn normalise(self, field: &[u8], out: &mut [u8; 64]) -> Option<usize> {
        let mut length = 0;
        let mut push = |byte: u8| {
            let slot = out.get_mut(length)?;
            *slot = byte;
            length += 1;
            Some(())
        };
        let mut at = 0;
        if let Some(sign @ (b'+' | b'-')) = field.first() {
            push(*sign)?;
            at = 1;
        }
        let leading = field.get(at);
        // Integer part. `group` counts digits since the last thousands mark, `marks` the marks.
        let (mut group, mut digits, mut marks) = (0, 0, 0);
        while let Some(&byte) = field.get(at) {
            let mark = if self.thousands == 0 { 0 } else { mark_length(&field[at..], self.thousands) };
            if byte.is_ascii_digit() {
                push(byte)?;
                group += 1;
                digits += 1;
                at += 1;
            } else if mark > 0 {
                // 1 to 3 digits before the first mark, exactly 3 between marks, no leading zero group.
                let full =
                    if marks == 0 { (1..=3).contains(&group) && leading != Some(&b'0') } else { group == 3 };
                if !full {
                    return None;
                }
                marks += 1;
                group = 0;
                at += mark;
            } else {
                break;
            }
        }
        if marks > 0 && group != 3 {
            return None;
        }
        if field.get(at) == Some(&self.decimal) {
            push(b'.')?;
            at += 1;
            while let Some(&byte) = field.get(at).filter(|byte| byte.is_ascii_digit()) {
                push(byte)?;
                digits += 1;
                at += 1;
            }
        }
        if digits == 0 {
            return None;
        }
        if let Some(b'e' | b'E') = field.get(at) {
            push(b'e')?;
            at += 1;
            if let Some(sign @ (b'+' | b'-')) = field.get(at) {
                push(*sign)?;
                at += 1;
            }
            let start = at;
            while let Some(&byte) = field.get(at).filter(|byte| byte.is_ascii_digit()) {
                push(byte)?;
                at += 1;
            }
            if at == start {
                return None;
            }
        }
        (at == field.len()).then_some(length)
    }
}

/// Bytes that the thousands mark takes at the start of `rest`, 0 if there is none. A space may be U+0020,
/// U+00A0 or U+202F.
fn mark_length(rest: &[u8], thousands: u8) -> usize {
    match thousands {
        b' ' if rest.starts_with(b"\xc2\xa0") => 2,
        b' ' if rest.starts_with(b"\xe2\x80\xaf") => 3,
        mark => usize::from(rest.first() == Some(&mark)),
    }
}

/// Texts that programs write for "no value".
pub(crate) fn is_missing(field: &[u8]) -> bool {
    const WORDS: [&str; 10] = ["", "nan", "null", "na", "n/a", "#n/a", "none", "nil", "-", "--"];
    WORDS.iter().any(|word| field.eq_ignore_ascii_case(word.as_bytes()))
}

impl FromStr for NumberFormat {
    type Err = BarError;

    fn from_str(text: &str) -> Result<Self, BarError> {
        FORMATS.iter().find(|(_, name)| *name == text.trim()).map(|(format, _)| *format).ok_or_else(|| {
            let names: Vec<_> = FORMATS.iter().map(|(_, name)| *name).collect();
            BarError::option("numbers", text, format!("expected one of {}", names.join("  ")))
        })
    }
}

impl TryFrom<String> for NumberFormat {
    type Error = BarError;

    fn try_from(text: String) -> Result<Self, BarError> {
        text.parse()
    }
}

impl From<NumberFormat> for String {
    fn from(format: NumberFormat) -> String {
        format.name().to_owned()
    }
}

/// Narrows the formats down while the file goes by.
#[derive(Debug)]
pub(crate) struct NumberDetector {
    /// Formats that fit every number so far.
    mask: u8,
    /// Line and text of the numbers that ruled out decimal commas and decimal points.
    ruled_out: [Option<(u64, String)>; 2],
    /// Whether a point, a comma occurred in a number.
    saw: [bool; 2],
    /// A number whose value depends on what is left open.
    example: Option<(u64, String)>,
}

impl NumberDetector {
    pub(crate) fn new() -> Self {
        Self { mask: ALL, ruled_out: [None, None], saw: [false; 2], example: None }
    }

    /// Looks at one field. Fields that are a number in no format are left to the reader, which knows rows.
    /// The error is a text about two lines that contradict each other.
    pub(crate) fn look(&mut self, line: u64, field: &[u8]) -> Result<(), String> {
        // Most fields end here: whole numbers fit every format, and a number without thousands marks fits
        // every format with its decimal mark.
        let unmarked = |decimals: u8, bit: usize| self.mask & !decimals == 0 && FORMATS[bit].0.fits(field);
        if field.iter().all(u8::is_ascii_digit) || unmarked(POINT, 0) || unmarked(COMMA, 4) {
            return Ok(());
        }
        let mut fits = 0;
        for (bit, (format, _)) in FORMATS.iter().enumerate() {
            fits |= u8::from(format.fits(field)) << bit;
        }
        if fits == 0 {
            return Ok(());
        }
        let text = || String::from_utf8_lossy(field).into_owned();
        for (mark, byte) in [(0, b'.'), (1, b',')] {
            self.saw[mark] |= field.contains(&byte);
        }
        if fits & POINT != 0 && fits & COMMA != 0 && field.iter().any(|byte| b".,".contains(byte)) {
            self.example.get_or_insert_with(|| (line, text()));
        }
        for (side, formats) in [(0, COMMA), (1, POINT)] {
            if fits & formats == 0 {
                self.ruled_out[side].get_or_insert_with(|| (line, text()));
            }
        }
        let left = self.mask & fits;
        if left == 0 {
            let place = self.ruled_out.iter().flatten().find(|(other, _)| *other != line);
            let against = place.map_or_else(String::new, |(other, value)| {
                format!(", which contradicts {value:?} in line {other}")
            });
            return Err(format!(
                "line {line}: {:?} is written in another number format than the rows before{against}; \
                 give the format as numbers = \"1234.5\" or the like",
                text()
            ));
        }
        self.mask = left;
        Ok(())
    }

    /// The file's format. `semicolons`: the file's delimiter is `;`, which says that commas may be decimal
    /// marks and so leaves a point open too.
    pub(crate) fn decide(&self, semicolons: bool) -> Result<NumberFormat, String> {
        let first = |side: u8| {
            let bit = (self.mask & side).trailing_zeros() as usize;
            FORMATS[bit].0
        };
        match (self.mask & POINT != 0, self.mask & COMMA != 0) {
            (true, false) => Ok(first(POINT)),
            (false, _) => Ok(first(COMMA)),
            (true, true) => match self.saw {
                // Whole numbers only: every format reads them alike.
                [false, false] => Ok(first(POINT)),
                // Points only, in a file whose delimiter does not suggest decimal commas.
                [true, false] if !semicolons => Ok(first(POINT)),
                _ => {
                    let (line, value) = self.example.clone().unwrap_or_default();
                    Err(format!(
                        "numbers can be read in two ways, for example {value:?} in line {line}: no row shows \
                         which mark is the decimal one; give numbers = \"1234.5\", \"1,234.5\" or \"1.234,5\""
                    ))
                }
            },
        }
    }
}
