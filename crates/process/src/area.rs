//! The memory of an area, and what is noted of it. Whoever wants checkpoints of several areas at one instant, or in a record of their own, uses this;
//! [`crate::CriticalArea`] is the simple case upon it.
//!
//! ```text
//!   the program ──writes──> Area ──capture()──> Capture ──put()──> Writer: pages, page table, PartState
//!                            ^                     │
//!                            └──── give_back() ────┘  when it came to nothing
//! ```

use crate::{
    Capture, Error, Result, Tracking,
    capture::{Details, Spare, TABLE},
    tracking,
};
use fermata_linux::AreaMemory;
use fermata_store::Store;
use fermata_tracker::Tracker;
use fermata_types::{PAGE_SIZE, PageNumber, PageSet, PartKind, PartState};
use std::{ops::Range, sync::Arc};

/// Bytes of an area at most: 16 TiB, as page numbers reach.
const BYTES_MAX: usize = 1 << 44;

/// How an area is made. `Options::default()` is right for most.
#[derive(Debug, Clone, Default)]
pub struct Options {
    tracking: Tracking,
    only_stores: bool,
    anywhere: bool,
    copy_on_write: bool,
    keep_last: Option<u32>,
}

impl Options {
    /// How writes are found; [`Tracking::Auto`] if this is not called.
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = tracking;
        self
    }

    /// The program promises that no system call writes into the area but where it said so before, by [`Area::expect_writes`]. Lets [`Tracking::Auto`] choose
    /// mechanisms under which such a call fails with `EFAULT`.
    pub fn only_stores(mut self) -> Self {
        self.only_stores = true;
        self
    }

    /// [`Cycle::commit_behind`](crate::Cycle::commit_behind) does not wait until what was written is copied: a thread copies behind the program, and a page
    /// that is written to before is copied first. Makes the pause of large commits shorter. Under [`Tracking::Protect`] and [`Tracking::Emulate`], and under
    /// [`Tracking::Auto`] with [`only_stores`](Self::only_stores); else nothing changes.
    ///
    /// The program promises to call [`Area::expect_writes`] before each write that is no store, for pinned memory, too: what comes in between a commit and
    /// that call may be in the commit.
    pub fn copy_on_write(mut self) -> Self {
        self.copy_on_write = true;
        self
    }

    pub(crate) fn copies_on_write(&self) -> bool {
        self.copy_on_write
    }

    /// A [`CriticalArea`](crate::CriticalArea) keeps its last so many commits, one at least, and what is tagged: see [`CriticalArea::keep_last`](crate::CriticalArea::keep_last). If this is not called it keeps all of them.
    pub fn keep_last(mut self, commits: u32) -> Self {
        self.keep_last = Some(commits);
        self
    }

    pub(crate) fn keeps_last(&self) -> Option<u32> {
        self.keep_last
    }

    /// The area has no pointers into itself: it may come back at another address, where its own is taken.
    pub fn anywhere(mut self) -> Self {
        self.anywhere = true;
        self
    }
}

impl From<Tracking> for Options {
    fn from(tracking: Tracking) -> Self {
        Self::default().tracking(tracking)
    }
}

/// Memory of fixed size under a tracker. Not inherited by a child process of `fork`: it faults there.
pub struct Area {
    name: String,
    // Before the memory, which it watches.
    tracker: Box<dyn Tracker>,
    memory: AreaMemory,
    excluded: PageSet,
    /// Must be in the next capture, whether they are written again or not.
    owed: PageSet,
    /// No longer part of the area, and still named by the last capture.
    dropped: PageSet,
    /// What the last capture was copied to, once it is written.
    spare: Spare,
}

impl std::fmt::Debug for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Area({}, {:#x?}, {})", self.name, self.memory.range(), self.tracker.mechanism())
    }
}

impl Area {
    /// A new area, all zero, of at least so many bytes (whole pages).
    pub fn new(name: &str, bytes: usize, options: impl Into<Options>) -> Result<Self> {
        if bytes == 0 || bytes > BYTES_MAX {
            return Err(Error::refused(name, format!("it cannot have {bytes} bytes"), "ask for 1 byte to 16 TiB"));
        }
        let bytes = bytes.next_multiple_of(PAGE_SIZE) as u64;
        let memory = AreaMemory::new(name, bytes).map_err(Error::io(name, "mapping its memory"))?;
        Self::under(name, memory, PageSet::new(), &options.into())
    }

