//! Which pages a program is about to write to, by the faults that it had: one that goes through its memory in order would fault on each page, and a fault costs two
//! switches of threads where a page more costs next to nothing. What the kernel calls fault-around, for writes, and as long as a reader's read-ahead.
//!
//! A page that is opened and not written to after all is saved once more than need be, and is found by its hash to be in the store.

use fermata_types::PageNumber;
use std::ops::Range;

/// Arrays that a program may go through side by side.
const STREAMS: usize = 8;
/// Pages that are opened for one fault, at most.
const PAGES_MAX: u32 = 32;
/// Faults one behind the other before more than one page is opened: neighbours are written to by chance, too.
const PATIENCE: u32 = 2;

/// A place from which a program goes on in order.
#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    next: PageNumber,
    /// Faults that came in order.
    hits: u32,
    /// When it was the last, in faults.
    at: u64,
}

/// What the next fault is answered with.
#[derive(Debug)]
pub(super) struct Around {
    streams: [Stream; STREAMS],
    faults: u64,
    /// Pages of the memory.
    pages: PageNumber,
}

impl Around {
    pub fn new(pages: PageNumber) -> Self {
        Self { streams: [Stream { next: PageNumber::MAX, ..Stream::default() }; STREAMS], faults: 0, pages }
    }

    /// The pages to be opened for a fault on this one, which is the first of them.
    pub fn of(&mut self, page: PageNumber) -> Range<PageNumber> {
        self.faults += 1;
        let goes_on = self.streams.iter().position(|stream| stream.next == page);
        // Else a new one, in place of the one that has been quiet for longest.
        let quiet = || self.streams.iter().enumerate().min_by_key(|(_, stream)| stream.at).map_or(0, |(index, _)| index);
        let stream = &mut self.streams[goes_on.unwrap_or_else(quiet)];
        stream.hits = if stream.next == page { stream.hits + 1 } else { 0 };
        stream.at = self.faults;
        let ahead = 1u32.checked_shl(stream.hits.saturating_sub(PATIENCE)).unwrap_or(PAGES_MAX).min(PAGES_MAX);
        stream.next = page.saturating_add(ahead).min(self.pages).max(page + 1);
        page..stream.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many faults there are, and how many pages are opened, where a program writes to these.
    fn faults(pages: PageNumber, writes: impl IntoIterator<Item = PageNumber>) -> (usize, usize) {
        let (mut around, mut open, mut faults) = (Around::new(pages), std::collections::BTreeSet::new(), 0);
        for page in writes {
            if !open.contains(&page) {
                let opened = around.of(page);
                assert!(opened.start == page && opened.end > page && opened.end <= pages, "{opened:?}");
                open.extend(opened);
                faults += 1;
            }
        }
        (faults, open.len())
    }

    #[test]
    fn who_goes_on_in_order_has_few_faults() {
        assert_eq!(faults(1000, 0..1000), (38, 1000));
        // Several side by side, one of them to the end.
        let side_by_side = (0..100).flat_map(|step| [step, 300 + step, 900 + step]);
        let (faulted, opened) = faults(1000, side_by_side);
        assert!(faulted < 40 && opened < 400, "{faulted} faults, {opened} pages");
    }

    #[test]
    fn who_writes_here_and_there_has_no_page_opened_for_nothing() {
        let random = (0..1000u32).map(|step| step.wrapping_mul(2_654_435_761) % 100_000);
        let pages: std::collections::BTreeSet<_> = random.clone().collect();
        assert_eq!(faults(100_000, random).1, pages.len());
        // Nor are pairs of neighbours taken for more.
        assert_eq!(faults(1000, (0..100).flat_map(|pair| [pair * 10, pair * 10 + 1])), (200, 200));
    }

    #[test]
    fn it_ends_with_the_memory() {
        assert_eq!(faults(1, [0]), (1, 1));
        assert_eq!(faults(10, 0..10).1, 10);
    }
}
