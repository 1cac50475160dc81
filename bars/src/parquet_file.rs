//! Parquet files: a time column (timestamp of any unit and zone, date, or integer epoch) and price columns
//! of any numeric type.

use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::basic::Compression;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::ChunkReader;

use crate::checks::Row;
use crate::collectors::{Collectors, SymbolBars};
use crate::csv_file::Columns;
use crate::error::{BarError, Place, Problem, RowError};
use crate::options::{LoadOptions, Price};
use crate::series::Bar;
use crate::source::{Source, io_error};
use crate::time::EpochUnit;

/// Rows decoded at a time.
const BATCH: usize = 8192;
/// Largest column chunk, in decoded bytes per row, beyond a fixed allowance for small files. Twelve bytes is
/// the widest plain value (INT96); dictionaries and levels at most double it.
const BYTES_PER_ROW: u64 = 32;
const ALLOWANCE: u64 = 1 << 24;

/// What was found out about a Parquet file, for the report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ParquetFormat {
    pub(crate) time: String,
    pub(crate) columns: Columns,
}

/// Reads a Parquet file. The decoder is someone else's code and the file may be malicious or damaged, so a
/// panic in it becomes an error here.
pub(crate) fn read(
    file: &str,
    source: Source<'_>,
    options: &LoadOptions,
) -> Result<(Vec<SymbolBars>, ParquetFormat), BarError> {
    let decode = || match source {
        Source::Path(path) => decode(file, File::open(path).map_err(|error| io_error(file, error))?, options),
        Source::Bytes(bytes) => decode(file, bytes::Bytes::copy_from_slice(bytes), options),
    };
    quietly(|| catch_unwind(AssertUnwindSafe(decode)))
        .unwrap_or_else(|_| Err(BarError::file(file, "damaged Parquet file: its decoder gave up")))
}

/// Runs what may panic in someone else's code without the message that a panic prints: the error says what there is to
/// say. Panics on other threads print as ever.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = run();
    QUIET.set(before);
    result
}

/// A codec that this build does not hold is no damage: the file is whole, and says how it is compressed.
fn readable_codecs(file: &str, metadata: &ParquetMetaData) -> Result<(), BarError> {
    for column in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        let codec = column.compression();
        if !matches!(codec, Compression::UNCOMPRESSED | Compression::SNAPPY | Compression::ZSTD(_)) {
            let name = column.column_path().string();
            let message = format!(
                "column {name:?} is compressed with {codec}; uncompressed, snappy and zstd files are read: write the \
                 file anew with one of them"
            );
            return Err(BarError::file(file, message));
        }
    }
    Ok(())
}

fn decode<R: ChunkReader + 'static>(
    file: &str,
    reader: R,
    options: &LoadOptions,
) -> Result<(Vec<SymbolBars>, ParquetFormat), BarError> {
    let wrong =
        |error: &dyn std::fmt::Display| BarError::file(file, format!("damaged Parquet file: {error}"));
    let builder = ParquetRecordBatchReaderBuilder::try_new(reader).map_err(|error| wrong(&error))?;
    readable_codecs(file, builder.metadata())?;
    let schema = builder.schema().clone();
    let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let symbol = options.symbol_column.as_deref();
    let columns = match &options.columns {
        Some(given) if given.len() != names.len() => {
            let expected = format!("the file has {} columns, name each (\"-\" to ignore)", names.len());
            return Err(BarError::option("columns", format!("{} names", given.len()), expected));
        }
        Some(given) => Columns::from_names(file, given.clone(), symbol)?,
        None => Columns::from_names(file, names.clone(), symbol)?,
    };
    if columns.clock.is_some() {
        return Err(BarError::file(file, "date and time in two columns: not supported in Parquet files"));
    }
    let adjusted = match (options.price, columns.adjusted) {
        (Price::Raw, _) => None,
        (Price::Adjusted, Some(column)) => Some(column),
        (Price::Adjusted, None) => {
            let expected = "this needs a column of adjusted closes (Adj Close)";
            return Err(BarError::option("price", "adjusted", expected));
        }
    };
    let time_type = schema.field(columns.time).data_type().clone();
    let time = TimeColumn::of_type(file, &names[columns.time], &time_type)?;

    // Roots of the schema and leaves of the file are the same only without nested columns, so chunks are
    // checked for all columns that are decoded.
    let mut used = vec![columns.time];
    used.extend(columns.prices);
    used.extend(columns.volume);
    used.extend(adjusted);
    used.extend(columns.symbol);
    used.sort_unstable();
    let mask = ProjectionMask::roots(builder.parquet_schema(), used.iter().copied());
    let rows = builder.metadata().file_metadata().num_rows();
    let claimed = u64::try_from(rows).map_err(|_| wrong(&format!("it claims {rows} rows")))?;
    if claimed > options.max_rows {
        let message =
            format!("{claimed} rows, more than {}; raise max_rows if that is meant", options.max_rows);
        return Err(BarError::file(file, message));
    }
    let in_groups: i128 =
        builder.metadata().row_groups().iter().map(|group| i128::from(group.num_rows())).sum();
    if in_groups != i128::from(rows) {
        return Err(wrong(&format!("it claims {rows} rows, its row groups {in_groups}")));
    }
    for group in builder.metadata().row_groups() {
        for (leaf, chunk) in group.columns().iter().enumerate() {
            // A flat column has a value, or a null, for every row: with fewer rows than values some would be lost.
            let flat = chunk.column_descr().max_rep_level() == 0;
            if mask.leaf_included(leaf) && flat && chunk.num_values() != group.num_rows() {
                let message = format!(
                    "column {} has {} values for {} rows",
                    chunk.column_path(),
                    chunk.num_values(),
                    group.num_rows()
                );
                return Err(wrong(&message));
            }
            let most = ALLOWANCE + BYTES_PER_ROW * u64::try_from(group.num_rows()).unwrap_or(0);
            if mask.leaf_included(leaf)
                && u64::try_from(chunk.uncompressed_size()).is_ok_and(|size| size > most)
            {
                let message = format!(
                    "column {} claims {} bytes for {} rows",
                    chunk.column_path(),
                    chunk.uncompressed_size(),
                    group.num_rows()
                );
                return Err(wrong(&message));
            }
        }
    }
    let reader =
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|error| wrong(&error))?;
    let table = Table { file, options, columns: &columns, names: &names, used, adjusted };
    let texts = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View];
    let is_text = |column: usize| texts.contains(schema.field(column).data_type());
    let (collected, unit) =
        table.read(reader, time, claimed).map_err(|error| columns.with_hint(error, is_text))?;
    Ok((collected, ParquetFormat { time: time.describe(&time_type, unit), columns }))
}

