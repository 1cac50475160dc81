//! Which timestamp format fits every row of a file.

use jiff::civil::Date;

use super::text::{Written, epoch_count};
use super::{DateOrder, EpochUnit, TimeFormat};

/// What can be told from the text alone; bit i of a mask is candidate i.
const CANDIDATES: [TimeFormat; 7] = [
    TimeFormat::Date(DateOrder::YearFirst),
    TimeFormat::Date(DateOrder::DayFirst),
    TimeFormat::Date(DateOrder::MonthFirst),
    TimeFormat::Epoch(EpochUnit::Seconds),
    TimeFormat::Epoch(EpochUnit::Milliseconds),
    TimeFormat::Epoch(EpochUnit::Microseconds),
    TimeFormat::Epoch(EpochUnit::Nanoseconds),
];
const DATES: [DateOrder; 3] = [DateOrder::YearFirst, DateOrder::DayFirst, DateOrder::MonthFirst];

/// Narrows the formats down while the file goes by.
///
/// `01/02/2017` fits two orders. A later `13/02/2017` decides for the whole file; if no row decides and the
/// orders give different days, the file is refused: the order of rows is no evidence, it may be the mistake.
#[derive(Debug)]
pub(crate) struct TimeDetector {
    mask: u8,
    /// For each candidate the line and text that ruled it out.
    ruled_out: [Option<(u64, String)>; 7],
    /// A text whose meaning differs between two candidates, for each pair (lower, higher).
    differs: [[Option<(u64, String)>; 7]; 7],
    first: Option<(u64, String)>,
    recognised: bool,
}

impl TimeDetector {
    pub(crate) fn new() -> Self {
        Self {
            mask: 0x7f,
            ruled_out: Default::default(),
            differs: Default::default(),
            first: None,
            recognised: false,
        }
    }

    /// Looks at one trimmed timestamp. One that fits no format is left to the reader, which knows rows.
    pub(crate) fn look(&mut self, line: u64, field: &str) -> Result<(), String> {
        self.first.get_or_insert_with(|| (line, field.to_owned()));
        let written = Written::parse(field);
        let dates: [Option<Date>; 3] = DATES.map(|order| written.as_ref()?.date(order));
        let unit = epoch_count(field).and_then(|(count, _)| EpochUnit::of_magnitude(count));
        let mut fits = 0_u8;
        for (bit, candidate) in CANDIDATES.iter().enumerate() {
            let fit = match candidate {
                TimeFormat::Date(_) => dates[bit].is_some(),
                TimeFormat::Epoch(other) => unit == Some(*other),
                TimeFormat::Pattern(_) => false,
            };
            fits |= u8::from(fit) << bit;
        }
        if fits == 0 {
            return Ok(());
        }
        self.recognised = true;
        let left = self.mask & fits;
        for bit in 0..CANDIDATES.len() {
            if fits & (1 << bit) == 0 {
                self.ruled_out[bit].get_or_insert_with(|| (line, field.to_owned()));
            }
        }
        if left == 0 {
            return Err(self.contradiction(line, field, fits));
        }
        self.mask = left;
        if left.count_ones() > 1 {
            for low in 0..CANDIDATES.len() {
                for high in low + 1..CANDIDATES.len() {
                    // Two epoch units never fit the same number, so a date and a count always differ.
                    let same = high < DATES.len() && dates[low] == dates[high];
                    if left & (1 << low) != 0 && left & (1 << high) != 0 && !same {
                        self.differs[low][high].get_or_insert_with(|| (line, field.to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Two rows that no single format fits.
    fn contradiction(&self, line: u64, field: &str, fits: u8) -> String {
        let name = |mask: u8| {
            let names = CANDIDATES.iter().enumerate().filter(|(bit, _)| mask & (1 << bit) != 0);
            names.map(|(_, format)| format.to_string()).collect::<Vec<_>>().join(" or ")
        };
        let bit = fits.trailing_zeros() as usize;
        let against = self.ruled_out[bit]
            .as_ref()
            .map_or_else(String::new, |(other, value)| format!(", but {value:?} in line {other} is not"));
        format!(
            "line {line}: timestamp {field:?} is {}{against}: the file mixes formats; if most rows are right, \
             give time_format and the others become bad rows",
            name(fits)
        )
    }

    /// The file's format.
    pub(crate) fn decide(&self) -> Result<TimeFormat, String> {
        if !self.recognised {
            let (line, value) = self.first.clone().unwrap_or_default();
            return Err(format!(
                "line {line}: timestamp {value:?} is in no format that can be recognised; give time_format, for \
                 example \"%d.%m.%Y %H:%M:%S\""
            ));
        }
        let bits: Vec<usize> = (0..CANDIDATES.len()).filter(|bit| self.mask & (1 << bit) != 0).collect();
        for (at, &low) in bits.iter().enumerate() {
            for &high in &bits[at + 1..] {
                if let Some((line, value)) = &self.differs[low][high] {
                    return Err(format!(
                        "timestamps can be read in two ways, for example {value:?} in line {line}, and no row \
                         shows which is meant; give time_format = \"{}\" or \"{}\"",
                        CANDIDATES[low], CANDIDATES[high]
                    ));
                }
            }
        }
        Ok(CANDIDATES[bits[0]].clone())
    }
}
