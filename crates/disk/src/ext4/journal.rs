//! The journal (jbd2): which blocks of the file system have a newer, committed content in it, as a recovery would find them.

use super::{Known, Layout, Source, Unclear, be16, be32, crc32c::crc32c, unclear};
use std::collections::HashMap;

const MAGIC: u32 = 0xc03b_3998;
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_V2: u32 = 4;
const REVOKE: u32 = 5;
/// Magic, kind and sequence number, at the start of each block that is not a copy.
pub const HEADER: usize = 12;

const WIDE: u32 = 0x2;
const CSUM_V2: u32 = 0x8;
const CSUM_V3: u32 = 0x10;
/// Revocations, wide block numbers, checksums. Not asynchronous commits, whose record may be there before what it commits, and not fast commits.
const INCOMPAT_KNOWN: u32 = 0x1 | WIDE | CSUM_V2 | CSUM_V3;
const CRC32C: u8 = 4;
/// What a journal says of blocks of the file system, in copies and revocations: a journal of 4 GiB in blocks of 4 KiB has no more copies.
const ENTRIES_MAX: usize = 1 << 20;

/// The transaction whose commit record begins with these bytes, if they are a commit record.
pub fn committed(header: &[u8; HEADER]) -> Option<u32> {
    (be32(header, 0) == MAGIC && be32(header, 4) == COMMIT).then(|| be32(header, 8))
}

/// A copy of a block in the journal.
#[derive(Debug, Clone, Copy)]
struct Copy {
    /// The block of the journal.
    within: u32,
    /// The copy began like a block of the journal itself, and has zeros there.
    escaped: bool,
    sequence: u32,
    checksum: u32,
}

/// A file system as a recovery would leave it.
pub struct Recovered<'a> {
    source: &'a dyn Source,
    layout: &'a Layout,
    journal: Superblock,
    copies: HashMap<u64, Copy>,
    /// The newest transaction with a commit record.
    pub newest: u32,
}

struct Superblock {
    blocks: u32,
    first: u32,
    sequence: u32,
    start: u32,
    incompat: u32,
    seed: u32,
}

impl Superblock {
    fn read(source: &dyn Source, layout: &Layout) -> Known<Self> {
        let mut bytes = [0; 1024];
        source.read(layout.byte(layout.journal_block(0)?), &mut bytes)?;
        let (blocks, first, start) = (be32(&bytes, 0x10), be32(&bytes, 0x14), be32(&bytes, 0x1c));
        if be32(&bytes, 0) != MAGIC || be32(&bytes, 4) != SUPERBLOCK_V2 || be32(&bytes, 0xc) != layout.block_size {
            return unclear("its journal does not begin like one");
        }
        let incompat = be32(&bytes, 0x28);
        if incompat & !INCOMPAT_KNOWN != 0 || be32(&bytes, 0x2c) != 0 {
            return unclear(format!("its journal has features that are not known here (incompat {incompat:#x})"));
        }
        if incompat & (CSUM_V2 | CSUM_V3) != 0 && bytes[0x50] != CRC32C {
            return unclear("its journal has checksums of an unknown kind");
        }
        if be32(&bytes, 0x20) != 0 {
            return unclear("its journal has ended with an error");
        }
        if first == 0 || first >= blocks || start >= blocks || (start != 0 && start < first) {
            return unclear("its journal has an impossible size");
        }
        layout.journal_block(blocks - 1)?;
        Ok(Self { blocks, first, sequence: be32(&bytes, 0x18), start, incompat, seed: crc32c(!0, &bytes[0x30..0x40]) })
    }

    fn has_checksums(&self) -> bool {
        self.incompat & (CSUM_V2 | CSUM_V3) != 0
    }

    fn after(&self, within: u32) -> u32 {
        if within + 1 >= self.blocks { self.first } else { within + 1 }
    }

    /// Bytes of a tag, without the name of a journal that may follow it.
    fn tag_bytes(&self) -> usize {
        match self.incompat {
            features if features & CSUM_V3 != 0 => 16,
            features => 8 + 2 * usize::from(features & CSUM_V2 != 0) + 4 * usize::from(features & WIDE != 0),
        }
    }

    /// Whether the checksum fits that lies in these four bytes of the block and counts as zeros itself.
    fn fits(&self, block: &[u8], at: usize) -> bool {
        let before = crc32c(self.seed, &block[..at]);
        !self.has_checksums() || crc32c(crc32c(before, &[0; 4]), &block[at + 4..]) == be32(block, at)
    }

