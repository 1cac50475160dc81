//! Bodies for `learner_signals`.

use gpu::clock;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::learner_signals::reference::mean;
use gpu::kernels::learner_signals::{LearnerSignals, sample};
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use gpu::reference::Bounded;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// A history row from random values, finite and not; the counters.
pub fn means_norms_and_counters<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(101);
    const STATS: usize = stat::COLUMNS as usize;
    const SIGNALS: usize = signal::COLUMNS as usize;
    for (batch, finite) in [(1usize, true), (33, false), (1000, true), (3001, true)] {
        let stats = random.normals(batch * STATS, 1.0);
        let samples = random.normals(batch * sample::ROWS as usize, 1.0);
        let weights: Vec<f32> = (0..batch).map(|_| random.uniform() as f32).collect();
        let mut scales = random.normals(scale::WORDS as usize, 1.0);
        scales[scale::FINITE as usize] = if finite { 1.0 } else { 0.0 };
        let history = filled(b, "history", 2 * SIGNALS, -7.0f32)?;
        let mut before = [0u64; clock::WORDS as usize];
        before[clock::STEP as usize] = 5;
        before[clock::SKIPPED as usize] = 2;
        before[clock::SKIPPED_IN_A_ROW as usize] = 2;
        let words = put(b, "clock", &before)?;
        let (stats_buf, samples_buf) = (put(b, "stats", &stats)?, put(b, "samples", &samples)?);
        let weights_buf = put(b, "weights", &weights)?;
        let scales_buf = put(b, "scales", &scales)?;
        launch(
            b,
            LearnerSignals {
                batch: batch as u32,
                rows: 2,
                stats: stats_buf.into(),
                weights: weights_buf.into(),
                samples: samples_buf.into(),
                scales: scales_buf.into(),
                history: history.into(),
                clock_words: words.into(),
            },
        )?;
        let got = b.download(history)?;
        same_bits("the other row", &got[..SIGNALS], &[-7.0; SIGNALS]);
        let mut expected: Vec<Bounded> = (0..STATS - 1)
            .map(|c| {
                let column: Vec<f32> = stats.iter().skip(c).step_by(STATS).copied().collect();
                mean(&vec![1.0; batch], &column)
            })
            .collect();
        expected.push(Bounded::exact(scales[scale::GROUP_NORM as usize]));
        expected.push(Bounded::exact(if finite { 0.0 } else { 1.0 }));
        expected.push(Bounded::exact(scales[scale::LR as usize]));
        let ones = vec![1.0; batch];
        for (row, values) in samples.chunks(batch).enumerate() {
            let weighted = row == sample::IQN as usize;
            expected.push(mean(if weighted { &weights } else { &ones }, values));
        }
        // Columns between the samples' and the norms are nobody's.
        expected.resize(signal::NORM as usize, Bounded::exact(-7.0));
        expected.extend(scales[scale::TERM_NORM as usize..].iter().map(|&x| Bounded::exact(x)));
        let row = &got[SIGNALS..];
        close("history row", &row[..expected.len()], &expected);
        same_bits("unused columns", &row[expected.len()..], &vec![-7.0; SIGNALS - expected.len()]);
        before[clock::STEP as usize] = 6;
        before[clock::SKIPPED_IN_A_ROW as usize] = if finite { 0 } else { 3 };
        before[clock::SKIPPED as usize] = if finite { 2 } else { 3 };
        assert_eq!(b.download(words)?, before);
    }
    Ok(())
}
