//! One product as cuBLASLt sees it: descriptors, candidates, the chosen algorithm.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::Rc;

use cust::sys::CUstream;
use settings::Precision;

use super::ffi::{
    self, Algorithm, Heuristic, MatmulDesc, MatrixLayout, Preference, compute, desc, operation,
};
use super::key::PlanKey;
use super::library::{CublasLtLibrary, Handle};
use crate::error::CublasLtError;

/// Workspace of each lane, bytes: what NVIDIA recommends for Hopper.
pub const WORKSPACE_BYTES: usize = 32 << 20;
/// Candidates asked of the heuristic.
const CANDIDATES: usize = 16;
/// Descriptors of one product.
pub struct Descriptors {
    library: Rc<CublasLtLibrary>,
    desc: MatmulDesc,
    first: MatrixLayout,
    second: MatrixLayout,
    result: MatrixLayout,
}

/// Device addresses of one product's operands.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Row-major a.
    pub a: u64,
    /// Row-major b.
    pub b: u64,
    /// Row-major c.
    pub c: u64,
    /// Bias, 0 without one.
    pub bias: u64,
}

/// A candidate: algorithm and the workspace it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Bytes, at most [`WORKSPACE_BYTES`].
    pub workspace_bytes: usize,
}

impl Descriptors {
    /// Describes a product. Errors name the key.
    pub fn new(handle: &Handle, key: &PlanKey) -> Result<Self, CublasLtError> {
        let (null, library) = (ptr::null_mut(), handle.library());
        // Built up in place, so that a failure half-way frees what is there.
        let mut this = Self { library: library.clone(), desc: null, first: null, second: null, result: null };
        let api = &library.api;
        let compute_type = match key.precision {
            Precision::Fp32 => compute::F32,
            Precision::Tf32 => compute::F32_FAST_TF32,
            Precision::Bf16 => compute::F32_FAST_BF16,
        };
        let (transpose_first, transpose_second, layouts) = key.column_major();
        // SAFETY: `this.desc` is a live out-parameter.
        let status = unsafe { (api.desc_create)(&mut this.desc, compute_type, ffi::R_32F) };
        library.check(status, "cublasLtMatmulDescCreate", || key.to_string())?;
        let op = |transpose| if transpose { operation::T } else { operation::N };
        this.set(desc::TRANSA, &op(transpose_first), key)?;
        this.set(desc::TRANSB, &op(transpose_second), key)?;
        if key.bias {
            this.set(desc::EPILOGUE, &ffi::EPILOGUE_BIAS, key)?;
        }
        let slots = [&mut this.first, &mut this.second, &mut this.result];
        for (slot, (rows, columns, ld)) in slots.into_iter().zip(layouts) {
            // SAFETY: `slot` is a live out-parameter.
            let status =
                unsafe { (api.layout_create)(slot, ffi::R_32F, rows as u64, columns as u64, ld as i64) };
            library.check(status, "cublasLtMatrixLayoutCreate", || {
                format!("{rows} x {columns}, ld {ld} of {key}")
            })?;
        }
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: c_int, value: &T, key: &PlanKey) -> Result<(), CublasLtError> {
        // SAFETY: `desc` is alive; the library copies `size_of::<T>()` bytes from `value`, whose type is the
        // attribute's.
        let status = unsafe {
            (self.library.api.desc_set)(self.desc, attribute, ptr::from_ref(value).cast(), size_of::<T>())
        };
        self.library
            .check(status, "cublasLtMatmulDescSetAttribute", || format!("attribute {attribute} of {key}"))
    }

