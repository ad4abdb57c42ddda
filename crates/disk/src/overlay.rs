//! The branching disk: a golden image below, the page table of a checkpoint above it, and on top a local overlay file with what this run wrote.
//!
//! **Two planes.** The overlay file is sparse and holds every block at one of two offsets: its own offset on the disk (the first plane), or that plus the size of
//! the disk (the second). A write goes to the first plane, unless a cut that is still being saved has the block there; then to the second, and the other way
//! round. So a cut costs nothing to take and no block of it is ever overwritten, blocks that are neighbours on the disk are neighbours in the file, and
//! nothing has to be allocated or collected. The price is space for a second copy of what is rewritten.
//!
//! **Flush** returns at once. The overlay is no durable copy and is not meant as one: it has no name and dies with the run, which then goes on from its last
//! permanent checkpoint. Waiting here for the host's disk would make no byte safer, and a pause would have to wait as well. But when the host is known to have
//! failed to keep some of it, flushes fail, and so does every save until the disk is reset.

use crate::{
    Error, Result,
    cut::{Cut, CutId, Overlay, Planes},
    ext4::{
        Source,
        journal::{HEADER, committed},
    },
    freed::Watch,
    golden::{Golden, SECTOR_SIZE},
    layers::Pages,
    map::{BlockMap, Place},
    page_map::PageMap,
};
use fermata_store::ImageReader as _;
use fermata_types::{PAGE_SIZE, PageBuf, PageName, PageNumber, PageSet, Root, ZERO_PAGE};
use fermata_vhost::segments::{Input, Output, with_input, with_output};
use std::{
    cell::RefCell,
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

const BLOCK: u64 = PAGE_SIZE as u64;

/// Discards shorter than this leave the overlay's space alone: it will be written again.
const PUNCH_MIN_BLOCKS: u32 = 16;

/// What a new disk is made of.
pub struct DiskOptions {
    /// The image below, if there is one.
    pub golden: Option<Arc<Golden>>,
    /// Bytes of the disk, a multiple of 512, and at least the image's. None: as large as the image.
    pub size: Option<u64>,
    /// The state to start from: the page table of a checkpoint. None: as the golden image is, or zeros.
    pub root: Option<Root>,
    /// Where the blocks that `root` names are read.
    pub pages: Arc<dyn Pages>,
    /// The directory of the overlay file. The file has no name in it, so nothing stays behind after a crash.
    pub overlay_dir: PathBuf,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether cuts leave out blocks that the guest's file system has freed.
    pub drop_freed: bool,
}

/// Where a block's content is to be had.
pub(crate) enum Kept {
    Named(PageName),
    Content(Box<PageBuf>),
}

/// How a cut ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It is part of a permanent checkpoint, as this page table.
    Permanent(Root),
    /// It was lost: its blocks go into the next cut.
    Aborted,
}

/// A disk that branches: what it holds is cut off at any instant while writing goes on.
///
/// Requests may come from several threads; they take turns. A cut is saved without holding anybody up.
pub struct Disk {
    golden: Option<Arc<Golden>>,
    pages: Arc<dyn Pages>,
    overlay_dir: PathBuf,
    size: u64,
    blocks: u32,
    read_only: bool,
    state: Mutex<State>,
}

struct State {
    overlay: Arc<Overlay>,
    map: BlockMap,
    /// What lies below the overlay: the page table that this run started from.
    below: Root,
    /// The page table of the last permanent checkpoint, upon which the next builds.
    base: Root,
    /// Written since the last cut.
    written: Planes,
    pending: Option<(CutId, Arc<Planes>)>,
    cuts: u64,
    /// Who has to know which blocks change, and the disk's number there.
    page_map: Option<(Arc<PageMap>, u32)>,
    /// The page table of the last cut, once it is saved.
    saved: Arc<OnceLock<Root>>,
    watch: Watch,
    /// Freed blocks that were left out of `base`.
    left_out: Arc<PageSet>,
}

