//! All of a RAM or a disk as a checkpoint has it, to be read like a file: what its page table names, above what lies beneath.

use crate::{Error, ImageReader, Result, Store, hash};
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageName, PageNumber, Root};
use std::{
    ops::Range,
    path::Path,
    sync::{Arc, Mutex},
};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages that are read before they are handed over in order: 16 MiB.
const WINDOW: u64 = 4096;

/// Takes the bytes from an offset on.
pub type EachPiece<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// What can be read like a file that nobody writes to.
pub trait Contents: Send + Sync {
    /// How many bytes there are.
    fn bytes(&self) -> u64;

    /// Reads from an offset on. Behind the end are zeros.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Everything from the first byte to the last, in pieces and in order. What is left out is zero. Far faster than [`read_at`](Self::read_at).
    fn for_each_piece(&self, each: EachPiece<'_>) -> Result<()>;
}

/// A RAM or a disk as a checkpoint has it. Every page is checked against its name.
///
/// It does not keep the checkpoint in the store: a [`Hold`](crate::Hold) does.
#[derive(Clone)]
pub struct Still {
    store: Store,
    root: Root,
    bytes: u64,
    beneath: Option<(ImageId, Arc<dyn ImageReader>)>,
}

impl Still {
    /// What a page table names, and zeros elsewhere. The last page may be cut short by `bytes`.
    pub fn new(store: Store, root: Root, bytes: u64) -> Self {
        Self { store, root, bytes, beneath: None }
    }

    /// The same above a golden image, which the store knows.
    pub fn above(self, image: ImageId, reader: Arc<dyn ImageReader>) -> Self {
        Self { beneath: Some((image, reader)), ..self }
    }

    /// Reads one page.
    pub fn read_page(&self, page: PageNumber, into: &mut PageBuf) -> Result<()> {
        match (self.store.lookup(&self.root, page)?, &self.beneath) {
            (Some(name), _) => self.store.read_page(&name, into),
            (None, Some((_, reader))) if u64::from(page) < reader.blocks() => self.read_beneath(u64::from(page), into),
            (None, _) => {
                into.fill(0);
                Ok(())
            }
        }
    }

    /// Reads neighbouring blocks of the image, and compares them with their names as far as those are known.
    fn read_beneath(&self, first: u64, into: &mut [u8]) -> Result<()> {
        let Some((image, reader)) = &self.beneath else { return Ok(()) };
        let failed = |error| Error::io("read", Path::new(&format!("golden image {image}")))(error);
        reader.read_blocks(first as PageNumber, into).map_err(failed)?;
        reader.check().map_err(failed)?;
        let (blocks, _) = into.as_chunks::<PAGE_SIZE>();
        for (content, block) in blocks.iter().zip(first as PageNumber..) {
            if self.store.image_block(image, block).is_some_and(|name| name != hash::page(content)) {
                return Err(Error::ImageChanged { image: *image, detail: format!("block {block} is not what it was") });
            }
        }
        Ok(())
    }

    /// Fills a window with what lies beneath pages that the table does not name.
    fn fill_beneath(&self, pages: &Range<u64>, named: &[(PageNumber, PageName)], buffer: &mut [u8]) -> Result<()> {
        let Some((image, reader)) = &self.beneath else { return Ok(()) };
        let failed = |error| Error::io("read", Path::new(&format!("golden image {image}")))(error);
        let end = pages.end.min(reader.blocks());
        let mut at = pages.start;
        let mut named = named.iter().map(|(page, _)| u64::from(*page)).peekable();
        while at < end {
            let Some(data) = reader.next_blocks(at).map_err(failed)?.filter(|data| data.start < end) else { break };
            at = data.start.max(at);
            let data_end = data.end.min(end);
            while at < data_end {
                // Up to the next page that the table names, or past it.
                while named.next_if(|page| *page < at).is_some() {}
                if named.next_if_eq(&at).is_some() {
                    at += 1;
                    continue;
                }
                let to = named.peek().map_or(data_end, |page| data_end.min(*page));
                let place = |page: u64| ((page - pages.start) * PAGE) as usize;
                self.read_beneath(at, &mut buffer[place(at)..place(to)])?;
                at = to;
            }
        }
        // Where there seemed to be no data, somebody may have cut some out.
        reader.check().map_err(failed)
    }

