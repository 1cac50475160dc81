//! Taking a written timestamp apart without deciding which number is the day.

use jiff::civil::{Date, Time};
use jiff::tz::Offset;

use super::{DateOrder, date_in_range};

/// One of the three groups of a date.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Group {
    /// A number and how many digits it was written with.
    Number(u32, usize),
    /// A month by name, 1 to 12.
    Month(u32),
}

/// A timestamp taken apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Written {
    groups: [Group; 3],
    /// Time of day, midnight when none is written.
    pub(super) time: Time,
    /// Offset from UTC, if one is written.
    pub(super) offset: Option<Offset>,
}

impl Written {
    /// Takes `01.02.2017 22:00:00.000`, `2017-02-01T22:00:00Z`, `20170201 220000`, `Feb 1, 2017 10:00 PM`,
    /// `1 Feb 2017 22:00 GMT+0100` and the like apart.
    pub(super) fn parse(field: &str) -> Option<Written> {
        let mut cursor = Cursor { rest: field };
        let mut compact_time = None;
        let groups = match cursor.digits(14) {
            Some((digits, 8)) => compact_date(digits),
            Some((digits, 12)) => {
                compact_time = Some(clock(digits % 10_000 / 100, digits % 100, 0)?);
                compact_date(digits / 10_000)
            }
            Some((digits, 14)) => {
                let rest = digits % 1_000_000;
                compact_time = Some(clock(rest / 10_000, rest / 100 % 100, rest % 100)?);
                compact_date(digits / 1_000_000)
            }
            _ => {
                cursor = Cursor { rest: field };
                cursor.date_groups()?
            }
        };
        let time = match compact_time {
            Some(time) => time,
            None => cursor.time_of_day()?,
        };
        let offset = cursor.offset()?;
        cursor.rest.is_empty().then_some(Written { groups, time, offset })
    }

    /// The date when the groups are read in this order; None if that is no date.
    pub(super) fn date(&self, order: DateOrder) -> Option<Date> {
        let [a, b, c] = self.groups;
        let (year, month, day) = match order {
            DateOrder::YearFirst => (a, b, c),
            DateOrder::DayFirst => (c, b, a),
            DateOrder::MonthFirst => (c, a, b),
        };
        let Group::Number(year, digits) = year else { return None };
        // `02-Jan-17` is day first: nobody writes a two-digit year before a month's name.
        if matches!((order, b), (DateOrder::YearFirst, Group::Month(_))) && digits != 4 {
            return None;
        }
        // Two-digit years as POSIX reads them: 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068.
        let year = match digits {
            4 => year,
            2 if year >= 69 => 1900 + year,
            2 => 2000 + year,
            _ => return None,
        };
        let month = match month {
            Group::Month(month) | Group::Number(month, 1 | 2) => month,
            Group::Number(..) => return None,
        };
        let Group::Number(day, 1 | 2) = day else { return None };
        date_in_range(i32::try_from(year).ok()?, month, day)
    }
}

/// Groups of `yyyymmdd`.
fn compact_date(digits: u64) -> [Group; 3] {
    let part = |value: u64, width| Group::Number(value as u32, width);
    [part(digits / 10_000, 4), part(digits / 100 % 100, 2), part(digits % 100, 2)]
}

fn clock(hour: u64, minute: u64, second: u64) -> Option<Time> {
    Time::new(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, i8::try_from(second).ok()?, 0).ok()
}

