//! `host predict`: what a policy would do at the newest bar of a file, and how sure it is.

mod notes;

use anyhow::{Context, bail};
use backtest::INITIAL_EQUITY;
use bars::{Symbol, utc_text};
use cpu_path::{CpuLearner, Outlook, Real};
use gpu::action;
use gpu::market::{Account, ActionLayout, FILLED, OrderKind, PORTFOLIO, RUNNING, decode, portfolio_feature};
use serde::Serialize;

use crate::train::checkpoint::Checkpoint;

/// Probabilities of the quantiles that are reported, of the C51 distribution and of the IQN head.
pub const TAUS: [f32; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// What the account holds at the newest bar; the default is cash alone, before any order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Holding {
    /// Position as a fraction of the equity, negative when short.
    pub exposure: f64,
    /// Average entry price in the file's prices; the newest close when absent.
    pub entry: Option<f64>,
    /// Bars since the last trade.
    pub bars_since_trade: u32,
    /// 1 - equity / highest equity.
    pub drawdown: f64,
    /// Whether the last order was filled.
    pub filled: bool,
}

/// The newest bar.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NewestBar {
    /// Its number in the file, from 0, after repairs.
    pub index: usize,
    /// Its time.
    pub time: String,
    /// The same, epoch milliseconds.
    pub time_ms: i64,
    /// Its close, as in the file.
    pub close: f64,
}

/// The decoded action.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Order {
    /// Exposure to move to, as a fraction of equity.
    pub target_exposure: f64,
    /// Exposure that is held now.
    pub exposure: f64,
    /// `market`, `limit` or `passive`.
    pub kind: &'static str,
    /// The part of the way that is ordered.
    pub urgency: f64,
    /// What to trade now, as a fraction of equity: urgency * (target - exposure); negative is a sale, 0 is no order.
    pub trade: f64,
}

/// What the C51 head says of one action.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActionView {
    /// The action in words.
    pub action: String,
    /// Expected discounted return, in the units of the reward.
    pub q: f64,
    /// Standard deviation of the return's distribution.
    pub std: f64,
    /// Its quantiles at [`TAUS`].
    pub quantiles: Vec<f64>,
    /// Its probability below 0.
    pub below_zero: f64,
    /// Quantiles of the IQN head at [`TAUS`]; absent without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iqn: Option<Vec<f64>>,
}

/// One branch of the action.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BranchView {
    /// What it decides.
    pub branch: &'static str,
    /// The greedy action's index.
    pub chosen: usize,
    /// Q of the greedy action less that of the second best.
    pub gap: f64,
    /// All actions.
    pub actions: Vec<ActionView>,
}

/// How sure the policy is; absent parts are off.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Expected value of the state by each member of the ensemble.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ensemble: Vec<f64>,
    /// Their standard deviation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ensemble_std: Option<f64>,
    /// Probability that the error at this state is above its running median, by the confidence head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_above_median: Option<f64>,
}

/// Everything that is said of the newest bar.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Symbol.
    pub symbol: String,
    /// Bar file.
    pub file: String,
    /// The bar.
    pub bar: NewestBar,
    /// What to do.
    pub order: Order,
    /// Q values and distributions.
    pub branches: Vec<BranchView>,
    /// How sure the policy is.
    pub uncertainty: Uncertainty,
    /// What to think about before the order is sent.
    pub notes: Vec<String>,
}

/// The learner of a checkpoint, on the CPU: networks, support and what else is kept.
///
/// # Errors
/// If the checkpoint's numbers do not fit its configuration.
pub fn learner<T: Real>(checkpoint: &Checkpoint) -> anyhow::Result<cpu_path::Learner<T>> {
    let mut learner = cpu_path::Learner::<T>::from_config(&checkpoint.config)?;
    let widen = |x: &[f32]| x.iter().map(|&x| T::from_f64(x.into())).collect::<Vec<T>>();
    let mut state = learner.export();
    state.online = widen(&checkpoint.online);
    state.target = widen(&checkpoint.target);
    if !checkpoint.kept.iql.is_empty() {
        state.iql = widen(&checkpoint.kept.iql);
    }
    if !checkpoint.kept.confidence.is_empty() {
        state.confidence = widen(&checkpoint.kept.confidence);
    }
    learner.import(state)?;
    Ok(learner)
}

