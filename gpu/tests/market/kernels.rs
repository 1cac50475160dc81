//! The kernels in the emulator against the CPU environment: the same bits, over many environments and steps.

use cuda_std::emulator::{Emulator, HostBuf};
use gpu::action::pack;
use gpu::clock;
use gpu::kernels::market_count::MarketCount;
use gpu::kernels::market_observe::MarketObserve;
use gpu::kernels::market_step::MarketStep;
use gpu::kernels::sample_gather::ring;
use gpu::market::{
    ACCOUNT_COUNTERS, ACCOUNT_VALUES, ActionLayout, BarSide, LOG_FIELDS, LogRow, MarketError, MarketParams,
    MarketTable, Mode, Part, TERMINATED, TRUNCATED, Transitions, VecMarket, rollout,
};

use crate::support::{Columns, SHAPE, hashed_action, params};

/// The device's memory for E environments and a ring.
struct Device {
    emulator: Emulator,
    environments: usize,
    stride: usize,
    capacity: usize,
    log_rows: usize,
    start_count: usize,
    seed: u64,
    params: HostBuf<f64>,
    prices: HostBuf<f64>,
    elapsed: HostBuf<f64>,
    clock: HostBuf<f32>,
    features: HostBuf<f32>,
    run_end: HostBuf<u32>,
    starts: HostBuf<u32>,
    actions: HostBuf<u64>,
    values: HostBuf<f64>,
    counters: HostBuf<u32>,
    states: HostBuf<f32>,
    flags: HostBuf<u32>,
    log: HostBuf<f64>,
    ring_words: HostBuf<u64>,
    clock_words: HostBuf<u64>,
    ring_states: HostBuf<f32>,
    ring_next_states: HostBuf<f32>,
    ring_actions: HostBuf<u64>,
    ring_rewards: HostBuf<f32>,
    ring_discounts: HostBuf<f32>,
}

impl Device {
    fn new(
        p: &MarketParams,
        table: &MarketTable,
        part: &Part,
        environments: usize,
        capacity: usize,
        log_rows: usize,
        seed: u64,
    ) -> Self {
        let stride = (SHAPE.len() as usize).next_multiple_of(4) + 4;
        let starts = match p.mode {
            Mode::Train => &part.starts,
            Mode::Backtest => part.backtest_start(),
        };
        let padded = vec![f32::NAN; environments * stride];
        Self {
            emulator: Emulator::new(seed ^ 0x5eed).watch_global(),
            environments,
            stride,
            capacity,
            log_rows,
            start_count: starts.len(),
            seed,
            params: HostBuf::from(p.words().as_slice()),
            prices: HostBuf::from(table.prices.as_slice()),
            elapsed: HostBuf::from(table.elapsed.as_slice()),
            clock: HostBuf::from(table.clock.as_slice()),
            features: HostBuf::from(table.features.as_slice()),
            run_end: HostBuf::from(&part.run_end[..]),
            starts: HostBuf::from(starts),
            actions: HostBuf::zeroed(environments),
            values: HostBuf::zeroed(ACCOUNT_VALUES as usize * environments),
            counters: HostBuf::zeroed(ACCOUNT_COUNTERS as usize * environments),
            states: HostBuf::from(padded),
            flags: HostBuf::zeroed(environments),
            log: HostBuf::zeroed(environments * log_rows * LOG_FIELDS as usize),
            ring_words: HostBuf::zeroed(ring::WORDS as usize),
            clock_words: HostBuf::zeroed(clock::WORDS as usize),
            ring_states: HostBuf::zeroed(capacity * stride),
            ring_next_states: HostBuf::zeroed(capacity * stride),
            ring_actions: HostBuf::zeroed(capacity),
            ring_rewards: HostBuf::zeroed(capacity),
            ring_discounts: HostBuf::zeroed(capacity),
        }
    }

