//! Reads from outside what the pages of a Linux guest are for, as programs do that filter crash dumps: the kernel has a descriptor for each page of its
//! memory (`struct page`), and a note (VMCOREINFO) says where they are and how they are laid out. The guest runs nothing of ours and is not asked.
//!
//! - `survey`: [`survey`] reads the descriptors into a [`Survey`]
//! - `note`: the note
//! - `interrupt`: the pages that a processor's next interrupt needs
//! - `walk`: reads memory by the kernel's virtual addresses
//! - `fuzzing`: what fuzzers call, only with that feature; `sample`: a guest for tests
//!
//! All that is read may have been put there by an enemy: every address is checked, every number has a limit, and whoever lies gets wrong answers about
//! himself, or none. What cannot be told is said, with the reason, and never guessed.
//!
//! This room does no I/O and knows neither QEMU nor checkpoints: memory is handed in through [`Memory`], and where the note is through [`Told`].

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod note;
#[cfg(any(test, feature = "fuzzing"))]
mod sample;
mod survey;
#[cfg(test)]
mod tests;
mod walk;

pub use interrupt::{InterruptRegisters, interrupt_pages};
pub use survey::{Survey, survey};

use fermata_types::{PAGE_SIZE, PageBuf, PageNumber};
use std::ops::Range;

/// Why the pages cannot be told apart, in words for people.
pub type Unknown = String;

/// The memory of a guest at one instant.
pub trait Memory {
    /// Reads a page of RAM. An error says why it cannot be had.
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown>;
}

/// Where the RAM is among the addresses that the guest sees: from 0 on, and what finds no place below the hole for devices from 4 GiB on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryMap {
    /// Pages of RAM.
    pages: u64,
    /// How many of them are below the hole.
    below: u64,
}

/// Pages of the stretches in which RAM is divided.
const STRETCH: u64 = 512;
/// Pages of 512 GiB.
const PAGES_MAX: u64 = 1 << 27;
/// Where the RAM goes on above the hole, in pages.
const ABOVE: u64 = (4 << 30) / PAGE_SIZE as u64;

impl MemoryMap {
    /// A RAM of this many pages, so many of them below the hole, in whole stretches of 2 MiB. None if that cannot be: they would reach into where the
    /// RAM goes on, or there are more than 512 GiB. From about a TiB on, QEMU may move what is above the hole.
    pub fn new(pages: u64, below: u64) -> Option<Self> {
        (below <= pages && below <= ABOVE && below.is_multiple_of(STRETCH) && pages <= PAGES_MAX).then_some(Self { pages, below })
    }

    /// Pages of RAM.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The page of RAM at a page number of the guest's.
    fn page(&self, frame: u64) -> Option<PageNumber> {
        let page = if frame < self.below { frame } else { frame.checked_sub(ABOVE)?.checked_add(self.below)? };
        (page < self.pages).then_some(page as PageNumber)
    }

    /// The guest's number of a page of RAM.
    pub fn frame(&self, page: PageNumber) -> u64 {
        let page = u64::from(page);
        if page < self.below { page } else { page - self.below + ABOVE }
    }

    /// The two stretches of RAM, by the guest's page numbers.
    pub fn frames(&self) -> [Range<u64>; 2] {
        [0..self.below, ABOVE..ABOVE + (self.pages - self.below)]
    }
}

/// What somebody who cannot be deceived by the guest's memory knows of the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// The guest-physical address of the note, and its length.
    pub note: (u64, u64),
    /// The page tables that each processor with paging is running on: its CR3. None if nobody knows; then the note is believed, and what it says is no more than
    /// a guess.
    pub tables: Option<Vec<u64>>,
}