impl Disk {
    /// Makes the disk. Fails with [`Error::Refused`] when size, image and page table do not fit each other.
    pub fn new(options: DiskOptions) -> Result<Self> {
        let image_size = options.golden.as_ref().map_or(0, |golden| golden.size());
        let size = options.size.unwrap_or(image_size);
        if size == 0 || !size.is_multiple_of(SECTOR_SIZE) || size < image_size || size.div_ceil(BLOCK) > u64::from(u32::MAX) {
            return Err(Error::Refused(format!(
                "a disk of {size} bytes over an image of {image_size}: the size must be a multiple of 512, no less than the image's, and below 16 TiB"
            )));
        }
        let blocks = size.div_ceil(BLOCK) as u32;
        let root = options.root.unwrap_or(Root::empty(blocks.into()));
        check_root(&root, blocks)?;
        Ok(Self {
            state: Mutex::new(State::new(
                new_overlay(&options.overlay_dir, blocks)?,
                blocks,
                root,
                Watch::new(options.drop_freed && !options.read_only),
            )),
            golden: options.golden,
            pages: options.pages,
            overlay_dir: options.overlay_dir,
            size,
            blocks,
            read_only: options.read_only,
        })
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Blocks of 4 KiB; the last may be cut short by the end of the disk.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The image below.
    pub fn golden(&self) -> Option<&Arc<Golden>> {
        self.golden.as_ref()
    }

    /// The page table of the last permanent checkpoint.
    pub fn root(&self) -> Root {
        self.lock().base
    }

    /// Blocks written since the last cut.
    pub fn written(&self) -> u64 {
        self.lock().written.blocks()
    }

    /// Blocks that the last checkpoint left out because their file system has freed them: there they have no name.
    pub fn left_out(&self) -> Arc<PageSet> {
        self.lock().left_out.clone()
    }

    /// What a block held at the instant of the last cut, if that has left it out because its file system has freed it. Only as long as the cut is not settled.
    pub(crate) fn freed_block(&self, block: PageNumber) -> Result<Option<Kept>> {
        let state = self.lock();
        let Some((_, planes)) = state.pending.as_ref().filter(|(_, planes)| planes.left_out(block)) else { return Ok(None) };
        if let Some(at) = planes.offset(block, self.blocks) {
            let mut content = [0; PAGE_SIZE];
            let failed = Error::transfer("read the overlay", u64::from(block) * BLOCK);
            state.overlay.file.read_exact_at(&mut content, at).map_err(failed)?;
            return Ok(Some(Kept::Content(Box::new(content))));
        }
        if planes.of(Place::Zero).contains(block) {
            return Ok(Some(Kept::Named(ZERO_PAGE)));
        }
        // It had a name before, or it is what lies below.
        Ok(self.pages.lookup(&state.base, block)?.map(Kept::Named))
    }

    /// The page table of the last cut, if that is saved already.
    pub(crate) fn saved(&self) -> Option<Root> {
        self.lock().saved.get().copied()
    }

    /// The map of the machine's pages that equal blocks, and the disk's number in it.
    pub(crate) fn page_map(&self) -> Option<(Arc<PageMap>, u32)> {
        self.lock().page_map.clone()
    }

    pub(crate) fn set_page_map(&self, map: Arc<PageMap>, number: u32) {
        self.lock().page_map = Some((map, number));
    }

    /// Reads bytes into plain memory.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        with_output(into, |output| self.read(offset, output))
    }

