//! The part of cuBLASLt's C interface that is used, as function pointers loaded at run time.
//!
//! Names, values and semantics: cuBLAS documentation, "Using the cuBLASLt API". All enumerations are plain
//! integers, because the library may return values newer than this list.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use cust::sys::CUstream;
use libloading::Library;

/// `cublasStatus_t`.
pub type Status = c_int;
/// `CUBLAS_STATUS_SUCCESS`.
pub const SUCCESS: Status = 0;
/// `CUBLAS_STATUS_NOT_SUPPORTED`: also the heuristic's answer when no algorithm fits.
pub const NOT_SUPPORTED: Status = 15;

/// `CUDA_R_32F` of `cudaDataType_t`.
pub const R_32F: c_int = 0;

/// `cublasComputeType_t`.
pub mod compute {
    use std::ffi::c_int;
    /// IEEE single precision.
    pub const F32: c_int = 68;
    /// bfloat16 tensor cores on f32 storage.
    pub const F32_FAST_BF16: c_int = 75;
    /// tf32 tensor cores on f32 storage.
    pub const F32_FAST_TF32: c_int = 77;
}

/// `cublasOperation_t`.
pub mod operation {
    use std::ffi::c_int;
    /// As stored.
    pub const N: c_int = 0;
    /// Transposed.
    pub const T: c_int = 1;
}

/// `cublasLtMatmulDescAttributes_t`.
pub mod desc {
    use std::ffi::c_int;
    /// `cublasOperation_t` of A, i32.
    pub const TRANSA: c_int = 3;
    /// `cublasOperation_t` of B, i32.
    pub const TRANSB: c_int = 4;
    /// `cublasLtEpilogue_t`, u32.
    pub const EPILOGUE: c_int = 7;
    /// Device address of the bias vector.
    pub const BIAS_POINTER: c_int = 8;
}

/// `CUBLASLT_EPILOGUE_BIAS`: adds a vector along the rows of the column-major result.
pub const EPILOGUE_BIAS: u32 = 4;

/// `cublasLtMatmulPreferenceAttributes_t`.
pub mod preference {
    use std::ffi::c_int;
    /// Most workspace, u64 bytes.
    pub const MAX_WORKSPACE_BYTES: c_int = 1;
    /// Allowed split-K reductions, u32.
    pub const REDUCTION_SCHEME_MASK: c_int = 3;
    /// Alignment of A that may be relied on, u32 bytes; B, C, D follow.
    pub const MIN_ALIGNMENT_A_BYTES: c_int = 5;
    /// The same of B.
    pub const MIN_ALIGNMENT_B_BYTES: c_int = 6;
    /// The same of C.
    pub const MIN_ALIGNMENT_C_BYTES: c_int = 7;
    /// The same of D.
    pub const MIN_ALIGNMENT_D_BYTES: c_int = 8;
}

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: partial sums go to the workspace and are added in a fixed order by
/// a second step. In-place reduction (1) adds into the result as blocks finish and stays masked out; "none" (0)
/// needs no bit.
pub const REDUCTION_COMPUTE_TYPE: u32 = 2;

/// `CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS`, u64.
pub const ALGO_CAP_NUMERICAL_IMPL_FLAGS: c_int = 15;
/// `CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK`: any kind of tensor-core instruction.
pub const NUMERICAL_TENSOR_OP_MASK: u64 = 0xfe;

/// `cublasLtHandle_t`.
pub type Handle = *mut c_void;
/// `cublasLtMatmulDesc_t`.
pub type MatmulDesc = *mut c_void;
/// `cublasLtMatrixLayout_t`.
pub type MatrixLayout = *mut c_void;
/// `cublasLtMatmulPreference_t`.
pub type Preference = *mut c_void;

/// `cublasLtMatmulAlgo_t`: opaque, may be stored and used again with the same library.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Algorithm {
    /// Opaque words.
    pub data: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Heuristic {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Workspace it needs, bytes.
    pub workspace_bytes: usize,
    /// `CUBLAS_STATUS_SUCCESS` when the other fields are valid.
    pub state: Status,
    /// Device utilisation, in waves.
    pub waves: f32,
    /// Reserved.
    pub reserved: [c_int; 4],
}

