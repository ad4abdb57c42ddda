//! What was written to an area, as it was at one instant.

use crate::{Error, Result};
use fermata_linux::Behind;
use fermata_store::{Store, Writer};
use fermata_tracker::{Tracker, Words};
use fermata_types::{PAGE_SIZE, PageCounts, PageNumber, PageSet, PartKind, PartState, Root};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The page table of an area in its part.
pub(crate) const TABLE: &str = "memory";

/// What a part tells of an area besides its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Details {
    /// Where it began in the program's memory.
    pub address: u64,
    /// Runs of pages that are left out: the first, and how many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<(PageNumber, PageNumber)>,
}

impl Details {
    pub fn new(address: u64, excluded: &PageSet) -> Self {
        let mut runs: Vec<(PageNumber, PageNumber)> = Vec::new();
        for page in excluded {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == page => *count += 1,
                _ => runs.push((page, 1)),
            }
        }
        Self { address, excluded: runs }
    }

    /// None if they are not of an area of so many pages.
    pub fn excluded(&self, pages: u64) -> Option<PageSet> {
        let mut set = PageSet::new();
        for (first, count) in &self.excluded {
            if *count == 0 || u64::from(*first) + u64::from(*count) > pages {
                return None;
            }
            set.insert_range(*first..=first + (count - 1));
        }
        Some(set)
    }
}

/// A buffer that may be had again: memory that is new costs a fault for each page, and all of them in the program's pause.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<u8>>>);

/// Pages one behind the other. It goes back there when nobody needs it.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// Has the bytes, as long as they may not be copied yet.
    behind: Option<Behind>,
    spare: Spare,
}

/// Fewer pages are copied at once: to have another thread do it would take as long.
const BEHIND_MIN: u64 = 64;

/// Buffers so many times as large as what goes into them are let go.
const TOO_LARGE: usize = 4;

impl Spare {
    fn take(&self, bytes: usize) -> Buffer {
        let mut found = std::mem::take(&mut *self.lock());
        if found.capacity() < bytes || found.capacity() / TOO_LARGE > bytes {
            found = Vec::with_capacity(bytes);
        }
        found.clear();
        Buffer { bytes: found, behind: None, spare: self.clone() }
    }

    /// Copies pages of the memory.
    pub fn copy(&self, memory: &[u8], pages: &PageSet) -> Buffer {
        let mut buffer = self.take(pages.len() as usize * PAGE_SIZE);
        pages.iter().for_each(|page| buffer.bytes.extend_from_slice(&memory[page as usize * PAGE_SIZE..][..PAGE_SIZE]));
        buffer
    }

