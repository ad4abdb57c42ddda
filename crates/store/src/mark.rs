//! Marking: which objects in which packs are alive. One bit an object, by where it lies, never a set of names: what this needs is about a
//! five-thousandth of the pages' bytes.

use crate::{
    Error, Record, Result, Store,
    error::Named,
    index::Location,
    node::Stored,
    pack::{Kind, PackFile, contents::Contents},
    table::Nodes as _,
};
use fermata_types::{CheckpointId, ImageId, NodeName, PackId};
use heed::RoTxn;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
};

/// Bits, set one by one.
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// True if it was not set before.
    fn set(&mut self, at: usize) -> bool {
        let new = !self.get(at);
        self.0[at / 64] |= 1 << (at % 64);
        new
    }

    fn clear(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// What is alive in one pack. Objects are numbered through, in the order of the table of contents.
pub(crate) struct PackMarks {
    pub id: PackId,
    /// Bytes of the file.
    pub length: u64,
    /// Offset of each frame, the number of its first object, and where the last frame ends.
    frames: Vec<(u64, u32)>,
    end: u64,
    objects: usize,
    alive: Bits,
    /// Nodes below which everything is marked too; and once all is marked, what was visited since [`Marker::begin_visits`].
    walked: Bits,
}

impl PackMarks {
    fn new(id: PackId, length: u64, contents: &Contents) -> Self {
        let mut objects = 0;
        let mut frames = Vec::with_capacity(contents.entries.len());
        for entry in &contents.entries {
            frames.push((entry.offset, objects as u32));
            objects += entry.names.len();
        }
        let end = contents.entries.last().map_or(0, |last| last.offset + u64::from(last.length));
        Self { id, length, frames, end, objects, alive: Bits::new(objects), walked: Bits::new(objects) }
    }

    /// The number of an object; none if nothing lies there.
    fn number(&self, offset: u64, place: u16) -> Option<usize> {
        let frame = self.frames.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        let number = self.frames[frame].1 as usize + usize::from(place);
        let next = self.frames.get(frame + 1).map_or(self.objects, |(_, first)| *first as usize);
        (number < next).then_some(number)
    }

    pub fn is_alive(&self, number: usize) -> bool {
        self.alive.get(number)
    }

    pub fn is_visited(&self, number: usize) -> bool {
        self.walked.get(number)
    }

    pub fn objects(&self) -> usize {
        self.objects
    }

    pub fn alive(&self) -> usize {
        self.alive.count()
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> u64 {
        self.end - self.frames.first().map_or(self.end, |(offset, _)| *offset)
    }

    /// Bytes of what is alive: of each frame the part that its living objects are by number.
    pub fn bytes_alive(&self) -> u64 {
        let ends = self.frames.iter().skip(1).copied().chain([(self.end, self.objects as u32)]);
        let alive_of = |((offset, first), (end, next)): (&(u64, u32), (u64, u32))| {
            let alive = (*first..next).filter(|number| self.alive.get(*number as usize)).count() as u64;
            (end - offset) * alive / u64::from(next - first).max(1)
        };
        self.frames.iter().zip(ends).map(alive_of).sum()
    }
}

/// Finds out what is alive.
pub(crate) struct Marker<'a> {
    store: &'a Store,
    /// The packs that were there in the beginning and can be read. What lies in others is not marked.
    pub packs: BTreeMap<u32, PackMarks>,
    /// Packs that cannot be read, and why.
    pub damaged: BTreeMap<u32, Error>,
    /// Where records lie: pack, and number of the object in it. The index does not say. A collection that was killed may leave copies.
    records: HashMap<CheckpointId, Vec<(u32, usize)>>,
    /// Nodes walked in other packs.
    elsewhere: HashSet<Location>,
    marked: HashSet<CheckpointId>,
    /// Golden images that these stand on.
    images: HashSet<ImageId>,
    /// What is alive though doomed, since the last time it was taken: kinds and names.
    pub doomed: Vec<(Kind, [u8; 32])>,
}

impl<'a> Marker<'a> {
    /// Reads the tables of contents of all these packs.
    pub fn new(store: &'a Store, packs: Vec<(u32, PackId)>) -> Result<Self> {
        let mut marker = Self {
            store,
            packs: BTreeMap::new(),
            damaged: BTreeMap::new(),
            records: HashMap::new(),
            elsewhere: HashSet::new(),
            marked: HashSet::new(),
            images: HashSet::new(),
            doomed: Vec::new(),
        };
        for (number, id) in packs {
            let read = PackFile::open(&store.0.shelf(), &id).and_then(|file| Ok((file.stored(), file.contents(&id)?)));
            match read {
                Ok((length, contents)) => {
                    marker.packs.insert(number, PackMarks::new(id, length, &contents));
                    for (at, (_, _, name)) in (0..).zip(contents.objects()).filter(|(_, (entry, ..))| entry.kind == Kind::Record) {
                        marker.records.entry(CheckpointId(*name)).or_default().push((number, at));
                    }
                }
                Err(error) if is_damage(&error) => _ = marker.damaged.insert(number, error),
                // It may be whole, and only now not to be read.
                Err(error) => return Err(error),
            }
        }
        Ok(marker)
    }

    /// Marks all that a checkpoint is made of, whether it is there or in the trash. False: it is neither.
    pub fn mark(&mut self, id: &CheckpointId) -> Result<bool> {
        if self.marked.contains(id) {
            return Ok(true);
        }
        let index = &self.store.0.index;
        let record = {
            let read = index.read()?;
            let Some(bytes) = index.record(&read, id)? else { return Ok(false) };
            Record::decode(&bytes, id, index.path())?
        };
        if let Some((pack, number)) = self.records.get(id).and_then(|copies| copies.last()) {
            self.packs.get_mut(pack).expect("its contents were read").alive.set(*number);
        }
        for part in &record.parts {
            for root in part.tables.values() {
                root.node.map_or(Ok(()), |node| self.walk(node))?;
            }
            for blob in part.blobs.values() {
                self.keep(&*index.read()?, Kind::Blob, blob.as_bytes(), false)?;
            }
        }
        self.images.extend(record.images);
        self.marked.insert(*id);
        Ok(true)
    }

    /// Whether a checkpoint that was marked stands on this golden image.
    pub fn stands_on(&self, image: &ImageId) -> bool {
        self.images.contains(image)
    }

    /// Whether a checkpoint was marked.
    pub fn has(&self, id: &CheckpointId) -> bool {
        self.marked.contains(id)
    }

    /// The packs that have the record of a checkpoint, of those that were there in the beginning.
    pub fn packs_of_record(&self, id: &CheckpointId) -> impl Iterator<Item = u32> {
        self.records.get(id).into_iter().flatten().map(|(pack, _)| *pack)
    }

    fn walk(&mut self, root: NodeName) -> Result<()> {
        let inner = &self.store.0;
        let mut left = vec![root];
        while let Some(name) = left.pop() {
            let read = inner.index.read()?;
            if !self.keep(&read, Kind::Nodes, name.as_bytes(), true)? {
                continue;
            }
            // Not from the cache of nodes: what counts is on which base it stands now.
            let (stored, _) = inner.stored_node(&name)?;
            let node = match stored {
                Stored::Full(node) => node,
                Stored::Delta(delta) => {
                    self.keep(&read, Kind::Nodes, delta.base.as_bytes(), false)?;
                    let base = inner.load(&delta.base)?;
                    delta.apply(&base.node).map_err(|detail| inner.misplaced(&name, detail))?
                }
            };
            if node.name() != name {
                return Err(inner.misplaced(&name, "the content does not fit the name".into()));
            }
            for (_, entry) in node.iter() {
                match node.level {
                    0 => _ = self.keep(&read, Kind::Pages, &entry, false)?,
                    _ => left.push(NodeName(entry)),
                }
            }
        }
        Ok(())
    }

    /// From now on nothing was visited; and nothing more is marked, since that is told by the same bits.
    pub fn begin_visits(&mut self) {
        self.packs.values_mut().for_each(|marks| marks.walked.0.fill(0));
        self.elsewhere.clear();
    }

    /// Where an object lies, if this is the first visit to it.
    pub fn visit(&mut self, read: &RoTxn<'_>, kind: Kind, name: &[u8; 32]) -> Result<Option<Location>> {
        let index = &self.store.0.index;
        let at = index.get(read, index.of_kind(kind), name)?.as_deref().and_then(Location::decode);
        let Some(at @ Location::Pack { pack, offset, place, .. }) = at else { return Ok(None) };
        let found = self.packs.get_mut(&pack).and_then(|marks| marks.number(offset, place).map(|number| (marks, number)));
        let is_first = match found {
            Some((marks, number)) => marks.walked.set(number),
            None => kind == Kind::Nodes && self.elsewhere.insert(at),
        };
        Ok(is_first.then_some(at))
    }

    /// As if it had not been visited.
    pub fn forget_visit(&mut self, at: &Location) {
        let Location::Pack { pack, offset, place, .. } = *at else { return };
        if let Some(marks) = self.packs.get_mut(&pack)
            && let Some(number) = marks.number(offset, place)
        {
            marks.walked.clear(number);
        }
    }

    /// Marks an object as alive. With `walk`, true if what is below it has yet to be marked.
    fn keep(&mut self, read: &RoTxn<'_>, kind: Kind, name: &[u8; 32], walk: bool) -> Result<bool> {
        let index = &self.store.0.index;
        let Some(bytes) = index.get(read, index.of_kind(kind), name)? else {
            return match kind {
                // Below a node that cannot be read there may be more.
                Kind::Nodes => Err(Error::missing(Named("node", name).to_string(), "a checkpoint needs it: verify the store")),
                // It is lost already, and nothing hangs on it.
                _ => Ok(false),
            };
        };
        let location = Location::decode(&bytes).ok_or_else(|| index.corrupt(&Named("object", name), "its entry is no location"))?;
        let Location::Pack { pack, offset, place, .. } = location else { return Ok(false) };
        let marks = self.packs.get_mut(&pack);
        let found = marks.and_then(|marks| marks.number(offset, place).map(|number| (marks, number)));
        let (newly_alive, newly_walked) = match found {
            Some((marks, number)) => (marks.alive.set(number), walk && marks.walked.set(number)),
            // If it is doomed it lies in a damaged pack, and stays so: nothing new is to rely on that.
            None => (false, walk && self.elsewhere.insert(location)),
        };
        if newly_alive && Location::is_doomed(&bytes) {
            self.doomed.push((kind, *name));
        }
        Ok(newly_walked)
    }
}

/// What the kernel says of a disk that cannot be read (`asm-generic/errno-base.h`).
const EIO: i32 = 5;

/// Whether this is a pack's own fault.
fn is_damage(error: &Error) -> bool {
    match error {
        // A sector that is gone for good. What cannot be read for want of something else may be whole.
        Error::Io { source, .. } => source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(EIO),
        error => matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. }),
    }
}
