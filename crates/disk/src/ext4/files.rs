//! The files: directories, what is known of each file, and where its content lies, as a recovery would leave them.
//!
//! Whatever a hostile disk says, reading ends: each directory is read once, by its number, and there is a budget of blocks. What cannot be read is counted, and the
//! rest is read all the same.

use super::{Known, Layout, Unclear, journal::Recovered, layout::SUPERBLOCK, le16, le32, unclear};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
};

const ROOT: u32 = 2;
/// Names on the way to a file. Linux takes paths of 4096 bytes.
const DEPTH_MAX: usize = 256;
const PATH_MAX: usize = 4096;
/// What may be read of one file system: blocks of inodes, directories and maps, files, and bytes of their paths.
pub const BUDGET: Budget = Budget { blocks: 1 << 22, files: 1 << 22, path_bytes: 1 << 29 };
/// Blocks kept: tables of inodes are read again and again.
const KEPT: usize = 256;

const INODE_MIN: usize = 128;
/// Where the map of a file's content is in its inode, or what a link leads to.
const MAP: Range<usize> = 0x28..0x64;
const USES_EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;
const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_DEPTH_MAX: u16 = 5;
/// A longer extent is allocated, by so much less, and holds zeros.
const WRITTEN_MAX: u16 = 0x8000;
/// The head of a directory's entry: inode, length of the entry, of the name, kind.
const ENTRY: usize = 8;

/// How much is looked at before it counts as endless.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Blocks that are read or looked through.
    pub blocks: u32,
    /// Files.
    pub files: u32,
    /// Bytes of their paths.
    pub path_bytes: u64,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names of others.
    Directory,
    /// The path of another.
    Link,
    /// A device, a pipe, a socket.
    Other,
}

/// What is known of a file. Two that are equal have been left alone, but for their content, which may have been written over where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    inode: u32,
    /// Mode, owner, links, times but that of the last look, generation, flags.
    attributes: Vec<u8>,
    map: Vec<u8>,
}

/// The files of a file system.
#[derive(Debug, Default)]
pub struct Tree {
    /// By path, from its root on: `/etc/passwd`.
    pub files: BTreeMap<Vec<u8>, File>,
    /// Directories and files that could not be read.
    pub unread: u64,
    /// Why, of the first.
    pub why: Option<String>,
}

/// Reads a file system's inodes and directories.
pub struct Reader<'a> {
    recovered: &'a Recovered<'a>,
    inode_bytes: usize,
    inodes_per_group: u32,
    inodes: u32,
    kept: HashMap<u64, Vec<u8>>,
    budget: Budget,
}

impl<'a> Reader<'a> {
    /// Begins.
    pub fn new(recovered: &'a Recovered<'a>, budget: Budget) -> Known<Self> {
        let mut reader = Self { recovered, inode_bytes: 0, inodes_per_group: 0, inodes: 0, kept: HashMap::new(), budget };
        let size = u64::from(reader.layout().block_size);
        let block = reader.block(SUPERBLOCK.start / size)?;
        let superblock = &block[(SUPERBLOCK.start % size) as usize..];
        let inode_bytes = if le32(superblock, 0x4c) == 0 { INODE_MIN } else { le16(superblock, 0x58).into() };
        let (inodes, inodes_per_group) = (le32(superblock, 0), le32(superblock, 0x28));
        if !inode_bytes.is_power_of_two() || !(INODE_MIN..=size as usize).contains(&inode_bytes) || inodes_per_group == 0 {
            return unclear("its inodes have an impossible size");
        }
        (reader.inode_bytes, reader.inodes, reader.inodes_per_group) = (inode_bytes, inodes, inodes_per_group);
        Ok(reader)
    }