/// How the time column's values become milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TimeColumn {
    /// Arrow timestamps: a count of this unit, UTC whatever zone is attached; without a zone UTC is meant.
    Timestamp(EpochUnit),
    /// Days since 1970.
    Days,
    /// Plain integers whose unit follows from their magnitude.
    Integer,
}

impl TimeColumn {
    fn of_type(file: &str, name: &str, data_type: &DataType) -> Result<Self, BarError> {
        Ok(match data_type {
            DataType::Timestamp(TimeUnit::Second, _) => TimeColumn::Timestamp(EpochUnit::Seconds),
            DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => {
                TimeColumn::Timestamp(EpochUnit::Milliseconds)
            }
            DataType::Timestamp(TimeUnit::Microsecond, _) => TimeColumn::Timestamp(EpochUnit::Microseconds),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => TimeColumn::Timestamp(EpochUnit::Nanoseconds),
            DataType::Date32 => TimeColumn::Days,
            DataType::Int64 | DataType::Int32 | DataType::UInt64 | DataType::UInt32 => TimeColumn::Integer,
            other => {
                let message = format!(
                    "column {name:?} has type {other}; expected a timestamp, a date or an integer epoch"
                );
                return Err(BarError::file(file, message));
            }
        })
    }

    fn describe(self, data_type: &DataType, unit: Option<EpochUnit>) -> String {
        match (self, unit) {
            (TimeColumn::Integer, Some(unit)) => format!("integer epoch in {unit:?}"),
            _ => data_type.to_string(),
        }
    }

    /// Milliseconds of a value; the unit of plain integers is that of the first value and must not change.
    fn to_ms(self, value: i64, unit: &mut Option<EpochUnit>) -> Result<i64, String> {
        let (unit, count) = match self {
            TimeColumn::Timestamp(unit) => (unit, value),
            TimeColumn::Days => (EpochUnit::Seconds, value.saturating_mul(86_400)),
            TimeColumn::Integer => {
                let magnitude = EpochUnit::of_magnitude(value);
                let found = unit.or(magnitude).ok_or("no count of s, ms, us or ns between 1971 and 2199")?;
                if magnitude.is_some_and(|magnitude| magnitude != found) {
                    return Err(format!("this is {magnitude:?}, earlier rows are {found:?}"));
                }
                *unit = Some(found);
                (found, value)
            }
        };
        unit.to_ms(count).ok_or_else(|| "lies outside the years 1900 to 2199".to_owned())
    }
}

struct Table<'a> {
    file: &'a str,
    options: &'a LoadOptions,
    columns: &'a Columns,
    names: &'a [String],
    /// Decoded columns, sorted: position in a batch -> column of the file.
    used: Vec<usize>,
    adjusted: Option<usize>,
}

/// The decoded columns of a batch, cast.
struct Batch {
    time: ArrayRef,
    /// Open, high, low, close, then volume and adjusted close if used: column and values.
    numbers: Vec<(usize, ArrayRef)>,
    /// Names of the symbols as text, where there is such a column.
    symbol: Option<ArrayRef>,
}

