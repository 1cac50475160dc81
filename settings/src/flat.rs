//! The one flat buffer of all networks: parameters, gradients and moments have this layout, the target its beginning.

use crate::model::{Builder, Layout, ModelShape, Tensor, pad4};
use crate::parts::{Confidence, Parts};

/// Parameters that are clipped by one norm and updated as one. Initial values are drawn from streams that are numbered as
/// the variants are, so a new one comes last here; [`Group::ALL`] is the order in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Trunk and heads.
    Main,
    /// The quantile head.
    Iqn,
    /// Temporal attention with its embedding, positions and gate.
    Attention,
    /// V_high.
    IqlHigh,
    /// V_low.
    IqlLow,
    /// The ensemble's heads.
    Ensemble,
    /// The confidence head.
    Confidence,
    /// The Mamba-2 block with its output projection and gate.
    Mamba,
}

impl Group {
    /// All groups in buffer order.
    pub const ALL: [Self; 8] = [
        Self::Main,
        Self::Iqn,
        Self::Attention,
        Self::Mamba,
        Self::IqlHigh,
        Self::IqlLow,
        Self::Ensemble,
        Self::Confidence,
    ];

    /// Whether the group has a target copy: all but the IQL networks and the auxiliary heads, which nothing bootstraps
    /// from.
    pub fn has_target(self) -> bool {
        !matches!(self, Self::IqlHigh | Self::IqlLow | Self::Ensemble | Self::Confidence)
    }

    /// Name in messages and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Iqn => "iqn",
            Self::Attention => "attention",
            Self::IqlHigh => "iql_high",
            Self::IqlLow => "iql_low",
            Self::Ensemble => "ensemble",
            Self::Confidence => "confidence",
            Self::Mamba => "mamba",
        }
    }
}

/// The contiguous piece of the flat buffer that belongs to one group.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Whose parameters.
    pub group: Group,
    /// The group's tensors; offsets count from the segment's beginning.
    pub layout: Layout,
    /// First float of the segment in the flat buffer.
    pub offset: usize,
    /// Length in floats, a multiple of [`Layout::ALIGN`].
    pub len: usize,
}

/// Where every tensor of every network lies in the one flat buffer.
///
/// The main network comes first, at offset 0 and laid out as by [`Layout::main`]. Each further segment starts at a
/// multiple of [`Flat::SEGMENT`] floats. What lies between segments is padding: zero, with zero gradient. Groups with
/// a target copy come before those without, so the target is one buffer with the same offsets, cut off at
/// [`Flat::target_len`].
#[derive(Clone, Debug)]
pub struct Flat {
    /// Segments in buffer order, the main network's first.
    pub segments: Vec<Segment>,
    /// Length of the flat buffer in floats; with the main network alone that of its layout.
    pub len: usize,
}

impl Flat {
    /// Alignment of segments in floats: a thread block of the optimizer kernel works on one segment only.
    pub const SEGMENT: usize = 1024;

    /// Lays out the networks that a checked shape and checked parts have.
    pub fn new(shape: &ModelShape, parts: &Parts) -> Self {
        let mut segments: Vec<Segment> = Vec::new();
        let mut len = 0;
        for group in Group::ALL {
            let layout = match group {
                Group::Main => Layout::main(shape),
                Group::Iqn if parts.iqn.enabled => iqn(shape, parts),
                Group::Attention if parts.attention.enabled => attention(shape),
                Group::Mamba if parts.mamba.enabled => parts.mamba.layout(shape),
                Group::IqlHigh if parts.iql.enabled => iql(shape, parts, "iql.hi"),
                Group::IqlLow if parts.iql.enabled => iql(shape, parts, "iql.lo"),
                Group::Ensemble if parts.ensemble.enabled => ensemble(shape, parts),
                Group::Confidence if parts.confidence.enabled => confidence(shape),
                _ => continue,
            };
            let offset = usize::next_multiple_of(len, Self::SEGMENT);
            len = offset + layout.len;
            segments.push(Segment { group, offset, len: layout.len, layout });
        }
        Self { segments, len }
    }

    /// The segment of a group, if the networks have it.
    pub fn segment(&self, group: Group) -> Option<&Segment> {
        self.segments.iter().find(|s| s.group == group)
    }