    /// Writes bytes from plain memory.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        with_input(from, |input| self.write(offset, input))
    }

    /// Fills `output` with the disk's bytes from `offset` on.
    pub fn read(&self, offset: u64, output: &mut Output<'_>) -> Result<()> {
        let range = self.range(offset, output.left() as u64)?;
        self.read_range(&mut self.lock(), range, output)
    }

    /// Writes all of `input` to the disk from `offset` on. After an error the bytes in this range are old, new or a mix; nothing else changed.
    pub fn write(&self, offset: u64, input: &mut Input<'_>) -> Result<()> {
        let range = self.writable_range(offset, input.left() as u64)?;
        let state = &mut *self.lock();
        let written = self.write_range(state, range.clone(), input);
        // Even a write that failed may have written some of it.
        self.observe(state, &range);
        written
    }

    /// Makes bytes zero. With `unmap` their space on the host is freed as well where that is easy.
    pub fn zero(&self, offset: u64, len: u64, unmap: bool) -> Result<()> {
        let range = self.writable_range(offset, len)?;
        let state = &mut *self.lock();
        let zeroed = self.zero_range(state, range.clone(), unmap);
        // Zeros are no commit record, and there may be gigabytes of them.
        state.watch.wrote(&range);
        zeroed
    }

    /// All earlier writes have reached the overlay, as they do before they return. Fails if the host is known to have lost some of them.
    pub fn flush(&self) -> Result<()> {
        let overlay = {
            let state = &mut *self.lock();
            if state.watch.is_due() {
                // A file system flushes before it relies on anything: a good moment to see what there is.
                let mut watch = state.watch.clone();
                watch.look(&Live { disk: self, state: RefCell::new(state) });
                state.watch = watch;
            }
            state.overlay.clone()
        };
        overlay.check()
    }

    /// Takes note of what was written since the last cut. Takes microseconds. The caller sees to it that no request is under way.
    pub fn cut(&self) -> Result<Cut> {
        let state = &mut *self.lock();
        if state.pending.is_some() {
            return Err(Error::Refused("the last cut of this disk is not settled yet".into()));
        }
        state.cuts += 1;
        let id = CutId(state.cuts);
        let planes = Arc::new(std::mem::take(&mut state.written));
        state.pending = Some((id, planes.clone()));
        state.saved = Arc::default();
        Ok(Cut {
            id,
            planes,
            overlay: state.overlay.clone(),
            base: state.base,
            golden: self.golden.clone(),
            pages: self.pages.clone(),
            blocks: self.blocks,
            size: self.size,
            watch: state.watch.clone(),
            left_out: state.left_out.clone(),
            saved: state.saved.clone(),
        })
    }

    /// Learns how a cut ended. Does nothing if the disk was reset since the cut.
    pub fn settle(&self, id: CutId, outcome: Settled) {
        let state = &mut *self.lock();
        let Some((pending, planes)) = state.pending.take() else { return };
        if pending != id {
            state.pending = Some((pending, planes));
            return;
        }
        match outcome {
            Settled::Permanent(root) => {
                state.base = root;
                state.left_out = Arc::new(planes.left_out_since(&state.left_out));
            }
            Settled::Aborted => state.written.add_older(&planes),
        }
    }

    /// Makes the disk that of another checkpoint. What was written since is forgotten.
    pub fn reset(&self, root: Root) -> Result<()> {
        check_root(&root, self.blocks)?;
        let overlay = new_overlay(&self.overlay_dir, self.blocks)?;
        let state = &mut *self.lock();
        state.change(0..self.blocks);
        let (cuts, page_map, watch) = (state.cuts, state.page_map.take(), state.watch.anew());
        *state = State { cuts, page_map, ..State::new(overlay, self.blocks, root, watch) };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in between leaves a state that is still whole: every step of it is.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn range(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(offset..end),
            _ => Err(Error::OutOfRange { offset, len, size: self.size }),
        }
    }

    /// The bytes of a write, checked.
    pub(crate) fn writable_range(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        if self.read_only {
            return Err(Error::Refused("the disk is read-only".into()));
        }
        self.range(offset, len)
    }

    /// The end of the last whole block before `end`. The last block of the disk is whole where the disk ends.
    fn whole_end(&self, end: u64) -> u64 {
        if end == self.size { end } else { end / BLOCK * BLOCK }
    }

    fn plane(&self, place: Place) -> u64 {
        place.plane(self.blocks)
    }

    fn read_range(&self, state: &mut State, range: Range<u64>, output: &mut Output<'_>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let run = block_of(at)..block_of(range.end - 1) + 1;
            let (place, blocks) = state.map.run(run.clone());
            let end = range.end.min(u64::from(run.start + blocks) * BLOCK);
            let len = (end - at) as usize;
            match place {
                Place::Zero => output.zero(len).map_err(Error::transfer("fill a buffer", at))?,
                Place::First | Place::Second => {
                    output.read_at(&state.overlay.file, self.plane(place) + at, len).map_err(Error::transfer("read the overlay", at))?;
                }
                Place::Below => match &self.golden {
                    Some(golden) => golden.read(at, len, output).map_err(Error::transfer("read the golden image", at))?,
                    None => output.zero(len).map_err(Error::transfer("fill a buffer", at))?,
                },
                Place::Unasked => match self.bring_up(state, run.start..run.start + blocks) {
                    Ok(()) => continue,
                    // What the attempt did find out needs no space any more.
                    Err(error) if error.is_no_space() && state.map.get(run.start) != Place::Unasked => continue,
                    Err(error) if error.is_no_space() => {
                        let end = end.min(u64::from(run.start + 1) * BLOCK);
                        self.read_unasked(state, at..end, output)?;
                        at = end;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            }
            at = end;
        }
        Ok(())
    }

    /// Copies blocks into the overlay, where the next read finds them fast; and with them their neighbours that come along: else reading the blocks of a frame one
    /// by one would decompress it once for each.
    fn bring_up(&self, state: &mut State, blocks: Range<u32>) -> Result<()> {
        let along = self.pages.along(&state.below, blocks.clone(), &|block| state.map.get(block) == Place::Unasked);
        match along.ok().filter(|along| *along != blocks) {
            // Nobody asked for the neighbours, and nobody is to suffer from their damage.
            Some(along) => self.bring(state, along).or_else(|_| self.bring(state, blocks)),
            None => self.bring(state, blocks),
        }
    }

    /// Asks the page table for blocks, and copies those that it names into the overlay.
    fn bring(&self, state: &mut State, blocks: Range<u32>) -> Result<()> {
        let mut wanted = Vec::new();
        for block in blocks {
            match self.pages.lookup(&state.below, block)? {
                None => state.map.set(block..block + 1, Place::Below),
                Some(ZERO_PAGE) => state.map.set(block..block + 1, Place::Zero),
                Some(name) => wanted.push((block, name)),
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let mut left: Vec<PageNumber> = wanted.iter().map(|(block, _)| *block).collect();
        let mut failed = None;
        let State { overlay, map, .. } = state;
        self.pages.read(wanted, &mut |block, page| {
            let offset = u64::from(block) * BLOCK;
            let put = with_input(page, |input| input.write_at(&overlay.file, offset, PAGE_SIZE));
            match put {
                Ok(()) => map.set(block..block + 1, Place::First),
                Err(error) => failed = Some(Error::transfer("write the overlay", offset)(error)),
            }
            failed.is_none()
        })?;
        left.retain(|block| map.get(*block) == Place::Unasked);
        match (failed, left.first()) {
            (Some(error), _) => Err(error),
            (None, Some(block)) => Err(Error::Transfer {
                what: "read the store",
                offset: u64::from(*block) * BLOCK,
                source: io::Error::other("the store did not hand out this block"),
            }),
            (None, None) => Ok(()),
        }
    }

    /// Reads part of one block straight from the store, when the overlay has no space for it.
    fn read_unasked(&self, state: &mut State, range: Range<u64>, output: &mut Output<'_>) -> Result<()> {
        let block = block_of(range.start);
        let name: PageName = match self.pages.lookup(&state.below, block)? {
            Some(name) => name,
            None => return Err(Error::transfer("read the store", range.start)(io::Error::other("the page table lost a block"))),
        };
        let within = (range.start % BLOCK) as usize..((range.end - 1) % BLOCK) as usize + 1;
        let mut found = None;
        self.pages.read(vec![(block, name)], &mut |_, page| {
            found = Some(*page);
            true
        })?;
        let page = found.ok_or_else(|| io::Error::other("the store did not hand out this block"));
        page.and_then(|page| output.put(&page[within])).map_err(Error::transfer("read the store", range.start))
    }

    fn write_range(&self, state: &mut State, range: Range<u64>, input: &mut Input<'_>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let block = block_of(at);
            let whole_end = self.whole_end(range.end);
            if at.is_multiple_of(BLOCK) && whole_end > at {
                let (place, blocks) = state.target_run(block..block_of(whole_end - 1) + 1);
                let end = whole_end.min(u64::from(block + blocks) * BLOCK);
                let put = input.write_at(&state.overlay.file, self.plane(place) + at, (end - at) as usize);
                state.settle_write(block..block + blocks, place, put).map_err(Error::transfer("write the overlay", at))?;
                at = end;
            } else {
                let end = range.end.min((u64::from(block) + 1) * BLOCK);
                self.write_part(state, at..end, input)?;
                at = end;
            }
        }
        Ok(())
    }

    /// Writes part of one block.
    fn write_part(&self, state: &mut State, range: Range<u64>, input: &mut Input<'_>) -> Result<()> {
        let block = block_of(range.start);
        let (len, failed) = ((range.end - range.start) as usize, Error::transfer("write the overlay", range.start));
        let here = state.map.get(block);
        if matches!(here, Place::First | Place::Second) && !state.is_pending(block, here) {
            let put = input.write_at(&state.overlay.file, self.plane(here) + range.start, len);
            return state.settle_write(block..block + 1, here, put).map_err(failed);
        }
        let start = u64::from(block) * BLOCK;
        let mut page: PageBuf = [0; PAGE_SIZE];
        let used = (self.size - start).min(BLOCK) as usize;
        with_output(&mut page[..used], |output| self.read_range(state, start..start + used as u64, output))?;
        let within = (range.start - start) as usize;
        input.take(&mut page[within..within + len]).map_err(Error::transfer("take the guest's bytes", range.start))?;
        let place = state.target(block);
        let put = with_input(&page, |input| input.write_at(&state.overlay.file, self.plane(place) + start, PAGE_SIZE));
        state.settle_write(block..block + 1, place, put).map_err(failed)
    }

    fn zero_range(&self, state: &mut State, range: Range<u64>, unmap: bool) -> Result<()> {
        let whole = range.start.next_multiple_of(BLOCK)..self.whole_end(range.end);
        if whole.start >= whole.end {
            return self.zero_part(state, range);
        }
        self.zero_part(state, range.start..whole.start)?;
        self.zero_blocks(state, block_of(whole.start)..block_of(whole.end - 1) + 1, unmap);
        self.zero_part(state, whole.end..range.end)
    }

    /// Shows the watch what was written: commit records first, since what was written with one was not written before it.
    fn observe(&self, state: &mut State, range: &Range<u64>) {
        for (file_system, at) in state.watch.headers(range) {
            let mut header = [0; HEADER];
            let read = with_output(&mut header, |output| self.read_range(state, at..at + HEADER as u64, output));
            // A record that cannot be read counts as none: then fewer blocks are known to be free.
            if read.is_ok()
                && let Some(transaction) = committed(&header)
            {
                state.watch.committed(file_system, transaction);
            }
        }
        state.watch.wrote(range);
    }

    fn zero_part(&self, state: &mut State, range: Range<u64>) -> Result<()> {
        const ZEROS: &PageBuf = &[0; PAGE_SIZE];
        let mut at = range.start;
        while at < range.end {
            let block = block_of(at);
            let end = range.end.min((u64::from(block) + 1) * BLOCK);
            if !self.is_known_zero(state.map.get(block), block) {
                with_input(&ZEROS[..(end - at) as usize], |input| self.write_part(state, at..end, input))?;
            }
            at = end;
        }
        Ok(())
    }

    /// Whether a block in this place is zero for certain, without a look at its content.
    fn is_known_zero(&self, place: Place, block: PageNumber) -> bool {
        match place {
            Place::Zero => true,
            Place::Below => self.golden.as_ref().is_none_or(|golden| u64::from(block) >= golden.blocks()),
            _ => false,
        }
    }

    fn zero_blocks(&self, state: &mut State, blocks: Range<u32>, unmap: bool) {
        let image_blocks = self.golden.as_ref().map_or(0, |golden| golden.blocks()).min(self.blocks.into()) as u32;
        let mut at = blocks.start;
        while at < blocks.end {
            let (place, mut count) = state.map.run(at..blocks.end);
            if at < image_blocks {
                count = count.min(image_blocks - at);
            }
            let run = at..at + count;
            if !self.is_known_zero(place, at) {
                state.wrote(run.clone(), Place::Zero);
            }
            if unmap && count >= PUNCH_MIN_BLOCKS && matches!(place, Place::First | Place::Second) {
                self.free(state, run, place);
            }
            at += count;
        }
    }

    /// Gives the space of blocks back to the host, if no cut needs it.
    fn free(&self, state: &State, run: Range<u32>, place: Place) {
        if state.pending.as_ref().is_some_and(|(_, planes)| planes.of(place).range_cardinality(run.clone()) > 0) {
            return;
        }
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let offset = self.plane(place) + u64::from(run.start) * BLOCK;
        // Only space is at stake: the map already says that the blocks are zero.
        if let Err(error) = rustix::fs::fallocate(&state.overlay.file, flags, offset, u64::from(run.end - run.start) * BLOCK) {
            tracing::debug!(%error, "the host does not free the space of discarded blocks");
        }
    }
}

/// The disk as it is now, for the watch.
struct Live<'a> {
    disk: &'a Disk,
    state: RefCell<&'a mut State>,
}

