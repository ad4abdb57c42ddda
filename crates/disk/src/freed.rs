//! Which blocks a cut may leave out, since the guest's file system has freed them.
//!
//! The bitmaps on a disk are behind what the guest's kernel has in its memory, and a restored guest goes on from its memory. So it is not enough that a block is
//! free in the newest committed state of the file system. It must also not have been written since the last commit but one: a block is given away in a
//! transaction before it is written; when it was written, that transaction was running, was being committed, or was committed before; and of those that
//! are not committed there are never more than two. Two commit records later the bitmaps know of it. `docs/decisions/0017-freed-blocks.md` has the whole argument.
//!
//! Commit records are seen passing by: the watch knows where the journals lie, and looks at the first bytes of each block that is written there.

use crate::ext4::{Known, Layout, Source, Unclear, free, journal, journal::Recovered, layout::SUPERBLOCK, partitions};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use serde::{Deserialize, Serialize};
use std::{ops::Range, sync::Arc};

const BLOCK: u64 = PAGE_SIZE as u64;
/// File systems watched on one disk.
const FILE_SYSTEMS_MAX: usize = 16;
/// Commit records after which a write is in the bitmaps.
const COMMITS: u8 = 2;

/// What was learned of the free blocks of a file system at a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// The byte of the disk where the file system begins.
    pub start: u64,
    /// Blocks of 4 KiB that are free and need not be kept, whether or not anything was ever stored of them.
    pub blocks: u64,
    /// Why there are none, when nothing could be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<String>,
}

/// The blocks that a cut may leave out, and what was learned of each file system.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    pub blocks: PageSet,
    pub spaces: Vec<FreeSpace>,
}

/// What is known of the file systems of a disk from what passes by.
#[derive(Clone)]
pub(crate) struct Watch {
    /// Whether anything is watched at all.
    on: bool,
    /// What says where file systems are may have changed, and is to be read at the next occasion.
    look: bool,
    starts: Vec<u64>,
    found: Vec<(u64, Known<Watched>)>,
}

/// A file system whose journal is watched.
#[derive(Clone)]
struct Watched {
    layout: Arc<Layout>,
    /// The transaction of the last commit record that passed by, and how many did in a row.
    newest: u32,
    commits: u8,
    /// Blocks written since the last commit record, and between it and the one before. Shared with cuts, so that taking one copies nothing.
    recent: [Arc<PageSet>; COMMITS as usize],
}

impl Watch {
    /// Knows nothing yet. One that is not `on` never will.
    pub fn new(on: bool) -> Self {
        Self { on, look: on, starts: vec![0], found: Vec::new() }
    }

    /// Like a new one, for another state of the disk.
    pub fn anew(&self) -> Self {
        Self::new(self.on)
    }

    /// Whether to call [`Self::look`].
    pub fn is_due(&self) -> bool {
        self.look
    }

    /// Finds the file systems. Those that are as they were are watched on.
    pub fn look(&mut self, source: &dyn Source) {
        self.look = false;
        self.starts = partitions::starts(source).unwrap_or_else(|_| vec![0]);
        let before = std::mem::take(&mut self.found);
        for start in &self.starts {
            if self.found.len() == FILE_SYSTEMS_MAX {
                break;
            }
            let now = match Layout::read(source, *start) {
                Ok(None) => continue,
                Ok(Some(layout)) => Ok(layout),
                Err(unclear) => Err(unclear),
            };
            let known = |layout: &Layout| {
                before.iter().filter_map(|(_, found)| found.as_ref().ok()).find(|known| *known.layout == *layout).cloned()
            };
            self.found.push((*start, now.map(|layout| known(&layout).unwrap_or_else(|| Watched::new(layout)))));
        }
        self.leave_outer_alone();
    }

    /// One around another is not looked at, so those that are watched share no byte, and a write is looked at once.
    fn leave_outer_alone(&mut self) {
        let starts: Vec<u64> = self.found.iter().map(|(start, _)| *start).collect();
        for (start, found) in &mut self.found {
            let Ok(watched) = found else { continue };
            let bytes = watched.layout.bytes();
            if starts.iter().any(|other| *other != *start && bytes.contains(other)) {
                *found = Err(Unclear("another file system begins within it".into()));
            }
        }
    }