    fn observe(&mut self, insert: u32) {
        let kernel = MarketObserve {
            environments: self.environments as u32,
            stride: self.stride as u32,
            window: SHAPE.window,
            bar_features: SHAPE.features,
            start_count: self.start_count as u32,
            capacity: self.capacity as u32,
            insert,
            seed: self.seed,
            params: self.params.buf().into(),
            prices: self.prices.buf().into(),
            clock: self.clock.buf().into(),
            features: self.features.buf().into(),
            run_end: self.run_end.buf().into(),
            starts: self.starts.buf().into(),
            values: self.values.buf().into(),
            counters: self.counters.buf().into(),
            ring_words: self.ring_words.buf().into(),
            states: self.states.buf().into(),
            ring_states: self.ring_states.buf().into(),
            ring_next_states: self.ring_next_states.buf().into(),
        };
        self.emulator.launch(&kernel).unwrap();
    }

    fn step_kernel(&self) -> MarketStep {
        MarketStep {
            environments: self.environments as u32,
            start_count: self.start_count as u32,
            capacity: self.capacity as u32,
            log_rows: self.log_rows as u32,
            seed: self.seed,
            params: self.params.buf().into(),
            prices: self.prices.buf().into(),
            elapsed: self.elapsed.buf().into(),
            run_end: self.run_end.buf().into(),
            starts: self.starts.buf().into(),
            actions: self.actions.buf().into(),
            values: self.values.buf().into(),
            counters: self.counters.buf().into(),
            ring_words: self.ring_words.buf().into(),
            ring_actions: self.ring_actions.buf().into(),
            ring_rewards: self.ring_rewards.buf().into(),
            ring_discounts: self.ring_discounts.buf().into(),
            flags: self.flags.buf().into(),
            log: self.log.buf().into(),
        }
    }

    /// One collection step with these actions.
    fn collect(&mut self, actions: &[u64]) {
        self.actions.fill_from(actions);
        let step = self.step_kernel();
        self.emulator.launch(&step).unwrap();
        self.observe(1);
        let count = MarketCount {
            inserted: self.environments as u32,
            capacity: self.capacity as u32,
            ring_words: self.ring_words.buf().into(),
            clock_words: self.clock_words.buf().into(),
        };
        self.emulator.launch(&count).unwrap();
    }