    fn layout(&self) -> &'a Layout {
        self.recovered.layout()
    }

    fn block(&mut self, number: u64) -> Known<&[u8]> {
        if !self.kept.contains_key(&number) {
            self.spend_block()?;
            if self.kept.len() >= KEPT {
                self.kept.clear();
            }
            let mut content = vec![0; self.layout().block_size as usize];
            self.recovered.block(number, &mut content)?;
            self.kept.insert(number, content);
        }
        Ok(&self.kept[&number])
    }

    fn spend_block(&mut self) -> Known<()> {
        let left = self.budget.blocks.checked_sub(1);
        self.budget.blocks = left.ok_or_else(|| Unclear("it leads to more blocks than are looked at".into()))?;
        Ok(())
    }

    fn spend_file(&mut self, path: &[u8]) -> Known<()> {
        let left = (self.budget.files.checked_sub(1), self.budget.path_bytes.checked_sub(path.len() as u64));
        let (Some(files), Some(path_bytes)) = left else { return unclear("it has more files than are looked at") };
        (self.budget.files, self.budget.path_bytes) = (files, path_bytes);
        Ok(())
    }

    /// All files that its root leads to.
    pub fn tree(&mut self) -> Known<Tree> {
        let root = self.inode(ROOT)?;
        if root.kind != Kind::Directory {
            return unclear("its root is no directory");
        }
        let mut tree = Tree::default();
        let mut seen = HashSet::from([ROOT]);
        let mut left = vec![(root, Vec::new(), 0)];
        while let Some((directory, path, depth)) = left.pop() {
            for (name, number) in self.entries(&directory, &path, &mut tree)? {
                let path = [&path[..], b"/", &name].concat();
                self.spend_file(&path)?;
                let file = match self.inode(number) {
                    Ok(file) if path.len() < PATH_MAX && depth < DEPTH_MAX => file,
                    Ok(_) => {
                        tree.skip(&path, &Unclear("its path is too long".into()));
                        continue;
                    }
                    Err(why) => {
                        tree.skip(&path, &why);
                        continue;
                    }
                };
                if file.kind == Kind::Directory && seen.insert(number) {
                    left.push((file.clone(), path.clone(), depth + 1));
                }
                tree.files.insert(path, file);
            }
        }
        Ok(tree)
    }

    fn inode(&mut self, number: u32) -> Known<File> {
        if number == 0 || number > self.inodes {
            return unclear(format!("it speaks of its inode {number} and has {}", self.inodes));
        }
        let (group, index) = ((number - 1) / self.inodes_per_group, (number - 1) % self.inodes_per_group);
        let layout = self.layout();
        if group >= layout.groups {
            return unclear(format!("its inode {number} is in no group"));
        }
        let (block, at) = layout.descriptor(group);
        let descriptor = &self.block(block)?[at..at + layout.descriptor_bytes as usize];
        let hi = if layout.descriptor_bytes < 64 { 0 } else { le32(descriptor, 0x28) };
        let table = u64::from(le32(descriptor, 0x8)) | u64::from(hi) << 32;
        let (byte, size, bytes) = (u64::from(index) * self.inode_bytes as u64, u64::from(layout.block_size), self.inode_bytes);
        let block = self.block(table.saturating_add(byte / size))?;
        Ok(File::of_inode(number, &block[(byte % size) as usize..][..bytes]))
    }

    /// What a directory names, but for itself and the one above it. What cannot be read of it is left out.
    fn entries(&mut self, directory: &File, path: &[u8], tree: &mut Tree) -> Known<Vec<(Vec<u8>, u32)>> {
        let size = u64::from(self.layout().block_size);
        let mut entries = Vec::new();
        let extents = self.extents(directory).unwrap_or_else(|why| {
            tree.skip(path, &why);
            Vec::new()
        });
        for extent in extents {
            // Blocks behind its end are set aside for it.
            let within = directory.size.div_ceil(size).saturating_sub(extent.within);
            for block in extent.blocks.take(within as usize) {
                // Again and again, if it says so.
                self.spend_block()?;
                if let Err(why) = self.block(block).and_then(|content| entries_of(content, &mut entries)) {
                    tree.skip(path, &why);
                }
                if entries.len() > self.budget.files as usize {
                    return unclear("it has more files than are looked at");
                }
            }
        }
        Ok(entries)
    }

    /// Where the content of a file lies on the disk, in bytes.
    pub fn content(&mut self, file: &File) -> Known<Vec<Range<u64>>> {
        if file.kind != Kind::File && file.kind != Kind::Directory {
            return Ok(Vec::new());
        }
        let layout = self.layout();
        let extents = self.extents(file)?;
        Ok(extents.into_iter().map(|extent| layout.byte(extent.blocks.start)..layout.byte(extent.blocks.end)).collect())
    }

    fn extents(&mut self, file: &File) -> Known<Vec<Extent>> {
        let flags = file.flags();
        if flags & INLINE != 0 {
            return unclear("content within inodes is not looked at");
        }
        if flags & USES_EXTENTS == 0 {
            return unclear("content that is mapped in the manner of ext3 is not looked at");
        }
        let mut extents = Vec::new();
        self.add_extents(&file.map, EXTENT_DEPTH_MAX, &mut extents)?;
        Ok(extents)
    }

    fn add_extents(&mut self, node: &[u8], depth_max: u16, extents: &mut Vec<Extent>) -> Known<()> {
        let (entries, depth) = (usize::from(le16(node, 2)), le16(node, 6));
        if le16(node, 0) != EXTENT_MAGIC || depth > depth_max || entries > node.len() / 12 - 1 {
            return unclear("the map of a file is damaged");
        }
        for entry in node[12..].chunks_exact(12).take(entries) {
            if depth > 0 {
                let block = u64::from(le32(entry, 4)) | u64::from(le16(entry, 8)) << 32;
                // Again and again, if it says so.
                self.spend_block()?;
                let child = self.block(block)?.to_vec();
                self.add_extents(&child, depth - 1, extents)?;
                continue;
            }
            let (count, first) = (le16(entry, 4), u64::from(le32(entry, 8)) | u64::from(le16(entry, 6)) << 32);
            if count > WRITTEN_MAX {
                continue;
            }
            let end = first + u64::from(count);
            if first == 0 || end > self.layout().blocks {
                return unclear(format!("it speaks of its block {} and has {}", end.max(1) - 1, self.layout().blocks));
            }
            extents.push(Extent { within: le32(entry, 0).into(), blocks: first..end });
        }
        Ok(())
    }
}

