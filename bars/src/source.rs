//! Where a file's bytes come from, and how many of them one record may take.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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

/// What the reader of records shares with the bytes it reads from: how many it may still take for the
/// current record, and where lines begin.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    left: Cell<usize>,
    lines: RefCell<Lines>,
}

/// Beginnings of lines that are not blank: byte offset and line number, from the record being read on.
///
/// The CSV parser reports where it stopped, which is before blank lines and, with CRLF, before the line feed;
/// so the line on which a record begins is found here.
#[derive(Debug, Default)]
struct Lines {
    starts: VecDeque<(u64, u64)>,
    offset: u64,
    ended: u64,
    within: bool,
    carriage_return: bool,
}

impl Lines {
    fn pass(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.carriage_return && byte != b'\n' {
                self.end_line();
            }
            self.carriage_return = byte == b'\r';
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                _ if self.within => {}
                _ => {
                    self.within = true;
                    self.starts.push_back((self.offset, self.ended + 1));
                }
            }
            self.offset += 1;
        }
    }

    fn end_line(&mut self) {
        self.ended += 1;
        self.within = false;
    }
}

impl Feed {
    /// Longest record. With the parser's read-ahead, this much is the most a record can take.
    pub(crate) const RECORD: usize = 1 << 20;

    /// To be called before each record.
    pub(crate) fn renew(&self) {
        self.left.set(Self::RECORD);
    }

    /// Line of the record that the parser began to look for at this byte; offsets must not decrease.
    pub(crate) fn line_at(&self, byte: u64) -> u64 {
        let mut lines = self.lines.borrow_mut();
        while lines.starts.front().is_some_and(|start| start.0 < byte) {
            lines.starts.pop_front();
        }
        lines.starts.front().map_or(lines.ended + 1, |start| start.1)
    }
}

/// Passes bytes through until the budget is used up: one endless line or unclosed quote must not fill the
/// memory.
pub(crate) struct Fed<R> {
    inner: R,
    feed: Rc<Feed>,
}

impl<R: Read> Fed<R> {
    pub(crate) fn new(inner: R) -> (Self, Rc<Feed>) {
        let feed = Rc::new(Feed::default());
        (Self { inner, feed: feed.clone() }, feed)
    }
}

impl<R: Read> Read for Fed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.feed.left.get();
        if left == 0 {
            let text = format!("a record is longer than {} bytes (an unclosed quote?)", Feed::RECORD);
            return Err(io::Error::other(text));
        }
        let most = left.min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.feed.left.set(left - read);
        self.feed.lines.borrow_mut().pass(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_an_editor_does() {
        let mut lines = Lines::default();
        lines.pass(b"a\nb\r\n\r\n\nc\rd\r\r");
        lines.pass(b"\ne");
        assert_eq!(lines.starts, [(0, 1), (2, 2), (8, 5), (10, 6), (14, 8)]);
    }
}
