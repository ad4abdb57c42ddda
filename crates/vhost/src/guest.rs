//! A guest's RAM as the backend sees it: checked, brought in before it is touched, and reported as written after.
//!
//! All access goes through [`GuestRam`], which implements `vm_memory::GuestMemory`: rings, descriptors, indirect tables, buffers and status bytes alike. So no
//! place can forget the two duties that checkpoints put on whoever touches guest memory from outside QEMU.
//!
//! Pages are numbered by their place in the RAM *file*, not by guest address: several regions map one file (around the hole below 4 GiB).

use crate::{dirty::DirtyPages, segments::Pieces};
use fermata_types::{PAGE_SIZE, PageNumber};
use rustix::fs::{Stat, fstat};
use std::{
    fs::File,
    io,
    iter::FusedIterator,
    ops::Range,
    os::fd::AsFd,
    sync::{
        Arc, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemory, GuestMemoryError, GuestMemoryMmap, GuestMemoryResult, MmapRegion, Permissions, VolatileMemory,
    VolatileSlice,
    bitmap::{BS, Bitmap, BitmapSlice, WithBitmapSlice},
    guest_memory::GuestMemorySliceIterator,
    mmap::MmapRegionBuilder,
};

/// A stretch of guest RAM as it is mapped here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address of its first byte.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// Offset of its first byte in the RAM file.
    pub file_offset: u64,
    /// Where it is mapped in this process.
    pub address: usize,
}

/// Who has to know before guest memory is touched, because a page may not be restored yet.
pub trait MemoryWatch: Send + Sync {
    /// The guest's RAM is mapped here, in these places. Called with all regions whenever a mapping was added, before any is touched.
    fn mapped(&self, regions: &[Region]);

    /// These pages of the RAM file are about to be read or written. Returns once they hold what the guest has in them. Called very often: it must be quick
    /// for pages that are there.
    fn before_access(&self, first_page: u32, pages: u32) -> io::Result<()>;

    /// Whether [`before_access`](Self::before_access) has nothing to wait for. For whoever has a lock that others wait for.
    fn is_there(&self, _first_page: u32, _pages: u32) -> bool {
        true
    }

    /// Whoever notices writes through other mappings shall notice them in these pages of the RAM file from now on, also where it has noticed one already. Pages
    /// that were written before are told to `written`: they are ours to report. After an error any of the pages may be among those.
    fn watch_writes(&self, _pages: &[Range<PageNumber>], _written: &mut dyn FnMut(Range<PageNumber>)) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Who has to know which pages the back end has written, at once and not when somebody asks for [`DirtyPages`].
pub trait WriteWatch: Send + Sync {
    /// These pages of the RAM file were written.
    fn written(&self, pages: Range<PageNumber>);
}

/// What all memory tables of one server share: who is told of accesses, and where writes are noted.
#[derive(Default)]
pub struct Tracking {
    /// Pages written by the backend.
    pub dirty: Arc<DirtyPages>,
    watch: RwLock<Option<Arc<dyn MemoryWatch>>>,
    logging: AtomicBool,
    log: RwLock<Option<Log>>,
    writes: OnceLock<Arc<dyn WriteWatch>>,
}

impl std::fmt::Debug for Tracking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tracking")
    }
}

/// QEMU's own list of dirty pages during a migration, shared with us: a bit for each guest page (vhost-user protocol, "Migration").
struct Log {
    bits: MmapRegion<()>,
}

impl Tracking {
    /// Notes written pages here, and tells nobody of accesses.
    pub fn new(dirty: Arc<DirtyPages>) -> Self {
        Self { dirty, ..Self::default() }
    }

    /// Installs or removes the watch.
    pub fn set_watch(&self, watch: Option<Arc<dyn MemoryWatch>>) {
        *self.watch.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = watch;
    }

    /// From now on `watch` learns which pages are written, but for those of [`GuestRam::fill_known`]. Only the first one is taken.
    pub fn set_write_watch(&self, watch: Arc<dyn WriteWatch>) {
        let _ = self.writes.set(watch);
    }

    fn watch(&self) -> Option<Arc<dyn MemoryWatch>> {
        read(&self.watch).clone()
    }

    pub(crate) fn set_log(&self, file: File, offset: u64, len: u64) -> io::Result<()> {
        // Touching what lies behind the end of a file would end this process.
        if offset.checked_add(len).is_none_or(|end| file.metadata().is_ok_and(|metadata| metadata.len() < end)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the log of dirty pages reaches beyond its file"));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let bits = MmapRegion::from_file(FileOffset::new(file, offset), len).map_err(io::Error::other)?;
        *self.log.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Log { bits });
        Ok(())
    }

