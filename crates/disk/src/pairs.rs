//! Which whole pages of guest memory a request moves from or to which whole blocks of its disk.
//!
//! A block is paired with a page only if all of it lies in that page and begins where the page begins. Descriptors may cut a page anywhere: pieces that are
//! neighbours in memory and on the disk count as one.

use crate::page_map::Run;
use fermata_types::{PAGE_SIZE, PageNumber};
use fermata_vhost::GuestRam;
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;

/// The pairs of one request. Reused, so that a request needs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pub runs: Vec<Run>,
    /// Pages that the request touches in another way.
    pub rest: Vec<Range<PageNumber>>,
    /// The pages of `runs` in as few stretches as there can be.
    pub watched: Vec<Range<PageNumber>>,
}

/// Neighbours in the RAM file that are neighbours on the disk.
#[derive(Clone, Copy)]
struct Piece {
    /// Offset in the RAM file.
    at: u64,
    /// Offset on the disk; none if they go nowhere there.
    offset: Option<u64>,
    len: u64,
}

impl Pairs {
    /// Looks through the buffers of a request, as guest addresses and lengths, but for the first `skip` bytes of them. `offset` is where the rest lies on the
    /// disk; its end must not be beyond 16 TiB. None: nowhere.
    pub fn collect(&mut self, ram: &GuestRam, buffers: &[(u64, u32)], mut skip: u64, mut offset: Option<u64>) {
        self.runs.clear();
        self.rest.clear();
        self.watched.clear();
        let mut last: Option<Piece> = None;
        for (guest, len) in buffers {
            let skipped = skip.min((*len).into());
            skip -= skipped;
            ram.places(guest + skipped, u64::from(*len) - skipped, |at, len| {
                let piece = at.map(|at| Piece { at, offset, len });
                offset = offset.map(|offset| offset + len);
                match (&mut last, piece) {
                    (Some(last), Some(piece)) if last.at + last.len == piece.at => last.len += piece.len,
                    (last, piece) => {
                        if let Some(last) = std::mem::replace(last, piece) {
                            self.add(last);
                        }
                    }
                }
            });
        }
        if let Some(last) = last {
            self.add(last);
        }
        self.watched.extend(self.runs.iter().map(Run::pages));
        self.watched.sort_unstable_by_key(|pages| pages.start);
        self.watched.dedup_by(|next, before| {
            let together = next.start <= before.end;
            if together {
                before.end = before.end.max(next.end);
            }
            together
        });
    }

    fn add(&mut self, Piece { at, offset, len }: Piece) {
        let end = at + len;
        let (first, last) = (at.next_multiple_of(PAGE), end / PAGE * PAGE);
        let fits = offset.filter(|offset| offset % PAGE == at % PAGE && first < last);
        // The RAM file has fewer pages than 32 bits can number, or its pages are not noted at all.
        let page = |at: u64| (at / PAGE) as PageNumber;
        let Some(offset) = fits else {
            self.rest.push(page(at)..page(end.next_multiple_of(PAGE)));
            return;
        };
        self.runs.push(Run { page: page(first), block: page(offset + (first - at)), count: page(last - first) });
        if at < first {
            self.rest.push(page(at)..page(first));
        }
        if last < end {
            self.rest.push(page(last)..page(last) + 1);
        }
    }
}
