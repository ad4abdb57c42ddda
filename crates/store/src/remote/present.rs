//! Looks whether all of a checkpoint is on a remote, before what is here goes.

use super::{Name, Remote, catalog::Catalog, check_format, lease::Going, record};
use crate::{
    Error, Progress, Result, Store,
    error::Named,
    index::Location,
    table::{Nodes as _, top_level},
};
use fermata_types::{CheckpointId, NodeName, PageName, ZERO_PAGE};
use std::collections::HashSet;

impl Store {
    /// Fails unless all that these checkpoints are made of is on the remote, as its packs tell that are there now; but for pages that lie in golden images. The
    /// tables of contents are checked by their names and the packs by their lengths; what is in them was checked when it was sent, and is when it is read.
    pub fn check_remote(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        check_format(remote, false)?;
        let catalog = Catalog::read(self, remote, 4, &Going::look(remote)?, &mut |_| {})?;
        let mut check = Check { store: self, remote, catalog, seen: HashSet::new() };
        for (done, id) in ids.iter().enumerate() {
            progress(Progress { done: done as u64, total: ids.len() as u64 });
            let (there, _) = record(remote, experiment, id)?;
            for part in &there.parts {
                part.blobs.values().try_for_each(|blob| check.has("blob", blob.as_bytes()))?;
                for root in part.tables.values() {
                    root.node.map_or(Ok(()), |node| check.below(&node, top_level(root)?))?;
                }
            }
        }
        Ok(())
    }
}

struct Check<'a> {
    store: &'a Store,
    remote: &'a dyn Remote,
    catalog: Catalog,
    seen: HashSet<Name>,
}

impl Check<'_> {
    fn has(&self, what: &'static str, name: &Name) -> Result<()> {
        match self.catalog.find(name) {
            Some(_) => Ok(()),
            None => Err(Error::refused(
                format!("{} is in no pack at {}", Named(what, name), self.remote),
                "somebody removes what is pushed there; push again",
            )),
        }
    }

    fn below(&mut self, name: &NodeName, level: u8) -> Result<()> {
        if !self.seen.insert(name.0) {
            return Ok(());
        }
        self.has("node", name.as_bytes())?;
        let loaded = self.store.0.load_level(name, level)?;
        for (_, entry) in loaded.node.iter() {
            match level {
                0 if entry == ZERO_PAGE.0 || self.catalog.find(&entry).is_some() || !self.seen.insert(entry) => {}
                0 => self.in_an_image(&PageName(entry))?,
                _ => self.below(&NodeName(entry), level - 1)?,
            }
        }
        Ok(())
    }

    fn in_an_image(&self, name: &PageName) -> Result<()> {
        let inner = &self.store.0;
        let place = inner.locate_page(&*inner.index.read()?, name)?;
        if let Location::Image { .. } = place { Ok(()) } else { self.has("page", name.as_bytes()) }
    }
}
