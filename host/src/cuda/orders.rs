//! Other orders of a graph's nodes, and which of them is the fastest.
//!
//! The driver gives the nodes of a graph to hardware queues by the order in which they were added and by their edges. Two graphs
//! with the same dependencies can therefore differ by a tenth in time. [`search`] tries such orders, with edges added where one
//! node comes before another anyway: how far the recorded order is from the best one found, and what that one has done otherwise
//! (docs/BENCHMARKS.md). Results do not depend on the order: what depends on what stays. [`Graph::in_order`] makes a graph in an
//! order; `order_cache` keeps what was found.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, Instant};

use cust::sys::{CUDA_KERNEL_NODE_PARAMS, CUgraphNode};
use gpu::philox;
use serde::{Deserialize, Serialize};

use super::capture::GraphHandle;
use super::driver::{self, check};
use super::exec::CudaExec;
use super::graph::Graph;
use super::nodes::{Node, NodeKind};
use crate::error::ExecError;

/// Replays before those that are timed.
const WARMUP: usize = 10;
/// Timed replays after which an order is given up that is slower than the one it was made of: most are.
const GLANCE: usize = 16;
/// How much slower, as a share.
const SLOWER: f64 = 0.01;
/// Timed replays of an order that is tried.
const REPLAYS: usize = 60;
/// Orders that are tried without a better one before the search goes back to the best one.
const PATIENCE: usize = 400;

/// An edge: the second node waits for the first.
type Edge = (usize, usize);

/// Nodes in the order in which they are added to a graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// Indices of the recorded nodes.
    pub nodes: Vec<usize>,
    /// Edges besides the recorded ones.
    pub added: BTreeSet<Edge>,
}

/// What [`search`] found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Median of the recorded graph, microseconds.
    pub recorded_us: f64,
    /// Median of the best order.
    pub best_us: f64,
    /// The best order.
    pub best: Order,
    /// Orders that were tried.
    pub tried: usize,
}

/// Random numbers below a bound.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 += 1;
        philox::draw(0, self.0, philox::Stream::Fill, 0, 0)[0] as usize % bound.max(1)
    }
}

/// The recorded dependencies.
pub(super) struct Dependencies {
    count: usize,
    edges: Vec<Edge>,
}

impl Dependencies {
    pub(super) fn of(nodes: &[Node]) -> Self {
        let edges = nodes.iter().enumerate();
        let edges = edges.flat_map(|(to, node)| node.dependencies.iter().map(move |&from| (from, to)));
        Self { count: nodes.len(), edges: edges.collect() }
    }

    /// The recorded nodes in an order that keeps the dependencies, as near to theirs as it can be.
    fn recorded(&self) -> Order {
        let mut nodes = Vec::with_capacity(self.count);
        let mut there = vec![false; self.count];
        while nodes.len() < self.count {
            let ready =
                |&node: &usize| !there[node] && self.edges.iter().all(|&(f, t)| t != node || there[f]);
            let Some(next) = (0..self.count).find(ready) else { break };
            there[next] = true;
            nodes.push(next);
        }
        Order { nodes, added: BTreeSet::new() }
    }

    fn with<'a>(&'a self, order: &'a Order) -> impl Iterator<Item = Edge> + 'a {
        self.edges.iter().chain(&order.added).copied()
    }

    /// Whether an order has every node once, behind those that it waits for.
    pub(super) fn hold_in(&self, order: &Order) -> bool {
        let mut places = vec![usize::MAX; self.count];
        for (place, &node) in order.nodes.iter().enumerate() {
            match places.get_mut(node) {
                Some(free) if *free == usize::MAX => *free = place,
                _ => return false,
            }
        }
        let place = |node: usize| places.get(node).copied();
        order.nodes.len() == self.count
            && self
                .with(order)
                .all(|(from, to)| matches!((place(from), place(to)), (Some(f), Some(t)) if f < t))
    }

