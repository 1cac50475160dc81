//! A head with random parameters and a batch, in memory that kernels read and as the reference wants it.

use cuda_std::Buf;
use cuda_std::emulator::{Emulator, HostBuf};
use gpu::action;
use gpu::kernels::gemm::reference::Rounding;
use gpu::kernels::iqn::reference::{Parameters, Sample, Sizes};
use gpu::kernels::iqn::{
    Arithmetic, Below, ChunkArguments, HeadBuffers, LossArguments, LossKernel, PackArguments, PackKernel,
    ReduceArguments, ReduceKernel, Shape, TargetArguments, TargetKernel, TileSize,
};

use super::random::Random;

/// Sizes of a test.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    pub batch: usize,
    pub trunk: usize,
    pub cosines: usize,
    pub hidden: usize,
    pub actions: &'static [usize],
    pub quantiles: usize,
    pub targets: usize,
    /// Floats between a 16-byte boundary and each buffer.
    pub offset: usize,
}

/// Floats at some distance from a 16-byte boundary, NaN around them.
pub struct Floats {
    memory: HostBuf<f32>,
    offset: usize,
    len: usize,
}

impl Floats {
    pub fn new(values: &[f32], offset: usize) -> Floats {
        let mut all = vec![f32::NAN; offset + values.len() + 4];
        all[offset..][..values.len()].copy_from_slice(values);
        Floats { memory: HostBuf::from(all), offset, len: values.len() }
    }

    /// An output: NaN shows what was not written.
    pub fn output(len: usize) -> Floats {
        Floats::new(&vec![f32::NAN; len], 0)
    }

    pub fn buf(&self) -> Buf<f32> {
        self.memory.buf().slice(self.offset, self.len)
    }

    pub fn to_vec(&self) -> Vec<f32> {
        self.memory.to_vec()[self.offset..][..self.len].to_vec()
    }
}

/// A head's parameters in the order Wc, bc, Wh, bh, Wo, bo.
#[derive(Clone, Debug)]
pub struct Head(pub [Vec<f32>; 6]);

impl Head {
    /// As a layer is initialised: uniform within 1 / sqrt(inputs).
    pub fn random(dims: &Dims, random: &mut Random) -> Head {
        let outputs = dims.actions.iter().sum::<usize>();
        let layer = |random: &mut Random, to: usize, from: usize| {
            let scale = 1.0 / (from as f32).sqrt();
            (random.vector(to * from, 2.0 * scale), random.vector(to, scale))
        };
        let (cos_weight, cos_bias) = layer(random, dims.trunk, dims.cosines);
        let (hid_weight, hid_bias) = layer(random, dims.hidden, dims.trunk);
        let (out_weight, out_bias) = layer(random, outputs, dims.hidden);
        Head([cos_weight, cos_bias, hid_weight, hid_bias, out_weight, out_bias])
    }

    pub fn parameters(&self) -> Parameters {
        let wide = |i: usize| self.0[i].iter().copied().map(f64::from).collect();
        Parameters {
            cos_weight: wide(0),
            cos_bias: wide(1),
            hid_weight: wide(2),
            hid_bias: wide(3),
            out_weight: wide(4),
            out_bias: wide(5),
        }
    }
}

/// A batch with an online and a target head.
pub struct Case {
    pub dims: Dims,
    pub kappa: f32,
    pub slope: f32,
    pub online: Head,
    pub h: Vec<f32>,
    /// What the trunk's activation gave, and its slope: of other signs than h, as behind an attention.
    pub below: Vec<f32>,
    pub below_slope: f32,
    pub taus: Vec<f32>,
    pub next: Vec<f32>,
    pub actions: Vec<Vec<usize>>,
    pub rewards: Vec<f32>,
    pub discounts: Vec<f32>,
    pub weights: Vec<f32>,
}

/// What a loss kernel and its reduction wrote.
pub struct Losses {
    pub loss: Vec<f32>,
    pub dh: Vec<f32>,
    pub taus: Vec<f32>,
    /// dWc, dbc, dWh, dbh, dWo, dbo.
    pub gradients: [Vec<f32>; 6],
}

/// Where tau comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Draw {
    /// The case's.
    Given,
    /// Seed and step.
    Philox(u64, u64),
}