    /// All tensors in buffer order, with offsets in the flat buffer.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        self.segments.iter().flat_map(|segment| {
            segment.layout.tensors.iter().map(|t| Tensor { offset: segment.offset + t.offset, ..t.clone() })
        })
    }

    /// The tensor of that name, with its offset in the flat buffer.
    pub fn find(&self, name: &str) -> Option<Tensor> {
        self.tensors().find(|t| t.name == name)
    }

    /// Offset in the flat buffer of a tensor that the networks are known to have.
    ///
    /// # Panics
    /// If there is no such tensor: a programming error, names are fixed by [`Flat::new`].
    pub fn offset(&self, name: &str) -> usize {
        self.find(name).unwrap_or_else(|| panic!("no tensor {name} in the networks")).offset
    }

    /// Length of the target's buffer in floats: up to the end of the last group with a target copy.
    pub fn target_len(&self) -> usize {
        let with_target = self.segments.iter().filter(|s| s.group.has_target());
        with_target.map(|s| s.offset + s.len).max().unwrap_or(0)
    }

    /// Parameters of all networks, without padding.
    pub fn count(&self) -> usize {
        self.segments.iter().map(|s| s.layout.count()).sum()
    }

    /// Parameters per part, in buffer order: what a run prints at its start.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let mut counts: Vec<(&'static str, usize)> = Vec::new();
        for segment in &self.segments {
            for t in &segment.layout.tensors {
                let part = match segment.group {
                    Group::Main if t.name.starts_with("trunk") => "trunk",
                    Group::Main if t.is_sigma() => "noise of the heads",
                    Group::Main if t.name.starts_with('v') => "value head",
                    Group::Main => "branch heads",
                    Group::Iqn => "iqn head",
                    Group::Attention if is_projection(&t.name) => "attention projections",
                    Group::Attention => "attention embedding, positions and gate",
                    Group::Mamba => "mamba block",
                    Group::IqlHigh | Group::IqlLow => "iql value networks",
                    Group::Ensemble => "ensemble",
                    Group::Confidence => "confidence head",
                };
                match counts.iter_mut().find(|(name, _)| *name == part) {
                    Some((_, count)) => *count += t.len(),
                    None => counts.push((part, t.len())),
                }
            }
        }
        counts
    }
}

fn is_projection(name: &str) -> bool {
    ["att.q.", "att.k.", "att.v.", "att.o."].iter().any(|prefix| name.starts_with(prefix))
}

/// Cosine embedding, hidden layer, one output per action: the outputs of all branches are one matrix
/// `[sum n_d, hidden]` without gaps, and one vector of biases.
fn iqn(shape: &ModelShape, parts: &Parts) -> Layout {
    let (h2, hidden) = (shape.trunk2, parts.iqn.hidden);
    let mut b = Builder::default();
    b.linear("iqn.cos", h2, parts.iqn.cosines);
    b.linear("iqn.hid", hidden, h2);
    for (d, &n) in shape.branches.iter().enumerate() {
        b.push(format!("iqn.out.{d}.weight"), vec![n, hidden], hidden, n * hidden, d == 0);
    }
    for (d, &n) in shape.branches.iter().enumerate() {
        b.push(format!("iqn.out.{d}.bias"), vec![n], hidden, n, d == 0);
    }
    b.finish()
}

/// Embedding F -> d, a position per bar, the four projections, the gate (0 at first: no effect at step 0).
fn attention(shape: &ModelShape) -> Layout {
    let d = shape.trunk2;
    let mut b = Builder::default();
    b.linear("att.emb", d, shape.bar_features);
    b.push("att.pos".into(), vec![shape.window, d], d, shape.window * d, true);
    for name in ["att.q", "att.k", "att.v", "att.o"] {
        b.linear(name, d, d);
    }
    b.push("att.gate".into(), vec![1], 0, 1, true);
    b.finish()
}

/// S -> hidden -> hidden -> 1.
fn iql(shape: &ModelShape, parts: &Parts, prefix: &str) -> Layout {
    let hidden = parts.iql.hidden;
    let mut b = Builder::default();
    for (layer, outputs, inputs) in [(0, hidden, shape.state), (1, hidden, hidden), (2, 1, hidden)] {
        b.linear(&format!("{prefix}.{layer}"), outputs, inputs);
    }
    b.finish()
}

/// H2 -> VH -> K of every member. The hidden layers of all members are one block of rows, as those of the main heads; an
/// output layer's rows are padded to a multiple of 4.
fn ensemble(shape: &ModelShape, parts: &Parts) -> Layout {
    let (h2, hidden, k) = (shape.trunk2, shape.value_hidden, shape.atoms);
    let mut b = Builder::default();
    for member in 0..parts.ensemble.members {
        b.push(format!("ens.hid.{member}.weight"), vec![hidden, h2], h2, hidden * h2, member == 0);
    }
    for member in 0..parts.ensemble.members {
        b.push(format!("ens.hid.{member}.bias"), vec![hidden], h2, hidden, member == 0);
    }
    for member in 0..parts.ensemble.members {
        b.push(format!("ens.out.{member}.weight"), vec![k, hidden], hidden, pad4(k) * hidden, true);
        b.push(format!("ens.out.{member}.bias"), vec![k], hidden, pad4(k), true);
    }
    b.finish()
}

