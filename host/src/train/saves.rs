//! Saved states of a run: `state/000001.safetensors`, `000002`, ... in its folder, the newest ones kept
//! (`docs/RESUME.md`).
//!
//! A state is copied to host memory between two steps and written by a thread of its own while the next steps run. It
//! gets its name once it is whole and on the disk, so whatever kills the program, the state before is untouched.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use settings::{Checkpoints, Config};

use crate::cublaslt::cache::PlanTable;
use crate::tensors::Tensors;
use crate::train::agent::Agent;
use crate::train::checkpoint::{Checkpoint, DATA_SET};
use crate::train::files::TEMPORARY;
use crate::train::market::MarketRecord;
use crate::train::offline::OfflineRecord;
use crate::train::position::Position;
use crate::train::tensor_file;

/// Folder of the states in a run's.
pub const FOLDER: &str = "state";

/// Version of the metadata below; another one is refused.
const FORMAT: &str = "stepgraph-state-1";

/// Ending of a state's name.
const ENDING: &str = "safetensors";

/// What a state was saved by: what has to be the same to go on bit for bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Version of the program.
    pub program: String,
    /// Hash of the compiled kernels, `none` on the CPU.
    pub kernels: String,
    /// Device, precision and backend of the products.
    pub device: String,
    /// Algorithms of cuBLASLt, where it is used, with the GPU, driver and library they are valid for.
    pub plans: Option<PlanTable>,
}

impl Origin {
    /// Of a run of this program.
    pub fn of(agent: &dyn Agent, kernels: &str) -> Self {
        Self {
            program: env!("CARGO_PKG_VERSION").into(),
            kernels: kernels.into(),
            device: agent.device(),
            plans: agent.plans(),
        }
    }

    /// What differs from the origin of a saved state, a line each; then bits would differ.
    pub fn differences(&self, saved: &Origin) -> Vec<String> {
        let entries = [
            ("the program's version", &saved.program, &self.program),
            ("the kernels' hash", &saved.kernels, &self.kernels),
            ("the device", &saved.device, &self.device),
        ];
        entries
            .into_iter()
            .filter(|(_, saved, now)| saved != now)
            .map(|(what, saved, now)| format!("{what} was {saved} and is {now}"))
            .collect()
    }
}

/// Everything that a run needs to go on.
#[derive(Debug)]
pub struct SavedRun {
    /// Its configuration, state width filled in.
    pub config: Config,
    /// Its bars, if it is a market's. A control task is named by the configuration.
    pub market: Option<MarketRecord>,
    /// The data set of transitions, if it is one's.
    pub data_set: Option<OfflineRecord>,
    /// What saved it.
    pub origin: Origin,
    /// Where it stands.
    pub position: Position,
    /// Bytes of the best policy's file so far, and of the last epoch's.
    pub policies: [Option<Vec<u8>>; 2],
    /// Validation score of the best policy, where it is defined.
    pub best_score: Option<f64>,
    /// The agent's tensors.
    pub agent: Tensors,
}

/// What a file in the folder `state` holds: a run, or a walk-forward.
pub trait State: Sized {
    /// Reads one.
    ///
    /// # Errors
    /// Says the file and what is wrong with it.
    fn read(path: &Path) -> anyhow::Result<Self>;
    /// Where it stands, in a few words.
    fn place(&self) -> String;
}

/// What a state's file is made of: metadata and tensors.
pub type Parts = (BTreeMap<String, String>, Tensors);

/// Names in a state: the policies' files, the best one's score with every bit.
const POLICIES: [&str; 2] = ["file.best", "file.last"];
const SCORE: &str = "loop.best_score";

impl State for SavedRun {
    fn read(path: &Path) -> anyhow::Result<Self> {
        Self::read_unnamed(path).with_context(|| format!("the saved state {}", path.display()))
    }

    fn place(&self) -> String {
        format!("epoch {}, step {}", self.position.epoch, self.position.step)
    }
}

