//! A store, open: where it lies, what it has cached, and how pages, nodes and blobs are read.

use crate::{
    Error, ImageReader, Result, Writer,
    cache::Cache,
    cipher::Sealing,
    error::Named,
    files::{self, FileSystem, Medium, TempFile},
    hash,
    image_names::ImageNames,
    index::{self, Index, Location},
    keys::{self, Birth, Encryption},
    node::Stored,
    pack::{Frame, Kind, PackBuilder, PackFile, Shelf, frame::PAGES_MAX},
    recent,
    remote::Away,
    secret::Secret,
    table::{self, Loaded, Nodes},
};
use fermata_types::{BlobName, ImageId, NodeName, PackId, PageBuf, PageName, PageNumber, Root, ZERO_PAGE};
use std::{
    collections::HashMap,
    fmt::Display,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock, Mutex, OnceLock, RwLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// Decompressed frames kept: 4 MiB at most.
const FRAMES_CACHED: usize = 64;
/// Nodes kept: 64 MiB at most, the tables of 8 GiB.
const NODES_CACHED: usize = 4096;
/// How often an object is looked for anew because a collection moved it. Once is usual.
const MOVES_MAX: u32 = 3;
/// Packs kept open.
pub(crate) const PACKS_CACHED: usize = 128;

/// A store, open. Cheap to clone; many threads and many processes may use one at once. It does not outlive a `fork`: open it after.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<Inner>);

type OpenImage = (ImageId, Arc<dyn ImageReader>);

pub(crate) struct Inner {
    pub path: PathBuf,
    pub index: Index,
    pub medium: Arc<dyn Medium>,
    /// How files are encrypted.
    pub sealing: Sealing,
    /// Golden images that somebody has open, by number.
    pub images: RwLock<HashMap<u32, OpenImage>>,
    pub image_names: ImageNames,
    /// A checkpoint that is read from a remote as long as it is not here.
    pub away: RwLock<Option<Arc<Away>>>,
    pub nodes: Cache<NodeName, Arc<Loaded>>,
    frames: Cache<(u32, u64), Arc<Frame>>,
    packs: Cache<u32, Arc<PackFile>>,
    /// The number of collections as of when the caches were last emptied.
    collections: AtomicU32,
    /// Fresh entries of the index are settling.
    settling: AtomicBool,
    /// See [`Store::rest_by`].
    rest: OnceLock<fn()>,
    /// Held shared while the store is open.
    _lock: File,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.path().display())
    }
}

