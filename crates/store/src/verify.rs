//! Verifying: everything is read and held against its name, and damage is traced to the checkpoints, parts and pages that it touches.
//!
//! Packs are read frame by frame, the index is compared with them entry by entry, then the tables of all checkpoints are walked, each node
//! once. Only if something is damaged they are walked again, to find out who needs it. What is kept in memory is the names of nodes and of what
//! is damaged, and one table of contents at a time.

use crate::{
    Error, Progress, Record, Result, Store,
    collect::{Turn, check_object},
    error::Named,
    index::{Location, ScanFrom},
    node::{Node, Stored},
    pack::{
        Kind, PackFile,
        contents::{self, Contents},
    },
    refs,
    table::{self, Nodes as _},
};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PAGE_SIZE, PackId, PageName, PageNumber, Root, id::hex};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

/// Damage listed at most.
const DAMAGE_MAX: usize = 10_000;
/// Entries of the index looked at together.
const ENTRIES: usize = 1 << 18;

/// How to verify.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VerifyOptions {
    /// Do not read the contents of pages: tables of contents, nodes, blobs, records and the index only.
    pub quick: bool,
}

/// What a verification is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum VerifyStage {
    /// Reads the packs; counts bytes.
    Packs,
    /// Compares the index with the packs; counts entries.
    Index,
    /// Walks the tables of the checkpoints; counts checkpoints.
    Checkpoints,
    /// Reads the golden images that are open; counts blocks.
    Images,
    /// Finds out what damage touches; counts checkpoints.
    Damage,
}

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Packs read.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packs of an older version, without a checksum: a flipped bit in one of them that harms no object is not noticed.
    #[serde(default)]
    pub packs_unguarded: u64,
    /// Checkpoints whose records and tables were read.
    pub checkpoints: u64,
    /// Pages read and checked against their names; 0 when quick.
    pub pages: u64,
    /// Nodes, blobs and records read and checked against their names.
    pub objects: u64,
    /// Entries of the index compared with the packs.
    pub entries: u64,
    /// Files of packs that nothing names. They do no harm; a collection removes those that it can read.
    pub orphans: u64,
    /// Golden images that were not looked at, since nobody has them open here.
    pub images_unchecked: Vec<ImageId>,
    /// All damage found; empty: the store is whole.
    pub damage: Vec<Damage>,
    /// Damage found beyond what is listed.
    pub damage_more: u64,
}

/// One thing that is damaged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The file, or the directory of the index.
    pub path: PathBuf,
    /// Where in the file.
    pub offset: Option<u64>,
    /// What it is: `page 12ab...`.
    pub object: String,
    /// What is wrong with it.
    pub detail: String,
    /// What it touches; empty: no checkpoint needs it.
    pub touches: Vec<Touched>,
    /// What to do about it.
    pub remedy: Remedy,
}

/// What to do about damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Remedy {
    /// Put the file back from a copy; or remove the checkpoints that it touches and collect. They cannot be loaded whole.
    Restore,
    /// Build the index again (`rebuild`): the packs are right.
    Rebuild,
    /// Put the golden image back as it was.
    Image,
    /// Nothing needs it: a collection removes it, or writes it again.
    Collect,
    /// Nothing is lost: all that the file has can be read. Put it back from a copy, or leave it; where a collection rewrites the pack, that mends it.
    Nothing,
    /// Remove the file: what it tells is found again when it is needed.
    Remove,
}

/// What damage touches: pages of a part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touched {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its experiment.
    pub experiment: String,
    /// The branch that it grew on.
    pub branch: String,
    /// The part; empty when it is the checkpoint as a whole.
    pub part: String,
    /// The table (`ram`, `blocks`) or the blob (`devices`) of the part; empty when it is the checkpoint as a whole.
    pub table: String,
    /// Ranges of pages, first and last, in order; empty when it is a blob or the checkpoint as a whole.
    pub pages: Vec<(PageNumber, PageNumber)>,
}

