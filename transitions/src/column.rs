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
            let message = format!("{name} has shape {shape:?} and {} elements", values.len());
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
        let finite = |i: usize, x: f32, value: f64| match x.is_finite() {
            true => Ok(x),
            false => {
                Err(TransitionError::value(file, &self.name, self.place(i), value, "a finite number of f32"))
            }
        };
        if let Values::Flags(_) = self.values {
            return Err(TransitionError::file(file, format!("{} are flags, expected numbers", self.name)));
        }
        let convert = |i: usize| {
            let value = self.values.as_f64(i);
            finite(i, value as f32, value)
        };
        if let Values::F32(values) = &self.values {
            values.iter().enumerate().try_for_each(|(i, &x)| finite(i, x, x.into()).map(drop))?;
        } else {
            return (0..self.values.len()).map(convert).collect();
        }
        match self.values {
            Values::F32(values) => Ok(values),
            _ => Ok(Vec::new()),
        }
    }

    /// Whole numbers from 0 on; floats that are whole count.
    pub(crate) fn indices(&self, file: &str) -> Result<Vec<u32>, TransitionError> {
        let index = |i: usize| {
            let wrong = |value: String| {
                let expected = "a whole number from 0 on: actions are discrete, one index per branch";
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
