//! The store: pages, packs, index, page tables, checkpoint records and refs.
//!
//! This room knows no machine and no disk: it keeps pages, trees of page names, blobs and records, and hands them back as they were.
// The signatures below are the agreed interface. Bodies and module layout are for whoever fills the room.

use fermata_types::*;
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// What can go wrong. (To be completed.)
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A store, open. Cheap to clone; many threads and many processes may use one at once.
#[derive(Clone)]
pub struct Store;

/// Reads 4 KiB blocks of a golden image as the guest sees them.
pub trait ImageReader: Send + Sync {
    fn blocks(&self) -> u64;
    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()>;
}

/// One class of the sieve, as decided by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class { Zero, OnDisk, Known, New }

/// A checkpoint's record. The id is the BLAKE3 hash of its bytes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    pub parent: Option<CheckpointId>,
    pub experiment: String,
    /// The branch (= name of the run) that this checkpoint grew on.
    pub branch: String,
    pub message: Option<String>,
    /// Wall clock of the host, ns since 1970.
    pub created_ns: u64,
    pub time_virtual_ns: u64,
    /// The specification of the experiment, as plain JSON.
    pub spec: serde_json::Value,
    pub parts: Vec<PartState>,
    /// Golden images that the parts stand on.
    pub images: Vec<ImageId>,
    pub cost: Cost,
}

#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    pub pause_ns: u64,
    /// Steps of the pause, by part and name ("m1 stop"), ns.
    pub steps_ns: BTreeMap<String, u64>,
    pub save_ns: u64,
    /// Bytes that this checkpoint added to the store (packs, without the record itself).
    pub stored_bytes: u64,
    pub pages: PageCounts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress { pub done: u64, pub total: u64 }

impl Store {
    /// Opens the store in this directory; makes one if there is none.
    pub fn open(_path: &Path) -> Result<Self> { todo!() }
    pub fn path(&self) -> &Path { todo!() }
    /// Starts writing a checkpoint. Nothing of it is visible before `commit`.
    pub fn writer(&self) -> Result<Writer> { todo!() }

    /// Reads a page and checks it against its name.
    pub fn read_page(&self, _name: &PageName, _into: &mut PageBuf) -> Result<()> { todo!() }
    /// Reads many pages in the order in which they lie, each frame once; `each` may end it by returning false.
    pub fn read_pages(&self, _wanted: Vec<(PageNumber, PageName)>, _each: &mut dyn FnMut(PageNumber, &PageBuf) -> bool) -> Result<()> { todo!() }
    pub fn read_blob(&self, _name: &BlobName) -> Result<Vec<u8>> { todo!() }

    /// What a page table says of one page. None: not named by the table.
    pub fn lookup(&self, _root: &Root, _page: PageNumber) -> Result<Option<PageName>> { todo!() }
    /// Every named page of a table, in order of page number.
    pub fn for_each_page(&self, _root: &Root, _each: &mut dyn FnMut(PageNumber, PageName) -> Result<()>) -> Result<()> { todo!() }
    /// Pages in which two tables differ, skipping equal subtrees: (page, in a, in b).
    pub fn diff(&self, _a: &Root, _b: &Root, _each: &mut dyn FnMut(PageNumber, Option<PageName>, Option<PageName>) -> Result<()>) -> Result<()> { todo!() }

    /// Registers a golden image: hashes its blocks (first time only; `progress` may be shown to a person), so that equal pages are not stored again.
    pub fn add_image(&self, _id: ImageId, _reader: Arc<dyn ImageReader>, _progress: &mut dyn FnMut(Progress)) -> Result<()> { todo!() }

    pub fn record(&self, _id: &CheckpointId) -> Result<Record> { todo!() }
    /// All checkpoints, parents before children.
    pub fn records(&self) -> Result<Vec<(CheckpointId, Record)>> { todo!() }
    /// Finds a checkpoint by id prefix, tag, branch name ("main" or "experiment/main"), each optionally followed by ~N.
    pub fn resolve(&self, _text: &str, _experiment: Option<&str>) -> Result<CheckpointId> { todo!() }
    pub fn branch(&self, _experiment: &str, _branch: &str) -> Result<Option<CheckpointId>> { todo!() }
    pub fn branches(&self, _experiment: &str) -> Result<BTreeMap<String, CheckpointId>> { todo!() }
    pub fn set_branch(&self, _experiment: &str, _branch: &str, _id: &CheckpointId) -> Result<()> { todo!() }
    pub fn tag(&self, _experiment: &str, _tag: &str, _id: &CheckpointId) -> Result<()> { todo!() }
    pub fn untag(&self, _experiment: &str, _tag: &str) -> Result<()> { todo!() }
    pub fn tags(&self, _experiment: &str) -> Result<BTreeMap<String, CheckpointId>> { todo!() }
    /// The directory where live runs keep what is not yet in a checkpoint (disk overlays).
    pub fn live_dir(&self) -> std::path::PathBuf { todo!() }
}

/// A checkpoint being written: one pack. Dropped without commit, it leaves nothing visible.
pub struct Writer;

impl Writer {
    pub fn store(&self) -> &Store { todo!() }
    /// Puts one page through the sieve.
    pub fn put_page(&mut self, _page: &PageBuf) -> Result<(PageName, Class)> { todo!() }
    pub fn put_blob(&mut self, _bytes: &[u8]) -> Result<BlobName> { todo!() }
    /// A table like `base` but for `changes` (sorted by page, each page once; None: no longer named).
    pub fn update_table(&mut self, _base: &Root, _changes: &[(PageNumber, Option<PageName>)]) -> Result<Root> { todo!() }
    /// Bytes written to the pack so far, including what is still buffered once flushed.
    pub fn stored_bytes(&mut self) -> Result<u64> { todo!() }
    /// Makes the checkpoint durable and moves the branch to it: pack, then in one transaction index, record and ref. Fails if the branch moved meanwhile
    /// away from `record.parent` only when `record.parent` is not the branch's head and the branch exists.
    pub fn commit(self, _record: &Record) -> Result<CheckpointId> { todo!() }
}
