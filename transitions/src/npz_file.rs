//! NPZ: one array per name, as `numpy.savez` and `numpy.savez_compressed` write it.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use npyz::npz::array_name_from_file_name;
use npyz::{DType, Deserialize, NpyFile, Order};
use zip::ZipArchive;

use crate::column::{Column, NAMES, Values};
use crate::error::TransitionError;
use crate::source::check_claim;

pub(crate) fn read(file: &str, path: &Path, size: u64) -> Result<Vec<Column>, TransitionError> {
    let reader = File::open(path).map_err(|error| TransitionError::Io { file: file.into(), error })?;
    let wrong =
        |error: &dyn std::fmt::Display| TransitionError::file(file, format!("is no whole NPZ file: {error}"));
    let mut archive = ZipArchive::new(BufReader::new(reader)).map_err(|error| wrong(&error))?;
    let mut columns = Vec::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|error| wrong(&error))?;
        // A name that is no text is none of those that are looked for.
        let Ok(path) = entry.name().map(|name| name.into_owned()) else { continue };
        let Some(name) = array_name_from_file_name(&path).map(str::to_owned) else { continue };
        if NAMES.iter().any(|(_, names)| names.contains(&name.as_str())) {
            let array = NpyFile::new(&mut entry).map_err(|error| {
                TransitionError::file(file, format!("{name} is no array of numpy's: {error}"))
            })?;
            columns.push(column(file, &name, array, size)?);
            // The archive's checksum is compared where an entry ends, so it has to be read to there.
            match entry.read(&mut [0]) {
                Ok(0) => {}
                Ok(_) => {
                    return Err(TransitionError::file(file, format!("{name} goes on behind its array")));
                }
                Err(error) => return Err(TransitionError::file(file, format!("{name} is damaged: {error}"))),
            }
        }
    }
    Ok(columns)
}

fn column<R: Read>(file: &str, name: &str, array: NpyFile<R>, size: u64) -> Result<Column, TransitionError> {
    let dtype = array.dtype();
    let kind = match &dtype {
        DType::Plain(kind) => kind.to_string(),
        _ => return Err(TransitionError::file(file, format!("{name} holds records, expected numbers"))),
    };
    let element = dtype.num_bytes().unwrap_or(0);
    if array.uses_pickled_array() || element == 0 {
        let message =
            format!("{name} holds Python objects ({kind}), expected numbers: save it with a plain dtype");
        return Err(TransitionError::file(file, message));
    }
    if array.order() == Order::Fortran && array.shape().len() > 1 {
        let message = format!(
            "{name} is in Fortran order, expected C order: save numpy.ascontiguousarray({name}) instead"
        );
        return Err(TransitionError::file(file, message));
    }
    let shape = check_claim(file, name, array.shape(), element as u64, size)?;
    let values = match kind.trim_start_matches(['<', '>', '|', '=']) {
        "f4" => Values::F32(elements(file, name, array)?),
        "f8" => Values::F64(elements(file, name, array)?),
        "i8" => Values::Integers(elements(file, name, array)?),
        "i4" => Values::Integers(widened::<i32, _>(file, name, array)?),
        "i2" => Values::Integers(widened::<i16, _>(file, name, array)?),
        "i1" => Values::Integers(widened::<i8, _>(file, name, array)?),
        "u8" => Values::unsigned(file, name, &elements::<u64, _>(file, name, array)?)?,
        "u4" => Values::Integers(widened::<u32, _>(file, name, array)?),
        "u2" => Values::Integers(widened::<u16, _>(file, name, array)?),
        "u1" => Values::Integers(widened::<u8, _>(file, name, array)?),
        "b1" => Values::Flags(elements(file, name, array)?),
        _ => {
            let message = format!("{name} has dtype {kind}, expected float32, float64, an integer or bool");
            return Err(TransitionError::file(file, message));
        }
    };
    Column::new(file, name, shape, values)
}

/// Elements one by one: memory grows with what is really there, whatever the header claims.
fn elements<T: Deserialize, R: Read>(
    file: &str,
    name: &str,
    array: NpyFile<R>,
) -> Result<Vec<T>, TransitionError> {
    let reader =
        array.data::<T>().map_err(|error| TransitionError::file(file, format!("{name}: {error}")))?;
    let mut values = Vec::new();
    for value in reader {
        let wrong = |error| TransitionError::file(file, format!("{name} ends or breaks off: {error}"));
        values.push(value.map_err(wrong)?);
    }
    Ok(values)
}

fn widened<T: Deserialize + Into<i64>, R: Read>(
    file: &str,
    name: &str,
    array: NpyFile<R>,
) -> Result<Vec<i64>, TransitionError> {
    Ok(elements::<T, R>(file, name, array)?.into_iter().map(Into::into).collect())
}