impl Store {
    /// Reads everything and checks it against its name: packs, index, records, branches and tags, tables down to pages, the files beside them, and the
    /// blocks of golden images that are open. Any flipped bit is found that is not in the free space of the index. Others may write meanwhile; a
    /// collection waits.
    ///
    /// Damage is no error: it is in the report. Errors are what keeps the verification from going on.
    pub fn verify(&self, options: &VerifyOptions, progress: &mut dyn FnMut(VerifyStage, Progress)) -> Result<Report> {
        self.0.index.check()?;
        let _no_collection = Turn::together(self)?;
        self.0.forget();
        let mut verification = Verification {
            store: self,
            quick: options.quick,
            progress,
            report: Report::default(),
            bad: HashMap::new(),
            unlisted: HashMap::new(),
            unfit: Vec::new(),
            checked: HashSet::new(),
        };
        verification.packs()?;
        verification.index()?;
        verification.small_databases()?;
        verification.refs()?;
        verification.checkpoints()?;
        verification.checksums();
        verification.images()?;
        verification.files()?;
        verification.touches()?;
        Ok(verification.report)
    }
}

/// What kind of name it is.
type Name = (Kind, [u8; 32]);

struct Verification<'a> {
    store: &'a Store,
    quick: bool,
    progress: &'a mut dyn FnMut(VerifyStage, Progress),
    report: Report,
    /// Objects that cannot be had, and where in the report that is said.
    bad: HashMap<Name, usize>,
    /// Packs without a table of contents that can be read, and where in the report that is said.
    unlisted: HashMap<u32, usize>,
    /// Packs whose bytes do not fit their checksums.
    unfit: Vec<PathBuf>,
    /// Nodes below which all was seen to be there.
    checked: HashSet<NodeName>,
}

