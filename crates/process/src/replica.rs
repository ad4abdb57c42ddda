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

use crate::{
    Area, Capture, Error, Options, Result,
    capture::{Details, Spare},
};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    io::{self, Read, Write},
    ops::Range,
};

const MAGIC: [u8; 8] = *b"fermrep3";
/// In the place of a commit's number: whoever sends is there, and has nothing to send.
const BEAT: u64 = 0;
/// In the place of an acknowledgement: the backup is there, and has not written yet what it waits for.
const WAITING: u64 = u64::MAX;
const NAME_MAX: u64 = 128;
/// Of what a backup says when it refuses.
const TEXT_MAX: u64 = 4096;
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
    excluded: PageSet,
    commits: u64,
    spare: Spare,
}

impl<S: Read + Write> Replica<S> {
    /// Says which area it is. The first commit has to have all of it.
    pub(crate) fn greet(stream: S, area: &Area) -> io::Result<Self> {
        let mut replica = Self { stream, commits: 0, broken: false };
        let range = area.range();
        let mut hello = MAGIC.to_vec();
        [range.start, range.end - range.start, area.name().len() as u64].iter().for_each(|number| hello.extend(number.to_le_bytes()));
        hello.extend(area.name().as_bytes());
        replica.stream.write_all(&hello)?;
        Ok(replica)
    }

    /// Sends all of the area as it is, as the first commit; returns when the other side has it.
    pub fn connect(stream: S, area: &mut Area) -> Result<Self> {
        let mut replica = Self::greet(stream, area).map_err(Error::io(area.name(), "greeting its backup"))?;
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

    /// Returns when the other side has it. After an error nobody knows what it has.
    pub(crate) fn send(&mut self, capture: &Capture) -> io::Result<()> {
        self.commits += 1;
        let (words, excluded) = (capture.words(), capture.excluded());
        let counts = [self.commits, words.whole.len(), words.parts.len() as u64, excluded.len() as u64];
        let mut frame = Vec::with_capacity(words.bytes() as usize + words.parts.len() * (MASK + 4) + excluded.len() * 8 + 32);
        counts.iter().for_each(|number| frame.extend(number.to_le_bytes()));
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
        excluded.iter().flat_map(|(first, count)| [first, count]).for_each(|number| partial.extend(number.to_le_bytes()));
        // Who refuses says so before he has read all.
        let sent = self.stream.write_all(&frame).and_then(|()| self.stream.write_all(&partial)).and_then(|()| self.stream.flush());
        let answered = loop {
            match number(&mut self.stream) {
                Ok(WAITING) => {}
                answered => break answered,
            }
        };
        match (answered, sent) {
            (Ok(0), _) => Err(self.refusal()?),
            (Ok(acknowledged), Ok(())) if acknowledged == self.commits => Ok(()),
            (Ok(acknowledged), Ok(())) => Err(nonsense(format!("commit {acknowledged} was acknowledged, not {}", self.commits))),
            (Err(error), Ok(())) | (_, Err(error)) => Err(error),
        }
    }

    /// Says that it is there, between two commits.
    pub(crate) fn beat(&mut self) -> io::Result<()> {
        self.stream.write_all(&BEAT.to_le_bytes()).and_then(|()| self.stream.flush())
    }

    /// Why the other side takes no commit.
    fn refusal(&mut self) -> io::Result<io::Error> {
        let length = number(&mut self.stream)?;
        if length > TEXT_MAX {
            return Err(nonsense(format!("it refuses, in {length} bytes")));
        }
        let text = read(&mut self.stream, length as usize)?;
        Ok(io::Error::other(format!("it refuses: {}", String::from_utf8_lossy(&text))))
    }
}

impl<S: Read + Write> Backup<S> {
    /// Waits for an area of at most so many bytes, and for its first commit.
    pub fn accept(stream: S, bytes_max: usize) -> Result<Self> {
        let cut_off = || Error::io("of a backup", "being greeted")(io::ErrorKind::UnexpectedEof.into());
        let mut backup = Self::greeted(stream, bytes_max as u64)?.ok_or_else(cut_off)?;
        backup.receive()?.ok_or_else(cut_off)?;
        Ok(backup)
    }