macro_rules! api {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The library and its functions.
        pub struct Api {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($arg),*) -> $result,)*
            /// Never closed: the CUDA runtime inside it keeps state of the context, and exit handlers.
            _library: ManuallyDrop<Library>,
        }

        impl Api {
            /// Looks up every function; the error names the first one that is missing.
            pub fn new(library: Library) -> Result<Self, String> {
                // SAFETY: the types are those of the cuBLASLt header for these symbols.
                unsafe {
                    $(let $field = *library
                        .get::<unsafe extern "C" fn($($arg),*) -> $result>($symbol)
                        .map_err(|error| format!("{}: {error}", String::from_utf8_lossy($symbol)))?;)*
                    Ok(Self { $($field,)* _library: ManuallyDrop::new(library) })
                }
            }
        }
    };
}

api! {
    /// Version as 10000 * major + 100 * minor + patch.
    version = b"cublasLtGetVersion": fn() -> usize;
    /// Static name of a status.
    status_name = b"cublasLtGetStatusName": fn(Status) -> *const c_char;
    /// Static description of a status.
    status_string = b"cublasLtGetStatusString": fn(Status) -> *const c_char;
    /// Makes a handle on the current context's device.
    create = b"cublasLtCreate": fn(*mut Handle) -> Status;
    /// Frees it.
    destroy = b"cublasLtDestroy": fn(Handle) -> Status;
    /// Compute type, scale type.
    desc_create = b"cublasLtMatmulDescCreate": fn(*mut MatmulDesc, c_int, c_int) -> Status;
    /// Frees it.
    desc_destroy = b"cublasLtMatmulDescDestroy": fn(MatmulDesc) -> Status;
    /// Attribute, value, bytes.
    desc_set = b"cublasLtMatmulDescSetAttribute": fn(MatmulDesc, c_int, *const c_void, usize) -> Status;
    /// Type, rows, columns, leading dimension, column-major.
    layout_create = b"cublasLtMatrixLayoutCreate": fn(*mut MatrixLayout, c_int, u64, u64, i64) -> Status;
    /// Frees it.
    layout_destroy = b"cublasLtMatrixLayoutDestroy": fn(MatrixLayout) -> Status;
    /// Makes search preferences.
    preference_create = b"cublasLtMatmulPreferenceCreate": fn(*mut Preference) -> Status;
    /// Frees it.
    preference_destroy = b"cublasLtMatmulPreferenceDestroy": fn(Preference) -> Status;
    /// Attribute, value, bytes.
    preference_set =
        b"cublasLtMatmulPreferenceSetAttribute": fn(Preference, c_int, *const c_void, usize) -> Status;
    /// Handle, operation, A, B, C, D, preference, count asked, results, count returned.
    heuristic = b"cublasLtMatmulAlgoGetHeuristic": fn(
        Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, Preference, c_int,
        *mut Heuristic, *mut c_int
    ) -> Status;
    /// Handle, operation, A, B, C, D, algorithm, result: whether the algorithm fits.
    check = b"cublasLtMatmulAlgoCheck": fn(
        Handle, MatmulDesc, MatrixLayout, MatrixLayout, MatrixLayout, MatrixLayout, *const Algorithm,
        *mut Heuristic
    ) -> Status;
    /// Algorithm, attribute, value, bytes, bytes written.
    capability = b"cublasLtMatmulAlgoCapGetAttribute":
        fn(*const Algorithm, c_int, *mut c_void, usize, *mut usize) -> Status;
    /// Handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm,
    /// workspace, its bytes, stream.
    matmul = b"cublasLtMatmul": fn(
        Handle, MatmulDesc, *const c_void, *const c_void, MatrixLayout, *const c_void, MatrixLayout,
        *const c_void, *const c_void, MatrixLayout, *mut c_void, MatrixLayout, *const Algorithm, *mut c_void,
        usize, CUstream
    ) -> Status;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_headers_size() {
        // 64 opaque bytes; then size_t, int, float, int[4].
        assert_eq!(size_of::<Algorithm>(), 64);
        assert_eq!(size_of::<Heuristic>(), 64 + 8 + 4 + 4 + 16);
    }

    #[test]
    fn a_library_without_the_functions_is_an_error_that_names_one() {
        // SAFETY: libc is already part of this process.
        let Ok(libc) = (unsafe { Library::new("libc.so.6") }) else {
            return eprintln!("no libc.so.6 on this system: nothing to look in");
        };
        let message = Api::new(libc).err().expect("libc is not cuBLASLt");
        assert!(message.contains("cublasLtGetVersion"), "{message}");
    }
}
