//! From descriptors to what pages are for.
//!
//! A descriptor alone does not say whether its page is free: only the first page of a free block is marked, and says how large the block is. So each
//! descriptor is first boiled down to one byte, its *mark*, and then the marks are read in order. Marks are kept from one checkpoint to the next, so only
//! descriptors in pages that changed are read again.
//!
//! What is free must be free indeed, for its content will be gone. The block must lie as the kernel lays blocks, all of its other pages must look as pages
//! do that nobody uses, and the kernel's own count of free pages must agree with what was found.

use crate::{
    Memory, MemoryMap, Told, Unknown,
    note::{Facts, IMAGE, NOTE_BYTES_MAX, Nodes, SlabMark, TableMark},
    walk::{Reader, Tables, TopEntries},
};
use fermata_types::{Composition, PageBuf, PageNumber, PageSet, Use};

/// Descriptors that are read at once. With the longest descriptor they lie in two pages at most.
const CHUNK: u64 = 32;
/// A mark of the first page of a free block; the other bits are its order.
const HEAD: u8 = 0x80;
/// A mark of a page that nobody uses: it may be a further page of a free block.
const IDLE: u8 = 0x40;
/// A mark of a page that belongs with the one before it.
const TAIL: u8 = 0x20;

/// Of a section: it has descriptors (`SECTION_HAS_MEM_MAP`).
const HAS_DESCRIPTORS: u64 = 1 << 1;
/// A section's pointer is to a page; below are flags.
const POINTER: u64 = !0xfff;
/// A page of programs' own memory has this bit in `mapping`, and the next for other odd kinds (`PAGE_MAPPING_FLAGS`).
const ANONYMOUS: u64 = 1;
const ODD: u64 = 2;
/// The map count of a page that nobody maps.
const UNMAPPED: u32 = u32::MAX;
/// Zones of a node, at most (`MAX_NR_ZONES`).
const ZONES_MAX: u64 = 8;

/// No source.
const NOWHERE: PageNumber = PageNumber::MAX;

/// What the pages of a guest are for at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    facts: Facts,
    /// By page of RAM.
    marks: Vec<u8>,
    /// The pages in which the descriptors of each chunk lie.
    sources: Vec<[PageNumber; 2]>,
    /// Every page that the answer lies in.
    looked_at: PageSet,
    top: Option<TopEntries>,
    free: PageSet,
    composition: Composition,
}

/// Reads the descriptors of all pages of a guest.
///
/// `before` is an earlier survey of the same memory, with the pages that changed since: what lies in others is not read again.
pub fn survey(memory: &mut dyn Memory, map: MemoryMap, told: &Told, before: Option<(&Survey, &PageSet)>) -> Result<Survey, Unknown> {
    let mut reader = Reader::new(memory, map);
    let (address, length) = told.note;
    if length > NOTE_BYTES_MAX {
        return Err(format!("its kernel's note is said to have {length} bytes"));
    }
    let mut note = vec![0; length as usize];
    reader.physical(address, &mut note)?;
    let facts = Facts::parse(&note)?;
    let tables = Tables { top: facts.top, depth: if facts.five_levels { 4 } else { 3 } };
    let mut counting =
        Counting { reader, facts: &facts, tables, map, told, top: None, before: before.filter(|(survey, _)| survey.fits(&facts, map)) };
    let (marks, sources) = counting.marks()?;
    let counted = counting.free_pages()?;
    let (looked_at, top) = (std::mem::take(&mut counting.reader.looked_at), counting.top);
    let (free, composition) = read_marks(&marks, map, facts.orders);
    let found = free.len();
    // Pages on their way from or to a processor's own small stock are in neither, or in both.
    if found.abs_diff(counted) > map.pages() / 128 + 2048 {
        return Err(format!("its kernel counts {counted} free pages, and {found} were found: it may be about to begin, or to end"));
    }
    Ok(Survey { marks, sources, looked_at, top, free, composition, facts })
}

impl Survey {
    /// Free pages.
    pub fn free(&self) -> &PageSet {
        &self.free
    }

    /// How many pages there are of each use.
    pub fn composition(&self) -> &Composition {
        &self.composition
    }

    /// What one page is for; none if there is no such page.
    pub fn page(&self, page: PageNumber) -> Option<Use> {
        let mark = self.marks.get(page as usize)?;
        Some(if self.free.contains(page) { Use::Free } else { in_use(*mark).unwrap_or_else(|| self.head_of(page)) })
    }

    fn head_of(&self, page: PageNumber) -> Use {
        self.marks[..page as usize].iter().rev().find_map(|mark| in_use(*mark)).unwrap_or(Use::Kernel)
    }

    /// Pages in which the answer lies: with these in hand the same survey can be made again.
    pub fn sources(&self) -> &PageSet {
        &self.looked_at
    }

    /// Whether a page may be the top table that a processor runs on: it has the kernel's part.
    pub fn is_top_table(&self, content: &PageBuf) -> bool {
        self.top.is_some_and(|top| top.are_in(content))
    }

