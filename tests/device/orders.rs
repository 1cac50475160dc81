//! A step's launches in another order than the recorded one: the same bits, and kept for the same graph.

use std::time::Duration;

use host::cuda::order_cache::OrderCache;
use host::cuda::{CudaExec, Graph, orders};
use host::error::ExecError;
use host::step::Matmul;
use settings::Precision;

use crate::step::{Step, with_parts};

/// With every part on, so that all lanes are there.
fn step() -> Step {
    let mut config = with_parts(96, Precision::Tf32);
    config.replay.prioritized = true;
    config.model.noisy = true;
    Step::new(&config, Matmul::Rust)
}

fn cache(exec: &CudaExec, folder: &tempfile::TempDir) -> OrderCache {
    let gpu = exec.gpu();
    OrderCache::new(
        folder.path().join("orders.json"),
        gpu.properties().name.clone(),
        gpu.driver().to_string(),
    )
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_step_in_another_order_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let replays = |step: &mut Step, graph: &Graph| {
        for _ in 0..20 {
            graph.replay(&mut step.exec).unwrap();
        }
        step.bits()
    };
    let mut first = step();
    let graph = first.capture();
    let recorded = replays(&mut first, &graph);

    // The search replays many steps, of which the history keeps what 20 more do not write over: each order has a step of its own.
    let mut searched = step();
    let graph = searched.capture();
    let found = orders::search(&graph, &mut searched.exec, Duration::from_secs(2)).unwrap();
    assert!(found.tried > 20, "{} orders in two seconds", found.tried);
    let mut last = step();
    let again = last.capture();
    let best = again.in_order(&last.exec, &found.best).unwrap();
    assert!(replays(&mut last, &best) == recorded, "the best order gives other bits");
    let names =
        |graph: &Graph| -> Vec<String> { graph.nodes().iter().map(|node| node.name.clone()).collect() };
    assert_eq!(names(&best), names(&graph), "nodes keep their indices");

    let cache = cache(&searched.exec, &folder);
    cache.store(graph.nodes(), &found).unwrap();
    assert_eq!(cache.load(graph.nodes()), Some((found.best, found.best_us)));
    assert!(cache.load(again.nodes()).is_some(), "the same step recorded anew is the same graph");
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn an_order_that_breaks_a_dependency_is_refused() {
    let mut step = step();
    let graph = step.capture();
    let count = graph.nodes().len();
    let backwards = orders::Order { nodes: (0..count).rev().collect(), added: Default::default() };
    let error = graph.in_order(&step.exec, &backwards).unwrap_err();
    assert!(matches!(&error, ExecError::Node { problem, .. } if problem.contains("waits")), "{error}");
}
