//! A second copy of an area in another process, on this host or another: a commit is there as soon as it has been acknowledged, and no disk is waited for. Where the
//! tracker names words, only words travel.
//!
//! ```text
//!   Area ──capture──> Replica ──commit 7──> Backup: reads all of it, then applies it
//!                             <──7────────
//! ```
//!
//! A commit that arrives in part is not applied: the copy is always as at one commit. The bytes are in `docs/formats/replica.md`. Neither side trusts the other with
//! more than the content of the area; whom to connect to, and encryption, is the stream's matter.

use crate::{Area, Capture, Error, Options, Result};
use fermata_types::{PAGE_SIZE, PageNumber};
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"fermrep1";
const NAME_MAX: u64 = 128;
const MASK: usize = 64;

/// Sends the commits of an area.
#[derive(Debug)]
pub struct Replica<S> {
    stream: S,
    commits: u64,
    /// A commit was not acknowledged; nobody knows what the other side has.
    broken: bool,
}

/// Receives the commits of an area, and takes its place.
#[derive(Debug)]
pub struct Backup<S> {
    stream: S,
    name: String,
    address: u64,
    content: Vec<u8>,
    commits: u64,
}

impl<S: Read + Write> Replica<S> {
    /// Sends all of the area as it is, as the first commit; returns when the other side has it.
    pub fn connect(stream: S, area: &mut Area) -> Result<Self> {
        let mut replica = Self { stream, commits: 0, broken: false };
        let range = area.range();
        let mut hello = MAGIC.to_vec();
        [range.start, range.end - range.start, area.name().len() as u64].iter().for_each(|number| hello.extend(number.to_le_bytes()));
        hello.extend(area.name().as_bytes());
        replica.stream.write_all(&hello).map_err(Error::io(area.name(), "greeting its backup"))?;
        let capture = area.capture_all()?;
        replica.send_or_give_back(area, capture)?;
        Ok(replica)
    }

    /// Captures what was written, and returns when the other side has it: the number of the commit. If it fails, the area has it still; connect anew, and all of it is
    /// sent.
    pub fn commit(&mut self, area: &mut Area) -> Result<u64> {
        if self.broken {
            let what = "an earlier commit was not acknowledged by its backup";
            return Err(Error::refused(area.name(), what, "connect to a backup anew"));
        }
        let capture = area.capture()?;
        self.send_or_give_back(area, capture)
    }

    fn send_or_give_back(&mut self, area: &mut Area, capture: Capture) -> Result<u64> {
        self.broken = true;
        match self.send(&capture) {
            Ok(()) => {
                self.broken = false;
                Ok(self.commits)
            }
            Err(error) => {
                area.give_back(capture);
                Err(Error::io(area.name(), "sending a commit to its backup")(error))
            }
        }
    }

    fn send(&mut self, capture: &Capture) -> io::Result<()> {
        self.commits += 1;
        let words = capture.words();
        let counts = [words.whole.len(), words.parts.len() as u64];
        let mut frame = Vec::with_capacity(words.bytes() as usize + words.parts.len() * (MASK + 4) + 24);
        [self.commits, counts[0], counts[1]].iter().for_each(|number| frame.extend(number.to_le_bytes()));
        let mut parts = words.parts.iter().peekable();
        let mut partial = Vec::new();
        for (page, content) in capture.each_page() {
            if words.whole.contains(page) {
                frame.extend(page.to_le_bytes());
                frame.extend(content);
                continue;
            }
            let (_, mask) = parts.next_if(|(part, _)| *part == page).expect("each page is whole or in parts, in order");
            partial.extend(page.to_le_bytes());
            mask.iter().for_each(|bits| partial.extend(bits.to_le_bytes()));
            ones(mask).for_each(|word| partial.extend(&content[word * 8..word * 8 + 8]));
        }
        self.stream.write_all(&frame)?;
        self.stream.write_all(&partial)?;
        self.stream.flush()?;
        let acknowledged = number(&mut self.stream)?;
        if acknowledged == self.commits {
            Ok(())
        } else {
            Err(nonsense(format!("commit {acknowledged} was acknowledged, not {}", self.commits)))
        }
    }
}

