//! Measures kernels by the GPU's own clock: a graph of [`LAUNCHES`] launches, one after the other, replayed between
//! events. What criterion compares between runs is the time of one launch.
//!
//! The buffers stay in the L2 cache from launch to launch, as those of a training step do; the bench of the replay ring,
//! which does not fit, draws other rows in every launch.

use std::process::ExitCode;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter};
use criterion::{Criterion, SamplingMode, Throughput};
use cuda_std::{Buf, Kernel};
use host::cuda::capture::quantile;
use host::cuda::{CudaExec, CudaOptions, Graph, Products};
use host::embedded;
use host::error::ExecError;
use host::exec::{Element, Exec, Lane, Memory};

/// Launches in a graph: their chain is long enough that the graph's own launch does not count.
const LAUNCHES: usize = 100;
/// Samples that criterion takes, at least one replay each.
const SAMPLES: usize = 200;
/// Replays before the first timed one.
const WARMUP: usize = 20;

/// Time on the device in microseconds.
pub struct DeviceTime;

impl Measurement for DeviceTime {
    type Intermediate = ();
    type Value = f64;

    fn start(&self) {}

    /// Never called: every bench measures by itself (`iter_custom`).
    fn end(&self, (): ()) -> f64 {
        f64::NAN
    }

    fn add(&self, a: &f64, b: &f64) -> f64 {
        a + b
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Microseconds
    }
}

struct Microseconds;

impl ValueFormatter for Microseconds {
    fn scale_values(&self, _typical: f64, _values: &mut [f64]) -> &'static str {
        "us"
    }

    fn scale_throughputs(&self, _typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        let (amount, unit) = match *throughput {
            Throughput::Elements(operations) => (operations, "GFLOP/s"),
            Throughput::Bytes(bytes) => (bytes, "GB/s"),
            _ => (0, "(no rate)"),
        };
        for value in values {
            *value = amount as f64 / (1e3 * *value);
        }
        unit
    }

    fn scale_for_machines(&self, _values: &mut [f64]) -> &'static str {
        "us"
    }
}

/// A GPU and criterion.
pub struct Bench {
    /// Where buffers come from.
    pub exec: CudaExec,
    criterion: Criterion<DeviceTime>,
}

/// Runs a bench program: `benches` allocates and measures. Without a GPU it says so and succeeds, without numbers.
pub fn run(benches: impl FnOnce(&mut Bench) -> Result<(), ExecError>) -> ExitCode {
    let options = CudaOptions { products: Products::Rust, ..CudaOptions::default() };
    let exec = match CudaExec::open(embedded::images(), options) {
        Ok(exec) => exec,
        Err(ExecError::NoDevice(reason)) => {
            println!("nothing is measured: {reason}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", exec.gpu().properties().name);
    let criterion = Criterion::default()
        .with_measurement(DeviceTime)
        .sample_size(SAMPLES)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(500))
        .configure_from_args();
    let mut bench = Bench { exec, criterion };
    match benches(&mut bench) {
        Ok(()) => {
            bench.criterion.final_summary();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Bench {
    /// A buffer with these values.
    pub fn put<T: Element>(&mut self, label: &str, values: &[T]) -> Result<Buf<T>, ExecError> {
        let buffer = self.exec.alloc(label, values.len())?;
        self.exec.upload(buffer, values)?;
        Ok(buffer)
    }

    /// A buffer of `len` reproducible numbers in (-1, 1).
    #[allow(dead_code, reason = "not every bench program needs it")]
    pub fn random(&mut self, label: &str, len: usize) -> Result<Buf<f32>, ExecError> {
        // Weyl's sequence of the golden ratio: spread evenly, and no two rows alike.
        let values: Vec<f32> = (0..len as u64)
            .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect();
        self.put(label, &values)
    }

    /// Measures one kernel that moves `bytes` bytes.
    #[allow(dead_code, reason = "not every bench program needs it")]
    pub fn kernel<K: Kernel>(&mut self, workload: &str, bytes: u64, kernel: K) -> Result<(), ExecError> {
        self.sequence(K::DECL.name, workload, Throughput::Bytes(bytes), move |exec, _| {
            exec.launch(Lane::MAIN, &kernel)
        })
    }

    /// Measures what `launch` issues on the main lane, as one unit; it gets its number within the graph.
    pub fn sequence(
        &mut self,
        name: &str,
        workload: &str,
        throughput: Throughput,
        launch: impl Fn(&mut CudaExec, usize) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        launch(&mut self.exec, 0)?;
        let graph = Graph::capture(&mut self.exec, |exec| (0..LAUNCHES).try_for_each(|i| launch(exec, i)))?;
        graph.time(&mut self.exec, WARMUP, 1)?;
        let (exec, mut failure, mut times) = (&mut self.exec, None, Vec::new());
        let mut group = self.criterion.benchmark_group(name);
        group.sampling_mode(SamplingMode::Flat).throughput(throughput);
        group.bench_function(workload, |bencher| {
            bencher.iter_custom(|replays| match graph.time(exec, 0, replays as usize) {
                Ok(timing) => {
                    let each = timing.replays.iter().map(|us| us / LAUNCHES as f64);
                    times.extend(each.clone());
                    each.sum()
                }
                Err(error) => {
                    failure = Some(error);
                    f64::NAN
                }
            });
        });
        group.finish();
        if let Some(error) = failure {
            return Err(error);
        }
        times.sort_by(f64::total_cmp);
        if !times.is_empty() {
            println!(
                "{name}, {workload}: {:.3} us a launch, median of {} replays of {LAUNCHES} launches, 5% {:.3}, 95% {:.3}",
                quantile(&times, 0.5),
                times.len(),
                quantile(&times, 0.05),
                quantile(&times, 0.95),
            );
        }
        Ok(())
    }
}
