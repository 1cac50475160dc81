//! `host profile`: what a training step costs, as graph replays, whole and by section.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use gpu::philox;
use serde::Serialize;
use settings::{Config, Precision};

use crate::cuda::{CudaExec, CudaOptions, Graph, KernelImages, Products, orders};
use crate::exec::Memory;
use crate::gemm;
use crate::step::{Matmul, Replay, Section, StepBuffers, StepShape, record, record_section};
use crate::train::progress::write_result;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ProfileOptions {
    /// Index of the GPU.
    pub gpu: usize,
    /// Timed replays of each graph, at least 200 for a figure that is quoted.
    pub replays: usize,
    /// Precisions to measure.
    pub precisions: Vec<Precision>,
    /// Backends of products to measure.
    pub matmuls: Vec<Matmul>,
    /// Where to write the graph as DOT.
    pub dot: Option<PathBuf>,
    /// Whether to list the nodes.
    pub nodes: bool,
    /// How long to look for a faster order of the nodes, to be kept.
    pub search: Option<Duration>,
    /// Whether the nodes are timed as recorded even where an order is known.
    pub recorded: bool,
    /// Where orders are kept.
    pub order_cache: Option<PathBuf>,
    /// Cache of cuBLASLt's measured algorithms.
    pub plan_cache: Option<PathBuf>,
    /// Whether the largest products read copies in bf16 where training has them (`StepShape::copies`).
    pub copies: bool,
}

/// One measured combination.
#[derive(Clone, Debug, Serialize)]
pub struct StepFigures {
    /// Arithmetic of products.
    pub precision: Precision,
    /// Backend of products.
    pub products: String,
    /// Median of the whole step, microseconds.
    pub step_us: f64,
    /// The same of the nodes as they were recorded, where `step_us` is of a known order.
    pub recorded_us: Option<f64>,
    /// 10% and 90% quantiles.
    pub spread_us: (f64, f64),
    /// Median host time of a launch.
    pub host_us: f64,
    /// Capture and instantiation, milliseconds.
    pub capture_ms: f64,
    /// Nodes of the graph, and of its longest chain.
    pub nodes: (usize, usize),
    /// Median of each section as a graph of its own.
    pub sections_us: Vec<(&'static str, f64)>,
}

/// Measures every combination that the machine has.
pub fn profile(
    images: KernelImages,
    config: &Config,
    options: &ProfileOptions,
) -> anyhow::Result<Vec<StepFigures>> {
    let mut figures = Vec::new();
    for &matmul in &options.matmuls {
        for &precision in &options.precisions {
            let mut config = config.clone();
            config.train.precision = precision;
            figures.push(
                measure(images, &config, matmul, options)
                    .with_context(|| format!("profiling {precision:?} with {matmul:?} products"))?,
            );
        }
    }
    Ok(figures)
}

fn measure(
    images: KernelImages,
    config: &Config,
    matmul: Matmul,
    options: &ProfileOptions,
) -> anyhow::Result<StepFigures> {
    let products = match matmul {
        Matmul::CublasLt => Products::CublasLt,
        Matmul::Rust => Products::Rust,
    };
    let cuda = CudaOptions {
        gpu: options.gpu,
        products,
        plan_cache: options.plan_cache.clone(),
        order_cache: options.order_cache.clone(),
        ..Default::default()
    };
    let mut exec = CudaExec::open(images, cuda)?;
    exec.set_rust_product(gemm::product);
    StepShape::check_supported(config)?;
    let shape = StepShape::new(config, matmul);
    let shape = StepShape { copies: shape.copies && options.copies, ..shape };
    let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer)?;
    // 2^18 transitions of 640 bytes are larger than any L2.
    let replay = random_replay(&mut exec, &shape, 1 << 18)?;
    let initial = cpu_path::init_parameters(&shape.flat, 1);
    exec.upload(buffers.parameters.online, &initial)?;
    exec.upload(buffers.parameters.target, &initial[..shape.flat.target_len()])?;
    buffers.start(&mut exec, &shape)?;
    record(&mut exec, &shape, &buffers, Some(&replay))?;
    exec.synchronize()?;
    let graph = Graph::capture(&mut exec, |exec| record(exec, &shape, &buffers, Some(&replay)))?;
    if let Some(time) = options.search {
        let found = orders::search(&graph, &mut exec, time)?;
        write_result(&orders::report(&graph, &found))?;
        if let Some(cache) = exec.orders().filter(|_| found.best_us < found.recorded_us) {
            cache.store(graph.nodes(), &found)?;
            write_result(&format!(
                "kept in {}
",
                cache.path().display()
            ))?;
        }
    }
    let known = exec.orders().filter(|_| !options.recorded).and_then(|cache| cache.load(graph.nodes()));
    let (graph, recorded_us) = match known {
        Some((order, _)) => {
            let us = graph.time(&mut exec, 100, options.replays)?.median();
            (graph.in_order(&exec, &order)?, Some(us))
        }
        None => (graph, None),
    };
    let timing = graph.time(&mut exec, 100, options.replays)?;
    let mut sections_us = Vec::new();
    for section in Section::ALL.into_iter().filter(|s| s.is_in(&shape, true)) {
        let part =
            Graph::capture(&mut exec, |exec| record_section(exec, &shape, &buffers, Some(&replay), section))?;
        sections_us.push((section.name(), part.time(&mut exec, 100, options.replays)?.median()));
    }
    if let Some(path) = &options.dot {
        graph.write_dot(path)?;
    }
    if options.nodes {
        for (i, node) in graph.nodes().iter().enumerate() {
            write_result(&format!("{i:3} {node}\n"))?;
        }
    }
    Ok(StepFigures {
        precision: config.train.precision,
        products: format!("{matmul:?}{}", if buffers.copies.is_some() { ", copies in bf16" } else { "" }),
        step_us: timing.median(),
        recorded_us,
        spread_us: timing.spread(),
        host_us: timing.host_median(),
        capture_ms: 1e3 * (graph.capture_time() + graph.instantiate_time()).as_secs_f64(),
        nodes: (graph.nodes().len(), graph.longest_chain()),
        sections_us,
    })
}

