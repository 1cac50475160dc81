//! Delimited text files. Two passes in constant memory: the first finds the number and timestamp formats
//! over the whole file, the second reads rows.

mod columns;
mod sniff;

use std::io::Read;
use std::rc::Rc;

use csv::{ByteRecord, Reader, ReaderBuilder};

pub(crate) use columns::Columns;

use crate::checks::Row;
use crate::collectors::{Collectors, SymbolBars};
use crate::error::{BarError, Place, Problem, RowError, excerpt};
use crate::numbers::{NumberDetector, NumberFormat, is_missing};
use crate::options::{LoadOptions, Price};
use crate::series::Bar;
use crate::source::{Fed, Feed, Source, io_error};
use crate::time::{TimeDetector, TimeReader};

/// Bytes that are looked at to find delimiter and header.
const HEAD: usize = 1 << 18;

/// What was found out about a text file, for the report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CsvFormat {
    pub(crate) delimiter: char,
    pub(crate) header: bool,
    pub(crate) numbers: NumberFormat,
    pub(crate) time: String,
    pub(crate) zoned: bool,
    pub(crate) columns: Columns,
}

/// Reads a text file.
pub(crate) fn read(
    file: &str,
    source: Source<'_>,
    options: &LoadOptions,
) -> Result<(Vec<SymbolBars>, CsvFormat), BarError> {
    let mut head = Vec::new();
    let opened = source.open_after(options.skip_lines).map_err(|error| io_error(file, error))?;
    opened.take(HEAD as u64).read_to_end(&mut head).map_err(|error| io_error(file, error))?;
    refuse_foreign(file, &head)?;
    let table = Table::open(file, source, options, &head)?;
    let (numbers, time, records) = table.find_formats(options)?;
    let mut times = TimeReader::new(time.clone());
    let collected = table.read_rows(options, numbers, &mut times, records);
    let collected = collected.map_err(|error| table.columns.with_hint(error, |i| table.is_text(&head, i)))?;
    let format = CsvFormat {
        delimiter: char::from(table.delimiter),
        header: table.header,
        numbers,
        time: time.to_string(),
        zoned: times.zoned(),
        columns: table.columns,
    };
    Ok((collected, format))
}

/// Files that are no text in UTF-8 (or ASCII) at all.
fn refuse_foreign(file: &str, head: &[u8]) -> Result<(), BarError> {
    let known: [(&[u8], &str); 6] = [
        (b"\xff\xfe", "UTF-16 text; convert it to UTF-8"),
        (b"\xfe\xff", "UTF-16 text; convert it to UTF-8"),
        (b"\x1f\x8b", "gzip-compressed; unpack it first"),
        (b"\x28\xb5\x2f\xfd", "zstd-compressed; unpack it first"),
        (b"PK\x03\x04", "a ZIP archive or a spreadsheet; unpack it or export it as CSV"),
        (b"\xd0\xcf\x11\xe0", "a spreadsheet; export it as CSV"),
    ];
    if let Some((_, what)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(BarError::file(file, format!("this is {what}")));
    }
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    if head.trim_ascii().is_empty() {
        return Err(BarError::file(file, "the file is empty"));
    }
    if head.contains(&0) {
        return Err(BarError::file(file, "the file contains zero bytes: neither text nor Parquet"));
    }
    Ok(())
}

/// A text file with its layout.
struct Table<'a> {
    file: &'a str,
    source: Source<'a>,
    skip_lines: usize,
    delimiter: u8,
    header: bool,
    columns: Columns,
}

