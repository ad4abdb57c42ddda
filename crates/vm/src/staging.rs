//! Copies of guest pages, taken while they were as the checkpoint wants them.

use fermata_linux::MemoryFile;
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet};
use std::{collections::BTreeMap, io};

/// Pages of one machine by number; of a page copied twice the later copy counts.
#[derive(Default)]
pub(crate) struct Staging {
    bytes: Vec<u8>,
    slots: BTreeMap<PageNumber, usize>,
}

impl Staging {
    /// Makes room for this many more pages now, so that no memory is asked for in the pause.
    pub fn reserve(&mut self, pages: usize) {
        let used = self.bytes.len();
        // Writing is what makes the kernel give us the memory.
        self.bytes.resize(used + pages * PAGE_SIZE, 1);
        self.bytes.truncate(used);
    }

    /// Copies pages as they are now, neighbours together. A page that has a copy is copied over it.
    pub fn copy(&mut self, ram: &MemoryFile, pages: &PageSet) -> io::Result<()> {
        let mut pages = pages.iter().peekable();
        while let Some(first) = pages.next() {
            if let Some(slot) = self.slots.get(&first) {
                ram.read_at(u64::from(first) * PAGE_SIZE as u64, &mut self.bytes[*slot..slot + PAGE_SIZE])?;
                continue;
            }
            let mut count = 1;
            while pages.next_if(|page| *page == first + count && !self.slots.contains_key(page)).is_some() {
                count += 1;
            }
            let at = self.bytes.len();
            self.bytes.resize(at + count as usize * PAGE_SIZE, 0);
            ram.read_at(u64::from(first) * PAGE_SIZE as u64, &mut self.bytes[at..])?;
            self.slots.extend((0..count).map(|page| (first + page, at + page as usize * PAGE_SIZE)));
        }
        Ok(())
    }

    /// Takes in a copy that somebody else made.
    pub fn put(&mut self, page: PageNumber, content: &PageBuf) {
        let at = self.bytes.len();
        match self.slots.get(&page) {
            Some(slot) => self.bytes[*slot..slot + PAGE_SIZE].copy_from_slice(content),
            None => {
                self.bytes.extend_from_slice(content);
                self.slots.insert(page, at);
            }
        }
    }

    /// The copy of a page, if it has one.
    pub fn get(&self, page: PageNumber) -> Option<&PageBuf> {
        self.slots.get(&page).map(|at| self.bytes[*at..at + PAGE_SIZE].try_into().expect("a slot is a page"))
    }

    /// Drops the copy of a page, for there is a newer one elsewhere.
    pub fn forget(&mut self, page: PageNumber) {
        self.slots.remove(&page);
    }

    /// Whether it holds no page.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Every page, in order.
    pub fn iter(&self) -> impl Iterator<Item = (PageNumber, &PageBuf)> {
        self.slots.iter().map(|(page, at)| (*page, self.bytes[*at..at + PAGE_SIZE].try_into().expect("a slot is a page")))
    }
}