impl Verification<'_> {
    fn add(&mut self, path: &Path, offset: Option<u64>, object: String, detail: String, remedy: Remedy) -> usize {
        if self.report.damage.len() == DAMAGE_MAX {
            self.report.damage_more += 1;
            return DAMAGE_MAX;
        }
        self.report.damage.push(Damage { path: path.to_owned(), offset, object, detail, touches: Vec::new(), remedy });
        self.report.damage.len() - 1
    }

    /// Puts an error of reading something into the report; others are passed on.
    fn add_error(&mut self, error: Error, remedy: Remedy) -> Result<usize> {
        match error {
            Error::Corrupt { path, offset, object, detail } => Ok(self.add(&path, offset, object, detail, remedy)),
            Error::Io { path, action, source } if source.kind() == io::ErrorKind::NotFound => {
                Ok(self.add(&path, None, "the file".into(), format!("cannot {action} it: {source}"), remedy))
            }
            Error::Missing { what, .. } => {
                let path = self.store.0.index.path().to_owned();
                Ok(self.add(&path, None, what, "the index does not find it".into(), Remedy::Rebuild))
            }
            Error::Unsupported { path, what } => Ok(self.add(&path, None, what, "it is of another version".into(), remedy)),
            error => Err(error),
        }
    }

    fn packs(&mut self) -> Result<()> {
        let inner = &self.store.0;
        let packs = inner.index.all_packs(&*inner.index.read()?)?;
        let length = |id| inner.shelf().place(id).metadata().map_or(0, |file| file.len());
        let total = packs.iter().map(|(_, id)| length(id)).sum();
        for (number, id) in &packs {
            (self.progress)(VerifyStage::Packs, Progress { done: self.report.bytes, total });
            self.report.packs += 1;
            let opened = PackFile::open(&inner.shelf(), id).and_then(|file| Ok((file.contents(id)?, file)));
            match opened {
                Ok((contents, file)) => self.pack(*number, &file, &contents)?,
                Err(error) => {
                    let at = self.add_error(error, Remedy::Restore)?;
                    self.unlisted.insert(*number, at);
                }
            }
            self.report.bytes += length(id);
        }
        for (_, id) in inner.shelf().list()? {
            let known = inner.index.has(&*inner.index.read()?, &inner.index.pack_numbers, id.as_bytes())?;
            self.report.orphans += u64::from(!known);
        }
        (self.progress)(VerifyStage::Packs, Progress { done: total, total });
        Ok(())
    }

    fn pack(&mut self, number: u32, file: &PackFile, contents: &Contents) -> Result<()> {
        let (mut sum, mut bytes) = (crc32fast::Hasher::new(), Vec::new());
        file.span(0, contents::HEADER, &"header of the pack", &mut bytes)?;
        sum.update(&bytes);
        for entry in &contents.entries {
            if self.quick && entry.kind == Kind::Pages {
                continue;
            }
            let label = |name: &[u8; 32]| Named(label(entry.kind), name).to_string();
            let all = || format!("{} and {} others beside it", label(&entry.names[0]), entry.names.len() - 1);
            let corrupt = |detail: &str| Error::corrupt(file.path(), entry.offset, all(), detail);
            let read = file.span(entry.offset, entry.length as usize, &all(), &mut bytes).and_then(|()| {
                sum.update(&bytes);
                let frame = file.decode(&bytes, entry.offset, &all())?;
                let fits = frame.kind == entry.kind && frame.objects == entry.names.len();
                if fits { Ok(frame) } else { Err(corrupt("it is not what the table of contents says")) }
            });
            let frame = match read {
                Ok(frame) => frame,
                Err(error) => {
                    let at = self.add_error(error, Remedy::Restore)?;
                    entry
                        .names
                        .iter()
                        .zip(0..)
                        .try_for_each(|(name, place)| self.lose(entry.kind, name, (number, entry.offset, place), at))?;
                    continue;
                }
            };
            for (name, place) in entry.names.iter().zip(0..) {
                let checked = frame.object(place.into()).and_then(|bytes| check_object(entry.kind, name, bytes));
                if let Err(detail) = checked {
                    let at = self.add(file.path(), Some(entry.offset), label(name), detail, Remedy::Restore);
                    self.lose(entry.kind, name, (number, entry.offset, place), at)?;
                }
            }
            let count = if entry.kind == Kind::Pages { &mut self.report.pages } else { &mut self.report.objects };
            *count += entry.names.len() as u64;
            if entry.kind == Kind::Record {
                self.record_is_known(file, &CheckpointId(entry.names[0]))?;
            }
        }
        let end = contents.entries.last().map_or(contents::HEADER as u64, |last| last.offset + u64::from(last.length));
        match file.sum()? {
            None => self.report.packs_unguarded += 1,
            Some(_) if self.quick => {}
            Some(expected) if file.sum_from(end, sum)? == expected => {}
            Some(_) => self.unfit.push(file.path().to_owned()),
        }
        Ok(())
    }

    /// What a checksum tells, where nothing else that was found in the pack is the reason. Comes after the tables were walked: only then it is
    /// known that nodes stored as deltas are right.
    fn checksums(&mut self) {
        for path in std::mem::take(&mut self.unfit) {
            if self.report.damage.iter().all(|damage| damage.path != path) {
                let detail =
                    "its bytes do not fit its checksum, but every object in it that is needed fits its name: nothing is lost".into();
                self.add(&path, None, "the pack".into(), detail, Remedy::Nothing);
            }
        }
    }

    /// Notes that an object cannot be had, if this is where the index finds it.
    fn lose(&mut self, kind: Kind, name: &[u8; 32], here: (u32, u64, u16), at: usize) -> Result<()> {
        let index = &self.store.0.index;
        let is_used = kind == Kind::Record
            || match index.get(&*index.read()?, index.of_kind(kind), name)?.as_deref().and_then(Location::decode) {
                Some(Location::Pack { pack, offset, place, .. }) => (pack, offset, place) == here,
                _ => false,
            };
        if is_used {
            self.bad.entry((kind, *name)).or_insert(at);
        }
        Ok(())
    }

    fn record_is_known(&mut self, file: &PackFile, id: &CheckpointId) -> Result<()> {
        let index = &self.store.0.index;
        let known = {
            let read = index.read()?;
            index.has(&read, &index.records, id.as_bytes())? || index.has(&read, &index.removed, id.as_bytes())?
        };
        if !known {
            let detail = "it lies in the pack, but the index does not know it".into();
            self.add(file.path(), None, Named("checkpoint", id.as_bytes()).to_string(), detail, Remedy::Rebuild);
        }
        Ok(())
    }

    /// Every entry of the index leads to what it names.
    fn index(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        let total = {
            let read = index.read()?;
            [Kind::Pages, Kind::Nodes, Kind::Blob].iter().map(|kind| index.count(&read, index.of_kind(*kind))).sum::<Result<u64>>()?
        };
        for kind in [Kind::Pages, Kind::Nodes, Kind::Blob] {
            let mut last: Option<Vec<u8>> = None;
            loop {
                (self.progress)(VerifyStage::Index, Progress { done: self.report.entries.min(total), total });
                let mut entries: Vec<(Location, [u8; 32])> = Vec::new();
                let mut broken = Vec::new();
                let mut seen = 0;
                let from = last.as_deref().map_or(ScanFrom::Start, ScanFrom::Behind);
                let mut reached = None;
                index.scan(&*index.read()?, index.of_kind(kind), from, |key, value| {
                    match (<[u8; 32]>::try_from(key), Location::decode(value)) {
                        (Ok(name), Some(location)) => entries.push((location, name)),
                        _ => broken.push(key.to_vec()),
                    }
                    reached = Some(key.to_vec());
                    seen += 1;
                    Ok(seen < ENTRIES)
                })?;
                for key in broken {
                    let name = hex(key.as_slice());
                    let at =
                        self.add(index.path(), None, format!("{} {name}", label(kind)), "its entry is no location".into(), Remedy::Rebuild);
                    if let Ok(name) = <[u8; 32]>::try_from(key.as_slice()) {
                        self.bad.entry((kind, name)).or_insert(at);
                    }
                }
                self.report.entries += seen as u64;
                entries.sort_unstable();
                self.entries(kind, &entries)?;
                if seen < ENTRIES {
                    break;
                }
                last = reached;
            }
        }
        (self.progress)(VerifyStage::Index, Progress { done: total, total });
        Ok(())
    }

    /// Holds entries of the index, sorted, against the tables of contents.
    fn entries(&mut self, kind: Kind, entries: &[(Location, [u8; 32])]) -> Result<()> {
        let inner = &self.store.0;
        let mut open: Option<(u32, Option<Contents>)> = None;
        for (location, name) in entries {
            let Location::Pack { pack, offset, place, length } = *location else { continue };
            if self.unlisted.contains_key(&pack) {
                continue;
            }
            let contents = match &open {
                Some((number, contents)) if *number == pack => contents,
                _ => {
                    // Bound before it is used: the transaction must not stay open.
                    let id = inner
                        .index
                        .get(&*inner.index.read()?, &inner.index.packs, &pack.to_be_bytes())?
                        .and_then(|id| id.as_ref().try_into().ok());
                    let id = id.map(PackId);
                    let contents = id.map(|id| PackFile::open(&inner.shelf(), &id)?.contents(&id)).transpose()?;
                    &open.insert((pack, contents)).1
                }
            };
            let found = contents.as_ref().and_then(|contents| {
                let entry = contents.entries.binary_search_by_key(&offset, |entry| entry.offset).ok().map(|at| &contents.entries[at])?;
                (entry.kind == kind && entry.length == length).then(|| entry.names.get(usize::from(place)))?
            });
            if found != Some(name) && self.is_still(kind, name, location)? {
                let what = Named(label(kind), name).to_string();
                let at = self.add(inner.index.path(), None, what, "it does not lie where its entry says".into(), Remedy::Rebuild);
                self.bad.entry((kind, *name)).or_insert(at);
            }
        }
        Ok(())
    }

    /// Whether the index still says this of an object: others write meanwhile.
    fn is_still(&self, kind: Kind, name: &[u8; 32], location: &Location) -> Result<bool> {
        let index = &self.store.0.index;
        Ok(index.get(&*index.read()?, index.of_kind(kind), name)?.as_deref().and_then(Location::decode) == Some(*location))
    }

    fn refs(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        let refs = match refs::all(index, &*index.read()?) {
            Ok(refs) => refs,
            Err(error) => {
                self.add_error(error, Remedy::Rebuild)?;
                return Ok(());
            }
        };
        for name in refs {
            if !index.has(&*index.read()?, &index.records, name.id.as_bytes())? {
                let what = format!("{} {}/{}", if name.is_branch { "branch" } else { "tag" }, name.experiment, name.name);
                self.add(index.path(), None, what, format!("it is on checkpoint {}, which is not there", name.id), Remedy::Rebuild);
            }
        }
        Ok(())
    }

    /// Ids of all checkpoints.
    fn ids(&self) -> Result<Vec<CheckpointId>> {
        let index = &self.store.0.index;
        let mut ids = Vec::new();
        index.scan(&*index.read()?, &index.records, ScanFrom::Start, |key, _| {
            ids.extend(<[u8; 32]>::try_from(key).map(CheckpointId));
            Ok(true)
        })?;
        ids.sort();
        Ok(ids)
    }

    /// The record of a checkpoint as it lies in the index; none if it was removed meanwhile.
    fn record(&self, id: &CheckpointId) -> Result<Option<Record>> {
        let index = &self.store.0.index;
        let read = index.read()?;
        index.get(&read, &index.records, id.as_bytes())?.map(|bytes| Record::decode(&bytes, id, index.path())).transpose()
    }

    fn checkpoints(&mut self) -> Result<()> {
        let ids = self.ids()?;
        let total = ids.len() as u64;
        for (done, id) in ids.iter().enumerate() {
            (self.progress)(VerifyStage::Checkpoints, Progress { done: done as u64, total });
            let record = match self.record(id) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(error) => {
                    self.add_error(error, Remedy::Rebuild)?;
                    continue;
                }
            };
            self.report.checkpoints += 1;
            for part in &record.parts {
                for root in part.tables.values() {
                    root.node.map_or(Ok(()), |node| self.walk(node))?;
                }
                part.blobs.values().try_for_each(|blob| self.is_there(Kind::Blob, blob.as_bytes()))?;
            }
        }
        (self.progress)(VerifyStage::Checkpoints, Progress { done: total, total });
        Ok(())
    }

    /// Looks at every node below this one that was not looked at before, and whether its pages are there.
    fn walk(&mut self, root: NodeName) -> Result<()> {
        let mut left = vec![root];
        while let Some(name) = left.pop() {
            if !self.checked.insert(name) || self.bad.contains_key(&(Kind::Nodes, name.0)) {
                continue;
            }
            let loaded = match self.store.0.load(&name) {
                Ok(loaded) => loaded,
                Err(error) => {
                    self.blame(Kind::Nodes, &name.0, error)?;
                    continue;
                }
            };
            for (_, entry) in loaded.node.iter() {
                match loaded.node.level {
                    0 => self.is_there(Kind::Pages, &entry)?,
                    _ => left.push(NodeName(entry)),
                }
            }
        }
        Ok(())
    }

    /// An object is in the index; and it can be read, if its pack could not be looked through.
    fn is_there(&mut self, kind: Kind, name: &[u8; 32]) -> Result<()> {
        if self.bad.contains_key(&(kind, *name)) || (kind == Kind::Pages && *name == fermata_types::ZERO_PAGE.0) {
            return Ok(());
        }
        let index = &self.store.0.index;
        let location = index.get(&*index.read()?, index.of_kind(kind), name)?.as_deref().and_then(Location::decode);
        let result = match location {
            None => Err(Error::missing(Named(label(kind), name).to_string(), "")),
            Some(Location::Pack { pack, .. }) if self.unlisted.contains_key(&pack) && !(self.quick && kind == Kind::Pages) => match kind {
                Kind::Pages => self.store.read_page(&PageName(*name), &mut [0; PAGE_SIZE]),
                _ => self.store.read_blob(&BlobName(*name)).map(|_| ()),
            },
            Some(_) => Ok(()),
        };
        result.or_else(|error| self.blame(kind, name, error))
    }

    /// Finds out what damage an object that cannot be read is due to.
    fn blame(&mut self, kind: Kind, name: &[u8; 32], error: Error) -> Result<()> {
        let base = match kind {
            Kind::Nodes => match self.store.0.stored_node(&NodeName(*name)) {
                Ok((Stored::Delta(delta), _)) => Some(delta.base.0),
                _ => None,
            },
            _ => None,
        };
        let mut known = None;
        for name in [Some(*name), base].into_iter().flatten() {
            known = known.or(self.bad.get(&(kind, name)).copied()).or(self.pack_damage(kind, &name)?);
        }
        let at = match known {
            Some(at) => at,
            None => self.add_error(error, Remedy::Restore)?,
        };
        self.bad.insert((kind, *name), at);
        Ok(())
    }

    /// The damage of the pack that an object lies in, if that could not be looked through.
    fn pack_damage(&self, kind: Kind, name: &[u8; 32]) -> Result<Option<usize>> {
        let index = &self.store.0.index;
        match index.get(&*index.read()?, index.of_kind(kind), name)?.as_deref().and_then(Location::decode) {
            Some(Location::Pack { pack, .. }) => Ok(self.unlisted.get(&pack).copied()),
            _ => Ok(None),
        }
    }

    /// Finds the checkpoints, parts and pages that need what is damaged.
    fn touches(&mut self) -> Result<()> {
        if self.bad.is_empty() {
            return Ok(());
        }
        let ids = self.ids()?;
        let total = ids.len() as u64;
        let mut clean = HashSet::new();
        for (done, id) in ids.iter().enumerate() {
            (self.progress)(VerifyStage::Damage, Progress { done: done as u64, total });
            let Ok(Some(record)) = self.record(id) else { continue };
            let touched = |part: &str, table: &str, pages| Touched {
                checkpoint: *id,
                experiment: record.experiment.clone(),
                branch: record.branch.clone(),
                part: part.to_owned(),
                table: table.to_owned(),
                pages,
            };
            let mut found: Vec<(usize, Touched)> = Vec::new();
            found.extend(self.bad.get(&(Kind::Record, id.0)).map(|at| (*at, touched("", "", Vec::new()))));
            for part in &record.parts {
                for (table, root) in &part.tables {
                    let pages = self.pages_touched(root, &mut clean)?;
                    found.extend(pages.into_iter().map(|(at, pages)| (at, touched(&part.name, table, pages))));
                }
                let blobs = part.blobs.iter().filter_map(|(table, blob)| Some((self.bad.get(&(Kind::Blob, blob.0))?, table)));
                found.extend(blobs.map(|(at, table)| (*at, touched(&part.name, table, Vec::new()))));
            }
            for (at, touched) in found {
                self.report.damage.get_mut(at).into_iter().for_each(|damage| damage.touches.push(touched.clone()));
            }
        }
        // What the index finds there, and no checkpoint needs, is garbage.
        for at in self.bad.values() {
            let Some(damage) = self.report.damage.get_mut(*at) else { continue };
            if damage.touches.is_empty() && damage.remedy == Remedy::Restore && !self.unlisted.values().any(|other| other == at) {
                damage.remedy = Remedy::Collect;
            }
        }
        (self.progress)(VerifyStage::Damage, Progress { done: total, total });
        Ok(())
    }

    /// Pages of a table that damage touches, by the damage.
    fn pages_touched(&self, root: &Root, clean: &mut HashSet<NodeName>) -> Result<BTreeMap<usize, Vec<(PageNumber, PageNumber)>>> {
        let mut found = BTreeMap::new();
        if let Some(node) = root.node {
            let end = root.pages.saturating_sub(1).min(PageNumber::MAX.into());
            self.search(&node, root.levels() as u8 - 1, 0, end, clean, &mut found)?;
        }
        Ok(found)
    }

    /// True if nothing below a node is damaged.
    fn search(
        &self,
        name: &NodeName,
        level: u8,
        first: u64,
        end: u64,
        clean: &mut HashSet<NodeName>,
        found: &mut BTreeMap<usize, Vec<(PageNumber, PageNumber)>>,
    ) -> Result<bool> {
        if clean.contains(name) {
            return Ok(true);
        }
        if let Some(at) = self.bad.get(&(Kind::Nodes, name.0)) {
            add_range(found.entry(*at).or_default(), first, (first + table::span(level + 1) - 1).min(end));
            return Ok(false);
        }
        let node: Node = self.store.0.load(name)?.node.clone();
        let mut is_clean = true;
        for (index, entry) in node.iter() {
            let page = first + index as u64 * table::span(node.level);
            is_clean &= match node.level {
                0 => match self.bad.get(&(Kind::Pages, entry)) {
                    Some(at) => {
                        add_range(found.entry(*at).or_default(), page, page);
                        false
                    }
                    None => true,
                },
                below => self.search(&NodeName(entry), below - 1, page, end, clean, found)?,
            };
        }
        if is_clean {
            clean.insert(*name);
        }
        Ok(is_clean)
    }
}

/// Adds pages to ranges that are in order.
fn add_range(ranges: &mut Vec<(PageNumber, PageNumber)>, first: u64, last: u64) {
    let (first, last) = (first as PageNumber, last as PageNumber);
    match ranges.last_mut() {
        Some((_, end)) if *end + 1 == first => *end = last,
        _ => ranges.push((first, last)),
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Pages => "page",
        Kind::Nodes => "node",
        Kind::Blob => "blob",
        Kind::Record => "record",
    }
}

mod beside;
#[cfg(test)]
mod tests;
