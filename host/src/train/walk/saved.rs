//! The saved states of a walk-forward, in the folder `state` of its run as those of any run: one when it begins, one
//! behind every fold (`docs/RESUME.md`). What a fold under way has done so far is in the states of the fold's own folder.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use backtest::{Report, Track};
use serde::{Deserialize, Serialize};
use settings::Config;

use crate::tensors::Tensors;
use crate::train::agent::Learned;
use crate::train::control::Control;
use crate::train::market::{SymbolRecord, Tracks};
use crate::train::metrics::Mark;
use crate::train::run_files::metrics_of;
use crate::train::saves::{Origin, Parts, State, config_of, entry};
use crate::train::tensor_file;
use crate::train::walk::{FoldResult, WalkResult, fold_name};

/// Version of the metadata below; another one is refused.
pub const FORMAT: &str = "stepgraph-walk-1";

/// Name of the tensor that holds [`Gathered`] as CBOR, which keeps every bit of a number.
const GATHERED: &str = "folds";

/// Where a walk-forward stands between two folds.
#[derive(Debug)]
pub struct SavedWalk {
    /// Its configuration, state width filled in.
    pub config: Config,
    /// What trained the first fold, and has to train all.
    pub origin: Origin,
    /// Its bars, with the parts of the first fold.
    pub symbols: Vec<SymbolRecord>,
    /// How far its metrics were written.
    pub metrics: Mark,
    /// What the folds came to that are done.
    pub gathered: Gathered,
}

/// What the folds came to that are done: all that the pooled result and the next fold need of them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gathered {
    /// Each fold's test.
    pub results: Vec<FoldResult>,
    /// Each fold's metrics, by which its folder is known again.
    marks: Vec<Mark>,
    /// Of the test parts.
    tracks: Vec<Tracks>,
    control: Option<Control>,
    /// Validation Sharpe ratios of all policies that were compared.
    sharpes: Vec<Option<f64>>,
    /// Networks and optimizer behind the latest fold, where the next one goes on with them.
    pub learned: Option<Learned>,
    bars_per_year: f64,
}

/// What one fold came to.
pub struct Fold {
    /// Its test.
    pub result: FoldResult,
    /// What the policy and buy-and-hold did in it.
    pub tracks: Tracks,
    /// What the synthetic market's truth says.
    pub control: Option<Control>,
    /// Validation Sharpe ratios of its policies.
    pub sharpes: Vec<Option<f64>>,
    /// For the next fold.
    pub learned: Option<Learned>,
    /// For annualising.
    pub bars_per_year: f64,
    /// Its metrics.
    pub mark: Mark,
}

impl Gathered {
    /// Adds the next fold.
    pub fn add(&mut self, fold: Fold) {
        self.results.push(fold.result);
        self.marks.push(fold.mark);
        self.tracks.push(fold.tracks);
        match (&mut self.control, fold.control) {
            (Some(control), Some(later)) => control.add(later),
            (all, first) => *all = first,
        }
        self.sharpes.extend(fold.sharpes);
        self.learned = fold.learned;
        self.bars_per_year = fold.bars_per_year;
    }

    /// The folds' result: of the test parts one behind the other, deflated for the validated policies of all folds
    /// together.
    ///
    /// # Errors
    /// Without a fold.
    pub fn pooled(self, keys: &settings::Report) -> anyhow::Result<WalkResult> {
        let chain = |track: fn(&Tracks) -> &Track| {
            Track::chained(&self.tracks.iter().map(|tracks| track(tracks).clone()).collect::<Vec<_>>())
        };
        let whole = Tracks { strategy: chain(|t| &t.strategy), holding: chain(|t| &t.holding) };
        let report = Report::of_tracks(&whole.strategy, &whole.holding, self.bars_per_year)?;
        let pooled = whole.judge(report, keys, Some(&self.sharpes));
        let control = self.control.map(|control| control.finding(pooled.strategy.sharpe));
        Ok(WalkResult { folds: self.results, pooled, control })
    }

    /// Whether the folders of the folds that are done are as they were left: their rows are in the page of the whole.
    ///
    /// # Errors
    /// Names the file that is gone or was changed.
    pub fn check_folders(&self, run: &Path) -> anyhow::Result<()> {
        for (i, mark) in self.marks.iter().enumerate() {
            let path = metrics_of(&run.join(fold_name(i + 1)));
            if !path.is_file() {
                bail!(
                    "{} is not there: fold {} is done, and the walk-forward goes on only with what it left",
                    path.display(),
                    i + 1
                );
            }
            if Mark::of(&path)? != *mark {
                bail!(
                    "{} was changed after fold {} was tested: the walk-forward cannot go on with another fold than the one \
                     that it trained",
                    path.display(),
                    i + 1
                );
            }
        }
        Ok(())
    }
}

impl SavedWalk {
    /// Metadata and tensors of the file.
    ///
    /// # Errors
    /// What JSON or CBOR cannot hold.
    pub fn parts(&self) -> anyhow::Result<Parts> {
        let metadata = BTreeMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("config".to_string(), self.config.to_toml()),
            ("origin".to_string(), serde_json::to_string(&self.origin)?),
            ("symbols".to_string(), serde_json::to_string(&self.symbols)?),
            ("metrics".to_string(), serde_json::to_string(&self.metrics)?),
        ]);
        let mut bytes: Vec<u8> = Vec::new();
        ciborium::into_writer(&self.gathered, &mut bytes)?;
        let mut tensors = Tensors::default();
        tensors.put(GATHERED, bytes);
        Ok((metadata, tensors))
    }

    fn read_unnamed(path: &Path) -> anyhow::Result<Self> {
        let (metadata, mut tensors) = tensor_file::read(path)?;
        let config = config_of(&metadata, FORMAT)?;
        let entry = |key: &str| entry(&metadata, key);
        let bytes: Vec<u8> = tensors.take_any(GATHERED)?;
        tensors.finish()?;
        let gathered: Gathered = ciborium::from_reader(&bytes[..]).context("its folds")?;
        let count = gathered.results.len();
        if count != gathered.marks.len() || count != gathered.tracks.len() || count > config.folds.count {
            bail!("its folds: {count} results of {} folds do not belong together", config.folds.count);
        }
        Ok(Self {
            origin: serde_json::from_str(entry("origin")?).context("its origin")?,
            symbols: serde_json::from_str(entry("symbols")?).context("its data record")?,
            metrics: serde_json::from_str(entry("metrics")?).context("its metrics")?,
            config,
            gathered,
        })
    }
}

impl State for SavedWalk {
    fn read(path: &Path) -> anyhow::Result<Self> {
        Self::read_unnamed(path).with_context(|| format!("the saved state {}", path.display()))
    }

    fn place(&self) -> String {
        format!("{} of {} folds done", self.gathered.results.len(), self.config.folds.count)
    }
}