impl Case {
    pub fn random(dims: Dims, seed: u64) -> Case {
        let mut random = Random::new(seed);
        let online = Head::random(&dims, &mut random);
        let b = dims.batch;
        let mut positive = |len: usize| random.vector(len, 0.5).iter().map(|x| 0.5 + x).collect::<Vec<f32>>();
        let (taus, weights, some) = (positive(b * dims.quantiles), positive(b), positive(b));
        let discounts = some.iter().map(|&x| if x < 0.2 { 0.0 } else { 0.97 }).collect();
        let actions = (0..b)
            .map(|_| {
                dims.actions
                    .iter()
                    .map(|&n| ((0.5 + 0.5 * random.uniform()) * n as f32) as usize % n)
                    .collect()
            })
            .collect();
        Case {
            kappa: 1.0,
            slope: 0.01,
            online,
            // Some features of either sign, as a leaky activation leaves them.
            h: random
                .vector(b * dims.trunk, 1.0)
                .iter()
                .map(|&x| if x > 0.0 { 2.0 * x } else { 0.1 * x })
                .collect(),
            taus,
            next: random.vector(b * dims.actions.len() * dims.targets, 2.0),
            actions,
            rewards: random.vector(b, 1.0),
            discounts,
            weights,
            below: random.vector(b * dims.trunk, 1.0),
            below_slope: 0.25,
            dims,
        }
    }

    /// Gradients with respect to h, taken through the activation below it.
    pub fn through(&self, dh: &[Vec<f64>]) -> Vec<f64> {
        let slope = |&below: &f32| if below > 0.0 { 1.0 } else { f64::from(self.below_slope) };
        dh.iter().flatten().zip(&self.below).map(|(d, below)| d * slope(below)).collect()
    }

    pub fn sizes(&self, rounding: Rounding) -> Sizes {
        Sizes {
            trunk: self.dims.trunk,
            cosines: self.dims.cosines,
            hidden: self.dims.hidden,
            actions: self.dims.actions.to_vec(),
            slope: self.slope.into(),
            rounding,
        }
    }

    pub fn h(&self, b: usize) -> Vec<f64> {
        self.h[b * self.dims.trunk..][..self.dims.trunk].iter().copied().map(f64::from).collect()
    }

    /// The batch for the reference, with the taus that the kernel used.
    pub fn samples(&self, taus: &[f32]) -> Vec<Sample> {
        let Dims { quantiles, targets, .. } = self.dims;
        let branches = self.dims.actions.len();
        (0..self.dims.batch)
            .map(|b| Sample {
                h: self.h(b),
                taus: taus[b * quantiles..][..quantiles].iter().copied().map(f64::from).collect(),
                targets: (0..branches)
                    .map(|d| {
                        let next = &self.next[(b * branches + d) * targets..][..targets];
                        let target = |&z: &f32| {
                            f64::from(self.rewards[b]) + f64::from(self.discounts[b]) * f64::from(z)
                        };
                        next.iter().map(target).collect()
                    })
                    .collect(),
                actions: self.actions[b].clone(),
                weight: self.weights[b].into(),
            })
            .collect()
    }

    pub fn shape(&self) -> Shape {
        let d = &self.dims;
        Shape {
            batch: d.batch as u32,
            trunk: d.trunk as u32,
            cosines: d.cosines as u32,
            hidden: d.hidden as u32,
            outputs: d.actions.iter().sum::<usize>() as u32,
            branches: d.actions.len() as u32,
            sizes: action::pack(d.actions),
            quantiles: d.quantiles as u32,
            targets: d.targets as u32,
            slope: self.slope,
        }
    }

    /// Runs a loss kernel and its reduction.
    pub fn losses<K: LossKernel>(&self, blocks: u32, draw: Draw, seed: u64) -> Losses {
        let (shape, dims) = (self.shape(), &self.dims);
        let head = Buffers::new(&self.h, &self.online, dims.offset, packed(K::SIZE, K::ARITHMETIC, &shape));
        let (buffers, pack) = head.buffers::<K::Pack>(&shape, K::ARITHMETIC);
        let taus = match draw {
            Draw::Given => Floats::new(&self.taus, dims.offset),
            Draw::Philox(..) => Floats::output(self.taus.len()),
        };
        let (key, step) = key(draw);
        let clock = HostBuf::from(vec![step, 0, 0, 0]);
        let next = Floats::new(&self.next, dims.offset);
        let actions = HostBuf::from(self.actions.iter().map(|a| action::pack(a)).collect::<Vec<u64>>());
        let [rewards, discounts, weights] =
            [&self.rewards, &self.discounts, &self.weights].map(|v| Floats::new(v, dims.offset));
        let (loss, dh) = (Floats::output(dims.batch), Floats::output(self.h.len()));
        let stored = Floats::new(&self.below, dims.offset);
        let below = Below { output: stored.buf(), slope: self.below_slope };
        let plane = K::SIZE.plane(K::ARITHMETIC, shape.trunk, shape.outputs);
        let (launched, parts) = (K::blocks(&shape, blocks), K::parts(&shape, blocks));
        let planes = Floats::new(&vec![f32::NAN; launched.max(parts) as usize * plane], 0);
        let images = Floats::new(&vec![f32::NAN; K::images(&shape).max(4)], 0);
        let kernel = K::new(
            &shape,
            &buffers,
            &LossArguments {
                kappa: self.kappa,
                draw: draw != Draw::Given,
                blocks,
                seed: key,
                clock_words: clock.buf(),
                taus: taus.buf(),
                next: next.buf(),
                actions: actions.buf(),
                rewards: rewards.buf(),
                discounts: discounts.buf(),
                weights: weights.buf(),
                loss: loss.buf(),
                below,
                dh: dh.buf(),
                planes: planes.buf(),
                images: images.buf(),
            },
        );
        let behind =
            ChunkArguments { blocks, images: images.buf(), below, dh: dh.buf(), planes: planes.buf() };
        let mut emulator = Emulator::new(seed).watch_global();
        emulator.launch(&pack).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        emulator.launch(&kernel).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        if let Some(chunks) = K::chunks(&shape, &buffers, &behind) {
            emulator.launch(&chunks).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        }
        let gradients = self.online.0.each_ref().map(|v| Floats::output(v.len()));
        let reduce = K::Reduce::new(
            &shape,
            &ReduceArguments {
                blocks: launched,
                parts,
                planes: planes.buf(),
                gradients: gradients.each_ref().map(Floats::buf),
            },
        );
        emulator.launch(&reduce).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        Losses {
            loss: loss.to_vec(),
            dh: dh.to_vec(),
            taus: taus.to_vec(),
            gradients: gradients.map(|g| g.to_vec()),
        }
    }

