//! Golden values for tests: f64 arrays in a safetensors file, and the training-step problems stored there (`full` has the
//! complete step's).
//!
//! Used by this crate's tests, the emulator's and the device's, so that all three read the same problem.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use settings::{Layout, ModelShape, Parts};

use crate::batch::C51Batch;

mod full;

pub use full::{FullProblem, golden_name};

/// A golden file that cannot be used, with file and entry.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct GoldenError {
    file: PathBuf,
    message: String,
}

#[derive(Debug)]
enum Values {
    Float(Vec<f64>),
    Integer(Vec<i64>),
}

/// A golden file in memory.
#[derive(Debug)]
pub struct Golden {
    file: PathBuf,
    meta: serde_json::Value,
    arrays: BTreeMap<String, (Vec<usize>, Values)>,
}

/// The problem of `step.safetensors`: what a C51 training step starts from.
#[derive(Clone, Debug)]
pub struct StepProblem {
    /// Network shape.
    pub shape: ModelShape,
    /// Optimizer of the run without an effective clip.
    pub optimizer: settings::Optimizer,
    /// max_grad_norm of the `clipped.*` run.
    pub tight_norm: f32,
    /// The batch; every value is exactly representable in f32 (except the discounts, gamma = 0.99).
    pub batch: C51Batch<f64>,
    /// Initial online parameters in the flat layout of [`Layout::main`].
    pub online: Vec<f64>,
    /// Initial target parameters in the same layout.
    pub target: Vec<f64>,
}

/// How far one tensor is from its reference.
#[derive(Clone, Debug)]
pub struct TensorError {
    /// Name in the layout.
    pub name: String,
    /// Euclidean norm of (got - want).
    pub difference: f64,
    /// Euclidean norm of want.
    pub norm: f64,
}

impl Golden {
    /// Reads a file of F64 and I64 arrays whose header has a JSON text under `meta`.
    ///
    /// # Errors
    /// A file that is missing, damaged, or has another element type.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, GoldenError> {
        let file = file.as_ref().to_path_buf();
        let fail = |message: String| GoldenError { file: file.clone(), message };
        let bytes = std::fs::read(&file).map_err(|e| fail(e.to_string()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| fail(e.to_string()))?;
        let meta =
            header.metadata().as_ref().and_then(|m| m.get("meta")).ok_or_else(|| fail("no meta".into()))?;
        let meta = serde_json::from_str(meta).map_err(|e| fail(format!("meta: {e}")))?;
        let mut arrays = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(&bytes).map_err(|e| fail(e.to_string()))?.iter() {
            let (words, rest) = view.data().as_chunks::<8>();
            assert!(rest.is_empty(), "safetensors checks an array's length against its type");
            let values = match view.dtype() {
                Dtype::F64 => Values::Float(words.iter().map(|&w| f64::from_le_bytes(w)).collect()),
                Dtype::I64 => Values::Integer(words.iter().map(|&w| i64::from_le_bytes(w)).collect()),
                other => return Err(fail(format!("{name} has type {other:?}: expected F64 or I64"))),
            };
            arrays.insert(name.to_string(), (view.shape().to_vec(), values));
        }
        Ok(Self { file, meta, arrays })
    }

    /// The header's JSON: shapes, hyper-parameters, order of operations.
    pub fn meta(&self) -> &serde_json::Value {
        &self.meta
    }