    /// Waits to be told which area it is. None: the other side has said nothing and gone.
    pub(crate) fn greeted(mut stream: S, bytes_max: u64) -> Result<Option<Self>> {
        let failed = |error| Error::io("of a backup", "being greeted")(error);
        let mut magic = [0; 8];
        if stream.read(&mut magic[..1]).map_err(failed)? == 0 {
            return Ok(None);
        }
        stream.read_exact(&mut magic[1..]).map_err(failed)?;
        if magic != MAGIC {
            return Err(failed(nonsense("the other side does not speak the protocol of areas".into())));
        }
        let mut numbers = [0; 3];
        for place in &mut numbers {
            *place = number(&mut stream).map_err(failed)?;
        }
        let [address, bytes, name_bytes] = numbers;
        if bytes > bytes_max {
            let why = format!("an area of {bytes} bytes; at most {bytes_max} are taken");
            refuse(&mut stream, &why);
            return Err(failed(nonsense(why)));
        }
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE as u64) || name_bytes > NAME_MAX {
            return Err(failed(nonsense(format!("an area of {bytes} bytes, with a name of {name_bytes}"))));
        }
        let mut name = vec![0; name_bytes as usize];
        stream.read_exact(&mut name).map_err(failed)?;
        let name = String::from_utf8(name).map_err(|_| failed(nonsense("its name is no text".into())))?;
        Ok(Some(Self {
            stream,
            name,
            address,
            content: vec![0; bytes as usize],
            excluded: PageSet::new(),
            commits: 0,
            spare: Spare::default(),
        }))
    }

    /// The name of the area.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The area as it was at the last commit that was received.
    pub fn as_slice(&self) -> &[u8] {
        &self.content
    }

    /// How many commits it has.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Waits for a commit, applies all of it and acknowledges it; returns its number. None: the other side has ended between two commits. After an error the copy is as
    /// at the last commit.
    pub fn receive(&mut self) -> Result<Option<u64>> {
        let is_one = self.take_in()?.is_some();
        if is_one {
            self.acknowledge()?;
        }
        Ok(is_one.then_some(self.commits))
    }

    /// The same, not acknowledged yet: what it changes.
    pub(crate) fn take_in(&mut self) -> Result<Option<Capture>> {
        self.receive_one().map_err(Error::io(&self.name, "receiving a commit"))
    }

    /// Who does not hear of it will send it again to somebody.
    pub(crate) fn acknowledge(&mut self) -> Result<()> {
        let told = self.stream.write_all(&self.commits.to_le_bytes()).and_then(|()| self.stream.flush());
        told.map_err(Error::io(&self.name, "acknowledging a commit"))
    }

    /// The other side is to wait on.
    pub(crate) fn say_waiting(&mut self) -> Result<()> {
        let told = self.stream.write_all(&WAITING.to_le_bytes()).and_then(|()| self.stream.flush());
        told.map_err(Error::io(&self.name, "acknowledging a commit"))
    }

    /// Takes no commit, and says why.
    pub(crate) fn refuse(&mut self, why: &str) {
        refuse(&mut self.stream, why);
    }

    /// Takes the place of the area: one with its content and at its address, which everything that was written since the last commit is lost to.
    pub fn take_over(self, options: impl Into<Options>) -> Result<Area> {
        Area::with_content(&self.name, self.address, &self.content, &options.into())
    }