    pub(crate) fn set_logging(&self, on: bool) {
        self.logging.store(on, Ordering::Release);
        if !on {
            *self.log.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
        }
    }

    fn log(&self, guest: u64, len: u64) {
        if !self.logging.load(Ordering::Acquire) {
            return;
        }
        if let Some(log) = &*read(&self.log) {
            for page in guest / PAGE_SIZE as u64..=(guest + len - 1) / PAGE_SIZE as u64 {
                if let Ok(byte) = log.bits.get_atomic_ref::<AtomicU8>((page / 8) as usize) {
                    byte.fetch_or(1 << (page % 8), Ordering::AcqRel);
                }
            }
        }
    }
}

/// Notes writes to one region. `vm-memory` calls it after each write through it.
#[derive(Debug)]
pub struct Marks {
    tracking: Arc<Tracking>,
    guest: u64,
    /// Offset in the RAM file. None: the region is not part of it.
    file_offset: Option<u64>,
}

/// Notes writes to part of a region.
#[derive(Debug, Clone, Copy)]
pub struct MarksAt<'a> {
    marks: &'a Marks,
    offset: usize,
}

impl Marks {
    /// Notes that something was written, and returns the pages of it.
    fn mark(&self, offset: usize, len: usize) -> Option<Range<PageNumber>> {
        if len == 0 {
            return None;
        }
        self.tracking.log(self.guest + offset as u64, len as u64);
        let start = self.file_offset? + offset as u64;
        let (first, last) = (start / PAGE_SIZE as u64, (start + len as u64 - 1) / PAGE_SIZE as u64);
        self.tracking.dirty.mark(first, last);
        Some(first as PageNumber..last as PageNumber + 1)
    }

    /// The same, and tells whoever wants to know at once.
    fn mark_and_tell(&self, offset: usize, len: usize) {
        if let (Some(pages), Some(watch)) = (self.mark(offset, len), self.tracking.writes.get()) {
            watch.written(pages);
        }
    }
}

impl<'a> WithBitmapSlice<'a> for Marks {
    type S = MarksAt<'a>;
}

impl Bitmap for Marks {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.mark_and_tell(offset, len);
    }

    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }

    fn slice_at(&self, offset: usize) -> MarksAt<'_> {
        MarksAt { marks: self, offset }
    }
}

impl<'s> WithBitmapSlice<'s> for MarksAt<'_> {
    type S = Self;
}

impl BitmapSlice for MarksAt<'_> {}

impl Bitmap for MarksAt<'_> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.marks.mark_and_tell(self.offset + offset, len);
    }

    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }

    fn slice_at(&self, offset: usize) -> Self {
        Self { marks: self.marks, offset: self.offset + offset }
    }
}

/// One entry of the memory table that QEMU sends.
pub struct Entry {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub len: u64,
    /// Address in QEMU, by which it names rings.
    pub qemu: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// The file of the memory.
    pub file: File,
}

#[derive(Clone)]
struct Mapped {
    region: Region,
    qemu: u64,
    /// Device and inode of the file.
    file: (u64, u64),
    memory: Arc<MmapRegion<Marks>>,
}

/// The guest's RAM. A clone has the same memory, mapped for as long as it lives.
#[derive(Clone, Default)]
pub struct GuestRam {
    regions: Vec<Mapped>,
    tracking: Arc<Tracking>,
}

impl GuestRam {
    /// No memory yet.
    pub fn new(tracking: Arc<Tracking>) -> Self {
        Self { regions: Vec::new(), tracking }
    }

    /// A new memory table. Mappings that are in `self` already are kept: QEMU sends its table at every `cont`, and to map it anew would
    /// cost a fault for every page touched, and the unmapping falls into the pause.
    ///
    /// The file of the first entry is the RAM file; writes to other files are not noted in [`DirtyPages`].
    pub fn with_table(&self, entries: Vec<Entry>) -> io::Result<Self> {
        let mut ram = Self::new(self.tracking.clone());
        let mut new = false;
        let mut ram_file = None;
        for entry in entries {
            let Stat { st_dev, st_ino, .. } = fstat(entry.file.as_fd())?;
            let file = (st_dev, st_ino);
            let in_ram_file = *ram_file.get_or_insert(file) == file;
            let known = self.regions.iter().find(|known| {
                known.file == file
                    && (known.region.guest, known.region.len, known.region.file_offset) == (entry.guest, entry.len, entry.file_offset)
            });
            let memory = match known {
                Some(known) => known.memory.clone(),
                None => {
                    new = true;
                    self.map(&entry, in_ram_file)?
                }
            };
            let region = Region { guest: entry.guest, len: entry.len, file_offset: entry.file_offset, address: memory.as_ptr() as usize };
            ram.regions.push(Mapped { region, qemu: entry.qemu, file, memory });
        }
        if new && let Some(watch) = self.tracking.watch() {
            watch.mapped(&ram.regions());
        }
        Ok(ram)
    }

