//! Fetching checkpoints from a remote: what this store lacks of them is fetched, and goes through the writer like any checkpoint that is taken here.

use super::{
    CopyStage, Name, Remote,
    catalog::{Catalog, Place, pack_name},
    check_format, damaged, in_parallel, place, record,
};
use crate::{
    Error, Progress, Record, Result, Store, Writer,
    collect::Turn,
    error::Named,
    files::{make_directories, remove_tree},
    hash,
    hold::Presence,
    index::Location,
    node::{Node, Stored},
    pack::{self, Frame, PackFile, frame::BLOB_MAX},
    removed,
    table::{Nodes as _, NodesMut as _, top_level},
};
use fermata_types::{BlobName, CheckpointId, NodeName, PageBuf, PageName, Root, ZERO_PAGE};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    path::PathBuf,
    sync::Arc,
};

/// Deltas to deltas. Each is to one that was there in full where it was made, so that it takes several hosts to make two in a row.
const DELTAS_MAX: u32 = 64;
/// Bytes of a pack at most: of the largest blob, and what is gathered besides.
const PACK_MAX: u64 = BLOB_MAX as u64 + (256 << 20);

/// How to pull.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Packs fetched at a time.
    pub jobs: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { jobs: 4 }
    }
}

/// What was pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Checkpoints that the store has now and had not.
    pub checkpoints: u64,
    /// Packs that were fetched.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Store {
    /// Fetches checkpoints of an experiment from a remote: only what this store lacks travels. All that comes is checked against its name, and a checkpoint
    /// can be seen here once all of it is durable. Interrupted, it leaves packs that are not fetched again.
    ///
    /// An ancestor that is neither wanted nor here counts as removed. A checkpoint that was removed here comes back. Waits for a collection in the end, so it must
    /// not be called with a [`Writer`] in the same thread.
    pub fn pull(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        options: &PullOptions,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pulled> {
        // What is here, and is not fetched for that reason, stays until all is entered.
        self.pull_present(remote, experiment, ids, options, &mut Some(Presence::writer(self)?), progress)
    }

    /// The same for somebody who is present already, and who no longer is when it has succeeded.
    pub(super) fn pull_present(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        options: &PullOptions,
        presence: &mut Option<Presence>,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pulled> {
        check_format(remote, false)?;
        let inner = &self.0;
        inner.forget_if_collected()?;
        let jobs = options.jobs.max(1);
        let wanted = self.lacking(remote, experiment, ids, jobs)?;
        if wanted.is_empty() {
            presence.take();
            return Ok(Pulled::default());
        }
        let catalog = Catalog::read(self, remote, jobs, &mut |at| progress(CopyStage::Look, at))?;
        let incoming = inner.path.join("remotes").join("incoming");
        make_directories(&*inner.medium, &incoming)?;
        let mut pull = Pull {
            store: self,
            remote,
            jobs,
            incoming,
            catalog,
            packs: HashMap::new(),
            frame: None,
            nodes: HashMap::new(),
            told: Pulled::default(),
        };
        pull.fetch_all(&wanted, progress)?;
        let total = wanted.len() as u64;
        for (done, wanted) in (0..).zip(&wanted) {
            progress(CopyStage::Enter, Progress { done, total });
            pull.enter(wanted)?;
        }
        let Pull { incoming, told, packs, .. } = pull;
        drop(packs);
        // Somebody else who pulls fetches again what he misses.
        let _ = remove_tree(&*inner.medium, &incoming);
        presence.take();
        let _turn = Turn::alone(self, true)?;
        removed::write(self)?;
        Ok(told)
    }

    /// The records of those that are not here, parents before children.
    fn lacking(&self, remote: &dyn Remote, experiment: &str, ids: &[CheckpointId], jobs: usize) -> Result<Vec<Wanted>> {
        let index = &self.0.index;
        let lacking: BTreeSet<_> = {
            let read = index.read()?;
            let is_here = |id: &CheckpointId| Ok::<_, Error>(index.get(&read, &index.records, id.as_bytes())?.is_some());
            ids.iter().map(|id| Ok((!is_here(id)?).then_some(*id))).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
        };
        let lacking: Vec<_> = lacking.into_iter().collect();
        let mut records = HashMap::new();
        in_parallel(
            jobs,
            &lacking,
            |id| record(remote, experiment, id),
            |id, (record, bytes)| {
                records.insert(*id, Wanted { id: *id, record, bytes });
                Ok(())
            },
        )?;
        let mut ordered = Vec::new();
        for id in lacking {
            // Up to the first that is here, or was taken already; no checkpoint is its own ancestor, for its id is the hash of what names its parent.
            let mut line: Vec<Wanted> = Vec::new();
            let mut at = Some(id);
            while let Some(wanted) = at.and_then(|id| records.remove(&id)) {
                at = wanted.record.parent;
                line.push(wanted);
            }
            ordered.extend(line.into_iter().rev());
        }
        Ok(ordered)
    }
}

/// A checkpoint that is fetched.
struct Wanted {
    id: CheckpointId,
    record: Record,
    bytes: Vec<u8>,
}

impl Wanted {
    fn roots(&self) -> impl Iterator<Item = &Root> {
        self.record.parts.iter().flat_map(|part| part.tables.values())
    }

    fn blobs(&self) -> impl Iterator<Item = &BlobName> {
        self.record.parts.iter().flat_map(|part| part.blobs.values())
    }
}

/// A node that came, and the base that it was sent as a delta to.
#[derive(Clone)]
struct Fetched {
    node: Arc<Node>,
    base: Option<NodeName>,
}

struct Pull<'a> {
    store: &'a Store,
    remote: &'a dyn Remote,
    jobs: usize,
    /// A shelf for packs of the remote.
    incoming: PathBuf,
    catalog: Catalog,
    /// Those that are here, by number.
    packs: HashMap<u32, PackFile>,
    /// The last that was read: pack and number.
    frame: Option<(u32, u32, Frame)>,
    /// Nodes that are not in the store.
    nodes: HashMap<NodeName, Fetched>,
    told: Pulled,
}