    fn receive_one(&mut self) -> io::Result<Option<Capture>> {
        let commit = loop {
            match number(&mut self.stream) {
                Ok(BEAT) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                other => break other?,
            }
        };
        let [whole, parts, left_out] = [number(&mut self.stream)?, number(&mut self.stream)?, number(&mut self.stream)?];
        let pages = (self.content.len() / PAGE_SIZE) as u64;
        if commit != self.commits + 1 || [whole, parts, left_out].iter().any(|count| *count > pages) {
            return Err(nonsense(format!(
                "commit {commit} with {whole} pages, parts of {parts} and {left_out} gaps, after commit {}",
                self.commits
            )));
        }
        // All of it first: what arrives in part must not be applied.
        let mut changes = Changes::default();
        for _ in 0..whole {
            let at = self.page(pages)?;
            changes.take(&mut self.stream, at, PAGE_SIZE)?;
        }
        for _ in 0..parts {
            let at = self.page(pages)?;
            let mut mask = [0; 8];
            for bits in &mut mask {
                *bits = number(&mut self.stream)?;
            }
            for word in ones(&mask) {
                changes.take(&mut self.stream, at + word * 8, 8)?;
            }
        }
        let excluded = self.left_out(left_out, pages)?;
        let touched: PageSet = changes
            .places
            .iter()
            .flat_map(|place| place.start / PAGE_SIZE..place.end.div_ceil(PAGE_SIZE))
            .map(|page| page as PageNumber)
            .collect();
        changes.apply(&mut self.content);
        let dropped = &excluded - &self.excluded;
        for page in &dropped {
            self.content[page as usize * PAGE_SIZE..][..PAGE_SIZE].fill(0);
        }
        self.excluded = excluded;
        self.commits = commit;
        let details = Details::new(self.address, &self.excluded);
        Ok(Some(Capture::copy(&self.name, &self.content, (touched - &self.excluded).into(), dropped, details, &self.spare)))
    }

    /// Pages that are no part of the area, in so many runs.
    fn left_out(&mut self, runs: u64, pages: u64) -> io::Result<PageSet> {
        let mut excluded = PageSet::new();
        for _ in 0..runs {
            let first = (self.page(pages)? / PAGE_SIZE) as PageNumber;
            let mut count = [0; 4];
            self.stream.read_exact(&mut count)?;
            let count = PageNumber::from_le_bytes(count);
            if count == 0 || u64::from(first) + u64::from(count) > pages {
                return Err(nonsense(format!("{count} pages from {first} on, of {pages}, are left out")));
            }
            excluded.insert_range(first..=first + (count - 1));
        }
        Ok(excluded)
    }

    fn page(&mut self, pages: u64) -> io::Result<usize> {
        let mut page = [0; 4];
        self.stream.read_exact(&mut page)?;
        let page = PageNumber::from_le_bytes(page);
        if u64::from(page) < pages { Ok(page as usize * PAGE_SIZE) } else { Err(nonsense(format!("page {page} of {pages}"))) }
    }
}

fn refuse(stream: &mut impl Write, why: &str) {
    let why = &why.as_bytes()[..why.len().min(TEXT_MAX as usize)];
    let said = [&0_u64.to_le_bytes(), &(why.len() as u64).to_le_bytes(), why].concat();
    // The stream is closed either way.
    let _ = stream.write_all(&said).and_then(|()| stream.flush());
}

/// What a commit changes: places, and their bytes one behind the other. Neighbours are one place, so that words cost little more than what is in them.
#[derive(Default)]
struct Changes {
    places: Vec<Range<usize>>,
    bytes: Vec<u8>,
}

impl Changes {
    fn take(&mut self, from: &mut impl Read, at: usize, length: usize) -> io::Result<()> {
        let have = self.bytes.len();
        self.bytes.resize(have + length, 0);
        from.read_exact(&mut self.bytes[have..])?;
        match self.places.last_mut() {
            Some(last) if last.end == at => last.end += length,
            _ => self.places.push(at..at + length),
        }
        Ok(())
    }

    fn apply(self, content: &mut [u8]) {
        let mut bytes = &self.bytes[..];
        for place in self.places {
            let (now, rest) = bytes.split_at(place.len());
            content[place].copy_from_slice(now);
            bytes = rest;
        }
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
