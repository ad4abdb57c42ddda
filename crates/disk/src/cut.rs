//! A cut: what was written to a disk between two instants, held still until it is saved.

use crate::{
    Error, Result,
    ext4::Source,
    freed::{FreeSpace, Freed, Watch},
    golden::Golden,
    layers::{Pages, Sink},
    map::Place,
};
use fermata_linux::writeback;
use fermata_store::{Class, ImageReader as _};
use fermata_types::{PAGE_SIZE, PageBuf, PageCounts, PageName, PageNumber, PageSet, Root, ZERO_PAGE};
use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Blocks read from the overlay in one go.
const CHUNK_BLOCKS: u32 = 64;

/// Which cut of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutId(pub(crate) u64);

/// Written blocks by where they lie. A block is in one set at most.
#[derive(Default)]
pub(crate) struct Planes {
    zero: PageSet,
    first: PageSet,
    second: PageSet,
    /// What need not be kept at the instant of the cut, once somebody has looked.
    freed: OnceLock<Freed>,
}

impl Planes {
    pub fn of(&self, place: Place) -> &PageSet {
        match place {
            Place::First => &self.first,
            Place::Second => &self.second,
            _ => &self.zero,
        }
    }

    /// Where in the overlay file of a disk of so many blocks the content of a block lies; none if it was not written, or written as zeros.
    pub fn offset(&self, block: PageNumber, blocks: u32) -> Option<u64> {
        let place = [Place::First, Place::Second].into_iter().find(|place| self.of(*place).contains(block))?;
        Some(place.plane(blocks) + u64::from(block) * PAGE_SIZE as u64)
    }

    /// Blocks that have no name in the table of this cut, since they were left out, if `before` had none in the table upon which it builds. One that was given away
    /// again and not written yet still has none.
    pub fn left_out_since(&self, before: &PageSet) -> PageSet {
        let unwritten = before - &self.written();
        match self.freed.get() {
            Some(freed) => unwritten | &freed.blocks,
            None => unwritten,
        }
    }

    fn written(&self) -> PageSet {
        &self.zero | &self.first | &self.second
    }

    /// Whether a block was left out when this was saved.
    pub fn left_out(&self, block: PageNumber) -> bool {
        self.freed.get().is_some_and(|freed| freed.blocks.contains(block))
    }

    pub fn blocks(&self) -> u64 {
        self.zero.len() + self.first.len() + self.second.len()
    }

    pub fn insert(&mut self, blocks: Range<u32>, place: Place) {
        let (into, others) = match place {
            Place::First => (&mut self.first, [&mut self.second, &mut self.zero]),
            Place::Second => (&mut self.second, [&mut self.first, &mut self.zero]),
            _ => (&mut self.zero, [&mut self.first, &mut self.second]),
        };
        into.insert_range(blocks.clone());
        for other in others {
            if !other.is_empty() {
                other.remove_range(blocks.clone());
            }
        }
    }

    /// Adds the blocks of an older cut, except those written again since.
    pub fn add_older(&mut self, older: &Self) {
        let newer = self.written();
        self.zero |= &older.zero - &newer;
        self.first |= &older.first - &newer;
        self.second |= &older.second - &newer;
    }
}

/// The overlay file. It remembers that the host failed to keep some of it: the kernel tells so only once, and may then read back anything.
pub(crate) struct Overlay {
    pub file: File,
    lost: AtomicBool,
}

impl Overlay {
    /// A new sparse file without a name.
    pub fn new(dir: &Path, bytes: u64) -> Result<Self> {
        let file = tempfile::tempfile_in(dir).map_err(Error::io(
            "cannot make an overlay file (the directory must be writable: check its owner and how its file system is mounted) in",
            dir,
        ))?;
        file.set_len(bytes).map_err(Error::io("cannot make a sparse overlay file in", dir))?;
        Ok(Self { file, lost: AtomicBool::new(false) })
    }

    pub fn note_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Fails from then on when something that was written could not be kept.
    pub fn check(&self) -> Result<()> {
        let told = writeback::check(&self.file);
        if told.is_err() {
            self.note_lost();
        }
        if self.lost.load(Ordering::Acquire) {
            let source = told.err().unwrap_or_else(|| io::Error::other("told before"));
            return Err(Error::OverlayLost { source });
        }
        Ok(())
    }
}

/// What was written to a disk since the last cut. It owns all it needs: it can be saved while the disk is written to, or is gone.
pub struct Cut {
    pub(crate) id: CutId,
    pub(crate) planes: Arc<Planes>,
    pub(crate) overlay: Arc<Overlay>,
    pub(crate) base: Root,
    pub(crate) golden: Option<Arc<Golden>>,
    pub(crate) pages: Arc<dyn Pages>,
    pub(crate) blocks: u32,
    /// Set once it is saved.
    pub(crate) saved: Arc<OnceLock<Root>>,
    pub(crate) size: u64,
    pub(crate) watch: Watch,
    /// What was left out of `base`.
    pub(crate) left_out: Arc<PageSet>,
}

impl Cut {
    /// Which cut this is, for [`crate::Disk::settle`].
    pub fn id(&self) -> CutId {
        self.id
    }

    /// Blocks in the cut.
    pub fn written(&self) -> u64 {
        self.planes.blocks()
    }

    /// What was learned of the free blocks of the file systems on it. Nothing before it is saved.
    pub fn free_space(&self) -> &[FreeSpace] {
        self.planes.freed.get().map_or(&[], |freed| &freed.spaces)
    }

