//! `host data check`: what a bar file holds, what is wrong with it, and what would help; what a data set of transitions holds.

mod facts;
mod lines;
mod transitions;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::bail;
use bars::{BarError, Gaps, LoadOptions, Place, Problem, Repair, Repaired, Symbol, ZeroVolume};
use serde::Serialize;
use serde_json::{Value, json};
use settings::Config;

use self::facts::facts;
use self::lines::lines;
use crate::commands::data::CheckArgs;
use crate::error::chain;
use crate::room::size;
use crate::train::market::{Market, by_key, load_options};
use crate::train::progress::{write_line, write_result};

/// Bytes from which on a file is announced.
const LARGE: u64 = 256 << 20;

/// Options tried one after the other; there are six repairs and two policies.
const ALTERNATIVES: usize = 9;

/// `host data check`.
pub(super) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    if ::transitions::looks_like_transitions(Path::new(&args.file)) {
        return self::transitions::check(args);
    }
    let mut config = args.read.configuration(&args.file)?;
    let options = load_options(&config.data)?;
    let path = Path::new(&args.file);
    // It is read several times, once for each repair that is tried.
    if let Some(bytes) = fs::metadata(path).ok().map(|facts| facts.len()).filter(|&bytes| bytes >= LARGE) {
        write_line(&format!("reading {} ({}): this takes a while", args.file, size(bytes)));
    }
    let findings = match bars::load_symbols(path, &options) {
        Ok(symbols) => {
            let (text, refusal) = verdict(&args.file, &mut config, &symbols);
            let report = facts_of(&symbols);
            Findings { refusal, report: Some(report), text, problems: vec![], remedy: None }
        }
        // No row can be looked at: there is nothing to find out beside the error.
        Err(error @ (BarError::Io { .. } | BarError::Option { .. })) => return Err(by_key(error).into()),
        Err(error) => refused(&args.file, &mut config, &options, &error)?,
    };
    let accepted = findings.refusal.is_none();
    if args.json {
        let value = json!({
            "file": args.file,
            "accepted": accepted,
            "refusal": findings.refusal,
            "problems": findings.problems,
            "remedy": findings.remedy,
            "report": findings.report,
        });
        write_result(&format!("{}\n", serde_json::to_string_pretty(&value)?))?;
    } else {
        write_result(&findings.to_text(&args.file)?)?;
    }
    match findings.refusal {
        None => Ok(()),
        Some(refusal) => bail!("`train` would refuse the file: {refusal}"),
    }
}

/// What was found out.
struct Findings {
    /// Why `train` would refuse the file.
    refusal: Option<String>,
    /// Of the file as it would be used; of a refused one with the remedy.
    report: Option<Value>,
    /// The same for people.
    text: String,
    problems: Vec<ProblemRow>,
    remedy: Option<Remedy>,
}

/// Rows that are wrong in one way.
#[derive(Debug, Serialize)]
struct ProblemRow {
    problem: &'static str,
    rows: u64,
    /// The repair asked for that deals with them.
    repaired_by: Option<String>,
    first: Vec<PlaceRow>,
}

