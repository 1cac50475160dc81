//! Bodies for `step_signals`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::gradient_norm::partials;
use gpu::kernels::gradient_norm::reference::norm;
use gpu::kernels::step_signals::{StepSignals, reference, signal};
use gpu::reference::Bounded;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

const STATS: usize = stat::COLUMNS as usize;
const SIGNALS: usize = signal::COLUMNS as usize;
/// Batch statistics of a row.
const MEANS: usize = STATS - 1;

fn signals(
    batch: usize,
    len: usize,
    rows: usize,
    stats: Buf<f32>,
    sums: Buf<f32>,
    history: Buf<f32>,
    words: Buf<u64>,
) -> StepSignals {
    StepSignals {
        batch: batch as u32,
        len: len as u32,
        rows: rows as u32,
        stats: stats.into(),
        sums: sums.into(),
        history: history.into(),
        clock_words: words.into(),
    }
}

/// Batch means and norm against the reference, over odd batches and lengths; only the step counter advances.
pub fn means_and_counters<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(21);
    let mut shapes = vec![(1, 4), (7, 1024), (32, 1028), (33, 5000), (70, 300 * 1024)];
    if B::FULL_SIZE {
        shapes.push((1024, 331_264));
    }
    for (batch, len) in shapes {
        let mut stats = random.normals(batch * STATS, 1.0);
        for row in stats.chunks_mut(STATS) {
            row[MEANS] = f32::NAN; // the unused column must not reach a mean
        }
        let squares: Vec<f32> =
            random.normals(partials(len as u32) as usize, 1.0).iter().map(|x| x * x).collect();
        let mut expected: Vec<Bounded> = (0..MEANS)
            .map(|c| reference::mean(&stats.iter().skip(c).step_by(STATS).copied().collect::<Vec<_>>()))
            .collect();
        expected.push(norm(&squares.iter().map(|&x| Bounded::exact(x)).collect::<Vec<_>>()));
        expected.push(Bounded::ZERO);
        let (stats, sums) = (put(b, "stats", &stats)?, put(b, "sums", &squares)?);
        let history = filled(b, "history", 3 * SIGNALS, -7.0f32)?;
        let mut before = vec![0u64; clock::WORDS as usize];
        for (word, value) in
            [(clock::STEP, 100), (clock::SKIPPED_IN_A_ROW, 5), (clock::SKIPPED, 6), (clock::COLLECT, 9)]
        {
            before[word as usize] = value;
        }
        let words = put(b, "clock", &before)?;
        launch(b, signals(batch, len, 3, stats, sums, history, words))?;
        // Step 100 of 3 rows is row 1.
        let got = b.download(history)?;
        let row = &got[SIGNALS..2 * SIGNALS];
        close("history row", &row[..expected.len()], &expected);
        same_bits("unused columns", &row[expected.len()..], &vec![-7.0; SIGNALS - expected.len()]);
        same_bits(
            "rows of other steps",
            &[&got[..SIGNALS], &got[2 * SIGNALS..]].concat(),
            &[-7.0; 2 * SIGNALS],
        );
        before[clock::STEP as usize] = 101;
        before[clock::SKIPPED_IN_A_ROW as usize] = 0;
        assert_eq!(b.download(words)?, before, "clock words");
    }
    Ok(())
}

/// Step n writes row n % rows, also for a step beyond 32 bits.
pub fn history_wraps<B: Backend>(b: &mut B) -> Outcome {
    let first = (1u64 << 33) + 4;
    let (stats, sums) = (filled(b, "stats", STATS, 0.0f32)?, filled(b, "sums", 1, 0.0f32)?);
    let history = filled(b, "history", 5 * SIGNALS, -7.0f32)?;
    let mut words = [0u64; clock::WORDS as usize];
    words[clock::STEP as usize] = first;
    let words = put(b, "clock", &words)?;
    for step in 0..5u64 {
        let value = (step + 1) as f32;
        b.upload(stats, &[value; STATS])?;
        b.upload(sums, &[value * value])?;
        launch(b, signals(1, 4, 5, stats, sums, history, words))?;
        let row = ((first + step) % 5) as usize;
        let got = &b.download(history)?[row * SIGNALS..][..SIGNALS];
        same_bits("history row", &got[..MEANS + 2], &[&[value; MEANS + 1][..], &[0.0]].concat());
        assert_eq!(b.download(words)?[clock::STEP as usize], first + step + 1);
    }
    Ok(())
}

/// A norm that is not finite is recorded as it is and counted; a finite one ends the row of skipped steps.
pub fn counts_skipped_steps<B: Backend>(b: &mut B) -> Outcome {
    let (stats, sums) = (filled(b, "stats", STATS, 1.0f32)?, filled(b, "sums", 2, 1.0f32)?);
    let history = filled(b, "history", 8 * SIGNALS, -7.0f32)?;
    let words = put(b, "clock", &[0u64; clock::WORDS as usize])?;
    // Two infinities of finite squares count as well: the norm is what is tested.
    let steps = [
        ([1.0, 1.0], 0, 0),
        ([f32::NAN, 1.0], 1, 1),
        ([1.0, f32::INFINITY], 2, 2),
        ([3e38, 3e38], 3, 3),
        ([2.0, 2.0], 0, 3),
        ([1.0, f32::NAN], 1, 4),
    ];
    for (step, (squares, in_a_row, total)) in steps.into_iter().enumerate() {
        b.upload(sums, &squares)?;
        launch(b, signals(1, 2048, 8, stats, sums, history, words))?;
        let row = &b.download(history)?[step * SIGNALS..][..SIGNALS];
        let norm = row[signal::GRADIENT_NORM as usize];
        let skipped = in_a_row > 0;
        assert_eq!(row[signal::SKIPPED as usize], f32::from(u8::from(skipped)), "step {step}: skipped");
        assert_eq!(!norm.is_finite(), skipped, "step {step}: norm {norm}");
        let got = b.download(words)?;
        assert_eq!(got[clock::SKIPPED_IN_A_ROW as usize], in_a_row, "step {step}: skipped in a row");
        assert_eq!(got[clock::SKIPPED as usize], total, "step {step}: skipped");
        assert_eq!(got[clock::STEP as usize], step as u64 + 1, "a skipped step counts as a step");
    }
    Ok(())
}
