//! A guest for tests: a memory with a note, page tables, sections and descriptors in it, and nothing else.

use crate::{ABOVE, Memory, MemoryMap, Told, Unknown, note::IMAGE};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber};
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;
/// Where all memory is mapped, and where the descriptors are.
const DIRECT: u64 = 0xffff_8880_0000_0000;
const DESCRIPTORS: u64 = 0xffff_ea00_0000_0000;
const SECTION_BITS: u32 = 23;
const SECTION_SIZE: u64 = 16;
const SIZE: u64 = 64;
/// Bits of an entry: present, writable, accessed, dirty.
const MAPPED: u64 = 0x63;
/// The kernel puts its things from here on, in pages; the first is the note.
const KERNEL: u64 = 1;
/// The array of pointers to arrays of sections, and the descriptors.
const ROOTS: u64 = 64 * PAGE;
const ROOTS_LEN: u64 = 2048;
const FIRST_DESCRIPTOR: u64 = 80 * PAGE;
/// So much is the kernel's: the pages from here on are a test's.
pub const USED: u64 = 128;

/// Which kernel is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Linux 6.1: types of pages are bits that are clear, slab is a flag.
    Old,
    /// Linux 6.12: types of pages are the top byte.
    New,
}

/// What a descriptor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Flags.
    pub flags: u64,
    /// Of a page that belongs with another: its descriptor's address and 1.
    pub compound_head: u64,
    /// Whom it belongs to.
    pub mapping: u64,
    /// The order of a free block.
    pub private: u64,
    /// The map count, or a type.
    pub mapcount: u32,
    /// How many use it.
    pub refcount: u32,
}

impl Descriptor {
    /// A page of the kernel.
    pub const KERNEL: Self = Self { flags: 0, compound_head: 0, mapping: 0, private: 0, mapcount: u32::MAX, refcount: 1 };
    /// A page that nobody uses.
    pub const IDLE: Self = Self { refcount: 0, ..Self::KERNEL };
    /// A page of a program's own.
    pub const ANONYMOUS: Self = Self { mapping: 0x1001, mapcount: 0, ..Self::KERNEL };
}

/// The guest.
#[derive(Clone)]
pub struct Sample {
    /// Its RAM.
    pub ram: Vec<Arc<PageBuf>>,
    /// Where that is.
    pub map: MemoryMap,
    /// What the machine knows of it.
    pub told: Told,
    /// How many pages were read.
    pub reads: u64,
    version: Version,
    top: u64,
    /// The next page of RAM that is not used for anything.
    next: u64,
    zone: u64,
}

impl Memory for Sample {
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown> {
        self.reads += 1;
        into.copy_from_slice(&**self.ram.get(page as usize).ok_or("there is no such page")?);
        Ok(())
    }
}

impl Sample {
    /// A guest whose pages are all the kernel's.
    pub fn new(version: Version, pages: u64, below: u64) -> Self {
        let map = MemoryMap::new(pages, below).expect("a possible memory");
        let mut sample = Self {
            // One page of zeros for all, as long as nobody writes to them.
            ram: std::iter::repeat_n(Arc::new([0; PAGE_SIZE]), pages as usize).collect(),
            map,
            told: Told { note: (KERNEL * PAGE, 2 * PAGE), tables: None },
            reads: 0,
            version,
            top: 0,
            next: KERNEL + 2,
            zone: 0,
        };
        sample.top = sample.take() * PAGE;
        sample.map_page(IMAGE + sample.top, sample.top);
        sample.sections();
        sample.nodes();
        let text = sample.text();
        sample.write_note(&text);
        // A process of its own tables, which have the kernel's part of the top one.
        let process = sample.take();
        sample.ram[process as usize] = sample.ram[(sample.top / PAGE) as usize].clone();
        sample.told.tables = Some(vec![process * PAGE]);
        sample
    }

    /// The mark of a free block.
    pub fn buddy(&self) -> u32 {
        match self.version {
            Version::Old => !0x80,
            Version::New => 0xf000_0000,
        }
    }

    /// The type of a page table.
    pub fn table(&self) -> u32 {
        match self.version {
            Version::Old => !0x200,
            Version::New => 0xf200_0000,
        }
    }

    /// A page of the allocator of small objects.
    pub fn slab(&self) -> Descriptor {
        match self.version {
            Version::Old => Descriptor { flags: 1 << 9, ..Descriptor::KERNEL },
            Version::New => Descriptor { mapcount: 0xf500_0000, ..Descriptor::KERNEL },
        }
    }

    /// A page of a file.
    pub fn cache(&self, dirty: bool) -> Descriptor {
        let lru = if self.version == Version::Old { 4 } else { 5 };
        Descriptor { flags: 1 << lru | u64::from(dirty) << (lru - 1), mapping: 0xffff_8880_0000_1000, ..Descriptor::KERNEL }
    }

    /// The address of a page's descriptor.
    pub fn descriptor_address(&self, page: u64) -> u64 {
        DESCRIPTORS + self.frame(page) * SIZE
    }

    /// Writes a descriptor.
    pub fn set(&mut self, page: u64, of: Descriptor) {
        let at = self.descriptor_at(page);
        for (offset, word) in [(0, of.flags), (8, of.compound_head), (24, of.mapping), (40, of.private)] {
            self.write(at + offset, &word.to_le_bytes());
        }
        self.write(at + 48, &of.mapcount.to_le_bytes());
        self.write(at + 52, &of.refcount.to_le_bytes());
    }

    /// The page in which a page's descriptor lies.
    pub fn source(&self, page: u64) -> PageNumber {
        (self.descriptor_at(page) / PAGE) as PageNumber
    }

