//! Pages that nobody told of since the last checkpoint, looked at all the same: `--paranoid`.
//!
//! They are hashed while the guest runs, and compared with what the page table of the last checkpoint names. One that differs was written at some time between
//! that checkpoint and the look, so the tracker has to have told of it by the end of the coming pause. What it has not told of then, it has missed.

use crate::{Error, Machine, Result};
use fermata_store::Store;
use fermata_types::{PAGE_SIZE, PageName, PageSet, Root, ZERO_PAGE};
use std::sync::{Arc, Mutex};

/// What is known of the pages of a machine that are not written.
#[derive(Default)]
pub(crate) struct Untold {
    /// They were left out when they were taken, for they were free, and have not been written since: their content counts for nothing.
    left_out: PageSet,
    /// They held something else than in the last checkpoint when they were looked at.
    differing: PageSet,
}

/// The pages that a checkpoint under way leaves out, told by who saves it.
pub(crate) type LeftOut = Arc<Mutex<PageSet>>;

impl Untold {
    /// A checkpoint begins.
    pub fn clear(&mut self) {
        self.differing.clear();
    }

    /// Looks at every page but these. Those that are yet to be restored equal the last checkpoint by construction, and are not fetched for that.
    pub fn look(&mut self, machine: &Machine, base: &Root, store: &Store, beside: &PageSet) -> Result<()> {
        let mut names = vec![ZERO_PAGE; base.pages as usize];
        store.for_each_page(base, &mut |page, name| {
            names[page as usize] = name;
            Ok(())
        })?;
        let mut content = [0; PAGE_SIZE];
        let ram = machine.ram();
        for page in &(machine.populated()? - beside - &self.left_out) {
            let failed = |source| Error::Io { what: "looking at a page of", path: ram.path().to_owned(), source };
            ram.read_at(u64::from(page) * PAGE_SIZE as u64, &mut content).map_err(failed)?;
            if PageName(*blake3::hash(&content).as_bytes()) != names[page as usize] {
                self.differing.insert(page);
            }
        }
        Ok(())
    }

    /// Of those that differed, the ones that are not among the written pages. In the pause.
    pub fn missed(&self, written: &PageSet) -> PageSet {
        &self.differing - written
    }

    /// A checkpoint that took these pages became permanent.
    pub fn settle(&mut self, taken: &PageSet, left_out: &LeftOut) {
        self.left_out -= taken;
        self.left_out |= std::mem::take(&mut *left_out.lock().expect("nobody panics with the lock"));
    }
}