impl Source for Live<'_> {
    fn size(&self) -> u64 {
        self.disk.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let range = self.disk.range(at, into.len() as u64)?;
        with_output(into, |output| self.disk.read_range(&mut self.state.borrow_mut(), range, output))
    }
}

impl State {
    fn new(overlay: Overlay, blocks: u32, root: Root, watch: Watch) -> Self {
        let place = if root.node.is_some() { Place::Unasked } else { Place::Below };
        Self {
            overlay: Arc::new(overlay),
            map: BlockMap::new(blocks, place),
            below: root,
            base: root,
            written: Planes::default(),
            pending: None,
            cuts: 0,
            page_map: None,
            saved: Arc::default(),
            watch,
            left_out: Arc::default(),
        }
    }

    fn is_pending(&self, block: PageNumber, place: Place) -> bool {
        self.pending.as_ref().is_some_and(|(_, planes)| planes.of(place).contains(block))
    }

    /// The plane that a block may be written to.
    fn target(&self, block: PageNumber) -> Place {
        if self.is_pending(block, Place::First) { Place::Second } else { Place::First }
    }

    /// The plane that the first block of the range may be written to, and how many blocks may go there with it.
    fn target_run(&self, blocks: Range<u32>) -> (Place, u32) {
        let all = blocks.end - blocks.start;
        match &self.pending {
            Some((_, planes)) if planes.of(Place::First).range_cardinality(blocks.clone()) > 0 => {
                let place = self.target(blocks.start);
                let count = blocks.take_while(|block| self.target(*block) == place).count();
                (place, count as u32)
            }
            _ => (Place::First, all),
        }
    }