impl SavedRun {
    /// Metadata and tensors of the file.
    ///
    /// # Errors
    /// A text that JSON cannot hold.
    pub fn parts(self) -> anyhow::Result<Parts> {
        let mut metadata = BTreeMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("config".to_string(), self.config.to_toml()),
            ("origin".to_string(), serde_json::to_string(&self.origin)?),
            ("position".to_string(), serde_json::to_string(&self.position)?),
        ]);
        if let Some(market) = &self.market {
            metadata.insert("market".to_string(), serde_json::to_string(market)?);
        }
        if let Some(data_set) = &self.data_set {
            metadata.insert(DATA_SET.to_string(), serde_json::to_string(data_set)?);
        }
        let mut tensors = self.agent;
        self.position.put(&mut tensors);
        // An undefined score has no number.
        tensors.put(SCORE, vec![self.best_score.unwrap_or(f64::NAN)]);
        for (name, policy) in POLICIES.into_iter().zip(self.policies) {
            tensors.put(name, policy.unwrap_or_default());
        }
        Ok((metadata, tensors))
    }

    fn read_unnamed(path: &Path) -> anyhow::Result<Self> {
        let (metadata, mut tensors) = tensor_file::read(path)?;
        let entry = |key: &str| entry(&metadata, key);
        let config = config_of(&metadata, FORMAT)?;
        let position = Position::of(entry("position")?, &mut tensors)?;
        position.check(&config)?;
        let mut policy = |name: &str| -> anyhow::Result<Option<Vec<u8>>> {
            let bytes = tensors.take_any::<u8>(name)?;
            Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
        };
        let policies = [policy(POLICIES[0])?, policy(POLICIES[1])?];
        Ok(Self {
            position,
            policies,
            best_score: Some(tensors.take::<f64>(SCORE, 1)?[0]).filter(|score| !score.is_nan()),
            market: match config.task.is_market() {
                true => Some(serde_json::from_str(entry("market")?).context("its data record")?),
                false => None,
            },
            data_set: match config.task.is_transitions() {
                true => Some(serde_json::from_str(entry(DATA_SET)?).context("its data record")?),
                false => None,
            },
            origin: serde_json::from_str(entry("origin")?).context("its origin")?,
            config,
            agent: tensors,
        })
    }

    /// The best policy so far, with the score that chose it.
    ///
    /// # Errors
    /// Bytes that are no policy.
    pub fn best(&self) -> anyhow::Result<Option<Checkpoint>> {
        let Some(bytes) = &self.policies[0] else { return Ok(None) };
        let (mut best, _) = Checkpoint::of_bytes("the best policy in the saved state", bytes)?;
        // Its text may have rounded the last bit.
        best.provenance.score = self.best_score;
        Ok(Some(best))
    }
}

/// An entry of a state's metadata.
///
/// # Errors
/// If it is not there.
pub fn entry<'m>(metadata: &'m BTreeMap<String, String>, key: &str) -> anyhow::Result<&'m str> {
    let value = metadata.get(key);
    value.map(String::as_str).with_context(|| format!("it has no `{key}`: it is not a state of a run"))
}

/// The configuration of a state of a format.
///
/// # Errors
/// Another format, a configuration that is none.
pub fn config_of(metadata: &BTreeMap<String, String>, expected: &str) -> anyhow::Result<Config> {
    let format = entry(metadata, "format")?;
    if format != expected {
        bail!("it has format `{format}`, this program reads `{expected}`");
    }
    let text = ("its configuration", entry(metadata, "config")?);
    let config = Config::layered(&Config::default(), Some(text), &[])?;
    config.check().context("its configuration")?;
    Ok(config)
}

/// Whether a run's folder holds saved states, be they whole or not.
///
/// # Errors
/// A folder that cannot be read.
pub fn any(run: &Path) -> anyhow::Result<bool> {
    Ok(!numbered(run)?.is_empty())
}

/// Formats of the states that an argument names: of a file, or of all in a run's folder whose header can be read.
///
/// # Errors
/// A folder that cannot be read.
pub fn formats(argument: &Path) -> anyhow::Result<Vec<String>> {
    let paths: Vec<PathBuf> = match argument.is_dir() {
        true => numbered(argument)?.into_iter().map(|(_, path)| path).collect(),
        false => vec![argument.to_path_buf()],
    };
    let format = |path: &PathBuf| tensor_file::metadata(path).ok()?.remove("format");
    Ok(paths.iter().filter_map(format).collect())
}

/// States in a run's folder with their numbers, oldest first.
fn numbered(run: &Path) -> anyhow::Result<Vec<(u64, PathBuf)>> {
    let folder = run.join(FOLDER);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", folder.display())),
    };
    let mut states = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        states.extend(number_of(&path).map(|number| (number, path)));
    }
    states.sort();
    Ok(states)
}

fn number_of(path: &Path) -> Option<u64> {
    let ending = path.extension()? == ENDING;
    path.file_stem()?.to_str()?.parse().ok().filter(|_| ending)
}

