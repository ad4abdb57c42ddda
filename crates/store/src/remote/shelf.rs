//! What has come from a remote, or is to come: its packs lie beside the store until all that is wanted of them is in it.

use super::{
    COPIED_AT_ONCE, CopyStage, Name, Remote, apart,
    catalog::{Catalog, Place, pack_name},
    damaged,
    lease::Going,
    place,
};
use crate::{
    Error, Progress, Result, Store,
    cache::Cache,
    chunks,
    error::Named,
    files::{make_directories, remove_tree},
    node::{Node, Stored},
    pack::{self, Frame, PackFile},
    remote::in_parallel,
    store::PACKS_CACHED,
    table::{Loaded, Nodes, top_level},
};
use fermata_types::{BlobName, NodeName, PackId, PageBuf, PageName, Root, ZERO_PAGE};
use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    fs,
    io::{self, Write as _},
    sync::Arc,
};

/// Deltas to deltas. Each is to one that was there in full where it was made, so that it takes several hosts to make two in a row.
const DELTAS_MAX: u32 = 64;

/// Frames that are kept: a node and its base lie in different ones, and their neighbours likewise.
const FRAMES: usize = 8;

/// How often in a row somebody else may clear away what was fetched.
const CLEARED_MAX: u32 = 8;

/// Whether something is gone that was here: another process that pulled into this store, or pruned with it, has come to its end, and cleared all away.
fn is_cleared(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// Does something, and again where that was so.
fn unless_cleared<T>(work: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..CLEARED_MAX {
        match work() {
            Err(error) if is_cleared(&error) => {}
            done => return done,
        }
    }
    work()
}

/// A node that came, and the base that it was sent as a delta to.
#[derive(Clone)]
pub(super) struct Fetched {
    pub node: Arc<Node>,
    pub base: Option<NodeName>,
}

/// A node of a table, and what the table of a checkpoint that is here has in its place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub node: NodeName,
    pub level: u8,
    beside: Option<NodeName>,
}

impl Spot {
    /// The top of a table, unless that names nothing.
    pub fn top(root: &Root, beside: Option<&Root>) -> Result<Option<Self>> {
        let level = top_level(root)?;
        let beside = beside.filter(|beside| beside.pages == root.pages).and_then(|beside| beside.node);
        Ok(root.node.map(|node| Self { node, level, beside }))
    }

    /// Whether it is of that checkpoint as well, so that all below it is here, too. That a node is here does not say so: a collection may have kept it for another one
    /// that is a delta to it, and what was below it is gone.
    pub fn is_whole(&self) -> bool {
        self.beside == Some(self.node)
    }

    /// Those below it, as this node says, which is no leaf.
    pub fn below(&self, store: &Store, node: &Node) -> Vec<Self> {
        let level = self.level - 1;
        // One that cannot be read vouches for nothing.
        let beside = self.beside.and_then(|beside| store.0.load_level(&beside, self.level).ok());
        let beside_at = |index| beside.as_ref().and_then(|loaded| loaded.node.get(index)).map(NodeName);
        node.iter().map(|(index, entry)| Self { node: NodeName(entry), level, beside: beside_at(index) }).collect()
    }
}

/// Packs of a remote that are here, and how to get at others.
pub(super) struct Shelf<'a> {
    pub store: &'a Store,
    pub remote: &'a dyn Remote,
    jobs: usize,
    incoming: pack::Shelf,
    /// None: nobody has looked yet.
    catalog: Option<Catalog>,
    /// Those that are here, by number.
    here: HashSet<u32>,
    /// What is wrong with those that were fetched and cannot be used.
    damaged: HashMap<u32, String>,
    /// Those that are here and open: more may be here than a process may have open.
    open: Cache<u32, Arc<PackFile>>,
    /// Those that were read last, each with its pack and number.
    frames: VecDeque<(u32, u32, Frame)>,
    /// Nodes that are not in the store.
    pub nodes: HashMap<NodeName, Fetched>,
    /// Packs that were fetched, and their bytes.
    pub fetched: (u64, u64),
}

impl<'a> Shelf<'a> {
    pub fn new(store: &'a Store, remote: &'a dyn Remote, jobs: usize) -> Self {
        let incoming = store.0.incoming();
        let (here, damaged, open) = (HashSet::new(), HashMap::new(), Cache::new(PACKS_CACHED));
        let (frames, nodes) = (VecDeque::new(), HashMap::new());
        Self { store, remote, jobs, incoming, catalog: None, here, damaged, open, frames, nodes, fetched: (0, 0) }
    }

