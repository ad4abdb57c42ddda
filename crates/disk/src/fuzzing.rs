//! What a fuzzer may feed with any bytes: the device behind its ring, the vhost-user protocol, and file systems. See `fuzz/README.md`.
//!
//! Bytes become a short program: what the guest, or QEMU, does next. So a fuzzer that flips a bit changes one step, and most steps mean something.

mod ext4;
mod guest;
mod protocol;

pub use ext4::ext4;
pub use guest::ring;
pub use protocol::session;

use crate::{Disk, DiskOptions, Golden, Pages};
use fermata_store::Result as StoreResult;
use fermata_types::{NodeName, PAGE_SIZE, PageBuf, PageName, PageNumber, Root, ZERO_PAGE};
use std::{path::Path, sync::Arc};

/// Bytes of the disk: its last block is cut short.
const DISK: u64 = (1 << 20) + 512;
const IMAGE: usize = 256 << 10;
/// Guest RAM: so much at address 0, and half of it at 4 GiB.
const LOW: u64 = 64 << 10;
const HIGH: u64 = 4 << 30;
/// Where QEMU would have it.
const QEMU: u64 = 0x7000_0000_0000;

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

    fn read(&self, wanted: Vec<(PageNumber, PageName)>, each: &mut dyn FnMut(PageNumber, &PageBuf) -> bool) -> StoreResult<()> {
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

/// The bytes that are left of an input. Behind their end there are zeros.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn some(&mut self, count: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        some
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let some = self.some(N);
        array[..some.len()].copy_from_slice(some);
        array
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A guest address: mostly one in RAM, often at an edge of it.
    fn address(&mut self) -> u64 {
        match self.byte() % 8 {
            0..=3 => self.u16().into(),
            4 => HIGH + u64::from(self.u16()) % (LOW / 2),
            5 => LOW - u64::from(self.byte()),
            6 => HIGH + LOW / 2 - u64::from(self.byte()),
            _ => self.u64(),
        }
    }
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
