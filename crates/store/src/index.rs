//! The index: where everything lies, in LMDB, byte for byte as in `docs/formats/index.md`.

mod checked;
mod guard;
mod hidden;
mod trees;

use crate::{
    Error, Result,
    cipher::{Sealing, hidden},
    files::Medium,
    lmdb::{self, Fault, KEY_MAX},
    pack::{Kind, name_at, u16_at, u32_at, u64_at},
};
use fermata_types::{CheckpointId, ImageId, PackId};
use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls, types::Bytes};
use hidden::Keys;
use std::{
    borrow::Cow,
    fmt::Display,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use trees::Tree;
pub(crate) use trees::{Db, Settling};

/// Address space for the index, and so its greatest size. The file is sparse and grows with what is in it; at about 100 bytes a page this is
/// room for terabytes of pages.
const MAP_SIZE: usize = 64 << 30;
/// Read transactions at once, in all processes together.
const READERS_MAX: u32 = 1024;
/// How long to wait for this very process to finish closing the same index.
const CLOSING_MAX: Duration = Duration::from_secs(10);

pub(crate) const DATABASES: [&str; 15] = [
    "pages",
    "nodes",
    "blobs",
    "packs",
    "pack-numbers",
    "records",
    "refs",
    "images",
    "meta",
    "removed",
    "trash",
    "hints",
    "recent",
    "fresh-pages",
    "fresh-nodes",
];
/// Fresh entries of a database that may wait to settle: few enough for a tree whose pages many of a commit's entries share.
const FRESH_MAX: u64 = 4 << 10;
/// Entries that settle in one transaction: commits of others do not wait long for that.
const SETTLED_AT_ONCE: usize = 2048;
/// New entries for each leaf of a tree for which they are not put aside: the leaves are an eighth of what is written for the pages themselves, or less.
const DENSE: usize = 8;
const NEXT_PACK: &[u8] = b"next-pack";
const COLLECTIONS: &[u8] = b"collections";
const NEXT_IMAGE: &[u8] = b"next-image";
const REMOVED_BYTES: &[u8] = b"removed-bytes";

/// Where a look at many entries begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScanFrom<'k> {
    Start,
    /// At this key, or at those that begin with it; at the start where names are not in order.
    At(&'k [u8]),
    /// Behind all that begin with this one.
    Behind(&'k [u8]),
}

/// A transaction that only reads. It sees the index as it was when it began, and must not live long.
pub(crate) type Read<'e> = RoTxn<'e, WithoutTls>;

/// The index, open. One process must not open the same index twice: see `Store::open`.
pub(crate) struct Index {
    env: Env<WithoutTls>,
    medium: Arc<dyn Medium>,
    /// How it is encrypted.
    sealing: Sealing,
    path: PathBuf,
    pub pages: Db,
    pub nodes: Db,
    pub blobs: Db,
    pub packs: Db,
    pub pack_numbers: Db,
    pub records: Db,
    pub refs: Db,
    pub images: Db,
    pub meta: Db,
    /// Removed checkpoints and their parents, for those who descend from them.
    pub removed: Db,
    /// Records of removed checkpoints, until a collection finds that nobody holds them.
    pub trash: Db,
    pub hints: Db,
    /// Checkpoints by when they were taken.
    pub recent: Db,
}

/// Where an object lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Location {
    Pack { pack: u32, offset: u64, place: u16, length: u32 },
    Image { image: u32, block: u32 },
}

/// The encoding of a location.
pub(crate) struct Encoded {
    bytes: [u8; 19],
    length: usize,
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Begins a location in a pack instead of 1 when the object is about to be removed: it can still be read, but nothing new may rely on it.
const DOOMED: u8 = 3;

impl Location {
    /// The same, doomed or not.
    pub fn encode_doomed(&self, doomed: bool) -> Encoded {
        let mut encoded = self.encode();
        if doomed && encoded.bytes[0] == 1 {
            encoded.bytes[0] = DOOMED;
        }
        encoded
    }

    /// Whether these bytes are a location of something doomed.
    pub fn is_doomed(bytes: &[u8]) -> bool {
        bytes.first() == Some(&DOOMED)
    }

    pub fn encode(&self) -> Encoded {
        let mut bytes = [0; 19];
        let length = match *self {
            Self::Pack { pack, offset, place, length } => {
                bytes[0] = 1;
                bytes[1..5].copy_from_slice(&pack.to_le_bytes());
                bytes[5..7].copy_from_slice(&place.to_le_bytes());
                bytes[7..11].copy_from_slice(&length.to_le_bytes());
                bytes[11..19].copy_from_slice(&offset.to_le_bytes());
                19
            }
            Self::Image { image, block } => {
                bytes[0] = 2;
                bytes[1..5].copy_from_slice(&image.to_le_bytes());
                bytes[5..9].copy_from_slice(&block.to_le_bytes());
                9
            }
        };
        Encoded { bytes, length }
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match (*bytes.first()?, bytes.len()) {
            (1 | DOOMED, 19) => {
                Some(Self::Pack { pack: u32_at(bytes, 1), place: u16_at(bytes, 5), length: u32_at(bytes, 7), offset: u64_at(bytes, 11) })
            }
            (2, 9) => Some(Self::Image { image: u32_at(bytes, 1), block: u32_at(bytes, 5) }),
            _ => None,
        }
    }
}

/// What the index knows of a golden image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImageEntry {
    pub number: u32,
    pub blocks: u64,
    pub complete: bool,
}

impl Index {
    /// The file in the directory of an index that holds it all.
    pub const FILE: &str = "data.mdb";

    /// Opens the index in this directory; makes one if there is none.
    pub fn open(path: &Path, medium: Arc<dyn Medium>, sealing: Sealing) -> Result<Self> {
        if checked::at(path).is_none() {
            check(path)?;
        }
        let env = open_env(path)?;
        env.clear_stale_readers().map_err(error(path))?;
        let databases = match open_databases(&env).map_err(error(path))? {
            Some(databases) => databases,
            None => create_databases(&env).map_err(error(path))?,
        };
        let [pages, nodes, others @ .., fresh_pages, fresh_nodes] = databases;
        let [blobs, packs, pack_numbers, records, refs, images, meta, removed, trash, hints, recent] = others;
        let [by_experiment, by_age, by_id] = [(hidden::experiment as fn(&[u8]) -> usize, 0), (hidden::experiment, 8), (hidden::id, 0)]
            .map(|(head, ordered)| Keys::Groups { head, ordered });
        let path = path.to_owned();
        Ok(Self {
            env,
            medium,
            path,
            sealing,
            pages: Db::of_objects("pages", pages, Some(fresh_pages)),
            nodes: Db::of_objects("nodes", nodes, Some(fresh_nodes)),
            blobs: Db::of_objects("blobs", blobs, None),
            packs: Db::new("packs", packs, Keys::Open).guarded(),
            pack_numbers: Db::new("pack-numbers", pack_numbers, Keys::Names).guarded(),
            records: Db::new("records", records, Keys::Names),
            refs: Db::new("refs", refs, by_experiment).guarded(),
            images: Db::new("images", images, Keys::Names).guarded(),
            meta: Db::new("meta", meta, Keys::Open).guarded().in_the_open(),
            removed: Db::new("removed", removed, Keys::Names).guarded(),
            trash: Db::new("trash", trash, Keys::Names).guarded(),
            hints: Db::new("hints", hints, by_id).guarded(),
            recent: Db::new("recent", recent, by_age).guarded(),
        })
    }

    /// Whether this directory holds an index, whole or not.
    pub fn is_there(path: &Path) -> bool {
        std::fs::metadata(path.join(Self::FILE)).is_ok_and(|file| file.len() > 0)
    }

    /// Whether no checkpoint was ever committed, or none is left.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.count(&*self.read()?, &self.records)? == 0)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self) -> Result<Read<'_>> {
        self.env.read_txn().map_err(self.error())
    }

    /// A read transaction that may be kept beside the index.
    pub fn read_owned(&self) -> Result<Read<'static>> {
        self.env.clone().static_read_txn().map_err(self.error())
    }

    /// Runs the only write transaction of all processes. It is durable when this returns, or nothing of it happened.
    pub fn write<T>(&self, change: impl FnOnce(&mut RwTxn<'_>) -> Result<T>) -> Result<T> {
        // A process that was killed while it read would keep every page from being used again that was freed since.
        self.env.clear_stale_readers().map_err(self.error())?;
        let mut transaction = self.env.write_txn().map_err(self.error())?;
        let checked = checked::at(&self.path);
        let value = change(&mut transaction)?;
        self.medium.commit(transaction).map_err(self.error())?;
        // What we write is as whole as what was there. If somebody else's transaction has begun since, it finds a file that nobody remembers, and says nothing of it.
        if checked.is_some() {
            checked::remember(&self.path, checked::state(&self.path), checked);
        }
        Ok(value)
    }

    /// Reads the file without LMDB, whenever that was done last: see `check`.
    pub fn check(&self) -> Result<()> {
        check(&self.path)
    }

    pub fn get<'t>(&self, read: &'t RoTxn<'_>, db: &Db, key: &[u8]) -> Result<Option<Cow<'t, [u8]>>> {
        let hidden = hidden::key(&self.sealing, db, key);
        let Some(value) = db.get(read, &hidden).map_err(self.error())? else { return Ok(None) };
        Ok(Some(match (&self.sealing, db.values) {
            (Some(_), hidden::Values::Sealed) => self.entry(db, &hidden, value)?.1.into_owned().into(),
            _ => value.into(),
        }))
    }

    /// Whether there is such a key.
    pub fn has(&self, read: &RoTxn<'_>, db: &Db, key: &[u8]) -> Result<bool> {
        Ok(db.get(read, &hidden::key(&self.sealing, db, key)).map_err(self.error())?.is_some())
    }

    pub fn put(&self, write: &mut RwTxn<'_>, db: &Db, key: &[u8], value: &[u8]) -> Result<()> {
        self.guard(write, db, key, Some(value))?;
        let hidden = hidden::key(&self.sealing, db, key);
        db.put(write, &hidden, &hidden::value(&self.sealing, db, key, &hidden, value)).map_err(self.error())
    }

    /// The value that was there already, which then stays. For objects alone.
    pub fn put_new(&self, write: &mut RwTxn<'_>, db: &Db, name: &[u8; 32], value: &[u8], settling: Settling) -> Result<Option<Vec<u8>>> {
        Ok(db.put_new(write, &self.called(name), value, settling).map_err(self.error())?.map(<[u8]>::to_vec))
    }

    /// When so many entries of one transaction should settle, that come in the order of their keys.
    pub fn settling(&self, read: &RoTxn<'_>, db: &Db, entries: usize) -> Result<Settling> {
        // Fewer would not be moved yet.
        let is_dense = entries as u64 > FRESH_MAX && entries >= DENSE * db.leaves(read).map_err(self.error())?;
        Ok(if is_dense { Settling::AtOnce } else { Settling::Later })
    }

    pub fn delete(&self, write: &mut RwTxn<'_>, db: &Db, key: &[u8]) -> Result<bool> {
        self.guard(write, db, key, None)?;
        db.delete(write, &hidden::key(&self.sealing, db, key)).map_err(self.error())
    }

    /// What an object is called in the file.
    pub fn called(&self, name: &[u8; 32]) -> [u8; 32] {
        hidden(&self.sealing, name)
    }

    /// Whether names are in order: not where they are called otherwise.
    pub fn is_in_order(&self) -> bool {
        self.sealing.is_none()
    }

    /// The real key and value of an entry.
    fn entry<'e>(&self, db: &Db, key: &'e [u8], value: &'e [u8]) -> Result<hidden::Entry<'e>> {
        hidden::entry(&self.sealing, db, key, value)
            .ok_or_else(|| self.corrupt(&format!("an entry of \"{}\"", db.name), "it is not what was encrypted there"))
    }

    /// Bytes of the file that are in use, or were once.
    pub fn bytes_used(&self) -> Result<u64> {
        let path = self.path.join(Self::FILE);
        Ok(path.metadata().map_err(Error::io("look at", &path))?.blocks() * 512)
    }

    /// Entries of a database.
    pub fn count(&self, read: &RoTxn<'_>, db: &Db) -> Result<u64> {
        db.len(read).map_err(self.error())
    }

    /// Every key and value from `from` on, until `each` returns false.
    pub fn scan(&self, read: &RoTxn<'_>, db: &Db, from: ScanFrom<'_>, mut each: impl FnMut(&[u8], &[u8]) -> Result<bool>) -> Result<()> {
        let from = match from {
            ScanFrom::Start => vec![0],
            ScanFrom::At(_) if matches!(db.keys, Keys::Names) && !self.is_in_order() => vec![0],
            ScanFrom::At(key) => hidden::key(&self.sealing, db, key).into_owned(),
            ScanFrom::Behind(key) => behind(hidden::key(&self.sealing, db, key).into_owned()),
        };
        let each = |key: &[u8], value: &[u8]| {
            let (key, value) = self.entry(db, key, value)?;
            each(&key, &value)
        };
        db.scan(read, &from, each, self.error())
    }

    /// Whether so many entries are fresh that they should settle.
    pub fn is_unsettled(&self) -> Result<bool> {
        let read = self.read()?;
        let fresh = [&self.pages, &self.nodes].map(|db| db.fresh(&read).map_err(self.error()));
        Ok(fresh.into_iter().collect::<Result<Vec<_>>>()?.into_iter().any(|fresh| fresh > FRESH_MAX))
    }

    /// Settles all entries that are fresh, in steps between which others write.
    pub fn settle(&self) -> Result<()> {
        for db in [&self.pages, &self.nodes] {
            while db.fresh(&*self.read()?).map_err(self.error())? > 0 {
                self.write(|write| db.settle(write, SETTLED_AT_ONCE).map_err(self.error()))?;
            }
        }
        Ok(())
    }

    pub fn location(&self, read: &RoTxn<'_>, db: &Db, name: &[u8; 32], what: &dyn Display) -> Result<Option<Location>> {
        let Some(bytes) = self.get(read, db, name)? else { return Ok(None) };
        let location = Location::decode(&bytes).ok_or_else(|| self.corrupt(what, "its entry is no location"))?;
        Ok(Some(location))
    }

    /// Where an object lies that something new may rely on: none if it is doomed.
    pub fn lasting(&self, read: &RoTxn<'_>, db: &Db, name: &[u8; 32], what: &dyn Display) -> Result<Option<Location>> {
        match self.get(read, db, name)? {
            Some(bytes) if Location::is_doomed(&bytes) => Ok(None),
            _ => self.location(read, db, name, what),
        }
    }

    /// The record of a checkpoint, whether it is there or in the trash.
    pub fn record<'t>(&self, read: &'t RoTxn<'_>, id: &CheckpointId) -> Result<Option<Cow<'t, [u8]>>> {
        match self.get(read, &self.records, id.as_bytes())? {
            None => self.get(read, &self.trash, id.as_bytes()),
            bytes => Ok(bytes),
        }
    }

    pub fn pack_id(&self, read: &RoTxn<'_>, number: u32) -> Result<PackId> {
        let bytes = self.get(read, &self.packs, &number.to_be_bytes())?;
        bytes.as_deref().and_then(name).map(PackId).ok_or_else(|| self.corrupt(&format!("pack number {number}"), "no pack has this number"))
    }

    /// The number of a pack, a new one if it has none.
    pub fn number_pack(&self, write: &mut RwTxn<'_>, id: &PackId) -> Result<u32> {
        if let Some(bytes) = self.get(write, &self.pack_numbers, id.as_bytes())? {
            return self.number(&bytes, &format!("pack {id}"));
        }
        let number = self.take_number(write, NEXT_PACK)?;
        self.put(write, &self.packs, &number.to_be_bytes(), id.as_bytes())?;
        self.put(write, &self.pack_numbers, id.as_bytes(), &number.to_le_bytes())?;
        Ok(number)
    }

    pub fn image(&self, read: &RoTxn<'_>, id: &ImageId) -> Result<Option<ImageEntry>> {
        let Some(bytes) = self.get(read, &self.images, id.as_bytes())? else { return Ok(None) };
        if bytes.len() != 13 || bytes[12] > 1 {
            return Err(self.corrupt(&format!("golden image {id}"), "its entry is not of the right form"));
        }
        Ok(Some(ImageEntry { number: u32_at(&bytes, 0), blocks: u64_at(&bytes, 4), complete: bytes[12] == 1 }))
    }

    pub fn set_image(&self, write: &mut RwTxn<'_>, id: &ImageId, entry: &ImageEntry) -> Result<()> {
        let mut bytes = [0; 13];
        bytes[..4].copy_from_slice(&entry.number.to_le_bytes());
        bytes[4..12].copy_from_slice(&entry.blocks.to_le_bytes());
        bytes[12] = entry.complete.into();
        self.put(write, &self.images, id.as_bytes(), &bytes)
    }

    pub fn next_image(&self, write: &mut RwTxn<'_>) -> Result<u32> {
        self.take_number(write, NEXT_IMAGE)
    }

    /// The image with this number, for an error message: there are few.
    pub fn image_with_number(&self, read: &RoTxn<'_>, number: u32) -> Result<Option<ImageId>> {
        let mut found = None;
        self.scan(read, &self.images, ScanFrom::Start, |key, value| {
            if value.len() == 13 && u32_at(value, 0) == number {
                found = name(key).map(ImageId);
            }
            Ok(found.is_none())
        })?;
        Ok(found)
    }

    pub fn checkpoint_id(&self, bytes: &[u8], what: &dyn Display) -> Result<CheckpointId> {
        name(bytes).map(CheckpointId).ok_or_else(|| self.corrupt(what, "its entry is no checkpoint id"))
    }

    /// The ids of all entries of a database whose entries are `what`, of checkpoints.
    pub fn checkpoint_ids(&self, read: &RoTxn<'_>, db: &Db, what: &dyn Display) -> Result<Vec<CheckpointId>> {
        let mut ids = Vec::new();
        self.scan(read, db, ScanFrom::Start, |key, _| {
            ids.push(self.checkpoint_id(key, what)?);
            Ok(true)
        })?;
        Ok(ids)
    }

    /// The database that has objects of this kind.
    pub fn of_kind(&self, kind: Kind) -> &Db {
        match kind {
            Kind::Pages => &self.pages,
            Kind::Nodes => &self.nodes,
            Kind::Blob | Kind::Record => &self.blobs,
        }
    }

    /// All packs by number.
    pub fn all_packs(&self, read: &RoTxn<'_>) -> Result<Vec<(u32, PackId)>> {
        let mut packs = Vec::new();
        self.scan(read, &self.packs, ScanFrom::Start, |key, value| {
            let number = key.try_into().map(u32::from_be_bytes).ok();
            packs.push(number.zip(name(value).map(PackId)).ok_or_else(|| self.corrupt(&"a pack", "its entry is not of the right form"))?);
            Ok(true)
        })?;
        Ok(packs)
    }

    pub fn corrupt(&self, what: &dyn Display, detail: &str) -> Error {
        Error::corrupt(&self.path, None, what, detail)
    }

    /// The number that the next new pack gets.
    pub fn next_pack(&self, read: &RoTxn<'_>) -> Result<u32> {
        let bytes = self.get(read, &self.meta, NEXT_PACK)?;
        bytes.map_or(Ok(0), |bytes| self.number(&bytes, &"the number of the next pack"))
    }

    /// Changes whenever a collection hides or removes something: what was cached before may be gone.
    pub fn collections(&self, read: &RoTxn<'_>) -> Result<u32> {
        let bytes = self.get(read, &self.meta, COLLECTIONS)?;
        bytes.map_or(Ok(0), |bytes| self.number(&bytes, &"the number of collections"))
    }

    pub fn count_collection(&self, write: &mut RwTxn<'_>) -> Result<()> {
        let count = self.collections(write)?.wrapping_add(1);
        self.put(write, &self.meta, COLLECTIONS, &count.to_le_bytes())
    }

    /// What the checkpoints that were removed had stored, those whose garbage was collected left out.
    pub fn removed_bytes(&self, read: &RoTxn<'_>) -> Result<u64> {
        let Some(bytes) = self.get(read, &self.meta, REMOVED_BYTES)? else { return Ok(0) };
        bytes
            .as_ref()
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| self.corrupt(&"the bytes of removed checkpoints", "its entry is no number"))
    }

    pub fn set_removed_bytes(&self, write: &mut RwTxn<'_>, bytes: u64) -> Result<()> {
        self.put(write, &self.meta, REMOVED_BYTES, &bytes.to_le_bytes())
    }

    fn take_number(&self, write: &mut RwTxn<'_>, key: &[u8]) -> Result<u32> {
        let number = match self.get(write, &self.meta, key)? {
            Some(bytes) => self.number(&bytes, &String::from_utf8_lossy(key))?,
            None => 0,
        };
        let next = number.checked_add(1).ok_or_else(|| Error::refused("the store has run out of numbers", "start a new store"))?;
        self.put(write, &self.meta, key, &next.to_le_bytes())?;
        Ok(number)
    }

    fn number(&self, bytes: &[u8], what: &dyn Display) -> Result<u32> {
        bytes.try_into().map(u32::from_le_bytes).map_err(|_| self.corrupt(what, "its entry is no number"))
    }

    fn error(&self) -> impl Fn(heed::Error) -> Error {
        error(&self.path)
    }
}

