//! Rewriting: what is alive in packs that are mostly dead, or many and small, is copied into new ones, in the order in which it will be read.
//!
//! Pages that are read together may have been stored by many checkpoints, and lie in as many packs. The page tables say which they are. So the tables are walked, those of
//! the newest checkpoints first, and the pages that they name in packs that go are copied as they come, some thousand at a time: of those each frame is read once, wherever
//! it lies. Nodes, blobs and records follow in the order in which they lay. It takes no more memory than those pages; and room on the disk for what is alive in the packs,
//! until they are removed, so that not all that go are taken together.

use super::{CollectStage, Collection, Fate, check_object, in_order::Object};
use crate::{
    Error, Progress, Record, Result,
    index::{Location, ScanFrom},
    pack::{Kind, PackBuilder, PackFile},
    table::Nodes as _,
};
use fermata_types::{BlobName, CheckpointId, NodeName, PAGE_SIZE, PageBuf, PageName};

/// A pack of rewritten objects is ended when it is this long.
const REWRITTEN_BYTES: u64 = 256 << 20;
/// And when it has so many: their names are in memory, and pages may be compressed to a few bytes.
const REWRITTEN_OBJECTS: usize = 1 << 17;
/// Bytes that are alive in packs that are taken together: they are twice on the disk for a while.
pub(super) const TOGETHER_BYTES: u64 = 1 << 30;
/// Pages that are copied at once: 8 MiB. Few in tests, so that they are not all there are.
const AT_ONCE: usize = if cfg!(test) { 24 } else { 2048 };

/// Pages on their way into new packs, in the order in which these are to have them.
struct Ordered<'p> {
    /// Where they lie, by number.
    packs: &'p [u32],
    next: Vec<(Location, PageName)>,
    builder: Option<PackBuilder>,
}

