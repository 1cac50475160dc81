//! Every ratio against independent packages on the same returns; `scripts/ratios-fixture.py` made the values.

use backtest::block::block_length;
use backtest::ratios::{Ratios, Series, TradeRatios};
use backtest::{Bootstrap, Deflated, Drawdown, Drawdowns, Fill, Report, Track, Trials};
use serde_json::Value;

fn fixture() -> Value {
    serde_json::from_str(include_str!("data/ratios.json")).expect("JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|v| v.as_f64().expect("a number")).collect()
}

/// Equity at the closes, from 1.
fn equity(returns: &[f64]) -> Vec<f64> {
    let mut equity = vec![1.0];
    for r in returns {
        equity.push(equity[equity.len() - 1] * (1.0 + r));
    }
    equity
}

/// 400 products and quotients, each rounded to eps/2, their relative errors at worst added up and amplified 252 / 400
/// times by annualising: below 1e-12. Ratios of differences lose up to three digits more.
const RELATIVE: f64 = 1e-9;

#[track_caller]
fn near(name: &str, got: f64, expected: f64) {
    assert!(
        (got - expected).abs() <= RELATIVE * expected.abs().max(1e-3),
        "{name}: {got}, expected {expected}"
    );
}

#[test]
fn ratios_are_those_of_empyrical_and_quantstats() {
    let fixture = fixture();
    let year = fixture["periods"].as_f64().unwrap();
    for case in fixture["cases"].as_array().unwrap() {
        let (r, b) = (numbers(&case["returns"]), numbers(&case["benchmark"]));
        let curve = equity(&r);
        let ratios = Ratios::new(Series { returns: &r, benchmark: Some(&b) }, &curve, year);
        let expected = &case["expected"];
        let of = |package: &str, name: &str| expected[package][name].as_f64().expect("a number");
        for (name, got) in [
            ("cagr", ratios.cagr),
            ("annual_volatility", ratios.annual_volatility),
            ("sharpe", ratios.sharpe),
            ("sortino", ratios.sortino),
            ("calmar", ratios.calmar),
            ("omega", ratios.omega),
            ("beta", ratios.beta),
        ] {
            near(name, got.expect("defined"), of("empyrical", name));
        }
        for (name, got) in [
            ("sharpe", ratios.sharpe),
            ("sortino", ratios.sortino),
            ("volatility", ratios.annual_volatility),
            ("omega", ratios.omega),
            ("alpha", ratios.alpha),
            ("beta", ratios.beta),
        ] {
            near(name, got.expect("defined"), of("quantstats", name));
        }
        // There it is the product of a year, here a sum like every return a year that is not compounded.
        let compounded = (1.0 + ratios.alpha.unwrap() / year).powf(year) - 1.0;
        near("alpha", compounded, of("empyrical", "compounded_alpha"));
        for package in ["empyrical", "quantstats"] {
            near("max drawdown", -ratios.max_drawdown.unwrap(), of(package, "max_drawdown"));
        }
        near("mean", ratios.annual_return.unwrap(), r.iter().sum::<f64>() * year / r.len() as f64);
    }
}

#[test]
fn drawdowns_are_those_of_quantstats() {
    let fixture = fixture();
    let mut most = 0;
    for case in fixture["cases"].as_array().unwrap() {
        let curve = equity(&numbers(&case["returns"]));
        let found = Drawdowns::of(&curve);
        let expected = |name: &str| case["expected"]["quantstats"][name].as_f64().expect("a number");
        assert_eq!(found.count as f64, expected("drawdowns"));
        near("average", -found.average.unwrap(), expected("average_drawdown"));
        // There the bars under water count, here those from the peak to the recovery: one more, where there is one.
        let open = curve.last() < curve.iter().max_by(|a, b| a.total_cmp(b));
        let recovered = found.count - usize::from(open);
        let under_water = found.average_bars.unwrap() * found.count as f64 - recovered as f64;
        near("bars", under_water / found.count as f64, expected("average_drawdown_days"));
        assert!((found.longest as f64 - expected("longest_drawdown_days") - 0.5).abs() <= 0.5);
        near("deepest", -Drawdown::deepest(&curve).relative, expected("max_drawdown"));
        most = most.max(found.count);
    }
    assert!(most > 5, "one of the curves has many drawdowns");
}

#[test]
fn trade_statistics_are_those_of_quantstats() {
    let expected = &fixture()["trades"];
    let found = TradeRatios::new(&numbers(&expected["profits"]));
    for (name, got) in TradeRatios::NAMES.iter().zip(found.values()) {
        near(name, got.expect("defined"), expected[name].as_f64().unwrap());
    }
    assert_eq!(TradeRatios::new(&[]), TradeRatios::default());
    assert_eq!(TradeRatios::new(&[1.0]).profit_factor, None, "no losing trade");
}

#[test]
fn block_lengths_are_those_of_arch() {
    for case in fixture()["cases"].as_array().unwrap() {
        // Below 1 there is nothing to draw: a block has at least one bar.
        let expected = case["expected"]["arch"]["stationary_block"].as_f64().unwrap().max(1.0);
        near("block", block_length(&numbers(&case["returns"])), expected);
    }
}

#[test]
fn deflated_ratios_are_the_papers_formulas_on_scipy() {
    let fixture = fixture();
    let year = fixture["periods"].as_f64().unwrap();
    for case in fixture["cases"].as_array().unwrap() {
        let expected = &case["expected"]["scipy"];
        let number = |name: &str| expected[name].as_f64().unwrap();
        let trials = Trials {
            count: expected["trials"].as_u64().unwrap() as usize,
            variance: Some(number("variance")),
        };
        let found = Deflated::new(&numbers(&case["returns"]), year, trials);
        near("threshold", found.threshold.unwrap() / year.sqrt(), number("threshold_per_bar"));
        near("probability", found.probability.unwrap(), number("probability"));
    }
}

/// A track that trades once: in at the first bar, out at the last.
fn track(returns: &[f64]) -> Track {
    let curve = equity(returns);
    let last = returns.len();
    let fill = |bar: usize, quantity| Fill { bar, quantity, price: curve[bar], fee: 0.0 };
    Track {
        exposure: vec![1.0; last],
        fills: vec![fill(1, 1.0), fill(last, -1.0)],
        equity: curve,
        ..Track::default()
    }
}

#[test]
fn a_judged_report_has_an_interval_around_every_ratio() {
    let fixture = fixture();
    let case = &fixture["cases"][0];
    let (strategy, holding) = (track(&numbers(&case["returns"])), track(&numbers(&case["benchmark"])));
    let bootstrap = Bootstrap { resamples: 400, ..Bootstrap::default() };
    let trials = Trials { count: 5, variance: None };
    let report = Report::of_tracks(&strategy, &holding, 252.0).unwrap();
    let report = report.judged(&strategy, &holding, &bootstrap, Some(trials));
    let confidence = report.confidence.as_ref().expect("intervals");
    let series = numbers(&case["returns"]);
    let ratios = Ratios::new(
        Series { returns: &series, benchmark: Some(&numbers(&case["benchmark"])) },
        &strategy.equity,
        252.0,
    );
    for (name, value) in Ratios::NAMES.iter().zip(ratios.values()) {
        let (value, interval) = (value.expect("defined"), confidence.strategy[*name].expect("an interval"));
        assert!(interval.low < interval.high, "{name}");
        // A resample's deepest drawdown is no unbiased one of the track's; all others lie around the track's own.
        if !["max_drawdown", "calmar"].contains(name) {
            assert!(interval.low < value && value < interval.high, "{name}: {value} outside {interval:?}");
        }
    }
    assert_eq!(report.deflated.unwrap().trials, 5);
    let text = report.to_string();
    for line in
        ["Sharpe ratio", "Sortino ratio", "Omega ratio", "Calmar ratio", "alpha a year", "beta", "win rate"]
    {
        let line = text.lines().find(|l| l.starts_with(line)).expect("a line of the table");
        assert!(line.contains('[') || line.contains("undefined"), "{line}");
    }
    assert!(text.contains("policies compared") && text.contains("400 resamples"), "{text}");
    // Through JSON, and from a file without the newer fields.
    let mut json = serde_json::to_value(&report).unwrap();
    assert_eq!(serde_json::from_value::<Report>(json.clone()).unwrap(), report);
    let fields = json["strategy"].as_object_mut().unwrap();
    for field in ["omega", "alpha", "beta", "drawdowns", "exposed", "expectancy"] {
        fields.remove(field);
    }
    assert_eq!(serde_json::from_value::<Report>(json).unwrap().strategy.omega, None);
}

#[test]
fn what_nothing_varies_in_or_is_used_up_has_no_intervals() {
    let flat = Track { equity: vec![100.0; 51], exposure: vec![0.0; 50], ..Track::default() };
    let held = track(&[0.01; 50]);
    let judged = |strategy: &Track| {
        let report = Report::of_tracks(strategy, &held, 252.0).unwrap();
        report.judged(
            strategy,
            &held,
            &Bootstrap { resamples: 200, ..Bootstrap::default() },
            Some(Trials::of(&[], 252.0, 0)),
        )
    };
    let report = judged(&flat);
    let confidence = report.confidence.as_ref().unwrap();
    for name in ["sharpe", "sortino", "calmar", "omega", "beta", "win_rate"] {
        assert_eq!(confidence.strategy[name], None, "{name}");
    }
    assert_eq!(report.deflated.unwrap().probability, None);
    let text = report.to_string();
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");

    let mut ruined = flat;
    ruined.equity[20..].fill(-1.0);
    let report = judged(&ruined);
    assert!(report.confidence.is_none() && report.deflated.is_none());
    assert_eq!((report.strategy.sharpe, report.strategy.omega, report.strategy.alpha), (None, None, None));
    assert_eq!(report.strategy.drawdowns.count, 1);
    let short = Track { equity: vec![1.0, 1.0], exposure: vec![0.0], ..Track::default() };
    let message = Report::of_tracks(&short, &held, 252.0).unwrap_err().to_string();
    assert!(message.starts_with("a track of 1 bars beside a benchmark of 50 bars"), "{message}");
}
