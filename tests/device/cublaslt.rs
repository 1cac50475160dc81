//! Matrix products by cuBLASLt on a GPU: values, plans, cache, capture.

use cuda_std::Buf;
use host::cublaslt::Choice;
use host::cublaslt::cache::PlanTable;
use host::cuda::{CudaExec, CudaOptions, Graph, NodeKind, Products};
use host::embedded;
use host::error::ExecError;
use host::exec::{Epilogue, Exec, Form, Lane, Memory, Product};
use settings::Precision;

fn open(choice: Choice, plan_cache: Option<std::path::PathBuf>) -> Result<CudaExec, ExecError> {
    CudaExec::open(
        embedded::images(),
        CudaOptions { products: Products::CublasLt, choice, plan_cache, gpu: 0, order_cache: None },
    )
}

/// Numbers in [-1, 1) of a 64-bit linear congruential sequence (Knuth's MMIX constants).
fn values(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// A product on fresh random buffers, and a copy of their contents.
struct Case {
    product: Product,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(
        exec: &mut CudaExec,
        form: Form,
        [m, n, k]: [usize; 3],
        gaps: [usize; 3],
        bias: bool,
        precision: Precision,
    ) -> Self {
        let (a_rows, a_columns) = if form == Form::Tn { (k, m) } else { (m, k) };
        let (b_rows, b_columns) = if form == Form::Nt { (n, k) } else { (k, n) };
        let (lda, ldb, ldc) = (a_columns + gaps[0], b_columns + gaps[1], n + gaps[2]);
        let mut buffer = |label: &str, seed, len| {
            let data = values(seed, len);
            let buffer = exec.alloc::<f32>(label, len).unwrap();
            exec.upload(buffer, &data).unwrap();
            (buffer, data)
        };
        let (a, a_data) = buffer("a", 1, a_rows * lda);
        let (b, b_data) = buffer("b", 2, b_rows * ldb);
        let (bias_buffer, bias_data) = buffer("bias", 3, n);
        let (c, _) = buffer("c", 4, m * ldc);
        let epilogue = if bias { Epilogue::Bias(bias_buffer) } else { Epilogue::None };
        let label = "case";
        let product = Product { label, form, m, n, k, a, lda, b, ldb, c, ldc, epilogue, precision };
        Self { product, a: a_data, b: b_data, bias: bias_data }
    }

    /// Largest error against sums in f64, in units of the element's sum of |a b| (+ |bias|).
    fn worst_error(&self, c: &[f32]) -> f64 {
        let p = &self.product;
        let mut worst: f64 = 0.0;
        for i in 0..p.m {
            for j in 0..p.n {
                let terms = (0..p.k).map(|l| {
                    let a = if p.form == Form::Tn { self.a[l * p.lda + i] } else { self.a[i * p.lda + l] };
                    let b = if p.form == Form::Nt { self.b[j * p.ldb + l] } else { self.b[l * p.ldb + j] };
                    f64::from(a) * f64::from(b)
                });
                let (mut sum, mut scale) =
                    terms.fold((0.0, 0.0), |(sum, scale), t| (sum + t, scale + t.abs()));
                if matches!(p.epilogue, Epilogue::Bias(_)) {
                    sum += f64::from(self.bias[j]);
                    scale += f64::from(self.bias[j]).abs();
                }
                worst = worst.max((f64::from(c[i * p.ldc + j]) - sum).abs() / scale);
            }
        }
        worst
    }
}

/// Bound on an element's error over its sum of |a b|. A sum of k terms in f32, in any order, rounds each term at
/// most k + 1 times (Higham, Accuracy and Stability, section 3.1), 2^-24 each. Tensor cores first round both
/// operands, tf32 to 10 mantissa bits (at worst cutting: 2^-10 each), bf16 to 7 (to nearest: 2^-8 each), and may
/// cut instead of rounding when they add, 2^-23 each.
fn bound(precision: Precision, k: usize) -> f64 {
    let terms = (k + 2) as f64;
    match precision {
        Precision::Fp32 => terms * 2f64.powi(-24),
        Precision::Tf32 => 2.0 * 2f64.powi(-10) + terms * 2f64.powi(-23),
        Precision::Bf16 => 2.0 * 2f64.powi(-8) + terms * 2f64.powi(-23),
    }
}

const PRECISIONS: [Precision; 3] = [Precision::Fp32, Precision::Tf32, Precision::Bf16];

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn products_agree_with_f64_in_every_form_precision_and_epilogue() {
    let mut exec = open(Choice::First, None).unwrap();
    // Layers of the default network; a single column of blocks; strides of a wider matrix; odd sizes.
    let shapes = [([1024, 256, 80], [0, 0, 0]), ([64, 52, 128], [512, 0, 780]), ([37, 51, 29], [3, 5, 1])];
    for (shape, gaps) in shapes {
        for form in [Form::Nt, Form::Nn, Form::Tn] {
            for precision in PRECISIONS {
                for bias in [false, true] {
                    let case = Case::new(&mut exec, form, shape, gaps, bias, precision);
                    let before = exec.download(case.product.c).unwrap();
                    exec.product(Lane::MAIN, &case.product).unwrap();
                    let c = exec.download(case.product.c).unwrap();
                    let (worst, bound) = (case.worst_error(&c), bound(precision, shape[2]));
                    assert!(worst <= bound, "{}: error {worst:e} over the bound {bound:e}", case.product);
                    // Gaps between rows stay as they were.
                    let (n, ldc) = (case.product.n, case.product.ldc);
                    for at in (0..c.len()).filter(|at| at % ldc >= n) {
                        assert_eq!(
                            c[at].to_bits(),
                            before[at].to_bits(),
                            "{}: wrote between rows",
                            case.product
                        );
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn fp32_is_not_tf32() {
    let mut exec = open(Choice::Measure, None).unwrap();
    let mut worst = |precision| {
        let case = Case::new(&mut exec, Form::Nt, [1024, 256, 256], [0; 3], false, precision);
        exec.product(Lane::MAIN, &case.product).unwrap();
        case.worst_error(&exec.download(case.product.c).unwrap())
    };
    // Rounding 512 operands to 10 bits leaves an error that f32 sums do not have, on tf32's side of 1e-5.
    assert!(worst(Precision::Tf32) > 1e-5, "tf32 was asked for");
    assert!(worst(Precision::Fp32) < bound(Precision::Fp32, 256), "fp32 was asked for");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn products_on_several_lanes_replay_as_they_ran_bit_for_bit() {
    let mut exec = open(Choice::Measure, None).unwrap();
    let cases: Vec<Case> = [[1024, 459, 128], [1024, 153, 128], [256, 256, 1024]]
        .into_iter()
        .zip([Form::Nt, Form::Nn, Form::Tn])
        .map(|(shape, form)| Case::new(&mut exec, form, shape, [0; 3], form == Form::Nt, Precision::Tf32))
        .collect();
    let record = |exec: &mut CudaExec| {
        for (i, case) in cases.iter().enumerate() {
            exec.after(Lane::branch(i), Lane::MAIN)?;
            exec.product(Lane::branch(i), &case.product)?;
            exec.after(Lane::MAIN, Lane::branch(i))?;
        }
        Ok(())
    };
    let read = |exec: &mut CudaExec| -> Vec<u32> {
        cases.iter().flat_map(|case| exec.download(case.product.c).unwrap()).map(f32::to_bits).collect()
    };
    record(&mut exec).unwrap();
    let eager = read(&mut exec);
    let graph = Graph::capture(&mut exec, record).unwrap();
    let inputs = |exec: &mut CudaExec, seed| {
        for case in &cases {
            let len = case.product.a.len();
            exec.upload(case.product.a, &values(seed, len)).unwrap();
            exec.upload(case.product.c, &vec![f32::NAN; case.product.c.len()]).unwrap();
        }
    };
    for round in 0..100 {
        inputs(&mut exec, 1);
        graph.replay(&mut exec).unwrap();
        assert_eq!(read(&mut exec), eager, "replay {round}");
    }
    inputs(&mut exec, 8);
    graph.replay(&mut exec).unwrap();
    let replayed = read(&mut exec);
    assert_ne!(replayed, eager, "the inputs were rewritten");
    inputs(&mut exec, 8);
    record(&mut exec).unwrap();
    assert_eq!(read(&mut exec), replayed, "eager on rewritten inputs");
    for node in graph.nodes().iter().filter(|node| node.kind == NodeKind::Kernel) {
        assert!(!node.name.is_empty(), "a library's kernel has a name: {node}");
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_product_first_met_in_a_capture_is_an_error() {
    let mut exec = open(Choice::First, None).unwrap();
    let case = Case::new(&mut exec, Form::Nt, [64, 64, 64], [0; 3], false, Precision::Fp32);
    let product = case.product;
    let unplanned = Graph::capture(&mut exec, |exec| exec.product(Lane::MAIN, &product)).unwrap_err();
    assert!(matches!(unplanned, ExecError::Unplanned { what: "plan", .. }), "{unplanned}");
    exec.product(Lane::MAIN, &product).unwrap();
    let elsewhere = Graph::capture(&mut exec, |exec| {
        exec.after(Lane::TARGET, Lane::MAIN)?;
        exec.product(Lane::TARGET, &product)?;
        exec.after(Lane::MAIN, Lane::TARGET)
    })
    .unwrap_err();
    assert!(matches!(elsewhere, ExecError::Unplanned { what: "workspace", .. }), "{elsewhere}");
    Graph::capture(&mut exec, |exec| exec.product(Lane::MAIN, &product)).unwrap();
}

/// The table after one product, and the product's result.
fn run(exec: &mut CudaExec) -> (PlanTable, Vec<u32>) {
    let case = Case::new(exec, Form::Nt, [1024, 256, 256], [0; 3], true, Precision::Tf32);
    exec.product(Lane::MAIN, &case.product).unwrap();
    let c = exec.download(case.product.c).unwrap().into_iter().map(f32::to_bits).collect();
    (exec.plan_table().unwrap(), c)
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_measured_choice_is_cached_pinned_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plans.json");
    let (measured, result) = run(&mut open(Choice::Measure, Some(path.clone())).unwrap());
    let [(key, entry)] = measured.plans.iter().collect::<Vec<_>>()[..] else { panic!("{measured:?}") };
    assert!(key.starts_with("nt tf32 m1024 n256 k256 "), "{key}");
    assert!(entry.candidates > 1 && entry.microseconds.is_some_and(|us| us > 0.0), "{entry:?}");
    println!("{key}: {:.2} us, best of {}", entry.microseconds.unwrap(), entry.candidates);

    // The time in the table is the cache's, so this executor has measured nothing.
    let (cached, again) = run(&mut open(Choice::Measure, Some(path.clone())).unwrap());
    assert_eq!((&cached, &again), (&measured, &result), "cached");
    let (pinned, again) = run(&mut open(Choice::Pinned(measured.clone()), None).unwrap());
    assert_eq!((&pinned, &again), (&measured, &result), "pinned");

    // An algorithm that the library refuses is measured again.
    let text = std::fs::read_to_string(&path).unwrap().replace(&entry.algorithm, &"f".repeat(128));
    std::fs::write(&path, text).unwrap();
    let (remeasured, _) = run(&mut open(Choice::Measure, Some(path)).unwrap());
    assert_ne!(remeasured.plans[key].algorithm, "f".repeat(128));

    let mut refused =
        open(Choice::Pinned(PlanTable { plans: Default::default(), ..measured.clone() }), None).unwrap();
    let case = Case::new(&mut refused, Form::Nt, [64, 64, 64], [0; 3], false, Precision::Fp32);
    let error = refused.product(Lane::MAIN, &case.product).unwrap_err();
    assert!(matches!(error, ExecError::NotPinned { .. }), "{error}");
    let mut foreign = measured;
    foreign.identity.cublaslt = "0.0.0".into();
    let error = open(Choice::Pinned(foreign), None).unwrap_err();
    assert!(matches!(error, ExecError::PinnedElsewhere { .. }), "{error}");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn what_does_not_fit_is_an_error_before_it_reaches_the_library() {
    let mut exec = open(Choice::First, None).unwrap();
    let case = Case::new(&mut exec, Form::Nt, [64, 64, 64], [0; 3], false, Precision::Fp32);
    let short = Product { m: 65, ..case.product };
    assert!(matches!(exec.product(Lane::MAIN, &short), Err(ExecError::Product { .. })));
    let outside = Product { a: Buf::from_raw(0x1000, 64 * 64), ..case.product };
    assert!(matches!(exec.product(Lane::MAIN, &outside), Err(ExecError::NotAllocated { .. })));
    let lrelu = Product { epilogue: Epilogue::LreluBackward(case.product.a, 0.1), ..case.product };
    assert!(
        matches!(exec.product(Lane::MAIN, &lrelu), Err(ExecError::NoBackend { .. })),
        "no Rust kernel is set"
    );
}