impl Store {
    /// Where the user's store is: `$FERMATA_STORE`, else `fermata` in `$XDG_DATA_HOME`, else `.local/share/fermata` in `$HOME`.
    pub fn default_path() -> Result<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        variable("FERMATA_STORE")
            .or_else(|| variable("XDG_DATA_HOME").filter(|path| path.is_absolute()).map(|path| path.join("fermata")))
            .or_else(|| variable("HOME").map(|path| path.join(".local/share/fermata")))
            .ok_or_else(|| Error::missing("directory for the store is named and thus none", "set FERMATA_STORE to the directory to use"))
    }

    /// Opens the store in this directory; makes one if there is none, in a directory that is empty or not there.
    ///
    /// Opening a store again in the same process gives the same store. The secret of one that is encrypted is what `FERMATA_STORE_KEY_FILE` or
    /// `FERMATA_STORE_PASSPHRASE` says, else the key file that the store remembers, else asked for (see [`crate::ask_passphrases_with`]).
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_on(path, Arc::new(FileSystem))
    }

    /// Makes a store that is encrypted, in a directory that is empty or not there. `secret` is what `encryption` names; the path of a key file is written down for
    /// those who open the store later. `random` is to be as random as can be.
    pub fn create(path: &Path, encryption: &Encryption, secret: &Secret, random: &[u8; 48]) -> Result<Self> {
        Self::born_on(path, Arc::new(FileSystem), Some(&Birth { encryption, secret, random }))
    }

    /// From now on this is called between pieces of long work, in the thread that does it: while packs are written and fetched, whoever does that. It may take its time.
    /// The first one that is named stays.
    pub fn rest_by(&self, rest: fn()) {
        let _ = self.0.rest.set(rest);
    }

    /// How the store in this directory is encrypted; none: there is no store.
    pub fn encryption(path: &Path) -> Result<Option<Encryption>> {
        keys::encryption(path)
    }

    /// From now on the store is opened by another secret. What lies in it stays as it is, and who has it open goes on. `salt` is to be as random as can be.
    pub fn change_secret(path: &Path, encryption: &Encryption, secret: &Secret, salt: &[u8; 16]) -> Result<()> {
        keys::change(path, &FileSystem, encryption, secret, salt)
    }

    pub(crate) fn open_on(path: &Path, medium: Arc<dyn Medium>) -> Result<Self> {
        Self::born_on(path, medium, None)
    }

    pub(crate) fn born_on(path: &Path, medium: Arc<dyn Medium>, birth: Option<&Birth<'_>>) -> Result<Self> {
        // LMDB must not be opened twice in one process: its locks are the process's.
        static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<Inner>>>> = LazyLock::new(Mutex::default);
        files::make_directories(&*medium, path)?;
        let path = path.canonicalize().map_err(Error::io("find", path))?;
        let mut open = OPEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(inner) = open.get(&path).and_then(Weak::upgrade).filter(|_| birth.is_none()) {
            return Ok(Self(inner));
        }
        open.retain(|_, inner| inner.strong_count() > 0);
        let inner = Arc::new(Inner::open(&path, medium, birth)?);
        open.insert(path, Arc::downgrade(&inner));
        Ok(Self(inner))
    }

    /// The directory of the store.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The passphrase that opened the store, if it was one: what processes that this one starts have to be told ([`crate::PASSPHRASE_VARIABLE`]).
    pub fn passphrase(&self) -> Option<&str> {
        self.0.sealing.as_ref()?.passphrase()
    }

    /// The directory where live runs keep what is not yet in a checkpoint (disk overlays). It is there.
    pub fn live_dir(&self) -> PathBuf {
        self.0.path.join("live")
    }

    /// Starts writing a checkpoint. Nothing of it is visible before `commit`.
    pub fn writer(&self) -> Result<Writer> {
        Writer::new(self)
    }

    /// Reads a page and checks it against its name.
    pub fn read_page(&self, name: &PageName, into: &mut PageBuf) -> Result<()> {
        if *name == ZERO_PAGE {
            into.fill(0);
            return Ok(());
        }
        if let Some(away) = self.0.away_with(&self.0.index.pages, name.as_bytes())?
            && away.page(name, into)?
        {
            return Ok(());
        }
        self.0.read_object(&self.0.index.pages, name.as_bytes(), &Named("page", name.as_bytes()), |location| match location {
            Location::Image { image, block } => self.0.read_image(image, block, name, into),
            Location::Pack { pack, offset, place, length } => {
                let frame = self.0.frame(pack, offset, length, &Named("page", name.as_bytes()))?;
                self.0.page_of(&frame, pack, offset, place, name, into)
            }
        })
    }

    /// Reads a blob and checks it against its name.
    pub fn read_blob(&self, name: &BlobName) -> Result<Vec<u8>> {
        let what = Named("blob", name.as_bytes());
        if let Some(away) = self.0.away_with(&self.0.index.blobs, name.as_bytes())?
            && let Some(bytes) = away.blob(name)?
        {
            return Ok(bytes);
        }
        self.0.read_object(&self.0.index.blobs, name.as_bytes(), &what, |location| {
            let Location::Pack { pack, offset, place: 0, length } = location else {
                return Err(self.0.not_in_a_pack(Some(location), &what));
            };
            let file = self.0.pack(pack)?;
            let frame = file.frame(offset, length, &what)?;
            if frame.kind != Kind::Blob || hash::blob(&frame.raw) != *name {
                return Err(Error::corrupt(file.path(), offset, &what, "what lies there is something else"));
            }
            Ok(frame.raw)
        })
    }

    /// What a page table says of one page. None: not named by the table.
    pub fn lookup(&self, root: &Root, page: PageNumber) -> Result<Option<PageName>> {
        match self.away().filter(|away| away.awaits(root)) {
            Some(away) => away.lookup(root, page),
            None => table::lookup(&*self.0, root, page),
        }
    }

    /// The pages around these that are decompressed along with them: neighbours in the table that also lie in the same frame of a pack. For a reader who keeps
    /// what it reads they cost next to nothing now, and a whole frame each later. `wanted` says which pages may be among them, and is asked from the inside out.
    pub fn along(&self, root: &Root, pages: Range<PageNumber>, wanted: impl Fn(PageNumber) -> bool) -> Result<Range<PageNumber>> {
        let read = self.0.index.read()?;
        let frame = |page: PageNumber| -> Result<Option<(u32, u64)>> {
            // Nobody waits for neighbours that are nowhere.
            let name = table::lookup(&*self.0, root, page)?.filter(|name| *name != ZERO_PAGE);
            Ok(match name.map(|name| self.0.locate_page(&read, &name)).transpose()? {
                Some(Location::Pack { pack, offset, .. }) => Some((pack, offset)),
                _ => None,
            })
        };
        let Range { mut start, mut end } = pages;
        let (first, last) = (frame(start)?, frame(end.saturating_sub(1))?);
        // A page may be named again and again. A frame has only so many.
        for _ in 0..PAGES_MAX {
            match start.checked_sub(1).filter(|page| first.is_some() && wanted(*page)) {
                Some(page) if frame(page)? == first => start = page,
                _ => break,
            }
        }
        for _ in 0..PAGES_MAX {
            if last.is_none() || u64::from(end) >= root.pages || !wanted(end) || frame(end)? != last {
                break;
            }
            end += 1;
        }
        Ok(start..end)
    }

    /// Every named page of a table, in order of page number.
    pub fn for_each_page(&self, root: &Root, each: &mut dyn FnMut(PageNumber, PageName) -> Result<()>) -> Result<()> {
        table::for_each(&*self.0, root, each)
    }

    /// Pages in which two tables differ, in order, skipping equal subtrees: (page, in a, in b).
    pub fn diff(
        &self,
        a: &Root,
        b: &Root,
        each: &mut dyn FnMut(PageNumber, Option<PageName>, Option<PageName>) -> Result<()>,
    ) -> Result<()> {
        table::diff(&*self.0, a, b, each)
    }
}

