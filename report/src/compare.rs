//! Several runs side by side: their results with mean and spread, what of their configuration differs, their curves.

use std::collections::BTreeSet;
use std::fmt;

use backtest::{Metrics, returns};
use maud::html;

use crate::ReportError;
use crate::page::{document, figure};
use crate::plot::{Plot, Series};
use crate::plots;
use crate::run::RunData;

/// One quantity over all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// Its name.
    pub name: &'static str,
    /// Factor and unit with which it is shown.
    percent: bool,
    /// Its value in each run; `None` where it is undefined or the run was not tested.
    pub values: Vec<Option<f64>>,
}

impl Quantity {
    /// Mean over the runs that have it.
    pub fn mean(&self) -> Option<f64> {
        returns::mean(&self.defined())
    }

    /// Standard deviation (ddof 1) over the runs that have it; undefined with fewer than two.
    pub fn deviation(&self) -> Option<f64> {
        returns::deviation(&self.defined())
    }

    fn defined(&self) -> Vec<f64> {
        self.values.iter().flatten().copied().collect()
    }

    fn text(&self, value: Option<f64>) -> String {
        match value {
            None => "undefined".into(),
            // No minus before a zero.
            Some(value) if self.percent => format!("{:.2}%", 100.0 * value + 0.0),
            Some(value) => format!("{:.3}", value + 0.0),
        }
    }

    /// Mean, spread, lowest, highest.
    fn summary(&self) -> [String; 4] {
        let defined = self.defined();
        let lowest = defined.iter().copied().reduce(f64::min);
        let highest = defined.iter().copied().reduce(f64::max);
        [self.mean(), self.deviation(), lowest, highest].map(|value| self.text(value))
    }
}

/// Runs side by side. `Display` is an aligned table.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    runs: &'a [RunData],
    /// The quantities.
    pub quantities: Vec<Quantity>,
    /// Keys of the configuration that are not the same in all runs, with each run's value.
    pub differences: Vec<(String, Vec<String>)>,
}

impl<'a> Comparison<'a> {
    /// Of runs in the order in which they are shown.
    pub fn new(runs: &'a [RunData]) -> Self {
        let of = |name, percent, value: fn(&Metrics) -> Option<f64>| Quantity {
            name,
            percent,
            values: runs.iter().map(|run| value(&run.test.as_ref()?.report.strategy)).collect(),
        };
        let mut quantities = vec![
            of("total return", true, |m| Some(m.total_return)),
            of("CAGR", true, |m| m.cagr),
            of("annualised volatility", true, |m| m.annual_volatility),
            of("Sharpe ratio", false, |m| m.sharpe),
            of("Sortino ratio", false, |m| m.sortino),
            of("Calmar ratio", false, |m| m.calmar),
            of("Omega ratio", false, |m| m.omega),
            of("alpha a year", true, |m| m.alpha),
            of("beta", false, |m| m.beta),
            of("max drawdown", true, |m| Some(m.max_drawdown.relative)),
            of("average gross exposure", true, |m| Some(m.average_gross_exposure)),
            of("turnover per year", false, |m| Some(m.turnover)),
            of("closed trades", false, |m| Some(m.trades as f64)),
            of("win rate", true, |m| m.win_rate),
            of("profit factor", false, |m| m.profit_factor),
            of("fees paid", false, |m| Some(m.fees)),
        ];
        let holding = |run: &RunData| Some(run.test.as_ref()?.report.buy_and_hold.total_return);
        let values = runs.iter().map(holding).collect();
        quantities.push(Quantity { name: "buy-and-hold return", percent: true, values });
        let best = |run: &RunData| {
            run.history.by_epoch("validation_sharpe").into_iter().map(|(_, y)| y).reduce(f64::max)
        };
        let values = runs.iter().map(best).collect();
        quantities.push(Quantity { name: "best validation Sharpe", percent: false, values });
        Self { runs, quantities, differences: differences(runs) }
    }

