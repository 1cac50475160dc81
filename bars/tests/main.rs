//! Tests of the crate from outside, as a program uses it.

mod calendar;
mod cases;
mod features;
mod formats;
mod mutated;
mod parquet_files;
mod prepared;
mod repairs;
mod samples;
mod symbols;
mod synthetic;

use bars::{BarError, LoadOptions, Loaded, RowError, load_bytes};

/// Loads text as `t.csv` without options.
pub fn load_text(text: &str) -> Result<Loaded, BarError> {
    load_bytes("t.csv", text.as_bytes(), &LoadOptions::default())
}

/// The row error that loading gives.
pub fn row_error(text: &str, options: &LoadOptions) -> RowError {
    match load_bytes("t.csv", text.as_bytes(), options) {
        Err(error) => error.row().unwrap_or_else(|| panic!("expected a row error, got: {error}")).clone(),
        Ok(loaded) => panic!("expected an error, got {} bars", loaded.bars.len()),
    }
}

/// The error text that loading gives.
pub fn error_text(text: &str, options: &LoadOptions) -> String {
    match load_bytes("t.csv", text.as_bytes(), options) {
        Err(error) => error.to_string(),
        Ok(loaded) => panic!("expected an error, got {} bars", loaded.bars.len()),
    }
}

/// A CSV file of daily or other bars at the given times, prices between 99 and 102.
pub fn csv_at(times: &[i64]) -> String {
    let mut text = "timestamp,open,high,low,close,volume\n".to_owned();
    for (i, time) in times.iter().enumerate() {
        let close = 100.0 + (i * 7 % 11) as f64 / 10.0;
        text += &format!("{time},100,102,99,{close},{}\n", 10 + i % 5);
    }
    text
}
