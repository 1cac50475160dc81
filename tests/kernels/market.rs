//! A collection step on a back end beside the same step of the CPU environment: what the bodies of the three market
//! kernels share. `gpu/tests/market` holds the environment itself against an independent ledger.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::market_count::MarketCount;
use gpu::kernels::market_observe::MarketObserve;
use gpu::kernels::market_step::MarketStep;
use gpu::kernels::sample_gather::ring;
use gpu::market::{
    ACCOUNT_COUNTERS, ACCOUNT_VALUES, LOG_FIELDS, MarketParams, MarketTable, Mode, Part, Transitions,
    VecMarket,
};
use host::error::ExecError;

use super::check::same_bits;
use super::{Backend, Outcome, filled, launch, put};

#[allow(dead_code, reason = "shared with the environment's own tests, which use all of it")]
#[path = "../../gpu/tests/market/support.rs"]
pub mod support;

use support::{SHAPE, hashed_action};

/// Used floats of a state.
pub const STATE: usize = SHAPE.len() as usize;
/// Floats of a state row: some more than are used, which must be zero.
pub const STRIDE: usize = STATE.next_multiple_of(4) + 4;
/// What slots of the ring hold before they are written.
pub const UNWRITTEN: f32 = -7.0;

/// Buffers of environments and their replay ring.
pub struct Collection {
    environments: usize,
    capacity: usize,
    log_rows: usize,
    start_count: usize,
    seed: u64,
    params: Buf<f64>,
    prices: Buf<f64>,
    elapsed: Buf<f64>,
    clock: Buf<f32>,
    features: Buf<f32>,
    run_end: Buf<u32>,
    starts: Buf<u32>,
    actions: Buf<u64>,
    values: Buf<f64>,
    counters: Buf<u32>,
    flags: Buf<u32>,
    ring_words: Buf<u64>,
    clock_words: Buf<u64>,
    ring_actions: Buf<u64>,
    ring_rewards: Buf<f32>,
    ring_discounts: Buf<f32>,
    /// States `[E, STRIDE]`.
    pub states: Buf<f32>,
    /// States of the ring `[capacity, STRIDE]`.
    pub ring_states: Buf<f32>,
    /// Next states of the ring `[capacity, STRIDE]`.
    pub ring_next_states: Buf<f32>,
    /// Log `[E, log_rows, LOG_FIELDS]`.
    pub log: Buf<f64>,
}

impl Collection {
    /// Environments before their first episode and an empty ring.
    pub fn new<B: Backend>(
        b: &mut B,
        (params, table, part): (&MarketParams, &MarketTable, &Part),
        environments: usize,
        capacity: usize,
        log_rows: usize,
        seed: u64,
    ) -> Result<Self, ExecError> {
        let starts = match params.mode {
            Mode::Train => &part.starts,
            Mode::Backtest => part.backtest_start(),
        };
        Ok(Self {
            environments,
            capacity,
            log_rows,
            start_count: starts.len(),
            seed,
            params: put(b, "params", &params.words())?,
            prices: put(b, "prices", &table.prices)?,
            elapsed: put(b, "elapsed", &table.elapsed)?,
            clock: put(b, "clock", &table.clock)?,
            features: put(b, "features", &table.features)?,
            run_end: put(b, "run end", &part.run_end)?,
            starts: put(b, "starts", starts)?,
            actions: b.alloc("actions", environments)?,
            values: b.alloc("values", ACCOUNT_VALUES as usize * environments)?,
            counters: b.alloc("counters", ACCOUNT_COUNTERS as usize * environments)?,
            flags: b.alloc("flags", environments)?,
            ring_words: b.alloc("ring", ring::WORDS as usize)?,
            clock_words: b.alloc("clock words", clock::WORDS as usize)?,
            ring_actions: b.alloc("ring actions", capacity)?,
            ring_rewards: b.alloc("ring rewards", capacity)?,
            ring_discounts: b.alloc("ring discounts", capacity)?,
            states: filled(b, "states", environments * STRIDE, f32::NAN)?,
            ring_states: filled(b, "ring states", capacity * STRIDE, UNWRITTEN)?,
            ring_next_states: filled(b, "ring next states", capacity * STRIDE, UNWRITTEN)?,
            log: b.alloc("log", environments * log_rows * LOG_FIELDS as usize)?,
        })
    }

    /// The states that the next decisions see; with `insert` the ring gets the step's states.
    pub fn observe<B: Backend>(&self, b: &mut B, insert: u32) -> Outcome {
        launch(
            b,
            MarketObserve {
                environments: self.environments as u32,
                stride: STRIDE as u32,
                window: SHAPE.window,
                bar_features: SHAPE.features,
                start_count: self.start_count as u32,
                capacity: self.capacity as u32,
                insert,
                seed: self.seed,
                params: self.params.into(),
                prices: self.prices.into(),
                clock: self.clock.into(),
                features: self.features.into(),
                run_end: self.run_end.into(),
                starts: self.starts.into(),
                values: self.values.into(),
                counters: self.counters.into(),
                ring_words: self.ring_words.into(),
                states: self.states.into(),
                ring_states: self.ring_states.into(),
                ring_next_states: self.ring_next_states.into(),
            },
        )
    }

