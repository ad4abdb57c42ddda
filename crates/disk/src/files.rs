//! Which files differ between two states of a disk, as far as they are in ext4.
//!
//! What the guest has not written out yet is in its memory, and not seen here.

use crate::{
    Error, Result,
    ext4::{
        Known, Layout, Source,
        files::{BUDGET, Budget, Kind, Reader, Tree},
        journal::Recovered,
        partitions,
    },
};
use fermata_store::Contents;
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, ops::Range};

const BLOCK: u64 = PAGE_SIZE as u64;
/// File systems looked at on one disk.
const FILE_SYSTEMS_MAX: usize = 16;

/// How the files of a file system differ between two states of its disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesDiffer {
    /// The byte of the disk where the file system begins.
    pub start: u64,
    /// Files that differ, by path from the root of the file system.
    pub files: Vec<FileDiffers>,
    /// Directories and files that could not be read, in both states together.
    #[serde(default)]
    pub unread: u64,
    /// Why; or why nothing can be said at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<String>,
}

/// A file that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDiffers {
    /// Its path from the root of its file system, with what is not UTF-8 replaced.
    pub path: String,
    /// What became of it.
    pub change: FileChange,
    /// `file`, `directory`, `link`, `other`: what it is, or was.
    pub kind: FileKind,
    /// Bytes in the first state; none if it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_a: Option<u64>,
    /// Bytes in the second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_b: Option<u64>,
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    /// It was not there before.
    Added,
    /// It is there no more.
    Removed,
    /// Its content, size, owner or mode is another one, or it was written with what was there.
    Changed,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// Bytes.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A device, a pipe, a socket.
    Other,
}

impl From<Kind> for FileKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::File => Self::File,
            Kind::Directory => Self::Directory,
            Kind::Link => Self::Link,
            Kind::Other => Self::Other,
        }
    }
}

struct Disk<'a>(&'a dyn Contents);

impl Source for Disk<'_> {
    fn size(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let (len, size) = (into.len() as u64, self.size());
        at.checked_add(len).filter(|end| *end <= size).ok_or(Error::OutOfRange { offset: at, len, size })?;
        Ok(self.0.read_at(at, into)?)
    }
}

/// Compares the files of two states of a disk, which differ in these blocks. One entry for each file system that is found.
pub fn compare(a: &dyn Contents, b: &dyn Contents, differing: &PageSet) -> Vec<FilesDiffer> {
    let disks = [Disk(a), Disk(b)];
    // Without a partition table that can be read, there may be a file system without one.
    let starts = disks.each_ref().map(|disk| partitions::starts(disk).unwrap_or_else(|_| vec![0]));
    let starts: BTreeSet<_> = starts.into_iter().flatten().collect();
    let found = starts.into_iter().filter_map(|start| match file_systems(&disks, start, differing) {
        Ok(differ) => differ,
        Err(unclear) => Some(FilesDiffer { start, unclear: Some(unclear.0), ..FilesDiffer::default() }),
    });
    found.take(FILE_SYSTEMS_MAX).collect()
}

/// None: neither has one there.
fn file_systems(disks: &[Disk<'_>; 2], start: u64, differing: &PageSet) -> Known<Option<FilesDiffer>> {
    let layouts = [Layout::read(&disks[0], start)?, Layout::read(&disks[1], start)?];
    if layouts.iter().all(Option::is_none) {
        return Ok(None);
    }
    let [a, b] = &layouts;
    // One that was made, or is gone: all of its files.
    let a = a.as_ref().map(|layout| Recovered::read(&disks[0], layout)).transpose()?;
    let b = b.as_ref().map(|layout| Recovered::read(&disks[1], layout)).transpose()?;
    compare_recovered(a.as_ref(), b.as_ref(), differing, BUDGET).map(|differ| Some(FilesDiffer { start, ..differ }))
}

/// The same of file systems that have been found.
pub(crate) fn compare_recovered(
    a: Option<&Recovered<'_>>,
    b: Option<&Recovered<'_>>,
    differing: &PageSet,
    budget: Budget,
) -> Known<FilesDiffer> {
    let tree = |recovered: Option<&Recovered<'_>>| match recovered {
        None => Ok(Tree::default()),
        Some(recovered) => Reader::new(recovered, budget)?.tree(),
    };
    let (before, mut after) = (tree(a)?, tree(b)?);
    let mut differ = FilesDiffer { unread: before.unread + after.unread, unclear: before.why.or(after.why), ..FilesDiffer::default() };
    let mut reader = a.map(|recovered| Reader::new(recovered, budget)).transpose()?;
    let mut tell = |path: &[u8], change, kind: Kind, size_a, size_b| {
        let path = String::from_utf8_lossy(path).into_owned();
        differ.files.push(FileDiffers { path, change, kind: kind.into(), size_a, size_b });
    };
    let mut unread = (0, None);
    for (path, was) in before.files {
        let Some(is) = after.files.remove(&path) else {
            tell(&path, FileChange::Removed, was.kind, Some(was.size), None);
            continue;
        };
        // A directory differs by what is in it, which is told.
        let same = match (was == is, was.kind, is.kind, &mut reader, a, b) {
            (_, Kind::Directory, Kind::Directory, ..) => true,
            (true, _, _, Some(reader), Some(a), Some(b)) => match reader.content(&was) {
                Ok(content) => !content.iter().any(|bytes| differs(a, b, bytes, differing)),
                Err(why) => {
                    unread = (unread.0 + 1, unread.1.or(Some(format!("{}: {}", String::from_utf8_lossy(&path), why.0))));
                    true
                }
            },
            (equal, ..) => equal,
        };
        if !same {
            tell(&path, FileChange::Changed, is.kind, Some(was.size), Some(is.size));
        }
    }
    for (path, is) in after.files {
        tell(&path, FileChange::Added, is.kind, None, Some(is.size));
    }
    differ.files.sort_by(|a, b| a.path.cmp(&b.path));
    differ.unread += unread.0;
    differ.unclear = differ.unclear.or(unread.1);
    Ok(differ)
}

/// Whether any of these bytes differ, which lie in the same place on both. Blocks of the file system may be smaller than those that are known to differ, and belong
/// to another file.
fn differs(a: &Recovered<'_>, b: &Recovered<'_>, bytes: &Range<u64>, blocks: &PageSet) -> bool {
    let (first, end) = ((bytes.start / BLOCK) as PageNumber, bytes.end.div_ceil(BLOCK) as PageNumber);
    blocks.range(first..end).any(|block| {
        let at = (u64::from(block) * BLOCK).max(bytes.start);
        let length = ((u64::from(block) + 1) * BLOCK).min(bytes.end) - at;
        let [mut was, mut is] = [[0; PAGE_SIZE]; 2];
        let (was, is) = (&mut was[..length as usize], &mut is[..length as usize]);
        // What cannot be read is not known to be the same.
        a.raw(at, was).is_err() || b.raw(at, is).is_err() || was != is
    })
}

#[cfg(test)]
mod tests;