    fn window(&self, pages: &Range<u64>, named: Vec<(PageNumber, PageName)>, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        self.fill_beneath(pages, &named, buffer)?;
        let place = Mutex::new(buffer);
        self.store.read_pages(named, &|page, content| {
            let at = ((u64::from(page) - pages.start) * PAGE) as usize;
            place.lock().is_ok_and(|mut buffer| {
                buffer[at..at + PAGE_SIZE].copy_from_slice(content);
                true
            })
        })
    }

    /// Hands over what is not zero of a window.
    fn hand_over(&self, pages: &Range<u64>, buffer: &[u8], each: EachPiece<'_>) -> Result<()> {
        let (contents, _) = buffer.as_chunks::<PAGE_SIZE>();
        let mut at = 0;
        while at < contents.len() {
            let first = at;
            while at < contents.len() && !hash::is_zero(&contents[at]) {
                at += 1;
            }
            if at > first {
                let offset = (pages.start + first as u64) * PAGE;
                let end = (at * PAGE_SIZE).min((self.bytes - pages.start * PAGE) as usize);
                each(offset, &buffer[first * PAGE_SIZE..end])?;
            }
            at += 1;
        }
        Ok(())
    }
}

/// The windows of a walk that are over, one after the other.
struct Windows<'a> {
    still: &'a Still,
    /// Pages in all.
    pages: u64,
    /// The window that comes next.
    next: u64,
    buffer: Vec<u8>,
}

impl Windows<'_> {
    /// Whatever lies before a window.
    fn up_to(&mut self, window: u64, each: EachPiece<'_>) -> Result<()> {
        if self.still.beneath.is_none() {
            // Nothing is there that the table does not name.
            self.next = self.next.max(window);
        }
        while self.next < window {
            self.hand_over(Vec::new(), each)?;
        }
        Ok(())
    }

    /// The next window, and what the table names of it.
    fn hand_over(&mut self, named: Vec<(PageNumber, PageName)>, each: EachPiece<'_>) -> Result<()> {
        let pages = self.next * WINDOW..((self.next + 1) * WINDOW).min(self.pages);
        self.next += 1;
        let buffer = &mut self.buffer[..((pages.end - pages.start) * PAGE) as usize];
        self.still.window(&pages, named, buffer)?;
        self.still.hand_over(&pages, buffer, each)
    }
}

impl Contents for Still {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let within = self.bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let (mut rest, behind) = into.split_at_mut(within);
        behind.fill(0);
        let (mut at, mut page) = (offset, [0; PAGE_SIZE]);
        while !rest.is_empty() {
            let from = (at % PAGE) as usize;
            let (now, later) = rest.split_at_mut(rest.len().min(PAGE_SIZE - from));
            self.read_page((at / PAGE) as PageNumber, &mut page)?;
            now.copy_from_slice(&page[from..from + now.len()]);
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn for_each_piece(&self, each: EachPiece<'_>) -> Result<()> {
        let pages = self.bytes.div_ceil(PAGE);
        let mut windows = Windows { still: self, pages, next: 0, buffer: vec![0; WINDOW.min(pages) as usize * PAGE_SIZE] };
        let (mut named, mut of) = (Vec::new(), 0);
        self.store.for_each_page(&self.root, &mut |page, name| {
            let window = u64::from(page) / WINDOW;
            // A table may be longer than what is left of its disk.
            if window != of && !named.is_empty() {
                windows.up_to(of, each)?;
                windows.hand_over(std::mem::take(&mut named), each)?;
            }
            of = window;
            if u64::from(page) < pages {
                named.push((page, name));
            }
            Ok(())
        })?;
        if !named.is_empty() {
            windows.up_to(of, each)?;
            windows.hand_over(named, each)?;
        }
        windows.up_to(pages.div_ceil(WINDOW), each)
    }
}
