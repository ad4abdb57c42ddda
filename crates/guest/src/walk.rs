//! Reads a guest's memory by its physical addresses, and by the virtual ones of its kernel (Intel SDM volume 3, section 4.5).

use crate::{Memory, MemoryMap, Unknown};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet};
use std::collections::HashMap;

/// Pages kept: page tables and whatever else is read again at once.
const PAGES_KEPT: usize = 64;
const PAGE: u64 = PAGE_SIZE as u64;
const PRESENT: u64 = 1;
/// An entry that maps a large page instead of pointing to a table.
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// What is compared of an entry: the processor itself writes to others of its bits.
const KEPT: u64 = PRESENT | ADDRESS;
/// Bits of a virtual address that each table decides.
const TABLE_BITS: u32 = 9;
const ENTRIES: u64 = 1 << TABLE_BITS;
const PAGE_BITS: u32 = 12;
/// Levels at which there are large pages: 2 MiB and 1 GiB.
const LARGE_LEVELS: std::ops::RangeInclusive<u32> = 1..=2;

/// Reads one guest. Remembers which pages it looked at.
pub(crate) struct Reader<'m> {
    memory: &'m mut dyn Memory,
    map: MemoryMap,
    kept: HashMap<PageNumber, Box<PageBuf>>,
    pub looked_at: PageSet,
}

/// The page tables of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tables {
    /// Guest-physical address of the top one.
    pub top: u64,
    /// Levels below it, the lowest not counted: 3 or 4.
    pub depth: u32,
}

impl Tables {
    /// The entry of the top table that an address belongs to.
    pub fn top_index(self, address: u64) -> u64 {
        index(address, self.depth)
    }
}

fn index(address: u64, level: u32) -> u64 {
    address >> (PAGE_BITS + level * TABLE_BITS) & (ENTRIES - 1)
}

impl<'m> Reader<'m> {
    pub fn new(memory: &'m mut dyn Memory, map: MemoryMap) -> Self {
        Self { memory, map, kept: HashMap::new(), looked_at: PageSet::new() }
    }

    /// The page of RAM at a guest-physical address; none if there is no RAM.
    pub fn page_at(&self, physical: u64) -> Option<PageNumber> {
        self.map.page(physical / PAGE)
    }

    fn page(&mut self, page: PageNumber) -> Result<&PageBuf, Unknown> {
        if !self.kept.contains_key(&page) {
            if self.kept.len() >= PAGES_KEPT {
                self.kept.clear();
            }
            let mut content = Box::new([0; PAGE_SIZE]);
            self.memory.read_page(page, &mut content)?;
            self.looked_at.insert(page);
            self.kept.insert(page, content);
        }
        Ok(&self.kept[&page])
    }

    /// Reads bytes at a guest-physical address.
    pub fn physical(&mut self, mut address: u64, mut into: &mut [u8]) -> Result<(), Unknown> {
        while !into.is_empty() {
            let page = self.page_at(address).ok_or_else(|| format!("it points to address {address:#x}, where it has no memory"))?;
            let from = (address % PAGE) as usize;
            let (now, later) = into.split_at_mut(into.len().min(PAGE_SIZE - from));
            now.copy_from_slice(&self.page(page)?[from..from + now.len()]);
            address += now.len() as u64;
            into = later;
        }
        Ok(())
    }

    pub fn physical_word(&mut self, address: u64) -> Result<u64, Unknown> {
        let mut bytes = [0; 8];
        self.physical(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The guest-physical address behind a virtual one; none if nothing is mapped there.
    pub fn translate(&mut self, tables: Tables, address: u64) -> Result<Option<u64>, Unknown> {
        let mut table = tables.top;
        for level in (0..=tables.depth).rev() {
            let entry = self.physical_word(table.saturating_add(index(address, level) * 8))?;
            if entry & PRESENT == 0 {
                return Ok(None);
            }
            let below = PAGE_BITS + level * TABLE_BITS;
            if level == 0 || LARGE_LEVELS.contains(&level) && entry & LARGE != 0 {
                let offset = (1 << below) - 1;
                return Ok(Some(entry & ADDRESS & !offset | address & offset));
            }
            table = entry & ADDRESS;
        }
        Ok(None)
    }

    /// Reads bytes at a virtual address.
    pub fn virtually(&mut self, tables: Tables, mut address: u64, mut into: &mut [u8]) -> Result<(), Unknown> {
        while !into.is_empty() {
            let physical = self
                .translate(tables, address)?
                .ok_or_else(|| format!("it points to address {address:#x}, where it has mapped nothing"))?;
            let (now, later) = into.split_at_mut(into.len().min((PAGE - address % PAGE) as usize));
            self.physical(physical, now)?;
            address = address.wrapping_add(now.len() as u64);
            into = later;
        }
        Ok(())
    }

    pub fn word(&mut self, tables: Tables, address: u64) -> Result<u64, Unknown> {
        let mut bytes = [0; 8];
        self.virtually(tables, address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The entries of the kernel's own top table for these addresses.
    pub fn top_entries(&mut self, tables: Tables, addresses: [u64; 2]) -> Result<TopEntries, Unknown> {
        let mut entries = [(0, 0); 2];
        for (entry, address) in entries.iter_mut().zip(addresses) {
            let at = tables.top_index(address) * 8;
            *entry = (at as usize, self.physical_word(tables.top.saturating_add(at))? & KEPT);
        }
        Ok(TopEntries(entries))
    }

    /// Whether somebody's page tables, by his CR3, have the same top entries.
    pub fn shares(&mut self, cr3: u64, entries: TopEntries) -> Result<bool, Unknown> {
        let theirs = cr3 & ADDRESS;
        let mut result = Ok(false);
        // A program may run on tables with next to nothing of the kernel; then the full ones are in the page before (Linux `arch/x86/mm/pti.c`).
        for theirs in [theirs, theirs & !PAGE] {
            let Some(page) = self.page_at(theirs) else { continue };
            match self.page(page) {
                Ok(content) if entries.are_in(content) => return Ok(true),
                Ok(_) => {}
                Err(why) => result = Err(why),
            }
        }
        result
    }
}

/// Entries of a top table by which a kernel's is known: where they are, and what they point to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopEntries([(usize, u64); 2]);

impl TopEntries {
    /// Whether a page has them all.
    pub fn are_in(self, page: &PageBuf) -> bool {
        self.0.iter().all(|(at, entry)| {
            let theirs = u64::from_le_bytes(page[*at..at + 8].try_into().expect("eight bytes"));
            entry & PRESENT != 0 && theirs & KEPT == *entry
        })
    }
}
