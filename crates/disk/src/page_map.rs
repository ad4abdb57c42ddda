//! Which pages of a machine's memory equal a block of one of its disks, learned from the requests that moved one into the other (Park, Egger and Lee 2011,
//! *Fast and Space-Efficient Virtual Machine Checkpointing*, section 5.1).
//!
//! ```text
//!   begin: the page's entry goes, it is under way ──> its writers are watched ──> the transfer ──> finish: the entry is made
//!
//!   an entry goes when      the page is written through QEMU, and whoever watches says so     PageMap::forget
//!                           a backend writes to the page otherwise                            PageMap::forget_stretch
//!                           the block is written, zeroed or discarded (also under way)        PageMap::block_changes
//! ```
//!
//! What happens to a page under way leaves it without an entry; so does a second transfer of it at the same time. The page is watched before a byte is moved, so
//! a write that races with the transfer is told of later, and the entry goes then. So the map is right at one instant only: with the machine and the rings
//! stopped, and after everybody was heard. Before that it may be asked for a guess.
//!
//! There is one entry for a page at most, and memory for it is taken with the size of the guest's memory: 16 bytes a page, and about 20 more for each entry.

use fermata_types::{Mapped, PageNumber, PageSet};
use fermata_vhost::WriteWatch;
use std::{
    collections::HashMap,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

/// Neighbouring pages and neighbouring blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub page: PageNumber,
    pub block: PageNumber,
    pub count: u32,
}

impl Run {
    pub fn pages(&self) -> Range<PageNumber> {
        self.page..self.page + self.count
    }
}

/// A transfer under way.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transfer(u64);

/// The map of one machine, over all its disks.
#[derive(Debug, Default)]
pub struct PageMap(Mutex<State>);

/// A block: the number of its disk, and its own.
type Place = (u32, PageNumber);

/// No page. Page numbers end before it: 16 TiB less one page.
const NONE: PageNumber = PageNumber::MAX;

#[derive(Debug, Default)]
struct State {
    /// By page: the block that it equals. Pages that are beyond the end have none.
    entries: Vec<Entry>,
    /// By block: the first of the pages that equal it; the others follow by the links of their entries.
    blocks: HashMap<Place, PageNumber>,
    under_way: HashMap<PageNumber, UnderWay>,
    transfers: u64,
    /// Pages whose entries went since somebody asked; none: nobody has, or all went.
    lost: Option<PageSet>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The disk plus one; zero for a page that equals no block.
    disk: u32,
    block: PageNumber,
    next: PageNumber,
    previous: PageNumber,
}

const EMPTY: Entry = Entry { disk: 0, block: 0, next: NONE, previous: NONE };

#[derive(Debug)]
struct UnderWay {
    /// How many transfers of the page there are.
    count: u32,
    /// The transfer that will make an entry, unless something happens to the page.
    by: Option<u64>,
}

impl PageMap {
    /// A map that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Pages that were written through QEMU, or that somebody else wrote to: they equal no block any more.
    pub fn forget(&self, pages: &PageSet) {
        self.with(|state| pages.iter().for_each(|page| state.forget(page)));
    }

    /// The same for neighbouring pages.
    pub fn forget_stretch(&self, pages: Range<PageNumber>) {
        self.with(|state| pages.for_each(|page| state.forget(page)));
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.with(|state| {
            state.entries.fill(EMPTY);
            state.blocks.clear();
            state.lost = None;
            state.under_way.values_mut().for_each(|under_way| under_way.by = None);
        });
    }

    /// Those of the pages that equal a block, in order.
    pub fn find(&self, pages: &PageSet) -> Vec<Mapped> {
        self.with(|state| pages.iter().filter_map(|page| state.get(page)).collect())
    }

    /// Pages that equal no block any more, or another one, since this was last asked; none: any page may be one. What takes long is done when an entry goes, so
    /// that in the pause nobody has to look through all that is known.
    pub fn lost(&self) -> Option<PageSet> {
        self.with(|state| state.lost.replace(PageSet::new()))
    }