    /// The page: one HTML file with everything in it.
    ///
    /// # Errors
    /// [`ReportError::Plot`] for a plot that could not be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        let names = self.names();
        let figures = self.plots().iter().map(figure).collect::<Result<Vec<_>, _>>()?;
        let body = html! {
            header { h1 { (self.runs.len()) " runs" } }
            section {
                h2 { "Results on the test part" }
                div.scroll {
                    table.metrics {
                        thead {
                            tr {
                                th { "metric" }
                                th.number { "mean" } th.number { "standard deviation" } th.number { "lowest" } th.number { "highest" }
                                @for name in &names { th.number { (name) } }
                            }
                        }
                        tbody {
                            @for quantity in &self.quantities {
                                tr {
                                    td { (quantity.name) }
                                    @for text in quantity.summary() { td.number { (text) } }
                                    @for value in &quantity.values { td.number.interval { (quantity.text(*value)) } }
                                }
                            }
                        }
                    }
                }
            }
            section { h2 { "Curves" } div.figures { @for figure in &figures { (figure) } } }
            section {
                h2 { "What differs in the configuration" }
                @if self.differences.is_empty() { p.none { "Nothing." } }
                @else {
                    div.scroll {
                        table.metrics {
                            thead { tr { th { "key" } @for name in &names { th.number { (name) } } } }
                            tbody {
                                @for (key, values) in &self.differences {
                                    tr { td { code { (key) } } @for value in values { td.number { (value) } } }
                                }
                            }
                        }
                    }
                }
            }
        };
        Ok(document(&format!("{} Stepgraph runs", self.runs.len()), &body))
    }

    /// The runs' names: of their folders, with the way there where two are called the same.
    fn names(&self) -> Vec<String> {
        let short: Vec<String> = self.runs.iter().map(RunData::name).collect();
        let unique = short.iter().collect::<BTreeSet<_>>().len() == short.len();
        if unique { short } else { self.runs.iter().map(|run| run.folder.display().to_string()).collect() }
    }

    /// One curve for each run.
    fn plots(&self) -> Vec<Plot> {
        let each = |id: &str, from: fn(&RunData) -> Vec<Plot>, title: &str| {
            let mut plots: Vec<Plot> = Vec::new();
            for (i, (run, name)) in self.runs.iter().zip(self.names()).enumerate() {
                let Some(mut plot) = from(run).into_iter().find(|plot| plot.id == id) else { continue };
                // The strategy is drawn last.
                let Some(series) = plot.series.pop() else { continue };
                let series = Series { name, colour: i, style: Default::default(), ..series };
                match plots.first_mut() {
                    Some(plot) => plot.series.push(series),
                    None => {
                        plot.title = title.into();
                        plot.series = vec![series];
                        plots.push(plot);
                    }
                }
            }
            plots
        };
        let mut plots = each("equity", plots::backtest, "Equity of each run");
        plots.extend(each("validation", plots::training, "Validation of each run"));
        plots
    }
}

fn differences(runs: &[RunData]) -> Vec<(String, Vec<String>)> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.config.keys()).collect();
    let values = |key: &String| -> Vec<String> {
        runs.iter().map(|run| run.config.get(key).cloned().unwrap_or_default()).collect()
    };
    let all = keys.into_iter().map(|key| (key.clone(), values(key)));
    all.filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names().into_iter();
        let heads = ["mean", "std", "lowest", "highest"].map(String::from).into_iter();
        let mut rows: Vec<Vec<String>> =
            vec![std::iter::once(format!("{} runs", self.runs.len())).chain(heads).chain(names).collect()];
        for quantity in &self.quantities {
            let name = std::iter::once(quantity.name.to_owned());
            let values = quantity.values.iter().map(|value| quantity.text(*value));
            rows.push(name.chain(quantity.summary()).chain(values).collect());
        }
        for (key, values) in &self.differences {
            let blank = std::iter::repeat_n(String::new(), 4);
            rows.push(std::iter::once(key.clone()).chain(blank).chain(values.iter().cloned()).collect());
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        for row in &rows {
            write!(f, "{:<1$}", row[0], widths[0])?;
            for (text, width) in row.iter().zip(&widths).skip(1) {
                write!(f, "  {text:>width$}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