/// The decision at the newest of a symbol's bars; `now_ms` is the time of asking, epoch milliseconds.
///
/// # Errors
/// If the bars are of another interval than the training's, or fewer than a state needs since the last gap.
pub fn predict(
    checkpoint: &Checkpoint,
    symbol: &Symbol,
    holding: &Holding,
    now_ms: i64,
) -> anyhow::Result<Prediction> {
    let (config, record, loaded) = (&checkpoint.config, checkpoint.record()?, &symbol.loaded);
    let data = bars::apply(loaded, &record.fitted, None)?;
    let (window, lookback) = (config.model.window, record.fitted.lookback);
    let t = data.len() - 1;
    let time = format!("{} UTC", utc_text(data.timestamps_ms[t]));
    let segment = data.segments.last().context("the file has no bars")?;
    let (have, need) = (segment.end - segment.start, lookback + window - 1);
    if have < need {
        let since = match loaded.calendar.gaps.last() {
            Some(gap) if segment.start > 0 => {
                format!("since the gap of {} bar(s) behind {} UTC", gap.bars, utc_text(gap.after_ms))
            }
            _ => "in the file".into(),
        };
        bail!(
            "{}: no decision at {time}: there are {have} bars {since}, and a state reads {need} bars without a gap \
             (lookback {lookback} + window {window} - 1)",
            loaded.report.file
        );
    }
    let params = backtest::market_params(config, record.fitted.reward_scale)?;
    let close = data.close[t];
    let account = account(holding, close, params.episode)?;
    let mut state = data.features[(t + 1 - window) * bars::FEATURES..(t + 1) * bars::FEATURES].to_vec();
    let clock = [data.day_sin[t], data.day_cos[t]];
    state.extend((0..PORTFOLIO).map(|k| portfolio_feature(&params, &account, close, clock, k)));

    let learner: CpuLearner = learner(checkpoint)?;
    let outlook = learner.outlook(&state, &TAUS).with_context(|| format!("the policy at {time}"))?;
    let chosen: Vec<usize> = outlook.greedy.iter().map(|&a| a as usize).collect();
    let decision = decode(params.layout, action::pack(&chosen));
    let kind = match decision.order {
        OrderKind::Market => "market",
        OrderKind::Limit => "limit",
        OrderKind::Passive => "passive",
    };
    let order = Order {
        target_exposure: decision.target,
        exposure: holding.exposure,
        kind,
        urgency: decision.urgency,
        trade: decision.urgency * (decision.target - holding.exposure),
    };
    Ok(Prediction {
        symbol: symbol.name.clone(),
        file: loaded.report.file.clone(),
        bar: NewestBar { index: t, time, time_ms: data.timestamps_ms[t], close },
        order,
        branches: branches(&outlook, params.layout),
        uncertainty: uncertainty(&outlook),
        notes: notes::notes((record, window), loaded, &state[..window * bars::FEATURES], now_ms),
    })
}

/// An account that holds what was said; the remaining fraction of its episode is 1, as at an episode's start.
fn account(holding: &Holding, close: f64, episode: u32) -> anyhow::Result<Account> {
    let Holding { exposure, entry, bars_since_trade, drawdown, filled } = *holding;
    if !(exposure.is_finite() && exposure.abs() <= 100.0) {
        bail!("exposure {exposure}: expected a fraction of equity from -100 to 100");
    }
    if !(0.0..1.0).contains(&drawdown) {
        bail!("drawdown {drawdown}: expected 0 to below 1");
    }
    if let (Some(entry), 0.0) = (entry, exposure) {
        bail!(
            "entry price {entry} with exposure 0: without a position there is no entry; give both or neither"
        );
    }
    let entry = entry.unwrap_or(close);
    if !(entry.is_finite() && entry > 0.0) {
        bail!("entry price {entry}: expected a positive number");
    }
    if bars_since_trade > 1 << 30 {
        bail!("{bars_since_trade} bars since the last trade: expected at most {}", 1 << 30);
    }
    let quantity = exposure * INITIAL_EQUITY / close;
    Ok(Account {
        cash: INITIAL_EQUITY - quantity * close,
        quantity,
        peak: INITIAL_EQUITY / (1.0 - drawdown),
        entry: if exposure == 0.0 { 0.0 } else { entry },
        t: bars_since_trade,
        start: bars_since_trade,
        end: bars_since_trade.saturating_add(episode),
        planned: bars_since_trade.saturating_add(episode),
        last_trade: 0,
        flags: if filled { RUNNING | FILLED } else { RUNNING },
        episodes: 1,
    })
}

/// Names of a layout's branches and of their actions.
pub fn labels(layout: ActionLayout) -> Vec<(&'static str, Vec<String>)> {
    let order = ["market", "limit", "passive"].map(str::to_owned).to_vec();
    let urgency = ["1/3", "2/3", "1"].map(str::to_owned).to_vec();
    match layout {
        ActionLayout::Exposure => {
            let exposures = (0..9).map(|b| format!("{:+.2}", -1.0 + f64::from(b) / 4.0)).collect();
            vec![("exposure", exposures), ("order", order), ("urgency", urgency)]
        }
        ActionLayout::DirectionMagnitude => vec![
            ("direction", ["short", "flat", "long"].map(str::to_owned).to_vec()),
            ("magnitude", ["0.25", "0.50", "1.00"].map(str::to_owned).to_vec()),
            ("order", order),
            ("urgency", urgency),
        ],
    }
}

