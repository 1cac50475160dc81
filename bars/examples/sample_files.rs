//! Writes the small bar files of `tests/data` from the synthetic market: the forms in which a currency
//! broker and an equity portal export theirs, and Parquet.
//!
//! `cargo run -p bars --example sample_files -- tests/data`

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use bars::synthetic::Kind;
use bars::{Bars, Synthetic, write_parquet};
use jiff::Timestamp;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let folder = env::args().nth(1).ok_or("usage: sample_files FOLDER")?;
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let hourly = Synthetic { seed: 2017, bars: 1500, kind: Kind::Regimes }.generate()?;
    fs::write(folder.join("currency_1h.csv"), currency(&hourly)?)?;
    fs::write(folder.join("equity_1d.csv"), equity()?)?;
    let parquet = fs::File::create(folder.join("currency_1h.parquet"))?;
    write_parquet("currency_1h.parquet", &hourly, parquet)?;
    Ok(())
}

/// Day first, dots, milliseconds, no offset; prices near 1 with five digits.
fn currency(bars: &Bars) -> Result<String, Failure> {
    let mut text = "Time,Open,High,Low,Close,Volume\n".to_owned();
    for i in 0..bars.len() {
        let bar = bars.bar(i);
        let time = Timestamp::from_millisecond(bar.time_ms)?.strftime("%d.%m.%Y %H:%M:%S%.3f");
        let [open, high, low, close] = [bar.open, bar.high, bar.low, bar.close].map(|price| price / 95.0);
        let volume = bar.volume * 1e5 + 0.3;
        writeln!(text, "{time},{open:.5},{high:.5},{low:.5},{close:.5},{volume:.1}")?;
    }
    Ok(text)
}

/// Weekdays from 2014 on with two holidays, ISO dates, an adjusted close that steps down by a dividend of 2%
/// at bar 300.
fn equity() -> Result<String, Failure> {
    let bars = Synthetic { seed: 2014, bars: 600 * 24, kind: Kind::Regimes }.generate()?;
    let mut text = "Date,Open,High,Low,Close,Adj Close,Volume\n".to_owned();
    let mut day = Timestamp::from_second(1_388_620_800)?;
    let holidays = ["2014-07-04", "2014-12-25"];
    let mut written = 0;
    while written < 600 {
        let date = day.strftime("%Y-%m-%d").to_string();
        let weekday = day.strftime("%u").to_string();
        day += jiff::SignedDuration::from_hours(24);
        if weekday == "6" || weekday == "7" || holidays.contains(&date.as_str()) {
            continue;
        }
        // A day is 24 hourly bars of the synthetic market in one.
        let hours = written * 24..(written + 1) * 24;
        let high = bars.high[hours.clone()].iter().copied().fold(0.0, f64::max);
        let low = bars.low[hours.clone()].iter().copied().fold(f64::INFINITY, f64::min);
        let (open, close) = (bars.open[hours.start], bars.close[hours.end - 1]);
        let volume: f64 = bars.volume[hours].iter().sum();
        let factor = if written < 300 { 0.98 } else { 1.0 };
        let [open, high, low, close] = [open, high, low, close].map(|price| price * 5.0);
        let adjusted = close * factor;
        writeln!(text, "{date},{open:.6},{high:.6},{low:.6},{close:.6},{adjusted:.6},{volume:.0}")?;
        written += 1;
    }
    Ok(text)
}
