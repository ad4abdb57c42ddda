//! What lies in the packs of a remote, by their tables of contents.

use super::{Name, Remote, apart, damaged, in_parallel, is_damage, lease::Going, list, place};
use crate::{
    Error, Progress, Result, Store, chunks,
    cipher::hidden,
    files::{FileSystem, make_directory},
    hash,
    pack::{
        Kind,
        contents::{self, Contents, TRAILER},
        frame::BLOB_MAX,
    },
};
use fermata_types::PackId;
use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

/// The end of a pack that is fetched at first. It has the table of contents of most.
const TAIL: u64 = 256 << 10;
/// Bytes of a pack at most: of the largest blob, and what is gathered besides. One that is said to be longer is not read.
const PACK_MAX: u64 = BLOB_MAX as u64 + (256 << 20);

/// A pack on a remote.
pub(super) struct RemotePack {
    pub id: PackId,
    /// Bytes of the object.
    pub length: u64,
    pub contents: Contents,
}

impl RemotePack {
    /// The name of the number that a pack begins with, which is that of who pushed it.
    fn number(&self) -> Option<&Name> {
        self.contents.entries.first().filter(|entry| entry.kind == Kind::Blob)?.names.first()
    }
}

/// Where an object lies: pack, frame, and place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub pack: u32,
    pub frame: u32,
    pub place: u16,
}

/// All packs of a remote as of one look.
pub(super) struct Catalog {
    pub packs: Vec<RemotePack>,
    /// Those that are about to go: announced, or of a push that was taken for dead.
    pub going: HashSet<PackId>,
    /// What is wrong with those whose tables of contents cannot be read. What lies in them counts as not there.
    pub unreadable: Vec<String>,
    places: HashMap<Name, Place>,
}

impl Catalog {
    /// Reads the tables of contents of all packs: those that were read before from a cache beside the store, unless all are to be read `afresh`. What lies in several packs
    /// is found in one that is not about to go, if there is such a one.
    pub fn read(
        store: &Store,
        remote: &dyn Remote,
        jobs: usize,
        going: &Going,
        afresh: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let listed = packs_on(remote)?;
        let (mut done, total) = (0, listed.len() as u64);
        let (mut packs, mut unreadable) = (Vec::with_capacity(listed.len()), Vec::new());
        let read = |(id, length): &(PackId, u64)| apart(contents_of(store, remote, id, *length, afresh));
        in_parallel(jobs, &listed, read, |(id, length), contents| {
            match contents {
                // One that somebody has just removed is not there: nothing needed it there.
                Ok(contents) => packs.extend(contents.map(|contents| RemotePack { id: *id, length: *length, contents })),
                // Whoever needs something of it is told then; the others are not kept from theirs.
                Err(error) => {
                    tracing::warn!("what lies in this pack counts as not there: {error}");
                    unreadable.push(error.to_string());
                }
            }
            done += 1;
            progress(Progress { done, total });
            Ok(())
        })?;
        let dead: HashSet<Name> = going.dead.iter().map(|number| hash::blob(number.as_bytes()).0).collect();
        let goes = |pack: &&RemotePack| going.packs.contains(&pack.id) || pack.number().is_some_and(|number| dead.contains(number));
        let going: HashSet<_> = packs.iter().filter(goes).map(|pack| pack.id).collect();
        packs.sort_by_key(|pack| (going.contains(&pack.id), pack.id));
        let mut catalog = Self { packs: Vec::new(), going, unreadable, places: HashMap::new() };
        packs.into_iter().for_each(|pack| catalog.add(pack));
        Ok(catalog)
    }

    fn add(&mut self, pack: RemotePack) {
        let number = self.packs.len() as u32;
        for (frame, entry) in (0..).zip(&pack.contents.entries) {
            for (place, name) in (0..).zip(&entry.names) {
                self.places.entry(*name).or_insert(Place { pack: number, frame, place });
            }
        }
        self.packs.push(pack);
    }

    /// Where an object lies, if it is there.
    pub fn find(&self, name: &Name) -> Option<Place> {
        self.places.get(name).copied()
    }

    /// The names of all objects in packs that are not about to go.
    pub fn staying(&self) -> impl Iterator<Item = &Name> {
        self.places.iter().filter(|(_, place)| !self.goes(place)).map(|(name, _)| name)
    }

    /// Whether a place is in a pack that is about to go.
    pub fn goes(&self, at: &Place) -> bool {
        self.going.contains(&self.packs[at.pack as usize].id)
    }
}

