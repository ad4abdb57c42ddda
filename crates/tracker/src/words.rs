//! What was written, as finely as a tracker knows.

use fermata_types::{PAGE_SIZE, PageNumber, PageSet};

/// The words of one page, of 8 bytes each: bit `n % 64` of number `n / 64`.
pub type WordMask = [u64; 8];

/// All words of a page.
pub const ALL_WORDS: WordMask = [u64::MAX; 8];

/// Pages, and words of pages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Words {
    /// Pages of which nobody knows where they were written.
    pub whole: PageSet,
    /// Words of other pages, by page.
    pub parts: Vec<(PageNumber, WordMask)>,
}

impl Words {
    /// All pages with anything.
    pub fn pages(&self) -> PageSet {
        self.whole.iter().chain(self.parts.iter().map(|(page, _)| *page)).collect()
    }

    /// Bytes that they make up.
    pub fn bytes(&self) -> u64 {
        let words: u64 = self.parts.iter().flat_map(|(_, mask)| mask).map(|bits| u64::from(bits.count_ones())).sum();
        self.whole.len() * PAGE_SIZE as u64 + words * 8
    }

    /// Takes these pages as a whole.
    pub fn add_whole(&mut self, pages: &PageSet) {
        if !pages.is_empty() {
            self.whole |= pages;
            self.parts.retain(|(page, _)| !pages.contains(*page));
        }
    }

    /// Takes these pages away.
    pub fn leave_out(&mut self, pages: &PageSet) {
        if !pages.is_empty() {
            self.whole -= pages;
            self.parts.retain(|(page, _)| !pages.contains(*page));
        }
    }
}

impl From<PageSet> for Words {
    fn from(whole: PageSet) -> Self {
        Self { whole, parts: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_or_in_parts() {
        let mut words = Words { whole: PageSet::from_iter([1]), parts: vec![(2, [3, 0, 0, 0, 0, 0, 0, 1]), (5, ALL_WORDS)] };
        assert_eq!((words.bytes(), words.pages()), (4096 + 24 + 4096, PageSet::from_iter([1, 2, 5])));
        words.add_whole(&PageSet::from_iter([5, 6]));
        assert_eq!((words.bytes(), words.parts.len()), (3 * 4096 + 24, 1));
        words.leave_out(&PageSet::from_iter([1, 2]));
        assert_eq!(words, PageSet::from_iter([5, 6]).into());
    }
}