    /// One collection step with these actions.
    pub fn collect<B: Backend>(&self, b: &mut B, actions: &[u64]) -> Outcome {
        b.upload(self.actions, actions)?;
        launch(
            b,
            MarketStep {
                environments: self.environments as u32,
                start_count: self.start_count as u32,
                capacity: self.capacity as u32,
                log_rows: self.log_rows as u32,
                seed: self.seed,
                params: self.params.into(),
                prices: self.prices.into(),
                elapsed: self.elapsed.into(),
                run_end: self.run_end.into(),
                starts: self.starts.into(),
                actions: self.actions.into(),
                values: self.values.into(),
                counters: self.counters.into(),
                ring_words: self.ring_words.into(),
                ring_actions: self.ring_actions.into(),
                ring_rewards: self.ring_rewards.into(),
                ring_discounts: self.ring_discounts.into(),
                flags: self.flags.into(),
                log: self.log.into(),
            },
        )?;
        self.observe(b, 1)?;
        launch(
            b,
            MarketCount {
                inserted: self.environments as u32,
                capacity: self.capacity as u32,
                ring_words: self.ring_words.into(),
                clock_words: self.clock_words.into(),
            },
        )
    }
}

/// The used part of row `row`, after a check that the rest of it is zero.
#[track_caller]
pub fn state_row(rows: &[f32], row: usize) -> &[f32] {
    state_row_of(rows, row, STRIDE)
}

/// The same for rows of `stride` floats.
#[track_caller]
pub fn state_row_of(rows: &[f32], row: usize, stride: usize) -> &[f32] {
    let (used, rest) = rows[row * stride..][..stride].split_at(STATE);
    same_bits("padding of a state row", rest, &vec![0.0; stride - STATE]);
    used
}

/// Collects on the back end and with the CPU environment side by side and compares all that either writes, bit by bit.
/// Returns all flags that were seen.
pub fn compare<B: Backend>(
    b: &mut B,
    (params, table, part): (&MarketParams, &MarketTable, &Part),
    environments: usize,
    capacity: usize,
    steps: usize,
) -> Result<u32, ExecError> {
    let device = Collection::new(b, (params, table, part), environments, capacity, 0, 77)?;
    let mut market = VecMarket::new(*params, table, part, environments, 77).expect("parameters that work");
    let mut states = vec![0.0; environments * STATE];
    let mut out = Transitions::new(environments, STATE);
    let mut seen = 0;
    device.observe(b, 0)?;
    for step in 0..steps {
        market.observe(&mut states).expect("room for the states");
        let on_device = b.download(device.states)?;
        for (e, expected) in states.chunks(STATE).enumerate() {
            same_bits(&format!("step {step}, environment {e}: s"), state_row(&on_device, e), expected);
        }
        let actions: Vec<u64> =
            states.chunks(STATE).map(|state| hashed_action(state, params.layout)).collect();
        device.collect(b, &actions)?;
        market.step(&actions, &mut out).expect("actions of the layout");

        let (values, counters) = market.memory();
        let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&b.download(device.values)?), bits(values), "step {step}: accounts");
        assert_eq!(b.download(device.counters)?, counters, "step {step}: counters");
        assert_eq!(b.download(device.flags)?, out.flags, "step {step}: flags");
        seen |= out.flags.iter().fold(0, |all, flags| all | flags);

        let (ring_states, ring_next) =
            (b.download(device.ring_states)?, b.download(device.ring_next_states)?);
        let (rewards, discounts) = (b.download(device.ring_rewards)?, b.download(device.ring_discounts)?);
        let ring_actions = b.download(device.ring_actions)?;
        for (e, &action) in actions.iter().enumerate() {
            let slot = (step * environments + e) % capacity;
            let row = e * STATE..(e + 1) * STATE;
            same_bits("s in the ring", state_row(&ring_states, slot), &states[row.clone()]);
            same_bits("s' in the ring", state_row(&ring_next, slot), &out.next_states[row]);
            same_bits("reward", &[rewards[slot]], &[out.rewards[e]]);
            same_bits("discount", &[discounts[slot]], &[out.discounts[e]]);
            assert_eq!(ring_actions[slot], action, "slot {slot}: action");
        }
        let written = (step + 1) * environments;
        let words = b.download(device.ring_words)?;
        assert_eq!(words[ring::SIZE as usize], written.min(capacity) as u64, "size after step {step}");
        assert_eq!(words[ring::CURSOR as usize], (written % capacity) as u64, "cursor after step {step}");
        assert_eq!(b.download(device.clock_words)?[clock::COLLECT as usize], step as u64 + 1);
    }
    Ok(seen)
}