    /// The heuristic's candidates, best guess first: all deterministic, and without tensor cores in fp32.
    pub fn candidates(&self, handle: &Handle, key: &PlanKey) -> Result<Vec<Candidate>, CublasLtError> {
        let library = &self.library;
        let preference = SearchPreference::new(library, key)?;
        let mut results = [Heuristic::default(); CANDIDATES];
        let mut count: c_int = 0;
        // SAFETY: all handles are alive; `results` has CANDIDATES entries, which is the count asked for.
        let status = unsafe {
            (library.api.heuristic)(
                handle.raw(),
                self.desc,
                self.first,
                self.second,
                self.result,
                self.result,
                preference.raw,
                CANDIDATES as c_int,
                results.as_mut_ptr(),
                &mut count,
            )
        };
        if status != ffi::NOT_SUPPORTED {
            library.check(status, "cublasLtMatmulAlgoGetHeuristic", || key.to_string())?;
        }
        let count = if status == ffi::SUCCESS { count.clamp(0, CANDIDATES as c_int) as usize } else { 0 };
        let mut candidates = Vec::new();
        for result in results[..count].iter().filter(|result| result.state == ffi::SUCCESS) {
            if result.workspace_bytes <= WORKSPACE_BYTES && self.keeps_precision(&result.algorithm, key)? {
                let Heuristic { algorithm, workspace_bytes, .. } = *result;
                candidates.push(Candidate { algorithm, workspace_bytes });
            }
        }
        if candidates.is_empty() {
            let subject = format!("{key} ({count} candidates, none of them usable)");
            return Err(library.error(ffi::NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", subject));
        }
        Ok(candidates)
    }

    /// In fp32 an algorithm must not use tensor cores: they would round the operands, whatever switched them on
    /// (an environment variable can).
    fn keeps_precision(&self, algorithm: &Algorithm, key: &PlanKey) -> Result<bool, CublasLtError> {
        if key.precision != Precision::Fp32 {
            return Ok(true);
        }
        let (mut flags, mut written) = (0u64, 0usize);
        // SAFETY: `flags` has the attribute's 8 bytes; both out-parameters are live.
        let status = unsafe {
            (self.library.api.capability)(
                algorithm,
                ffi::ALGO_CAP_NUMERICAL_IMPL_FLAGS,
                ptr::from_mut(&mut flags).cast(),
                size_of::<u64>(),
                &mut written,
            )
        };
        self.library.check(status, "cublasLtMatmulAlgoCapGetAttribute", || key.to_string())?;
        Ok(flags & ffi::NUMERICAL_TENSOR_OP_MASK == 0)
    }

    /// Whether a stored algorithm is one that this library would run for this product; with its workspace.
    pub fn verify(&self, handle: &Handle, algorithm: &Algorithm, key: &PlanKey) -> Option<Candidate> {
        let mut result = Heuristic::default();
        // SAFETY: all handles are alive, `algorithm` is 64 bytes of the library's own making or is refused by
        // it, `result` is a live out-parameter.
        let status = unsafe {
            (self.library.api.check)(
                handle.raw(),
                self.desc,
                self.first,
                self.second,
                self.result,
                self.result,
                algorithm,
                &mut result,
            )
        };
        let usable = status == ffi::SUCCESS
            && result.workspace_bytes <= WORKSPACE_BYTES
            && self.keeps_precision(algorithm, key).unwrap_or(false);
        usable.then_some(Candidate { algorithm: *algorithm, workspace_bytes: result.workspace_bytes })
    }

    /// Issues the product on a stream.
    ///
    /// # Safety
    /// The addresses are device memory of at least the key's spans (bias: its length), `workspace` of at least
    /// `candidate.workspace_bytes`, used by no other stream meanwhile; `stream` is alive.
    pub unsafe fn run(
        &self,
        handle: &Handle,
        key: &PlanKey,
        candidate: &Candidate,
        at: Addresses,
        workspace: u64,
        stream: CUstream,
    ) -> Result<(), CublasLtError> {
        if key.bias {
            self.set(desc::BIAS_POINTER, &at.bias, key)?;
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let pointer = |address: u64| ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: the caller vouches for the memory; alpha and beta are host f32 as the scale type says; with
        // beta 0 the C operand is not read, so it may be the result.
        let status = unsafe {
            (self.library.api.matmul)(
                handle.raw(),
                self.desc,
                ptr::from_ref(&one).cast(),
                pointer(at.b),
                self.first,
                pointer(at.a),
                self.second,
                ptr::from_ref(&zero).cast(),
                pointer(at.c),
                self.result,
                pointer(at.c),
                self.result,
                &candidate.algorithm,
                pointer(workspace),
                WORKSPACE_BYTES,
                stream,
            )
        };
        self.library.check(status, "cublasLtMatmul", || key.to_string())
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        let api = &self.library.api;
        // SAFETY: each was made by `new` or is null; freed once. The status of freeing host memory says nothing.
        unsafe {
            for layout in
                [self.first, self.second, self.result].into_iter().filter(|layout| !layout.is_null())
            {
                (api.layout_destroy)(layout);
            }
            if !self.desc.is_null() {
                (api.desc_destroy)(self.desc);
            }
        }
    }
}

/// What the heuristic may propose.
struct SearchPreference<'a> {
    library: &'a CublasLtLibrary,
    raw: Preference,
}

impl<'a> SearchPreference<'a> {
    fn new(library: &'a CublasLtLibrary, key: &PlanKey) -> Result<Self, CublasLtError> {
        let mut this = Self { library, raw: ptr::null_mut() };
        // SAFETY: `raw` is a live out-parameter.
        let status = unsafe { (library.api.preference_create)(&mut this.raw) };
        library.check(status, "cublasLtMatmulPreferenceCreate", || key.to_string())?;
        let [a, b, c] = key.alignment;
        this.set(ffi::preference::MAX_WORKSPACE_BYTES, &(WORKSPACE_BYTES as u64), key)?;
        this.set(ffi::preference::REDUCTION_SCHEME_MASK, &ffi::REDUCTION_COMPUTE_TYPE, key)?;
        // The library's first operand is our b.
        this.set(ffi::preference::MIN_ALIGNMENT_A_BYTES, &b, key)?;
        this.set(ffi::preference::MIN_ALIGNMENT_B_BYTES, &a, key)?;
        this.set(ffi::preference::MIN_ALIGNMENT_C_BYTES, &c, key)?;
        this.set(ffi::preference::MIN_ALIGNMENT_D_BYTES, &c, key)?;
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: c_int, value: &T, key: &PlanKey) -> Result<(), CublasLtError> {
        // SAFETY: `raw` is alive; the library copies `size_of::<T>()` bytes from `value`, whose type is the
        // attribute's.
        let status = unsafe {
            (self.library.api.preference_set)(
                self.raw,
                attribute,
                ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        self.library.check(status, "cublasLtMatmulPreferenceSetAttribute", || {
            format!("attribute {attribute} of {key}")
        })
    }
}

impl Drop for SearchPreference<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: made by `new`, freed once.
            unsafe { (self.library.api.preference_destroy)(self.raw) };
        }
    }
}
