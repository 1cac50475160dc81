//! Writing bars as CSV and Parquet, in the forms that [`crate::load`] reads without options.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, TimestampMillisecondArray};
use parquet::arrow::ArrowWriter;

use crate::error::BarError;
use crate::series::Bars;
use crate::source::io_error;

/// Writes `timestamp,open,high,low,close[,volume]` with times as ISO 8601 in UTC and numbers with as many
/// digits as they need to read back equal. `name` stands for the file in errors.
///
/// # Errors
/// If writing fails.
pub fn write_csv(name: &str, bars: &Bars, out: impl Write) -> Result<(), BarError> {
    let failed = |error: csv::Error| io_error(name, error.into());
    let mut writer = csv::Writer::from_writer(out);
    let header = ["timestamp", "open", "high", "low", "close", "volume"];
    let columns = if bars.has_volume { 6 } else { 5 };
    writer.write_record(&header[..columns]).map_err(failed)?;
    for i in 0..bars.len() {
        let bar = bars.bar(i);
        let time = jiff::Timestamp::from_millisecond(bar.time_ms).map_err(|error| {
            BarError::file(name, format!("time {} ms cannot be written: {error}", bar.time_ms))
        })?;
        let mut record = vec![time.to_string()];
        record.extend([bar.open, bar.high, bar.low, bar.close, bar.volume].map(|number| number.to_string()));
        writer.write_record(&record[..columns]).map_err(failed)?;
    }
    writer.flush().map_err(|error| io_error(name, error))
}

/// Writes the same columns as Parquet, times as UTC timestamps in milliseconds.
///
/// # Errors
/// If writing fails.
pub fn write_parquet(name: &str, bars: &Bars, out: impl Write + Send) -> Result<(), BarError> {
    let failed = |error: &dyn std::fmt::Display| BarError::file(name, format!("cannot be written: {error}"));
    let time = TimestampMillisecondArray::from(bars.time_ms.clone()).with_timezone("UTC");
    let mut columns: Vec<(&str, ArrayRef)> = vec![("timestamp", Arc::new(time))];
    let prices = [("open", &bars.open), ("high", &bars.high), ("low", &bars.low), ("close", &bars.close)];
    let volume = bars.has_volume.then_some(("volume", &bars.volume));
    for (column, values) in prices.into_iter().chain(volume) {
        columns.push((column, Arc::new(Float64Array::from(values.clone()))));
    }
    let batch = RecordBatch::try_from_iter(columns).map_err(|error| failed(&error))?;
    let mut writer = ArrowWriter::try_new(out, batch.schema(), None).map_err(|error| failed(&error))?;
    writer.write(&batch).map_err(|error| failed(&error))?;
    writer.close().map_err(|error| failed(&error))?;
    Ok(())
}