impl Collection<'_> {
    /// Copies what is alive in packs that are mostly dead, or many and small, into new ones, and removes the old.
    pub(super) fn rewrite(&mut self) -> Result<()> {
        let mut all = [Fate::Rewrite, Fate::PutTogether].map(|fate| self.packs_that(fate)).concat();
        all.sort_unstable();
        let (mut left, total) = (&all[..], all.len() as u64);
        while !left.is_empty() {
            (self.progress)(CollectStage::Rewrite, Progress { done: total - left.len() as u64, total });
            let mut bytes = 0;
            let together = left.iter().take_while(|pack| {
                bytes += self.marker.packs[*pack].bytes_alive();
                bytes <= TOGETHER_BYTES
            });
            let (packs, rest) = left.split_at(together.count().max(1));
            // What is in one came from one checkpoint, or was put in order before.
            if packs.len() > 1 {
                self.copy_in_order(packs)?;
            }
            self.copy_rest(packs)?;
            left = rest;
        }
        (self.progress)(CollectStage::Rewrite, Progress { done: total, total });
        Ok(())
    }

    /// Copies the pages that are alive in these packs, as tables name them. The marks of the packs tell afterwards which.
    fn copy_in_order(&mut self, packs: &[u32]) -> Result<()> {
        self.marker.begin_visits();
        let mut ordered = Ordered { packs, next: Vec::new(), builder: None };
        for id in self.newest_first()? {
            let index = &self.store.0.index;
            // One that was removed meanwhile needs no order.
            let Some(bytes) = index.record(&*index.read()?, &id)?.map(std::borrow::Cow::into_owned) else { continue };
            let record = Record::decode(&bytes, &id, index.path())?;
            for root in record.parts.iter().flat_map(|part| part.tables.values()) {
                root.node.map_or(Ok(()), |node| self.copy_below(&node, &mut ordered))?;
            }
        }
        self.copy_next(&mut ordered)?;
        match ordered.builder {
            Some(builder) => self.publish(builder, packs),
            None => Ok(()),
        }
    }

    /// The checkpoints that were marked; of each experiment the newest come first.
    fn newest_first(&self) -> Result<Vec<CheckpointId>> {
        let index = &self.store.0.index;
        let mut ids = Vec::new();
        index.scan(&*index.read()?, &index.recent, ScanFrom::Start, |key, _| {
            let id = index.checkpoint_id(&key[key.len().saturating_sub(32)..], &"a checkpoint by its age")?;
            ids.extend(self.marker.has(&id).then_some(id));
            Ok(true)
        })?;
        Ok(ids)
    }

    /// Copies the pages below a node, unless it was visited before.
    fn copy_below(&mut self, name: &NodeName, ordered: &mut Ordered<'_>) -> Result<()> {
        let inner = self.store.0.clone();
        if self.marker.visit(&*inner.index.read()?, Kind::Nodes, name.as_bytes())?.is_none() {
            return Ok(());
        }
        let loaded = inner.load(name)?;
        if loaded.node.level > 0 {
            return loaded.node.iter().try_for_each(|(_, entry)| self.copy_below(&NodeName(entry), ordered));
        }
        let mut read = inner.index.read()?;
        for (_, entry) in loaded.node.iter() {
            let Some(at) = self.marker.visit(&read, Kind::Pages, &entry)? else { continue };
            if matches!(at, Location::Pack { pack, .. } if ordered.packs.binary_search(&pack).is_ok()) {
                ordered.next.push((at, PageName(entry)));
                if ordered.next.len() == AT_ONCE {
                    drop(read);
                    self.copy_next(ordered)?;
                    read = inner.index.read()?;
                }
            }
        }
        Ok(())
    }

    /// Copies the pages that were gathered.
    fn copy_next(&mut self, ordered: &mut Ordered<'_>) -> Result<()> {
        let next = std::mem::take(&mut ordered.next);
        let mut contents: Vec<Option<Box<PageBuf>>> = Vec::new();
        contents.resize_with(next.len(), || None);
        let mut by_place: Vec<_> = (0..next.len()).collect();
        by_place.sort_unstable_by_key(|at| next[*at].0);
        for frame in by_place.chunk_by(|a, b| frame_of(&next[*a].0) == frame_of(&next[*b].0)) {
            match self.read_pages(frame, &next, &mut contents) {
                // It is told when what is left of its pack is copied.
                Ok(()) | Err(Error::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for ((at, name), content) in next.iter().zip(contents) {
            let Some(content) = content else {
                self.marker.forget_visit(at);
                continue;
            };
            let into = match &mut ordered.builder {
                Some(builder) => builder,
                None => ordered.builder.insert(self.store.0.new_pack()?),
            };
            into.add_page(name, &content)?;
            if is_full(into) {
                let full = ordered.builder.take().expect("it was there just now");
                self.publish(full, ordered.packs)?;
            }
        }
        Ok(())
    }

    /// Reads pages that lie in one frame.
    fn read_pages(&self, of_frame: &[usize], next: &[(Location, PageName)], contents: &mut [Option<Box<PageBuf>>]) -> Result<()> {
        let Some((pack, offset, length)) = frame_of(&next[of_frame[0]].0) else { return Ok(()) };
        let file = self.store.0.pack(pack)?;
        let corrupt = |detail: String| Error::corrupt(file.path(), offset, "a frame", detail);
        let frame = file.frame(offset, length, &"a frame")?;
        if frame.kind != Kind::Pages {
            return Err(corrupt("what lies there is no page".into()));
        }
        for at in of_frame {
            let (Location::Pack { place, .. }, name) = next[*at] else { continue };
            let bytes = frame.object(place.into()).map_err(corrupt)?;
            check_object(Kind::Pages, name.as_bytes(), bytes).map_err(corrupt)?;
            let mut content = Box::new([0; PAGE_SIZE]);
            content.copy_from_slice(bytes);
            contents[*at] = Some(content);
        }
        Ok(())
    }

    /// Copies what is alive in these packs and was not copied yet, and removes them.
    fn copy_rest(&mut self, packs: &[u32]) -> Result<()> {
        let mut builder: Option<PackBuilder> = None;
        let mut sources = Vec::new();
        for number in packs {
            let into = match &mut builder {
                Some(builder) => builder,
                None => builder.insert(self.store.0.new_pack()?),
            };
            match self.copy(*number, packs.len() > 1, into) {
                Ok(()) => sources.push(*number),
                Err(error @ Error::Corrupt { .. }) => {
                    self.told.damaged.push(error.to_string());
                    self.forget_dead(&[*number])?;
                }
                Err(error) => return Err(error),
            }
            if is_full(into) && !sources.is_empty() {
                self.replace(builder.take().expect("it was there just now"), std::mem::take(&mut sources))?;
            }
        }
        match builder {
            Some(builder) if !sources.is_empty() => self.replace(builder, sources),
            _ => Ok(()),
        }
    }

    /// Copies what is alive of a pack, checked against its names. `ordered`: without the pages that were visited.
    fn copy(&self, number: u32, ordered: bool, into: &mut PackBuilder) -> Result<()> {
        let marks = &self.marker.packs[&number];
        let file = PackFile::open(&self.store.0.shelf(), &marks.id)?;
        let mut first = 0;
        for entry in file.contents(&marks.id)?.entries {
            let is_left = |at: usize| marks.is_alive(at) && !(ordered && entry.kind == Kind::Pages && marks.is_visited(at));
            let left: Vec<_> = (0..entry.names.len()).filter(|place| is_left(first + place)).collect();
            first += entry.names.len();
            if left.is_empty() {
                continue;
            }
            let corrupt = |detail: String| Error::corrupt(file.path(), entry.offset, "a frame", detail);
            let frame = file.frame(entry.offset, entry.length, &"a frame")?;
            if frame.kind != entry.kind || frame.objects != entry.names.len() {
                return Err(corrupt("it is not what the table of contents says".into()));
            }
            for place in left {
                let (name, bytes) = (entry.names[place], frame.object(place).map_err(corrupt)?);
                check_object(entry.kind, &name, bytes).map_err(corrupt)?;
                match entry.kind {
                    Kind::Pages => into.add_page(&PageName(name), bytes.try_into().expect("a page has its size"))?,
                    Kind::Nodes => into.add_node(&NodeName(name), bytes)?,
                    Kind::Blob => into.add_blob(&BlobName(name), bytes)?,
                    Kind::Record => into.add_record(&CheckpointId(name), bytes)?,
                }
            }
        }
        Ok(())
    }

    /// Makes a new pack durable, lets the index find there what lay in `sources`, and removes these.
    fn replace(&mut self, mut builder: PackBuilder, sources: Vec<u32>) -> Result<()> {
        builder.flush()?;
        // All of them was pages, which lie in order elsewhere by now.
        if builder.objects() > 0 {
            self.publish(builder, &sources)?;
        }
        self.told.packs_rewritten += sources.len() as u64;
        self.remove_packs(&sources)
    }

    /// Makes a new pack durable, and lets the index find there what lay in `sources`, which are in order.
    fn publish(&mut self, builder: PackBuilder, sources: &[u32]) -> Result<()> {
        let inner = &self.store.0;
        let published = builder.seal(&inner.shelf())?;
        let index = &inner.index;
        let number = index.write(|write| index.number_pack(write, &published.id))?;
        let objects = Object::all(index, number, &published.contents, |_| true).collect();
        self.in_order(objects, |write, object| {
            let db = index.of_kind(object.kind);
            match index.get(write, db, &object.name)?.as_deref().and_then(Location::decode) {
                Some(Location::Pack { pack, .. }) if sources.binary_search(&pack).is_ok() => {
                    index.put(write, db, &object.name, object.location.encode().as_ref())
                }
                // Somebody stored it again meanwhile.
                _ => Ok(()),
            }
        })?;
        self.told.packs_written += 1;
        self.told.bytes_after += published.path.metadata().map_err(Error::io("look at", &published.path))?.len();
        Ok(())
    }
}

fn is_full(builder: &PackBuilder) -> bool {
    builder.length() >= REWRITTEN_BYTES || builder.objects() >= REWRITTEN_OBJECTS
}

/// The frame that something lies in: pack, offset and length.
fn frame_of(at: &Location) -> Option<(u32, u64, u32)> {
    match at {
        Location::Pack { pack, offset, length, .. } => Some((*pack, *offset, *length)),
        Location::Image { .. } => None,
    }
}
