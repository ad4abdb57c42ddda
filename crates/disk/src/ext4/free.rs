//! The bitmaps: which blocks no file and no part of the file system itself holds.

use super::{Known, journal::Recovered, le16, le32, unclear};
use std::ops::Range;

/// The bitmap was never written: no block of the group was ever given away.
const BLOCK_UNINIT: u16 = 0x2;

/// Tells the free bytes of the disk, in runs in order.
///
/// A group whose bitmap does not hold as many free clusters as its descriptor says is passed over: the two change in one transaction, so one of them is not what
/// it seems. Passed over are also groups of which nothing was ever used.
pub fn for_each(recovered: &Recovered<'_>, each: &mut dyn FnMut(Range<u64>)) -> Known<()> {
    let layout = recovered.layout();
    let mut descriptors = vec![0; layout.block_size as usize];
    let mut bitmap = descriptors.clone();
    let mut read = None;
    for group in 0..layout.groups {
        let (block, at) = layout.descriptor(group);
        if read != Some(block) {
            recovered.block(block, &mut descriptors)?;
            read = Some(block);
        }
        let descriptor = &descriptors[at..at + layout.descriptor_bytes as usize];
        let wide = layout.descriptor_bytes >= 64;
        if le16(descriptor, 0x12) & BLOCK_UNINIT != 0 {
            continue;
        }
        let number = u64::from(le32(descriptor, 0)) | if wide { u64::from(le32(descriptor, 0x20)) << 32 } else { 0 };
        if number == 0 {
            return unclear(format!("its group {group} has no bitmap"));
        }
        let said = u32::from(le16(descriptor, 0xc)) | if wide { u32::from(le16(descriptor, 0x2c)) << 16 } else { 0 };
        recovered.block(number, &mut bitmap)?;
        let start = layout.group_start(group);
        let clusters = (layout.blocks - start).div_ceil(layout.cluster_blocks.into()).min(layout.clusters_per_group.into()) as u32;
        let is_free = |cluster: u32| bitmap[cluster as usize / 8] & 1 << (cluster % 8) == 0;
        if (0..clusters).filter(|cluster| is_free(*cluster)).count() as u32 != said {
            continue;
        }
        let block_of = |cluster: u32| (start + u64::from(cluster) * u64::from(layout.cluster_blocks)).min(layout.blocks);
        let mut cluster = 0;
        while cluster < clusters {
            let first = cluster;
            while cluster < clusters && is_free(cluster) {
                cluster += 1;
            }
            if cluster > first {
                each(layout.byte(block_of(first))..layout.byte(block_of(cluster)));
            }
            cluster += 1;
        }
    }
    Ok(())
}
