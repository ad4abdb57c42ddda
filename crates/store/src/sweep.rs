//! Sweeps: many pages, read in the order in which they lie, in large pieces, by as many threads as there are processors.
//!
//! What lies together in a pack or a golden image is read at once, across small gaps too: a gap costs less than another read. Each thread takes the next
//! piece, reads it, decompresses and checks its pages, and hands them over.

use crate::{Error, Result, Store, error::Named, hash, index::Location, pack::Frame, store::Inner};
use fermata_types::{PAGE_SIZE, PageBuf, PageName, PageNumber, ZERO_PAGE};
use std::{
    io,
    ops::{ControlFlow, Range},
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

/// Bytes of a piece, unless one frame alone is larger.
const PIECE_MAX: u64 = 1 << 20;
/// Bytes read along in vain to save a read.
const GAP_MAX: u64 = 64 << 10;
/// One thread of a sweep may wait for the disk while another checks what it has, so there are two on a single processor too.
const HANDS_MIN: usize = 2;
/// A sweep's threads are as many as processors, and no more than this.
const HANDS_MAX: usize = 16;
/// For fewer pages a second thread costs more than it gains.
const ALONE_MAX: usize = 64;

type Located = (Location, PageNumber, PageName);
type Each<'a> = dyn Fn(PageNumber, &PageBuf) -> bool + Sync + 'a;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lies {
    Pack(u32),
    Image(u32),
}

/// Neighbouring bytes of a file, and which of the pages wanted lie in them.
#[derive(Debug)]
struct Piece {
    lies: Lies,
    bytes: Range<u64>,
    pages: Range<usize>,
}

impl Store {
    /// Reads many pages, about in the order in which they lie, and checks each against its name. `each` is called by several threads at once and may end it
    /// by returning false. A page wanted under several numbers is handed over once for each.
    pub fn read_pages(&self, wanted: Vec<(PageNumber, PageName)>, each: &Each<'_>) -> Result<()> {
        let Some(mut wanted) = self.read_away(wanted, each)? else { return Ok(()) };
        // The index is a tree of names: in their order each is found where the one before it was.
        wanted.sort_unstable_by_key(|(_, name)| *name);
        let mut located = Vec::with_capacity(wanted.len());
        {
            let read = self.0.index.read()?;
            for (number, name) in wanted {
                if name != ZERO_PAGE {
                    located.push((self.0.locate_page(&read, &name)?, number, name));
                } else if !each(number, &[0; PAGE_SIZE]) {
                    return Ok(());
                }
            }
        }
        located.sort_unstable();
        let pieces = pieces(&located);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut buffer = Vec::new();
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let read = self.0.read_piece(piece, &mut buffer);
                let handed = self.hand_over(piece, read.map(|()| &buffer[..]), &located, each);
                if !matches!(handed, Ok(ControlFlow::Continue(()))) {
                    // The others end with the piece that they have.
                    next.store(pieces.len(), Ordering::Relaxed);
                    return handed.map(drop);
                }
            }
            Ok(())
        };
        if located.len() <= ALONE_MAX {
            return work();
        }
        let hands = thread::available_parallelism().map_or(HANDS_MIN, usize::from).clamp(HANDS_MIN, HANDS_MAX).min(pieces.len());
        thread::scope(|scope| {
            let others: Vec<_> = (1..hands).map(|_| scope.spawn(work)).collect();
            let mine = work();
            others.into_iter().map(|other| other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).fold(mine, Result::and)
        })
    }

    /// Reads those pages that are not here yet, and returns those that are; none: no more are wanted.
    fn read_away(&self, wanted: Vec<(PageNumber, PageName)>, each: &Each<'_>) -> Result<Option<Vec<(PageNumber, PageName)>>> {
        let Some(reader) = self.away() else { return Ok(Some(wanted)) };
        let (mut here, mut away) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (number, name) in wanted {
            match name != ZERO_PAGE && self.0.away_with(&self.0.index.pages, name.as_bytes())?.is_some() {
                true => away.push((number, name)),
                false => here.push((number, name)),
            }
        }
        let ended = AtomicBool::new(false);
        let each = |number, page: &PageBuf| {
            let goes_on = each(number, page);
            ended.fetch_or(!goes_on, Ordering::Relaxed);
            goes_on
        };
        here.extend(reader.pages(away, &each)?);
        Ok((!ended.into_inner()).then_some(here))
    }

    fn hand_over(&self, piece: &Piece, bytes: Result<&[u8]>, located: &[Located], each: &Each<'_>) -> Result<ControlFlow<()>> {
        let mut page = [0; PAGE_SIZE];
        // Not through the cache: a sweep over a whole memory would only throw out what others use.
        let mut last = None;
        for (location, number, name) in &located[piece.pages.clone()] {
            let whole = bytes.as_ref().is_ok_and(|bytes| self.0.take_page(piece, bytes, *location, name, &mut last, &mut page).is_ok());
            if !whole {
                // A collection may have moved it since it was located. If not, this says what is wrong.
                self.read_page(name, &mut page)?;
            }
            if !each(*number, &page) {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Inner {
    fn read_piece(&self, piece: &Piece, buffer: &mut Vec<u8>) -> Result<()> {
        let length = (piece.bytes.end - piece.bytes.start) as usize;
        match piece.lies {
            Lies::Pack(pack) => self.pack(pack)?.span(piece.bytes.start, length, &"piece of the pack", buffer),
            Lies::Image(number) => {
                let open = self.images.read().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&number).cloned();
                let failed = |error| Error::io("read", Path::new("golden image"))(error);
                let (image, reader) = open.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
                let failed = |error| Error::io("read", Path::new(&format!("golden image {image}")))(error);
                if piece.bytes.end > reader.blocks() * PAGE_SIZE as u64 {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                buffer.resize(length, 0);
                reader.read_blocks((piece.bytes.start / PAGE_SIZE as u64) as PageNumber, buffer).map_err(failed)
            }
        }
    }

    /// Takes a page out of a piece. `last` is the frame that the page before lay in.
    fn take_page(
        &self,
        piece: &Piece,
        bytes: &[u8],
        location: Location,
        name: &PageName,
        last: &mut Option<(u64, Frame)>,
        into: &mut PageBuf,
    ) -> Result<()> {
        let what = Named("page", name.as_bytes());
        let at = (span(location).1.start - piece.bytes.start) as usize;
        match location {
            Location::Image { image, block } => {
                into.copy_from_slice(&bytes[at..at + PAGE_SIZE]);
                if hash::page(into) == *name { Ok(()) } else { self.read_image(image, block, name, into) }
            }
            Location::Pack { pack, offset, place, length } => {
                let frame = match last.take() {
                    Some((at, frame)) if at == offset => frame,
                    _ => self.pack(pack)?.decode(&bytes[at..at + length as usize], offset, &what)?,
                };
                let (_, frame) = last.insert((offset, frame));
                self.page_of(frame, pack, offset, place, name, into)
            }
        }
    }
}

/// In which file an object lies, and at which bytes.
fn span(location: Location) -> (Lies, Range<u64>) {
    match location {
        Location::Pack { pack, offset, length, .. } => (Lies::Pack(pack), offset..offset.saturating_add(length.into())),
        Location::Image { image, block } => {
            let start = u64::from(block) * PAGE_SIZE as u64;
            (Lies::Image(image), start..start + PAGE_SIZE as u64)
        }
    }
}

/// Cuts what is sorted into pieces.
fn pieces(located: &[Located]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (nth, (location, ..)) in located.iter().enumerate() {
        let (lies, bytes) = span(*location);
        match pieces.last_mut() {
            Some(piece)
                if piece.lies == lies
                    && bytes.start <= piece.bytes.end.saturating_add(GAP_MAX)
                    && bytes.end.max(piece.bytes.end) - piece.bytes.start <= PIECE_MAX =>
            {
                piece.bytes.end = piece.bytes.end.max(bytes.end);
                piece.pages.end = nth + 1;
            }
            _ => pieces.push(Piece { lies, bytes, pages: nth..nth + 1 }),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_piece_across_small_gaps() {
        let image = |block| Location::Image { image: 1, block };
        let frame = |offset, place| Location::Pack { pack: 1, offset, place, length: 1000 };
        let locations = [frame(0, 0), frame(0, 1), frame(1000, 0), frame(500_000, 0), image(0), image(1), image(10), image(40), image(290)];
        let located: Vec<Located> = locations.into_iter().map(|location| (location, 0, ZERO_PAGE)).collect();
        let cut: Vec<_> = pieces(&located).into_iter().map(|piece| (piece.lies, piece.bytes, piece.pages)).collect();
        let page = PAGE_SIZE as u64;
        let expected = [
            (Lies::Pack(1), 0..2000, 0..3),
            (Lies::Pack(1), 500_000..501_000, 3..4),
            (Lies::Image(1), 0..11 * page, 4..7),
            (Lies::Image(1), 40 * page..41 * page, 7..8),
            (Lies::Image(1), 290 * page..291 * page, 8..9),
        ];
        assert_eq!(cut, expected);
        let many: Vec<Located> = (0..1000).map(|block| (image(block), block, ZERO_PAGE)).collect();
        let cut = pieces(&many);
        assert_eq!(cut.len(), 4);
        assert!(cut.iter().all(|piece| piece.bytes.end - piece.bytes.start <= PIECE_MAX));
        assert!(cut.windows(2).all(|pair| pair[0].pages.end == pair[1].pages.start));
    }
}