    /// Whether `to` waits for `from`, by whatever way.
    fn reaches(&self, order: &Order, from: usize, to: usize) -> bool {
        let mut reached = vec![false; self.count];
        reached[from] = true;
        for &node in &order.nodes {
            if !reached[node] {
                reached[node] = self.with(order).any(|(f, t)| t == node && reached[f]);
            }
        }
        reached[to]
    }

    /// Another order: a node elsewhere between those it waits for and those that wait for it, or an edge more or less.
    fn change(&self, order: &mut Order, draws: &mut Draws) {
        match draws.below(10) {
            0 | 1 => {
                let (a, b) = (draws.below(self.count), draws.below(self.count));
                let (first, second) = (order.nodes[a.min(b)], order.nodes[a.max(b)]);
                if a != b && !self.reaches(order, first, second) {
                    order.added.insert((first, second));
                }
            }
            2 if !order.added.is_empty() => {
                let which = draws.below(order.added.len());
                let edge = order.added.iter().nth(which).copied();
                edge.map(|edge| order.added.remove(&edge));
            }
            _ => {
                let at = draws.below(self.count);
                let node = order.nodes.remove(at);
                let place = |of: usize| order.nodes.iter().position(|&n| n == of).unwrap_or(0);
                let low = self.with(order).filter(|e| e.1 == node).map(|e| place(e.0) + 1).max().unwrap_or(0);
                let high = self.with(order).filter(|e| e.0 == node).map(|e| place(e.1)).min();
                let high = high.unwrap_or(order.nodes.len());
                order.nodes.insert(low + draws.below(high - low + 1), node);
            }
        }
    }
}

/// Tries orders for that long. The graph is replayed many times: what it works on has gone many steps further.
///
/// Errors: a node that is no launch of a kernel of this program; [`ExecError::Cuda`].
pub fn search(graph: &Graph, exec: &mut CudaExec, time: Duration) -> Result<Found, ExecError> {
    let dependencies = Dependencies::of(graph.nodes());
    let recorded_us = graph.time(exec, 100, 300)?.median();
    let (mut draws, mut tried, begun) = (Draws(0), 0, Instant::now());
    let mut measure = |order: &Order, replays: usize| -> Result<f64, ExecError> {
        Ok(graph.in_order(exec, order)?.time(exec, WARMUP, replays)?.median())
    };
    let mut order = dependencies.recorded();
    let mut now = measure(&order, 2 * REPLAYS)?;
    let (mut best, mut best_us, mut since) = (order.clone(), now, 0);
    while begun.elapsed() < time {
        if since > PATIENCE {
            // Measured anew: the best of many is also the luckiest.
            best_us = measure(&best, 4 * REPLAYS)?;
            (order, now, since) = (best.clone(), best_us, 0);
        }
        let mut other = order.clone();
        for _ in 0..=draws.below(3) {
            dependencies.change(&mut other, &mut draws);
        }
        (tried, since) = (tried + 1, since + 1);
        let mut us = measure(&other, GLANCE)?;
        if us > now * (1.0 + SLOWER) {
            continue;
        }
        us = measure(&other, REPLAYS)?;
        if us < now {
            us = 0.5 * (us + measure(&other, 2 * REPLAYS)?);
        }
        // At first a worse one is taken now and then.
        let worse = 1.5 * (1.0 - begun.elapsed().as_secs_f64() / time.as_secs_f64());
        if us < now || (us < now + worse && draws.below(12) == 0) {
            (order, now) = (other, us);
        }
        if now < best_us {
            (best, best_us, since) = (order.clone(), now, 0);
        }
    }
    let best_us = measure(&best, 300)?;
    Ok(Found { recorded_us, best_us, best, tried })
}