    /// The area as a checkpoint has it. `state` is what [`Capture::put`] returned. All of it is read and checked here.
    pub fn restore(store: &Store, state: &PartState, options: impl Into<Options>) -> Result<Self> {
        let (name, options) = (state.name.as_str(), options.into());
        let foreign = |what: &str| Error::foreign(name, what);
        if state.kind != PartKind::Process {
            return Err(foreign("it is no area"));
        }
        let details: Details = serde_json::from_value(state.details.clone()).map_err(|error| foreign(&error.to_string()))?;
        let root = state.tables.get(TABLE).ok_or_else(|| foreign("it has no page table"))?;
        let bytes = root.pages.checked_mul(PAGE_SIZE as u64).filter(|bytes| (1..=BYTES_MAX as u64).contains(bytes));
        let bytes = bytes.ok_or_else(|| foreign("its size cannot be"))?;
        let excluded = details.excluded(root.pages).ok_or_else(|| foreign("it leaves out pages that it does not have"))?;
        let mut memory = Self::place(name, details.address, bytes, &options)?;
        let mut page = [0; PAGE_SIZE];
        store.for_each_page(root, &mut |number, content| {
            store.read_page(&content, &mut page)?;
            // Before anybody watches, and through the file: pages of the mapping come when they are touched.
            Ok(memory.fill(u64::from(number) * PAGE_SIZE as u64, &page)?)
        })?;
        Self::under(name, memory, excluded, &options)
    }

    /// An area with this content, whole pages, where another had its address.
    pub(crate) fn with_content(name: &str, address: u64, content: &[u8], options: &Options) -> Result<Self> {
        let mut memory = Self::place(name, address, content.len() as u64, options)?;
        memory.fill(0, content).map_err(Error::io(name, "filling its memory"))?;
        Self::under(name, memory, PageSet::new(), options)
    }

    fn place(name: &str, address: u64, bytes: u64, options: &Options) -> Result<AreaMemory> {
        let memory = match AreaMemory::at(address, bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && options.anywhere => AreaMemory::new(name, bytes),
            other => other,
        };
        memory.map_err(|error| Error::Io {
            area: name.to_owned(),
            what: "mapping its memory where it was",
            source: Arc::new(error),
            advice: "; open it earlier in the program, or, if it has no pointers into itself, with Options::anywhere",
        })
    }

