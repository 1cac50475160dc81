//! Arrays as files hold them, and what transitions need of them.

use crate::error::TransitionError;

/// The arrays of a data set and the names under which each is known.
pub(crate) const NAMES: [(&str, &[&str]); 6] = [
    ("states", &["states", "observations"]),
    ("actions", &["actions"]),
    ("rewards", &["rewards"]),
    ("next_states", &["next_states", "next_observations"]),
    ("terminated", &["terminated", "terminations", "terminals"]),
    ("truncated", &["truncated", "truncations", "timeouts"]),
];

/// Elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Integers(Vec<i64>),
    Flags(Vec<bool>),
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Integers(values) => values.len(),
            Self::Flags(values) => values.len(),
        }
    }

    /// Adds further elements of the same kind; false if they are of another.
    pub(crate) fn append(&mut self, more: Self) -> bool {
        match (self, more) {
            (Self::F32(all), Self::F32(more)) => all.extend(more),
            (Self::F64(all), Self::F64(more)) => all.extend(more),
            (Self::Integers(all), Self::Integers(more)) => all.extend(more),
            (Self::Flags(all), Self::Flags(more)) => all.extend(more),
            _ => return false,
        }
        true
    }

    /// Unsigned numbers, as long as they are below 2^63.
    pub(crate) fn unsigned(file: &str, name: &str, values: &[u64]) -> Result<Self, TransitionError> {
        let integer = |(i, &value): (usize, &u64)| {
            let expected = || TransitionError::value(file, name, (i, None), value, "an integer below 2^63");
            i64::try_from(value).map_err(|_| expected())
        };
        Ok(Self::Integers(values.iter().enumerate().map(integer).collect::<Result<_, _>>()?))
    }

    fn as_f64(&self, i: usize) -> f64 {
        match self {
            Self::F32(values) => values[i].into(),
            Self::F64(values) => values[i],
            Self::Integers(values) => values[i] as f64,
            Self::Flags(values) => f64::from(u8::from(values[i])),
        }
    }
}

/// A named array: the first axis counts rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    /// As in the file.
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Values,
}

impl Column {
    /// An array whose elements fill its shape.
    pub(crate) fn new(
        file: &str,
        name: &str,
        shape: Vec<usize>,
        values: Values,
    ) -> Result<Self, TransitionError> {
        let count = shape.iter().try_fold(1_usize, |count, &n| count.checked_mul(n));
        if shape.is_empty() || count != Some(values.len()) {
            let message = format!(
                "{name} has shape {shape:?} and {} elements, expected one row for every transition",
                values.len()
            );
            return Err(TransitionError::file(file, message));
        }
        Ok(Self { name: name.into(), shape, values })
    }

    pub(crate) fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Elements of a row, all further axes together.
    pub(crate) fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    fn place(&self, i: usize) -> (usize, Option<usize>) {
        let width = self.width();
        (i / width, (width > 1).then_some(i % width))
    }

    /// Finite numbers that f32 can hold.
    pub(crate) fn floats(self, file: &str) -> Result<Vec<f32>, TransitionError> {
        let wrong = |i: usize, value: f64| {
            // As `{:?}` has it: 1e300, not 301 digits.
            TransitionError::value(
                file,
                &self.name,
                self.place(i),
                format!("{value:?}"),
                "a finite number of f32",
            )
        };
        match &self.values {
            Values::Flags(_) => {
                Err(TransitionError::file(file, format!("{} are flags, expected numbers", self.name)))
            }
            Values::F32(values) => match values.iter().position(|x| !x.is_finite()) {
                Some(i) => Err(wrong(i, values[i].into())),
                None => Ok(self.into_f32()),
            },
            values => (0..values.len())
                .map(|i| {
                    let value = values.as_f64(i);
                    let x = value as f32;
                    if x.is_finite() { Ok(x) } else { Err(wrong(i, value)) }
                })
                .collect(),
        }
    }

    /// The elements without a copy, where they are f32.
    fn into_f32(self) -> Vec<f32> {
        match self.values {
            Values::F32(values) => values,
            _ => Vec::new(),
        }
    }

    /// Whole numbers from 0 on; floats that are whole count.
    pub(crate) fn indices(&self, file: &str) -> Result<Vec<u32>, TransitionError> {
        let index = |i: usize| {
            let wrong = |value: String| {
                let expected =
                    "a whole number from 0 to 4294967295: actions are discrete, one index per branch";
                Err(TransitionError::value(file, &self.name, self.place(i), value, expected))
            };
            match &self.values {
                Values::Integers(values) => match u32::try_from(values[i]) {
                    Ok(index) => Ok(index),
                    Err(_) => wrong(values[i].to_string()),
                },
                values => {
                    let value = values.as_f64(i);
                    let whole = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
                    if whole { Ok(value as u32) } else { wrong(value.to_string()) }
                }
            }
        };
        (0..self.values.len()).map(index).collect()
    }

    /// One flag per row; numbers have to be 0 or 1.
    pub(crate) fn flags(self, file: &str) -> Result<Vec<bool>, TransitionError> {
        self.check_single(file)?;
        if let Values::Flags(values) = self.values {
            return Ok(values);
        }
        let flag = |i: usize| match self.values.as_f64(i) {
            0.0 => Ok(false),
            1.0 => Ok(true),
            value => Err(TransitionError::value(file, &self.name, self.place(i), value, "0 or 1")),
        };
        (0..self.values.len()).map(flag).collect()
    }

    /// Refuses rows of several values.
    pub(crate) fn check_single(&self, file: &str) -> Result<(), TransitionError> {
        if self.width() == 1 {
            return Ok(());
        }
        let message = format!("{} has shape {:?}, expected one value per row", self.name, self.shape);
        Err(TransitionError::file(file, message))
    }
}