impl<S: Read + Write> Backup<S> {
    /// Waits for an area of at most so many bytes, and for its first commit.
    pub fn accept(mut stream: S, bytes_max: usize) -> Result<Self> {
        let failed = |error| Error::io("of a backup", "being greeted")(error);
        let mut magic = [0; 8];
        stream.read_exact(&mut magic).map_err(failed)?;
        if magic != MAGIC {
            return Err(failed(nonsense("the other side does not speak the protocol of areas".into())));
        }
        let mut numbers = [0; 3];
        for place in &mut numbers {
            *place = number(&mut stream).map_err(failed)?;
        }
        let [address, bytes, name_bytes] = numbers;
        if bytes == 0 || bytes > bytes_max as u64 || !bytes.is_multiple_of(PAGE_SIZE as u64) || name_bytes > NAME_MAX {
            return Err(failed(nonsense(format!("an area of {bytes} bytes, with a name of {name_bytes}; at most {bytes_max} are taken"))));
        }
        let mut name = vec![0; name_bytes as usize];
        stream.read_exact(&mut name).map_err(failed)?;
        let name = String::from_utf8(name).map_err(|_| failed(nonsense("its name is no text".into())))?;
        let mut backup = Self { stream, name, address, content: vec![0; bytes as usize], commits: 0 };
        match backup.receive()? {
            Some(_) => Ok(backup),
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The name of the area.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The area as it was at the last commit that was received.
    pub fn as_slice(&self) -> &[u8] {
        &self.content
    }

    /// Waits for a commit, applies all of it and acknowledges it; returns its number. None: the other side has ended between two commits. After an error the copy is as
    /// at the last commit.
    pub fn receive(&mut self) -> Result<Option<u64>> {
        self.receive_one().map_err(Error::io(&self.name, "receiving a commit"))
    }

    /// Takes the place of the area: one with its content and at its address, which everything that was written since the last commit is lost to.
    pub fn take_over(self, options: impl Into<Options>) -> Result<Area> {
        Area::with_content(&self.name, self.address, &self.content, &options.into())
    }

    fn receive_one(&mut self) -> io::Result<Option<u64>> {
        let commit = match number(&mut self.stream) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        };
        let (whole, parts) = (number(&mut self.stream)?, number(&mut self.stream)?);
        let pages = (self.content.len() / PAGE_SIZE) as u64;
        if commit != self.commits + 1 || whole > pages || parts > pages {
            return Err(nonsense(format!("commit {commit} with {whole} pages and parts of {parts}, after commit {}", self.commits)));
        }
        // All of it first: what arrives in part must not be applied.
        let mut changes: Vec<(usize, Vec<u8>)> = Vec::new();
        for _ in 0..whole {
            let at = self.page(pages)?;
            changes.push((at, read(&mut self.stream, PAGE_SIZE)?));
        }
        for _ in 0..parts {
            let at = self.page(pages)?;
            let mut mask = [0; 8];
            for bits in &mut mask {
                *bits = number(&mut self.stream)?;
            }
            for word in ones(&mask) {
                changes.push((at + word * 8, read(&mut self.stream, 8)?));
            }
        }
        for (at, bytes) in changes {
            self.content[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        self.commits = commit;
        // Who does not hear of it will send it again to somebody.
        self.stream.write_all(&commit.to_le_bytes())?;
        self.stream.flush()?;
        Ok(Some(commit))
    }

    fn page(&mut self, pages: u64) -> io::Result<usize> {
        let mut page = [0; 4];
        self.stream.read_exact(&mut page)?;
        let page = PageNumber::from_le_bytes(page);
        if u64::from(page) < pages { Ok(page as usize * PAGE_SIZE) } else { Err(nonsense(format!("page {page} of {pages}"))) }
    }
}

fn read(stream: &mut impl Read, bytes: usize) -> io::Result<Vec<u8>> {
    let mut into = vec![0; bytes];
    stream.read_exact(&mut into)?;
    Ok(into)
}

fn number(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn nonsense(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Numbers of the words of a page that are in a mask.
fn ones(mask: &[u64; 8]) -> impl Iterator<Item = usize> {
    (0..512).filter(|word| mask[word / 64] & 1 << (word % 64) != 0)
}
