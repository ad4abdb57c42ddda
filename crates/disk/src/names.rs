//! What the blocks of a disk are called in the checkpoint under way, found without a look at their content.
//!
//! A block that was written since the image is named by the page table of the disk's cut, a block of the golden image by the names that the store learned when the
//! image was added. Only when the store has lost those is the block read; or when its file system has freed it, for then the page table has no name for it, and a
//! page of memory may equal it all the same.

use crate::{Disk, Error, Result, overlay::Kept};
use fermata_store::{Class, ImageReader as _, Writer};
use fermata_types::{PAGE_SIZE, PageName, PageNumber, ZERO_PAGE};

impl Disk {
    /// Fails if the golden image is not what it was when the disk was made. To be asked before and after names are taken.
    pub fn check_image(&self) -> Result<()> {
        self.golden().map_or(Ok(()), |golden| golden.check_unchanged())
    }

    /// The name of a block at the instant of the last cut, and what that makes of a page that equals it. The cut must be saved already, by this writer.
    ///
    /// What the name stands for is there once the writer's checkpoint is.
    pub fn block_name(&self, block: PageNumber, writer: &mut Writer) -> Result<(PageName, Class)> {
        match self.freed_block(block)? {
            Some(Kept::Named(ZERO_PAGE)) => return Ok((ZERO_PAGE, Class::Zero)),
            Some(Kept::Named(name)) => return Ok((name, Class::Mapped)),
            Some(Kept::Content(content)) => return Ok(writer.put_page(&content)?),
            None => {}
        }
        let root = self.saved().ok_or_else(|| Error::Refused("the disk is asked for names before its cut is saved".into()))?;
        match (writer.lookup(&root, block)?, self.golden()) {
            (Some(ZERO_PAGE), _) => Ok((ZERO_PAGE, Class::Zero)),
            (Some(name), _) => Ok((name, Class::Mapped)),
            (None, Some(golden)) if u64::from(block) < golden.blocks() => {
                let name = writer.store().image_block(&golden.id(), block);
                match name {
                    Some(ZERO_PAGE) => return Ok((ZERO_PAGE, Class::Zero)),
                    Some(name) if writer.claim(&name)? => return Ok((name, Class::Mapped)),
                    _ => {}
                }
                let mut content = [0; PAGE_SIZE];
                let failed = Error::transfer("read the golden image", u64::from(block) * PAGE_SIZE as u64);
                golden.read_at(u64::from(block) * PAGE_SIZE as u64, &mut content).map_err(failed)?;
                Ok(writer.put_page(&content)?)
            }
            (None, _) => Ok((ZERO_PAGE, Class::Zero)),
        }
    }
}
