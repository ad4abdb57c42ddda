//! Copy-on-write: pages that a checkpoint has taken note of and nobody has copied yet (Elnozahy, Johnson and Zwaenepoel 1992, section 2.1).
//!
//! In the pause the written pages are only noted here, and stay write-protected. Behind the running guest the checkpoint copies them in its own time;
//! who wants to write to one first has it copied, and then goes on.

use crate::staging::Staging;
use fermata_linux::MemoryFile;
use fermata_types::{PageNumber, PageSet};
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

/// The pages of one machine that wait to be copied.
pub(crate) struct Held {
    ram: Arc<MemoryFile>,
    /// Looked at before each access of a device: without a checkpoint under way it costs next to nothing.
    any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: PageSet,
    /// Copied because somebody was about to write.
    copies: Staging,
    /// A page could not be copied before it was written: the checkpoint must fail, the guest need not.
    failure: Option<io::Error>,
}

impl Held {
    pub fn new(ram: Arc<MemoryFile>) -> Self {
        Self { ram, any: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Takes note of pages, all of them write-protected. Nobody may be writing.
    pub fn hold(self: &Arc<Self>, pages: PageSet) -> HeldPages {
        *self.state() = State { waiting: pages, ..State::default() };
        self.any.store(true, Ordering::Release);
        HeldPages(self.clone())
    }

    /// To be called before somebody writes to these pages.
    pub fn preserve(&self, first: PageNumber, pages: u32) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        for page in first..first.saturating_add(pages) {
            if state.waiting.remove(page)
                && let Err(error) = state.copies.copy(&self.ram, &PageSet::from_iter([page]))
            {
                state.failure.get_or_insert(error);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
    }
}

/// The pages of one checkpoint. Dropped, they may be written again unseen.
pub(crate) struct HeldPages(Arc<Held>);

impl HeldPages {
    /// Copies of the next pages, about this many; none when all have been handed out.
    pub fn next(&self, pages: usize) -> io::Result<Option<Staging>> {
        let mut state = self.0.state();
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        let mut batch = std::mem::take(&mut state.copies);
        let some: PageSet = state.waiting.iter().take(pages).collect();
        // With the lock held: until they are copied nobody may be let through to write.
        batch.copy(&self.0.ram, &some)?;
        state.waiting -= &some;
        Ok((!batch.is_empty()).then_some(batch))
    }
}

impl HeldPages {
    /// Every page that has not been handed out.
    pub fn pages(&self) -> PageSet {
        let state = self.0.state();
        state.copies.iter().map(|(page, _)| page).chain(state.waiting.iter()).collect()
    }

    /// Hands out one page before its turn, if it has not been handed out.
    pub fn fetch(&self, page: PageNumber, into: &mut Staging) -> io::Result<()> {
        let mut state = self.0.state();
        if state.waiting.contains(page) {
            // With the lock held, as above.
            into.copy(&self.0.ram, &PageSet::from_iter([page]))?;
            state.waiting.remove(page);
        } else if let Some(content) = state.copies.get(page) {
            into.put(page, content);
            state.copies.forget(page);
        }
        Ok(())
    }
}

impl Drop for HeldPages {
    fn drop(&mut self) {
        self.0.any.store(false, Ordering::Release);
        *self.0.state() = State::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_types::PAGE_SIZE;
    use std::{collections::BTreeMap, path::PathBuf};

    #[test]
    fn a_page_is_handed_out_as_it_was_when_it_was_noted() {
        const PAGES: u32 = 64;
        let path = PathBuf::from(format!("/dev/shm/fermata-held-{}", std::process::id()));
        let ram = Arc::new(MemoryFile::create(&path, u64::from(PAGES) * PAGE_SIZE as u64).unwrap());
        let fill = |page: u32, value: u8| ram.write_at(u64::from(page) * PAGE_SIZE as u64, &[value; PAGE_SIZE]).unwrap();
        (0..PAGES).for_each(|page| fill(page, page as u8));
        let held = Arc::new(Held::new(ram.clone()));
        let noted = held.hold((0..PAGES).filter(|page| page % 3 != 0).collect());
        let overwrite = |first: u32, pages: u32| {
            held.preserve(first, pages);
            (first..first + pages).for_each(|page| fill(page, 255));
        };
        overwrite(40, 10);
        let mut seen = BTreeMap::new();
        let mut early = Staging::default();
        for page in [1, 2, 3, 41, 1] {
            noted.fetch(page, &mut early).unwrap();
            overwrite(1, 3);
        }
        early.iter().for_each(|(page, content)| assert_eq!(seen.insert(page, content[100]), None));
        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), [1, 2, 41]);
        assert_eq!(noted.pages(), (4..PAGES).filter(|page| page % 3 != 0 && *page != 41).collect());
        while let Some(batch) = noted.next(7).unwrap() {
            batch.iter().for_each(|(page, content)| assert_eq!(seen.insert(page, content[100]), None, "page {page} twice"));
            overwrite(20, 5);
            overwrite(40, 10);
        }
        let expected: BTreeMap<_, _> = (0..PAGES).filter(|page| page % 3 != 0).map(|page| (page, page as u8)).collect();
        assert_eq!(seen, expected);
        drop(noted);
        held.preserve(0, PAGES);
        assert!(held.state().copies.is_empty(), "nobody asked for these");
    }
}
