//! The shape of a file system: what its superblock says, and where its journal lies.

use super::{Known, Source, le16, le32, unclear};
use std::ops::Range;

/// The superblock: its place in the file system, and its bytes.
pub const SUPERBLOCK: Range<u64> = 1024..2048;
const MAGIC: u16 = 0xef53;
/// Groups of blocks, each with a bitmap that has to be read: 8 TiB of blocks of 4 KiB.
const GROUPS_MAX: u64 = 1 << 16;
/// Extents of the journal. A new one has one or two.
const EXTENTS_MAX: usize = 1024;
/// Blocks that hold the map of these extents.
const NODES_MAX: usize = 64;
/// Bytes of a journal. mke2fs makes none of more than 1 GiB by itself.
const JOURNAL_MAX: u64 = 4 << 30;
const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_DEPTH_MAX: u16 = 5;
/// Longer ones are allocated, but not written.
const EXTENT_BLOCKS_MAX: u16 = 0x8000;
const USES_EXTENTS: u32 = 0x8_0000;

const HAS_JOURNAL: u32 = 0x4;
const SPARSE_SUPER2: u32 = 0x200;
/// All compatible features up to `orphan_file` but `fast_commit`, which writes metadata past the journal's transactions.
const COMPAT_KNOWN: u32 = 0x1bff;
const FAST_COMMIT: u32 = 0x400;

const META_BG: u32 = 0x10;
const WIDE: u32 = 0x80;
/// filetype, needs_recovery, meta_bg, extents, 64bit, mmp, flex_bg, ea_inode, csum_seed, largedir, inline_data, encrypt, casefold.
const INCOMPAT_KNOWN: u32 = 0x3_e7d6;

const SPARSE_SUPER: u32 = 0x1;
const BIGALLOC: u32 = 0x200;
/// sparse_super, large_file, btree_dir, huge_file, uninit_bg, dir_nlink, extra_isize, quota, bigalloc, metadata_csum, project, verity, orphan_present.
const RO_COMPAT_KNOWN: u32 = 0x1_a77f;

/// Blocks of the journal that are neighbours, as blocks of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The first block, counted in the journal.
    pub within: u32,
    /// The same block, counted in the file system.
    pub block: u64,
    /// How many.
    pub count: u32,
}

/// The shape of a file system. Two that are equal are the same one, or as good as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The byte of the disk where it begins.
    pub start: u64,
    /// Bytes of a block: 1 KiB to 64 KiB.
    pub block_size: u32,
    /// How many blocks it has.
    pub blocks: u64,
    /// The first block of the first group.
    pub first_data_block: u64,
    /// Blocks to a bit of a bitmap.
    pub cluster_blocks: u32,
    /// Bits in use of a bitmap.
    pub clusters_per_group: u32,
    /// How many groups there are.
    pub groups: u32,
    /// Bytes of a group's descriptor.
    pub descriptor_bytes: u32,
    /// The journal, from its first block on and without gaps.
    pub journal: Vec<Extent>,
    /// From this block of descriptors on, each lies in its own groups.
    first_meta_bg: u32,
    super_in_all: bool,
    /// The only groups with a copy of the superblock, with `sparse_super2`.
    supers: Option<[u32; 2]>,
    uuid: [u8; 16],
}

impl Layout {
    /// Reads the shape of the file system that begins at this byte. None: there is no ext4.
    pub fn read(source: &dyn Source, start: u64) -> Known<Option<Self>> {
        let room = source.size().saturating_sub(start);
        if room < SUPERBLOCK.end {
            return Ok(None);
        }
        let mut sb = [0; 1024];
        source.read(start + SUPERBLOCK.start, &mut sb)?;
        if le16(&sb, 0x38) != MAGIC {
            return Ok(None);
        }
        check_features(&sb)?;
        let mut layout = Self::of_superblock(&sb, start, room)?;
        layout.find_journal(source, &sb)?;
        Ok(Some(layout))
    }

