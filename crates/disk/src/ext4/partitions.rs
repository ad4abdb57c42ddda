//! Where on a disk a file system may begin: at its start, and at the start of each primary partition of an MBR and each partition of a GPT.
//!
//! Logical partitions, volume managers and encrypted volumes are not looked into: what lies there is simply not found.

use super::{Known, Source, le32, le64};
use crate::golden::SECTOR_SIZE;

/// Entries looked at in a GPT: as many as it has at least, and nobody has more.
const ENTRIES_MAX: u32 = 128;
const ENTRY_BYTES_MAX: u32 = 512;
/// All of a partition table that is ever read lies below this byte, unless the GPT puts its entries elsewhere.
pub const TABLE_END: u64 = 34 * SECTOR_SIZE;

/// The bytes at which file systems may begin, in order.
pub fn starts(source: &dyn Source) -> Known<Vec<u64>> {
    let mut starts = vec![0];
    let mut sector = [0; SECTOR_SIZE as usize];
    if source.size() >= TABLE_END {
        source.read(0, &mut sector)?;
        if sector[510..] == [0x55, 0xaa] {
            let entries: Vec<_> = sector[446..510].chunks_exact(16).map(|entry| (entry[4], le32(entry, 8))).collect();
            for (kind, first) in entries {
                match kind {
                    0 => {}
                    0xee => starts.extend(gpt(source)?),
                    _ => starts.push(u64::from(first) * SECTOR_SIZE),
                }
            }
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts.retain(|start| *start < source.size());
    Ok(starts)
}

fn gpt(source: &dyn Source) -> Known<Vec<u64>> {
    let mut header = [0; SECTOR_SIZE as usize];
    source.read(SECTOR_SIZE, &mut header)?;
    let (entries, count, bytes) = (le64(&header, 72), le32(&header, 80), le32(&header, 84));
    let mut starts = Vec::new();
    if header[..8] != *b"EFI PART" || !(128..=ENTRY_BYTES_MAX).contains(&bytes) {
        return Ok(starts);
    }
    let mut table = vec![0; count.min(ENTRIES_MAX) as usize * bytes as usize];
    match entries.checked_mul(SECTOR_SIZE) {
        Some(at) if at.checked_add(table.len() as u64).is_some_and(|end| end <= source.size()) => source.read(at, &mut table)?,
        _ => return Ok(starts),
    }
    for entry in table.chunks_exact(bytes as usize) {
        if entry[..16] != [0; 16]
            && let Some(start) = le64(entry, 32).checked_mul(SECTOR_SIZE)
        {
            starts.push(start);
        }
    }
    Ok(starts)
}
