//! What a disk needs of the store, as two small traits: the seam at which tests put their own.

use fermata_store::{Class, Result, Store, Writer};
use fermata_types::{PageBuf, PageName, PageNumber, Root};
use std::{ops::Range, sync::Mutex};

/// Takes one block after the other, from whichever thread has it, and says whether it wants more.
pub type EachBlock<'a> = &'a mut (dyn FnMut(PageNumber, &PageBuf) -> bool + Send);

/// Where the blocks of earlier checkpoints are read from.
pub trait Pages: Send + Sync {
    /// What a page table says of one block. None: it does not name it.
    fn lookup(&self, root: &Root, block: PageNumber) -> Result<Option<PageName>>;

    /// Every block that a page table names, in order.
    fn named(&self, root: &Root, each: &mut dyn FnMut(PageNumber)) -> Result<()>;

    /// The blocks around these that are read along with them at next to no cost. `wanted` says which may be among them.
    fn along(&self, root: &Root, blocks: Range<PageNumber>, wanted: &dyn Fn(PageNumber) -> bool) -> Result<Range<PageNumber>>;

    /// Reads many blocks, in any order.
    fn read(&self, wanted: Vec<(PageNumber, PageName)>, each: EachBlock<'_>) -> Result<()>;
}

impl Pages for Store {
    fn lookup(&self, root: &Root, block: PageNumber) -> Result<Option<PageName>> {
        Store::lookup(self, root, block)
    }

    fn named(&self, root: &Root, each: &mut dyn FnMut(PageNumber)) -> Result<()> {
        self.for_each_page(root, &mut |block, _| {
            each(block);
            Ok(())
        })
    }

    fn along(&self, root: &Root, blocks: Range<PageNumber>, wanted: &dyn Fn(PageNumber) -> bool) -> Result<Range<PageNumber>> {
        Store::along(self, root, blocks, wanted)
    }

    fn read(&self, wanted: Vec<(PageNumber, PageName)>, each: EachBlock<'_>) -> Result<()> {
        let each = Mutex::new(each);
        self.read_pages(wanted, &|block, page| each.lock().is_ok_and(|mut each| each(block, page)))
    }
}

/// Where the blocks of a cut are written.
pub trait Sink {
    /// Puts one block through the sieve.
    fn put(&mut self, block: &PageBuf) -> Result<(PageName, Class)>;

    /// A page table like `base` but for `changes`, sorted by block.
    fn update(&mut self, base: &Root, changes: &[(PageNumber, Option<PageName>)]) -> Result<Root>;
}

impl Sink for Writer {
    fn put(&mut self, block: &PageBuf) -> Result<(PageName, Class)> {
        self.put_page(block)
    }

    fn update(&mut self, base: &Root, changes: &[(PageNumber, Option<PageName>)]) -> Result<Root> {
        self.update_table(base, changes)
    }
}