    /// The S used floats of row `row`, after a check that the rest of the row is zero.
    fn row(&self, rows: &[f32], row: usize) -> Vec<u32> {
        let s = SHAPE.len() as usize;
        let row = &rows[row * self.stride..][..self.stride];
        assert!(row[s..].iter().all(|v| v.to_bits() == 0), "the padding of a state row is not zero");
        bits(&row[..s])
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Collects with the kernels and with `VecMarket` side by side and compares everything that either wrote.
fn compare(
    p: MarketParams,
    table: &MarketTable,
    part: &Part,
    environments: usize,
    capacity: usize,
    steps: usize,
) -> u32 {
    let s = SHAPE.len() as usize;
    let mut device = Device::new(&p, table, part, environments, capacity, 0, 77);
    let mut market = VecMarket::new(p, table, part, environments, 77).unwrap();
    let mut states = vec![0.0; environments * s];
    let mut out = Transitions::new(environments, s);
    let mut seen = 0;
    device.observe(0);
    for step in 0..steps {
        market.observe(&mut states).unwrap();
        let on_device = device.states.to_vec();
        for e in 0..environments {
            assert_eq!(
                device.row(&on_device, e),
                bits(&states[e * s..][..s]),
                "step {step}, environment {e}: s"
            );
        }
        let actions: Vec<u64> = states.chunks(s).map(|state| hashed_action(state, p.layout)).collect();
        device.collect(&actions);
        market.step(&actions, &mut out).unwrap();

        let (values, counters) = market.memory();
        let f64_bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(f64_bits(&device.values.to_vec()), f64_bits(values), "step {step}: accounts");
        assert_eq!(device.counters.to_vec(), counters, "step {step}: counters");
        assert_eq!(device.flags.to_vec(), out.flags, "step {step}: flags");
        seen |= out.flags.iter().fold(0, |all, f| all | f);

        let (ring_states, ring_next) = (device.ring_states.to_vec(), device.ring_next_states.to_vec());
        let (rewards, discounts) = (device.ring_rewards.to_vec(), device.ring_discounts.to_vec());
        let ring_actions = device.ring_actions.to_vec();
        for e in 0..environments {
            let slot = (step * environments + e) % capacity;
            assert_eq!(device.row(&ring_states, slot), bits(&states[e * s..][..s]), "slot {slot}: s");
            assert_eq!(device.row(&ring_next, slot), bits(&out.next_states[e * s..][..s]), "slot {slot}: s'");
            assert_eq!(ring_actions[slot], actions[e], "slot {slot}: action");
            assert_eq!(rewards[slot].to_bits(), out.rewards[e].to_bits(), "slot {slot}: reward");
            assert_eq!(discounts[slot].to_bits(), out.discounts[e].to_bits(), "slot {slot}: discount");
        }
        let written = (step + 1) * environments;
        let words = device.ring_words.to_vec();
        assert_eq!(words[ring::SIZE as usize], written.min(capacity) as u64);
        assert_eq!(words[ring::CURSOR as usize], (written % capacity) as u64);
        assert_eq!(device.clock_words.to_vec()[clock::COLLECT as usize], step as u64 + 1);
    }
    seen
}

#[test]
fn collection_has_the_bits_of_the_cpu_environment() {
    let columns = Columns::random(31, 160, 0.01);
    let table = columns.table_with(&[0..70, 75..160], BarSide::Ask);
    let part = Part::new(&table, 3..150).unwrap();
    // 37 environments: not a multiple of a warp; 100 slots: the ring wraps inside a step.
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let p = MarketParams { layout, episode: 7, ..params() };
        assert_eq!(compare(p, &table, &part, 37, 100, 24), TRUNCATED);
    }
}

#[test]
fn collection_through_ruin_has_the_bits_of_the_cpu_environment() {
    let columns = Columns::random(32, 80, 0.3);
    let table = columns.table();
    let part = Part::new(&table, 0..80).unwrap();
    let seen = compare(params(), &table, &part, 130, 130, 20);
    assert_eq!(seen & TERMINATED, TERMINATED, "no account was ruined: the case is not tested");
}

#[test]
fn a_backtest_logs_what_the_cpu_backtest_logs() {
    let columns = Columns::random(33, 70, 0.01);
    let table = columns.table_with(&[0..30, 40..70], BarSide::Mid);
    let part = Part::new(&table, 5..65).unwrap();
    let rows = rollout::<MarketError>(&params(), &table, &part, |state| {
        Ok(hashed_action(state, ActionLayout::Exposure))
    })
    .unwrap();

    let p = params().backtest(&part);
    let s = SHAPE.len() as usize;
    let mut device = Device::new(&p, &table, &part, 1, 1, part.backtest_steps(), 0);
    device.observe(0);
    // Three steps too many: a finished pass stands still.
    for _ in 0..part.backtest_steps() + 3 {
        let state = device.states.to_vec();
        device.collect(&[hashed_action(&state[..s], ActionLayout::Exposure)]);
    }
    let log = device.log.to_vec();
    let logged: Vec<LogRow> = log
        .chunks(LOG_FIELDS as usize)
        .map(|row| LogRow::load(|i| row[i as usize]).expect("every row was written"))
        .collect();
    assert_eq!(logged, rows);
    assert_eq!(LogRow::load(|_| 0.0), None);
}

#[test]
fn a_launch_that_cannot_work_is_refused() {
    let columns = Columns::random(34, 30, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..30).unwrap();
    let mut device = Device::new(&params(), &table, &part, 8, 16, 0, 1);
    let good = device.step_kernel();
    let refused = |device: &mut Device, kernel: MarketStep, relation: &str| {
        let text = device.emulator.launch(&kernel).unwrap_err().to_string();
        assert!(text.contains(relation), "{text}");
    };
    refused(&mut device, MarketStep { capacity: 7, ..good }, "environments <= capacity");
    refused(&mut device, MarketStep { log_rows: 1, ..good }, "log.len()");
    let short = MarketStep { prices: device.prices.buf().slice(0, 4 * 29).into(), ..good };
    refused(&mut device, short, "prices.len()");
    device.actions.fill_from(&[pack(&[8, 0, 2]); 8]);
    device.emulator.launch(&good).unwrap();
}
