//! Bodies for `confidence_loss`, `confidence_reduce` and `confidence_state`.

use gpu::clock;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::confidence_loss::reference::{Head, Loss, advance, compress, confidence_loss, reduce};
use gpu::kernels::confidence_loss::{ConfidenceLoss, ConfidenceReduce, ConfidenceState, source, state};
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use gpu::reference::Bounded;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

const STATS: usize = stat::COLUMNS as usize;
const SIGNALS: usize = state::SIGNALS as usize;

/// Statistics whose td is as given, everything else NaN: not read.
fn stats(td: &[f32]) -> Vec<f32> {
    let mut stats = vec![f32::NAN; td.len() * STATS];
    stats.iter_mut().skip(stat::TD as usize).step_by(STATS).zip(td).for_each(|(s, &td)| *s = td);
    stats
}

/// Loss and gradients, with and without the ensemble's share, narrow and wide features, certain and uncertain heads.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(171);
    let mut shapes = vec![(1, 1), (9, 31), (16, 256), (70, 45)];
    if B::FULL_SIZE {
        shapes.push((1024, 256));
    }
    for (batch, width) in shapes {
        for (accumulate, spread) in [(false, 0.3), (true, 0.3), (true, 30.0)] {
            let (features, hidden) = (random.normals(batch * width, 1.0), random.normals(batch * width, 1.0));
            let before = random.normals(batch * width, 0.1);
            let (weight, signal_weight) = (random.normals(width, spread), random.normals(SIGNALS, spread));
            let mut kept = random.normals(state::WORDS as usize, 1.0);
            kept[state::MEDIAN as usize] = 0.8;
            let td: Vec<f32> = (0..batch).map(|_| 1.6 * random.uniform() as f32).collect();
            let head = Head {
                weight: &weight,
                signal_weight: &signal_weight,
                bias: 0.25,
                signals: &kept[state::SIGNAL as usize..],
                median: 0.8,
                slope: 0.01,
            };
            let row = |x: &[f32], i: usize| x[i * width..][..width].to_vec();
            let expected: Vec<Loss> = (0..batch)
                .map(|i| {
                    let before = row(&before, i);
                    let before = accumulate.then_some(&before[..]);
                    confidence_loss(batch, &head, &row(&features, i), &row(&hidden, i), td[i], before)
                })
                .collect();
            let (features_buf, hidden_buf) = (put(b, "features", &features)?, put(b, "hidden", &hidden)?);
            let (stats_buf, kept_buf) = (put(b, "stats", &stats(&td))?, put(b, "kept", &kept)?);
            let (weight_buf, signal_buf) =
                (put(b, "weight", &weight)?, put(b, "signal weight", &signal_weight)?);
            let bias = put(b, "bias", &[0.25f32])?;
            let (loss, d_logit) = (filled(b, "loss", batch, -7.0f32)?, filled(b, "d_logit", batch, -7.0f32)?);
            let d_hidden = match accumulate {
                true => put(b, "d_hidden", &before)?,
                false => filled(b, "d_hidden", batch * width, f32::NAN)?,
            };
            launch(
                b,
                ConfidenceLoss {
                    batch: batch as u32,
                    width: width as u32,
                    slope: 0.01,
                    accumulate: accumulate.into(),
                    features: features_buf.into(),
                    hidden: hidden_buf.into(),
                    stats: stats_buf.into(),
                    weight: weight_buf.into(),
                    signal_weight: signal_buf.into(),
                    bias: bias.into(),
                    kept: kept_buf.into(),
                    loss: loss.into(),
                    d_logit: d_logit.into(),
                    d_hidden: d_hidden.into(),
                },
            )?;
            let all = |of: fn(&Loss) -> Bounded| expected.iter().map(of).collect::<Vec<_>>();
            close("loss", &b.download(loss)?, &all(|l| l.loss));
            let got = b.download(d_logit)?;
            close("d_logit", &got, &all(|l| l.d_logit));
            let rows: Vec<Bounded> = expected.iter().flat_map(|l| l.d_hidden.clone()).collect();
            close("d_hidden", &b.download(d_hidden)?, &rows);

            let gradients = [width, SIGNALS, 1].map(|len| filled(b, "gradient", len, -7.0f32));
            let [d_weight, d_signal_weight, d_bias] = gradients;
            let (d_weight, d_signal_weight, d_bias) = (d_weight?, d_signal_weight?, d_bias?);
            launch(
                b,
                ConfidenceReduce {
                    batch: batch as u32,
                    width: width as u32,
                    features: features_buf.into(),
                    d_logit: d_logit.into(),
                    kept: kept_buf.into(),
                    d_weight: d_weight.into(),
                    d_signal_weight: d_signal_weight.into(),
                    d_bias: d_bias.into(),
                },
            )?;
            let want = reduce(&got, &features, head.signals);
            for ((name, buffer), want) in
                [("d_weight", d_weight), ("d_signals", d_signal_weight), ("d_bias", d_bias)].iter().zip(&want)
            {
                close(name, &b.download(*buffer)?, want);
            }
        }
    }
    Ok(())
}