    /// Names of all arrays, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.arrays.keys().map(String::as_str)
    }

    /// Axes of an array.
    pub fn shape(&self, name: &str) -> Result<&[usize], GoldenError> {
        Ok(&self.array(name)?.0)
    }

    /// Elements of an F64 array, row-major.
    pub fn floats(&self, name: &str) -> Result<&[f64], GoldenError> {
        match &self.array(name)?.1 {
            Values::Float(values) => Ok(values),
            Values::Integer(_) => Err(self.fail(format!("{name} is I64: expected F64"))),
        }
    }

    /// Elements of an I64 array, row-major.
    pub fn integers(&self, name: &str) -> Result<&[i64], GoldenError> {
        match &self.array(name)?.1 {
            Values::Integer(values) => Ok(values),
            Values::Float(_) => Err(self.fail(format!("{name} is F64: expected I64"))),
        }
    }

    /// Gathers `{prefix}{tensor}` of every tensor of the layout into one flat vector; padding is zero.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape than in the layout.
    pub fn flat(&self, layout: &Layout, prefix: &str) -> Result<Vec<f64>, GoldenError> {
        let mut flat = vec![0.0; layout.len];
        for t in &layout.tensors {
            let name = format!("{prefix}{}", t.name);
            let shape = self.shape(&name)?;
            if shape != t.shape {
                return Err(self.fail(format!("{name} has shape {shape:?}: the layout has {:?}", t.shape)));
            }
            flat[t.offset..t.offset + t.len()].copy_from_slice(self.floats(&name)?);
        }
        Ok(flat)
    }

    /// The problem of `step.safetensors`.
    ///
    /// # Errors
    /// An entry that is missing or malformed.
    pub fn step_problem(&self) -> Result<StepProblem, GoldenError> {
        let real = |key: &str| Ok::<f32, GoldenError>(self.number(key)? as f32);
        let shape = self.model_shape()?;
        shape.check().map_err(|message| self.fail(message))?;
        let optimizer = self.optimizer(real("clip_norm_unclipped_run")?)?;
        let batch = self.batch(self.number("gamma")?)?;
        batch.check(&shape, &Parts::default()).map_err(|e| self.fail(e.to_string()))?;
        let layout = Layout::main(&shape);
        Ok(StepProblem {
            online: self.flat(&layout, "online0.main.")?,
            target: self.flat(&layout, "target0.main.")?,
            tight_norm: real("clip_norm")?,
            shape,
            optimizer,
            batch,
        })
    }

    /// The part of the shape that both kinds of problem state.
    fn model_shape(&self) -> Result<ModelShape, GoldenError> {
        let integer = |key: &str| Ok::<usize, GoldenError>(self.number(key)? as usize);
        let real = |key: &str| Ok::<f32, GoldenError>(self.number(key)? as f32);
        let branches = self.meta["branches"].as_array().into_iter().flatten();
        let branches: Option<Vec<usize>> = branches.map(|n| n.as_u64().map(|n| n as usize)).collect();
        Ok(ModelShape {
            state: integer("S")?,
            trunk1: integer("H1")?,
            trunk2: integer("H2")?,
            value_hidden: integer("head_hidden")?,
            branch_hidden: integer("head_hidden")?,
            branches: branches.ok_or_else(|| self.fail("meta.branches: expected integers".into()))?,
            atoms: integer("atoms")?,
            v_min: real("v_min")?,
            v_max: real("v_max")?,
            leaky_slope: real("leaky_slope")?,
            ..ModelShape::default()
        })
    }

    fn optimizer(&self, max_grad_norm: f32) -> Result<settings::Optimizer, GoldenError> {
        let real = |key: &str| Ok::<f32, GoldenError>(self.number(key)? as f32);
        Ok(settings::Optimizer {
            lr: real("lr")?,
            beta1: real("beta1")?,
            beta2: real("beta2")?,
            eps: real("adam_eps")?,
            weight_decay: real("weight_decay")?,
            max_grad_norm,
            tau: real("tau_ema")?,
            ..Default::default()
        })
    }

    /// The transitions, with gamma^n = `discount` where the episode goes on.
    fn batch(&self, discount: f64) -> Result<C51Batch<f64>, GoldenError> {
        Ok(C51Batch {
            states: self.floats("in.states")?.to_vec(),
            next_states: self.floats("in.next_states")?.to_vec(),
            actions: self.integers("in.actions")?.iter().map(|&a| a as u32).collect(),
            rewards: self.floats("in.rewards")?.to_vec(),
            discounts: self.floats("in.dones")?.iter().map(|done| discount * (1.0 - done)).collect(),
            weights: self.floats("in.weights")?.to_vec(),
            ..C51Batch::default()
        })
    }

    fn number(&self, key: &str) -> Result<f64, GoldenError> {
        self.meta[key].as_f64().ok_or_else(|| self.fail(format!("meta.{key}: expected a number")))
    }

    fn array(&self, name: &str) -> Result<&(Vec<usize>, Values), GoldenError> {
        self.arrays.get(name).ok_or_else(|| self.fail(format!("no array is called {name}")))
    }

    fn fail(&self, message: String) -> GoldenError {
        GoldenError { file: self.file.clone(), message }
    }
}

/// Compares two flat vectors tensor by tensor: the form in which SPEC section 8 bounds gradients and updates.
///
/// # Panics
/// If a vector does not fill the layout.
pub fn tensor_errors(layout: &Layout, got: &[f64], want: &[f64]) -> Vec<TensorError> {
    assert!(got.len() == layout.len && want.len() == layout.len, "vectors must fill the layout");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let error = |t: &settings::Tensor| {
        let (got, want) = (&got[t.offset..][..t.len()], &want[t.offset..][..t.len()]);
        TensorError {
            name: t.name.clone(),
            difference: norm(&mut got.iter().zip(want).map(|(g, w)| g - w)),
            norm: norm(&mut want.iter().copied()),
        }
    };
    layout.tensors.iter().map(error).collect()
}
