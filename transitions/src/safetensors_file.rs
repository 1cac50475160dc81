//! safetensors: one tensor per array.

use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::column::{Column, NAMES, Values};
use crate::error::TransitionError;
use crate::source::LARGEST;

pub(crate) fn read(file: &str, path: &Path, size: u64) -> Result<Vec<Column>, TransitionError> {
    if size > LARGEST {
        return Err(TransitionError::file(file, format!("has {size} bytes, at most {LARGEST} are read")));
    }
    let bytes = fs::read(path).map_err(|error| TransitionError::Io { file: file.into(), error })?;
    // The crate compares every length in the header with the bytes that are there.
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| {
        let message = format!(
            "is no transition data set: neither Parquet, NPZ nor HDF5 by its first bytes, and no whole safetensors file \
             ({error})"
        );
        TransitionError::file(file, message)
    })?;
    let known = |name: &str| NAMES.iter().any(|(_, names)| names.contains(&name));
    let mut columns = Vec::new();
    for (name, tensor) in tensors.tensors().iter().filter(|(name, _)| known(name)) {
        columns.push(Column::new(file, name, tensor.shape().to_vec(), values(file, name, tensor)?)?);
    }
    Ok(columns)
}

fn values(file: &str, name: &str, tensor: &TensorView<'_>) -> Result<Values, TransitionError> {
    /// Little-endian elements of N bytes.
    fn each<const N: usize, T>(data: &[u8], make: impl Fn([u8; N]) -> T) -> Vec<T> {
        let element = |word: &[u8]| {
            let mut bytes = [0; N];
            bytes.copy_from_slice(word);
            make(bytes)
        };
        data.chunks_exact(N).map(element).collect()
    }
    let data = tensor.data();
    Ok(match tensor.dtype() {
        Dtype::F32 => Values::F32(each(data, f32::from_le_bytes)),
        Dtype::F64 => Values::F64(each(data, f64::from_le_bytes)),
        Dtype::I64 => Values::Integers(each(data, i64::from_le_bytes)),
        Dtype::I32 => Values::Integers(each(data, |b| i32::from_le_bytes(b).into())),
        Dtype::I16 => Values::Integers(each(data, |b| i16::from_le_bytes(b).into())),
        Dtype::I8 => Values::Integers(each(data, |b| i8::from_le_bytes(b).into())),
        Dtype::U8 => Values::Integers(each(data, |b: [u8; 1]| b[0].into())),
        Dtype::U16 => Values::Integers(each(data, |b| u16::from_le_bytes(b).into())),
        Dtype::U32 => Values::Integers(each(data, |b| u32::from_le_bytes(b).into())),
        Dtype::U64 => Values::unsigned(file, name, &each(data, u64::from_le_bytes))?,
        Dtype::BOOL => Values::Flags(data.iter().map(|&byte| byte != 0).collect()),
        other => {
            let message = format!("{name} is {other:?}, expected F32, F64, an integer, or BOOL");
            return Err(TransitionError::file(file, message));
        }
    })
}