/// The packs of a remote, and how long each is.
pub(super) fn packs_on(remote: &dyn Remote) -> Result<Vec<(PackId, u64)>> {
    // What else lies there is none of ours.
    let id = |name: &str| name.strip_suffix(".pack")?.rsplit('/').next()?.parse().ok();
    Ok(list(remote, "packs/")?.into_iter().filter_map(|(name, length)| Some((id(&name)?, length))).collect())
}

/// What a pack is called on a remote.
pub(super) fn pack_name(id: &PackId) -> String {
    let text = id.to_string();
    format!("packs/{}/{text}.pack", &text[..2])
}

/// The table of contents of a pack, checked against its id; none: it is gone. `afresh`: whatever is in the cache.
fn contents_of(store: &Store, remote: &dyn Remote, id: &PackId, length: u64, afresh: bool) -> Result<Option<Contents>> {
    let cache = cache_of(store, id);
    // One that has another length now is looked at again.
    let known = chunks::read(&cache, &store.0.sealing).ok().filter(|bytes| ends_at(bytes) == Some(length));
    if !afresh && let Some(contents) = known.as_ref().and_then(|bytes| decode(bytes, id)) {
        return Ok(Some(contents));
    }
    let first = known.map_or(TAIL, |bytes| (bytes.len() + TRAILER) as u64);
    match fetch_contents(remote, id, length, first) {
        Ok(Some((contents, table))) => {
            // It is only a cache.
            let _ = keep(store, &cache, &table);
            Ok(Some(contents))
        }
        Ok(None) => Ok(None),
        Err(error) => {
            if is_damage(&error) {
                // Nobody is to count on what it once had.
                let _ = fs::remove_file(&cache);
            }
            Err(error)
        }
    }
}

/// The table of contents of a pack from the remote, and what the cache has of it. So many bytes of its end are fetched at first.
fn fetch_contents(remote: &dyn Remote, id: &PackId, length: u64, first: u64) -> Result<Option<(Contents, Vec<u8>)>> {
    let object = pack_name(id);
    let wrong = |detail: String| damaged(remote, &object, detail);
    if length > PACK_MAX {
        return Err(wrong(format!("a pack of {length} bytes is beyond the limits")));
    }
    let tail = |most: u64| remote.tail(&object, most).map_err(Error::io("read", &place(remote, &object)));
    let Some(mut end) = tail(first)? else { return Ok(None) };
    let trailer = end.last_chunk::<TRAILER>().ok_or_else(|| wrong("it is too short for a pack".into()))?;
    let (at, bytes) = contents::check_trailer(trailer, id, length).map_err(wrong)?;
    let wanted = bytes + TRAILER as u64;
    if (end.len() as u64) < wanted {
        let Some(all) = tail(wanted)? else { return Ok(None) };
        end = all;
    }
    let from = (end.len() as u64).checked_sub(wanted).ok_or_else(|| wrong("it ends before its table of contents".into()))? as usize;
    let table = [&at.to_le_bytes()[..], &end[from..from + bytes as usize]].concat();
    let contents = decode(&table, id).ok_or_else(|| wrong("its table of contents does not fit its name".into()))?;
    Ok(Some((contents, table)))
}

/// Writes a file some directories below the store. A store that is gone is not made anew for it.
fn keep(store: &Store, file: &Path, bytes: &[u8]) -> Result<()> {
    let mut levels: Vec<_> = file.ancestors().skip(1).take_while(|level| *level != store.path()).collect();
    while let Some(level) = levels.pop() {
        make_directory(&FileSystem, level)?;
    }
    fs::write(file, chunks::sealed(&store.0.sealing, bytes)).map_err(Error::io("write", file))
}

/// Where a table lay in its pack (8 bytes), and the table.
fn decode(bytes: &[u8], id: &PackId) -> Option<Contents> {
    let (at, table) = bytes.split_first_chunk()?;
    (hash::contents(table) == *id).then(|| Contents::decode(table, u64::from_le_bytes(*at)).ok()).flatten()
}

/// The length of the pack that a table lay in.
fn ends_at(bytes: &[u8]) -> Option<u64> {
    let (at, table) = bytes.split_first_chunk()?;
    u64::from_le_bytes(*at).checked_add((table.len() + TRAILER) as u64)
}

fn cache_of(store: &Store, id: &PackId) -> PathBuf {
    let text = PackId(hidden(&store.0.sealing, id.as_bytes())).to_string();
    store.path().join("remotes").join("contents").join(&text[..2]).join(text)
}