/// A row with its text; rows of Parquet files have none.
#[derive(Debug, Serialize)]
struct PlaceRow {
    place: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Options that were tried, one after the other, until the file could be loaded.
#[derive(Debug, Serialize)]
struct Remedy {
    /// Whether it could be loaded then.
    loads: bool,
    /// Why `train` would refuse it even so, for example because too few bars are left.
    refusal: Option<String>,
    /// Options for the command line, beside those given.
    options: Vec<String>,
    /// The error of each try: the first of its kind in the file, with place and value.
    errors: Vec<String>,
}

fn refused(
    file: &str,
    config: &mut Config,
    options: &LoadOptions,
    error: &BarError,
) -> anyhow::Result<Findings> {
    let (mut remedy, loaded) = find_remedy(file, options);
    let problems = match survey(file, options)? {
        Some(repaired) => problem_rows(file, options, &repaired)?,
        None => vec![],
    };
    let (report, text) = match &loaded {
        Some(symbols) => {
            let (text, refusal) = verdict(file, config, symbols);
            remedy.refusal = refusal;
            (Some(facts_of(symbols)), text)
        }
        None => (None, String::new()),
    };
    Ok(Findings { refusal: Some(error.to_string()), report, text, problems, remedy: Some(remedy) })
}

/// What there is to say about loaded bars, and why `train` would refuse them: it does with them here all that it does
/// before it trains (the split, the features, the widths).
fn verdict(file: &str, config: &mut Config, symbols: &[Symbol]) -> (String, Option<String>) {
    match Market::of_symbols(config, symbols) {
        // Its text is the reports and the parts.
        Ok(market) => (market.text, None),
        Err(error) => {
            let reports = symbols.iter().map(|symbol| symbol.loaded.report.to_string()).collect();
            (reports, Some(format!("{file}: {}", chain(&error))))
        }
    }
}

/// The facts of the one symbol, or of each.
fn facts_of(symbols: &[Symbol]) -> Value {
    if let [only] = symbols {
        return facts(&only.loaded.report);
    }
    let each =
        symbols.iter().map(|symbol| json!({ "symbol": symbol.name, "report": facts(&symbol.loaded.report) }));
    json!({ "symbols": each.collect::<Vec<_>>() })
}

/// Everything that is wrong with rows, by leaving out whatever can be left out; none if the file as a whole cannot be
/// understood.
fn survey(file: &str, options: &LoadOptions) -> anyhow::Result<Option<Repaired>> {
    let mut all = options.clone().with_repairs([Repair::DropBadRows, Repair::Sort]);
    all.repair.remove(&Repair::DropDuplicates);
    if !all.repairs(Repair::KeepLast) {
        all.repair.insert(Repair::KeepFirst);
    }
    if all.zero_volume == ZeroVolume::Error {
        all.zero_volume = ZeroVolume::Drop;
    }
    all.gaps = Gaps::Split;
    if let Ok(symbols) = bars::load_symbols(Path::new(file), &all) {
        let mut repaired = Repaired::default();
        symbols.iter().for_each(|symbol| repaired.add(&symbol.loaded.report.repaired));
        return Ok(Some(repaired));
    }
    // A device or a pipe has no end, or can be read only once.
    if !Path::new(file).is_file() {
        return Ok(None);
    }
    // Too little is left for a calendar, but the rows can be counted.
    Ok(bars::read(file, &fs::read(file)?, &all).ok().map(|(_, repaired)| repaired))
}

fn problem_rows(file: &str, options: &LoadOptions, repaired: &Repaired) -> anyhow::Result<Vec<ProblemRow>> {
    let places = repaired.dropped.values().flat_map(|dropped| &dropped.examples);
    let wanted = places.filter_map(|place| match place {
        Place::Line(line) => Some(*line),
        Place::Row(_) => None,
    });
    let texts = lines(Path::new(file), &wanted.collect())?;
    let mut rows: Vec<ProblemRow> = repaired
        .dropped
        .iter()
        .map(|(&problem, dropped)| ProblemRow {
            problem: problem.text(),
            rows: dropped.count,
            repaired_by: repaired_by(options, problem),
            first: dropped
                .examples
                .iter()
                .map(|place| PlaceRow {
                    place: place.to_string(),
                    text: match place {
                        Place::Line(line) => texts.get(line).cloned(),
                        Place::Row(_) => None,
                    },
                })
                .collect(),
        })
        .collect();
    if repaired.out_of_order > 0 {
        rows.push(ProblemRow {
            problem: Problem::OutOfOrder.text(),
            rows: repaired.out_of_order,
            repaired_by: repaired_by(options, Problem::OutOfOrder),
            first: vec![],
        });
    }
    if repaired.widened > 0 {
        rows.push(ProblemRow {
            problem: "a little outside low..high",
            rows: repaired.widened,
            repaired_by: Some(Repair::WidenRange.to_string()),
            first: vec![],
        });
    }
    Ok(rows)
}

/// The option given that deals with all rows of a problem.
fn repaired_by(options: &LoadOptions, problem: Problem) -> Option<String> {
    let repairs: &[Repair] = match problem {
        Problem::OutOfOrder => &[Repair::Sort],
        Problem::Duplicate => &[Repair::KeepFirst, Repair::KeepLast],
        Problem::ZeroVolume => {
            return (options.zero_volume == ZeroVolume::Drop).then(|| "zero_volume = drop".to_owned());
        }
        _ => &[Repair::DropBadRows],
    };
    repairs.iter().find(|repair| options.repairs(**repair)).map(ToString::to_string)
}

/// Tries the gentlest option against each error in turn. What is suggested has been tried, not guessed.
fn find_remedy(file: &str, asked: &LoadOptions) -> (Remedy, Option<Vec<Symbol>>) {
    let mut options = asked.clone();
    let mut errors = Vec::new();
    let mut loaded = None;
    for _ in 0..ALTERNATIVES {
        match bars::load_symbols(Path::new(file), &options) {
            Ok(done) => {
                loaded = Some(done);
                break;
            }
            Err(error) => {
                errors.push(error.to_string());
                if !relax(&mut options, error.row().map(|row| row.problem)) {
                    break;
                }
            }
        }
    }
    if let Some(loaded) = &loaded
        && loaded.iter().all(|symbol| symbol.loaded.report.repaired.widened == 0)
        && !asked.repairs(Repair::WidenRange)
    {
        // No row was so little outside that it helped.
        options.repair.remove(&Repair::WidenRange);
    }
    let suggested = if loaded.is_some() { differences(asked, &options) } else { vec![] };
    (Remedy { loads: loaded.is_some(), refusal: None, options: suggested, errors }, loaded)
}

/// One more option against a problem; false if there is none.
fn relax(options: &mut LoadOptions, problem: Option<Problem>) -> bool {
    match problem {
        None if options.gaps == Gaps::Error => {
            options.gaps = Gaps::Split;
            true
        }
        None => false,
        Some(Problem::OutOfOrder) => options.repair.insert(Repair::Sort),
        Some(Problem::Duplicate) if options.repair.remove(&Repair::DropDuplicates) => {
            options.repair.insert(Repair::KeepFirst)
        }
        Some(Problem::Duplicate) => options.repair.insert(Repair::DropDuplicates),
        Some(Problem::ZeroVolume) => {
            options.zero_volume = ZeroVolume::Report;
            true
        }
        Some(Problem::OutsideRange) if options.repair.insert(Repair::WidenRange) => true,
        Some(_) => options.repair.insert(Repair::DropBadRows),
    }
}

fn differences(asked: &LoadOptions, options: &LoadOptions) -> Vec<String> {
    let mut texts = Vec::new();
    if options.repair != asked.repair {
        let names: Vec<String> = options.repair.iter().map(|repair| format!("\"{repair}\"")).collect();
        texts.push(match names.as_slice() {
            [one] => format!("--set data.repair={}", one.trim_matches('"')),
            more => format!("--set 'data.repair=[{}]'", more.join(", ")),
        });
    }
    if options.zero_volume != asked.zero_volume {
        texts.push("--set data.zero_volume=report".into());
    }
    if options.gaps != asked.gaps {
        texts.push("--set data.gaps=split".into());
    }
    texts
}

impl Findings {
    fn to_text(&self, file: &str) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let Some(refusal) = &self.refusal else {
            write!(out, "{}", self.text)?;
            writeln!(out, "  verdict     `train` would use this file")?;
            return Ok(text);
        };
        let Some(remedy) = &self.remedy else {
            write!(out, "{}", self.text)?;
            writeln!(out, "  verdict     refused: {refusal}")?;
            return Ok(text);
        };
        writeln!(out, "{file}")?;
        writeln!(out, "  verdict     refused: {refusal}")?;
        for row in &self.problems {
            let by = row.repaired_by.as_ref().map_or(String::new(), |by| format!(", dealt with by {by}"));
            writeln!(out, "  wrong       {} row(s): {}{by}", row.rows, row.problem)?;
            for place in &row.first {
                let shown = place.text.as_deref().map_or(String::new(), |text| format!(": {text}"));
                writeln!(out, "              {}{shown}", place.place)?;
            }
            if !row.first.is_empty() && row.rows > row.first.len() as u64 {
                writeln!(out, "              and {} more", row.rows - row.first.len() as u64)?;
            }
        }
        // The first error is the refusal.
        for error in remedy.errors.iter().skip(1) {
            writeln!(out, "  then        {error}")?;
        }
        if remedy.loads {
            writeln!(out, "  would help  {}", remedy.options.join(" "))?;
            if remedy.options.iter().any(|option| option.contains("keep-first")) {
                writeln!(out, "              (or keep-last: rows of one time have different values)")?;
            }
            writeln!(out, "\nWith that:\n")?;
            write!(out, "{}", self.text)?;
            match &remedy.refusal {
                None => writeln!(out, "  verdict     with that `train` would use this file, without it not")?,
                Some(refusal) => writeln!(out, "  verdict     refused even so: {refusal}")?,
            }
        } else {
            writeln!(out, "  would help  no repair: only what the last error names")?;
        }
        Ok(text)
    }
}
