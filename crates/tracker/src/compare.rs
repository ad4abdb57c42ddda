//! Comparison of all memory with what it held before, by hash. Costs writers nothing and needs nothing of the kernel, but each `take` reads all memory that
//! is there: what is left where neither `PAGEMAP_SCAN` nor write-protection can be had.
//!
//! A page that was written back to what it held before is not named: its content is what counts. So pages have to be copied while nobody writes, or a copy that
//! was made between two comparisons may be of a content that neither of them saw. A hole of the file is a page of zeros. Pages that a lazy
//! restore brings in are named like pages that were written, so a restore has to bring in all of them, and one `take` after it begins the count.

use crate::{Error, Result, Tracker};
use fermata_linux::MemoryFile;
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{io, num::NonZero, ops::Range, sync::Arc, thread};
use xxhash_rust::xxh3::xxh3_128_with_seed;

const MECHANISM: &str = "compare";

/// Pages read at a time: few enough to stay in the processor's cache until they are hashed.
const BATCH: usize = 64;

/// With fewer pages for each thread than this, a thread costs more than it saves.
const PAGES_A_THREAD_MIN: usize = 2048;

/// Compares a guest's memory with what it was.
#[derive(Debug)]
pub struct CompareTracker {
    ram: Arc<MemoryFile>,
    /// By page: 16 bytes for 4096.
    hashes: Vec<u128>,
    /// Found by a comparison that failed half way. Their new hashes are kept already, and would not be found different a second time.
    found: PageSet,
    hash: Hash,
}

impl CompareTracker {
    /// Notes what the memory holds now.
    pub fn new(ram: Arc<MemoryFile>) -> Result<Self> {
        let hash = Hash::new().map_err(failed("drawing a seed"))?;
        let pages = (ram.bytes() / PAGE_SIZE as u64) as usize;
        let mut tracker = Self { ram, hashes: vec![hash.zero; pages], found: PageSet::new(), hash };
        tracker.take()?;
        Ok(tracker)
    }

    /// Compares everything, several threads a share each, and adds what differs to `found`.
    fn compare(&mut self) -> io::Result<()> {
        let page = |offset: u64| (offset / PAGE_SIZE as u64) as usize;
        let present: Vec<_> = self.ram.populated()?.into_iter().map(|(from, to)| page(from)..page(to)).collect();
        let (ram, hash) = (&self.ram, self.hash);
        let mut shares = shares(&mut self.hashes, &present);
        let results: Vec<_> = thread::scope(|scope| {
            let own = shares.pop();
            let others: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || share.compare(ram, hash))).collect();
            let own = own.map(|share| share.compare(ram, hash));
            others.into_iter().map(|thread| thread.join().expect("a comparison does not panic")).chain(own).collect()
        });
        // Every share has kept its new hashes, also when another one failed.
        let (found, results): (Vec<_>, Vec<_>) = results.into_iter().unzip();
        found.into_iter().for_each(|found| self.found |= found);
        results.into_iter().collect()
    }
}

impl Tracker for CompareTracker {
    fn mechanism(&self) -> &'static str {
        MECHANISM
    }

    fn take(&mut self) -> Result<PageSet> {
        self.compare().map_err(failed("reading the memory"))?;
        Ok(std::mem::take(&mut self.found))
    }

    fn expect_writes(&mut self, _pages: Range<PageNumber>) -> Result<()> {
        // All content is compared, whoever wrote it.
        Ok(())
    }
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { mechanism: MECHANISM, what, source }
}

/// How pages are hashed.
#[derive(Debug, Clone, Copy)]
struct Hash {
    /// Drawn at random. The hash is fast and not made against attacks; a guest that knew the seed could write pages of equal hash, and one of them would
    /// be missing from its own checkpoint.
    seed: u64,
    /// Of a page of zeros, which a hole is.
    zero: u128,
}

impl Hash {
    fn new() -> io::Result<Self> {
        let seed = u64::from_ne_bytes(fermata_linux::random::bytes()?);
        Ok(Self { seed, zero: xxh3_128_with_seed(&[0; PAGE_SIZE], seed) })
    }
}

/// The pages of one thread.
struct Share<'a> {
    first: usize,
    hashes: &'a mut [u128],
    /// Stretches of the memory that are not holes, in order; the share's own are among them.
    present: &'a [Range<usize>],
}

/// Divides the memory among threads so that each has about as much to read.
fn shares<'a>(hashes: &'a mut [u128], present: &'a [Range<usize>]) -> Vec<Share<'a>> {
    let there: usize = present.iter().map(Range::len).sum();
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(there / PAGES_A_THREAD_MIN).max(1);
    let enough = there.div_ceil(threads);
    let (mut shares, mut first, mut rest) = (Vec::with_capacity(threads), 0, hashes);
    let mut counted = 0;
    for stretch in present {
        let mut at = stretch.start;
        while shares.len() + 1 < threads && counted + (stretch.end - at) >= enough {
            at += enough - counted;
            let (share, left) = std::mem::take(&mut rest).split_at_mut(at - first);
            shares.push(Share { first, hashes: share, present });
            (first, rest, counted) = (at, left, 0);
        }
        counted += stretch.end - at;
    }
    shares.push(Share { first, hashes: rest, present });
    shares
}

impl Share<'_> {
    fn compare(mut self, ram: &MemoryFile, hash: Hash) -> (PageSet, io::Result<()>) {
        let mut found = PageSet::new();
        let result = self.compare_into(ram, hash, &mut found);
        (found, result)
    }

    fn compare_into(&mut self, ram: &MemoryFile, hash: Hash, found: &mut PageSet) -> io::Result<()> {
        let mut content = vec![0; BATCH * PAGE_SIZE];
        let (first, end, present) = (self.first, self.first + self.hashes.len(), self.present);
        let mut at = first;
        for stretch in present.iter().filter(|stretch| stretch.end > first && stretch.start < end) {
            self.set(at..stretch.start, |_| hash.zero, found);
            at = at.max(stretch.start);
            while at < stretch.end.min(end) {
                let next = (at + BATCH).min(stretch.end).min(end);
                let content = &mut content[..(next - at) * PAGE_SIZE];
                ram.read_at((at * PAGE_SIZE) as u64, content)?;
                self.set(at..next, |nth| xxh3_128_with_seed(&content[nth * PAGE_SIZE..][..PAGE_SIZE], hash.seed), found);
                at = next;
            }
        }
        self.set(at..end, |_| hash.zero, found);
        Ok(())
    }

    /// Keeps the hashes of some pages, the nth by `hash`, and adds to `found` which were others before.
    fn set(&mut self, pages: Range<usize>, hash: impl Fn(usize) -> u128, found: &mut PageSet) {
        for (nth, page) in pages.enumerate() {
            let known = &mut self.hashes[page - self.first];
            let now = hash(nth);
            if *known != now {
                *known = now;
                found.insert(page as PageNumber);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_pages_once() {
        const PAGES: usize = 100_000;
        let memories: [&[(usize, usize)]; 5] =
            [&[], &[(0, PAGES)], &[(5, 10)], &[(0, 3), (70_000, 99_999)], &[(10, 50_000), (50_001, 50_002), (90_000, PAGES)]];
        for memory in memories {
            let present: Vec<_> = memory.iter().map(|(from, to)| *from..*to).collect();
            let mut hashes = vec![0; PAGES];
            let mut next = 0;
            for share in shares(&mut hashes, &present) {
                assert_eq!(share.first, next);
                next += share.hashes.len();
            }
            assert_eq!(next, PAGES, "{present:?}");
        }
    }
}