/// A full ring of random transitions.
pub fn random_replay(memory: &mut impl Memory, shape: &StepShape, capacity: usize) -> anyhow::Result<Replay> {
    let replay = Replay::alloc(memory, shape, capacity)?;
    let word = |i: usize, block: u32| philox::draw(1, 0, philox::Stream::Fill, i as u32, block);
    // Four elements a block; the padding of a row stays zero, as collection leaves it.
    let mut states: Vec<f32> = (0..capacity * shape.stride / 4)
        .flat_map(|i| word(i, 0).map(|w| 2.0 * philox::uniform(w) - 1.0))
        .collect();
    for row in states.chunks_exact_mut(shape.stride) {
        row[shape.model.state..].fill(0.0);
    }
    memory.upload(replay.states, &states)?;
    let next: Vec<f32> = states.iter().map(|x| -x).collect();
    memory.upload(replay.next_states, &next)?;
    let actions: Vec<u64> = (0..capacity)
        .map(|i| {
            let random = word(i, 1);
            let sizes = shape.model.branches.iter().enumerate();
            let values: Vec<usize> = sizes.map(|(d, &n)| random[d % 4] as usize / (d + 1) % n).collect();
            gpu::action::pack(&values)
        })
        .collect();
    memory.upload(replay.actions, &actions)?;
    let rewards: Vec<f32> = (0..capacity).map(|i| 4.0 * philox::uniform(word(i, 2)[0]) - 2.0).collect();
    memory.upload(replay.rewards, &rewards)?;
    let discounts: Vec<f32> =
        (0..capacity).map(|i| if word(i, 3)[0] % 50 == 0 { 0.0 } else { 0.99 }).collect();
    memory.upload(replay.discounts, &discounts)?;
    memory.upload(replay.words, &[capacity as u64, 0])?;
    if let Some(tree) = replay.priorities {
        // Priorities of a run some way on: most are small.
        let leaves: Vec<f32> = (0..capacity).map(|i| 0.02 + philox::uniform(word(i, 2)[1]).powi(3)).collect();
        tree.set(memory, &leaves)?;
    }
    Ok(replay)
}

/// The table that is printed last, and the line of SPEC section 5.
pub fn table(figures: &[StepFigures]) -> String {
    let mut text =
        String::from("products  precision  step us (p10-p90)        host us  capture ms  nodes (chain)\n");
    for f in figures {
        text.push_str(&format!(
            "{:<9} {:<10} {:7.1} ({:.1}-{:.1})  {:13.2}  {:10.1}  {} ({})\n",
            f.products,
            format!("{:?}", f.precision).to_lowercase(),
            f.step_us,
            f.spread_us.0,
            f.spread_us.1,
            f.host_us,
            f.capture_ms,
            f.nodes.0,
            f.nodes.1
        ));
        let sections: Vec<String> =
            f.sections_us.iter().map(|(name, us)| format!("{name}={us:.1}")).collect();
        if let Some(us) = f.recorded_us {
            text.push_str(&format!("          in a known order; as recorded {us:.1} us\n"));
        }
        let total: f64 = f.sections_us.iter().map(|(_, us)| us).sum();
        text.push_str(&format!("          child graphs: {} sum={total:.1}\n", sections.join(" ")));
    }
    text
}
