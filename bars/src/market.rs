//! What a market environment needs of a bar file: prices, normalised features, segments, scales.

use std::f64::consts::TAU;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::calendar::{DAY_MS, Segment};
use crate::error::BarError;
use crate::features::{FEATURES, FeatureMaker};
use crate::load::Loaded;
use crate::normaliser::{Normaliser, exact};
use crate::split::{Fold, Reach, SplitOptions, decisions, split};
use crate::symbols::Symbol;
use crate::time::utc_text;

/// How to prepare bars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareOptions {
    /// L: bars that one bar's features read, at most 64.
    pub lookback: usize,
    /// W: bars in a state.
    pub window: usize,
    /// n: steps of the n-step return.
    pub n_step: usize,
    /// Fractions and embargo.
    pub split: SplitOptions,
    /// Normalised features are clamped to this many standard deviations.
    pub clip: f64,
    /// Bars per year for annualising, in place of what the calendar says.
    pub bars_per_year: Option<f64>,
}

impl Default for PrepareOptions {
    fn default() -> Self {
        Self {
            lookback: 64,
            window: 8,
            n_step: 1,
            split: SplitOptions::default(),
            clip: 8.0,
            bars_per_year: None,
        }
    }
}

impl PrepareOptions {
    /// How far decisions read back and labels reach forward.
    pub fn reach(&self) -> Reach {
        Reach { lookback: self.lookback, window: self.window, n_step: self.n_step }
    }
}

/// What was fitted on a fold's training part. It belongs into the checkpoint: evaluation and prediction use
/// it as it is and fit nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Of the nine features.
    pub normaliser: Normaliser,
    /// c = 1 / standard deviation of the training part's log returns.
    #[serde(with = "exact")]
    pub reward_scale: f64,
    /// L of the features.
    pub lookback: usize,
    /// Bar interval of the training data, milliseconds.
    pub interval_ms: i64,
}

/// Bars as an environment reads them. All vectors have one entry per bar unless said otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct MarketData {
    /// UTC.
    pub timestamps_ms: Vec<i64>,
    /// Prices as in the file, or adjusted if that was asked for.
    pub open: Vec<f64>,
    /// See `open`.
    pub high: Vec<f64>,
    /// See `open`.
    pub low: Vec<f64>,
    /// See `open`.
    pub close: Vec<f64>,
    /// Traded volume, 0 when the file has none.
    pub volume: Vec<f64>,
    /// Normalised features `[bars, 9]`, row-major; zero in the first L - 1 bars of the file. In bars whose
    /// lookback spans a gap they mean nothing; [`MarketData::decisions`] never gives a state that holds one.
    pub features: Vec<f32>,
    /// Index of the last bar of the bar's segment.
    pub segment_end: Vec<u32>,
    /// Sine of the time of day (UTC) as an angle.
    pub day_sin: Vec<f32>,
    /// Cosine of the time of day (UTC) as an angle.
    pub day_cos: Vec<f32>,
    /// Bars between gaps, in order.
    pub segments: Vec<Segment>,
    /// Scale of rewards, see [`Fitted::reward_scale`].
    pub reward_scale: f32,
    /// Bar interval, milliseconds.
    pub interval_ms: i64,
    /// Bars per calendar year, closures counted as time.
    pub bars_per_year: f64,
}

impl MarketData {
    /// Number of bars.
    pub fn len(&self) -> usize {
        self.timestamps_ms.len()
    }

    /// Whether there is no bar.
    pub fn is_empty(&self) -> bool {
        self.timestamps_ms.is_empty()
    }

    /// Bars of a range at which an episode may start or a decision be made: the state's lookback and the next
    /// bar lie in the bar's segment.
    pub fn decisions(&self, reach: Reach, range: Range<usize>) -> Vec<u32> {
        decisions(&self.segments, reach, range).map(|t| t as u32).collect()
    }
}

/// Everything that [`prepare`] gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// For the environment.
    pub data: MarketData,
    /// The parts.
    pub fold: Fold,
    /// For the checkpoint.
    pub fitted: Fitted,
    /// For the user.
    pub summary: Summary,
}

/// One split, features, and what is fitted on its training part.
///
/// # Errors
/// If an option makes no sense, a part is too short, or the training prices never move.
pub fn prepare(loaded: &Loaded, options: &PrepareOptions) -> Result<Prepared, BarError> {
    let fold = split(loaded.bars.len(), &loaded.calendar.segments, options.reach(), &options.split)?;
    prepare_fold(loaded, &fold, options)
}

