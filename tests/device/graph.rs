//! Launches, lanes, capture and replay on a GPU.

use cuda_std::{Buf, kernel};
use gpu::kernels::bias_lrelu::{BiasLrelu, LreluBackward};
use host::cuda::{CudaExec, CudaOptions, Graph, NodeKind, Products};
use host::embedded;
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

const ROWS: usize = 64;
const COLUMNS: usize = 256;

/// An executor without cuBLASLt: these tests are about launches.
fn open() -> CudaExec {
    let options = CudaOptions { products: Products::Rust, ..CudaOptions::default() };
    CudaExec::open(embedded::images(), options).expect("a GPU and compiled kernels")
}

/// Buffers of a small network of launches: two chains that fork from x and join in z.
#[derive(Clone, Copy)]
struct Chains {
    bias: Buf<f32>,
    x: Buf<f32>,
    y: Buf<f32>,
    z: Buf<f32>,
}

impl Chains {
    fn alloc(exec: &mut CudaExec) -> Self {
        let bias = exec.alloc("bias", COLUMNS).unwrap();
        let mut matrix = |label| exec.alloc(label, ROWS * COLUMNS).unwrap();
        let chains = Self { bias, x: matrix("x"), y: matrix("y"), z: matrix("z") };
        chains.write(exec, 1);
        chains
    }