/// Median, mean and signals over accepted and skipped steps; a signal that is not finite keeps its value.
pub fn state_over_steps<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(172);
    const COLUMNS: usize = signal::COLUMNS as usize;
    for batch in [1, 40, 1500] {
        let kept = filled(b, "kept", state::WORDS as usize, 0.0f32)?;
        let mut running = None;
        let mut signals = [Bounded::ZERO; SIGNALS];
        for step in 0..5usize {
            let td: Vec<f32> = (0..batch).map(|_| random.uniform() as f32).collect();
            let accepted = step != 2;
            let mut row = random.normals(2 * COLUMNS, 3.0);
            if step == 3 {
                row[step % 2 * COLUMNS + source(4) as usize] = f32::INFINITY;
            }
            let mut scales = vec![0.0f32; scale::WORDS as usize];
            scales[scale::FINITE as usize] = f32::from(u8::from(accepted));
            let mut words = [0u64; clock::WORDS as usize];
            // The step's number has been advanced.
            words[clock::STEP as usize] = step as u64 + 1;
            let before = b.download(kept)?;
            let median = before[state::MEDIAN as usize];
            let (stats, scales) = (put(b, "stats", &stats(&td))?, put(b, "scales", &scales)?);
            let (words, history) = (put(b, "clock", &words)?, put(b, "history", &row)?);
            launch(
                b,
                ConfidenceState {
                    batch: batch as u32,
                    rows: 2,
                    rate: 0.05,
                    stats: stats.into(),
                    scales: scales.into(),
                    clock_words: words.into(),
                    kept: kept.into(),
                    history: history.into(),
                },
            )?;
            let (after, written) = (b.download(kept)?, b.download(history)?);
            let own = &written[step % 2 * COLUMNS..][..COLUMNS];
            let above = td.iter().filter(|&&t| t > median).count() as f32 / batch as f32;
            same_bits("fraction above", &own[signal::TD_ABOVE as usize..][..1], &[above]);
            same_bits("median in the history", &own[signal::TD_MEDIAN as usize..][..1], &after[..1]);
            if !accepted {
                same_bits("state of a skipped step", &after, &before);
                continue;
            }
            let old = running.map(|_| Bounded::exact(before[state::MEAN as usize]));
            let [mean, next] = advance(0.05, &td, median, old);
            running = Some(mean);
            close("median and mean", &after[..2], &[next, mean]);
            assert_eq!(after[state::STARTED as usize], 1.0);
            for (s, wanted) in signals.iter_mut().enumerate() {
                let x = row[step % 2 * COLUMNS + source(s as u32) as usize];
                if x.is_finite() {
                    *wanted = compress(x);
                }
            }
            close("signals", &after[state::SIGNAL as usize..], &signals);
        }
    }
    Ok(())
}