/// The same for a given fold (walk-forward): everything is fitted anew on that fold's training part.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_fold(loaded: &Loaded, fold: &Fold, options: &PrepareOptions) -> Result<Prepared, BarError> {
    let (mut data, fitted, mut summaries) = prepare_all(&[(loaded, fold)], options)?;
    match (data.pop(), summaries.pop()) {
        (Some(data), Some(summary)) => Ok(Prepared { data, fold: fold.clone(), fitted, summary }),
        _ => Err(BarError::Split("no bars to prepare".to_owned())),
    }
}

/// The same for several symbols that are traded by one policy: one normaliser and one reward scale, fitted on the
/// training parts of all of them, each bar counting once. Data and summaries are in the order of the symbols.
///
/// # Errors
/// As for [`prepare`].
pub fn prepare_symbols(
    symbols: &[Symbol],
    folds: &[Fold],
    options: &PrepareOptions,
) -> Result<(Vec<MarketData>, Fitted, Vec<Summary>), BarError> {
    let pairs: Vec<_> = symbols.iter().map(|symbol| &symbol.loaded).zip(folds).collect();
    prepare_all(&pairs, options)
}

fn prepare_all(
    symbols: &[(&Loaded, &Fold)],
    options: &PrepareOptions,
) -> Result<(Vec<MarketData>, Fitted, Vec<Summary>), BarError> {
    let reach = options.reach();
    let Some((first, _)) = symbols.first() else {
        return Err(BarError::Split("no bars to prepare".to_owned()));
    };
    let maker = FeatureMaker::new(options.lookback, first.calendar.interval_ms)?;
    let mut inputs = Vec::with_capacity(symbols.len());
    for &(loaded, fold) in symbols {
        fold.check(loaded.bars.len(), &loaded.calendar.segments, reach, options.split.embargo)?;
        inputs.push(Input { loaded, train: fold.train.clone(), features: maker.all(&loaded.bars) });
    }
    let fitted = fit(&inputs, &maker, reach, options.clip)?;
    let data: Vec<MarketData> = inputs
        .iter()
        .map(|input| market_data(input.loaded, &input.features, &fitted, options.bars_per_year))
        .collect::<Result<_, _>>()?;
    let summaries = data.iter().zip(symbols);
    let summaries =
        summaries.map(|(data, (_, fold))| Summary::new(data, fold, reach, options.split.embargo)).collect();
    Ok((data, fitted, summaries))
}

/// Market data with what an earlier run fitted: for `eval` and `predict`, also on another file.
///
/// # Errors
/// If the file's bar interval is not the one trained on, or `fitted` is damaged.
pub fn apply(loaded: &Loaded, fitted: &Fitted, bars_per_year: Option<f64>) -> Result<MarketData, BarError> {
    fitted.normaliser.check(FEATURES)?;
    if !(fitted.reward_scale.is_finite() && fitted.reward_scale > 0.0) {
        return Err(BarError::option("reward_scale", fitted.reward_scale, "expected a positive number"));
    }
    if loaded.calendar.interval_ms != fitted.interval_ms {
        let message = format!(
            "bars of {} ms, but the model was trained on bars of {} ms",
            loaded.calendar.interval_ms, fitted.interval_ms
        );
        return Err(BarError::file(&loaded.report.file, message));
    }
    let features = FeatureMaker::new(fitted.lookback, fitted.interval_ms)?.all(&loaded.bars);
    market_data(loaded, &features, fitted, bars_per_year)
}

/// What the normaliser and the reward scale are fitted on: one symbol's bars.
struct Input<'a> {
    loaded: &'a Loaded,
    /// Decisions of the training part.
    train: Range<usize>,
    /// `[bars, 9]`, not normalised.
    features: Vec<f64>,
}