impl<'a> Table<'a> {
    fn open(file: &'a str, source: Source<'a>, options: &LoadOptions, head: &[u8]) -> Result<Self, BarError> {
        let delimiter = match options.delimiter {
            // Checked to be ASCII with the options.
            Some(delimiter) => delimiter as u8,
            None => sniff::delimiter(file, head)?,
        };
        let mut first = ByteRecord::new();
        let mut reader = builder(delimiter).from_reader(head);
        reader.read_byte_record(&mut first).map_err(|error| csv_error(file, 0, error))?;
        let fields: Vec<&[u8]> = first.iter().map(trim).collect();
        let header = options.header.unwrap_or_else(|| sniff::is_header(&fields));
        let symbol = options.symbol_column.as_deref();
        let columns = match &options.columns {
            Some(names) if names.len() != fields.len() => {
                let expected =
                    format!("the first record has {} fields, name each (\"-\" to ignore)", fields.len());
                return Err(BarError::option("columns", format!("{} names", names.len()), expected));
            }
            Some(names) => Columns::from_names(file, names.clone(), symbol)?,
            None if header => {
                let names = fields.iter().map(|field| String::from_utf8_lossy(field).into_owned());
                Columns::from_names(file, names.collect(), symbol)?
            }
            None => Columns::without_header(file, &fields, symbol)?,
        };
        if options.price == Price::Adjusted && columns.adjusted.is_none() {
            let expected = "this needs a column of adjusted closes (Adj Close)";
            return Err(BarError::option("price", "adjusted", expected));
        }
        Ok(Self { file, source, skip_lines: options.skip_lines, delimiter, header, columns })
    }

    /// Whether the first data row has letters in a column.
    fn is_text(&self, head: &[u8], column: usize) -> bool {
        let mut records = builder(self.delimiter).from_reader(head).into_byte_records();
        let first = records.nth(usize::from(self.header)).and_then(Result::ok);
        first.is_some_and(|record| {
            record.get(column).is_some_and(|field| field.iter().any(u8::is_ascii_alphabetic))
        })
    }

    /// First pass: the formats that fit all rows, and how many records there are.
    fn find_formats(
        &self,
        options: &LoadOptions,
    ) -> Result<(NumberFormat, crate::time::TimeFormat, u64), BarError> {
        let (mut numbers, mut times) = (NumberDetector::new(), TimeDetector::new());
        let mut numeric = self.columns.prices.to_vec();
        numeric.extend(self.columns.volume);
        numeric.extend(self.columns.adjusted.filter(|_| options.price == Price::Adjusted));
        let mut records = self.records()?;
        while records.advance()? {
            let (line, record) = (records.line, &records.record);
            if record.len() != self.columns.names.len() {
                continue;
            }
            let wrong = |message| BarError::file(self.file, message);
            if options.numbers.is_none() {
                for &column in &numeric {
                    numbers.look(line, trim(&record[column])).map_err(wrong)?;
                }
            }
            if options.time_format.is_none() {
                times.look(line, &self.time_text(record)).map_err(wrong)?;
            }
        }
        if records.count == 0 {
            return Err(BarError::file(self.file, "the file has no data rows"));
        }
        let wrong = |message| BarError::file(self.file, message);
        let numbers = match options.numbers {
            Some(format) => format,
            None => numbers.decide(self.delimiter == b';').map_err(wrong)?,
        };
        let time = match &options.time_format {
            Some(format) => format.clone(),
            None => times.decide().map_err(wrong)?,
        };
        Ok((numbers, time, records.count))
    }

    /// Second pass: the rows.
    fn read_rows(
        &self,
        options: &LoadOptions,
        numbers: NumberFormat,
        times: &mut TimeReader,
        expected: u64,
    ) -> Result<Vec<SymbolBars>, BarError> {
        let mut collector = Collectors::new(self.file, options, Place::Line, self.columns.volume.is_some());
        let mut records = self.records()?;
        while records.advance()? {
            let (line, record) = (records.line, &records.record);
            let symbol = match self.columns.symbol {
                Some(column) if record.len() == self.columns.names.len() => {
                    Some(String::from_utf8_lossy(trim(&record[column])))
                }
                // The row's error says that its fields are not those of the header.
                _ => None,
            };
            let row = self.row(&collector, line, record, options, numbers, times);
            collector.push(line, symbol.as_deref(), row)?;
        }
        if records.count != expected {
            return Err(BarError::file(self.file, "the file changed while it was read"));
        }
        collector.finish()
    }