/// A graph of the same nodes added in another order, and the nodes in it, with the indices that they have in `nodes`.
///
/// Errors: a node that is no launch of a kernel of this program; an order that does not keep the dependencies;
/// [`ExecError::Cuda`].
pub(super) fn build(nodes: &[Node], order: &Order) -> Result<(GraphHandle, Vec<Node>), ExecError> {
    for (node, n) in nodes.iter().enumerate() {
        if n.kind != NodeKind::Kernel || n.name.is_empty() {
            return Err(ExecError::Node { node, problem: format!("`{n}` can't be put elsewhere") });
        }
    }
    let dependencies = Dependencies::of(nodes);
    if !dependencies.hold_in(order) {
        let problem = "the order does not keep what waits for what".to_owned();
        return Err(ExecError::Node { node: 0, problem });
    }
    let made = GraphHandle::new()?;
    let mut moved = nodes.to_vec();
    for &node in &order.nodes {
        // SAFETY: plain data of which all zeros are a value.
        let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { mem::zeroed() };
        // SAFETY: the node is of a live graph, a kernel's; what `params` then points to is the node's and lives as long.
        let code = unsafe { driver::cuGraphKernelNodeGetParams(nodes[node].raw, &mut params) };
        check(code, "cuGraphKernelNodeGetParams", String::new)?;
        // No edge is there twice: one is added only between nodes of which neither waits for the other.
        let before: Vec<usize> = dependencies.with(order).filter(|e| e.1 == node).map(|e| e.0).collect();
        let handles: Vec<CUgraphNode> = before.iter().map(|&from| moved[from].raw).collect();
        // SAFETY: `made` is alive, `before` holds nodes that were added to it, and `params` is as the driver wrote it.
        let code = unsafe {
            driver::cuGraphAddKernelNode(
                &mut moved[node].raw,
                made.raw(),
                handles.as_ptr(),
                handles.len(),
                &params,
            )
        };
        check(code, "cuGraphAddKernelNode", || nodes[node].to_string())?;
        moved[node].dependencies = before;
    }
    Ok((made, moved))
}

/// What was found, for a reader: times, the nodes in their order, and what each waits for besides what it has to.
pub fn report(graph: &Graph, found: &Found) -> String {
    let Found { recorded_us, best_us, best, tried } = found;
    let mut text = format!("recorded {recorded_us:.1} us, best of {tried} orders {best_us:.1} us\n");
    for &node in &best.nodes {
        let Node { name, dependencies, .. } = &graph.nodes()[node];
        let added: Vec<usize> = best.added.iter().filter(|e| e.1 == node).map(|e| e.0).collect();
        text.push_str(&format!("{node:3} {name} after {dependencies:?}"));
        if !added.is_empty() {
            text.push_str(&format!(" and {added:?}"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 -> 1 -> 3, 0 -> 2 -> 3, 4 by itself.
    fn diamond() -> Dependencies {
        Dependencies { count: 5, edges: vec![(0, 1), (0, 2), (1, 3), (2, 3)] }
    }

    #[test]
    fn every_change_keeps_the_dependencies() {
        let dependencies = diamond();
        let (mut draws, mut seen, mut added) = (Draws(0), BTreeSet::new(), false);
        for _ in 0..500 {
            let mut order = dependencies.recorded();
            for _ in 0..6 {
                dependencies.change(&mut order, &mut draws);
                assert!(dependencies.hold_in(&order), "{order:?}");
                seen.insert(order.nodes.clone());
                added |= !order.added.is_empty();
            }
        }
        // The diamond has two orders, and the fifth node five places in each.
        assert_eq!(seen.len(), 10);
        assert!(added);
    }

    #[test]
    fn an_order_is_found_where_nodes_are_not_listed_in_one() {
        let dependencies = Dependencies { count: 4, edges: vec![(3, 0), (2, 3)] };
        let order = dependencies.recorded();
        assert_eq!(order.nodes, [1, 2, 3, 0]);
        assert!(dependencies.reaches(&order, 2, 0) && !dependencies.reaches(&order, 1, 0));
    }
}
