//! Errors of running work on a device or in the emulator.
//!
//! Every variant says what was being done, to which kernel, buffer or product, and with which numbers, because
//! the code alone ("invalid value") never tells which of sixty launches of a step it was.

use std::fmt;

use cuda_std::ContractError;
use cuda_std::emulator::Fault;

use crate::cublaslt::library::LibraryError;
use crate::exec::Lane;
use crate::room::{keys_of, size};

/// Why a launch, a product, a copy, an allocation, a capture or a replay did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The arguments of a launch do not satisfy what the kernel declares.
    #[error(transparent)]
    Contract(#[from] Box<ContractError>),
    /// The emulator found a fault in a kernel.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
    /// A driver call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A cuBLASLt call failed.
    #[error(transparent)]
    CublasLt(#[from] CublasLtError),
    /// cuBLASLt was asked for and is not there.
    #[error(transparent)]
    NoCublasLt(#[from] LibraryError),
    /// There is no usable GPU.
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    /// The device has no room for a buffer.
    #[error(
        "buffer `{label}`: no room for {bytes} bytes ({}), {free} of {total} bytes of device memory are free; reduce {} \
         ({source})",
        size(*bytes as u64),
        keys_of(label)
    )]
    OutOfMemory {
        /// The buffer's label.
        label: String,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes free when it was asked for.
        free: usize,
        /// Bytes the device has.
        total: usize,
        /// The driver's answer.
        source: Box<CudaError>,
    },
    /// An allocation while none is allowed: during a capture, or after the set-up has been sealed.
    #[error("buffer `{label}` ({bytes} bytes) asked for {when}: all memory is reserved before")]
    Sealed {
        /// The buffer's label.
        label: String,
        /// Bytes asked for.
        bytes: usize,
        /// What forbids it.
        when: &'static str,
    },
    /// A copy or another host operation that cannot be part of a graph was asked for during a capture.
    #[error(
        "{operation} of buffer `{label}` during a capture: it waits for the device, which a graph cannot hold"
    )]
    HostWaitInCapture {
        /// The operation.
        operation: &'static str,
        /// The buffer's label.
        label: String,
    },
    /// A buffer that is not memory of this executor: freed, of another executor, or longer than its allocation.
    #[error("{user}: {bytes} bytes at {address:#x} are not inside one buffer of this executor")]
    NotAllocated {
        /// Kernel and argument, product and operand, or copy.
        user: String,
        /// First byte.
        address: u64,
        /// Length.
        bytes: u64,
    },
    /// A host slice and a device buffer of different lengths.
    #[error("{operation}: the buffer has {buffer} elements, the host slice {host}")]
    Length {
        /// The copy.
        operation: &'static str,
        /// Elements on the device.
        buffer: usize,
        /// Elements on the host.
        host: usize,
    },
    /// The operands of a product do not fit together.
    #[error("product `{label}`: {problem}")]
    Product {
        /// The product's label.
        label: &'static str,
        /// What does not fit, with the numbers.
        problem: String,
    },
    /// A product for which neither cuBLASLt nor a Rust kernel is set up.
    #[error("product `{label}` needs {what}, which is not set up")]
    NoBackend {
        /// The product's label.
        label: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// A product met its first use during a capture.
    #[error(
        "product `{label}` on {lane} has no {what} yet: run the same `record` once eagerly before the capture"
    )]
    Unplanned {
        /// The product's label.
        label: &'static str,
        /// The lane.
        lane: Lane,
        /// `plan` or `workspace`.
        what: &'static str,
    },
    /// A table of algorithms made on another GPU, driver or cuBLASLt.
    #[error(
        "the pinned algorithms were chosen for {pinned}; here is {here}: results would differ in the last bits"
    )]
    PinnedElsewhere {
        /// What the table is valid for.
        pinned: String,
        /// What runs here.
        here: String,
    },
    /// A product without an algorithm in the pinned table.
    #[error("the pinned algorithms have none for {product} ({key})")]
    NotPinned {
        /// The product.
        product: String,
        /// Its key in the table.
        key: String,
    },
    /// The kernel is not in the compiled kernels.
    #[error("kernel `{name}` is not among the compiled kernels ({reason})")]
    MissingKernel {
        /// The kernel's name.
        name: &'static str,
        /// Which image was searched, or why there is none.
        reason: String,
    },
    /// What a launch says it touches does not fit its arguments.
    #[error("kernel `{kernel}`: {problem}")]
    Touches {
        /// The kernel.
        kernel: &'static str,
        /// What does not fit.
        problem: String,
    },
    /// Two lanes use the same memory, at least one writes, and nothing orders them.
    #[error(transparent)]
    Unordered(#[from] Box<Unordered>),
    /// Work on a lane that the captured graph does not reach.
    #[error(
        "`{label}` on {lane}: the lane was not forked from the main lane (`after({lane}, ..)` is missing)"
    )]
    NotForked {
        /// What was issued.
        label: String,
        /// Where.
        lane: Lane,
    },
    /// Lanes whose last work the main lane does not wait for at the end of a capture.
    #[error("the capture ends with lanes that the main lane does not wait for: {}", join(lanes))]
    Unjoined {
        /// The lanes.
        lanes: Vec<Lane>,
    },
    /// A lane that does not exist.
    #[error("{lane} does not exist: lanes are 0 to {}", Lane::COUNT - 1)]
    NoSuchLane {
        /// The lane.
        lane: Lane,
    },
    /// Page-locked memory that another thread is writing.
    #[error("{operation} of pinned buffer `{label}` while another thread has it")]
    Lent {
        /// The operation.
        operation: &'static str,
        /// The buffer's label.
        label: String,
    },
    /// A capture inside a capture, or a replay inside one.
    #[error("{what} during a capture")]
    InsideCapture {
        /// What was asked for.
        what: &'static str,
    },
    /// A graph was replayed on an executor whose buffers it does not know.
    #[error("the graph was captured on another executor: its buffers are not this executor's")]
    ForeignGraph,
    /// A node update that does not fit the node.
    #[error("graph node {node}: {problem}")]
    Node {
        /// Index in the graph's node list.
        node: usize,
        /// What does not fit.
        problem: String,
    },
    /// A file that the executor reads or writes (plan cache, DOT dump).
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        problem: String,
    },
}