impl Pull<'_> {
    /// Fetches every pack that has something that is needed: first for the nodes, level by level, for they tell what else is.
    fn fetch_all(&mut self, wanted: &[Wanted], progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut level = Vec::new();
        for root in wanted.iter().flat_map(Wanted::roots) {
            if let Some(node) = root.node {
                level.push((node, top_level(root)?));
            }
        }
        let mut objects: Vec<Name> = Vec::new();
        for blob in wanted.iter().flat_map(Wanted::blobs) {
            if !self.has_blob(blob)? {
                objects.push(blob.0);
            }
        }
        let mut pages = HashSet::new();
        while !level.is_empty() {
            let mut missing = Vec::new();
            for (name, height) in std::mem::take(&mut level) {
                if !self.nodes.contains_key(&name) && !self.has_node(&name)? {
                    missing.push((name, height));
                }
            }
            self.fetch(missing.iter().map(|(name, _)| &name.0), progress)?;
            for (name, height) in missing {
                let fetched = self.node(&name, height)?;
                for (_, entry) in fetched.node.iter() {
                    match height {
                        0 if pages.insert(entry) && !self.has_page(&PageName(entry))? => objects.push(entry),
                        0 => {}
                        _ => level.push((NodeName(entry), height - 1)),
                    }
                }
                self.nodes.insert(name, fetched);
            }
        }
        self.fetch(objects.iter(), progress)
    }

    fn has_node(&self, name: &NodeName) -> Result<bool> {
        let index = &self.store.0.index;
        Ok(index.lasting(&*index.read()?, &index.nodes, name.as_bytes(), &Named("node", name.as_bytes()))?.is_some())
    }

    fn has_blob(&self, name: &BlobName) -> Result<bool> {
        let index = &self.store.0.index;
        Ok(index.lasting(&*index.read()?, &index.blobs, name.as_bytes(), &Named("blob", name.as_bytes()))?.is_some())
    }

    /// Whether a page is here, or in an image that is open here.
    fn has_page(&self, name: &PageName) -> Result<bool> {
        if *name == ZERO_PAGE {
            return Ok(true);
        }
        let inner = &self.store.0;
        let place = inner.index.lasting(&*inner.index.read()?, &inner.index.pages, name.as_bytes(), &Named("page", name.as_bytes()))?;
        Ok(match place {
            Some(Location::Pack { .. }) => true,
            Some(Location::Image { image, .. }) => {
                inner.images.read().unwrap_or_else(|poisoned| poisoned.into_inner()).contains_key(&image)
            }
            None => false,
        })
    }

    /// Fetches the packs that these objects lie in, several at a time.
    fn fetch<'n>(&mut self, names: impl Iterator<Item = &'n Name>, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let packs: BTreeSet<_> = names.filter_map(|name| self.catalog.find(name)).map(|place| place.pack).collect();
        let packs: Vec<_> = packs.into_iter().filter(|pack| !self.packs.contains_key(pack)).collect();
        let total = packs.iter().map(|pack| self.catalog.packs[*pack as usize].length).sum();
        let (this, mut done) = (&*self, 0);
        let mut here = Vec::new();
        in_parallel(
            this.jobs,
            &packs,
            |pack| this.fetched(*pack),
            |pack, (file, bytes)| {
                done += this.catalog.packs[*pack as usize].length;
                progress(CopyStage::Transfer, Progress { done, total });
                here.push((*pack, file, bytes));
                Ok(())
            },
        )?;
        for (pack, file, bytes) in here {
            self.told.packs += u64::from(bytes > 0);
            self.told.bytes += bytes;
            self.packs.insert(pack, file);
        }
        Ok(())
    }

    /// A pack, which may have been fetched before; and how many bytes had to be fetched.
    fn fetched(&self, pack: u32) -> Result<(PackFile, u64)> {
        let pack = &self.catalog.packs[pack as usize];
        let path = pack::place(&self.incoming, &pack.id);
        let open = || PackFile::open(&self.incoming, &pack.id).and_then(|file| file.contents(&pack.id).map(|_| file));
        if path.exists() {
            match open() {
                Ok(file) => return Ok((file, 0)),
                // Torn when it was fetched.
                Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let object = pack_name(&pack.id);
        if pack.length > PACK_MAX {
            return Err(damaged(self.remote, &object, format!("a pack of {} bytes is beyond the limits", pack.length)));
        }
        let bytes = self.remote.get(&object, pack.length).map_err(Error::io("read", &place(self.remote, &object)))?;
        let bytes = bytes.filter(|bytes| bytes.len() as u64 == pack.length);
        let bytes = bytes.ok_or_else(|| damaged(self.remote, &object, "it is gone, or of another length than it was"))?;
        let failed = |error| Error::io("write", &path)(error);
        let directory = path.parent().expect("a place has a directory");
        fs::create_dir_all(directory).map_err(failed)?;
        // Another one who pulls the same writes the same.
        let temp = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        fs::write(temp.path(), &bytes).map_err(failed)?;
        temp.persist(&path).map_err(|error| failed(error.error))?;
        let file = open().map_err(|error| match error {
            Error::Corrupt { detail, .. } => damaged(self.remote, &object, detail),
            error => error,
        })?;
        Ok((file, pack.length))
    }

    /// The frame that an object lies in, and its place there.
    fn frame(&mut self, name: &Name, what: &'static str) -> Result<(&Frame, Place)> {
        let missing = || {
            Error::refused(
                format!("{} is in no pack at {}", Named(what, name), self.remote),
                "push that checkpoint again from where it is whole",
            )
        };
        let at = self.catalog.find(name).ok_or_else(missing)?;
        if !self.packs.contains_key(&at.pack) {
            let (file, bytes) = self.fetched(at.pack)?;
            self.told.packs += u64::from(bytes > 0);
            self.told.bytes += bytes;
            self.packs.insert(at.pack, file);
        }
        if self.frame.as_ref().is_none_or(|(pack, frame, _)| (*pack, *frame) != (at.pack, at.frame)) {
            let entry = &self.catalog.packs[at.pack as usize].contents.entries[at.frame as usize];
            let frame = self.packs[&at.pack].frame(entry.offset, entry.length, &Named(what, name))?;
            self.frame = Some((at.pack, at.frame, frame));
        }
        Ok((&self.frame.as_ref().expect("it was read just now").2, at))
    }

    /// The bytes of an object, not yet checked against its name.
    fn object(&mut self, name: &Name, kind: pack::Kind, what: &'static str) -> Result<Vec<u8>> {
        let (frame, at) = self.frame(name, what)?;
        let bytes = match frame.kind == kind {
            true => frame.object(at.place.into()).map(<[u8]>::to_vec),
            false => Err(format!("what lies there is no {what}")),
        };
        bytes.map_err(|detail| self.wrong(at, detail))
    }

    fn wrong(&self, at: Place, detail: impl Into<String>) -> Error {
        damaged(self.remote, &pack_name(&self.catalog.packs[at.pack as usize].id), detail)
    }

    /// A node of the remote, checked against its name.
    fn node(&mut self, name: &NodeName, level: u8) -> Result<Fetched> {
        let fetched = self.node_upon(name, DELTAS_MAX)?;
        match fetched.node.level == level {
            true => Ok(fetched),
            false => Err(Error::refused(
                format!("{} names a node of level {} where level {level} belongs", self.remote, fetched.node.level),
                "push that checkpoint again",
            )),
        }
    }

    fn node_upon(&mut self, name: &NodeName, deltas_left: u32) -> Result<Fetched> {
        if let Some(known) = self.nodes.get(name) {
            return Ok(known.clone());
        }
        let bytes = self.object(name.as_bytes(), pack::Kind::Nodes, "node")?;
        let at = self.catalog.find(name.as_bytes()).expect("it was just read");
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

    /// Puts a checkpoint into the store.
    fn enter(&mut self, wanted: &Wanted) -> Result<()> {
        let mut writer = self.store.writer()?;
        writer.stand_on(&wanted.record.images);
        for blob in wanted.blobs() {
            if !self.has_blob(blob)? {
                let bytes = self.object(blob.as_bytes(), pack::Kind::Blob, "blob")?;
                self.check(blob.as_bytes(), hash::blob(&bytes).as_bytes())?;
                writer.put_blob(&bytes)?;
            }
        }
        let mut pages = Vec::new();
        let mut nodes = Vec::new();
        let mut seen = HashSet::new();
        for root in wanted.roots() {
            if let Some(node) = root.node {
                self.below(&node, &writer, &mut seen, &mut nodes)?;
            }
        }
        for name in &nodes {
            let node = &self.nodes[name].node;
            if node.level == 0 {
                pages.extend(node.iter().map(|(_, page)| PageName(page)).filter(|page| seen.insert(page.0)));
            }
        }
        self.put_pages(&mut writer, pages)?;
        for name in &nodes {
            let Fetched { node, base } = self.nodes[name].clone();
            // Without its base it is stored in full.
            let base = base.and_then(|base| Some((base, writer.load(&base).ok()?)));
            writer.save(Arc::unwrap_or_clone(node), base)?;
        }
        writer.commit_copy(&wanted.id, &wanted.bytes, &wanted.record)?;
        self.told.checkpoints += 1;
        Ok(())
    }

    /// The nodes below this one that the store lacks, each after those below it.
    fn below(&self, name: &NodeName, writer: &Writer, seen: &mut HashSet<Name>, nodes: &mut Vec<NodeName>) -> Result<()> {
        if !seen.insert(name.0) || writer.node_is_known(name)? {
            return Ok(());
        }
        // What was here when it was looked for stays, and the rest was fetched.
        let Some(fetched) = self.nodes.get(name) else {
            return Err(Error::missing(
                Named("node", name.as_bytes()).to_string(),
                "it was here a moment ago: verify the store, then pull again",
            ));
        };
        if fetched.node.level > 0 {
            fetched.node.iter().try_for_each(|(_, entry)| self.below(&NodeName(entry), writer, seen, nodes))?;
        }
        nodes.push(*name);
        Ok(())
    }

    fn put_pages(&mut self, writer: &mut Writer, pages: Vec<PageName>) -> Result<()> {
        let mut placed = Vec::with_capacity(pages.len());
        for name in pages {
            if name != ZERO_PAGE && !writer.claim(&name)? {
                placed.push((self.catalog.find(name.as_bytes()), name));
            }
        }
        // Those of one frame together.
        placed.sort_unstable();
        for (_, name) in placed {
            let bytes = self.object(name.as_bytes(), pack::Kind::Pages, "page")?;
            let page: &PageBuf = bytes.as_slice().try_into().expect("a page has its size");
            self.check(name.as_bytes(), hash::page(page).as_bytes())?;
            writer.put_page(page)?;
        }
        Ok(())
    }

    fn check(&self, name: &Name, found: &Name) -> Result<()> {
        match (name == found, self.catalog.find(name)) {
            (true, _) => Ok(()),
            (false, Some(at)) => Err(self.wrong(at, format!("what is called {} has another content", Named("an object", name)))),
            (false, None) => Err(Error::missing(Named("object", name).to_string(), "pull again")),
        }
    }
}
