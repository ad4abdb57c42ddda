//! Word by word: what another tracker names as written is compared with what it was, so that only words that differ are named. Costs a second copy of every page
//! that was ever written, and reads each written page once more.

use crate::{Error, Result, Tracker, Words};
use fermata_linux::MemoryFile;
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet};
use std::{collections::HashMap, ops::Range, sync::Arc};

/// A tracker, made finer.
pub struct DifferenceTracker {
    inner: Box<dyn Tracker>,
    memory: Arc<MemoryFile>,
    before: HashMap<PageNumber, Box<PageBuf>>,
    /// To be compared: expected, or named by the inner tracker when reading failed half way.
    left: PageSet,
}

impl std::fmt::Debug for DifferenceTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DifferenceTracker({}, {} pages)", self.inner.mechanism(), self.before.len())
    }
}

impl DifferenceTracker {
    /// Over `inner`, which watches this memory. A page that is written for the first time is named as a whole.
    pub fn new(inner: Box<dyn Tracker>, memory: Arc<MemoryFile>) -> Self {
        Self { inner, memory, before: HashMap::new(), left: PageSet::new() }
    }
}

impl Tracker for DifferenceTracker {
    fn mechanism(&self) -> &'static str {
        "difference"
    }

    fn take(&mut self) -> Result<PageSet> {
        Ok(self.take_words()?.pages())
    }

    fn take_words(&mut self) -> Result<Words> {
        self.left |= self.inner.take()?;
        let (mut words, mut now) = (Words::default(), [0; PAGE_SIZE]);
        for page in self.left.clone() {
            let read = self.memory.read_at(u64::from(page) * PAGE_SIZE as u64, &mut now);
            if let Err(source) = read {
                // What was compared is known as it is now, and must still be named.
                self.before.retain(|page, _| !words.whole.contains(*page));
                words.parts.iter().for_each(|(page, _)| _ = self.before.remove(page));
                return Err(Error::Io { mechanism: "difference", what: "reading the memory", source });
            }
            match self.before.get_mut(&page) {
                None => {
                    self.before.insert(page, Box::new(now));
                    words.whole.insert(page);
                }
                Some(before) => {
                    let mask = differing(before, &now);
                    if mask != [0; 8] {
                        **before = now;
                        words.parts.push((page, mask));
                    }
                }
            }
        }
        self.left.clear();
        Ok(words)
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        // Of these the inner tracker may know nothing, and a page that it names later is compared with what is remembered here.
        self.left.insert_range(pages.clone());
        self.inner.expect_writes(pages)
    }
}

fn differing(before: &PageBuf, now: &PageBuf) -> crate::WordMask {
    let (before, now) = (before.as_chunks::<8>().0, now.as_chunks::<8>().0);
    let mut mask = [0; 8];
    for (nth, _) in before.iter().zip(now).enumerate().filter(|(_, (before, now))| before != now) {
        mask[nth / 64] |= 1 << (nth % 64);
    }
    mask
}
