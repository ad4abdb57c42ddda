//! Remote stores: checkpoints copied to a place that knows only names and bytes, such as object storage, and back.
//!
//! - `catalog`: what lies in the packs of a remote; `identity`: whether it is the remote that is meant
//! - `lines`: who descends from whom; `lease`: who pushes and who removes at the same time
//! - `prune`: removes what nothing on a remote needs
//! - `push`: packs what a remote lacks, and sends it
//! - `image`: golden images, sent and made again
//! - `shelf`: packs that came; `pull`: fetches what this store lacks, and puts it through the writer like any checkpoint
//! - `away`: reads a checkpoint from a remote before it is here, and fetches it behind whoever does; `arriving`: so with the golden images that it stands on;
//!   `lacking`: what nobody has of it
//! - `present`: looks whether all of checkpoints is there
//!
//! A remote has packs, records and refs, see `docs/formats/remote.md`. Its packs are made for the journey: each has what was missing when it was sent, and
//! nothing else. An object is in a remote only once everything below it is; so where a node is found, nothing below it has to be looked for. That holds
//! after a crash at any point, because pages go first, nodes follow from the leaves up, and the record goes last. It does not hold where packs were lost or damaged;
//! [`Store::verify_remote`] tells what lacks something then, and [`Store::repair_remote`] sends that again. Nor does it hold in a store, where a collection may keep a node
//! only for another one that is a delta to it: who pulls looks below those, too.
//!
//! How bytes travel, and how fast, is the affair of whoever implements [`Remote`].

mod arriving;
mod away;
mod catalog;
mod identity;
mod image;
mod lacking;
mod lease;
mod lines;
mod present;
mod prune;
mod pull;
mod push;
mod shelf;
#[cfg(test)]
mod tests;

pub use away::{Away, AwayState};
pub use identity::{check_identity, identity, make_remote};
pub use present::Verified;
pub use prune::{PruneOptions, Pruned};
pub use pull::{Pull, PullOptions, Pulled};
pub use push::{PushOptions, Pushed};

use crate::{Error, Record, Result, Store, pack::frame::RECORD_MAX, refs::parents_first};
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    fmt::{self, Display},
    io,
    ops::Deref,
    path::PathBuf,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

/// Bytes that a file here is asked for, or given, at once while packs travel: on a kernel without preemption whoever is woken beside that waits until they have been copied.
pub const COPIED_AT_ONCE: usize = 64 << 10;
/// What the object [`FORMAT`] of a remote holds.
const FORMAT_TEXT: &str = "fermata remote 1\n";
const FORMAT: &str = "format";
const FORMAT_MAX: u64 = 64;
const REF_MAX: u64 = 80;
/// Small objects asked for at a time where nobody says how many.
const JOBS: usize = 4;
/// Bytes of what is remembered of a swapped-out experiment at most.
const SWAPPED_MAX: u64 = 4 << 20;

/// A place for objects: names, with `/` between their parts, and bytes. An object is there whole or not at all.
///
/// Names are made of letters, digits and `. _ - =`. What a remote says is not believed: all that comes from it is checked against the hash that names it.
pub trait Remote: Display + Send + Sync {
    /// What an object holds; none: there is no such object. Fails if there are more bytes than `most`.
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>>;

    /// The last bytes of an object, at most so many.
    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>>;

    /// So many bytes of an object from an offset on; fewer where it ends before.
    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>>;

    /// Makes an object. If there is one of this name it holds the same, and either may stay.
    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;

    /// Makes an object, or changes the one that holds `before`; none: there is none. False if it is not so, because somebody else was faster.
    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool>;

    /// Removes an object, if there is one.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Bytes that nobody else has drawn.
    fn unique(&self) -> io::Result<[u8; 16]>;

    /// The names of all objects that begin with this one, which ends with a `/`, and how many bytes each has.
    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>>;
}

/// Whoever has one behind a pointer has one.
impl<P> Remote for P
where
    P: Deref<Target: Remote> + Display + Send + Sync,
{
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        (**self).get(name, most)
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        (**self).tail(name, most)
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        (**self).range(name, from, length)
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        (**self).put(name, bytes)
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        (**self).swap(name, before, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        (**self).remove(name)
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        (**self).unique()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        (**self).list(prefix)
    }
}

