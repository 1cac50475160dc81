//! Orders that a search found, on disk: what order for which graph, on which GPU and driver.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::nodes::Node;
use super::orders::{Dependencies, Found, Order};
use crate::cache_file;
use crate::error::ExecError;

/// An order, and what it is valid for: another GPU or driver starts the same nodes otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Name of the GPU.
    gpu: String,
    /// Release of the driver and the CUDA version it supports.
    driver: String,
    /// The recorded graph's nodes: kernels, sizes, dependencies.
    graph: Vec<String>,
    /// The order.
    order: Order,
    /// Median of the graph as recorded, microseconds.
    recorded_us: f64,
    /// Median in this order.
    best_us: f64,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderFile {
    orders: Vec<Entry>,
}

/// A file of orders, for one GPU and driver.
#[derive(Clone, Debug)]
pub struct OrderCache {
    path: PathBuf,
    gpu: String,
    driver: String,
}

impl OrderCache {
    /// The file at `path`, of which entries of this GPU and driver count.
    pub fn new(path: PathBuf, gpu: String, driver: String) -> Self {
        Self { path, gpu, driver }
    }

    /// `orders.json` beside the plans; `None` when the system names no home.
    pub fn default_path() -> Option<PathBuf> {
        cache_file::default_path("orders.json")
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_of(&self, entry: &Entry, graph: &[String]) -> bool {
        (&entry.gpu, &entry.driver) == (&self.gpu, &self.driver) && entry.graph == graph
    }

    /// The stored order of a graph with these nodes, and the median it was stored with. A missing file holds none. A damaged file
    /// and an order that does not keep the graph's dependencies are reported and ignored: without, a step is only slower.
    pub fn load(&self, nodes: &[Node]) -> Option<(Order, f64)> {
        let graph = described(nodes);
        let file: OrderFile = match cache_file::read(&self.path) {
            Ok(file) => file,
            Err(problem) => {
                tracing::warn!("{}: {problem}; no order is taken from it", self.path.display());
                return None;
            }
        };
        let entry = file.orders.into_iter().find(|entry| self.is_of(entry, &graph))?;
        if !Dependencies::of(nodes).hold_in(&entry.order) {
            tracing::warn!("{}: an order breaks the dependencies of its graph", self.path.display());
            return None;
        }
        Some((entry.order, entry.best_us))
    }

    /// Keeps what a search found for a graph with these nodes, in place of what was there for it.
    ///
    /// # Errors
    /// The file cannot be written, or is damaged: what is in it took time to find, so that it is not overwritten.
    pub fn store(&self, nodes: &[Node], found: &Found) -> Result<(), ExecError> {
        let graph = described(nodes);
        let mut file: OrderFile =
            cache_file::read(&self.path).map_err(|problem| cache_file::failed(&self.path, problem))?;
        file.orders.retain(|entry| !self.is_of(entry, &graph));
        file.orders.push(Entry {
            gpu: self.gpu.clone(),
            driver: self.driver.clone(),
            graph,
            order: found.best.clone(),
            recorded_us: found.recorded_us,
            best_us: found.best_us,
        });
        cache_file::write(&self.path, &file)
    }
}

/// What a graph is told by: everything of its nodes but what the launches are given.
fn described(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(Node::to_string).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::{fs, ptr};

    use super::super::nodes::NodeKind;
    use super::*;

    fn nodes() -> Vec<Node> {
        [vec![], vec![0], vec![0]]
            .map(|dependencies| Node {
                kind: NodeKind::Kernel,
                name: "k".into(),
                size: None,
                dependencies,
                raw: ptr::null_mut(),
            })
            .into()
    }

    fn found(nodes: &[usize]) -> Found {
        let best = Order { nodes: nodes.to_vec(), added: BTreeSet::from([(2, 1)]) };
        Found { recorded_us: 3.0, best_us: 2.0, best, tried: 7 }
    }

    #[test]
    fn an_order_is_kept_for_its_graph_and_gpu() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/orders.json");
        let cache = |gpu: &str| OrderCache::new(path.clone(), gpu.into(), "580".into());
        assert_eq!(cache("one").load(&nodes()), None, "a missing file holds no order");
        cache("one").store(&nodes(), &found(&[0, 2, 1])).unwrap();
        cache("two").store(&nodes(), &found(&[0, 2, 1])).unwrap();
        let again = Found { best_us: 1.0, ..found(&[0, 2, 1]) };
        cache("one").store(&nodes(), &again).unwrap();
        assert_eq!(cache("one").load(&nodes()), Some((again.best, 1.0)));
        assert_eq!(cache("two").load(&nodes()), Some((found(&[0, 2, 1]).best, 2.0)));
        assert_eq!(cache("three").load(&nodes()), None);
        let mut other = nodes();
        other[1].name = "l".into();
        assert_eq!(cache("one").load(&other), None);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn an_order_that_breaks_its_graph_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        for broken in [&[0, 1, 2][..], &[1, 0, 2], &[0, 2], &[0, 2, 2], &[0, 2, 3]] {
            let cache = OrderCache::new(folder.path().join("orders.json"), "one".into(), "580".into());
            cache.store(&nodes(), &found(broken)).unwrap();
            assert_eq!(cache.load(&nodes()), None, "{broken:?}");
        }
    }

    #[test]
    fn a_damaged_file_is_neither_read_nor_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.json");
        fs::write(&path, "{\"orders\": [").unwrap();
        let cache = OrderCache::new(path.clone(), "one".into(), "580".into());
        assert_eq!(cache.load(&nodes()), None);
        let error = cache.store(&nodes(), &found(&[0, 2, 1])).unwrap_err().to_string();
        assert!(error.contains("orders.json") && error.contains("damaged"), "{error}");
        assert_eq!(fs::read_to_string(path).unwrap(), "{\"orders\": [");
    }
}
