//! Launches in any order that the lanes allow leave the same bits. `EmulatedExec` runs them in the order of issue and checks the
//! declared uses of memory; here they run in orders drawn at random, as a GPU may choose, whatever the kernels declare.

use std::collections::BTreeSet;

use cuda_std::{Buf, Kernel, KernelDecl};
use gpu::philox;
use host::emulated::EmulatedExec;
use host::error::ExecError;
use host::exec::{Element, Exec, Lane, Memory, Product, Touch};
use host::profile::random_replay;
use host::step::{Matmul, StepBuffers, StepShape, record_probe, record_vaccinated};
use settings::{Config, Precision};

use crate::kernels::data::every_part;

type Run = Box<dyn FnOnce(&mut EmulatedExec) -> Result<(), ExecError>>;

/// A buffer's label and bytes.
type Contents = (String, Vec<u8>);

/// Something issued and not yet run.
struct Waiting {
    after: BTreeSet<usize>,
    run: Run,
}

/// Keeps what is issued until the host wants to see something, then runs it in an order that `draws` chooses.
struct Shuffled {
    inner: EmulatedExec,
    waiting: Vec<Waiting>,
    /// What the next launch on each lane waits for.
    last: Vec<BTreeSet<usize>>,
    /// `None`: in the order of issue.
    draws: Option<u64>,
    count: u64,
    /// How many ran before one that was issued earlier.
    overtaken: usize,
}

impl Shuffled {
    fn new(draws: Option<u64>) -> Self {
        let last = vec![BTreeSet::new(); Lane::COUNT];
        Self { inner: EmulatedExec::new(1), waiting: vec![], last, draws, count: 0, overtaken: 0 }
    }

    fn issue(&mut self, lane: Lane, run: impl FnOnce(&mut EmulatedExec) -> Result<(), ExecError> + 'static) {
        let of_lane = &mut self.last[lane.0 as usize];
        let after = std::mem::replace(of_lane, BTreeSet::from([self.waiting.len()]));
        self.waiting.push(Waiting { after, run: Box::new(run) });
    }

    fn flush(&mut self) -> Result<(), ExecError> {
        let mut left: Vec<(usize, Waiting)> = self.waiting.drain(..).enumerate().collect();
        let mut done = BTreeSet::new();
        while !left.is_empty() {
            let ready: Vec<usize> = (0..left.len())
                .filter(|&i| left[i].1.after.iter().all(|before| done.contains(before)))
                .collect();
            self.count += 1;
            let which = match self.draws {
                Some(seed) => {
                    philox::draw(seed, self.count, philox::Stream::Fill, 0, 0)[0] as usize % ready.len()
                }
                None => 0,
            };
            self.overtaken += usize::from(ready[which] > 0);
            let (node, waiting) = left.remove(ready[which]);
            done.insert(node);
            (waiting.run)(&mut self.inner)?;
        }
        self.last.iter_mut().for_each(BTreeSet::clear);
        Ok(())
    }
}

impl Exec for Shuffled {
    fn launch<K: Kernel>(&mut self, lane: Lane, kernel: &K) -> Result<(), ExecError> {
        let kernel = *kernel;
        self.issue(lane, move |exec| exec.launch(Lane::MAIN, &kernel));
        Ok(())
    }

    fn launch_touching<K: Kernel>(
        &mut self,
        lane: Lane,
        kernel: &K,
        touches: &[Touch],
    ) -> Result<(), ExecError> {
        let (kernel, touches) = (*kernel, touches.to_vec());
        self.issue(lane, move |exec| exec.launch_touching(Lane::MAIN, &kernel, &touches));
        Ok(())
    }

    fn has(&self, kernel: &KernelDecl) -> bool {
        self.inner.has(kernel)
    }

    fn product(&mut self, lane: Lane, product: &Product) -> Result<(), ExecError> {
        let product = *product;
        self.issue(lane, move |exec| exec.product(Lane::MAIN, &product));
        Ok(())
    }

    fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        let before = self.last[on.0 as usize].clone();
        self.last[lane.0 as usize].extend(before);
        Ok(())
    }
}

impl Memory for Shuffled {
    fn alloc<T: Element>(&mut self, label: &str, len: usize) -> Result<Buf<T>, ExecError> {
        self.inner.alloc(label, len)
    }

    fn upload<T: Element>(&mut self, to: Buf<T>, from: &[T]) -> Result<(), ExecError> {
        self.flush()?;
        self.inner.upload(to, from)
    }

    fn download<T: Element>(&mut self, from: Buf<T>) -> Result<Vec<T>, ExecError> {
        self.flush()?;
        self.inner.download(from)
    }
}

/// A step with everything that one may have.
fn everything() -> Config {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.window, model.bar_features) = (22, 3, 4);
    (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (32, 24, 16, 16);
    (model.branches, model.atoms, model.noisy) = (vec![5, 3], 21, true);
    (config.train.batch, config.train.precision) = (24, Precision::Tf32);
    config.replay.prioritized = true;
    every_part(&mut config);
    config.spectral.sigma_max = 0.6;
    config.vaccine.enabled = true;
    config.probe.enabled = true;
    config
}

/// All memory after a few steps that are issued without a wait between them.
fn contents(config: &Config, draws: Option<u64>) -> (Vec<Contents>, usize) {
    let mut exec = Shuffled::new(draws);
    let shape = StepShape::new(config, Matmul::Rust);
    let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
    let replay = random_replay(&mut exec, &shape, 61).unwrap();
    let plain = Config { replay: settings::Replay::default(), ..config.clone() };
    let held_out = random_replay(&mut exec, &StepShape::new(&plain, Matmul::Rust), 61).unwrap();
    let initial = cpu_path::init_parameters(&shape.flat, 5);
    exec.upload(buffers.parameters.online, &initial).unwrap();
    exec.upload(buffers.parameters.target, &initial[..shape.flat.target_len()]).unwrap();
    buffers.start(&mut exec, &shape).unwrap();
    buffers.start_factors(&mut exec).unwrap();
    for _ in 0..3 {
        record_vaccinated(&mut exec, &shape, &buffers, &replay, &held_out).unwrap();
        record_probe(&mut exec, &shape, &buffers).unwrap();
    }
    exec.flush().unwrap();
    (exec.inner.contents(), exec.overtaken)
}

#[test]
fn any_order_that_the_lanes_allow_leaves_the_same_bits() {
    let mut head = everything();
    head.model.head = settings::Head::Glu;
    let mut alone = everything();
    (alone.replay.prioritized, alone.model.noisy) = (false, false);
    for config in [everything(), head, alone] {
        let (issued, none) = contents(&config, None);
        assert_eq!(none, 0);
        for seed in 1..=3 {
            let (shuffled, overtaken) = contents(&config, Some(seed));
            assert!(overtaken > 100, "seed {seed}: only {overtaken} launches ran before an earlier one");
            let differing = |((label, expected), (_, got)): (&Contents, &Contents)| {
                let first = expected.chunks(4).zip(got.chunks(4)).position(|(e, g)| e != g)?;
                Some(format!("`{label}` from float {first} on"))
            };
            let differing: Vec<String> = issued.iter().zip(&shuffled).filter_map(differing).collect();
            assert!(differing.is_empty(), "seed {seed}: {}", differing.join(", "));
        }
    }
}