    /// Runs a target kernel on the case's head and h: `mode`, and the actions it starts with. Returns tau', the actions
    /// and their quantiles.
    pub fn targets<K: TargetKernel>(
        &self,
        mode: u32,
        given: &[u64],
        blocks: u32,
        draw: Draw,
        seed: u64,
    ) -> (Vec<f32>, Vec<u64>, Vec<f32>) {
        let (shape, dims) = (self.shape(), &self.dims);
        let head = Buffers::new(&self.h, &self.online, dims.offset, packed(K::SIZE, K::ARITHMETIC, &shape));
        let (buffers, pack) = head.buffers::<K::Pack>(&shape, K::ARITHMETIC);
        let taus = match draw {
            Draw::Given => Floats::new(&self.taus_target(), dims.offset),
            Draw::Philox(..) => Floats::output(dims.batch * dims.targets),
        };
        let (key, step) = key(draw);
        let clock = HostBuf::from(vec![step, 0, 0, 0]);
        let greedy = HostBuf::from(given.to_vec());
        let next = Floats::output(self.next.len());
        let kernel = K::new(
            &shape,
            &buffers,
            &TargetArguments {
                mode,
                draw: draw != Draw::Given,
                blocks,
                seed: key,
                clock_words: clock.buf(),
                taus: taus.buf(),
                greedy: greedy.buf(),
                next: next.buf(),
            },
        );
        let mut emulator = Emulator::new(seed).watch_global();
        emulator.launch(&pack).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        emulator.launch(&kernel).unwrap_or_else(|fault| panic!("{dims:?}: {fault}"));
        (taus.to_vec(), greedy.to_vec(), next.to_vec())
    }

    /// tau' where it is given: the case's taus, as many as there are, again and again.
    pub fn taus_target(&self) -> Vec<f32> {
        self.taus.iter().copied().cycle().take(self.dims.batch * self.dims.targets).collect()
    }
}

fn key(draw: Draw) -> (u64, u64) {
    match draw {
        Draw::Given => (0, 0),
        Draw::Philox(seed, step) => (seed, step),
    }
}

/// A head in memory.
pub struct Buffers {
    h: Floats,
    parameters: [Floats; 6],
    packed: Floats,
}

impl Buffers {
    pub fn new(h: &[f32], head: &Head, offset: usize, packed: usize) -> Buffers {
        Buffers {
            h: Floats::new(h, offset),
            parameters: head.0.each_ref().map(|v| Floats::new(v, offset)),
            packed: Floats::output(packed),
        }
    }

    /// What a kernel reads, and what packs its weights.
    pub fn buffers<P: PackKernel>(&self, shape: &Shape, arithmetic: Arithmetic) -> (HeadBuffers, P) {
        let [cos_weight, cos_bias, hid_weight, hid_bias, out_weight, out_bias] =
            self.parameters.each_ref().map(Floats::buf);
        let packed = self.packed.buf();
        let pack = P::new(shape, &PackArguments { arithmetic, cos_weight, hid_weight, out_weight, packed });
        (HeadBuffers { h: self.h.buf(), packed, cos_bias, hid_bias, out_bias }, pack)
    }
}

/// Words of the packed weights.
fn packed(size: TileSize, arithmetic: Arithmetic, shape: &Shape) -> usize {
    size.packed(arithmetic, shape.trunk, shape.outputs)
}

/// Norm of the difference over the norm of the expected, at least `floor`. A NaN anywhere makes it NaN.
pub fn distance(got: &[f32], expected: &[f64], floor: f64) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |x: f64| x * x;
    let difference: f64 = got.iter().zip(expected).map(|(&g, e)| square(f64::from(g) - e)).sum();
    difference.sqrt() / norm(expected).max(floor)
}

pub fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}