impl Inner {
    fn open(path: &Path, medium: Arc<dyn Medium>, birth: Option<&Birth<'_>>) -> Result<Self> {
        let (lock, sealing) = keys::open(path, &*medium, birth)?;
        if !files::locked(&path.join("format"), || lock.try_lock_shared())? {
            let what = format!("the index of the store {} is being built again", path.display());
            return Err(Error::refused(what, "wait until that has ended"));
        }
        for directory in ["index", "packs", "tmp", "live", "holds"] {
            files::make_directory(&*medium, &path.join(directory))?;
        }
        files::sweep(&*medium, &path.join("tmp"), "")?;
        files::sweep(&*medium, &path.join("holds"), "")?;
        let (shelf, index) = (path.join("packs"), path.join("index"));
        let is_empty = std::fs::read_dir(&shelf).map_err(Error::io("list", &shelf))?.next().is_none();
        if !is_empty && !Index::is_there(&index) {
            // Never begin an empty index over packs: everything would seem to be gone.
            return Err(Error::IndexLost { path: index });
        }
        let opened = Index::open(&index, medium.clone(), sealing.clone())?;
        if opened.is_empty()? {
            // Else a crash could take the directories away with all that is synced within them. Whoever made them may have died before this.
            for directory in [&index, path, path.parent().unwrap_or(path)] {
                medium.sync_directory(directory).map_err(Error::io("sync", directory))?;
            }
        }
        recent::fill(&opened)?;
        let collections = opened.collections(&*opened.read()?)?;
        Ok(Self {
            path: path.to_owned(),
            index: opened,
            medium,
            sealing,
            images: RwLock::default(),
            image_names: ImageNames::default(),
            away: RwLock::default(),
            nodes: Cache::new(NODES_CACHED),
            frames: Cache::new(FRAMES_CACHED),
            packs: Cache::new(PACKS_CACHED),
            collections: AtomicU32::new(collections),
            settling: AtomicBool::new(false),
            rest: OnceLock::new(),
            _lock: lock,
        })
    }