    /// Tells that blocks hold something else.
    fn change(&self, blocks: Range<u32>) {
        if let Some((map, number)) = &self.page_map {
            map.block_changes(*number, blocks);
        }
    }

    fn wrote(&mut self, blocks: Range<u32>, place: Place) {
        self.change(blocks.clone());
        self.map.set(blocks.clone(), place);
        self.written.insert(blocks, place);
    }

    /// Notes blocks as written. Those that were overwritten where they lay count as written even when that failed half way: their content may have changed.
    fn settle_write(&mut self, blocks: Range<u32>, place: Place, put: io::Result<()>) -> io::Result<()> {
        if put.is_ok() {
            self.wrote(blocks, place);
            return Ok(());
        }
        for block in blocks {
            if self.map.get(block) == place {
                self.wrote(block..block + 1, place);
            }
        }
        put
    }
}

fn block_of(offset: u64) -> PageNumber {
    (offset / BLOCK) as PageNumber
}

fn check_root(root: &Root, blocks: u32) -> Result<()> {
    if root.pages == u64::from(blocks) {
        return Ok(());
    }
    Err(Error::Refused(format!("the page table is that of a disk of {} blocks, this disk has {blocks}", root.pages)))
}

fn new_overlay(dir: &Path, blocks: u32) -> Result<Overlay> {
    Overlay::new(dir, 2 * u64::from(blocks) * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_store::Store;

    #[test]
    fn what_the_host_lost_is_in_no_checkpoint_until_a_reset() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let options = DiskOptions {
            golden: None,
            size: Some(1 << 20),
            root: None,
            pages: Arc::new(store.clone()),
            overlay_dir: dir.path().to_owned(),
            read_only: false,
            drop_freed: true,
        };
        let disk = Disk::new(options).unwrap();
        disk.write_at(0, &[1; PAGE_SIZE]).unwrap();
        disk.flush().unwrap();
        // The kernel tells once; from then on it is remembered.
        disk.lock().overlay.note_lost();
        for _ in 0..2 {
            assert!(matches!(disk.flush(), Err(Error::OverlayLost { .. })));
            let cut = disk.cut().unwrap();
            assert!(matches!(cut.save(&mut store.writer().unwrap()), Err(Error::OverlayLost { .. })));
            disk.settle(cut.id(), Settled::Aborted);
        }
        disk.reset(Root::empty(disk.blocks().into())).unwrap();
        disk.write_at(0, &[1; PAGE_SIZE]).unwrap();
        disk.flush().unwrap();
        disk.cut().unwrap().save(&mut store.writer().unwrap()).unwrap();
    }
}