    /// Where guest RAM is mapped.
    pub fn regions(&self) -> Vec<Region> {
        self.regions.iter().map(|mapped| mapped.region).collect()
    }

    fn map(&self, entry: &Entry, in_ram_file: bool) -> io::Result<Arc<MmapRegion<Marks>>> {
        let end = entry.file_offset.checked_add(entry.len).filter(|_| entry.guest.checked_add(entry.len).is_some());
        let end = end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a memory region wraps around"))?;
        if entry.file.metadata()?.len() < end {
            // Touching what lies behind the end of a file would end this process.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a memory region reaches beyond its file"));
        }
        let len = usize::try_from(entry.len).map_err(io::Error::other)?;
        let aligned = entry.file_offset.is_multiple_of(PAGE_SIZE as u64);
        if in_ram_file && aligned && end.div_ceil(PAGE_SIZE as u64) <= u64::from(u32::MAX) {
            self.tracking.dirty.reach(end.div_ceil(PAGE_SIZE as u64));
        } else {
            tracing::warn!(
                guest = entry.guest,
                len = entry.len,
                "guest memory outside the RAM file: what is written to it here is not tracked"
            );
        }
        let marks = Marks { tracking: self.tracking.clone(), guest: entry.guest, file_offset: in_ram_file.then_some(entry.file_offset) };
        let region = MmapRegionBuilder::new_with_bitmap(len, marks)
            .with_file_offset(FileOffset::new(entry.file.try_clone()?, entry.file_offset))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED | libc::MAP_NORESERVE)
            .build()
            .map_err(io::Error::other)?;
        Ok(Arc::new(region))
    }

    /// The guest address of an address in QEMU.
    pub fn guest_address(&self, qemu: u64) -> Option<u64> {
        self.regions.iter().find_map(|mapped| {
            let offset = qemu.checked_sub(mapped.qemu)?;
            (offset < mapped.region.len).then(|| mapped.region.guest + offset)
        })
    }

    /// Adds guest memory to `pieces`, brought in and checked.
    pub(crate) fn pieces(&self, guest: u64, len: usize, pieces: &mut Pieces) -> GuestMemoryResult<()> {
        for slice in self.slices(guest, len) {
            let slice = slice?;
            pieces.push(slice.ptr_guard_mut().as_ptr(), slice.len());
        }
        Ok(())
    }

    /// Notes that guest memory was written through [`Self::pieces`], and tells the [`WriteWatch`] if it is to be told.
    pub(crate) fn mark(&self, guest: u64, len: usize, tell: bool) {
        self.each_region(guest, len as u64, |mapped, offset, len| {
            let (marks, offset, len) = (mapped.memory.bitmap(), offset as usize, len as usize);
            if tell {
                marks.mark_and_tell(offset, len);
            } else {
                marks.mark(offset, len);
            }
        });
    }

    /// Where guest memory lies: each stretch of it as offset in the RAM file and length. Memory of another file has no offset.
    pub fn places(&self, guest: u64, len: u64, mut each: impl FnMut(Option<u64>, u64)) {
        self.each_region(guest, len, |mapped, offset, len| each(mapped.memory.bitmap().file_offset.map(|start| start + offset), len));
    }

    /// Has writes through other mappings to these pages noticed from now on. False if nobody can.
    pub fn watch_writes(&self, pages: &[Range<PageNumber>]) -> bool {
        let Some(watch) = self.tracking.watch() else { return false };
        let mark = |pages: &Range<PageNumber>| self.tracking.dirty.mark(pages.start.into(), u64::from(pages.end) - 1);
        let watched = watch.watch_writes(pages, &mut |written| mark(&written));
        if let Err(error) = &watched
            && error.kind() != io::ErrorKind::Unsupported
        {
            pages.iter().for_each(mark);
            tracing::debug!(%error, "writes to pages of a request cannot be watched");
        }
        watched.is_ok()
    }

    /// Whether buffers, as guest addresses and lengths, can be touched without waiting for a page that is yet to be restored. What lies in no memory
    /// is nobody's wait.
    pub fn are_there(&self, buffers: &[(u64, u32)]) -> bool {
        let Some(watch) = self.tracking.watch() else { return true };
        buffers.iter().all(|(guest, len)| {
            let mut there = true;
            self.places(*guest, u64::from(*len), |start, len| {
                let Some(start) = start else { return };
                let (first, last) = (start / PAGE_SIZE as u64, (start + len - 1) / PAGE_SIZE as u64);
                there &= watch.is_there(first as u32, (last - first + 1) as u32);
            });
            there
        })
    }

    /// Brings in what of these buffers is yet to be restored. Fails if one does not lie in guest RAM; the others are there all the same.
    pub fn bring_in(&self, buffers: &[(u64, u32)]) -> GuestMemoryResult<()> {
        let brought = |(guest, len): &(u64, u32)| self.slices(*guest, *len as usize).try_for_each(|slice| slice.map(drop));
        buffers.iter().map(brought).fold(Ok(()), GuestMemoryResult::and)
    }

    /// Calls `each` with every region that the range touches, and offset and length within it. Stops where there is no memory.
    fn each_region(&self, mut guest: u64, mut len: u64, mut each: impl FnMut(&Mapped, u64, u64)) {
        while len > 0
            && let Some(mapped) = self.find(guest)
        {
            let offset = guest - mapped.region.guest;
            let now = (mapped.region.len - offset).min(len);
            each(mapped, offset, now);
            guest += now;
            len -= now;
        }
    }

    fn find(&self, guest: u64) -> Option<&Mapped> {
        self.regions.iter().find(|mapped| guest.checked_sub(mapped.region.guest).is_some_and(|offset| offset < mapped.region.len))
    }

    fn slices(&self, guest: u64, len: usize) -> Slices<'_> {
        Slices { ram: self, watch: self.tracking.watch(), guest, left: len }
    }
}

