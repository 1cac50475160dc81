//! The log of a run: what `tracing` hears, in `run.log` in the run's folder.
//!
//! What is said before there is a folder waits in memory. A line that cannot be written is lost without a word: a full disk
//! is reported by the files that matter.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer as FormatWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, fmt};

/// Name of the file.
pub const FILE: &str = "run.log";

/// Target of lines that a person has seen already: they go to the file alone.
pub const SEEN: &str = "run";

/// Most bytes that wait for a folder.
const MOST: usize = 1 << 20;

static LOG: Mutex<Log> = Mutex::new(Log::Waiting(Vec::new()));

enum Log {
    /// There is no folder yet.
    Waiting(Vec<u8>),
    File(File),
}

/// Begins to listen: warnings go to standard error (`RUST_LOG` asks for more), everything from `info` on to the file.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    let filter = match format!("{SEEN}=off").parse() {
        Ok(seen) => filter.add_directive(seen),
        Err(_) => filter,
    };
    let errors =
        fmt::layer().with_writer(io::stderr).with_ansi(false).event_format(Plain).with_filter(filter);
    let file = fmt::layer().with_writer(Writer).with_target(false).with_ansi(false);
    let file = file.log_internal_errors(false).with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(errors).with(file).init();
}

/// From now on the log is in this folder, behind what is there already.
///
/// # Errors
/// A file that cannot be opened.
pub fn begin(folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(FILE);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let mut file = file.with_context(|| format!("opening {}", path.display()))?;
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if let Log::Waiting(waiting) = &*log {
        file.write_all(waiting).with_context(|| format!("writing {}", path.display()))?;
    }
    *log = Log::File(file);
    Ok(())
}

/// Lines as the program writes its own: `warning: ...`, without a time.
struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: FormatWriter<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        write!(writer, "{level}: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *LOG.lock().unwrap_or_else(PoisonError::into_inner) {
            Log::File(file) => return file.write(bytes),
            Log::Waiting(waiting) if waiting.len() + bytes.len() <= MOST => waiting.extend_from_slice(bytes),
            Log::Waiting(_) => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Writer {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}
