//! `host predict`: the decision for the newest bar.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use bars::Symbol;
use clap::Args;
use serde_json::json;

use crate::commands::set_files;
use crate::predict::{Holding, Prediction, TAUS, predict};
use crate::train::checkpoint::Checkpoint;
use crate::train::market::load;
use crate::train::progress::write_result;

/// `predict`.
#[derive(Clone, Debug, Args)]
pub struct PredictArgs {
    /// Policy: a checkpoint, or the folder of a run (its best one).
    #[arg(value_name = "CHECKPOINT|RUN")]
    pub checkpoint: PathBuf,
    /// Bar file with the newest bar, read as at the training; repeated for several symbols. The training's own bars when
    /// absent.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<String>,
    /// Of several symbols this one alone.
    #[arg(long, value_name = "NAME")]
    pub symbol: Option<String>,
    /// Position held now, as a fraction of the equity, negative when short.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, allow_negative_numbers = true)]
    pub exposure: f64,
    /// Average entry price of the position that --exposure says, in the file's prices; the newest close when absent.
    #[arg(long, value_name = "PRICE", requires = "exposure", allow_negative_numbers = true)]
    pub entry: Option<f64>,
    /// Bars since the last trade.
    #[arg(long, value_name = "BARS", default_value_t = 0, allow_negative_numbers = true)]
    pub bars_since_trade: u32,
    /// How far the equity is below its highest, as a fraction of that.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0, allow_negative_numbers = true)]
    pub drawdown: f64,
    /// The last order was filled.
    #[arg(long)]
    pub filled: bool,
    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `host predict`.
pub fn run(args: &PredictArgs) -> anyhow::Result<()> {
    let path = Checkpoint::file_of(&args.checkpoint)?;
    let checkpoint = Checkpoint::load(&path)?;
    checkpoint.record()?;
    let mut data = checkpoint.config.data.clone();
    set_files(&mut data, &args.data);
    let symbols = chosen(load(&data)?, args.symbol.as_deref())?;
    let holding = Holding {
        exposure: args.exposure,
        entry: args.entry,
        bars_since_trade: args.bars_since_trade,
        drawdown: args.drawdown,
        filled: args.filled,
    };
    if symbols.len() > 1 && holding != Holding::default() {
        bail!("{} symbols, and one position: name the symbol that it is of with --symbol", symbols.len());
    }
    // A clock before 1970 tells nothing about a bar's age.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let predictions = symbols
        .iter()
        .map(|symbol| predict(&checkpoint, symbol, &holding, now))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (file, epoch) = (path.display().to_string(), checkpoint.provenance.epoch);
    if args.json {
        let value = json!({
            "checkpoint": { "file": file, "epoch": epoch },
            "taus": TAUS,
            "decisions": predictions,
        });
        return write_result(&format!("{}\n", serde_json::to_string_pretty(&value)?));
    }
    let texts = predictions.iter().map(|prediction| as_text(prediction, &file, epoch));
    write_result(&texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// All symbols, or the one of that name.
fn chosen(symbols: Vec<Symbol>, name: Option<&str>) -> anyhow::Result<Vec<Symbol>> {
    let Some(name) = name else { return Ok(symbols) };
    let names = symbols.iter().map(|symbol| symbol.name.as_str()).collect::<Vec<_>>().join(", ");
    let found: Vec<Symbol> = symbols.into_iter().filter(|symbol| symbol.name == name).collect();
    if found.is_empty() {
        bail!("there is no symbol {name} in the bars; there are: {names}");
    }
    Ok(found)
}

fn as_text(p: &Prediction, checkpoint: &str, epoch: usize) -> Result<String, std::fmt::Error> {
    let (bar, order) = (&p.bar, &p.order);
    let mut text = String::new();
    let out = &mut text;
    writeln!(out, "{}: decision at the close of {} ({} of {})", p.symbol, bar.time, bar.close, p.file)?;
    writeln!(out, "  policy      epoch {epoch} of {checkpoint}")?;
    if order.trade == 0.0 {
        writeln!(out, "  order       none: the exposure is {:+.2} and stays", order.exposure)?;
    } else {
        writeln!(
            out,
            "  order       {} order for {:+.3} of equity: {:.0}% of the way from exposure {:+.2} to {:+.2}",
            order.kind,
            order.trade,
            100.0 * order.urgency,
            order.exposure,
            order.target_exposure
        )?;
    }
    let uncertainty = &p.uncertainty;
    if let Some(std) = uncertainty.ensemble_std {
        let members: Vec<String> = uncertainty.ensemble.iter().map(|v| format!("{v:.3}")).collect();
        writeln!(out, "  ensemble    value {} (std {std:.3})", members.join(", "))?;
    }
    if let Some(probability) = uncertainty.error_above_median {
        writeln!(out, "  confidence  an error above the median with probability {probability:.2}")?;
    }
    writeln!(out, "  values      expected discounted return; quantiles 5%, 25%, 50%, 75%, 95%")?;
    let with_iqn = p.branches.iter().flat_map(|b| &b.actions).any(|a| a.iqn.is_some());
    for branch in &p.branches {
        writeln!(
            out,
            "  {} (best by {:.4})\n     {:<9}{:>9}{:>8}{:>7}  {:<40}{}",
            branch.branch,
            branch.gap,
            "",
            "Q",
            "std",
            "P(<0)",
            "C51 quantiles",
            if with_iqn { "IQN quantiles" } else { "" }
        )?;
        for (i, action) in branch.actions.iter().enumerate() {
            let mark = if i == branch.chosen { '>' } else { ' ' };
            let numbers = |z: &[f64]| z.iter().map(|z| format!("{z:8.3}")).collect::<String>();
            let line = format!(
                "   {mark} {:<9}{:>9.4}{:>8.3}{:>7.2}  {:<40}{}",
                action.action,
                action.q,
                action.std,
                action.below_zero,
                numbers(&action.quantiles),
                action.iqn.as_deref().map_or(String::new(), numbers)
            );
            writeln!(out, "{}", line.trim_end())?;
        }
    }
    for note in &p.notes {
        writeln!(out, "  note        {note}")?;
    }
    Ok(text)
}
