//! What neither this store nor a remote has of a checkpoint that comes from there: whoever needs it waits until somebody has repaired the remote, as for one that is lost.
//!
//! A machine or a disk that failed instead would be the end of its guest, or be remembered by it: no checkpoint could be taken of that, nor anything be repaired. Before machines
//! run there is nothing to lose yet, and whoever needs something then is told.
//!
//! Waited for is what the tables of the checkpoint and of its golden images lead to, and nothing else that somebody may ask for. So whoever looks something up in one of them
//! notes what is nowhere, and whoever reads that waits for it like for all that is away.

use super::{Away, Name};
use crate::{
    Error, Result,
    error::Named,
    table::{self, Loaded, Nodes},
};
use fermata_types::{NodeName, PageName, PageNumber, Root, ZERO_PAGE};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// What is waited for though it is nowhere.
#[derive(Default)]
pub(super) struct Lacking {
    machines_run: AtomicBool,
    names: Mutex<HashSet<Name>>,
}

impl Lacking {
    fn names(&self) -> MutexGuard<'_, HashSet<Name>> {
        // A name is in it or not, whoever panicked.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has(&self, name: &Name) -> bool {
        self.names().contains(name)
    }
}

impl Away {
    /// To be called right before machines run: what they need from now on and nobody has is waited for.
    pub fn machines_begin(&self) {
        self.lacking.machines_run.store(true, Ordering::Release);
    }

    /// Whether what is nowhere of this table is waited for.
    pub(crate) fn awaits(&self, root: &Root) -> bool {
        let is_of_a_part = || self.record.parts.iter().any(|part| part.tables.values().any(|table| table == root));
        self.lacking.machines_run.load(Ordering::Acquire) && is_of_a_part()
    }

    /// What such a table says of one page. If that is nowhere, whoever reads it waits.
    pub(crate) fn lookup(&self, root: &Root, page: PageNumber) -> Result<Option<PageName>> {
        let found = table::lookup(self, root, page)?;
        if let Some(name) = found.filter(|name| *name != ZERO_PAGE && !self.has(name.as_bytes())) {
            let (inner, name) = (&self.store.0, name.as_bytes());
            let place = inner.index.location(&*inner.index.read()?, &inner.index.pages, name, &Named("page", name))?;
            if !inner.is_readable(place) {
                self.lacking.names().insert(*name);
            }
        }
        Ok(found)
    }
}

impl Nodes for Away {
    fn load(&self, name: &NodeName) -> Result<Arc<Loaded>> {
        match self.store.0.load(name) {
            Err(Error::Missing { .. }) => {
                self.lacking.names().insert(name.0);
                self.store.0.load(name)
            }
            loaded => loaded,
        }
    }

    fn misplaced(&self, name: &NodeName, detail: String) -> Error {
        self.store.0.misplaced(name, detail)
    }
}