    /// One record as a row.
    fn row(
        &self,
        collector: &Collectors<'_>,
        line: u64,
        record: &ByteRecord,
        options: &LoadOptions,
        numbers: NumberFormat,
        times: &mut TimeReader,
    ) -> Result<Row, Box<RowError>> {
        let names = &self.columns.names;
        if record.len() != names.len() {
            let detail = format!("expected {} as in the first record", names.len());
            let value = format!("{} fields", record.len());
            return Err(collector.error(line, "(all)", value, Problem::Ragged, detail));
        }
        let text = self.time_text(record);
        let time_name = &names[self.columns.time];
        if is_missing(text.trim().as_bytes()) {
            return Err(collector.error(line, time_name, text, Problem::Missing, ""));
        }
        let time_ms = times.read(&text).map_err(|detail| {
            collector.error(line, time_name, excerpt(text.as_bytes()), Problem::Timestamp, detail)
        })?;
        let number = |column: usize| {
            let field = trim(&record[column]);
            numbers
                .parse(field)
                .map_err(|problem| collector.error(line, &names[column], excerpt(field), problem, ""))
        };
        let [open, high, low, close] = self.columns.prices;
        let bar = Bar {
            time_ms,
            open: number(open)?,
            high: number(high)?,
            low: number(low)?,
            close: number(close)?,
            volume: self.columns.volume.map_or(Ok(0.0), number)?,
        };
        let adjusted = self.columns.adjusted.filter(|_| options.price == Price::Adjusted);
        Ok(Row { bar, adjusted: adjusted.map(number).transpose()? })
    }

    /// The timestamp's text; date and time of day from two columns are joined by a space.
    fn time_text<'r>(&self, record: &'r ByteRecord) -> std::borrow::Cow<'r, str> {
        let date = String::from_utf8_lossy(trim(&record[self.columns.time]));
        match self.columns.clock {
            None => date,
            Some(clock) => format!("{date} {}", String::from_utf8_lossy(trim(&record[clock]))).into(),
        }
    }

    /// A reader at the first data row.
    fn records(&self) -> Result<Records<'a>, BarError> {
        let source = self.source.open_after(self.skip_lines).map_err(|error| io_error(self.file, error))?;
        let (reader, feed) = Fed::new(source);
        let mut records = Records {
            file: self.file,
            reader: builder(self.delimiter).from_reader(reader),
            feed,
            record: ByteRecord::new(),
            line: 0,
            skipped: self.skip_lines as u64,
            count: 0,
        };
        if self.header {
            records.advance()?;
            records.count = 0;
        }
        Ok(records)
    }
}

/// Records with their lines.
struct Records<'a> {
    file: &'a str,
    reader: Reader<Fed<Box<dyn Read + 'a>>>,
    feed: Rc<Feed>,
    record: ByteRecord,
    /// Line on which the record starts, from 1.
    line: u64,
    skipped: u64,
    count: u64,
}

impl Records<'_> {
    /// Reads the next record that is not blank; false at the end.
    fn advance(&mut self) -> Result<bool, BarError> {
        loop {
            self.feed.renew();
            let start = self.reader.position().byte();
            let read = self.reader.read_byte_record(&mut self.record);
            let line = self.feed.line_at(start) + self.skipped;
            let more = read.map_err(|error| csv_error(self.file, line, error))?;
            if !more {
                return Ok(false);
            }
            if self.record.len() == 1 && self.record[0].trim_ascii().is_empty() {
                continue;
            }
            self.line = line;
            self.count += 1;
            return Ok(true);
        }
    }
}

fn builder(delimiter: u8) -> ReaderBuilder {
    let mut builder = ReaderBuilder::new();
    builder.delimiter(delimiter).flexible(true).has_headers(false);
    builder
}

/// A field without the white space around it.
fn trim(field: &[u8]) -> &[u8] {
    field.trim_ascii()
}

fn csv_error(file: &str, line: u64, error: csv::Error) -> BarError {
    match error.into_kind() {
        csv::ErrorKind::Io(source) if source.kind() == std::io::ErrorKind::Other => {
            BarError::file(file, format!("near line {line}: {source}"))
        }
        csv::ErrorKind::Io(source) => io_error(file, source),
        other => BarError::file(file, format!("near line {line}: {other:?}")),
    }
}
