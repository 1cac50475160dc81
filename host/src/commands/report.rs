//! `host report`: the page of a run, or several runs side by side.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use report::compare::Comparison;
use report::run::RunData;

use crate::train::checkpoint::write_atomically;
use crate::train::progress::write_result;
use crate::train::record::write_page;

/// `report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Folders of runs.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// With several runs: also write the comparison as a page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `host report`.
pub fn report(args: &ReportArgs) -> anyhow::Result<()> {
    if let [run] = args.runs.as_slice() {
        if let Some(html) = &args.html {
            bail!(
                "--html {} is where a comparison goes, and there is one run: its page is report.html in its folder",
                html.display()
            );
        }
        return write_result(&format!("{}\n", write_page(run)?.display()));
    }
    let places: Vec<_> =
        args.runs.iter().map(|run| run.canonicalize().unwrap_or_else(|_| run.clone())).collect();
    if let Some((i, run)) = args.runs.iter().enumerate().find(|(i, _)| places[..*i].contains(&places[*i])) {
        let first = places.iter().position(|place| *place == places[i]).unwrap_or(i);
        bail!("{} is the run {}: a run has no spread with itself", run.display(), args.runs[first].display());
    }
    let runs = args.runs.iter().map(|run| RunData::read(run)).collect::<Result<Vec<_>, _>>()?;
    let comparison = Comparison::new(&runs);
    if let Some(html) = &args.html {
        write_comparison(html, &comparison)?;
    }
    write_result(&comparison.to_string())
}

fn write_comparison(path: &Path, comparison: &Comparison<'_>) -> anyhow::Result<()> {
    let page = comparison.html()?;
    write_atomically(path, page.as_bytes()).with_context(|| format!("writing {}", path.display()))
}
