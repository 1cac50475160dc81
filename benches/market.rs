//! Kernels of a collection step with 4,096 market environments (SPEC section 6), whose states have 8 bars of 9 features; and the
//! environments' step itself, states assembled but not inserted, with 65,536 of them.

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::{Buf, Kernel};
use device::Bench;
use gpu::kernels::market_count::MarketCount;
use gpu::kernels::market_observe::MarketObserve;
use gpu::kernels::market_step::MarketStep;
use gpu::kernels::n_step::NStepWindow;
use gpu::kernels::priority;
use gpu::kernels::priority_tree::PriorityInsert;
use gpu::kernels::sample_gather::ring;
use gpu::market::{
    ACCOUNT_COUNTERS, ACCOUNT_VALUES, ActionLayout, BarColumns, BarSide, MarketParams, MarketTable, Mode,
    Part, StateShape,
};
use gpu::{action, clock};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

/// As many as `train` has, and as many as show what the GPU can do.
const ENVIRONMENTS: [usize; 2] = [4096, 65_536];
const CAPACITY: usize = 1 << 20;
const BARS: usize = 50_000;
const SHAPE: StateShape = StateShape { window: 8, features: 9 };
const HOUR_MS: i64 = 3_600_000;

fn main() -> ExitCode {
    device::run(|bench| {
        collection(bench, ENVIRONMENTS[0], true)?;
        collection(bench, ENVIRONMENTS[1], false)
    })
}

/// Hourly bars of a price that goes up and down, every bar with a range.
fn table(half_spread: f64) -> MarketTable {
    let price = |t: usize| 1.2 + 0.1 * (t as f64 / 300.0).sin() + 0.01 * (t as f64 / 7.0).sin();
    let time_ms: Vec<i64> = (0..BARS as i64).map(|t| 1_500_000_000_000 + t * HOUR_MS).collect();
    let open: Vec<f64> = (0..BARS).map(price).collect();
    let close: Vec<f64> = (0..BARS).map(|t| price(t + 1)).collect();
    let high: Vec<f64> = open.iter().zip(&close).map(|(a, b)| a.max(*b) * 1.001).collect();
    let low: Vec<f64> = open.iter().zip(&close).map(|(a, b)| a.min(*b) / 1.001).collect();
    let columns = BarColumns { time_ms: &time_ms, open: &open, high: &high, low: &low, close: &close };
    let features = (0..BARS * SHAPE.features as usize).map(|i| (i as f32 / 11.0).sin()).collect();
    MarketTable::new(columns, features, SHAPE, std::slice::from_ref(&(0..BARS)), BarSide::Mid, half_spread)
        .expect("bars that work")
}

