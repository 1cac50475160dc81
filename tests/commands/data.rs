use std::fs;
use std::path::Path;

use bars::synthetic::Kind;
use bars::{Bar, Bars, LoadOptions, Price, Synthetic, load, read};
use tempfile::tempdir;

use crate::{host, names, sample, text};

fn bars_of(path: &str) -> Bars {
    load(Path::new(path), &LoadOptions::default()).expect("a good file").bars
}

#[track_caller]
fn assert_same(a: &Bars, b: &Bars) {
    assert_eq!((a.len(), a.has_volume), (b.len(), b.has_volume));
    // Of all bits, unlike `==`, for which 0 and -0 are equal.
    assert_eq!(a.content_hash(), b.content_hash());
}

#[test]
fn a_synthetic_market_is_the_built_in_one_and_the_same_file_again() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    for ending in ["csv", "parquet"] {
        let (one, two, other) =
            (file(&format!("1.{ending}")), file(&format!("2.{ending}")), file(&format!("3.{ending}")));
        for out in [&one, &two] {
            let said = host(&["data", "synth", out, "--seed", "7", "--bars", "900"]).good();
            assert!(said.contains("900 bars"), "{said}");
        }
        let martingale = ["data", "synth", &other, "--seed", "7", "--bars", "900", "--kind", "martingale"];
        host(&martingale).good();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
        for (path, kind) in [(&one, Kind::Regimes), (&other, Kind::Martingale)] {
            assert_same(&bars_of(path), &Synthetic { seed: 7, bars: 900, kind }.generate().unwrap());
        }
    }
    let preset = file("preset.csv");
    host(&["data", "synth", &preset]).good();
    let data = settings::Data::default();
    let built_in = Synthetic { seed: data.synthetic_seed, bars: data.synthetic_bars, kind: Kind::Regimes };
    assert_same(&bars_of(&preset), &built_in.generate().unwrap());
}

#[test]
fn converting_there_and_back_keeps_every_bit() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    for name in ["currency_1h.csv", "currency_1h.parquet", "equity_1d.csv"] {
        let (table, plain) = (file(&format!("{name}.parquet")), file(&format!("{name}.CSV")));
        host(&["data", "convert", &sample(name), &table]).good();
        host(&["data", "convert", &table, &plain]).good();
        let bars = bars_of(&sample(name));
        assert_same(&bars_of(&table), &bars);
        assert_same(&bars_of(&plain), &bars);
        let written = fs::read_to_string(&plain).unwrap();
        assert!(written.starts_with("timestamp,open,high,low,close,volume\n2"), "{}", &written[..80]);
        assert!(written.lines().nth(1).unwrap().split(',').next().unwrap().ends_with('Z'));
    }
}

/// Values at the ends of what is allowed, values that need 17 digits, a negative zero; and no volume at all.
#[test]
fn odd_values_survive_too() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    let mut odd = Bars { has_volume: true, ..Bars::default() };
    // By less than the factor that no market jumps by: up to 1e30, down to 1e-30, and back.
    let ladder = (0..=6).chain((-6..6).rev()).map(|step| 10f64.powi(5 * step));
    let back = [1e-25, 1e-20, f64::EPSILON, 1e-11, 1e-6, 1.0 / 3.0, 1e5, 123_456_789.123_456_79];
    for (i, price) in [0.1 + 0.2].into_iter().chain(ladder).chain(back).enumerate() {
        let volume = [-0.0, 1e-30, 0.0, 1e30, 5.0, 0.1][i % 6];
        let time_ms = -2_208_988_800_000 + 60_001 * i as i64;
        odd.push(Bar { time_ms, open: price, high: price, low: price, close: price, volume });
    }
    let mut without = Bars { has_volume: false, ..odd.clone() };
    without.volume.fill(0.0);
    for (name, bars) in [("with", &odd), ("without", &without)] {
        let input = file(&format!("{name}.parquet"));
        bars::write_parquet(&input, bars, fs::File::create(&input).unwrap()).unwrap();
        let (plain, table) = (file(&format!("{name}.csv")), file(&format!("{name}_again.parquet")));
        host(&["data", "convert", &input, &plain]).good();
        host(&["data", "convert", &plain, &table]).good();
        for path in [&plain, &table] {
            let (again, _) = read(path, &fs::read(path).unwrap(), &LoadOptions::default()).unwrap();
            assert_same(&again, bars);
        }
    }
}

#[test]
fn what_was_asked_for_is_done_to_the_bars() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    let adjusted = file("adjusted.csv");
    host(&["data", "convert", &sample("equity_1d.csv"), &adjusted, "--set", "data.price=adjusted"]).good();
    let options = LoadOptions { price: Price::Adjusted, ..LoadOptions::default() };
    let expected = load(Path::new(&sample("equity_1d.csv")), &options).unwrap().bars;
    assert_same(&bars_of(&adjusted), &expected);

    let broken = file("broken.csv");
    let good = fs::read_to_string(sample("currency_1h.csv")).unwrap();
    fs::write(&broken, good.replacen("1.05204,1.05204", "0,1.05204", 1)).unwrap();
    let repaired = file("repaired.parquet");
    let (err, _) = host(&["data", "convert", &broken, &repaired]).refused();
    assert!(err.contains("line 3") && err.contains("price is not positive"), "{err}");
    assert_eq!(names(folder.path()), ["adjusted.csv", "broken.csv"]);
    let said = host(&["data", "convert", &broken, &repaired, "--set", "data.repair=drop-bad-rows"]).good();
    assert!(said.contains("1 row(s) left out"), "{said}");
    assert_eq!(bars_of(&repaired).len(), 1499);
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    let there = file("there.csv");
    fs::write(&there, "mine").unwrap();
    let convert = ["data", "convert", &sample("currency_1h.csv"), &there];
    for arguments in [&convert[..], &["data", "synth", &there][..]] {
        let (err, _) = host(arguments).refused();
        assert!(err.contains("there.csv exists already"), "{err}");
    }
    // A file onto itself is one that exists.
    let own = file("own.csv");
    host(&["data", "synth", &own, "--bars", "300"]).good();
    host(&["data", "convert", &own, &own]).refused();
    for name in ["bars.txt", "bars", "bars.csv.gz"] {
        let (err, _) = host(&["data", "synth", &file(name)]).refused();
        assert!(err.contains(".csv or .parquet"), "{err}");
    }
    let (err, _) = host(&["data", "synth", &file("nowhere/bars.csv")]).refused();
    assert!(err.contains("nowhere/bars.csv"), "{err}");
    let (err, _) = host(&["data", "synth", &file("none.csv"), "--bars", "0"]).refused();
    assert!(err.contains("bars = 0"), "{err}");
    assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
    assert_eq!(names(folder.path()), ["own.csv", "there.csv"]);
}
