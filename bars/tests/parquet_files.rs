//! Parquet files with columns of various types.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Date32Array, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray,
};
use bars::{BarError, LoadOptions, Loaded, Place, Problem, load_bytes, utc_text};

/// A Parquet file with the given columns.
fn file(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

/// Time column and close given, the other prices fixed.
fn load(time: ArrayRef, close: ArrayRef) -> Result<Loaded, BarError> {
    let column = |x: f64| Arc::new(Float64Array::from(vec![x; time.len()])) as ArrayRef;
    let columns = vec![
        ("Close", close),
        ("Date", time.clone()),
        ("Open", column(1.0)),
        ("High", column(2.0)),
        ("Low", column(0.5)),
    ];
    load_bytes("t.parquet", &file(columns), &LoadOptions::default())
}

fn closes(values: Vec<f64>) -> ArrayRef {
    Arc::new(Float64Array::from(values))
}

#[test]
fn dates_and_integer_epochs() {
    let loaded = load(Arc::new(Date32Array::from(vec![17_167, 17_168])), closes(vec![1.0, 1.5])).unwrap();
    assert_eq!(utc_text(loaded.bars.time_ms[0]), "2017-01-01 00:00");
    assert_eq!(loaded.bars.close, [1.0, 1.5], "columns are found by name, whatever their order");
    for scale in [1, 1_000, 1_000_000, 1_000_000_000] {
        let times: Vec<i64> = [1_485_986_400, 1_485_990_000].map(|t| t * scale).to_vec();
        let loaded = load(Arc::new(Int64Array::from(times)), closes(vec![1.0, 1.5])).unwrap();
        assert_eq!(loaded.bars.time_ms, [1_485_986_400_000, 1_485_990_000_000]);
    }
    let seconds = Arc::new(Int32Array::from(vec![1_485_986_400, 1_485_990_000]));
    assert_eq!(load(seconds, closes(vec![1.0, 1.5])).unwrap().bars.time_ms[1], 1_485_990_000_000);
    let mixed = Arc::new(Int64Array::from(vec![1_485_986_400, 1_485_990_000_000]));
    let error = load(mixed, closes(vec![1.0, 1.5])).unwrap_err();
    assert_eq!(error.row().map(|row| (row.place, row.problem)), Some((Place::Row(2), Problem::Timestamp)));
}

#[test]
fn prices_of_other_types() {
    let times: ArrayRef = Arc::new(Date32Array::from(vec![17_167, 17_168]));
    let loaded = load(times.clone(), Arc::new(Float32Array::from(vec![1.25, 1.5]))).unwrap();
    assert_eq!(loaded.bars.close, [1.25, 1.5]);
    let loaded = load(times.clone(), Arc::new(Int32Array::from(vec![1, 2]))).unwrap();
    assert_eq!(loaded.bars.close, [1.0, 2.0]);
    let error = load(times, Arc::new(StringArray::from(vec!["1", "2"]))).unwrap_err().to_string();
    assert!(error.contains("\"Close\" has type Utf8; expected numbers"), "{error}");
    let error =
        load(Arc::new(StringArray::from(vec!["2017-01-01"])), closes(vec![1.0])).unwrap_err().to_string();
    assert!(error.contains("\"Date\" has type Utf8"), "{error}");
}

#[test]
fn nulls_and_non_finite_values_name_row_and_column() {
    let times: ArrayRef = Arc::new(Date32Array::from(vec![17_167, 17_168, 17_169]));
    let null: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, Some(1.0)]));
    let error = load(times.clone(), null).unwrap_err();
    let row = error.row().unwrap();
    assert_eq!((row.place, row.column.as_str(), row.problem), (Place::Row(2), "Close", Problem::Missing));
    let error = load(times.clone(), closes(vec![1.0, 1.0, f64::INFINITY])).unwrap_err();
    assert_eq!(error.row().map(|row| (row.place, row.problem)), Some((Place::Row(3), Problem::NotFinite)));
    let error = load(times, closes(vec![f64::NAN, 1.0, 1.0])).unwrap_err();
    assert_eq!(error.row().map(|row| (row.place, row.problem)), Some((Place::Row(1), Problem::Missing)));
    let null: ArrayRef = Arc::new(Date32Array::from(vec![Some(17_167), None]));
    let error = load(null, closes(vec![1.0, 1.0])).unwrap_err();
    assert_eq!(error.row().unwrap().column, "Date");
}

#[test]
fn too_many_rows_are_refused_before_they_are_read() {
    let times: ArrayRef = Arc::new(Date32Array::from_iter_values(0..1000));
    let price = closes(vec![1.0; 1000]);
    let columns = ["time", "open", "high", "low", "close"];
    let columns: Vec<_> = columns
        .iter()
        .map(|name| (*name, if *name == "time" { times.clone() } else { price.clone() }))
        .collect();
    let bytes = file(columns);
    let options = LoadOptions { max_rows: 999, ..LoadOptions::default() };
    let error = load_bytes("t.parquet", &bytes, &options).unwrap_err().to_string();
    assert!(error.contains("1000 rows, more than 999"), "{error}");
    assert_eq!(load_bytes("t.parquet", &bytes, &LoadOptions::default()).unwrap().bars.len(), 1000);
    let error = load_bytes("t.parquet", &bytes[..bytes.len() - 9], &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("damaged Parquet file"), "{error}");
}

/// `gzip.parquet` is a whole file of three hourly bars that pyarrow wrote with gzip.
#[test]
fn a_codec_that_is_not_read_is_named_and_not_called_damage() {
    let bytes = include_bytes!("cases/gzip.parquet");
    let error = load_bytes("gzip.parquet", bytes, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("\"time\" is compressed with GZIP") && !error.contains("damaged"), "{error}");
}