impl From<ContractError> for ExecError {
    fn from(error: ContractError) -> Self {
        ExecError::Contract(Box::new(error))
    }
}

impl From<Fault> for ExecError {
    fn from(fault: Fault) -> Self {
        ExecError::Fault(Box::new(fault))
    }
}

fn join(lanes: &[Lane]) -> String {
    lanes.iter().map(Lane::to_string).collect::<Vec<_>>().join(", ")
}

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The driver's code.
    pub code: i32,
    /// `cuGetErrorName`; empty when the driver does not know the code.
    pub name: String,
    /// `cuGetErrorString`; empty when the driver does not know the code.
    pub text: String,
    /// The driver function.
    pub operation: &'static str,
    /// What it was applied to: kernel with grid and block, buffer with bytes, graph.
    pub subject: String,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.operation)?;
        if !self.subject.is_empty() {
            write!(f, " for {}", self.subject)?;
        }
        match self.name.as_str() {
            "" => write!(f, ": CUDA error {}", self.code)?,
            name => write!(f, ": {name} ({})", self.code)?,
        }
        if !self.text.is_empty() {
            write!(f, ", {}", self.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for CudaError {}

/// A failed cuBLASLt call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} failed for {subject}: {name} ({status}){}", detail(.text))]
pub struct CublasLtError {
    /// `cublasStatus_t`.
    pub status: i32,
    /// `cublasLtGetStatusName`.
    pub name: String,
    /// `cublasLtGetStatusString`.
    pub text: String,
    /// The library function.
    pub operation: &'static str,
    /// The product with its shapes, strides and precision.
    pub subject: String,
}

fn detail(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(", {text}") }
}

/// Why there is no usable GPU; each text says what to do about it where something can be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// The driver's library cannot be loaded.
    #[error("no NVIDIA driver: libcuda.so.1 cannot be loaded ({0})")]
    NoDriver(String),
    /// The driver is there and refuses to start.
    #[error("the NVIDIA driver does not start: {0}")]
    Driver(CudaError),
    /// The driver does not know the kernels' PTX.
    #[error("the NVIDIA driver is too old for this program, which needs one for CUDA 12 or newer: {0}")]
    OldDriver(CudaError),
    /// The driver sees no GPU.
    #[error("the NVIDIA driver sees no GPU (CUDA_VISIBLE_DEVICES={visible})")]
    NoGpu {
        /// Value of the variable, `unset` when it is not set.
        visible: String,
    },
    /// The index is past the last GPU.
    #[error("there is no GPU {index}: the driver sees {count}")]
    NoSuchGpu {
        /// Index asked for.
        index: usize,
        /// GPUs there are.
        count: usize,
    },
    /// Older than what the kernels are compiled for.
    #[error("GPU {index} ({name}) has compute capability {major}.{minor}: 8.0 or newer is needed")]
    TooOld {
        /// Index of the GPU.
        index: usize,
        /// Its name.
        name: String,
        /// Major capability.
        major: u32,
        /// Minor capability.
        minor: u32,
    },
    /// This program was built without kernels.
    #[error("this program was built without GPU kernels: {0}")]
    NoKernels(String),
}