    fn fits(&self, facts: &Facts, map: MemoryMap) -> bool {
        self.facts == *facts && self.marks.len() as u64 == map.pages()
    }
}

struct Counting<'a> {
    reader: Reader<'a>,
    facts: &'a Facts,
    tables: Tables,
    map: MemoryMap,
    told: &'a Told,
    top: Option<TopEntries>,
    before: Option<(&'a Survey, &'a PageSet)>,
}

impl Counting<'_> {
    /// The marks of all pages, and where they come from.
    fn marks(&mut self) -> Result<(Vec<u8>, Vec<[PageNumber; 2]>), Unknown> {
        let pages = self.map.pages() as usize;
        let mut marks = vec![Use::Absent as u8; pages];
        let mut sources = vec![[NOWHERE; 2]; pages.div_ceil(CHUNK as usize)];
        let per_section = 1 << self.facts.section_bits;
        let mut checked = false;
        for frames in self.map.frames() {
            let mut frame = frames.start;
            while frame < frames.end {
                let section_end = (frame / per_section + 1) * per_section;
                let end = section_end.min(frames.end);
                if let Some(base) = self.section(frame / per_section)? {
                    if !std::mem::replace(&mut checked, true) {
                        self.check_tables(base.wrapping_add(frame.wrapping_mul(self.facts.size)))?;
                    }
                    for first in (frame..end).step_by(CHUNK as usize) {
                        self.chunk(base, first, end.min(first + CHUNK), &mut marks, &mut sources)?;
                    }
                }
                frame = end;
            }
        }
        Ok((marks, sources))
    }

    /// Where the descriptor of the guest's page 0 would be, by this section (`sparse_encode_mem_map`); none if it has no descriptors.
    fn section(&mut self, section: u64) -> Result<Option<u64>, Unknown> {
        let per_root = 4096 / self.facts.section_size;
        let root = section / per_root;
        if root >= self.facts.section_roots_len {
            return Ok(None);
        }
        let sections = self.reader.word(self.tables, self.facts.section_roots.wrapping_add(root * 8))?;
        if sections == 0 {
            return Ok(None);
        }
        let at = section % per_root * self.facts.section_size + self.facts.section_map;
        let encoded = self.reader.word(self.tables, sections.wrapping_add(at))?;
        Ok((encoded & HAS_DESCRIPTORS != 0).then_some(encoded & POINTER))
    }

    /// The note may be of a kernel that another has replaced. Every processor must be running on page tables that share the kernel's part with those of
    /// the note: a kernel that begins by itself leaves the other processors for a while as they were under the one before.
    fn check_tables(&mut self, descriptors: u64) -> Result<(), Unknown> {
        let entries = self.reader.top_entries(self.tables, [IMAGE, descriptors])?;
        self.top = Some(entries);
        let Some(tables) = &self.told.tables else { return Ok(()) };
        for cr3 in tables {
            if !self.reader.shares(*cr3, entries)? {
                return Err("a processor runs something else than the kernel that wrote the note".to_owned());
            }
        }
        if tables.is_empty() { Err("no processor runs the kernel that wrote the note".to_owned()) } else { Ok(()) }
    }

    fn chunk(&mut self, base: u64, first: u64, end: u64, marks: &mut [u8], sources: &mut [[PageNumber; 2]]) -> Result<(), Unknown> {
        let Some(page) = self.map.page(first) else { return Ok(()) };
        let size = self.facts.size as usize;
        let address = base.wrapping_add(first.wrapping_mul(self.facts.size));
        let length = (end - first) as usize * size;
        let last = address.wrapping_add(length as u64 - 1);
        let from = self.reader.translate(self.tables, address)?;
        let (Some(from), Some(to)) = (from, self.reader.translate(self.tables, last)?) else { return Ok(()) };
        let (Some(from_page), Some(to_page)) = (self.reader.page_at(from), self.reader.page_at(to)) else { return Ok(()) };
        let (place, at) = ([from_page, to_page], page as usize..page as usize + (end - first) as usize);
        let index = page as usize / CHUNK as usize;
        sources[index] = place;
        self.reader.looked_at.extend(place);
        if let Some((before, changed)) = self.before
            && before.sources[index] == place
            && !place.iter().any(|page| changed.contains(*page))
        {
            marks[at.clone()].copy_from_slice(&before.marks[at]);
            return Ok(());
        }
        let mut descriptors = [0; CHUNK as usize * 128];
        let descriptors = &mut descriptors[..length];
        let in_first = length.min(4096 - (from % 4096) as usize);
        self.reader.physical(from, &mut descriptors[..in_first])?;
        self.reader.physical(to / 4096 * 4096, &mut descriptors[in_first..])?;
        for (mark, descriptor) in marks[at].iter_mut().zip(descriptors.chunks(size)) {
            *mark = self.facts.mark(descriptor);
        }
        Ok(())
    }

    /// The kernel's own count of its free pages.
    fn free_pages(&mut self) -> Result<u64, Unknown> {
        let mut free = 0_u64;
        for number in 0..self.facts.nodes.len() {
            let node = match self.facts.nodes {
                Nodes::One(at) => at,
                Nodes::Array(at, _) => self.reader.word(self.tables, at.wrapping_add(number * 8))?,
            };
            if node == 0 {
                continue;
            }
            let zones = self.reader.word(self.tables, node.wrapping_add(self.facts.nr_zones))? & u64::from(u32::MAX);
            if zones > ZONES_MAX {
                return Err(format!("its kernel is said to have {zones} zones of memory"));
            }
            for zone in 0..zones {
                let zone = node.wrapping_add(self.facts.node_zones).wrapping_add(zone * self.facts.zone_size);
                let count = self.reader.word(self.tables, zone.wrapping_add(self.facts.free_pages))? as i64;
                free = free.saturating_add(count.max(0) as u64);
            }
        }
        Ok(free)
    }
}

