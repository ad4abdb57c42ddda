//! Lines from a peer that may mean harm: the guest agent's come from the guest, and QEMU's from a process that the guest may have broken into. A line
//! without end must not take our memory, nor one that drips in for ever our patience.

use fermata_linux::clock::Stopwatch;
use std::{
    io::{self, BufRead, Read},
    time::Duration,
};

/// From the first byte of a line to its last.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reader whose lines are bounded in length and time. Bytes within a line that is beyond the bounds cannot be read.
pub(crate) struct Lines<R> {
    inner: R,
    bytes_max: u64,
    /// Bytes of the line that is being read, and since when.
    line: Option<(u64, Stopwatch)>,
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
}

impl<R: BufRead> BufRead for Lines<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some((bytes, since)) = &self.line {
            if *bytes >= self.bytes_max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("an answer of more than {} bytes", self.bytes_max)));
            }
            if since.elapsed() > PATIENCE {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("an answer that does not end within {} s", PATIENCE.as_secs()),
                ));
            }
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What is consumed was filled before, so this reads nothing.
        let ended = self.inner.fill_buf().is_ok_and(|bytes| count > 0 && bytes.get(count - 1) == Some(&b'\n'));
        self.inner.consume(count);
        if ended {
            self.line = None;
        } else if count > 0 {
            self.line.get_or_insert_with(|| (0, Stopwatch::start())).0 += count as u64;
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
}