    /// Looks what lies in the packs of the remote, the first time that it is asked.
    pub fn look(&mut self, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        if self.catalog.is_none() {
            let going = Going::look(self.remote)?;
            self.look_again(&going, false, progress)?;
        }
        Ok(())
    }

    /// Looks once more, while this is about to go. `afresh`: without a cache.
    pub fn look_again(&mut self, going: &Going, afresh: bool, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        make_directories(&*self.store.0.medium, &self.incoming.directory)?;
        self.here.clear();
        self.damaged.clear();
        self.open.clear();
        self.frames.clear();
        self.catalog = Some(Catalog::read(self.store, self.remote, self.jobs, going, afresh, &mut |at| progress(CopyStage::Look, at))?);
        Ok(())
    }

    pub fn catalog(&self) -> &Catalog {
        self.catalog.as_ref().expect("somebody looked before")
    }

    /// Removes what is here: all that was wanted of it is in the store. Somebody else who pulls fetches again what he misses.
    pub fn clear(self) {
        let Self { store, incoming, open, .. } = self;
        drop(open);
        let _ = remove_tree(&*store.0.medium, &incoming.directory);
    }

    /// Fetches the nodes from these on down that the store lacks, level by level, for they tell what else is needed; then the pages below them that it lacks, and
    /// these other objects. The first damage that was met is returned when all else is here.
    pub fn fetch_tables(
        &mut self,
        mut level: Vec<Spot>,
        mut objects: Vec<Name>,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Result<()>> {
        let (mut seen, mut damage) = (HashSet::new(), None);
        while !level.is_empty() {
            level.retain(|spot| !spot.is_whole() && seen.insert(spot.node.0));
            let mut missing = Vec::new();
            for Spot { node, .. } in &level {
                let is_missing = !self.nodes.contains_key(node) && !self.has_node(node)?;
                missing.extend(is_missing.then_some(*node));
            }
            self.fetch(missing.iter().map(|name| &name.0), progress)?;
            let mut next = Vec::new();
            for spot in level {
                let node = match apart(self.fetched_level(&spot.node, spot.level))? {
                    Ok(node) => node,
                    Err(error) => {
                        damage.get_or_insert(error);
                        continue;
                    }
                };
                if spot.level > 0 {
                    next.extend(spot.below(self.store, &node));
                    continue;
                }
                for (_, entry) in node.iter() {
                    if seen.insert(entry) && !self.has_page(&PageName(entry))? {
                        objects.push(entry);
                    }
                }
            }
            level = next;
        }
        self.fetch(objects.iter(), progress)?;
        Ok(damage.map_or(Ok(()), Err))
    }

    /// A node of this level, which is kept if the store lacks it.
    pub fn fetched_level(&mut self, name: &NodeName, level: u8) -> Result<Arc<Node>> {
        if !self.nodes.contains_key(name) && self.has_node(name)? {
            return Ok(Arc::new(self.store.0.load_level(name, level)?.node.clone()));
        }
        let fetched = self.node(name, level)?;
        self.nodes.insert(*name, fetched.clone());
        Ok(fetched.node)
    }

    /// A page, from the store if it is there.
    pub fn page(&mut self, name: &PageName, into: &mut PageBuf) -> Result<()> {
        if self.has_page(name)? {
            return self.store.read_page(name, into);
        }
        let bytes = self.object(name.as_bytes(), pack::Kind::Pages, "page")?;
        *into = bytes.as_slice().try_into().expect("a page has its size");
        self.check(name.as_bytes(), crate::hash::page(into).as_bytes())
    }

    pub fn has_node(&self, name: &NodeName) -> Result<bool> {
        Ok(self.store.0.lasting_node(name)?.is_some())
    }

    pub fn has_blob(&self, name: &BlobName) -> Result<bool> {
        Ok(self.store.0.lasting_blob(name)?.is_some())
    }

    /// Whether a page is here, or in an image that is open here.
    pub fn has_page(&self, name: &PageName) -> Result<bool> {
        if *name == ZERO_PAGE {
            return Ok(true);
        }
        let inner = &self.store.0;
        let place = inner.index.lasting(&*inner.index.read()?, &inner.index.pages, name.as_bytes(), &Named("page", name.as_bytes()))?;
        Ok(inner.is_readable(place))
    }

    /// Fetches the packs that these objects lie in, several at a time. Whoever reads something of one that is damaged is told then.
    pub fn fetch<'n>(&mut self, names: impl Iterator<Item = &'n Name>, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let packs: BTreeSet<_> = names.filter_map(|name| self.catalog().find(name)).map(|place| place.pack).collect();
        let packs: Vec<_> = packs.into_iter().filter(|pack| !self.here.contains(pack) && !self.damaged.contains_key(pack)).collect();
        let total = packs.iter().map(|pack| self.catalog().packs[*pack as usize].length).sum();
        let (this, mut done) = (&*self, 0);
        let mut came = Vec::new();
        in_parallel(
            this.jobs,
            &packs,
            |pack| apart(this.fetch_pack(*pack)),
            |pack, fetched| {
                done += this.catalog().packs[*pack as usize].length;
                progress(CopyStage::Transfer, Progress { done, total });
                came.push((*pack, fetched));
                Ok(())
            },
        )?;
        for (pack, fetched) in came {
            self.came(pack, fetched);
        }
        Ok(())
    }