    fn of_superblock(sb: &[u8], start: u64, room: u64) -> Known<Self> {
        let (compat, incompat, ro_compat) = (le32(sb, 0x5c), le32(sb, 0x60), le32(sb, 0x64));
        let (log_block, log_cluster) = (le32(sb, 0x18), le32(sb, 0x1c));
        if log_block > 6 {
            return unclear("its blocks have an unknown size");
        }
        let block_size = 1024 << log_block;
        let bigalloc = ro_compat & BIGALLOC != 0;
        let cluster_blocks = match log_cluster.checked_sub(log_block) {
            Some(log) if bigalloc && log <= 20 => 1 << log,
            _ if !bigalloc => 1,
            _ => return unclear("its clusters have an unknown size"),
        };
        let blocks_hi = if incompat & WIDE == 0 { 0 } else { le32(sb, 0x150) };
        let blocks = u64::from(le32(sb, 0x4)) | u64::from(blocks_hi) << 32;
        let first_data_block = u64::from(le32(sb, 0x14));
        let blocks_per_group = le32(sb, 0x20);
        let clusters_per_group = if bigalloc { le32(sb, 0x24) } else { blocks_per_group };
        let whole = u64::from(clusters_per_group) * u64::from(cluster_blocks) == u64::from(blocks_per_group);
        if clusters_per_group == 0 || clusters_per_group > 8 * block_size || !whole {
            return unclear("its groups have an impossible size");
        }
        if first_data_block > 1 || first_data_block >= blocks || blocks > room / u64::from(block_size) {
            return unclear("it does not fit its place");
        }
        let groups = (blocks - first_data_block).div_ceil(blocks_per_group.into());
        if groups > GROUPS_MAX {
            return unclear(format!("it has {groups} groups of blocks, and at most {GROUPS_MAX} are looked at"));
        }
        let descriptor_bytes = if incompat & WIDE == 0 { 32 } else { u32::from(le16(sb, 0xfe)) };
        if !descriptor_bytes.is_power_of_two()
            || !(32..=1024).contains(&descriptor_bytes)
            || (incompat & WIDE != 0 && descriptor_bytes < 64)
        {
            return unclear("its descriptors of groups have an unknown size");
        }
        Ok(Self {
            start,
            block_size,
            blocks,
            first_data_block,
            cluster_blocks,
            clusters_per_group,
            groups: groups as u32,
            descriptor_bytes,
            journal: Vec::new(),
            first_meta_bg: if incompat & META_BG == 0 { u32::MAX } else { le32(sb, 0x104) },
            super_in_all: ro_compat & SPARSE_SUPER == 0,
            supers: (compat & SPARSE_SUPER2 != 0).then(|| [le32(sb, 0x24c), le32(sb, 0x250)]),
            uuid: sb[0x68..0x78].try_into().expect("sixteen bytes of the superblock"),
        })
    }

    /// The byte of the disk where a block begins. The block must be one of the file system's.
    pub fn byte(&self, block: u64) -> u64 {
        self.start + block * u64::from(self.block_size)
    }

    /// All bytes of the disk that belong to it.
    pub fn bytes(&self) -> Range<u64> {
        self.start..self.byte(self.blocks)
    }

    /// Blocks of a group; the last one may be short.
    pub fn blocks_per_group(&self) -> u64 {
        u64::from(self.clusters_per_group) * u64::from(self.cluster_blocks)
    }

    /// The first block of a group.
    pub fn group_start(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * self.blocks_per_group()
    }

    /// Where the descriptor of a group lies: the block, and the byte in it.
    pub fn descriptor(&self, group: u32) -> (u64, usize) {
        let in_block = self.block_size / self.descriptor_bytes;
        let (nth, at) = (group / in_block, (group % in_block * self.descriptor_bytes) as usize);
        // The superblock lies in block 1 where blocks have 1 KiB, even if counting begins at 0.
        let superblock = u64::from(self.block_size == 1024);
        if nth < self.first_meta_bg {
            return (superblock + u64::from(nth) + 1, at);
        }
        let first = nth * in_block;
        let odd = u64::from(nth == 0 && self.block_size == 1024 && self.first_data_block == 0);
        (self.group_start(first) + u64::from(self.has_superblock(first)) + odd, at)
    }

    fn has_superblock(&self, group: u32) -> bool {
        let is_power_of = |base: u32| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        match self.supers {
            _ if group == 0 => true,
            Some(supers) => supers.contains(&group),
            None => self.super_in_all || group == 1 || [3, 5, 7].into_iter().any(is_power_of),
        }
    }

    /// The block of the file system that is this block of the journal.
    pub fn journal_block(&self, within: u32) -> Known<u64> {
        let nth = self.journal.partition_point(|extent| extent.within <= within);
        match nth.checked_sub(1).map(|nth| &self.journal[nth]) {
            Some(extent) if within - extent.within < extent.count => Ok(extent.block + u64::from(within - extent.within)),
            _ => unclear("its journal ends before its own superblock says so"),
        }
    }