/// What a copy is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CopyStage {
    /// Reads what lies in the packs of the remote; counts packs.
    Look,
    /// Compares; counts checkpoints.
    Compare,
    /// Sends or fetches; counts bytes when fetching, pages when sending.
    Transfer,
    /// Puts what was fetched into the store; counts checkpoints.
    Enter,
    /// Sends golden images, or makes them again; counts blocks.
    Images,
    /// Finds out what is needed; counts nodes of page tables.
    Mark,
    /// Waits for those who push meanwhile; counts them.
    Wait,
    /// Puts what is needed into packs that stay; counts objects.
    Rewrite,
    /// Removes what nothing needs; counts packs.
    Remove,
}

/// What somebody calls a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefName {
    /// A branch ends there.
    Branch(String),
    /// A tag is on it.
    Tag(String),
}

impl Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Tag(name) => write!(f, "tag {name}"),
        }
    }
}

impl Store {
    /// The checkpoints of an experiment on a remote.
    pub fn remote_checkpoints(&self, remote: &dyn Remote, experiment: &str) -> Result<Vec<CheckpointId>> {
        check_format(remote, false)?;
        checkpoints_on(remote, experiment)
    }

    /// Whether a place is not yet a remote. Fails if it is one that this version does not know.
    pub fn is_empty_remote(&self, remote: &dyn Remote) -> Result<bool> {
        Ok(get(remote, FORMAT, FORMAT_MAX)?.is_none() || check_format(remote, false).map(|()| false)?)
    }

    /// These checkpoints on a remote, and those before them that are there.
    pub fn remote_lines(&self, remote: &dyn Remote, experiment: &str, ids: &[CheckpointId]) -> Result<Vec<CheckpointId>> {
        let there: HashSet<_> = self.remote_checkpoints(remote, experiment)?.into_iter().collect();
        let (mut line, mut seen) = (Vec::new(), HashSet::new());
        for id in ids {
            let mut at = Some(*id);
            while let Some(id) = at.filter(|id| there.contains(id) && seen.insert(*id)) {
                line.push(id);
                // Of one that is damaged nobody knows from whom it descends; whoever wants it finds it so again.
                let Ok((found, _)) = apart(record(remote, experiment, &id))? else { break };
                at = lines::nearest(remote, experiment, found.parent, |id| Ok(there.contains(id)))?.0;
            }
        }
        Ok(line)
    }

    /// The records of an experiment on a remote, parents before children, each with the nearest of its ancestors that is there as its parent.
    pub fn remote_records(&self, remote: &dyn Remote, experiment: &str, jobs: usize) -> Result<Vec<(CheckpointId, Record)>> {
        let ids = self.remote_checkpoints(remote, experiment)?;
        let there: HashSet<_> = ids.iter().copied().collect();
        let read = |id: &CheckpointId| {
            let record = record(remote, experiment, id)?.0;
            let parent = lines::nearest(remote, experiment, record.parent, |id| Ok(there.contains(id)))?.0;
            Ok(Record { parent, ..record })
        };
        let mut records = BTreeMap::new();
        in_parallel(jobs.max(1), &ids, read, |id, record| {
            records.insert(*id, record);
            Ok(())
        })?;
        Ok(parents_first(records))
    }

    /// Checkpoints of an experiment that were removed from a remote.
    pub fn remote_removed(&self, remote: &dyn Remote, experiment: &str) -> Result<HashSet<CheckpointId>> {
        lines::all(remote, experiment)
    }

    /// The record of a checkpoint on a remote, checked against its id.
    pub fn remote_record(&self, remote: &dyn Remote, experiment: &str, id: &CheckpointId) -> Result<Record> {
        Ok(record(remote, experiment, id)?.0)
    }

    /// The experiments of which a remote has checkpoints.
    pub fn remote_experiments(&self, remote: &dyn Remote) -> Result<Vec<String>> {
        check_format(remote, false)?;
        let names = list(remote, "records/")?;
        let mut experiments: Vec<_> = names.iter().filter_map(|(name, _)| unescape(name.split_once('/')?.0)).collect();
        experiments.sort();
        experiments.dedup();
        Ok(experiments)
    }