/// The kernels, with `insert` those of the ring too.
fn collection(bench: &mut Bench, count: usize, insert: bool) -> Result<(), ExecError> {
    let params = MarketParams {
        half_spread: 5e-5,
        slippage: 2e-5,
        impact: 1e-5,
        taker_fee: 2e-5,
        maker_fee: 0.0,
        financing: 0.05,
        borrow: 0.02,
        drawdown_penalty: 0.0,
        ruin: 0.1,
        ruin_reward: -10.0,
        reward_scale: 500.0,
        initial_equity: 100_000.0,
        gamma: 0.99,
        episode: 256,
        last_bar: 0,
        layout: ActionLayout::Exposure,
        mode: Mode::Train,
    };
    let table = table(params.half_spread);
    let part = Part::new(&table, 0..BARS).expect("a part of the table");
    let stride = (SHAPE.len() as usize).next_multiple_of(4);
    let taken = |e: usize| action::pack(&[e % 9, e % 3, (e / 3) % 3]);
    let actions = bench.put("actions", &(0..count).map(taken).collect::<Vec<u64>>())?;
    let (words, prices) = (bench.put("params", &params.words())?, bench.put("prices", &table.prices)?);
    let (elapsed, time_of_day) = (bench.put("elapsed", &table.elapsed)?, bench.put("clock", &table.clock)?);
    let features = bench.put("features", &table.features)?;
    let (run_end, starts) = (bench.put("run end", &part.run_end)?, bench.put("starts", &part.starts)?);
    let values: Buf<f64> = bench.exec.alloc("values", ACCOUNT_VALUES as usize * count)?;
    let counters: Buf<u32> = bench.exec.alloc("counters", ACCOUNT_COUNTERS as usize * count)?;
    let flags: Buf<u32> = bench.exec.alloc("flags", count)?;
    let log: Buf<f64> = bench.exec.alloc("log", 0)?;
    let ring_words: Buf<u64> = bench.exec.alloc("ring", ring::WORDS as usize)?;
    let clock_words: Buf<u64> = bench.exec.alloc("clock words", clock::WORDS as usize)?;
    let states: Buf<f32> = bench.exec.alloc("states", count * stride)?;
    let ring_states: Buf<f32> = bench.exec.alloc("ring states", CAPACITY * stride)?;
    let ring_next_states: Buf<f32> = bench.exec.alloc("ring next states", CAPACITY * stride)?;
    let ring_actions: Buf<u64> = bench.exec.alloc("ring actions", CAPACITY)?;
    let ring_rewards: Buf<f32> = bench.exec.alloc("ring rewards", CAPACITY)?;
    let ring_discounts: Buf<f32> = bench.exec.alloc("ring discounts", CAPACITY)?;
    let (environments, capacity, start_count) = (count as u32, CAPACITY as u32, part.starts.len() as u32);
    let step = MarketStep {
        environments,
        start_count,
        capacity,
        log_rows: 0,
        seed: 1,
        params: words.into(),
        prices: prices.into(),
        elapsed: elapsed.into(),
        run_end: run_end.into(),
        starts: starts.into(),
        actions: actions.into(),
        values: values.into(),
        counters: counters.into(),
        ring_words: ring_words.into(),
        ring_actions: ring_actions.into(),
        ring_rewards: ring_rewards.into(),
        ring_discounts: ring_discounts.into(),
        flags: flags.into(),
        log: log.into(),
    };
    let observe = MarketObserve {
        environments,
        stride: stride as u32,
        window: SHAPE.window,
        bar_features: SHAPE.features,
        start_count,
        capacity,
        insert: insert.into(),
        seed: 1,
        params: words.into(),
        prices: prices.into(),
        clock: time_of_day.into(),
        features: features.into(),
        run_end: run_end.into(),
        starts: starts.into(),
        values: values.into(),
        counters: counters.into(),
        ring_words: ring_words.into(),
        states: states.into(),
        ring_states: ring_states.into(),
        ring_next_states: ring_next_states.into(),
    };
    let whole = Throughput::Elements(u64::from(environments));
    if !insert {
        let name = format!("environment step of {count}");
        return bench.sequence(MarketStep::DECL.name, &name, whole, move |exec, _| {
            exec.launch(Lane::MAIN, &step)?;
            exec.launch(Lane::MAIN, &observe)
        });
    }
    let count = MarketCount {
        inserted: environments,
        capacity,
        ring_words: ring_words.into(),
        clock_words: clock_words.into(),
    };
    let workload = "4096 environments";
    bench.kernel(workload, values.bytes() + counters.bytes(), step)?;
    bench.kernel(workload, 4 * states.bytes(), observe)?;
    bench.kernel("ring counters", ring_words.bytes(), count)?;
    // Windows of five steps, all of which are in the same episode.
    const STEPS: u32 = 5;
    let ages = bench.put("ages", &[STEPS; ENVIRONMENTS[0]])?;
    let window = NStepWindow {
        environments,
        steps: STEPS,
        capacity,
        stride: stride as u32,
        gamma: params.gamma,
        ring_words: ring_words.into(),
        flags: flags.into(),
        ages: ages.into(),
        ring_rewards: ring_rewards.into(),
        ring_discounts: ring_discounts.into(),
        ring_next_states: ring_next_states.into(),
    };
    bench.kernel("4096 environments, n = 5", u64::from(STEPS) * states.bytes(), window)?;
    let (groups, width) = (priority::groups(capacity), priority::width(capacity));
    let leaves: Buf<f32> = bench.exec.alloc("leaves", CAPACITY)?;
    let sums: Buf<f64> = bench.exec.alloc("sums", groups as usize)?;
    let highest = bench.put("highest", &[1.0f32.to_bits()])?;
    let insert = PriorityInsert {
        inserted: environments,
        pending: (STEPS - 1) * environments,
        capacity,
        groups,
        width,
        ring_words: ring_words.into(),
        highest: highest.into(),
        leaves: leaves.into(),
        sums: sums.into(),
    };
    bench.kernel("4096 into 1048576", 2 * leaves.bytes(), insert)?;
    bench.sequence(MarketStep::DECL.name, "collection step of 4096", whole, move |exec, _| {
        exec.launch(Lane::MAIN, &step)?;
        exec.launch(Lane::MAIN, &observe)?;
        exec.launch(Lane::MAIN, &count)
    })
}