impl Nodes {
    fn len(self) -> u64 {
        match self {
            Self::Array(_, length) => length,
            Self::One(_) => 1,
        }
    }
}

impl Facts {
    /// Boils a descriptor down.
    fn mark(&self, descriptor: &[u8]) -> u8 {
        let long = |at: usize| u64::from_le_bytes(descriptor[at..at + 8].try_into().expect("eight bytes"));
        let short = |at: usize| u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes"));
        let (flags, mapping, mapcount) = (long(self.flags), long(self.mapping), short(self.mapcount));
        if long(self.compound_head) & 1 != 0 {
            return TAIL;
        }
        if short(self.refcount) == 0 {
            let order = long(self.private);
            return match mapcount {
                buddy if buddy == self.buddy && order < self.orders => HEAD | order as u8,
                UNMAPPED => IDLE,
                _ => Use::Kernel as u8,
            };
        }
        let is = |bit: u32| flags >> bit & 1 != 0;
        let what = if self.is_slab(flags, mapcount) {
            Use::Slab
        } else if self.is_table(mapcount) {
            Use::PageTables
        } else if mapping & ANONYMOUS != 0 {
            Use::Anonymous
        } else if mapping == 0 || mapping & ODD != 0 || !is(self.lru) {
            Use::Kernel
        } else if is(self.swapbacked) {
            Use::Anonymous
        // `PG_dirty` is not in the note; it has always been the flag before `PG_lru` (Linux `include/linux/page-flags.h`, 4.12 to 6.18).
        } else if self.lru.checked_sub(1).is_some_and(is) {
            Use::CacheDirty
        } else {
            Use::CacheClean
        };
        what as u8
    }

    fn is_slab(&self, flags: u64, mapcount: u32) -> bool {
        match self.slab {
            SlabMark::Flag(bit) => flags >> bit & 1 != 0,
            SlabMark::Type(value) => mapcount >> 24 == value >> 24 || mapcount == value,
            SlabMark::None => false,
        }
    }

    fn is_table(&self, mapcount: u32) -> bool {
        match self.table {
            TableMark::Clear(bit) => mapcount >> 28 >= 0x8 && mapcount != UNMAPPED && mapcount & bit == 0,
            TableMark::Top(top) => mapcount >> 24 == u32::from(top),
            TableMark::None => false,
        }
    }
}

/// What a page is for by its mark alone, if it is in use; none for one that belongs with the page before.
fn in_use(mark: u8) -> Option<Use> {
    match mark {
        TAIL => None,
        mark if mark & (HEAD | IDLE) != 0 => Some(Use::Kernel),
        mark => Use::ALL.get(mark as usize).copied(),
    }
}

/// The free pages, and how many there are of each use.
fn read_marks(marks: &[u8], map: MemoryMap, orders: u64) -> (PageSet, Composition) {
    let (mut free, mut counts, mut last) = (PageSet::new(), [0; Use::ALL.len()], Use::Kernel);
    let mut page = 0;
    while page < marks.len() {
        let pages = block(marks, map, page, orders).unwrap_or(0);
        if pages > 0 {
            free.insert_range(page as PageNumber..(page + pages) as PageNumber);
            counts[Use::Free as usize] += pages as u64;
            (page, last) = (page + pages, Use::Kernel);
            continue;
        }
        last = in_use(marks[page]).unwrap_or(last);
        counts[last as usize] += 1;
        page += 1;
    }
    let pages = Use::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect();
    (free, Composition { pages, unknown: None })
}

/// Pages of the free block that begins at this page; none if none does. A block begins at a multiple of its size, is all of one stretch of RAM, and all its
/// pages but the first are in nobody's use.
fn block(marks: &[u8], map: MemoryMap, page: usize, orders: u64) -> Option<usize> {
    let order = u64::from(marks[page] & !HEAD);
    if marks[page] & HEAD == 0 || order >= orders {
        return None;
    }
    let size = 1_usize.checked_shl(order as u32)?;
    let end = page.checked_add(size)?;
    let below = map.below as usize;
    // Above the hole the guest's numbers are others, but both stretches begin at multiples of any size that a block has.
    let start = if page < below { page } else { page - below };
    let whole = start % size == 0 && end <= marks.len() && (end <= below || page >= below);
    (whole && marks[page + 1..end].iter().all(|mark| *mark == IDLE)).then_some(size)
}