    /// Writes the blocks of the cut, and the page table of the whole disk at the instant of the cut. Returns its root, and how the blocks fell through the
    /// sieve; `unchanged` are all other blocks of the disk. Blocks that the guest's file system has freed get no entry, and lose the one that they had.
    pub fn save(&self, sink: &mut impl Sink) -> Result<(Root, PageCounts)> {
        let mut counts = PageCounts { unchanged: u64::from(self.blocks) - self.written(), ..PageCounts::default() };
        let mut changes = Vec::with_capacity(self.written() as usize);
        let freed = &self.planes.freed.get_or_init(|| self.watch.freed(self)).blocks;
        self.leave_out(freed, &mut changes, &mut counts)?;
        let mut chunk = vec![0; CHUNK_BLOCKS as usize * PAGE_SIZE];
        let Planes { zero, first, second, .. } = &*self.planes;
        let all = self.planes.written() - freed;
        let mut blocks = all.iter().peekable();
        while let Some(start) = blocks.next() {
            if zero.contains(start) {
                counts.zero += 1;
                changes.push((start, self.zero_change(start)));
                continue;
            }
            let (plane, place) = if first.contains(start) { (first, Place::First) } else { (second, Place::Second) };
            let mut count = 1;
            while count < CHUNK_BLOCKS && blocks.next_if(|next| *next == start + count && plane.contains(*next)).is_some() {
                count += 1;
            }
            let chunk = &mut chunk[..count as usize * PAGE_SIZE];
            let at = place.plane(self.blocks) + u64::from(start) * PAGE_SIZE as u64;
            self.overlay.file.read_exact_at(chunk, at).map_err(Error::transfer("read the overlay", u64::from(start) * PAGE_SIZE as u64))?;
            for (block, page) in (start..).zip(chunk.as_chunks::<PAGE_SIZE>().0) {
                let (name, class) = sink.put(page)?;
                changes.push((block, self.change(block, page, name, class, &mut counts)?));
            }
        }
        changes.sort_unstable_by_key(|(block, _)| *block);
        // Asked last: what was read before the kernel learned of a failure may already be wrong.
        self.overlay.check()?;
        let root = if changes.is_empty() { self.base } else { sink.update(&self.base, &changes)? };
        // A cut that is saved again gets the same table.
        let _ = self.saved.set(root);
        Ok((root, counts))
    }

    /// Freed blocks that were written get no entry; of the others, those go that have one from an earlier checkpoint.
    fn leave_out(&self, freed: &PageSet, changes: &mut Vec<(PageNumber, Option<PageName>)>, counts: &mut PageCounts) -> Result<()> {
        let written = self.planes.written() & freed;
        counts.free += written.len();
        changes.extend(written.iter().map(|block| (block, None)));
        let newly = freed - &*self.left_out - written;
        if self.base.node.is_none() || newly.is_empty() {
            return Ok(());
        }
        self.pages.named(&self.base, &mut |block| {
            if newly.contains(block) {
                changes.push((block, None));
                counts.free += 1;
                counts.unchanged -= 1;
            }
        })?;
        Ok(())
    }

    /// Reads part of a block as it was at the instant of the cut.
    fn read_within(&self, block: PageNumber, at: usize, into: &mut [u8]) -> Result<()> {
        let (offset, failed) = (u64::from(block) * PAGE_SIZE as u64 + at as u64, "read the overlay");
        if let Some(start) = self.planes.offset(block, self.blocks) {
            return self.overlay.file.read_exact_at(into, start + at as u64).map_err(Error::transfer(failed, offset));
        }
        if self.planes.zero.contains(block) {
            into.fill(0);
            return Ok(());
        }
        match (self.pages.lookup(&self.base, block)?, &self.golden) {
            (None, Some(golden)) => golden.read_at(offset, into).map_err(Error::transfer("read the golden image", offset))?,
            (None, None) | (Some(ZERO_PAGE), _) => into.fill(0),
            (Some(name), _) => {
                let mut result = Err(io::Error::other("the store did not hand out this block"));
                self.pages.read(vec![(block, name)], &mut |_, page| {
                    into.copy_from_slice(&page[at..at + into.len()]);
                    result = Ok(());
                    true
                })?;
                result.map_err(Error::transfer("read the store", offset))?;
            }
        }
        Ok(())
    }

    /// What the page table says of a block with this content.
    fn change(&self, block: PageNumber, page: &PageBuf, name: PageName, class: Class, counts: &mut PageCounts) -> Result<Option<PageName>> {
        class.count_into(counts);
        if class == Class::Zero {
            return Ok(self.zero_change(block));
        }
        // A block written back to what the image holds there needs no name, so the table is again what it was.
        if class == Class::OnDisk
            && let Some(golden) = &self.golden
            && u64::from(block) < golden.blocks()
        {
            let mut original = [0; PAGE_SIZE];
            let offset = u64::from(block) * PAGE_SIZE as u64;
            golden.read_at(offset, &mut original).map_err(Error::transfer("read the golden image", offset))?;
            if original == *page {
                return Ok(None);
            }
        }
        Ok(Some(name))
    }

    /// What the page table says of a block of zeros: its name where the image below would show something else, nothing where there is no image.
    fn zero_change(&self, block: PageNumber) -> Option<PageName> {
        let over_image = self.golden.as_ref().is_some_and(|golden| u64::from(block) < golden.blocks());
        over_image.then_some(ZERO_PAGE)
    }
}

impl Source for Cut {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let len = into.len() as u64;
        if at.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Error::OutOfRange { offset: at, len, size: self.size });
        }
        let (mut at, mut left) = (at, into);
        while !left.is_empty() {
            let within = (at % PAGE_SIZE as u64) as usize;
            let (now, rest) = left.split_at_mut((PAGE_SIZE - within).min(left.len()));
            self.read_within((at / PAGE_SIZE as u64) as PageNumber, within, now)?;
            at += now.len() as u64;
            left = rest;
        }
        Ok(())
    }
}