/// What is left of the text.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// A run of at most `most` digits and its length; a longer run is not taken.
    fn digits(&mut self, most: usize) -> Option<(u64, usize)> {
        let length = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        if length == 0 || length > most {
            return None;
        }
        let value = self.rest[..length].parse().ok()?;
        self.rest = &self.rest[length..];
        Some((value, length))
    }

    fn take(&mut self, prefix: &str) -> bool {
        self.rest.strip_prefix(prefix).is_some_and(|rest| {
            self.rest = rest;
            true
        })
    }

    /// Takes a word regardless of case.
    fn take_word(&mut self, word: &str) -> bool {
        let found = self.rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        if found {
            self.rest = &self.rest[word.len()..];
        }
        found
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
    }

    fn group(&mut self) -> Option<Group> {
        const MONTHS: [&str; 12] = [
            "january",
            "february",
            "march",
            "april",
            "may",
            "june",
            "july",
            "august",
            "september",
            "october",
            "november",
            "december",
        ];
        if let Some((value, width)) = self.digits(4) {
            return Some(Group::Number(value as u32, width));
        }
        let length = self.rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let word = self.rest[..length].to_ascii_lowercase();
        // The full name or its first three letters ("sept" is common too).
        let month = MONTHS.iter().position(|name| {
            word == *name || word == name[..3] || (word == "sept" && *name == "september")
        })?;
        self.rest = self.rest[length..].trim_start_matches('.');
        Some(Group::Month(month as u32 + 1))
    }

    /// Three groups with the same separator `-`, `/` or `.`, or any of them or spaces if one group is a name.
    fn date_groups(&mut self) -> Option<[Group; 3]> {
        let first = self.group()?;
        let separator = self.separator()?;
        let second = self.group()?;
        // Numbers separated by spaces alone are no date; a month's name makes one.
        let named = matches!(first, Group::Month(_)) || matches!(second, Group::Month(_));
        if (self.separator()? != separator || separator == ' ') && !named {
            return None;
        }
        let third = self.group()?;
        Some([first, second, third])
    }

    fn separator(&mut self) -> Option<char> {
        for separator in ['-', '/', '.'] {
            if self.take(separator.encode_utf8(&mut [0; 4])) {
                // `1. 2. 2017`, `1. February 2017`.
                if separator == '.' {
                    self.spaces();
                }
                return Some(separator);
            }
        }
        let comma = self.take(",");
        let before = self.rest.len();
        self.spaces();
        (comma || self.rest.len() < before).then_some(' ')
    }

    /// `T` or spaces, then `h:mm[:ss[.f]] [AM|PM]`, `hhmm` or `hhmmss`; midnight at the end of the text.
    fn time_of_day(&mut self) -> Option<Time> {
        let separated = self.take("T") || self.take("t") || self.take(", ") || self.take(" ");
        if !separated {
            // Nothing follows the date, or only an offset as in `2017-02-01Z`.
            return Some(Time::midnight());
        }
        self.spaces();
        let (first, width) = self.digits(6)?;
        let mut time = match width {
            4 => clock(first / 100, first % 100, 0)?,
            6 => clock(first / 10_000, first / 100 % 100, first % 100)?,
            1 | 2 => {
                if !self.take(":") {
                    return None;
                }
                let minute = self.two_digits()?;
                let second = if self.take(":") { self.two_digits()? } else { 0 };
                clock(first, minute, second)?
            }
            _ => return None,
        };
        if self.take(".") || (self.rest.starts_with(',') && self.take(",")) {
            let length = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            if length == 0 {
                return None;
            }
            // Only whole nanoseconds can be kept; further digits are below any use.
            let nanos = self.rest[..length].bytes().chain(std::iter::repeat(b'0')).take(9);
            let nanos = nanos.fold(0_i32, |sum, digit| sum * 10 + i32::from(digit - b'0'));
            self.rest = &self.rest[length..];
            time = Time::new(time.hour(), time.minute(), time.second(), nanos).ok()?;
        }
        self.half_day(time)
    }

    fn two_digits(&mut self) -> Option<u64> {
        let (value, width) = self.digits(2)?;
        (width == 2).then_some(value)
    }

    /// Applies a following AM or PM.
    fn half_day(&mut self, time: Time) -> Option<Time> {
        let before = self.rest;
        self.spaces();
        let hour = if self.take_word("am") {
            time.hour() % 12
        } else if self.take_word("pm") {
            time.hour() % 12 + 12
        } else {
            self.rest = before;
            return Some(time);
        };
        if !(1..=12).contains(&time.hour()) {
            return None;
        }
        Time::new(hour, time.minute(), time.second(), time.subsec_nanosecond()).ok()
    }

    /// `Z`, `UTC`, `GMT`, `+hh`, `+hhmm`, `+hh:mm`, or a name followed by an offset; Some(None) at the end.
    fn offset(&mut self) -> Option<Option<Offset>> {
        self.spaces();
        if self.rest.is_empty() {
            return Some(None);
        }
        let named = ["z", "utc", "gmt"].into_iter().any(|name| self.take_word(name));
        let sign = match self.rest.chars().next() {
            None => return named.then_some(Some(Offset::UTC)),
            Some('+') => 1,
            Some('-' | '\u{2212}') => -1,
            Some(_) => return None,
        };
        let _sign = ["+", "-", "\u{2212}"].into_iter().any(|text| self.take(text));
        let (hours, minutes) = match self.digits(4)? {
            (value, 4) => (value / 100, value % 100),
            (hours, 2) if self.take(":") => (hours, self.two_digits()?),
            (hours, 1 | 2) => (hours, 0),
            _ => return None,
        };
        if hours > 18 || minutes > 59 {
            return None;
        }
        let seconds = sign * (hours * 3600 + minutes * 60) as i32;
        Some(Some(Offset::from_seconds(seconds).ok()?))
    }
}

/// `[-]digits[.digits]` as a count and the thousandths behind the point (with the count's sign).
pub(super) fn epoch_count(field: &str) -> Option<(i64, i64)> {
    let (whole, fraction) = field.split_once('.').unwrap_or((field, "0"));
    let digits = whole.strip_prefix('-').unwrap_or(whole);
    let digits_only = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits_only(digits) || !digits_only(fraction) {
        return None;
    }
    let thousandths = fraction.bytes().chain(std::iter::repeat(b'0')).take(3);
    let thousandths = thousandths.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    Some((whole.parse().ok()?, if whole.starts_with('-') { -thousandths } else { thousandths }))
}