    /// The same behind the program, where there are enough of them and the tracker can have each copied before it is written to.
    pub fn copy_behind(&self, memory: &[u8], pages: &PageSet, tracker: &mut dyn Tracker) -> Buffer {
        if pages.len() < BEHIND_MIN {
            return self.copy(memory, pages);
        }
        let mut buffer = self.take(pages.len() as usize * PAGE_SIZE);
        let list: Vec<_> = pages.iter().collect();
        match tracker.copy_behind(&list, std::mem::take(&mut buffer.bytes)) {
            Ok(behind) => buffer.behind = Some(behind),
            Err(bytes) => {
                buffer.bytes = bytes;
                pages.iter().for_each(|page| buffer.bytes.extend_from_slice(&memory[page as usize * PAGE_SIZE..][..PAGE_SIZE]));
            }
        }
        buffer
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    fn pages(&self) -> u64 {
        (self.behind.as_ref().map_or(self.bytes.len(), Behind::bytes) / PAGE_SIZE) as u64
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.behind.as_ref().map_or(&self.bytes, Behind::content)
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self { bytes: self.to_vec(), behind: None, spare: self.spare.clone() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(behind) = self.behind.take() {
            self.bytes = behind.into_buffer();
        }
        let mut spare = self.spare.lock();
        if spare.capacity() < self.bytes.capacity() {
            std::mem::swap(&mut *spare, &mut self.bytes);
        }
    }
}

/// What was written to an area between two captures, copied out of it, or being copied: the program may go on.
#[derive(Debug, Clone)]
pub struct Capture {
    area: String,
    bytes: u64,
    /// Which pages, or words of pages; `content` has the whole pages in the same order.
    words: Words,
    content: Buffer,
    dropped: PageSet,
    details: Details,
}

impl Capture {
    pub(crate) fn copy(area: &str, memory: &[u8], words: Words, dropped: PageSet, details: Details, spare: &Spare) -> Self {
        let content = spare.copy(memory, &words.pages());
        Self { area: area.to_owned(), bytes: memory.len() as u64, words, content, dropped, details }
    }

    /// With its pages in this buffer.
    pub(crate) fn of(area: &str, bytes: u64, words: Words, content: Buffer, dropped: PageSet, details: Details) -> Self {
        Self { area: area.to_owned(), bytes, words, content, dropped, details }
    }

    /// Whether pages of it may have to be copied yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.content.behind.is_some()
    }

    /// Copies what is not copied yet.
    pub(crate) fn finish(&self) {
        self.content.behind.iter().for_each(Behind::finish);
    }

    /// The name of its area.
    pub fn area(&self) -> &str {
        &self.area
    }

    /// How many pages it has.
    pub fn pages(&self) -> u64 {
        self.content.pages()
    }

    /// Bytes that were written, as finely as the tracker knows.
    pub fn written_bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Each page with its content.
    pub fn each_page(&self) -> impl Iterator<Item = (PageNumber, &[u8; PAGE_SIZE])> {
        let (pages, _) = self.content.as_chunks::<PAGE_SIZE>();
        self.words.pages().into_iter().zip(pages)
    }

    /// Which pages, or words of them.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Puts it into a checkpoint that is being written, upon the state of the area in the checkpoint before; none for the first. What comes back belongs into
    /// the record, and is what [`crate::Area::restore`] takes.
    pub fn put(&self, base: Option<&PartState>, writer: &mut Writer) -> Result<(PartState, PageCounts)> {
        let pages = self.bytes / PAGE_SIZE as u64;
        let root = match base {
            None => Root::empty(pages),
            Some(base) => *base.tables.get(TABLE).ok_or_else(|| Error::foreign(&self.area, "the one before has no page table"))?,
        };
        if root.pages != pages {
            return Err(Error::foreign(&self.area, format!("the one before has {} pages, not {pages}", root.pages)));
        }
        let mut counts = PageCounts { unchanged: pages, ..PageCounts::default() };
        let mut changes = BTreeMap::new();
        self.dropped.iter().for_each(|page| _ = changes.insert(page, None));
        for (number, page) in self.each_page() {
            let (name, class) = writer.put_page(page)?;
            class.count_into(&mut counts);
            counts.unchanged -= 1;
            // A page that no table names is zero.
            changes.insert(number, (name != fermata_types::ZERO_PAGE).then_some(name));
        }
        let changes: Vec<_> = changes.into_iter().collect();
        let root = writer.update_table(&root, &changes)?;
        let details = serde_json::to_value(&self.details).expect("plain values");
        let tables = BTreeMap::from([(TABLE.to_owned(), root)]);
        let state = PartState { name: self.area.clone(), kind: PartKind::Process, tables, blobs: BTreeMap::new(), details };
        Ok((state, counts))
    }

    /// Which pages it has, and which it takes away.
    pub(crate) fn touched(&self) -> (PageSet, PageSet) {
        (self.words.pages(), self.dropped.clone())
    }

    /// Runs of pages that are left out of the area: the first, and how many.
    pub(crate) fn excluded(&self) -> &[(PageNumber, PageNumber)] {
        &self.details.excluded
    }
}

/// How many pages an area has in a checkpoint, as that claims.
pub(crate) fn pages_of(state: &PartState) -> Result<u64> {
    state.tables.get(TABLE).map(|root| root.pages).ok_or_else(|| Error::foreign(&state.name, "it has no page table"))
}

/// The content of one page of an area in a checkpoint.
pub(crate) fn read_page(store: &Store, state: &PartState, page: PageNumber, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
    into.fill(0);
    let Some(root) = state.tables.get(TABLE) else { return Err(Error::foreign(&state.name, "it has no page table")) };
    if let Some(name) = store.lookup(root, page)? {
        store.read_page(&name, into)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_and_one_that_is_far_too_large_does_not_stay() {
        let spare = Spare::default();
        let place = |buffer: &Buffer| buffer.bytes.as_ptr();
        let (first, second) = (spare.take(1 << 16), spare.take(1 << 16));
        assert!(place(&first) != place(&second), "one for each capture that is under way");
        let was = place(&first);
        drop(first);
        assert_eq!(spare.lock().as_ptr(), was);
        // Both are there, and one is enough.
        drop(second);
        let again = spare.take(1 << 15);
        assert_eq!((place(&again), again.len()), (was, 0));
        drop(again);
        drop(spare.take(1 << 10));
        assert_eq!(spare.lock().capacity(), 1 << 10);
        drop(spare.take(1 << 16));
        assert_eq!(spare.lock().capacity(), 1 << 16);
    }
}