    /// Branches and tags of an experiment on a remote.
    pub fn remote_refs(&self, remote: &dyn Remote, experiment: &str) -> Result<BTreeMap<RefName, CheckpointId>> {
        let mut objects = Vec::new();
        for (kind, of) in [("b", RefName::Branch as fn(String) -> RefName), ("t", RefName::Tag)] {
            let prefix = format!("refs/{}/{kind}/", escape(experiment));
            for (name, _) in list(remote, &prefix)? {
                let object = format!("{prefix}{name}");
                let name = unescape(&name).ok_or_else(|| damaged(remote, &object, "its name is none"))?;
                objects.push((of(name), object));
            }
        }
        let mut refs = BTreeMap::new();
        in_parallel(
            JOBS,
            &objects,
            |(_, object)| get(remote, object, REF_MAX),
            |(name, object), bytes| {
                if let Some(bytes) = bytes {
                    refs.insert(name.clone(), parse_ref(remote, object, &bytes)?);
                }
                Ok(())
            },
        )?;
        Ok(refs)
    }

    /// Moves a branch or tag on a remote, or makes it, if it is still where it was `before`.
    ///
    /// Whoever removes checkpoints there looks at the branches after that, and this looks at the checkpoint after the branch: so one of them sees the other.
    /// A new branch may then be on a checkpoint that is [`Gone`](RefSet::Gone), until that is pushed again.
    pub fn set_remote_ref(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        name: &RefName,
        before: Option<&CheckpointId>,
        id: &CheckpointId,
    ) -> Result<RefSet> {
        let (kind, name) = match name {
            RefName::Branch(name) => ("b", name),
            RefName::Tag(name) => ("t", name),
        };
        let object = format!("refs/{}/{kind}/{}", escape(experiment), escape(name));
        let text = |id: &CheckpointId| format!("{id}\n").into_bytes();
        let swap = |from: Option<&CheckpointId>, to: &CheckpointId| {
            remote.swap(&object, from.map(text).as_deref(), text(to)).map_err(Error::io("write", &place(remote, &object)))
        };
        let is_there = || get(remote, &record_name(experiment, id), RECORD_MAX as u64).map(|found| found.is_some());
        if !is_there()? {
            return Ok(RefSet::Gone);
        }
        // An earlier try may have set it.
        if !swap(before, id)? && get(remote, &object, REF_MAX)? != Some(text(id)) {
            return Ok(RefSet::Elsewhere);
        }
        if is_there()? {
            return Ok(RefSet::Done);
        }
        if let Some(before) = before {
            swap(Some(id), before)?;
        }
        Ok(RefSet::Gone)
    }
}

/// What came of setting a branch or a tag on a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefSet {
    /// It is there.
    Done,
    /// Somebody else moved it meanwhile.
    Elsewhere,
    /// Somebody removed the checkpoint there. When it was pushed again, this can be tried again.
    Gone,
}

impl Store {
    /// What a remote remembers of an experiment that was swapped out; none: nobody swapped it out there.
    pub fn remote_swapped(&self, remote: &dyn Remote, experiment: &str) -> Result<Option<Vec<u8>>> {
        check_format(remote, false)?;
        get(remote, &swapped_name(experiment), SWAPPED_MAX)
    }