    /// Settles the fresh entries of the index if there are many. Nobody waits for that, and nothing is lost if it fails.
    pub fn settle_soon(self: &Arc<Self>) {
        if !self.index.is_unsettled().unwrap_or(false) || self.settling.swap(true, Ordering::Relaxed) {
            return;
        }
        let inner = self.clone();
        let settle = move || {
            if let Err(error) = inner.index.settle() {
                tracing::warn!("fresh entries of the index stay apart for now: {error}");
            }
            inner.settling.store(false, Ordering::Relaxed);
        };
        // Called when a checkpoint is permanent: nothing may fail any more, nor panic.
        if let Err(error) = std::thread::Builder::new().spawn(settle) {
            tracing::warn!("fresh entries of the index stay apart for now, for want of a thread: {error}");
            self.settling.store(false, Ordering::Relaxed);
        }
    }

    pub fn shelf(&self) -> Shelf {
        Shelf { directory: self.path.join("packs"), sealing: self.sealing.clone() }
    }

    /// Where packs lie that came from a remote, until all that is wanted of them is in the store.
    pub fn incoming(&self) -> Shelf {
        Shelf { directory: self.path.join("remotes").join("incoming"), sealing: self.sealing.clone() }
    }

    /// A pack that is to be written.
    pub fn new_pack(&self) -> Result<PackBuilder> {
        PackBuilder::new(TempFile::create(self.medium.clone(), &self.path.join("tmp"), &self.sealing)?, self.rest())
    }

    /// What to call between two pieces of long work.
    pub fn rest(&self) -> fn() {
        self.rest.get().copied().unwrap_or(|| ())
    }

    /// Removes the file of a pack that the index does not name. True if it did.
    pub fn remove_unnamed(&self, path: &Path, id: &PackId) -> Result<bool> {
        // Under the lock of the index, where commits look whether their pack is still there.
        self.index.write(|write| {
            if self.index.has(write, &self.index.pack_numbers, id.as_bytes())? {
                return Ok(false);
            }
            match self.medium.remove(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(Error::io("remove", path)(error)),
                Ok(()) => Ok(true),
            }
        })
    }

    pub fn locate_page(&self, read: &heed::RoTxn<'_>, name: &PageName) -> Result<Location> {
        let what = Named("page", name.as_bytes());
        self.index.location(read, &self.index.pages, name.as_bytes(), &what)?.ok_or_else(|| self.not_in_a_pack(None, &what))
    }

    /// Where a node lies that something new may stand on.
    pub fn lasting_node(&self, name: &NodeName) -> Result<Option<Location>> {
        let name = name.as_bytes();
        self.index.lasting(&*self.index.read()?, &self.index.nodes, name, &Named("node", name))
    }

    /// Whether a node is found, be it doomed.
    pub fn finds_node(&self, name: &NodeName) -> Result<bool> {
        self.index.has(&*self.index.read()?, &self.index.nodes, name.as_bytes())
    }

    /// Where a blob lies that something new may name.
    pub fn lasting_blob(&self, name: &BlobName) -> Result<Option<Location>> {
        let name = name.as_bytes();
        self.index.lasting(&*self.index.read()?, &self.index.blobs, name, &Named("blob", name))
    }