    /// Notes that a pack is here, for which that many bytes had to be fetched, or that it is damaged.
    fn came(&mut self, pack: u32, fetched: Result<u64>) {
        match fetched {
            Ok(bytes) => {
                self.fetched.0 += u64::from(bytes > 0);
                self.fetched.1 += bytes;
                self.here.insert(pack);
            }
            Err(Error::Corrupt { detail, .. }) => _ = self.damaged.insert(pack, detail),
            Err(error) => _ = self.damaged.insert(pack, error.to_string()),
        }
    }

    /// Fetches a pack, if it was not fetched before; says how many bytes had to be fetched.
    fn fetch_pack(&self, pack: u32) -> Result<u64> {
        unless_cleared(|| self.fetch_once(pack))
    }

    fn fetch_once(&self, pack: u32) -> Result<u64> {
        let pack = &self.catalog().packs[pack as usize];
        let path = self.incoming.place(&pack.id);
        let read = || PackFile::open(&self.incoming, &pack.id)?.contents(&pack.id);
        if path.exists() {
            match self.is_whole(&pack.id) {
                Ok(true) => return Ok(0),
                // The power failed behind its fetching, or something else has torn it since.
                Ok(false) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let object = pack_name(&pack.id);
        let bytes = self.remote.get(&object, pack.length).map_err(Error::io("read", &place(self.remote, &object)))?;
        let bytes = bytes.filter(|bytes| bytes.len() as u64 == pack.length);
        let bytes = bytes.ok_or_else(|| damaged(self.remote, &object, "it is gone, or of another length than it was"))?;
        let failed = |error| Error::io("write", &path)(error);
        let directory = path.parent().expect("a place has a directory");
        fs::create_dir_all(directory).map_err(failed)?;
        // Another one who pulls the same writes the same.
        let mut temp = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        for piece in chunks::sealed(&self.incoming.sealing, &bytes).chunks(COPIED_AT_ONCE) {
            temp.write_all(piece).map_err(failed)?;
            (self.store.0.rest())();
        }
        temp.persist(&path).map_err(|error| failed(error.error))?;
        read().map_err(|error| match error {
            Error::Corrupt { detail, .. } => damaged(self.remote, &object, detail),
            error => error,
        })?;
        Ok(pack.length)
    }

    /// Whether a pack that was fetched before is all there, to its last byte: nothing had it synced, so any part of it may be missing after a crash of the host.
    fn is_whole(&self, id: &PackId) -> Result<bool> {
        let file = PackFile::open(&self.incoming, id)?;
        file.contents(id)?;
        Ok(match file.sum()? {
            Some(sum) => file.sum_from(0, crc32fast::Hasher::new())? == sum,
            // Of a version without a checksum: it is fetched again.
            None => false,
        })
    }

    /// A pack that is here.
    fn pack(&self, pack: u32) -> Result<Arc<PackFile>> {
        if let Some(file) = self.open.get(&pack) {
            return Ok(file);
        }
        let open = || PackFile::open(&self.incoming, &self.catalog().packs[pack as usize].id);
        let file = match open() {
            Err(error) if is_cleared(&error) => unless_cleared(|| self.fetch_once(pack).and_then(|_| open())),
            opened => opened,
        };
        let file = Arc::new(file?);
        self.open.insert(pack, file.clone());
        Ok(file)
    }

    /// The frame of this kind that an object lies in, and its place there.
    fn frame(&mut self, name: &Name, kind: pack::Kind, what: &'static str) -> Result<(&Frame, Place)> {
        let missing = || {
            Error::refused(
                format!("{} is in no pack at {}", Named(what, name), self.remote),
                "where it is whole, `fermata remote verify --repair` sends it again",
            )
        };
        let at = self.catalog().find(name).ok_or_else(missing)?;
        if self.catalog().packs[at.pack as usize].contents.entries[at.frame as usize].kind != kind {
            return Err(self.wrong(at, format!("what lies there is no {what}")));
        }
        if !self.here.contains(&at.pack) && !self.damaged.contains_key(&at.pack) {
            let fetched = apart(self.fetch_pack(at.pack))?;
            self.came(at.pack, fetched);
        }
        if let Some(detail) = self.damaged.get(&at.pack) {
            return Err(self.wrong(at, detail.clone()));
        }
        let known = self.frames.iter().position(|(pack, frame, _)| (*pack, *frame) == (at.pack, at.frame));
        let number = match known {
            Some(number) => number,
            None => {
                let entry = &self.catalog().packs[at.pack as usize].contents.entries[at.frame as usize];
                let frame = self.pack(at.pack)?.frame_of(entry, &Named(what, name))?;
                // Of those that may be large the last one only.
                self.frames.retain(|(_, _, frame)| frame.kind.is_of_many());
                self.frames.truncate(FRAMES - 1);
                self.frames.push_front((at.pack, at.frame, frame));
                0
            }
        };
        Ok((&self.frames[number].2, at))
    }

    /// The bytes of an object, not yet checked against its name.
    pub fn object(&mut self, name: &Name, kind: pack::Kind, what: &'static str) -> Result<Vec<u8>> {
        let (frame, at) = self.frame(name, kind, what)?;
        let bytes = frame.object(at.place.into()).map(<[u8]>::to_vec);
        bytes.map_err(|detail| self.wrong(at, detail))
    }

    pub fn wrong(&self, at: Place, detail: impl Into<String>) -> Error {
        damaged(self.remote, &pack_name(&self.catalog().packs[at.pack as usize].id), detail)
    }

    /// A node of the remote, checked against its name.
    pub fn node(&mut self, name: &NodeName, level: u8) -> Result<Fetched> {
        let fetched = self.node_upon(name, DELTAS_MAX)?;
        match fetched.node.level == level {
            true => Ok(fetched),
            false => Err(Error::refused(
                format!("{} names a node of level {} where level {level} belongs", self.remote, fetched.node.level),
                "push that checkpoint again",
            )),
        }
    }

    /// A node of any level.
    pub fn any_node(&mut self, name: &NodeName) -> Result<Fetched> {
        self.node_upon(name, DELTAS_MAX)
    }

    fn node_upon(&mut self, name: &NodeName, deltas_left: u32) -> Result<Fetched> {
        if let Some(known) = self.nodes.get(name) {
            return Ok(known.clone());
        }
        let bytes = self.object(name.as_bytes(), pack::Kind::Nodes, "node")?;
        let at = self.catalog().find(name.as_bytes()).expect("it was just read");
        let (node, base) = match Stored::decode(&bytes).map_err(|detail| self.wrong(at, detail))? {
            Stored::Full(node) => (node, None),
            Stored::Delta(_) if deltas_left == 0 => return Err(self.wrong(at, "too many nodes that each stand on another one")),
            Stored::Delta(delta) => {
                let base = match self.has_node(&delta.base)? {
                    true => Arc::new(self.store.0.load(&delta.base)?.node.clone()),
                    false => self.node_upon(&delta.base, deltas_left - 1)?.node,
                };
                (delta.apply(&base).map_err(|detail| self.wrong(at, detail))?, Some(delta.base))
            }
        };
        if node.name() != *name {
            return Err(self.wrong(at, "the content of a node does not fit its name"));
        }
        Ok(Fetched { node: Arc::new(node), base })
    }

    pub fn check(&self, name: &Name, found: &Name) -> Result<()> {
        match (name == found, self.catalog().find(name)) {
            (true, _) => Ok(()),
            (false, Some(at)) => Err(self.wrong(at, format!("what is called {} has another content", Named("an object", name)))),
            (false, None) => Err(Error::missing(Named("object", name).to_string(), "pull again")),
        }
    }
}

impl Nodes for Shelf<'_> {
    fn load(&self, name: &NodeName) -> Result<Arc<Loaded>> {
        match self.nodes.get(name) {
            Some(fetched) => Ok(Arc::new(Loaded { node: (*fetched.node).clone(), base: None, at: None })),
            None => self.store.0.load(name),
        }
    }

    fn misplaced(&self, name: &NodeName, detail: String) -> Error {
        damaged(self.remote, &Named("node", name.as_bytes()).to_string(), detail)
    }
}
