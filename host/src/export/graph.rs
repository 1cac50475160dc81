//! The greedy policy as an ONNX graph: the forward pass of SPEC section 2, noisy heads by their mu.
//!
//! Shapes: N states, S, W bars of F features, H1, H2, K atoms, A = sum n_d, T quantiles, M members.

use settings::{Head, Mamba, ModelShape};

use crate::export::Policy;
use crate::onnx::Attribute::{Float, Int, Ints};
use crate::onnx::{Dimension, Graph, Value, element};

/// Added to the mean of squares in the Mamba-2 block's norm.
const NORM_EPS: f32 = 1e-5;

/// Builds the graph of a policy.
pub fn graph(policy: &Policy) -> Graph {
    let mut net = Net { graph: Graph::new("stepgraph policy"), policy, shape: &policy.config.model };
    net.build();
    net.graph
}

struct Net<'a> {
    graph: Graph,
    policy: &'a Policy,
    shape: &'a ModelShape,
}

impl Net<'_> {
    fn build(&mut self) {
        let named = || Dimension::Named("N".into());
        let fixed = |n: usize| Dimension::Fixed(n as i64);
        let (shape, parts) = (self.shape, self.policy.config.parts());
        let states = self.graph.input("states", vec![named(), fixed(shape.state)], "normalised states");

        let mut sum = self.linear("trunk1", &states);
        if parts.mamba.enabled {
            let scanned = self.mamba(&parts.mamba, &states);
            sum = self.graph.op("Add", &[&sum, &scanned], vec![]);
        }
        let h1 = self.leaky(&sum);
        let h2 = self.linear("trunk2", &h1);
        let mut features = self.leaky(&h2);
        if parts.attention.enabled {
            let attended = self.attention(parts.attention.heads, &states);
            features = self.graph.op("Add", &[&features, &attended], vec![]);
        }

        let support = &self.policy.support;
        let z = self.graph.floats("support", &[support.len(), 1], support);
        let (mut actions, mut q, mut probabilities) = (Vec::new(), Vec::new(), Vec::new());
        let value = self.head("v1", "v2", &features);
        let value = self.reshape(&value, &[-1, 1, shape.atoms as i64]);
        for (d, &n) in shape.branches.iter().enumerate() {
            let advantage = self.head(&format!("a1.{d}"), &format!("a2.{d}"), &features);
            let advantage = self.reshape(&advantage, &[-1, n as i64, shape.atoms as i64]);
            let mean =
                self.graph.op("ReduceMean", &[&advantage], vec![Ints("axes", vec![1]), Int("keepdims", 1)]);
            let baseline = self.graph.op("Sub", &[&value, &mean], vec![]);
            let logits = self.graph.op("Add", &[&advantage, &baseline], vec![]);
            let p = self.graph.op("Softmax", &[&logits], vec![Int("axis", 2)]);
            let expected = self.graph.op("MatMul", &[&p, &z], vec![]);
            let expected = self.reshape(&expected, &[-1, n as i64]);
            // The lowest index among equals, as everywhere.
            let best = vec![Int("axis", 1), Int("keepdims", 1), Int("select_last_index", 0)];
            actions.push(self.graph.op("ArgMax", &[&expected], best));
            q.push(expected);
            probabilities.push(p);
        }
        let (all, branches) = (shape.actions(), shape.branches.len());
        let value = self.concat(&actions, 1);
        let text = "greedy action of every branch";
        self.graph.output("actions", &value, element::INT64, vec![named(), fixed(branches)], text);
        let value = self.concat(&q, 1);
        let text = "Q values, branch after branch";
        self.graph.output("q", &value, element::FLOAT, vec![named(), fixed(all)], text);
        let value = self.concat(&probabilities, 1);
        let axes = vec![named(), fixed(all), fixed(shape.atoms)];
        self.graph.output(
            "probabilities",
            &value,
            element::FLOAT,
            axes,
            "C51 distributions over the support",
        );
        if parts.iqn.enabled {
            let value = self.quantiles(&features);
            let axes = vec![named(), fixed(self.policy.taus.len()), fixed(all)];
            let text = "return quantiles of every action at the policy's taus";
            self.graph.output("quantiles", &value, element::FLOAT, axes, text);
        }
        if parts.ensemble.enabled {
            let value = self.members(parts.ensemble.members, &features, &z);
            let axes = vec![named(), fixed(parts.ensemble.members)];
            let text = "expected value of the state by each member of the ensemble";
            self.graph.output("ensemble", &value, element::FLOAT, axes, text);
        }
    }

    /// A tensor of the policy as a constant.
    fn weight(&mut self, name: &str) -> Value {
        let tensor = self.policy.tensor(name);
        self.graph.floats(name, &tensor.shape, &tensor.values)
    }

    /// A tensor of the policy in another shape.
    fn weight_as(&mut self, name: &str, shape: &[usize]) -> Value {
        let tensor = self.policy.tensor(name);
        self.graph.floats(name, shape, &tensor.values)
    }

    /// x W^T + b of x [rows, in].
    fn linear(&mut self, layer: &str, x: &Value) -> Value {
        let (weight, bias) = (self.weight(&format!("{layer}.weight")), self.weight(&format!("{layer}.bias")));
        self.graph.op("Gemm", &[x, &weight, &bias], vec![Int("transB", 1)])
    }

    fn leaky(&mut self, x: &Value) -> Value {
        self.graph.op("LeakyRelu", &[x], vec![Float("alpha", self.shape.leaky_slope)])
    }

    /// x sigmoid(x).
    fn silu(&mut self, x: &Value) -> Value {
        let gate = self.graph.op("Sigmoid", &[x], vec![]);
        self.graph.op("Mul", &[x, &gate], vec![])
    }

    fn reshape(&mut self, x: &Value, shape: &[i64]) -> Value {
        let shape = self.graph.ints(shape);
        self.graph.op("Reshape", &[x, &shape], vec![])
    }

    fn concat(&mut self, parts: &[Value], axis: i64) -> Value {
        let parts: Vec<&Value> = parts.iter().collect();
        self.graph.op("Concat", &parts, vec![Int("axis", axis)])
    }

    /// Parts of those widths along the axis.
    fn split(&mut self, x: &Value, axis: i64, widths: &[usize]) -> Vec<Value> {
        let lengths: Vec<i64> = widths.iter().map(|&n| n as i64).collect();
        let lengths = self.graph.ints(&lengths);
        self.graph.op_many("Split", &[x, &lengths], vec![Int("axis", axis)], widths.len())
    }

    /// Element `i` of axis 1, the axis removed.
    fn at(&mut self, x: &Value, i: usize) -> Value {
        let index = self.graph.int(i as i64);
        self.graph.op("Gather", &[x, &index], vec![Int("axis", 1)])
    }

    /// The window's bars, [N W, F].
    fn bars(&mut self, states: &Value) -> Value {
        let (window, features) = (self.shape.window, self.shape.bar_features);
        let [from, to, axis] = [0, (window * features) as i64, 1].map(|n| self.graph.ints(&[n]));
        let flat = self.graph.op("Slice", &[states, &from, &to, &axis], vec![]);
        self.reshape(&flat, &[-1, features as i64])
    }

    /// A head: hidden layer as `model.head` says, output layer.
    fn head(&mut self, hidden: &str, output: &str, x: &Value) -> Value {
        let sum = self.linear(hidden, x);
        let y = match self.shape.head {
            Head::Mlp => self.leaky(&sum),
            Head::Glu => {
                let width = self.policy.tensor(&format!("{hidden}.bias")).values.len() / 2;
                let halves = self.split(&sum, 1, &[width, width]);
                let gate = self.graph.op("Sigmoid", &[&halves[1]], vec![]);
                self.graph.op("Mul", &[&halves[0], &gate], vec![])
            }
        };
        self.linear(output, &y)
    }

    /// g o, [N, H2]: one query, the newest bar's token.
    fn attention(&mut self, heads: usize, states: &Value) -> Value {
        let (window, d) = (self.shape.window as i64, self.shape.trunk2 as i64);
        let (heads, depth) = (heads as i64, d / heads as i64);
        let bars = self.bars(states);
        let embedded = self.linear("att.emb", &bars);
        let embedded = self.reshape(&embedded, &[-1, window, d]);
        let positions = self.weight("att.pos");
        let tokens = self.graph.op("Add", &[&embedded, &positions], vec![]);
        let newest = self.at(&tokens, self.shape.window - 1);
        let tokens = self.reshape(&tokens, &[-1, d]);
        let query = self.linear("att.q", &newest);
        let query = self.reshape(&query, &[-1, heads, 1, depth]);
        let mut by_head = |layer: &str, order: [i64; 4]| {
            let projected = self.linear(layer, &tokens);
            let projected = self.reshape(&projected, &[-1, window, heads, depth]);
            self.graph.op("Transpose", &[&projected], vec![Ints("perm", order.to_vec())])
        };
        let keys = by_head("att.k", [0, 2, 3, 1]);
        let values = by_head("att.v", [0, 2, 1, 3]);
        let scores = self.graph.op("MatMul", &[&query, &keys], vec![]);
        let root = self.graph.floats("att.root", &[], &[(depth as f64).sqrt() as f32]);
        let scores = self.graph.op("Div", &[&scores, &root], vec![]);
        let p = self.graph.op("Softmax", &[&scores], vec![Int("axis", 3)]);
        let mixed = self.graph.op("MatMul", &[&p, &values], vec![]);
        let mixed = self.reshape(&mixed, &[-1, d]);
        let output = self.linear("att.o", &mixed);
        let gate = self.weight("att.gate");
        self.graph.op("Mul", &[&output, &gate], vec![])
    }

    /// g m, [N, H1]: the Mamba-2 block with its scan written out bar by bar.
    fn mamba(&mut self, settings: &Mamba, states: &Value) -> Value {
        let bars = self.shape.window;
        let Mamba { width, heads, state, conv, .. } = *settings;
        let (channels, depth) = (settings.channels(), width / heads);
        let window = self.bars(states);
        let embedded = self.linear("mamba.emb", &window);
        let weight = self.weight("mamba.in.weight");
        let projected = self.graph.op("Gemm", &[&embedded, &weight], vec![Int("transB", 1)]);
        let projected = self.reshape(&projected, &[-1, bars as i64, settings.rows() as i64]);
        let parts = self.split(&projected, 2, &[width, channels, heads]);
        let z = self.at(&parts[0], bars - 1);

        // Depthwise and causal: zeros before the window.
        let rows = self.graph.op("Transpose", &[&parts[1]], vec![Ints("perm", vec![0, 2, 1])]);
        let taps = self.weight_as("mamba.conv.weight", &[channels, 1, conv]);
        let bias = self.weight("mamba.conv.bias");
        let attributes = vec![
            Int("group", channels as i64),
            Ints("kernel_shape", vec![conv as i64]),
            Ints("pads", vec![conv as i64 - 1, 0]),
        ];
        let mixed = self.graph.op("Conv", &[&rows, &taps, &bias], attributes);
        let mixed = self.silu(&mixed);
        let mixed = self.graph.op("Transpose", &[&mixed], vec![Ints("perm", vec![0, 2, 1])]);
        let xbc = self.split(&mixed, 2, &[width, state, state]);
        let dt_bias = self.weight("mamba.dt_bias");
        let dt = self.graph.op("Add", &[&parts[2], &dt_bias], vec![]);
        let delta = self.graph.op("Softplus", &[&dt], vec![]);
        let a_log = self.weight("mamba.a_log");
        let rate = self.graph.op("Exp", &[&a_log], vec![]);
        let fall = self.graph.op("Mul", &[&delta, &rate], vec![]);
        let fall = self.graph.op("Neg", &[&fall], vec![]);
        let decay = self.graph.op("Exp", &[&fall], vec![]);

        let (heads, depth, state) = (heads as i64, depth as i64, state as i64);
        let mut scan: Option<Value> = None;
        for bar in 0..bars {
            let mut take = |x: &Value, shape: [i64; 4]| {
                let x = self.at(x, bar);
                self.reshape(&x, &shape)
            };
            let x = take(&xbc[0], [-1, heads, depth, 1]);
            let step = take(&delta, [-1, heads, 1, 1]);
            let b = take(&xbc[1], [-1, 1, 1, state]);
            let kept = take(&decay, [-1, heads, 1, 1]);
            let scaled = self.graph.op("Mul", &[&x, &step], vec![]);
            let added = self.graph.op("Mul", &[&scaled, &b], vec![]);
            scan = Some(match scan {
                None => added,
                Some(before) => {
                    let left = self.graph.op("Mul", &[&before, &kept], vec![]);
                    self.graph.op("Add", &[&left, &added], vec![])
                }
            });
        }
        let c = self.at(&xbc[2], bars - 1);
        let c = self.reshape(&c, &[-1, 1, 1, state]);
        let x = self.at(&xbc[0], bars - 1);
        let x = self.reshape(&x, &[-1, heads, depth]);
        let skip = self.weight_as("mamba.skip", &[heads as usize, 1]);
        let mut y = self.graph.op("Mul", &[&x, &skip], vec![]);
        // A checked configuration has at least one bar.
        if let Some(scan) = scan {
            let read = self.graph.op("Mul", &[&scan, &c], vec![]);
            let axes = self.graph.ints(&[3]);
            let read = self.graph.op("ReduceSum", &[&read, &axes], vec![Int("keepdims", 0)]);
            y = self.graph.op("Add", &[&read, &y], vec![]);
        }
        let y = self.reshape(&y, &[-1, width as i64]);

        let gate = self.silu(&z);
        let y = self.graph.op("Mul", &[&y, &gate], vec![]);
        let square = self.graph.op("Mul", &[&y, &y], vec![]);
        let mean = self.graph.op("ReduceMean", &[&square], vec![Ints("axes", vec![1]), Int("keepdims", 1)]);
        let eps = self.graph.floats("mamba.eps", &[], &[NORM_EPS]);
        let mean = self.graph.op("Add", &[&mean, &eps], vec![]);
        let root = self.graph.op("Sqrt", &[&mean], vec![]);
        let y = self.graph.op("Div", &[&y, &root], vec![]);
        let norm = self.weight("mamba.norm");
        let y = self.graph.op("Mul", &[&y, &norm], vec![]);
        let output = self.linear("mamba.out", &y);
        let gate = self.weight("mamba.gate");
        self.graph.op("Mul", &[&output, &gate], vec![])
    }

    /// Z(tau) of every action at the policy's taus, [N, T, A].
    fn quantiles(&mut self, features: &Value) -> Value {
        let (count, width) = (self.policy.taus.len(), self.shape.trunk2 as i64);
        let cosines = self.policy.cosines();
        let embedded = self.graph.floats("iqn.cosines", &[count, cosines.len() / count], &cosines);
        let phi = self.linear("iqn.cos", &embedded);
        let phi = self.graph.op("Relu", &[&phi], vec![]);
        let phi = self.reshape(&phi, &[1, count as i64, width]);
        let x = self.reshape(features, &[-1, 1, width]);
        let x = self.graph.op("Mul", &[&x, &phi], vec![]);
        let x = self.reshape(&x, &[-1, width]);
        let hidden = self.linear("iqn.hid", &x);
        let hidden = self.leaky(&hidden);
        let branches: Vec<Value> = (0..self.shape.branches.len())
            .map(|d| {
                let z = self.linear(&format!("iqn.out.{d}"), &hidden);
                self.reshape(&z, &[-1, count as i64, self.shape.branches[d] as i64])
            })
            .collect();
        self.concat(&branches, 2)
    }

    /// Expected value by each member, [N, M]; `z` is [K, 1].
    fn members(&mut self, members: usize, features: &Value, z: &Value) -> Value {
        let expected: Vec<Value> = (0..members)
            .map(|member| {
                let hidden = self.linear(&format!("ens.hid.{member}"), features);
                let hidden = self.leaky(&hidden);
                let logits = self.linear(&format!("ens.out.{member}"), &hidden);
                let p = self.graph.op("Softmax", &[&logits], vec![Int("axis", 1)]);
                self.graph.op("MatMul", &[&p, z], vec![])
            })
            .collect();
        self.concat(&expected, 1)
    }
}