    /// Blocks that a descriptor announces: their numbers in the file system, and what is known of their copies, whose places are still to be filled in.
    fn tags(&self, block: &[u8], sequence: u32) -> Vec<(u64, Copy)> {
        const ESCAPED: u32 = 1;
        const SAME_UUID: u32 = 2;
        const LAST: u32 = 8;
        let bytes = self.tag_bytes();
        let end = block.len() - if self.has_checksums() { 4 } else { 0 };
        let mut tags = Vec::new();
        let mut at = HEADER;
        while at + bytes <= end {
            let v3 = self.incompat & CSUM_V3 != 0;
            let flags = if v3 { be32(block, at + 4) } else { be16(block, at + 6).into() };
            let hi = if self.incompat & WIDE != 0 { be32(block, at + 8) } else { 0 };
            let checksum = if v3 { be32(block, at + 12) } else { be16(block, at + 4).into() };
            let number = u64::from(be32(block, at)) | u64::from(hi) << 32;
            tags.push((number, Copy { within: 0, escaped: flags & ESCAPED != 0, sequence, checksum }));
            at += bytes + if flags & SAME_UUID == 0 { 16 } else { 0 };
            if flags & LAST != 0 {
                break;
            }
        }
        tags
    }

    fn revoked(&self, block: &[u8]) -> Vec<u64> {
        let wide = self.incompat & WIDE != 0;
        let end = (be32(block, HEADER) as usize).min(block.len());
        let numbers = block[..end].get(HEADER + 4..).unwrap_or_default().chunks_exact(if wide { 8 } else { 4 });
        numbers
            .map(|number| if wide { u64::from(be32(number, 0)) << 32 | u64::from(be32(number, 4)) } else { be32(number, 0).into() })
            .collect()
    }
}

fn spend(left: &mut usize, entries: usize) -> Known<()> {
    *left = left.checked_sub(entries).ok_or_else(|| Unclear("its journal has more entries than are looked at".into()))?;
    Ok(())
}

impl<'a> Recovered<'a> {
    /// Follows the journal from its tail to the newest commit record. Reads each descriptor, and no copies.
    pub fn read(source: &'a dyn Source, layout: &'a Layout) -> Known<Self> {
        let journal = Superblock::read(source, layout)?;
        if journal.start == 0 {
            // Everything has reached its place.
            let newest = journal.sequence.wrapping_sub(1);
            return Ok(Self { source, layout, journal, copies: HashMap::new(), newest });
        }
        let (mut sequence, mut within) = (journal.sequence, journal.start);
        let mut recovered = Self { source, layout, newest: sequence.wrapping_sub(1), journal, copies: HashMap::new() };
        let mut block = vec![0; layout.block_size as usize];
        let (mut copies, mut revoked) = (Vec::new(), Vec::new());
        let (mut steps, mut left) = (0, ENTRIES_MAX);
        while steps < recovered.journal.blocks {
            source.read(layout.byte(layout.journal_block(within)?), &mut block)?;
            if be32(&block, 0) != MAGIC || be32(&block, 8) != sequence {
                break;
            }
            within = recovered.journal.after(within);
            steps += 1;
            let tail = block.len() - 4;
            match be32(&block, 4) {
                DESCRIPTOR if recovered.journal.fits(&block, tail) => {
                    let tags = recovered.journal.tags(&block, sequence);
                    spend(&mut left, tags.len())?;
                    for (number, copy) in tags {
                        copies.push((number, Copy { within, ..copy }));
                        within = recovered.journal.after(within);
                        steps += 1;
                    }
                }
                REVOKE if recovered.journal.fits(&block, tail) => {
                    let mut numbers = recovered.journal.revoked(&block);
                    spend(&mut left, numbers.len())?;
                    revoked.append(&mut numbers);
                }
                // The checksum follows its kind and size behind the header.
                COMMIT if recovered.journal.fits(&block, HEADER + 4) => {
                    recovered.copies.extend(copies.drain(..));
                    revoked.drain(..).for_each(|number| _ = recovered.copies.remove(&number));
                    recovered.newest = sequence;
                    sequence = sequence.wrapping_add(1);
                }
                _ => break,
            }
        }
        Ok(recovered)
    }

    /// The shape of the file system.
    pub fn layout(&self) -> &Layout {
        self.layout
    }

    /// Reads bytes of the disk as they are, which is what the content of files is: the journal has none of it, unless the file system was mounted so.
    pub fn raw(&self, at: u64, into: &mut [u8]) -> Known<()> {
        Ok(self.source.read(at, into)?)
    }

    /// Reads a whole block as it is after a recovery.
    pub fn block(&self, number: u64, into: &mut [u8]) -> Known<()> {
        if number >= self.layout.blocks {
            return unclear(format!("it speaks of its block {number} and has {}", self.layout.blocks));
        }
        let Some(copy) = self.copies.get(&number) else { return Ok(self.source.read(self.layout.byte(number), into)?) };
        self.source.read(self.layout.byte(self.layout.journal_block(copy.within)?), into)?;
        if self.journal.has_checksums() {
            let sum = crc32c(crc32c(self.journal.seed, &copy.sequence.to_be_bytes()), into);
            let wanted = if self.journal.incompat & CSUM_V3 != 0 { sum } else { sum & 0xffff };
            if wanted != copy.checksum {
                return unclear(format!("the copy of its block {number} in the journal does not fit its checksum"));
            }
        }
        if copy.escaped {
            into[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        Ok(())
    }
}
