//! What a fuzzer may feed with any bytes: the device behind its ring, the vhost-user protocol, and file systems. See `fuzz/README.md`.

mod ext4;
mod guest;
mod protocol;

pub use ext4::ext4;
pub use guest::ring;
pub use protocol::session;

use crate::{Disk, DiskOptions, EachBlock, Golden, Pages};
use fermata_store::Result as StoreResult;
use fermata_types::{NodeName, PAGE_SIZE, PageBuf, PageName, PageNumber, Root, ZERO_PAGE};
use std::{ops::Range, path::Path, sync::Arc};

/// Bytes of the disk: its last block is cut short.
const DISK: u64 = (1 << 20) + 512;
const IMAGE: usize = 256 << 10;

/// A checkpoint that names every third block, zeros another third, and leaves the rest to the image.
struct Thirds;

fn page_of(block: PageNumber) -> PageBuf {
    [block as u8 | 1; PAGE_SIZE]
}

impl Pages for Thirds {
    fn lookup(&self, _root: &Root, block: PageNumber) -> StoreResult<Option<PageName>> {
        Ok(match block % 3 {
            0 => Some(PageName(*blake3::hash(&page_of(block)).as_bytes())),
            1 => Some(ZERO_PAGE),
            _ => None,
        })
    }

    fn named(&self, root: &Root, each: &mut dyn FnMut(PageNumber)) -> StoreResult<()> {
        (0..root.pages as PageNumber).filter(|block| block % 3 != 2).for_each(each);
        Ok(())
    }

    fn along(&self, _: &Root, blocks: Range<PageNumber>, wanted: &dyn Fn(PageNumber) -> bool) -> StoreResult<Range<PageNumber>> {
        let start = blocks.start.checked_sub(1).filter(|block| wanted(*block)).unwrap_or(blocks.start);
        Ok(start..blocks.end)
    }

    fn read(&self, wanted: Vec<(PageNumber, PageName)>, each: EachBlock<'_>) -> StoreResult<()> {
        for (block, _) in wanted {
            if !each(block, &page_of(block)) {
                break;
            }
        }
        Ok(())
    }
}

fn checkpoint() -> Root {
    Root { pages: DISK.div_ceil(PAGE_SIZE as u64), node: Some(NodeName([1; 32])) }
}

fn disk(place: &Path) -> Arc<Disk> {
    let path = place.join("image");
    let content: Vec<u8> = (0..IMAGE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, content).expect("the temporary directory takes a small file");
    let golden = Golden::open(&path, None, place, &mut |_| {}).expect("a raw image");
    let options = DiskOptions {
        golden: Some(Arc::new(golden)),
        size: Some(DISK),
        root: Some(checkpoint()),
        pages: Arc::new(Thirds),
        overlay_dir: place.to_owned(),
        read_only: false,
        drop_freed: true,
    };
    Arc::new(Disk::new(options).expect("a disk"))
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn no_ring_breaks_the_device() {
        replay("ring", 3_000, super::ring);
    }

    #[test]
    fn no_file_system_breaks_its_reader() {
        replay("ext4", 4_000, super::ext4);
    }

    #[test]
    fn no_message_breaks_a_session() {
        replay("session", 2_000, super::session);
    }
}