/// The real key and value of an entry of this database that was read without LMDB; none: it is not what was written. For databases whose values are sealed.
pub(crate) fn salvaged(sealing: &Sealing, database: &str, key: &[u8], value: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    match sealing {
        None => Some((key.to_vec(), value.to_vec())),
        Some(cipher) => hidden::unseal(cipher, database, key, value),
    }
}

/// The least key behind all that begin with this one.
fn behind(mut key: Vec<u8>) -> Vec<u8> {
    while key.pop_if(|last| *last == u8::MAX).is_some() {}
    match key.last_mut() {
        Some(last) => *last += 1,
        // Nothing is.
        None => key = vec![u8::MAX; KEY_MAX],
    }
    key
}

fn name(bytes: &[u8]) -> Option<[u8; 32]> {
    (bytes.len() == 32).then(|| name_at(bytes, 0))
}

/// Nothing of the file is shown to LMDB before its structure is known to be whole, or was within the hour: LMDB follows whatever it finds.
fn check(path: &Path) -> Result<()> {
    let (file, state) = (path.join(Index::FILE), checked::state(path));
    match lmdb::check(&file, &DATABASES) {
        Ok(()) => {
            checked::remember(path, state, checked::now());
            Ok(())
        }
        Err(Fault::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(Fault::Io(error)) => Err(Error::io("read", &file)(error)),
        Err(Fault::Version(version)) => Err(Error::Unsupported { path: file, what: format!("version {version} of LMDB's format") }),
        Err(Fault::Damaged(at, detail)) => {
            // It may have rotted without a trace since it was found whole.
            checked::forget(path);
            Err(Error::corrupt(&file, at, "the structure of the index", detail))
        }
    }
}

fn open_env(path: &Path) -> Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(MAP_SIZE).max_dbs(DATABASES.len() as u32).max_readers(READERS_MAX);
    let mut read_only = false;
    loop {
        // SAFETY: the map is unsound only if somebody changes the file without LMDB's lock. The directory is ours alone (mode 0700), nothing
        // here touches its files but LMDB, and heed refuses to open an environment twice in one process. The only flag, for reading alone,
        // leaves the lock out on a file system where nothing can be written.
        #[allow(unsafe_code)]
        let opened = unsafe {
            if read_only {
                options.flags(EnvFlags::READ_ONLY);
            }
            options.open(path)
        };
        match opened {
            // Its file of locks could not be opened for writing. What there is can be read.
            Err(heed::Error::Io(error)) if error.kind() == std::io::ErrorKind::ReadOnlyFilesystem && !read_only => read_only = true,
            // The last user of this index in this process is just closing it.
            Err(heed::Error::EnvAlreadyOpened) => {
                let closing = path.canonicalize().ok().and_then(heed::env_closing_event);
                if closing.is_some_and(|event| !event.wait_timeout(CLOSING_MAX)) {
                    return Err(error(path)(heed::Error::EnvAlreadyOpened));
                }
            }
            opened => return opened.map_err(error(path)),
        }
    }
}