    /// Makes a free block, and the kernel count it.
    pub fn free(&mut self, page: u64, order: u32) {
        for page in page..page + (1 << order) {
            self.set(page, Descriptor::IDLE);
        }
        self.set(page, Descriptor { private: order.into(), mapcount: self.buddy(), ..Descriptor::IDLE });
        let counted = self.counted() + (1 << order);
        self.count(counted);
    }

    /// What the kernel counts.
    pub fn counted(&self) -> u64 {
        let (page, at) = ((self.zone / PAGE) as usize, (self.zone % PAGE) as usize);
        u64::from_le_bytes(self.ram[page][at..at + 8].try_into().expect("eight bytes"))
    }

    /// Has the kernel count so many free pages.
    pub fn count(&mut self, pages: u64) {
        self.write(self.zone, &pages.to_le_bytes());
    }

    /// Replaces the note's text.
    pub fn write_note(&mut self, text: &str) {
        let mut note = vec![0; 2 * PAGE_SIZE];
        note[..4].copy_from_slice(&11_u32.to_le_bytes());
        note[4..8].copy_from_slice(&(text.len() as u32).to_le_bytes());
        note[12..23].copy_from_slice(b"VMCOREINFO\0");
        note[24..24 + text.len()].copy_from_slice(text.as_bytes());
        self.write(KERNEL * PAGE, &note);
    }

    /// The note's text.
    pub fn text(&self) -> String {
        let types = match self.version {
            Version::Old => "NUMBER(PG_lru)=4\nNUMBER(PG_slab)=9\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n",
            Version::New => "NUMBER(PG_lru)=5\nNUMBER(PAGE_SLAB_MAPCOUNT_VALUE)=-184549376\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-268435456\n",
        };
        format!(
            "OSRELEASE=6.0\nPAGESIZE=4096\nSYMBOL(mem_section)={:x}\nLENGTH(mem_section)={ROOTS_LEN}\nSIZE(mem_section)={SECTION_SIZE}\n\
             OFFSET(mem_section.section_mem_map)=0\nNUMBER(SECTION_SIZE_BITS)={SECTION_BITS}\nSIZE(page)={SIZE}\nOFFSET(page.flags)=0\n\
             OFFSET(page._refcount)=52\nOFFSET(page._mapcount)=48\nOFFSET(page.mapping)=24\nOFFSET(page.private)=40\n\
             OFFSET(page.compound_head)=8\nLENGTH(zone.free_area)=11\nNUMBER(PG_swapbacked)=19\n{types}SYMBOL(contig_page_data)={:x}\n\
             OFFSET(pglist_data.node_zones)=0\nOFFSET(pglist_data.nr_zones)=2048\nSIZE(zone)=1024\nOFFSET(zone.vm_stat)=512\n\
             NUMBER(NR_FREE_PAGES)=0\nNUMBER(phys_base)=0\nSYMBOL(init_top_pgt)={:x}\nNUMBER(pgtable_l5_enabled)=0\n",
            DIRECT + ROOTS,
            DIRECT + self.zone - 512,
            IMAGE + self.top,
        )
    }

    fn frame(&self, page: u64) -> u64 {
        if page < self.map.below { page } else { page - self.map.below + ABOVE }
    }

    fn descriptor_at(&self, page: u64) -> u64 {
        FIRST_DESCRIPTOR + page * SIZE
    }

    fn take(&mut self) -> u64 {
        self.next += 1;
        assert!(self.next < ROOTS / PAGE, "there is little room for page tables");
        self.next - 1
    }

    /// Writes to its RAM.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            let at = at + offset as u64;
            Arc::make_mut(&mut self.ram[(at / PAGE) as usize])[(at % PAGE) as usize] = *byte;
        }
    }

    fn read(&self, at: u64) -> u64 {
        let (page, at) = ((at / PAGE) as usize, (at % PAGE) as usize);
        u64::from_le_bytes(self.ram[page][at..at + 8].try_into().expect("eight bytes"))
    }

    fn map_page(&mut self, address: u64, physical: u64) {
        let mut table = self.top;
        for level in [3, 2, 1] {
            let at = table + (address >> (12 + 9 * level) & 511) * 8;
            if self.read(at) == 0 {
                let new = self.take() * PAGE;
                self.write(at, &(new | MAPPED).to_le_bytes());
            }
            table = self.read(at) & !0xfff;
        }
        self.write(table + (address >> 12 & 511) * 8, &(physical | MAPPED).to_le_bytes());
    }

    fn sections(&mut self) {
        (0..4).for_each(|page| self.map_page(DIRECT + ROOTS + page * PAGE, ROOTS + page * PAGE));
        let mut next = ROOTS + 4 * PAGE;
        for page in (0..self.map.pages()).step_by(512) {
            let section = self.frame(page) >> (SECTION_BITS - 12);
            let (root, index) = (section / (PAGE / SECTION_SIZE), section % (PAGE / SECTION_SIZE));
            let pointer = ROOTS + root * 8;
            if self.read(pointer) == 0 {
                self.map_page(DIRECT + next, next);
                self.write(pointer, &(DIRECT + next).to_le_bytes());
                next += PAGE;
            }
            let sections = self.read(pointer) - DIRECT;
            // Present, with descriptors, online.
            self.write(sections + index * SECTION_SIZE, &(DESCRIPTORS | 7).to_le_bytes());
        }
        for page in (0..self.map.pages()).step_by((PAGE / SIZE) as usize) {
            let at = self.descriptor_at(page);
            self.map_page(self.descriptor_address(page), at);
        }
        (0..self.map.pages()).for_each(|page| self.set(page, Descriptor::KERNEL));
    }

    fn nodes(&mut self) {
        let node = self.take() * PAGE;
        self.map_page(DIRECT + node, node);
        self.write(node + 2048, &1_u32.to_le_bytes());
        self.zone = node + 512;
    }
}