impl Table<'_> {
    fn read(
        &self,
        reader: ParquetRecordBatchReader,
        time: TimeColumn,
        claimed: u64,
    ) -> Result<(Vec<SymbolBars>, Option<EpochUnit>), BarError> {
        let mut collector =
            Collectors::new(self.file, self.options, Place::Row, self.columns.volume.is_some());
        let mut unit = self.options.time_format.as_ref().and_then(|format| match format {
            crate::time::TimeFormat::Epoch(unit) => Some(*unit),
            _ => None,
        });
        let mut number = 0;
        for batch in reader {
            let batch =
                batch.map_err(|error| BarError::file(self.file, format!("damaged Parquet file: {error}")))?;
            let batch = self.cast(&batch)?;
            for i in 0..batch.time.len() {
                number += 1;
                let row = self.row(&collector, &batch, i, number, time, &mut unit);
                let symbol = batch.symbol.as_ref().map(|names| {
                    let names = names.as_string::<i32>();
                    if names.is_null(i) { "" } else { names.value(i) }
                });
                collector.push(number, symbol, row)?;
            }
        }
        if number == 0 {
            return Err(BarError::file(self.file, "the file has no rows"));
        }
        if number != claimed {
            let message = format!("damaged Parquet file: it claims {claimed} rows and holds {number}");
            return Err(BarError::file(self.file, message));
        }
        Ok((collector.finish()?, unit))
    }

    /// Casts the time column to i64 and the others to f64; what cannot be cast is an error, not a null.
    fn cast(&self, batch: &RecordBatch) -> Result<Batch, BarError> {
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let cast = |column: usize, to: &DataType| {
            let position = self.used.iter().position(|&used| used == column).unwrap_or(0);
            let array = batch.column(position);
            let from = array.data_type();
            let numeric = from.is_numeric() && !matches!(from, DataType::Float16);
            if *to == DataType::Float64 && !numeric {
                let message = format!("column {:?} has type {from}; expected numbers", self.names[column]);
                return Err(BarError::file(self.file, message));
            }
            cast_with_options(array, to, &strict).map_err(|error| {
                BarError::file(self.file, format!("column {:?}: {error}", self.names[column]))
            })
        };
        let numbers = self.columns.prices.into_iter().chain(self.columns.volume).chain(self.adjusted);
        let symbol = self.columns.symbol.map(|column| {
            let name = &self.names[column];
            let from =
                batch.column(self.used.iter().position(|&used| used == column).unwrap_or(0)).data_type();
            let texts = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View];
            let is_name = |kind: &DataType| kind.is_integer() || texts.contains(kind);
            let named = match from {
                DataType::Dictionary(_, values) => is_name(values),
                other => is_name(other),
            };
            if !named {
                let message = format!("column {name:?} has type {from}; expected names of symbols");
                return Err(BarError::file(self.file, message));
            }
            cast(column, &DataType::Utf8)
        });
        Ok(Batch {
            symbol: symbol.transpose()?,
            time: cast(self.columns.time, &DataType::Int64)?,
            numbers: numbers
                .map(|column| Ok((column, cast(column, &DataType::Float64)?)))
                .collect::<Result<_, BarError>>()?,
        })
    }

    fn row(
        &self,
        collector: &Collectors<'_>,
        batch: &Batch,
        i: usize,
        number: u64,
        time: TimeColumn,
        unit: &mut Option<EpochUnit>,
    ) -> Result<Row, Box<RowError>> {
        let missing =
            |column: usize| collector.error(number, &self.names[column], "null", Problem::Missing, "");
        if batch.time.is_null(i) {
            return Err(missing(self.columns.time));
        }
        let instant = batch.time.as_primitive::<Int64Type>().value(i);
        let time_ms = time.to_ms(instant, unit).map_err(|detail| {
            let name = &self.names[self.columns.time];
            collector.error(number, name, instant.to_string(), Problem::Timestamp, detail)
        })?;
        let mut values = [0.0; 6];
        for ((column, array), value) in batch.numbers.iter().zip(&mut values) {
            if array.is_null(i) {
                return Err(missing(*column));
            }
            *value = array.as_primitive::<Float64Type>().value(i);
            if !value.is_finite() {
                let problem = if value.is_nan() { Problem::Missing } else { Problem::NotFinite };
                return Err(collector.error(number, &self.names[*column], value.to_string(), problem, ""));
            }
        }
        let [open, high, low, close, fifth, sixth] = values;
        let (volume, adjusted) = match (self.columns.volume, self.adjusted) {
            (Some(_), adjusted) => (fifth, adjusted.map(|_| sixth)),
            (None, adjusted) => (0.0, adjusted.map(|_| fifth)),
        };
        Ok(Row { bar: Bar { time_ms, open, high, low, close, volume }, adjusted })
    }
}