    /// The pack with this number, open. One that a collection removed may still be in the cache, and be read as before.
    pub fn pack(&self, number: u32) -> Result<Arc<PackFile>> {
        if let Some(pack) = self.packs.get(&number) {
            return Ok(pack);
        }
        let id = self.index.pack_id(&*self.index.read()?, number)?;
        let pack = PackFile::open(&self.shelf(), &id).map_err(|error| match error {
            // The index names it, so this is damage, and is mended like that.
            Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Error::corrupt(&path, None, "the pack", "the file is not there")
            }
            error => error,
        });
        let pack = Arc::new(pack?);
        self.packs.insert(number, pack.clone());
        Ok(pack)
    }

    fn frame(&self, pack: u32, offset: u64, length: u32, what: &dyn Display) -> Result<Arc<Frame>> {
        if let Some(frame) = self.frames.get(&(pack, offset)) {
            return Ok(frame);
        }
        let frame = Arc::new(self.pack(pack)?.frame(offset, length, what)?);
        self.frames.insert((pack, offset), frame.clone());
        Ok(frame)
    }

    pub fn page_of(&self, frame: &Frame, pack: u32, offset: u64, place: u16, name: &PageName, into: &mut PageBuf) -> Result<()> {
        let found = match frame.kind {
            Kind::Pages => frame.object(place.into()),
            _ => Err("what lies there is no page".into()),
        };
        let checked = found.and_then(|bytes| {
            into.copy_from_slice(bytes);
            if hash::page(into) == *name { Ok(()) } else { Err("the content does not fit the name".into()) }
        });
        checked.map_err(|detail| self.damaged(pack, offset, &Named("page", name.as_bytes()), detail))
    }

    pub fn read_image(&self, number: u32, block: u32, name: &PageName, into: &mut PageBuf) -> Result<()> {
        let open = self.images.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&number).cloned();
        let Some((image, reader)) = open else {
            let image = self.index.image_with_number(&*self.index.read()?, number)?;
            let what = Named("page", name.as_bytes());
            let image = image.ok_or_else(|| self.index.corrupt(&what, "it lies in a golden image that is not registered"))?;
            return Err(Error::ImageNotOpen { image, block });
        };
        let changed = |detail: String| Error::ImageChanged { image, detail };
        if u64::from(block) >= reader.blocks() {
            return Err(changed(format!("block {block} is gone, it has {} blocks now", reader.blocks())));
        }
        reader.read_block(block, into).map_err(Error::io("read", Path::new(&format!("golden image {image}"))))?;
        if hash::page(into) != *name {
            return Err(changed(format!("block {block} is not what it was")));
        }
        Ok(())
    }

    /// Reads an object where the index says that it lies. A collection may move it between the look and the reading: then it is read where it
    /// lies now.
    fn read_object<T>(
        &self,
        db: &index::Db,
        name: &[u8; 32],
        what: &dyn Display,
        mut read: impl FnMut(Location) -> Result<T>,
    ) -> Result<T> {
        let locate = || -> Result<Location> {
            self.index.location(&*self.index.read()?, db, name, what)?.ok_or_else(|| self.not_in_a_pack(None, what))
        };
        let mut location = locate()?;
        for _ in 0..MOVES_MAX {
            let error = match read(location) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let now = locate()?;
            if now == location {
                return Err(error);
            }
            location = now;
        }
        read(location)
    }

    /// A node in the form in which it lies, and where that is; not yet checked against its name.
    pub fn stored_node(&self, name: &NodeName) -> Result<(Stored, Location)> {
        let what = Named("node", name.as_bytes());
        self.read_object(&self.index.nodes, name.as_bytes(), &what, |location| {
            let Location::Pack { pack, offset, place, length } = location else {
                return Err(self.not_in_a_pack(Some(location), &what));
            };
            let frame = self.frame(pack, offset, length, &what)?;
            let stored = match frame.kind {
                Kind::Nodes => frame.object(place.into()).and_then(Stored::decode),
                _ => Err("what lies there is no node".into()),
            };
            Ok((stored.map_err(|detail| self.damaged(pack, offset, &what, detail))?, location))
        })
    }

    /// Whether a node lies in the store full, by what lies there now. What is cached of it is brought up to date.
    pub fn look_again(&self, name: &NodeName) -> Result<bool> {
        let loaded = Arc::new(self.load_node(name)?);
        self.nodes.insert(*name, loaded.clone());
        Ok(loaded.base.is_none())
    }

    /// Drops what is cached if a collection has removed anything since it was: packs that are gone, and nodes that may lie otherwise now.
    pub fn forget_if_collected(&self) -> Result<()> {
        let now = self.index.collections(&*self.index.read()?)?;
        if self.collections.swap(now, Ordering::AcqRel) != now {
            self.forget();
        }
        Ok(())
    }

    /// Drops what is cached.
    pub fn forget(&self) {
        self.nodes.clear();
        self.frames.clear();
        self.packs.clear();
    }

    fn load_node(&self, name: &NodeName) -> Result<Loaded> {
        let (stored, location) = self.stored_node(name)?;
        let damaged = |detail: String| match location {
            Location::Pack { pack, offset, .. } => self.damaged(pack, offset, &Named("node", name.as_bytes()), detail),
            Location::Image { .. } => self.not_in_a_pack(Some(location), &Named("node", name.as_bytes())),
        };
        let loaded = match stored {
            Stored::Full(node) => Loaded { node, base: None, at: Some(location) },
            Stored::Delta(delta) => {
                let base = self.load_base(&delta.base).map_err(|error| match error {
                    Error::Missing { what, .. } => damaged(format!("its base is gone: {what}")),
                    error => error,
                })?;
                let base = base.ok_or_else(|| damaged("its base is not stored full".into()))?;
                Loaded { node: delta.apply(&base.node).map_err(damaged)?, base: Some(delta.base), at: Some(location) }
            }
        };
        if loaded.node.name() != *name {
            return Err(damaged("the content does not fit the name".into()));
        }
        Ok(loaded)
    }

    /// None if the node is itself a delta. Never follows a second base, so that a damaged store cannot lead in circles.
    fn load_base(&self, name: &NodeName) -> Result<Option<Arc<Loaded>>> {
        // One that is cached as a delta may have been stored full since.
        if let Some(base) = self.nodes.get(name).filter(|base| base.base.is_none()) {
            return Ok(Some(base));
        }
        match self.stored_node(name)?.0 {
            Stored::Delta(_) => Ok(None),
            Stored::Full(_) => self.load(name).map(Some),
        }
    }

    /// The error for an object that should lie in a pack, and lies nowhere or elsewhere.
    fn not_in_a_pack(&self, location: Option<Location>, what: &dyn Display) -> Error {
        match location {
            None if self.away().is_some() => Error::missing(
                what.to_string(),
                "it is in no pack of the remote either; where it is whole, `fermata remote verify --repair` sends it again",
            ),
            None => Error::missing(
                what.to_string(),
                "what names it was removed; if a checkpoint names it, the index is damaged: `fermata rebuild`",
            ),
            Some(_) => self.index.corrupt(what, "it cannot lie where its entry says"),
        }
    }

    fn damaged(&self, pack: u32, offset: u64, what: &dyn Display, detail: String) -> Error {
        match self.pack(pack) {
            Ok(file) => Error::corrupt(file.path(), offset, what, detail),
            Err(error) => error,
        }
    }
}

impl Nodes for Inner {
    fn load(&self, name: &NodeName) -> Result<Arc<Loaded>> {
        if let Some(loaded) = self.nodes.get(name) {
            return Ok(loaded);
        }
        let away = self.away_with(&self.index.nodes, name.as_bytes())?;
        let loaded = match away.map(|away| away.node(name)).transpose()?.flatten() {
            Some(node) => Loaded { node, base: None, at: None },
            None => self.load_node(name)?,
        };
        let loaded = Arc::new(loaded);
        self.nodes.insert(*name, loaded.clone());
        Ok(loaded)
    }

    fn misplaced(&self, name: &NodeName, detail: String) -> Error {
        Error::corrupt(&self.path, None, Named("node", name.as_bytes()), detail)
    }
}