fn branches(outlook: &Outlook<f32>, layout: ActionLayout) -> Vec<BranchView> {
    let (atoms, actions) = (outlook.atoms.len(), outlook.q.len());
    let mut first = 0;
    let view = |(d, (branch, labels)): (usize, (&'static str, Vec<String>))| {
        let chosen = outlook.greedy[d] as usize;
        let own = first..first + labels.len();
        first = own.end;
        let q = |a: usize| f64::from(outlook.q[own.start + a]);
        let second = (0..labels.len()).filter(|&a| a != chosen).map(q).fold(f64::NEG_INFINITY, f64::max);
        let actions = labels.into_iter().zip(own.clone()).map(|(action, i)| {
            let iqn = (!outlook.quantiles.is_empty())
                .then(|| outlook.quantiles.chunks_exact(actions).map(|z| f64::from(z[i])).collect());
            let p: Vec<f64> = outlook.probabilities[i * atoms..][..atoms].iter().map(|&p| p.into()).collect();
            let q = f64::from(outlook.q[i]);
            let variance: f64 = p.iter().zip(&outlook.atoms).map(|(p, z)| p * (z - q) * (z - q)).sum();
            let below = p.iter().zip(&outlook.atoms).filter(|(_, z)| **z < 0.0).map(|(p, _)| p).sum();
            let quantiles = TAUS.map(|tau| quantile(&p, &outlook.atoms, tau.into())).to_vec();
            ActionView { action, q, std: variance.max(0.0).sqrt(), quantiles, below_zero: below, iqn }
        });
        BranchView { branch, chosen, gap: q(chosen) - second, actions: actions.collect() }
    };
    labels(layout).into_iter().enumerate().map(view).collect()
}

/// The lowest atom at which the cumulated probability reaches `tau`.
fn quantile(p: &[f64], atoms: &[f64], tau: f64) -> f64 {
    let mut sum = 0.0;
    let reached = p.iter().position(|p| {
        sum += p;
        sum >= tau
    });
    atoms[reached.unwrap_or(atoms.len() - 1)]
}

fn uncertainty(outlook: &Outlook<f32>) -> Uncertainty {
    let ensemble: Vec<f64> = outlook.members.iter().map(|&v| v.into()).collect();
    let count = ensemble.len() as f64;
    let std = (!ensemble.is_empty()).then(|| {
        let mean = ensemble.iter().sum::<f64>() / count;
        (ensemble.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count).sqrt()
    });
    let error_above_median = outlook.above_median.first().map(|&p| p.into());
    Uncertainty { ensemble, ensemble_std: std, error_above_median }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_distribution_are_atoms() {
        let (p, z) = ([0.1, 0.2, 0.4, 0.3], [-1.0, 0.0, 1.0, 2.0]);
        assert_eq!(
            [0.05, 0.1, 0.11, 0.7, 0.71].map(|tau| quantile(&p, &z, tau)),
            [-1.0, -1.0, 0.0, 1.0, 2.0]
        );
        // Probabilities that add up to a little less than 1 in f32.
        assert_eq!(quantile(&[0.5, 0.499], &[0.0, 1.0], 0.9999), 1.0);
    }

    #[test]
    fn every_action_of_a_layout_has_a_label_that_says_what_it_decodes_to() {
        for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
            let labels = labels(layout);
            let sizes: Vec<usize> = labels.iter().map(|(_, actions)| actions.len()).collect();
            assert_eq!(sizes, layout.branches());
        }
        for (b, label) in labels(ActionLayout::Exposure)[0].1.iter().enumerate() {
            let target = decode(ActionLayout::Exposure, action::pack(&[b, 0, 0])).target;
            assert_eq!(label.parse::<f64>().unwrap(), target);
        }
    }

    #[test]
    fn a_holding_becomes_an_account_with_that_exposure() {
        let holding =
            Holding { exposure: -0.5, entry: Some(120.0), bars_since_trade: 7, drawdown: 0.2, filled: true };
        let account = account(&holding, 100.0, 256).unwrap();
        assert!((account.exposure(100.0) + 0.5).abs() < 1e-12);
        assert!((account.drawdown(100.0) - 0.2).abs() < 1e-12);
        assert_eq!((account.t - account.last_trade, account.entry), (7, 120.0));
        assert_eq!((account.planned - account.t, account.planned - account.start), (256, 256));
        for wrong in [
            Holding { exposure: f64::NAN, ..holding },
            Holding { entry: Some(0.0), ..holding },
            Holding { drawdown: 1.0, ..holding },
        ] {
            assert!(super::account(&wrong, 100.0, 256).is_err());
        }
    }
}
