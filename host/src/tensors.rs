//! Named tensors of any element type in host memory: what a saved state is made of.

use std::collections::BTreeMap;

use safetensors::tensor::Dtype;

/// Elements that a tensor may have.
pub trait Stored: bytemuck::Pod + Default {
    /// Their name in a safetensors file.
    const DTYPE: Dtype;
    /// The values as a tensor's.
    fn wrap(values: Vec<Self>) -> Values;
    /// A tensor's values, if they are of this type.
    fn unwrap(values: Values) -> Result<Vec<Self>, Values>;
    /// The same without taking them.
    fn view(values: &Values) -> Option<&[Self]>;
}

macro_rules! values {
    ($($variant:ident $element:ident),*) => {
        /// A tensor's values.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Values { $($variant(Vec<$element>)),* }

        impl Values {
            /// The values as they lie in memory.
            pub fn bytes(&self) -> &[u8] {
                match self { $(Values::$variant(values) => bytemuck::cast_slice(values)),* }
            }

            /// The same, to be filled.
            pub fn bytes_mut(&mut self) -> &mut [u8] {
                match self { $(Values::$variant(values) => bytemuck::cast_slice_mut(values)),* }
            }

            /// Number of values.
            pub fn len(&self) -> usize {
                match self { $(Values::$variant(values) => values.len()),* }
            }

            /// Whether there is none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Type of the values.
            pub fn dtype(&self) -> Dtype {
                match self { $(Values::$variant(_) => $element::DTYPE),* }
            }

            /// Room for `len` zeros.
            ///
            /// # Errors
            /// A type that no saved state has, or no room for them.
            pub fn zeroed(dtype: Dtype, len: usize) -> Result<Values, String> {
                $(if dtype == $element::DTYPE {
                    return room(len).map(Values::$variant);
                })*
                Err(format!("values of type {dtype:?}, which this program does not write"))
            }
        }

        $(impl Stored for $element {
            const DTYPE: Dtype = Dtype::$variant;

            fn wrap(values: Vec<Self>) -> Values {
                Values::$variant(values)
            }

            fn unwrap(values: Values) -> Result<Vec<Self>, Values> {
                match values {
                    Values::$variant(values) => Ok(values),
                    other => Err(other),
                }
            }

            fn view(values: &Values) -> Option<&[Self]> {
                match values {
                    Values::$variant(values) => Some(values),
                    _ => None,
                }
            }
        })*
    };
}

values!(U8 u8, U32 u32, U64 u64, F32 f32, F64 f64);

/// `len` zeros, or what was asked for where there is no room.
pub fn room<T: Clone + Default>(len: usize) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    let bytes = || len.saturating_mul(size_of::<T>());
    values.try_reserve_exact(len).map_err(|_| format!("no room for {} bytes of memory", bytes()))?;
    values.resize(len, T::default());
    Ok(values)
}

/// Why a tensor is not what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// It is not there.
    #[error("there is no tensor `{0}`")]
    Missing(String),
    /// Another type or length.
    #[error(
        "tensor `{name}` has {found_len} values of type {found}, expected {expected_len} of type {expected}"
    )]
    Other {
        /// Its name.
        name: String,
        /// Type it has.
        found: String,
        /// Values it has.
        found_len: usize,
        /// Type it should have.
        expected: String,
        /// Values it should have.
        expected_len: usize,
    },
    /// Tensors that nobody took.
    #[error("there are tensors that this run has no use for: {0}")]
    Left(String),
}

/// Tensors by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// One-dimensional, in the order of their names.
    pub by_name: BTreeMap<String, Values>,
}

impl Tensors {
    /// Adds a tensor.
    ///
    /// # Panics
    /// If there is one of that name: the later one would silently replace it.
    pub fn put<T: Stored>(&mut self, name: impl Into<String>, values: Vec<T>) {
        let name = name.into();
        let replaced = self.by_name.insert(name.clone(), T::wrap(values));
        assert!(replaced.is_none(), "two tensors are called `{name}`");
    }

    /// Looks at a tensor of any length.
    ///
    /// # Errors
    /// [`TensorError`] if it is missing or of another type.
    pub fn get<T: Stored>(&self, name: &str) -> Result<&[T], TensorError> {
        let values = self.by_name.get(name).ok_or_else(|| TensorError::Missing(name.into()))?;
        T::view(values).ok_or_else(|| other::<T>(name, values, values.len()))
    }

    /// Takes a tensor of any length.
    ///
    /// # Errors
    /// [`TensorError`] if it is missing or of another type; then it stays.
    pub fn take_any<T: Stored>(&mut self, name: &str) -> Result<Vec<T>, TensorError> {
        self.get::<T>(name)?;
        let values = self.by_name.remove(name).ok_or_else(|| TensorError::Missing(name.into()))?;
        T::unwrap(values).map_err(|values| other::<T>(name, &values, values.len()))
    }

    /// Takes a tensor of `len` values.
    ///
    /// # Errors
    /// [`TensorError`] if it is missing, of another type or of another length; then it stays.
    pub fn take<T: Stored>(&mut self, name: &str, len: usize) -> Result<Vec<T>, TensorError> {
        let values = self.by_name.get(name).ok_or_else(|| TensorError::Missing(name.into()))?;
        if values.len() != len {
            return Err(other::<T>(name, values, len));
        }
        self.take_any(name)
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`TensorError::Left`] with the names of what is.
    pub fn finish(self) -> Result<(), TensorError> {
        if self.by_name.is_empty() {
            return Ok(());
        }
        Err(TensorError::Left(self.by_name.into_keys().collect::<Vec<_>>().join(", ")))
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.by_name.values().map(|values| values.bytes().len()).sum()
    }
}

fn other<T: Stored>(name: &str, found: &Values, expected_len: usize) -> TensorError {
    TensorError::Other {
        name: name.into(),
        found: format!("{:?}", found.dtype()),
        found_len: found.len(),
        expected: format!("{:?}", T::DTYPE),
        expected_len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_taken_once_with_their_type_and_length() {
        let mut tensors = Tensors::default();
        tensors.put("a", vec![1u64, 2]);
        tensors.put("b", vec![0.5f32]);
        assert_eq!(tensors.bytes(), 20);
        assert_eq!(
            tensors.take::<u32>("a", 2).unwrap_err().to_string(),
            "tensor `a` has 2 values of type U64, expected 2 of type U32"
        );
        assert_eq!(
            tensors.take::<u64>("a", 3).unwrap_err().to_string(),
            "tensor `a` has 2 values of type U64, expected 3 of type U64"
        );
        assert_eq!(tensors.take::<u64>("a", 2).unwrap(), [1, 2]);
        assert_eq!(tensors.take::<u64>("a", 2).unwrap_err(), TensorError::Missing("a".into()));
        assert_eq!(tensors.finish().unwrap_err(), TensorError::Left("b".into()));
    }

    #[test]
    fn no_room_is_an_error() {
        let message = room::<f64>(usize::MAX / 16).unwrap_err();
        assert!(message.starts_with("no room for "), "{message}");
        assert!(Values::zeroed(Dtype::BF16, 1).is_err());
    }
}
