//! The reader of ext4, fed with a sparse disk: an input is a list of places and what lies there.

use crate::{
    Error, Result,
    ext4::{Layout, Source, files::Budget, free, journal::Recovered, partitions},
    files,
};
use fermata_types::PageSet;
use fermata_vhost::fuzzing::Bytes;
use std::cell::Cell;

/// Places where something lies: a multiple of 32 bytes.
const UNIT: u64 = 32;
/// More than fits into an input, by whatever loops.
const BUDGET: Budget = Budget { blocks: 1 << 12, files: 1 << 12, path_bytes: 1 << 18 };
/// Reading ends long before this: each step of the reader is bounded by the size of what it reads.
const READS_MAX: u64 = 1 << 20;

struct Sparse {
    size: u64,
    pieces: Vec<(u64, Vec<u8>)>,
    reads: Cell<u64>,
}

impl Source for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < READS_MAX, "the reader goes in circles");
        let (len, size) = (into.len() as u64, self.size);
        let end = at.checked_add(len).filter(|end| *end <= size).ok_or(Error::OutOfRange { offset: at, len, size })?;
        into.fill(0);
        for (start, bytes) in &self.pieces {
            let (from, to) = (at.max(*start), end.min(start + bytes.len() as u64));
            if from < to {
                into[(from - at) as usize..(to - at) as usize].copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }
}

/// Reads whatever file systems there are on a disk that these bytes describe.
pub fn ext4(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut disk = Sparse { size: u64::from(bytes.u16()) << 12, pieces: Vec::new(), reads: Cell::new(0) };
    while !bytes.is_empty() {
        let at = u64::from(bytes.u16()) * UNIT;
        let length = usize::from(bytes.u16());
        disk.pieces.push((at, bytes.some(length).to_vec()));
    }
    for start in partitions::starts(&disk).unwrap_or_default() {
        let Ok(Some(layout)) = Layout::read(&disk, start) else { continue };
        let within = layout.bytes();
        assert!(within.end <= disk.size);
        let Ok(recovered) = Recovered::read(&disk, &layout) else { continue };
        let mut end = within.start;
        // What was told before an error does not count, but has to be sound as well.
        let _ = free::for_each(&recovered, &mut |free| {
            assert!(end <= free.start && free.start < free.end && free.end <= within.end, "{free:?} within {within:?}, after {end}");
            end = free.end;
        });
        let _ = files::compare_recovered(None, Some(&recovered), &PageSet::new(), BUDGET);
        // Its own files do not differ, whatever they are.
        let same = files::compare_recovered(Some(&recovered), Some(&recovered), &PageSet::new(), BUDGET);
        assert!(same.is_err() || same.is_ok_and(|same| same.files.is_empty()));
    }
}
