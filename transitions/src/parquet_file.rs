//! Parquet: a column per array, lists for states and for actions of several branches.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, UInt64Type};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::column::{Column, NAMES, Values};
use crate::error::TransitionError;
use crate::source::LARGEST;

/// Rows decoded at a time: memory grows with what is really there, whatever the header claims.
const BATCH: usize = 4096;

pub(crate) fn read(file: &str, path: &Path) -> Result<Vec<Column>, TransitionError> {
    let wrong = |error: &dyn std::fmt::Display| {
        TransitionError::file(
            file,
            format!(
                "is damaged, or compressed in a way that is not read here (uncompressed, snappy and zstd are): {error}"
            ),
        )
    };
    let reader = File::open(path).map_err(|error| TransitionError::Io { file: file.into(), error })?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(reader).map_err(|error| wrong(&error))?;
    let known = |name: &str| NAMES.iter().any(|(_, names)| names.contains(&name));
    let fields: Vec<(usize, String)> = builder
        .schema()
        .fields()
        .iter()
        .enumerate()
        .filter(|(_, field)| known(field.name()))
        .map(|(i, field)| (i, field.name().clone()))
        .collect();
    if fields.is_empty() {
        let all: Vec<&str> = builder.schema().fields().iter().map(|field| field.name().as_str()).collect();
        let message =
            format!("has columns {}, none of which is one of a transition data set", all.join(", "));
        return Err(TransitionError::file(file, message));
    }
    let mask = ProjectionMask::roots(builder.parquet_schema(), fields.iter().map(|(i, _)| *i));
    let batches =
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|error| wrong(&error))?;
    let mut growing: Vec<Growing> =
        fields.into_iter().map(|(_, name)| Growing { name, width: None, rows: 0, values: None }).collect();
    for batch in batches {
        let batch = batch.map_err(|error| wrong(&error))?;
        for growing in &mut growing {
            let array = batch.column_by_name(&growing.name).ok_or_else(|| wrong(&"a column is missing"))?;
            growing.take(file, array)?;
        }
    }
    growing.into_iter().map(|growing| growing.finish(file)).collect()
}

/// Whether a file has the column that only transition data sets have.
pub(crate) fn has_rewards(path: &Path) -> bool {
    let builder = File::open(path).ok().and_then(|file| ParquetRecordBatchReaderBuilder::try_new(file).ok());
    builder.is_some_and(|builder| builder.schema().column_with_name("rewards").is_some())
}

/// A column of which some rows have been read.
struct Growing {
    name: String,
    /// Elements of a row; none of a column without lists.
    width: Option<usize>,
    rows: usize,
    values: Option<Values>,
}

impl Growing {
    fn take(&mut self, file: &str, array: &ArrayRef) -> Result<(), TransitionError> {
        let empty = |row: usize| {
            TransitionError::value(file, &self.name, (row, None), "null", "a value in every row")
        };
        if let Some(row) = (0..array.len()).find(|&row| array.is_null(row)) {
            return Err(empty(self.rows + row));
        }
        let (elements, lengths): (ArrayRef, Option<Vec<usize>>) = match array.data_type() {
            DataType::List(_) => {
                let list = array.as_list::<i32>();
                let offsets = list.value_offsets();
                let (from, to) = (offsets[0] as usize, offsets[array.len()] as usize);
                let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
                (list.values().slice(from, to - from), Some(lengths))
            }
            DataType::LargeList(_) => {
                let list = array.as_list::<i64>();
                let offsets = list.value_offsets();
                let (from, to) = (offsets[0] as usize, offsets[array.len()] as usize);
                let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
                (list.values().slice(from, to - from), Some(lengths))
            }
            DataType::FixedSizeList(_, width) => {
                let (list, width) = (array.as_fixed_size_list(), *width as usize);
                let from = list.value_offset_at(0);
                (list.values().slice(from, width * array.len()), Some(vec![width; array.len()]))
            }
            _ => (array.clone(), None),
        };
        for (row, length) in lengths.iter().flatten().enumerate() {
            let width = *self.width.get_or_insert(*length);
            if *length != width || width == 0 {
                let value = format!("a list of {length}");
                let expected = format!("a list of {}, as in the rows before", width.max(1));
                return Err(TransitionError::value(
                    file,
                    &self.name,
                    (self.rows + row, None),
                    value,
                    expected,
                ));
            }
        }
        if let Some(i) = (0..elements.len()).find(|&i| elements.is_null(i)) {
            return Err(empty(self.rows + i / self.width.unwrap_or(1)));
        }
        let more = values(file, &self.name, &elements)?;
        self.rows += array.len();
        let fits = match &mut self.values {
            None => {
                self.values = Some(more);
                true
            }
            Some(all) => all.append(more),
        };
        let bytes = self.values.as_ref().map_or(0, |all| all.len() as u64 * 4);
        if !fits || bytes > LARGEST {
            let message = format!("{} changes its type, or has more than {LARGEST} bytes", self.name);
            return Err(TransitionError::file(file, message));
        }
        Ok(())
    }

    fn finish(self, file: &str) -> Result<Column, TransitionError> {
        let shape = match self.width {
            Some(width) => vec![self.rows, width],
            None => vec![self.rows],
        };
        // A file without rows has no type here; an empty list of any does.
        Column::new(file, &self.name, shape, self.values.unwrap_or(Values::F32(Vec::new())))
    }
}

fn values(file: &str, name: &str, elements: &ArrayRef) -> Result<Values, TransitionError> {
    let wrong = |error: arrow::error::ArrowError| TransitionError::file(file, format!("{name}: {error}"));
    Ok(match elements.data_type() {
        DataType::Float32 => Values::F32(elements.as_primitive::<Float32Type>().values().to_vec()),
        DataType::Float64 => Values::F64(elements.as_primitive::<Float64Type>().values().to_vec()),
        DataType::Float16 => {
            let wide = cast(elements, &DataType::Float64).map_err(wrong)?;
            Values::F64(wide.as_primitive::<Float64Type>().values().to_vec())
        }
        DataType::UInt64 => Values::unsigned(file, name, elements.as_primitive::<UInt64Type>().values())?,
        kind if kind.is_integer() => {
            let wide = cast(elements, &DataType::Int64).map_err(wrong)?;
            Values::Integers(wide.as_primitive::<Int64Type>().values().to_vec())
        }
        DataType::Boolean => Values::Flags(elements.as_boolean().values().iter().collect()),
        other => {
            let message = format!("{name} has type {other}, expected numbers, booleans, or lists of them");
            return Err(TransitionError::file(file, message));
        }
    })
}
