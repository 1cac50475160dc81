//! From the section `[data]` to bars.

use std::path::Path;
use std::str::FromStr;

use anyhow::bail;
use bars::synthetic::{Kind, Synthetic};
use bars::{BarError, Gaps, LoadOptions, NumberFormat, Price, Repair, Symbol, TimeFormat, ZeroVolume};
use settings::Data;

/// Loads the bar files of a configuration, or makes the synthetic market.
///
/// # Errors
/// Whatever is wrong with a file, with its name; symbols that cannot be traded together.
pub fn load(data: &Data) -> anyhow::Result<Vec<Symbol>> {
    let options = load_options(data)?;
    load_with(data, &options).map_err(|error| match error.downcast::<BarError>() {
        Ok(error) => by_key(error).into(),
        Err(error) => error,
    })
}

/// The same error with the key of the configuration in place of the option's name in the crate `bars`.
pub fn by_key(error: BarError) -> BarError {
    let BarError::Option { option, value, expected } = error else { return error };
    let key = match option.as_ref() {
        "bars" => "data.synthetic_bars",
        "time_format" => "data.date_format",
        "window" => "market.window",
        "n_step" => "replay.n_step",
        name @ ("repair" | "delimiter" | "interval_ms" | "numbers" | "columns" | "price") => {
            return BarError::Option { option: format!("data.{name}").into(), value, expected };
        }
        _ => return BarError::Option { option, value, expected },
    };
    BarError::Option { option: key.into(), value, expected }
}

fn load_with(data: &Data, options: &LoadOptions) -> anyhow::Result<Vec<Symbol>> {
    let mut files: Vec<&String> = data.files.iter().collect();
    match (&data.file, files.first()) {
        (Some(file), Some(_)) => bail!("data.file = \"{file}\" beside data.files: give one of the two"),
        (Some(file), None) => files.push(file),
        (None, _) => {}
    }
    if files.is_empty() {
        let name = format!("synthetic market ({}, seed {})", data.synthetic, data.synthetic_seed);
        let loaded = bars::from_bars(&name, synthetic(data)?.generate()?, options)?;
        return Ok(vec![Symbol { name: data.synthetic.clone(), loaded }]);
    }
    let mut symbols = Vec::new();
    for file in files {
        symbols.extend(bars::load_symbols(Path::new(file), options)?);
    }
    bars::symbols::check_symbols(&symbols)?;
    Ok(symbols)
}

/// The synthetic market that the section `[data]` means.
pub fn synthetic(data: &Data) -> anyhow::Result<Synthetic> {
    let kind = match data.synthetic.as_str() {
        "regimes" => Kind::Regimes,
        "martingale" => Kind::Martingale,
        other => bail!("data.synthetic = \"{other}\": expected regimes or martingale"),
    };
    Ok(Synthetic { seed: data.synthetic_seed, bars: data.synthetic_bars, kind })
}

/// The options of the `bars` crate that the section `[data]` means.
pub fn load_options(data: &Data) -> anyhow::Result<LoadOptions> {
    let price = match data.price.as_str() {
        "raw" => Price::Raw,
        "adjusted" => Price::Adjusted,
        other => bail!("data.price = \"{other}\": expected raw or adjusted"),
    };
    let zero_volume = match data.zero_volume.as_str() {
        "report" => ZeroVolume::Report,
        "error" => ZeroVolume::Error,
        "drop" => ZeroVolume::Drop,
        other => bail!("data.zero_volume = \"{other}\": expected report, error or drop"),
    };
    let gaps = match (data.gaps.as_str(), data.gaps.strip_prefix("fill:").map(str::parse)) {
        ("split", _) => Gaps::Split,
        ("error", _) => Gaps::Error,
        (_, Some(Ok(bars))) => Gaps::Fill(bars),
        (other, _) => {
            bail!("data.gaps = \"{other}\": expected split, error, or fill:N with a number of bars")
        }
    };
    let repairs = data.repair.iter().map(|name| Repair::from_str(name)).collect::<Result<Vec<_>, _>>();
    let repairs = repairs.map_err(by_key)?;
    let options = LoadOptions {
        delimiter: data.delimiter,
        header: data.header,
        skip_lines: data.skip_lines,
        columns: data.columns.clone(),
        symbol_column: data.symbol_column.clone(),
        time_format: data.date_format.as_deref().map(TimeFormat::from_str).transpose().map_err(by_key)?,
        numbers: data.numbers.as_deref().map(NumberFormat::from_str).transpose().map_err(by_key)?,
        price,
        zero_volume,
        gaps,
        interval_ms: data.interval_ms,
        ..LoadOptions::default()
    };
    Ok(options.with_repairs(repairs))
}