    fn under(name: &str, memory: AreaMemory, excluded: PageSet, options: &Options) -> Result<Self> {
        let tracker = tracking::start(options.tracking, &memory, options.only_stores).map_err(Error::tracker(name))?;
        Ok(Self {
            name: name.to_owned(),
            tracker,
            memory,
            excluded,
            owed: PageSet::new(),
            dropped: PageSet::new(),
            spare: Spare::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its addresses in this process; the same after a restore.
    pub fn range(&self) -> Range<u64> {
        self.memory.range()
    }

    /// How its writes are found at the moment: the mechanism, as people call it.
    pub fn mechanism(&self) -> &'static str {
        self.tracker.mechanism()
    }

    /// What is in it.
    pub fn as_slice(&self) -> &[u8] {
        self.memory.as_slice()
    }

    /// What is in it, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice()
    }

    /// Leaves a part of it out of checkpoints from the next one on: scratch space, what can be made again. Pages that lie in it wholly are left out; after a
    /// restore they are zero.
    pub fn exclude(&mut self, bytes: Range<usize>) -> Result<()> {
        let pages = self.pages_within(bytes)?;
        let mut out = PageSet::new();
        out.insert_range(pages);
        out -= &self.excluded;
        self.owed -= &out;
        self.dropped |= &out;
        self.excluded |= &out;
        Ok(())
    }

    /// Takes up again what [`exclude`](Self::exclude) left out.
    pub fn include(&mut self, bytes: Range<usize>) -> Result<()> {
        let pages = self.pages_around(bytes)?;
        let mut back = PageSet::new();
        back.insert_range(pages);
        back &= &self.excluded;
        self.excluded -= &back;
        self.dropped -= &back;
        self.owed |= &back;
        Ok(())
    }

    /// The kernel or a device writes here between the last capture and the next one. To be said in each cycle anew:
    ///
    /// - Of system calls that are given an address (`read`, `recv`, a read through io_uring): before the call. Needed where [`Options::only_stores`] was promised, and under
    ///   [`Tracking::Protect`] and [`Tracking::Emulate`], where such a call fails with `EFAULT` otherwise. The other mechanisms see it by themselves.
    /// - Of memory that is pinned (registered buffers of io_uring, memory of RDMA, AF_XDP or a device): before the capture, **under every mechanism** but [`Tracking::Compare`].
    ///   Such writes pass no page table; where this is not said they are missing from checkpoints, and nothing fails.
    /// - With [`Options::copy_on_write`] before the write in both cases.
    ///
    /// What was expected is in the next capture, if it changed or not; under mechanisms that compare, if it changed. A request that is under way when a capture is made may be in it by half; it is to be expected again in the
    /// cycle in which it ends. So may a read with `O_DIRECT`, which pins its pages for as long as it takes.
    pub fn expect_writes(&mut self, bytes: Range<usize>) -> Result<()> {
        let pages = self.pages_around(bytes)?;
        self.tracker.expect_writes(pages).map_err(Error::tracker(&self.name))
    }

    /// Sets whole pages to zero and gives their memory back to the system. What lies before the first and behind the last whole page stays.
    ///
    /// Pages that are pinned are the area's no longer: what the kernel writes to them afterwards comes nowhere. Register such a buffer anew.
    pub fn discard(&mut self, bytes: Range<usize>) -> Result<()> {
        let pages = self.pages_within(bytes)?;
        let at = u64::from(pages.start) * PAGE_SIZE as u64..u64::from(pages.end) * PAGE_SIZE as u64;
        // A tracker that remembers content would take a page that is written again as it was before for one that did not change.
        self.tracker.expect_writes(pages.clone()).map_err(Error::tracker(&self.name))?;
        self.memory.discard(at).map_err(Error::io(&self.name, "giving memory back"))?;
        self.owed.insert_range(pages);
        self.owed -= &self.excluded;
        Ok(())
    }

    /// Takes what was written since the last capture, as it is now. This is all that the program has to wait for.
    ///
    /// Nobody may write meanwhile. Rust sees to that for who holds the slice; threads that write through raw pointers must stand still.
    pub fn capture(&mut self) -> Result<Capture> {
        self.capture_as(false)
    }

    /// The same, but may return before all is copied, where the tracker can have each page copied before it is written to. Somebody should ask for it soon
    /// ([`Capture::finish`]).
    pub(crate) fn capture_behind(&mut self) -> Result<Capture> {
        self.capture_as(true)
    }

    fn capture_as(&mut self, behind: bool) -> Result<Capture> {
        let mut words = self.tracker.take_words().map_err(Error::tracker(&self.name))?;
        // From here on the tracker has forgotten them.
        words.add_whole(&std::mem::take(&mut self.owed));
        words.leave_out(&self.excluded);
        let details = Details::new(self.memory.range().start, &self.excluded);
        let dropped = std::mem::take(&mut self.dropped);
        let (memory, pages) = (self.memory.as_slice(), words.pages());
        let content = match behind {
            true => self.spare.copy_behind(memory, &pages, &mut *self.tracker),
            false => self.spare.copy(memory, &pages),
        };
        Ok(Capture::of(&self.name, memory.len() as u64, words, content, dropped, details))
    }

    /// All that it holds, as it is now, for somebody who has nothing of it. What is in the next capture does not change.
    pub(crate) fn copy(&self) -> Result<Capture> {
        let pages = self.populated()? - &self.excluded;
        let details = Details::new(self.memory.range().start, &self.excluded);
        Ok(Capture::copy(&self.name, self.as_slice(), pages.into(), PageSet::new(), details, &self.spare))
    }

    fn populated(&self) -> Result<PageSet> {
        let populated = self.memory.file().populated().map_err(Error::io(&self.name, "looking where it has memory"))?;
        let page = |offset: u64| (offset / PAGE_SIZE as u64) as PageNumber;
        let mut pages = PageSet::new();
        populated.into_iter().for_each(|(from, to)| _ = pages.insert_range(page(from)..page(to)));
        Ok(pages)
    }

    /// The same with all pages that hold anything, written or not: a full checkpoint.
    pub fn capture_all(&mut self) -> Result<Capture> {
        self.owed |= self.populated()?;
        self.capture()
    }

    /// A capture came to nothing: its pages are in the next one, as they are then.
    pub fn give_back(&mut self, capture: Capture) {
        let (pages, dropped) = capture.touched();
        self.owe(&pages, &dropped);
    }

    /// Pages that are in the next capture, written or not.
    pub(crate) fn owe(&mut self, pages: &PageSet, dropped: &PageSet) {
        self.owed |= pages;
        self.owed -= &self.excluded;
        self.dropped |= dropped & &self.excluded;
    }

    /// Writes pages as a checkpoint has them. They count as written.
    pub(crate) fn put_back(&mut self, page: PageNumber, content: &[u8; PAGE_SIZE]) {
        let at = page as usize * PAGE_SIZE;
        self.as_mut_slice()[at..at + PAGE_SIZE].copy_from_slice(content);
    }

    /// Those written since the last capture. They stay written.
    pub(crate) fn written(&mut self) -> Result<PageSet> {
        let words = self.tracker.take_words().map_err(Error::tracker(&self.name))?;
        self.owed |= words.pages();
        // No checkpoint has those: there is nothing that they could be put back to.
        self.owed -= &self.excluded;
        Ok(self.owed.clone())
    }

    fn checked(&self, bytes: Range<usize>) -> Result<Range<usize>> {
        let all = (self.memory.range().end - self.memory.range().start) as usize;
        if bytes.start > bytes.end || bytes.end > all {
            return Err(Error::refused(&self.name, format!("it has no bytes {bytes:?}"), "ask for bytes below its size"));
        }
        Ok(bytes)
    }

    fn pages_within(&self, bytes: Range<usize>) -> Result<Range<PageNumber>> {
        let bytes = self.checked(bytes)?;
        let first = bytes.start.div_ceil(PAGE_SIZE);
        Ok(first as PageNumber..(bytes.end / PAGE_SIZE).max(first) as PageNumber)
    }

    fn pages_around(&self, bytes: Range<usize>) -> Result<Range<PageNumber>> {
        let bytes = self.checked(bytes)?;
        let first = bytes.start / PAGE_SIZE;
        Ok(first as PageNumber..bytes.end.div_ceil(PAGE_SIZE).max(first) as PageNumber)
    }
}