    /// Values that depend on `seed`, all of them exactly representable and of both signs.
    fn values(seed: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + seed * 101) % 1009) as f32 / 64.0 - 7.5).collect()
    }

    fn write(&self, exec: &mut CudaExec, seed: usize) {
        exec.upload(self.bias, &Self::values(seed, COLUMNS)).unwrap();
        for (i, matrix) in [self.x, self.y, self.z].into_iter().enumerate() {
            exec.upload(matrix, &Self::values(seed + 1 + i, ROWS * COLUMNS)).unwrap();
        }
    }

    fn read(&self, exec: &mut CudaExec) -> Vec<u32> {
        let matrices = [self.x, self.y, self.z];
        matrices.into_iter().flat_map(|m| exec.download(m).unwrap()).map(f32::to_bits).collect()
    }

    fn forward(&self, x: Buf<f32>, slope: f32) -> BiasLrelu {
        let (rows, cols, stride) = (ROWS as u32, COLUMNS as u32, COLUMNS as u32);
        BiasLrelu { rows, cols, stride, slope, bias: self.bias.into(), x: x.into() }
    }

    fn backward(&self, h: Buf<f32>, d: Buf<f32>) -> LreluBackward {
        let (rows, cols, stride) = (ROWS as u32, COLUMNS as u32, COLUMNS as u32);
        LreluBackward { rows, cols, stride, slope: 0.25, h: h.into(), d: d.into() }
    }

    /// main: x = lrelu(x + bias), fork; y on two branch lanes one after the other; z = z * lrelu'(y), joined.
    fn record(&self, exec: &mut CudaExec) -> Result<(), ExecError> {
        let (first, second) = (Lane::branch(0), Lane::branch(1));
        exec.launch(Lane::MAIN, &self.forward(self.x, 0.5))?;
        exec.after(first, Lane::MAIN)?;
        exec.launch(first, &self.backward(self.x, self.y))?;
        exec.after(second, first)?;
        exec.launch(second, &self.forward(self.y, 0.125))?;
        exec.launch(Lane::MAIN, &self.forward(self.z, 0.75))?;
        exec.after(Lane::MAIN, second)?;
        exec.launch(Lane::MAIN, &self.backward(self.y, self.z))
    }

    /// The same in plain Rust: one multiplication or addition a step, so equal bit for bit.
    fn expected(seed: usize, rounds: usize) -> Vec<u32> {
        let bias = Self::values(seed, COLUMNS);
        let [mut x, mut y, mut z] = [1, 2, 3].map(|i| Self::values(seed + i, ROWS * COLUMNS));
        let forward = |m: &mut [f32], slope: f32| {
            for (i, v) in m.iter_mut().enumerate() {
                let t = *v + bias[i % COLUMNS];
                *v = if t > 0.0 { t } else { slope * t };
            }
        };
        let backward = |h: &[f32], d: &mut [f32]| {
            h.iter().zip(d).for_each(|(h, d)| *d = if *h > 0.0 { *d } else { 0.25 * *d });
        };
        for _ in 0..rounds {
            forward(&mut x, 0.5);
            backward(&x, &mut y);
            forward(&mut y, 0.125);
            forward(&mut z, 0.75);
            backward(&y, &mut z);
        }
        [x, y, z].concat().into_iter().map(f32::to_bits).collect()
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn replay_equals_eager_bit_for_bit_twice_and_after_rewriting_inputs() {
    let mut exec = open();
    let chains = Chains::alloc(&mut exec);
    chains.record(&mut exec).unwrap();
    assert_eq!(chains.read(&mut exec), Chains::expected(1, 1), "eager");

    let graph = Graph::capture(&mut exec, |exec| chains.record(exec)).unwrap();
    assert_eq!(chains.read(&mut exec), Chains::expected(1, 1), "a capture runs nothing");
    for seed in [1, 5] {
        chains.write(&mut exec, seed);
        for round in 1..=3 {
            graph.replay(&mut exec).unwrap();
            assert_eq!(chains.read(&mut exec), Chains::expected(seed, round), "seed {seed}, replay {round}");
        }
    }
    chains.write(&mut exec, 9);
    for _ in 0..1000 {
        graph.replay(&mut exec).unwrap();
    }
    assert_eq!(chains.read(&mut exec), Chains::expected(9, 1000), "1000 replays in a row");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_graph_lists_its_nodes_with_names_and_dependencies() {
    let mut exec = open();
    let chains = Chains::alloc(&mut exec);
    chains.record(&mut exec).unwrap();
    let graph = Graph::capture(&mut exec, |exec| chains.record(exec)).unwrap();
    let nodes = graph.nodes();
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(nodes.len(), 5, "{nodes:#?}");
    assert!(nodes.iter().all(|node| node.kind == NodeKind::Kernel), "{nodes:#?}");
    assert_eq!(names.iter().filter(|name| **name == "bias_lrelu").count(), 3, "{names:?}");
    assert_eq!(names.iter().filter(|name| **name == "lrelu_backward").count(), 2, "{names:?}");
    // x -> y's two -> z's last: four in a chain; z's first waits for x's only, being on the main lane.
    assert_eq!(graph.longest_chain(), 4, "{nodes:#?}");
    let dependencies: usize = nodes.iter().map(|node| node.dependencies.len()).sum();
    assert_eq!(dependencies, 5, "{nodes:#?}");
    let size = nodes[0].size.expect("kernels have a size");
    assert_eq!(size.grid, [(ROWS * COLUMNS / 4 / 256) as u32, 1, 1]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.dot");
    graph.write_dot(&path).unwrap();
    let dot = std::fs::read_to_string(&path).unwrap();
    assert!(dot.contains("digraph") && dot.contains("bias_lrelu"), "{dot}");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_capture_refuses_what_a_graph_cannot_hold_and_leaves_the_executor_usable() {
    let mut exec = open();
    let chains = Chains::alloc(&mut exec);
    chains.record(&mut exec).unwrap();
    let (x, launch) = (chains.x, chains.forward(chains.x, 0.5));

    let allocating = Graph::capture(&mut exec, |exec| exec.alloc::<f32>("late", 16).map(drop)).unwrap_err();
    assert!(matches!(&allocating, ExecError::Sealed { label, .. } if label == "late"), "{allocating}");
    let waiting = Graph::capture(&mut exec, |exec| exec.download(x).map(drop)).unwrap_err();
    assert!(matches!(waiting, ExecError::HostWaitInCapture { .. }), "{waiting}");
    let unforked = Graph::capture(&mut exec, |exec| exec.launch(Lane::TARGET, &launch)).unwrap_err();
    assert!(matches!(unforked, ExecError::NotForked { lane: Lane::TARGET, .. }), "{unforked}");
    let unjoined = Graph::capture(&mut exec, |exec| {
        exec.after(Lane::TARGET, Lane::MAIN)?;
        exec.launch(Lane::TARGET, &launch)
    })
    .unwrap_err();
    assert!(matches!(&unjoined, ExecError::Unjoined { lanes } if *lanes == [Lane::TARGET]), "{unjoined}");
    let nested = Graph::capture(&mut exec, |exec| Graph::capture(exec, |exec| chains.record(exec)).map(drop))
        .unwrap_err();
    assert!(matches!(nested, ExecError::InsideCapture { .. }), "{nested}");

    // All lanes that took part in a failed capture run eagerly and capture again.
    chains.write(&mut exec, 3);
    chains.record(&mut exec).unwrap();
    exec.launch(Lane::TARGET, &chains.forward(chains.x, 1.0)).unwrap();
    exec.synchronize().unwrap();
    chains.write(&mut exec, 3);
    let graph = Graph::capture(&mut exec, |exec| chains.record(exec)).unwrap();
    graph.replay(&mut exec).unwrap();
    assert_eq!(chains.read(&mut exec), Chains::expected(3, 1));
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_node_takes_new_arguments_of_its_own_kernel_only() {
    let mut exec = open();
    let chains = Chains::alloc(&mut exec);
    let record = |exec: &mut CudaExec| exec.launch(Lane::MAIN, &chains.forward(chains.x, 0.5));
    record(&mut exec).unwrap();
    let mut graph = Graph::capture(&mut exec, record).unwrap();
    let (x, z) = (exec.download(chains.x).unwrap(), exec.download(chains.z).unwrap());

    graph.set_kernel(&exec, 0, &chains.forward(chains.z, 0.5)).unwrap();
    graph.replay(&mut exec).unwrap();
    assert_eq!(exec.download(chains.x).unwrap(), x, "the node no longer writes x");
    assert_ne!(exec.download(chains.z).unwrap(), z, "but z");

    let other = graph.set_kernel(&exec, 0, &chains.backward(chains.x, chains.y)).unwrap_err();
    assert!(matches!(other, ExecError::Node { node: 0, .. }), "{other}");
    let none = graph.set_kernel(&exec, 1, &chains.forward(chains.x, 0.5)).unwrap_err();
    assert!(matches!(none, ExecError::Node { node: 1, .. }), "{none}");
    let outside = chains.forward(Buf::from_raw(0x1000, ROWS * COLUMNS), 0.5);
    let outside = graph.set_kernel(&exec, 0, &outside).unwrap_err();
    assert!(matches!(outside, ExecError::NotAllocated { .. }), "{outside}");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_graph_belongs_to_its_executor() {
    let (mut one, mut two) = (open(), open());
    let chains = Chains::alloc(&mut one);
    chains.record(&mut one).unwrap();
    let graph = Graph::capture(&mut one, |exec| chains.record(exec)).unwrap();
    assert!(matches!(graph.replay(&mut two), Err(ExecError::ForeignGraph)));
    let launch = two.launch(Lane::MAIN, &chains.forward(chains.x, 0.5)).unwrap_err();
    assert!(matches!(launch, ExecError::NotAllocated { .. }), "{launch}");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn memory_is_flat_and_the_host_quick_over_ten_thousand_replays() {
    let mut exec = open();
    let chains = Chains::alloc(&mut exec);
    chains.record(&mut exec).unwrap();
    let graph = Graph::capture(&mut exec, |exec| chains.record(exec)).unwrap();
    exec.seal();
    let late = exec.alloc::<f32>("late", 1).unwrap_err();
    assert!(matches!(late, ExecError::Sealed { .. }), "{late}");
    graph.time(&mut exec, 100, 200).unwrap();
    let before = exec.memory_report().unwrap();
    let timing = graph.time(&mut exec, 0, 10_000).unwrap();
    let after = exec.memory_report().unwrap();
    assert_eq!(before, after);
    assert_eq!((timing.replays.len(), timing.host.len()), (10_000, 10_000));
    println!(
        "5 nodes, 4 in a chain: {:.2} us a replay ({:.2} to {:.2}), {:.2} us of host time",
        timing.median(),
        timing.spread().0,
        timing.spread().1,
        timing.host_median()
    );
    // The bound of the step itself; a graph of five nodes is far below it.
    assert!(timing.host_median() < 10.0, "{:.2} us of host time a launch", timing.host_median());
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn pinned_memory_is_copied_eagerly_and_in_a_graph() {
    let mut exec = open();
    let device = exec.alloc::<f32>("device", 1000).unwrap();
    let (input, output) =
        (exec.alloc_pinned::<f32>("input", 1000).unwrap(), exec.alloc_pinned::<f32>("output", 1000).unwrap());
    let record = |exec: &mut CudaExec| {
        exec.copy_in(Lane::MAIN, device, input)?;
        exec.copy_out(Lane::MAIN, device, output)
    };
    exec.write_pinned(input, &Chains::values(1, 1000)).unwrap();
    record(&mut exec).unwrap();
    assert_eq!(exec.read_pinned(output).unwrap(), Chains::values(1, 1000));
    let graph = Graph::capture(&mut exec, record).unwrap();
    for seed in 2..20 {
        exec.write_pinned(input, &Chains::values(seed, 1000)).unwrap();
        graph.replay(&mut exec).unwrap();
        assert_eq!(exec.read_pinned(output).unwrap(), Chains::values(seed, 1000), "seed {seed}");
    }
    let short = exec.write_pinned(input, &[0.0; 3]).unwrap_err();
    assert!(matches!(short, ExecError::Length { buffer: 1000, host: 3, .. }), "{short}");
    let nodes: Vec<NodeKind> = graph.nodes().iter().map(|node| node.kind).collect();
    assert_eq!(nodes, [NodeKind::Memcpy; 2]);
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn a_buffer_that_does_not_fit_names_itself_and_what_is_free() {
    let mut exec = open();
    let error = exec.alloc::<f32>("far too much", 1 << 45).unwrap_err();
    match &error {
        ExecError::OutOfMemory { label, bytes, free, total, source } => {
            assert_eq!((label.as_str(), *bytes), ("far too much", 1 << 47));
            assert!(0 < *free && free < total, "{error}");
            assert_eq!((source.code, source.name.as_str()), (2, "CUDA_ERROR_OUT_OF_MEMORY"));
        }
        _ => panic!("{error}"),
    }
    // The executor goes on.
    let buffer = exec.alloc::<u64>("small", 3).unwrap();
    assert_eq!(exec.download(buffer).unwrap(), [0; 3], "fresh memory is zero");
}

/// A kernel that `gpu` does not have.
#[kernel(block = 32, grid = 1)]
fn not_in_the_image(x: cuda_std::InOut<f32>) {
    x.set(0, 1.0);
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn an_unknown_kernel_is_an_error_that_names_it() {
    let mut exec = open();
    let x = exec.alloc::<f32>("x", 1).unwrap();
    let error = exec.launch(Lane::MAIN, &NotInTheImage { x: x.into() }).unwrap_err();
    assert!(matches!(error, ExecError::MissingKernel { name: "not_in_the_image", .. }), "{error}");
    assert!(error.to_string().contains("CUDA_ERROR_NOT_FOUND (500)"), "{error}");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu-check.sh"]
fn the_compilers_log_is_part_of_the_error() {
    use host::cuda::{KernelImage, KernelImages};
    static BROKEN: [KernelImage; 1] = [KernelImage {
        arch: 80,
        exact: false,
        ptx: ".version 7.8\n.target sm_80\n.address_size 64\nnonsense here;\n",
        cubin: None,
    }];
    let images = KernelImages { images: &BROKEN, note: "broken on purpose" };
    let error = CudaExec::open(images, CudaOptions::default()).unwrap_err().to_string();
    assert!(error.contains("PTX sm_80") && error.contains("compiler log"), "{error}");
    assert!(error.contains("CUDA_ERROR_INVALID_PTX (218)"), "{error}");
}