/// Normaliser and reward scale from the bars that the training parts' states read, and from no others.
fn fit(inputs: &[Input<'_>], maker: &FeatureMaker, reach: Reach, clip: f64) -> Result<Fitted, BarError> {
    let rows = inputs.iter().flat_map(|input| {
        // The first bar of the first decision's window.
        let begin = (input.train.start + 1).saturating_sub(reach.window);
        input.loaded.calendar.segments.iter().flat_map(move |segment| {
            let end = segment.end.min(input.train.end);
            let first = maker.first_usable(segment.start).max(begin);
            (first..end).map(|t| &input.features[t * FEATURES..(t + 1) * FEATURES])
        })
    });
    let normaliser = Normaliser::fit(FEATURES, rows, clip)?;
    let returns: Vec<f64> = inputs
        .iter()
        .flat_map(|input| {
            let begin = (input.train.start + 1).saturating_sub(reach.back());
            let segments = input.loaded.calendar.segments.iter();
            let bars = segments.flat_map(move |s| (s.start + 1).max(begin)..s.end.min(input.train.end));
            let close = &input.loaded.bars.close;
            bars.map(move |t| libm::log(close[t] / close[t - 1]))
        })
        .collect();
    let mean = returns.iter().sum::<f64>() / returns.len() as f64;
    let variance = returns.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / returns.len() as f64;
    let reward_scale = 1.0 / variance.sqrt();
    // f32 is what the environment takes it as.
    if returns.iter().all(|r| *r == returns[0]) || !(reward_scale as f32).is_finite() || reward_scale <= 0.0 {
        return Err(BarError::Split(
            "the training prices have constant returns: there is nothing to learn from".to_owned(),
        ));
    }
    Ok(Fitted { normaliser, reward_scale, lookback: maker.lookback(), interval_ms: maker.interval_ms() })
}

fn market_data(
    loaded: &Loaded,
    features: &[f64],
    fitted: &Fitted,
    bars_per_year: Option<f64>,
) -> Result<MarketData, BarError> {
    let (bars, calendar) = (&loaded.bars, &loaded.calendar);
    let bars_per_year = match bars_per_year {
        Some(given) if !(given.is_finite() && given > 0.0) => {
            return Err(BarError::option("bars_per_year", given, "expected a positive number"));
        }
        Some(given) => given,
        None => calendar.bars_per_year,
    };
    let mut normalised = vec![0.0; features.len()];
    let first = (fitted.lookback - 1).min(bars.len()) * FEATURES;
    let rows = features[first..].chunks_exact(FEATURES).zip(normalised[first..].chunks_exact_mut(FEATURES));
    for (row, out) in rows {
        fitted.normaliser.apply(row, out);
    }
    let mut segment_end = Vec::with_capacity(bars.len());
    for segment in &calendar.segments {
        let last = (segment.end - 1) as u32;
        segment_end.resize(segment.end, last);
    }
    let angle = |ms: &i64| ms.rem_euclid(DAY_MS) as f64 / DAY_MS as f64 * TAU;
    Ok(MarketData {
        timestamps_ms: bars.time_ms.clone(),
        open: bars.open.clone(),
        high: bars.high.clone(),
        low: bars.low.clone(),
        close: bars.close.clone(),
        volume: bars.volume.clone(),
        features: normalised,
        segment_end,
        day_sin: bars.time_ms.iter().map(|ms| libm::sin(angle(ms)) as f32).collect(),
        day_cos: bars.time_ms.iter().map(|ms| libm::cos(angle(ms)) as f32).collect(),
        segments: calendar.segments.clone(),
        reward_scale: fitted.reward_scale as f32,
        interval_ms: calendar.interval_ms,
        bars_per_year,
    })
}

/// The parts of a fold in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name, range, first and last decision's time, number of decisions.
    parts: Vec<(&'static str, Range<usize>, [i64; 2], usize)>,
    reach: Reach,
    embargo: usize,
    reward_scale: f32,
}

impl Summary {
    fn new(data: &MarketData, fold: &Fold, reach: Reach, embargo: usize) -> Self {
        let parts = fold.parts().map(|(name, range)| {
            let times = [data.timestamps_ms[range.start], data.timestamps_ms[range.end - 1]];
            (name, range.clone(), times, decisions(&data.segments, reach, range.clone()).count())
        });
        Self { parts: parts.to_vec(), reach, embargo, reward_scale: data.reward_scale }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, range, [first, last], decisions) in &self.parts {
            writeln!(
                f,
                "  {name:<11} bars {}..{}, {} to {} UTC, {decisions} decisions",
                range.start,
                range.end,
                utc_text(*first),
                utc_text(*last)
            )?;
        }
        writeln!(
            f,
            "  left out    {} (lookback {} + window {} - 1 + n-step {}) + embargo {} bars between parts",
            self.reach.purge(),
            self.reach.lookback,
            self.reach.window,
            self.reach.n_step,
            self.embargo
        )?;
        writeln!(f, "  rewards     times {:.1} (1 / std of the training log returns)", self.reward_scale)
    }
}
