//! Written pages that need be neither copied nor hashed, because somebody knows that they equal blocks of the machine's disks.
//!
//! They are set aside when they are first named, while the guest runs. In the pause those go of which it is no longer so, and are copied with the rest; the others are
//! taken by the names of their blocks once the disks are saved.

use crate::{Error, Result, staging::Staging};
use fermata_checkpoint::Failure;
use fermata_linux::MemoryFile;
use fermata_store::{Class, Writer};
use fermata_types::{Mapped, PageName, PageNumber, PageSet};
use std::{collections::BTreeMap, sync::Arc};

/// Who knows which pages of a machine's memory equal blocks of its disks.
///
/// The answers of [`find`](Self::find) and [`lost`](Self::lost) are right while the machine and its disks stand still, once [`written`](Self::written) was
/// told all that was written up to then. At other times they are guesses.
pub trait KnownPages: Send + Sync {
    /// These pages were written by QEMU or by the guest.
    fn written(&self, pages: &PageSet);

    /// Those of the pages that equal a block, in order.
    fn find(&self, pages: &PageSet) -> Vec<Mapped>;

    /// Pages of which what was found is so no longer, since this was last asked; none: it may be so of any.
    fn lost(&self) -> Option<PageSet>;

    /// Tells `each` the names of the pages, each once, as of the checkpoint that `storage` writes. The disks must be saved in it already.
    fn name(&self, pages: &[Mapped], storage: &mut Writer, each: &mut dyn FnMut(Mapped, PageName, Class)) -> Result<(), Failure>;

    /// One of the answers was wrong: nothing that is known now is to be believed.
    fn distrust(&self);

    /// What people call a disk.
    fn disk(&self, number: u32) -> String;
}

/// The pages of one checkpoint that are set aside.
#[derive(Default)]
pub(crate) struct Aside {
    known: Option<Arc<dyn KnownPages>>,
    pages: BTreeMap<PageNumber, Mapped>,
    /// Look at the content of these pages all the same.
    pub check: bool,
}

impl Aside {
    pub fn new(known: Option<Arc<dyn KnownPages>>) -> Self {
        Self { known, ..Self::default() }
    }

    /// A checkpoint begins.
    pub fn clear(&mut self) {
        self.pages.clear();
        // What was lost before is of nobody's concern.
        self.known.as_ref().map(|known| known.lost());
    }

    /// Tells of writes by QEMU and the guest.
    pub fn written(&self, pages: &PageSet) {
        if let Some(known) = &self.known {
            known.written(pages);
        }
    }

    /// Sets aside what equals a block. Returns what has to be copied: the others, and those set aside before of which it is no longer so.
    pub fn set_aside(&mut self, mut pages: PageSet) -> PageSet {
        let Some(known) = &self.known else { return pages };
        match known.lost() {
            Some(lost) => pages.extend(lost.iter().filter(|page| self.pages.remove(page).is_some())),
            None => pages.extend(std::mem::take(&mut self.pages).into_keys()),
        }
        for mapped in known.find(&pages) {
            pages.remove(mapped.page);
            self.pages.insert(mapped.page, mapped);
        }
        pages
    }

    /// What is set aside in the end. In the pause.
    pub fn capture(&mut self, ram: &MemoryFile) -> Result<CapturedAside> {
        let mut content = Staging::default();
        let pages = std::mem::take(&mut self.pages);
        if self.check {
            let all = pages.keys().copied().collect();
            content.copy(ram, &all).map_err(|source| Error::Io { what: "copying pages of", path: ram.path().to_owned(), source })?;
        }
        Ok(CapturedAside { known: self.known.clone(), pages, content })
    }
}

/// The same, of a machine that has gone on.
#[derive(Default)]
pub(crate) struct CapturedAside {
    known: Option<Arc<dyn KnownPages>>,
    pages: BTreeMap<PageNumber, Mapped>,
    /// What the pages hold, if that is to be checked.
    content: Staging,
}

impl CapturedAside {
    /// Drops copies that were made before it turned out that they are not needed.
    pub fn spare(&self, copies: &mut Staging) {
        self.pages.keys().for_each(|page| copies.forget(*page));
    }

    /// The pages.
    pub fn pages(&self) -> PageSet {
        self.pages.keys().copied().collect()
    }

    /// Takes pages out of it.
    pub fn take(&mut self, which: impl Fn(PageNumber) -> bool) -> Vec<PageNumber> {
        let taken: Vec<_> = self.pages.keys().copied().filter(|page| which(*page)).collect();
        for page in &taken {
            self.pages.remove(page);
            self.content.forget(*page);
        }
        taken
    }

    /// Adds names and classes of the pages.
    pub fn save(self, machine: &str, storage: &mut Writer, into: &mut BTreeMap<PageNumber, (PageName, Class)>) -> Result<(), Failure> {
        let Some(known) = self.known.filter(|_| !self.pages.is_empty()) else { return Ok(()) };
        let pages: Vec<_> = self.pages.values().copied().collect();
        known.name(&pages, storage, &mut |mapped, name, class| _ = into.insert(mapped.page, (name, class)))?;
        for (page, content) in self.content.iter() {
            let (name, _) = storage.put_page(content)?;
            let mapped = self.pages[&page];
            if into[&page].0 != name {
                known.distrust();
                let (machine, disk) = (machine.to_owned(), known.disk(mapped.disk));
                return Err(Error::Mistaken { machine, page, block: mapped.block, disk, expected: into[&page].0, found: name }.into());
            }
        }
        Ok(())
    }
}