/// Two uses of the same memory that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "buffer `{buffer}` is {} by `{first}` on {first_lane} and {} by `{second}` on {second_lane}, and no `after` orders them",
    verb(*.first_writes), verb(*.second_writes)
)]
pub struct Unordered {
    /// The buffer's label.
    pub buffer: String,
    /// Kernel or product issued first.
    pub first: String,
    /// Its lane.
    pub first_lane: Lane,
    /// Whether it writes.
    pub first_writes: bool,
    /// Kernel or product issued second.
    pub second: String,
    /// Its lane.
    pub second_lane: Lane,
    /// Whether it writes.
    pub second_writes: bool,
}

fn verb(writes: bool) -> &'static str {
    if writes { "written" } else { "read" }
}

/// An error with its causes on one line. A cause that the text before it already ends with (many errors print what
/// they come from) is not repeated.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    let mut last = text.clone();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !last.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        last = cause;
    }
    printable(&text)
}

/// A text that cannot steer a terminal: file names and values from files may hold anything.
pub fn printable(text: &str) -> String {
    text.chars().fold(String::new(), |mut all, c| {
        if c.is_control() && c != '\n' && c != '\t' {
            all.extend(c.escape_default())
        } else {
            all.push(c)
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_error_names_operation_subject_code_and_text() {
        let error = CudaError {
            code: 701,
            name: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES".into(),
            text: "too many resources requested for launch".into(),
            operation: "cuLaunchKernel",
            subject: "kernel `gather`, grid 4x1x1, block 256x1x1".into(),
        };
        assert_eq!(
            error.to_string(),
            "cuLaunchKernel failed for kernel `gather`, grid 4x1x1, block 256x1x1: \
             CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701), too many resources requested for launch"
        );
        let unknown = CudaError { name: String::new(), text: String::new(), subject: String::new(), ..error };
        assert_eq!(unknown.to_string(), "cuLaunchKernel failed: CUDA error 701");
    }

    #[test]
    fn no_room_on_the_device_says_what_whose_and_what_to_reduce() {
        let source = CudaError {
            code: 2,
            name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            text: "out of memory".into(),
            operation: "cuMemAlloc",
            subject: String::new(),
        };
        let error = ExecError::OutOfMemory {
            label: "replay.states".into(),
            bytes: 3 << 30,
            free: 1 << 30,
            total: 2 << 30,
            source: Box::new(source),
        };
        assert_eq!(
            error.to_string(),
            "buffer `replay.states`: no room for 3221225472 bytes (3.0 GiB), 1073741824 of 2147483648 bytes of device \
             memory are free; reduce collect.capacity (or vaccine.capacity) (cuMemAlloc failed: \
             CUDA_ERROR_OUT_OF_MEMORY (2), out of memory)"
        );
    }

    #[test]
    fn a_cause_that_was_printed_is_not_printed_again() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let printed = bars::BarError::Io { file: "nope.csv".into(), source: io };
        assert_eq!(chain(&anyhow::Error::new(printed)), "nope.csv: no such file");
        let plain = anyhow::anyhow!("line 3 is short").context("reading run.toml");
        assert_eq!(chain(&plain), "reading run.toml: line 3 is short");
    }

    #[test]
    fn unordered_use_names_both_sides_and_the_buffer() {
        let error = Unordered {
            buffer: "h2".into(),
            first: "trunk2.forward".into(),
            first_lane: Lane::MAIN,
            first_writes: true,
            second: "a1.0.forward".into(),
            second_lane: Lane::branch(0),
            second_writes: false,
        };
        assert_eq!(
            error.to_string(),
            "buffer `h2` is written by `trunk2.forward` on lane main and read by `a1.0.forward` on lane branch0, \
             and no `after` orders them"
        );
    }
}