    /// Has a remote remember an experiment that was swapped out, in place of what it remembered `before`. False: somebody else swapped it out meanwhile.
    pub fn set_remote_swapped(&self, remote: &dyn Remote, experiment: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> Result<bool> {
        let object = swapped_name(experiment);
        remote.swap(&object, before, bytes).map_err(Error::io("write", &place(remote, &object)))
    }

    /// The experiments that were swapped out to a remote.
    pub fn remote_swapped_experiments(&self, remote: &dyn Remote) -> Result<Vec<String>> {
        check_format(remote, false)?;
        Ok(list(remote, "swapped/")?.into_iter().filter_map(|(name, _)| unescape(&name)).collect())
    }
}

fn swapped_name(experiment: &str) -> String {
    format!("swapped/{}", escape(experiment))
}

fn checkpoints_on(remote: &dyn Remote, experiment: &str) -> Result<Vec<CheckpointId>> {
    let names = list(remote, &format!("records/{}/", escape(experiment)))?;
    Ok(names.into_iter().filter_map(|(name, _)| name.parse().ok()).collect())
}

/// A record on a remote, and its bytes.
fn record(remote: &dyn Remote, experiment: &str, id: &CheckpointId) -> Result<(Record, Vec<u8>)> {
    let object = record_name(experiment, id);
    let bytes = get(remote, &object, RECORD_MAX as u64)?.ok_or_else(|| {
        Error::refused(format!("{remote} has no checkpoint {id}"), "push it there first; or look whether it is the right place")
    })?;
    let record = Record::decode(&bytes, id, &place(remote, &object))?;
    if record.experiment != experiment {
        return Err(damaged(remote, &object, "it is of another experiment"));
    }
    Ok((record, bytes))
}

fn record_name(experiment: &str, id: &CheckpointId) -> String {
    format!("records/{}/{id}", escape(experiment))
}

/// Whether a remote is one, of a version that we know. An empty place becomes one where that is allowed.
fn check_format(remote: &dyn Remote, make: bool) -> Result<()> {
    let path = place(remote, FORMAT);
    match get(remote, FORMAT, FORMAT_MAX)? {
        Some(bytes) if bytes == FORMAT_TEXT.as_bytes() => Ok(()),
        Some(bytes) => {
            let what = format!("the format {:?}", String::from_utf8_lossy(&bytes).trim_end());
            Err(Error::Unsupported { path, what })
        }
        None if !make => Err(Error::refused(
            format!("there are no checkpoints at {remote}"),
            "`fermata push` puts some there; look whether it is the right place",
        )),
        // Another one who was as fast wrote the same.
        None => remote.swap(FORMAT, None, FORMAT_TEXT.into()).map(drop).map_err(Error::io("write", &path)),
    }
}

fn parse_ref(remote: &dyn Remote, object: &str, bytes: &[u8]) -> Result<CheckpointId> {
    let id = std::str::from_utf8(bytes).ok().and_then(|text| text.strip_suffix('\n')?.parse().ok());
    id.ok_or_else(|| damaged(remote, object, "it is no checkpoint's id"))
}

fn get(remote: &dyn Remote, object: &str, most: u64) -> Result<Option<Vec<u8>>> {
    remote.get(object, most).map_err(Error::io("read", &place(remote, object)))
}

/// The names below a prefix, without it.
fn list(remote: &dyn Remote, prefix: &str) -> Result<Vec<(String, u64)>> {
    let listed = remote.list(prefix).map_err(Error::io("list", &place(remote, prefix)))?;
    Ok(listed.into_iter().filter_map(|(name, bytes)| Some((name.strip_prefix(prefix)?.to_owned(), bytes))).collect())
}

/// What errors call an object.
fn place(remote: &dyn Remote, object: &str) -> PathBuf {
    PathBuf::from(format!("{remote}/{object}"))
}

fn damaged(remote: &dyn Remote, object: &str, detail: impl Into<String>) -> Error {
    Error::corrupt(&place(remote, object), None, "what lies there", detail)
}

/// A name of a person's as a part of an object's: other bytes than letters, digits and `. _ -` become `=` and two digits.
fn escape(name: &str) -> String {
    // In a path these are no names.
    if matches!(name, "." | "..") {
        return name.replace('.', "=2e");
    }
    let escaped = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
        _ => format!("={byte:02x}"),
    };
    name.bytes().map(escaped).collect()
}

fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'=' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Does something with each of these, several at a time, and tells of each that is done. Ends at the first failure.
fn in_parallel<T: Sync, R: Send>(
    jobs: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
    mut done: impl FnMut(&T, R) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(jobs);
        for _ in 0..jobs.min(items.len()) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // Nobody listens any more: somebody else failed.
                    if sender.send((item, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (item, result) in receiver {
            done(item, result?)?;
        }
        Ok(())
    })
}

/// Whether something is not there, or is not what it should be: asking again does not help, and what does not need it is none the worse for it.
pub fn is_damage(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::Missing { .. } | Error::Refused { .. } | Error::Unsupported { .. } => true,
        // What is encrypted says so of its contents.
        Error::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// What came of something, or what is damaged; apart from failures that may be none the next time.
fn apart<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if !is_damage(&error) => Err(error),
        done => Ok(done),
    }
}

/// Names of objects that are there, and of what.
type Name = [u8; 32];
