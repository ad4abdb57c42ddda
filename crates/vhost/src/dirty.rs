//! Which pages of guest memory the backend has written: bits that many threads set and one takes, without a lock between them.
//!
//! `tests/interleavings.rs` compiles this file once more, over `loom`, and walks every order in which its steps can happen.

use crate::sync::{
    RwLock, RwLockReadGuard,
    atomic::{AtomicU64, Ordering, fence},
};
use fermata_types::PageSet;

/// Which pages of the RAM file the backend has written.
///
/// A page is marked after it was written. So whoever takes the set and then copies the pages has all of what they held when taken, or finds them marked again;
/// with the rings stopped, every finished write is in the set.
#[derive(Debug, Default)]
pub struct DirtyPages {
    // The lock is for growing only.
    words: RwLock<Words>,
}

impl DirtyPages {
    /// No page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the pages written since the last call.
    pub fn take(&self) -> PageSet {
        self.words().take()
    }

    /// Marks pages that were written. Pages beyond the RAM are not known and ignored.
    pub(crate) fn mark(&self, first: u64, last: u64) {
        self.words().mark(first, last);
    }

    /// Makes room for a RAM of so many pages.
    pub(crate) fn reach(&self, pages: u64) {
        if !self.words().reach(pages) {
            self.words.write().unwrap_or_else(|poisoned| poisoned.into_inner()).grow(pages);
        }
    }

    fn words(&self) -> RwLockReadGuard<'_, Words> {
        self.words.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// One bit a page.
#[derive(Debug, Default)]
pub(crate) struct Words(Box<[AtomicU64]>);

impl Words {
    pub fn take(&self) -> PageSet {
        let taken = self.0.iter().zip(0u32..).filter(|(word, _)| word.load(Ordering::Relaxed) != 0);
        let pages = taken.flat_map(|(word, i)| {
            let word = word.swap(0, Ordering::AcqRel);
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit)
        });
        let pages = PageSet::from_sorted_iter(pages).expect("bits come in order");
        // Pairs with the fence in `mark`: what was written to a page before it was found marked is seen by whoever copies it now.
        fence(Ordering::SeqCst);
        pages
    }

    pub fn mark(&self, first: u64, last: u64) {
        for page in first..=last {
            if let Some(word) = self.0.get((page / 64) as usize) {
                let bit = 1 << (page % 64);
                // Rings are marked over and over: a look first keeps the cache line shared. The fence pairs with `take`: either it sees our
                // bit, or the write that we report happened before it cleared the word.
                fence(Ordering::SeqCst);
                if word.load(Ordering::Relaxed) & bit == 0 {
                    word.fetch_or(bit, Ordering::AcqRel);
                }
            }
        }
    }

    fn reach(&self, pages: u64) -> bool {
        self.0.len() as u64 * 64 >= pages
    }

    pub fn grow(&mut self, pages: u64) {
        if !self.reach(pages) {
            let old = self.0.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed)));
            self.0 = old.chain(std::iter::repeat_with(|| AtomicU64::new(0))).take(pages.div_ceil(64) as usize).collect();
        }
    }
}