/// None unless all databases are there. Takes no write lock, so that opening a store does not wait for a commit.
fn open_databases(env: &Env<WithoutTls>) -> heed::Result<Option<[Tree; DATABASES.len()]>> {
    let opened = env.open_databases_and_commit(env.read_txn()?, |opener, read| -> heed::Result<_> {
        let mut databases = Vec::new();
        for name in DATABASES {
            match opener.open_database::<Bytes, Bytes>(read, Some(name))? {
                Some(database) => databases.push(database),
                None => return Ok(CommitOrAbort::Abort(())),
            }
        }
        Ok(databases.try_into().map_or(CommitOrAbort::Abort(()), |all: [_; DATABASES.len()]| CommitOrAbort::Commit(all)))
    })?;
    Ok(opened.commit())
}

fn create_databases(env: &Env<WithoutTls>) -> heed::Result<[Tree; DATABASES.len()]> {
    let created = env.create_databases_and_commit(env.write_txn()?, |opener, write| -> heed::Result<_> {
        let databases: Vec<_> =
            DATABASES.iter().map(|name| opener.create_database::<Bytes, Bytes>(write, Some(name))).collect::<heed::Result<_>>()?;
        Ok(databases.try_into().map_or(CommitOrAbort::Abort(()), |all: [_; DATABASES.len()]| CommitOrAbort::Commit(all)))
    })?;
    Ok(created.commit().expect("as many databases as names"))
}

fn error(path: &Path) -> impl Fn(heed::Error) -> Error {
    move |error| match error {
        heed::Error::Io(source) => Error::Io { action: "use the index", path: path.to_owned(), source },
        heed::Error::Mdb(MdbError::MapFull) => Error::refused(
            format!("the index {} has reached its greatest size", path.display()),
            "remove checkpoints, or start a new store",
        ),
        heed::Error::Mdb(MdbError::ReadersFull) => {
            Error::refused(format!("too many readers use the index {} at once", path.display()), "end some and try again")
        }
        heed::Error::Mdb(MdbError::VersionMismatch) => {
            Error::Unsupported { path: path.to_owned(), what: "another version of LMDB's format".into() }
        }
        heed::Error::EnvAlreadyOpened => {
            Error::refused(format!("the index {} is already open in this process by another path", path.display()), "close it first")
        }
        other => Error::corrupt(path, None, "the index", other.to_string()),
    }
}