/// [H2, signals] -> 1; the bias is counted with the features.
fn confidence(shape: &ModelShape) -> Layout {
    let (h2, signals) = (shape.trunk2, Confidence::SIGNALS);
    let mut b = Builder::default();
    b.push("conf.features.weight".into(), vec![1, h2], h2 + signals, h2, true);
    b.push("conf.signals.weight".into(), vec![1, signals], h2 + signals, signals, true);
    b.push("conf.bias".into(), vec![1], h2 + signals, 1, true);
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Parts {
        let mut parts = Parts::default();
        parts.ensemble.enabled = true;
        parts.confidence.enabled = true;
        parts.iqn.enabled = true;
        parts.iql.enabled = true;
        parts.attention.enabled = true;
        parts.mamba.enabled = true;
        parts
    }

    fn market() -> ModelShape {
        ModelShape { state: 80, window: 8, bar_features: 9, ..Default::default() }
    }

    fn part(flat: &Flat, name: &str) -> usize {
        flat.counts().iter().find(|(part, _)| *part == name).unwrap().1
    }

    #[test]
    fn the_main_network_alone_is_laid_out_as_before() {
        let (shape, parts) = (market(), Parts::default());
        let (flat, layout) = (Flat::new(&shape, &parts), Layout::main(&shape));
        assert_eq!((flat.len, flat.target_len(), flat.count()), (layout.len, layout.len, 323_376));
        assert!(flat.tensors().eq(layout.tensors.iter().cloned()));
        assert_eq!(flat.counts().iter().map(|(_, count)| count).sum::<usize>(), 323_376);
    }

    #[test]
    fn the_documented_counts_at_the_defaults() {
        let flat = Flat::new(&market(), &everything());
        assert_eq!(part(&flat, "attention projections"), 263_168);
        // Embedding 9 -> 256 with bias, 8 positions, gate.
        assert_eq!(part(&flat, "attention embedding, positions and gate"), 256 * 9 + 256 + 8 * 256 + 1);
        assert_eq!(part(&flat, "iqn head"), 256 * 64 + 256 + 128 * 256 + 128 + 15 * 128 + 15);
        assert_eq!(part(&flat, "iql value networks"), 2 * (80 * 128 + 128 + 128 * 128 + 128 + 128 + 1));
        assert_eq!(part(&flat, "ensemble"), 5 * (256 * 128 + 128 + 128 * 51 + 51));
        assert_eq!(part(&flat, "confidence head"), 256 + 8 + 1);
        assert_eq!(flat.counts().iter().map(|(_, count)| count).sum::<usize>(), flat.count());
    }

    #[test]
    fn segments_and_tensors_are_aligned_and_do_not_overlap() {
        let odd = ModelShape {
            state: 17,
            window: 4,
            bar_features: 3,
            trunk1: 21,
            trunk2: 24,
            branches: vec![3, 2, 2, 4],
            head: crate::Head::Glu,
            ..Default::default()
        };
        let flat = Flat::new(&odd, &everything());
        assert_eq!(flat.segments.len(), Group::ALL.len());
        assert!(flat.segments.iter().all(|s| s.offset.is_multiple_of(Flat::SEGMENT)));
        let tensors: Vec<Tensor> = flat.tensors().collect();
        for pair in tensors.windows(2) {
            assert!(pair[0].offset + pair[0].len() <= pair[1].offset, "{pair:?}");
        }
        let last = tensors.last().unwrap();
        assert!(last.offset + last.len() <= flat.len);
        let gapless = |name: &str| {
            let inner = ["a1.", "iqn.out.", "mamba.", "ens.hid."].iter().any(|p| name.starts_with(p));
            let first = [
                "iqn.out.0.weight",
                "iqn.out.0.bias",
                "mamba.emb.weight",
                "mamba.gate",
                "ens.hid.0.weight",
                "ens.hid.0.bias",
            ];
            inner && !first.contains(&name)
        };
        for t in tensors.iter().filter(|t| !gapless(&t.name)) {
            assert!(t.offset.is_multiple_of(Layout::ALIGN), "{t:?}");
        }
    }

    #[test]
    fn the_quantile_outputs_of_all_branches_are_one_matrix() {
        let flat = Flat::new(&market(), &everything());
        let (mut weight, mut bias) = (flat.offset("iqn.out.0.weight"), flat.offset("iqn.out.0.bias"));
        for (d, n) in [9, 3, 3].into_iter().enumerate() {
            assert_eq!(flat.offset(&format!("iqn.out.{d}.weight")), weight);
            assert_eq!(flat.offset(&format!("iqn.out.{d}.bias")), bias);
            weight += n * 128;
            bias += n;
        }
    }

    #[test]
    fn the_target_ends_where_the_value_networks_begin() {
        let flat = Flat::new(&market(), &everything());
        let last = flat.segment(Group::Mamba).unwrap();
        assert_eq!(flat.target_len(), last.offset + last.len);
        assert!(flat.segment(Group::IqlHigh).unwrap().offset >= flat.target_len());
        let mut only_values = Parts::default();
        only_values.iql.enabled = true;
        let flat = Flat::new(&market(), &only_values);
        assert_eq!(flat.target_len(), Layout::main(&market()).len);
        assert!(flat.segment(Group::Iqn).is_none() && flat.find("iqn.cos.weight").is_none());
    }
}