impl GuestMemory for GuestRam {
    type PhysicalMemory = GuestMemoryMmap<()>;
    type Bitmap = Marks;

    fn check_range(&self, addr: GuestAddress, count: usize, _access: Permissions) -> bool {
        let (mut guest, mut left) = (addr.0, count as u64);
        while left > 0 {
            let Some(mapped) = self.find(guest) else { return false };
            let here = (mapped.region.len - (guest - mapped.region.guest)).min(left);
            left -= here;
            // Cannot overflow: the region's end was checked when it was mapped.
            guest += here;
        }
        true
    }

    fn get_slices<'a>(
        &'a self,
        addr: GuestAddress,
        count: usize,
        _access: Permissions,
    ) -> GuestMemoryResult<impl GuestMemorySliceIterator<'a, BS<'a, Marks>>> {
        Ok(self.slices(addr.0, count))
    }
}

struct Slices<'a> {
    ram: &'a GuestRam,
    watch: Option<Arc<dyn MemoryWatch>>,
    guest: u64,
    left: usize,
}

impl<'a> Slices<'a> {
    fn step(&mut self) -> GuestMemoryResult<VolatileSlice<'a, MarksAt<'a>>> {
        let mapped = self.ram.find(self.guest).ok_or(GuestMemoryError::InvalidGuestAddress(GuestAddress(self.guest)))?;
        let offset = self.guest - mapped.region.guest;
        let len = ((mapped.region.len - offset) as usize).min(self.left);
        if let (Some(watch), Some(start)) = (&self.watch, mapped.memory.bitmap().file_offset) {
            let first = (start + offset) / PAGE_SIZE as u64;
            let last = (start + offset + len as u64 - 1) / PAGE_SIZE as u64;
            watch.before_access(first as u32, (last - first + 1) as u32).map_err(GuestMemoryError::IOError)?;
        }
        let slice = mapped.memory.get_slice(offset as usize, len)?;
        self.guest += len as u64;
        self.left -= len;
        Ok(slice)
    }
}

impl<'a> Iterator for Slices<'a> {
    type Item = GuestMemoryResult<VolatileSlice<'a, MarksAt<'a>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let slice = self.step();
        if slice.is_err() {
            self.left = 0;
        }
        Some(slice)
    }
}

impl FusedIterator for Slices<'_> {}

impl<'a> GuestMemorySliceIterator<'a, MarksAt<'a>> for Slices<'a> {}

fn read<T: ?Sized>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}