    fn find_journal(&mut self, source: &dyn Source, sb: &[u8]) -> Known<()> {
        let (number, inode_size) = (le32(sb, 0xe0), if le32(sb, 0x4c) == 0 { 128 } else { le16(sb, 0x58) });
        if number == 0 || number > le32(sb, 0x28) || !inode_size.is_power_of_two() || inode_size < 128 {
            return unclear("its journal is no file of its own");
        }
        // A journal is a file of the first group, whose descriptor never moves. Neither the place of its inodes nor the journal's own inode ever changes.
        let (block, at) = self.descriptor(0);
        let mut descriptor = vec![0; self.descriptor_bytes as usize];
        self.check_block(block)?;
        source.read(self.byte(block) + at as u64, &mut descriptor)?;
        let hi = if self.descriptor_bytes < 64 { 0 } else { le32(&descriptor, 0x28) };
        let table = u64::from(le32(&descriptor, 0x8)) | u64::from(hi) << 32;
        self.check_block(table)?;
        let at = self.byte(table) + u64::from(number - 1) * u64::from(inode_size);
        let mut inode = [0; 128];
        if at + inode.len() as u64 > self.byte(self.blocks) {
            return unclear("its table of files does not fit in it");
        }
        source.read(at, &mut inode)?;
        if le32(&inode, 0x20) & USES_EXTENTS == 0 {
            return unclear("its journal is kept in the manner of ext3, without extents");
        }
        self.add_extents(source, &inode[0x28..0x64], EXTENT_DEPTH_MAX, &mut 0)?;
        let gapless = self.journal.iter().try_fold(0, |end: u32, extent| (extent.within == end).then(|| end.checked_add(extent.count))?);
        match gapless {
            None | Some(0) => unclear("its journal has holes"),
            Some(blocks) if u64::from(blocks) * u64::from(self.block_size) > JOURNAL_MAX => unclear("its journal is larger than 4 GiB"),
            Some(_) => self.check_journal_blocks(),
        }
    }

    /// Each block of the journal is one block of it. Else a single write would be a write into a thousand of them.
    fn check_journal_blocks(&self) -> Known<()> {
        let mut places: Vec<_> = self.journal.iter().map(|extent| extent.block..extent.block + u64::from(extent.count)).collect();
        places.sort_unstable_by_key(|place| place.start);
        if places.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return unclear("the map of its journal names a block twice");
        }
        Ok(())
    }

    fn check_block(&self, block: u64) -> Known<()> {
        if block == 0 || block >= self.blocks { unclear(format!("it speaks of its block {block} and has {}", self.blocks)) } else { Ok(()) }
    }

    fn add_extents(&mut self, source: &dyn Source, node: &[u8], depth_max: u16, nodes: &mut usize) -> Known<()> {
        let (entries, depth) = (usize::from(le16(node, 2)), le16(node, 6));
        if le16(node, 0) != EXTENT_MAGIC || depth > depth_max || entries > node.len() / 12 - 1 {
            return unclear("the map of its journal is damaged");
        }
        for entry in node[12..].chunks_exact(12).take(entries) {
            if depth == 0 {
                let count = le16(entry, 4);
                let block = u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32;
                if count == 0 || count > EXTENT_BLOCKS_MAX || self.journal.len() == EXTENTS_MAX {
                    return unclear("the map of its journal is damaged, or in too many pieces");
                }
                self.check_block(block)?;
                self.check_block(block + u64::from(count) - 1)?;
                self.journal.push(Extent { within: le32(entry, 0), block, count: count.into() });
            } else {
                let block = u64::from(le32(entry, 4)) | u64::from(le16(entry, 8)) << 32;
                self.check_block(block)?;
                *nodes += 1;
                if *nodes > NODES_MAX {
                    return unclear("the map of its journal is too large");
                }
                let mut child = vec![0; self.block_size as usize];
                source.read(self.byte(block), &mut child)?;
                self.add_extents(source, &child, depth - 1, nodes)?;
            }
        }
        Ok(())
    }
}

fn check_features(sb: &[u8]) -> Known<()> {
    let (compat, incompat, ro_compat) = (le32(sb, 0x5c), le32(sb, 0x60), le32(sb, 0x64));
    if le32(sb, 0x4c) > 1
        || compat & !(COMPAT_KNOWN | FAST_COMMIT) != 0
        || incompat & !INCOMPAT_KNOWN != 0
        || ro_compat & !RO_COMPAT_KNOWN != 0
    {
        return unclear(format!(
            "it has features that are not known here (compat {compat:#x}, incompat {incompat:#x}, ro_compat {ro_compat:#x})"
        ));
    }
    if compat & HAS_JOURNAL == 0 {
        return unclear("it has no journal");
    }
    if compat & FAST_COMMIT != 0 {
        return unclear("it has fast commits, which go past the journal's transactions");
    }
    // Bit 1 of the state: the kernel has found errors.
    if le16(sb, 0x3a) & 2 != 0 {
        return unclear("it is marked as having errors");
    }
    Ok(())
}