/// Neighbouring blocks of a file.
struct Extent {
    /// The first, counted in the file.
    within: u64,
    /// They, counted in the file system.
    blocks: Range<u64>,
}

impl Tree {
    /// Goes on without something.
    fn skip(&mut self, path: &[u8], why: &Unclear) {
        self.unread += 1;
        self.why.get_or_insert_with(|| format!("{}: {}", if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path) }, why.0));
    }
}

impl File {
    fn of_inode(number: u32, inode: &[u8]) -> Self {
        const FORMAT: u16 = 0xf000;
        let (mode, flags) = (le16(inode, 0), le32(inode, 0x20));
        let kind = match mode & FORMAT {
            0x8000 => Kind::File,
            0x4000 => Kind::Directory,
            0xa000 => Kind::Link,
            _ => Kind::Other,
        };
        let size = u64::from(le32(inode, 4)) | u64::from(le32(inode, 0x6c)) << 32;
        // Mode and owner; the two times of changes; group, links; the version in use is nobody's business. Flags last, for `flags`.
        let mut attributes = [&inode[0..4], &inode[0xc..0x14], &inode[0x18..0x1c], &inode[0x64..0x68], &inode[0x78..0x7c]].concat();
        // Behind the first 128 bytes, as far as the inode says that they are used: the finer parts of these times.
        if inode.len() >= 0x8c && le16(inode, 0x80) >= 0xc {
            attributes.extend(&inode[0x84..0x8c]);
        }
        attributes.extend(flags.to_le_bytes());
        Self { kind, size, inode: number, attributes, map: inode[MAP].to_vec() }
    }

    fn flags(&self) -> u32 {
        le32(&self.attributes, self.attributes.len() - 4)
    }
}

/// The entries of a block of a directory. A block of its index looks like one large entry of nobody.
fn entries_of(block: &[u8], entries: &mut Vec<(Vec<u8>, u32)>) -> Known<()> {
    let mut at = 0;
    while at + ENTRY <= block.len() {
        let (inode, name) = (le32(block, at), usize::from(block[at + 6]));
        // Blocks of 64 KiB are too long for this number.
        let length = match le16(block, at + 4) {
            0 | u16::MAX => block.len() - at,
            length => length.into(),
        };
        if length < ENTRY || !length.is_multiple_of(4) || at + length > block.len() || ENTRY + name > length {
            return unclear("a directory is damaged");
        }
        let name = &block[at + ENTRY..at + ENTRY + name];
        if inode != 0 && name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return unclear("a directory is damaged");
        }
        if inode != 0 && !name.is_empty() && name != b"." && name != b".." {
            entries.push((name.to_vec(), inode));
        }
        at += length;
    }
    Ok(())
}