/// The state that an argument names: a file, or the newest one of a run's folder; and the run's folder.
///
/// # Errors
/// A folder without states. If the newest one is damaged: what is wrong with it, and which older one is whole.
pub fn open<S: State>(argument: &Path) -> anyhow::Result<(PathBuf, PathBuf, S)> {
    if !argument.is_dir() {
        let saved = S::read(argument)?;
        let run = argument.parent().and_then(Path::parent).filter(|run| run.join(FOLDER).is_dir());
        let run = run.with_context(|| {
            format!(
                "{} is not in the folder `{FOLDER}` of a run, so there is nothing to go on with",
                argument.display()
            )
        })?;
        return Ok((run.to_path_buf(), argument.to_path_buf(), saved));
    }
    let states = numbered(argument)?;
    let Some((_, newest)) = states.last() else {
        bail!(
            "{} holds no saved state ({FOLDER}/NNNNNN.{ENDING}): it is not the folder of a run, or the run was killed \
             before its first one (checkpoint.interval_minutes), or checkpoint.states was 0",
            argument.display()
        );
    };
    let error = match S::read(newest) {
        Ok(saved) => return Ok((argument.to_path_buf(), newest.clone(), saved)),
        Err(error) => error,
    };
    for (_, older) in states.iter().rev().skip(1) {
        if let Ok(saved) = S::read(older) {
            return Err(error.context(format!(
                "the newest state cannot be used. The one before it is whole ({}): host train --resume {}",
                saved.place(),
                older.display()
            )));
        }
    }
    Err(error.context("no saved state of the run can be used"))
}

/// Writes the states of a run.
#[derive(Debug)]
pub struct Saver {
    run: PathBuf,
    settings: Checkpoints,
    /// Number of the latest state.
    number: u64,
    /// When the latest one was begun.
    last: Instant,
    writing: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Saver {
    /// For a run's folder. With `from`, the state that the run goes on from: newer ones (damaged, or of steps that will be
    /// done again) are removed, and what a killed program left half written.
    ///
    /// # Errors
    /// A folder that cannot be read or cleaned.
    pub fn new(run: &Path, settings: &Checkpoints, from: Option<&Path>) -> anyhow::Result<Self> {
        let mut number = 0;
        if let Some(from) = from {
            number = number_of(from).with_context(|| format!("{}: no number in its name", from.display()))?;
            let remove =
                |path: &Path| fs::remove_file(path).with_context(|| format!("removing {}", path.display()));
            for (_, path) in numbered(run)?.into_iter().filter(|(other, _)| *other > number) {
                remove(&path)?;
            }
            let folder = run.join(FOLDER);
            for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
                let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
                if path.extension().is_some_and(|ending| ending == TEMPORARY) {
                    remove(&path)?;
                }
            }
        }
        Ok(Self {
            run: run.to_path_buf(),
            settings: settings.clone(),
            number,
            last: Instant::now(),
            writing: None,
        })
    }

    /// Whether states are saved at all.
    pub fn is_on(&self) -> bool {
        self.settings.states > 0
    }

    /// Whether it is time for the next state. Never while one is being written.
    pub fn is_due(&self) -> bool {
        let interval = Duration::from_secs_f64(60.0 * self.settings.interval_minutes);
        let busy = self.writing.as_ref().is_some_and(|thread| !thread.is_finished());
        self.is_on() && !busy && self.last.elapsed() >= interval
    }

    /// Begins to write a state; waits for the one before.
    ///
    /// # Errors
    /// If the one before could not be written.
    pub fn save(&mut self, (metadata, tensors): Parts) -> anyhow::Result<()> {
        let before = self.wait();
        self.number += 1;
        self.last = Instant::now();
        let (run, number, keep) = (self.run.clone(), self.number, self.settings.states);
        let write = move || write(&run, number, keep, metadata, &tensors);
        let thread = std::thread::Builder::new().name("state".into()).spawn(write);
        self.writing = Some(thread.context("starting the thread that writes states")?);
        before
    }

    /// Waits until the latest state is on the disk.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(written)) => written,
            Some(Err(_)) => Err(anyhow!("the thread that writes states panicked")),
        }
    }

    /// Name of the latest state.
    pub fn latest(&self) -> PathBuf {
        path_of(&self.run, self.number)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // A run that ends with an error still finishes the state that it began to write.
        if let Err(error) = self.wait() {
            tracing::warn!("{error:#}");
        }
    }
}

fn path_of(run: &Path, number: u64) -> PathBuf {
    run.join(FOLDER).join(format!("{number:06}.{ENDING}"))
}

fn write(
    run: &Path,
    number: u64,
    keep: usize,
    metadata: BTreeMap<String, String>,
    tensors: &Tensors,
) -> anyhow::Result<()> {
    let path = path_of(run, number);
    let writing = || format!("writing the saved state {}", path.display());
    let folder = run.join(FOLDER);
    fs::create_dir_all(&folder).with_context(writing)?;
    tensor_file::write(&path, metadata, tensors).with_context(writing)?;
    let states = numbered(run)?;
    for (_, path) in states.iter().rev().skip(keep) {
        fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}