    /// Where a write may have put commit records: whose, and at which byte. Looks at nothing but the range.
    pub fn headers(&self, range: &Range<u64>) -> Vec<(usize, u64)> {
        let mut headers = Vec::new();
        for (nth, (_, found)) in self.found.iter().enumerate() {
            let Ok(Watched { layout, .. }) = found else { continue };
            for extent in &layout.journal {
                let (start, end) = (layout.byte(extent.block), layout.byte(extent.block + u64::from(extent.count)));
                let size = u64::from(layout.block_size);
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from < to {
                    let first = start + (from - start).next_multiple_of(size);
                    let whole = (first..to).step_by(size as usize).filter(|at| at + journal::HEADER as u64 <= to);
                    headers.extend(whole.map(|at| (nth, at)));
                }
            }
        }
        headers
    }

    /// A commit record was written into the journal of this file system.
    pub fn committed(&mut self, nth: usize, transaction: u32) {
        if let Some((_, Ok(watched))) = self.found.get_mut(nth) {
            watched.committed(transaction);
        }
    }

    /// Bytes were written, or made zero. Commit records among them have been told before.
    pub fn wrote(&mut self, range: &Range<u64>) {
        if !self.on || range.is_empty() {
            return;
        }
        for (_, found) in &mut self.found {
            let Ok(watched) = found else { continue };
            let bytes = watched.layout.bytes();
            if range.start < bytes.end && range.end > bytes.start {
                let blocks = (range.start / BLOCK) as PageNumber..=((range.end - 1) / BLOCK) as PageNumber;
                Arc::make_mut(&mut watched.recent[0]).insert_range(blocks);
            }
        }
        let superblock = |start: &u64| range.start < start + SUPERBLOCK.end && range.end > start + SUPERBLOCK.start;
        self.look |= range.start < partitions::TABLE_END || self.starts.iter().any(superblock);
    }

    /// Which blocks of a disk, as it was when this watch was cloned, need not be kept.
    pub fn freed(&self, source: &dyn Source) -> Freed {
        let mut freed = Freed::default();
        for (start, found) in &self.found {
            let blocks = match found {
                Ok(watched) => watched.freed(source),
                Err(unclear) => Err(unclear.clone()),
            };
            let (count, unclear) = match &blocks {
                Ok(blocks) => (blocks.len(), None),
                Err(Unclear(why)) => (0, Some(why.clone())),
            };
            freed.spaces.push(FreeSpace { start: *start, blocks: count, unclear });
            freed.blocks |= blocks.unwrap_or_default();
        }
        freed
    }
}

impl Watched {
    fn new(layout: Layout) -> Self {
        Self { layout: Arc::new(layout), newest: 0, commits: 0, recent: Default::default() }
    }

    fn committed(&mut self, transaction: u32) {
        if self.commits > 0 && transaction == self.newest {
            // A write that was done again.
            return;
        }
        // Where a number is left out, the journal was begun anew.
        let follows = self.commits > 0 && transaction == self.newest.wrapping_add(1);
        self.commits = if follows { COMMITS.min(self.commits + 1) } else { 1 };
        self.newest = transaction;
        self.recent.rotate_right(1);
        self.recent[0] = Arc::default();
    }

    fn freed(&self, source: &dyn Source) -> Known<PageSet> {
        let unclear = |why: &str| Err(Unclear(why.into()));
        if self.commits < COMMITS {
            return unclear("its journal was not seen to commit twice yet");
        }
        if Layout::read(source, self.layout.start)?.as_ref() != Some(&*self.layout) {
            return unclear("its superblock has just changed");
        }
        let recovered = Recovered::read(source, &self.layout)?;
        if recovered.newest != self.newest {
            return unclear("its journal ends elsewhere than was seen");
        }
        let mut blocks = PageSet::new();
        free::for_each(&recovered, &mut |bytes| {
            let (first, end) = (bytes.start.div_ceil(BLOCK), bytes.end / BLOCK);
            blocks.insert_range(first as PageNumber..end.max(first) as PageNumber);
        })?;
        self.recent.iter().for_each(|recent| blocks -= &**recent);
        Ok(blocks)
    }
}