    /// Begins a transfer of these pages.
    pub(crate) fn begin(&self, runs: &[Run]) -> Transfer {
        self.with(|state| {
            state.transfers += 1;
            let transfer = state.transfers;
            for page in runs.iter().flat_map(Run::pages) {
                state.unlink(page);
                let under_way = state.under_way.entry(page).or_insert(UnderWay { count: 0, by: Some(transfer) });
                under_way.count += 1;
                if under_way.count > 1 {
                    under_way.by = None;
                }
            }
            Transfer(transfer)
        })
    }

    /// Ends a transfer. If it was done well, `disk` tells with which disk: from now on its pages equal its blocks.
    pub(crate) fn finish(&self, transfer: Transfer, runs: &[Run], disk: Option<u32>) {
        self.with(|state| {
            for run in runs {
                for (page, block) in run.pages().zip(run.block..) {
                    let Some(under_way) = state.under_way.get_mut(&page) else { continue };
                    let undisturbed = under_way.by == Some(transfer.0);
                    under_way.count -= 1;
                    if under_way.count == 0 {
                        state.under_way.remove(&page);
                    }
                    if let Some(disk) = disk.filter(|_| undisturbed) {
                        state.link(page, disk, block);
                    }
                }
            }
        });
    }

    /// These blocks of a disk are about to hold something else, or just began to: no page equals them.
    pub(crate) fn block_changes(&self, disk: u32, blocks: Range<PageNumber>) {
        self.with(|state| {
            if blocks.len() <= state.blocks.len() {
                blocks.for_each(|block| state.forget_block((disk, block)));
            } else {
                let gone: Vec<_> = state.blocks.keys().copied().filter(|(of, block)| *of == disk && blocks.contains(block)).collect();
                gone.into_iter().for_each(|place| state.forget_block(place));
            }
        });
    }

    /// Does something with the map, unless it is off.
    ///
    /// A panic here may leave links that lead astray, and turns the map off: from then on it knows nothing and learns nothing. It only saves work, so the disk
    /// serves on without. To begin anew with an empty one would not do, for nobody would know what is under way.
    fn with<T: Default>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let Ok(mut state) = self.0.lock() else { return T::default() };
        // The lock goes along, so that the panic spoils it.
        catch_unwind(AssertUnwindSafe(move || work(&mut state))).unwrap_or_else(|_| {
            tracing::error!(
                "the page map panicked, which is a fault of Fermata's: it is off, and checkpoints look at every page that was written"
            );
            T::default()
        })
    }
}

/// What a back end writes into a page otherwise than whole from a block.
impl WriteWatch for PageMap {
    fn written(&self, pages: Range<PageNumber>) {
        self.forget_stretch(pages);
    }
}

impl State {
    fn get(&self, page: PageNumber) -> Option<Mapped> {
        let entry = self.entries.get(page as usize).filter(|entry| entry.disk > 0)?;
        Some(Mapped { page, disk: entry.disk - 1, block: entry.block })
    }

    fn forget(&mut self, page: PageNumber) {
        self.unlink(page);
        if !self.under_way.is_empty()
            && let Some(under_way) = self.under_way.get_mut(&page)
        {
            under_way.by = None;
        }
    }

    fn forget_block(&mut self, place: Place) {
        while let Some(page) = self.blocks.get(&place).copied() {
            self.unlink(page);
        }
    }

    /// Makes the entry of a page that has none.
    fn link(&mut self, page: PageNumber, disk: u32, block: PageNumber) {
        if page as usize >= self.entries.len() {
            // In steps, up to the size of the guest's memory.
            self.entries.resize((page as usize + 1).next_multiple_of(4096), EMPTY);
        }
        let next = self.blocks.insert((disk, block), page).unwrap_or(NONE);
        if next != NONE {
            self.entries[next as usize].previous = page;
        }
        self.entries[page as usize] = Entry { disk: disk + 1, block, next, previous: NONE };
    }

    fn unlink(&mut self, page: PageNumber) {
        let Some(entry) = self.entries.get_mut(page as usize).filter(|entry| entry.disk > 0) else { return };
        let Entry { disk, block, next, previous } = std::mem::replace(entry, EMPTY);
        if let Some(lost) = &mut self.lost {
            lost.insert(page);
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        match (previous, next) {
            (NONE, NONE) => _ = self.blocks.remove(&(disk - 1, block)),
            (NONE, next) => _ = self.blocks.insert((disk - 1, block), next),
            (previous, next) => self.entries[previous as usize].next = next,
        }
    }
}

#[cfg(test)]
mod tests;
