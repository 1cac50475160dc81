//! Where a file's bytes come from, and how many of them one record may take.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use crate::error::BarError;

/// A file that can be read several times: formats are found in one pass, rows read in the next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// On disk.
    Path(&'a Path),
    /// In memory.
    Bytes(&'a [u8]),
}

impl<'a> Source<'a> {
    /// Refuses what cannot be read twice (pipes, devices, directories).
    pub(crate) fn check(self, name: &str) -> Result<(), BarError> {
        if let Source::Path(path) = self {
            let metadata = std::fs::metadata(path).map_err(|error| io_error(name, error))?;
            if !metadata.is_file() {
                let message = "not a regular file: it is read twice, once to find its formats";
                return Err(BarError::file(name, message));
            }
        }
        Ok(())
    }

    /// A fresh reader from the beginning.
    pub(crate) fn open(self) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Source::Path(path) => Box::new(File::open(path)?),
            Source::Bytes(bytes) => Box::new(bytes),
        })
    }

    /// The first bytes, at most `most`.
    pub(crate) fn head(self, most: usize) -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        self.open()?.take(most as u64).read_to_end(&mut head)?;
        Ok(head)
    }

    /// A reader that starts behind `lines` line ends.
    pub(crate) fn open_after(self, lines: usize) -> io::Result<Box<dyn Read + 'a>> {
        let reader = self.open()?;
        if lines == 0 {
            return Ok(reader);
        }
        let mut reader = BufReader::new(reader);
        for _ in 0..lines {
            reader.skip_until(b'\n')?;
        }
        Ok(Box::new(reader))
    }
}

/// An operating system error about a file.
pub(crate) fn io_error(name: &str, source: io::Error) -> BarError {
    BarError::Io { file: name.to_owned(), source }
}

/// Bytes left for the current record, shared between the reader and who reads records from it.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Rc<Cell<usize>>);

impl Budget {
    /// Longest record. With the parser's read-ahead, this much is the most a record can take.
    pub(crate) const RECORD: usize = 1 << 20;

    /// To be called before each record.
    pub(crate) fn renew(&self) {
        self.0.set(Self::RECORD);
    }
}

/// Passes bytes through until the budget is used up: one endless line or unclosed quote must not fill the
/// memory.
pub(crate) struct Budgeted<R> {
    inner: R,
    budget: Budget,
}

impl<R: Read> Budgeted<R> {
    pub(crate) fn new(inner: R) -> (Self, Budget) {
        let budget = Budget(Rc::new(Cell::new(Budget::RECORD)));
        (Self { inner, budget: budget.clone() }, budget)
    }
}

impl<R: Read> Read for Budgeted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.0.get();
        if left == 0 {
            let text = format!("a record is longer than {} bytes (an unclosed quote?)", Budget::RECORD);
            return Err(io::Error::other(text));
        }
        let most = left.min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.budget.0.set(left - read);
        Ok(read)
    }
}
