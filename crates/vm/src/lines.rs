//! Lines from a peer that may mean harm: the guest agent's come from the guest, and QEMU's from a process that the guest may have broken into. A line
//! without end must not take our memory, nor one of nothing but brackets, nor one that drips in for ever our patience.

use fermata_linux::clock::Stopwatch;
use std::{
    io::{self, BufRead, Read},
    time::Duration,
};

/// From the first byte of a line to its last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Values in the JSON of a line: far more than anything that we ask for has. Read into memory, a value takes a hundred times the one or two bytes that it may
/// have in a line.
const VALUES_MAX: u64 = 100_000;

/// A reader whose lines are bounded in length, in values and in time. Bytes within a line that is beyond the bounds cannot be read.
pub(crate) struct Lines<R> {
    inner: R,
    bytes_max: u64,
    /// The line that is being read.
    line: Option<Line>,
}

/// What there is of a line so far.
struct Line {
    bytes: u64,
    /// Bytes before which, or behind which, a value may stand. Those in texts count as well.
    values: u64,
    since: Stopwatch,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most so many bytes.
    pub fn new(inner: R, bytes_max: u64) -> Self {
        Self { inner, bytes_max, line: None }
    }

    /// The reader below.
    pub fn inner(&self) -> &R {
        &self.inner
    }

    /// Fails if the line that is being read is beyond the bounds: nobody is to wait for the end of it.
    pub fn check(&self) -> io::Result<()> {
        let Some(Line { bytes, values, since }) = &self.line else { return Ok(()) };
        if *bytes >= self.bytes_max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of more than {} bytes", self.bytes_max)));
        }
        if *values > VALUES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of more than {VALUES_MAX} values")));
        }
        if since.elapsed() > PATIENCE {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("an answer that does not end within {} s", PATIENCE.as_secs())));
        }
        Ok(())
    }
}

impl<R: BufRead> BufRead for Lines<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.check()?;
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What is consumed was filled before, so this reads nothing.
        let (values, ended) = self.inner.fill_buf().map_or((0, false), |bytes| {
            let consumed = &bytes[..count.min(bytes.len())];
            let values = consumed.iter().filter(|byte| matches!(byte, b'[' | b'{' | b',')).count();
            (values as u64, consumed.last() == Some(&b'\n'))
        });
        self.inner.consume(count);
        if ended {
            self.line = None;
        } else if count > 0 {
            let line = self.line.get_or_insert_with(|| Line { bytes: 0, values: 0, since: Stopwatch::start() });
            line.bytes += count as u64;
            line.values += values;
        }
    }
}

impl<R: BufRead> Read for Lines<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_no_line() {
        let mut text = Lines::new(io::BufReader::with_capacity(7, [b"one\ntwo\n".as_slice(), &[b'x'; 1000]].concat().leak() as &[u8]), 100);
        let mut line = Vec::new();
        for expected in ["one\n", "two\n"] {
            line.clear();
            text.read_until(b'\n', &mut line).unwrap();
            assert_eq!(line, expected.as_bytes());
        }
        line.clear();
        assert_eq!(text.read_until(b'\n', &mut line).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(line.len() < 110);
    }

    #[test]
    fn a_line_of_nothing_but_values_is_no_line() {
        let read =
            |text: String| Lines::new(io::BufReader::with_capacity(64, io::Cursor::new(text)), 1 << 30).read_until(b'\n', &mut Vec::new());
        let most = VALUES_MAX as usize;
        for value in ["[", "{", ","] {
            assert_eq!(read(value.repeat(most) + "\n").unwrap(), most + 1);
            assert_eq!(read(value.repeat(most + 100) + "\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        // A new line begins at none.
        let lines = [",".repeat(most), ",".repeat(most), String::new()].join("\n");
        let mut lines = Lines::new(io::BufReader::with_capacity(64, io::Cursor::new(lines)), 1 << 30);
        (0..2).for_each(|_| assert_eq!(lines.read_until(b'\n', &mut Vec::new()).unwrap(), most + 1));
    }
}
