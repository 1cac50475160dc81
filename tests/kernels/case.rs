//! The numeric cases in `tests/cases`: inputs, expected values, a tolerance, and the values that known bugs give.

use serde_json::Value;

/// A case file.
pub struct Case {
    json: Value,
    atol: f64,
    rtol: f64,
}

/// Reads a case file of `tests/cases`, built into the test program.
#[macro_export]
macro_rules! case {
    ($name:literal) => {
        $crate::kernels::case::Case::parse(include_str!(concat!("../cases/", $name, ".json")))
    };
}

impl Case {
    /// Parses the text of a case file.
    pub fn parse(text: &str) -> Self {
        let json: Value = serde_json::from_str(text).expect("a case file is JSON");
        let part = |name: &str| json["tolerance"][name].as_f64().unwrap_or(0.0);
        let (atol, rtol) = (part("atol"), part("rtol"));
        let stated = json["tolerance"].as_object().is_some_and(|tolerance| !tolerance.is_empty());
        assert!(stated, "the case states no tolerance");
        Self { atol, rtol, json }
    }

    /// The value at a path such as `/input/gamma`.
    pub fn at(&self, path: &str) -> &Value {
        self.json.pointer(path).unwrap_or_else(|| panic!("the case has no {path}"))
    }

    /// The number at a path.
    pub fn number(&self, path: &str) -> f64 {
        number(self.at(path))
    }

    /// The numbers of the list at a path.
    pub fn numbers(&self, path: &str) -> Vec<f64> {
        numbers(self.at(path))
    }

    /// The lists of numbers of the list at a path.
    pub fn rows(&self, path: &str) -> Vec<Vec<f64>> {
        list(self.at(path)).iter().map(numbers).collect()
    }

    /// |got - expected| <= atol + rtol |expected|.
    pub fn accepts(&self, got: f64, expected: f64) -> bool {
        (got - expected).abs() <= self.atol + self.rtol * expected.abs()
    }

    /// Every element within the case's tolerance.
    #[track_caller]
    pub fn matches(&self, what: &str, got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len(), "{what}: number of elements");
        for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            assert!(self.accepts(got, expected), "{what}[{i}] is {got}, expected {expected}");
        }
    }

    /// The values of a known bug would not have matched.
    #[track_caller]
    pub fn tells_apart(&self, what: &str, wrong: &[f64], expected: &[f64]) {
        assert_eq!(wrong.len(), expected.len(), "{what}: number of elements");
        let same = wrong.iter().zip(expected).all(|(&wrong, &expected)| self.accepts(wrong, expected));
        assert!(!same, "{what}: the case cannot tell {wrong:?} from {expected:?}");
    }
}

/// A number.
pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A list.
pub fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// A list of numbers.
pub fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

/// As the device stores it.
pub fn f32s(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

/// As the tolerance is applied.
pub fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}
