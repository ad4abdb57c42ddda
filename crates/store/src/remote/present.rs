//! Looks whether all of checkpoints is on a remote: before what is here goes, and where something there may have been lost.

use super::{
    JOBS, Name, Remote, apart, check_format, in_parallel,
    lease::Going,
    record,
    shelf::{Shelf, Spot},
};
use crate::{Error, Progress, Record, Result, Store, error::Named, index::Location};
use fermata_types::{CheckpointId, PageName, ZERO_PAGE};
use std::collections::{HashMap, HashSet};

/// Checkpoints whose records are read together.
const GROUP: usize = 64;

/// What was found of checkpoints on a remote.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Verified {
    /// Those of which something is not there, and what first.
    pub broken: Vec<(CheckpointId, Error)>,
    /// What is wrong with packs that cannot be used. Nothing may need them.
    pub unreadable: Vec<String>,
}

impl Store {
    /// Fails unless all that these checkpoints are made of is on the remote: see [`verify_remote`](Self::verify_remote).
    pub fn check_remote(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        afresh: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        match self.verify_remote(remote, experiment, ids, afresh, progress)?.broken.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks whether all that these checkpoints are made of is on the remote, as its packs tell that are there now; but for pages that lie in golden images. With `afresh` the
    /// tables of contents are read again, which once is enough for whoever looks at several experiments. They are checked by their names and the packs by their lengths; what is in them was checked
    /// when it was sent, and is when it is read.
    pub fn verify_remote(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        afresh: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Verified> {
        check_format(remote, false)?;
        // What a pull fetched that was cut off, or that is under way, is its own.
        let is_of_a_pull = self.0.incoming().directory.exists();
        let mut shelf = Shelf::new(self, remote, JOBS);
        shelf.look_again(&Going::look(remote)?, afresh, &mut |_, _| {})?;
        let mut verified = Verified { unreadable: shelf.catalog().unreadable.clone(), ..Verified::default() };
        let mut check = Check { shelf, whole: HashSet::new() };
        let (mut done, total) = (0, ids.len() as u64);
        for group in ids.chunks(GROUP) {
            let mut records = HashMap::new();
            let read = |id: &CheckpointId| apart(record(remote, experiment, id));
            in_parallel(JOBS, group, read, |id, found| {
                records.insert(*id, found);
                Ok(())
            })?;
            for id in group {
                progress(Progress { done, total });
                done += 1;
                // One that is named twice is looked at once.
                let Some(found) = records.remove(id) else { continue };
                if let Err(error) = apart(found.and_then(|(record, _)| check.checkpoint(&record)))? {
                    verified.broken.push((*id, error));
                }
            }
        }
        if !is_of_a_pull {
            check.shelf.clear();
        }
        Ok(verified)
    }
}

struct Check<'a> {
    shelf: Shelf<'a>,
    /// Nodes and pages that are there, with all below them.
    whole: HashSet<Name>,
}

impl Check<'_> {
    fn checkpoint(&mut self, record: &Record) -> Result<()> {
        // What the last ones shared with it is not looked at again.
        self.shelf.nodes.clear();
        for part in &record.parts {
            part.blobs.values().try_for_each(|blob| self.has("blob", blob.as_bytes()))?;
            for root in part.tables.values() {
                Spot::top(root, None)?.map_or(Ok(()), |top| self.below(top))?;
            }
        }
        Ok(())
    }

    fn has(&self, what: &'static str, name: &Name) -> Result<()> {
        match self.shelf.catalog().find(name) {
            Some(_) => Ok(()),
            None => Err(Error::refused(
                format!("{} is in no pack at {}", Named(what, name), self.shelf.remote),
                "somebody removes what is pushed there, or it was lost: `fermata remote verify --repair` sends it again",
            )),
        }
    }

    fn below(&mut self, spot: Spot) -> Result<()> {
        if self.whole.contains(&spot.node.0) {
            return Ok(());
        }
        self.has("node", spot.node.as_bytes())?;
        let node = match apart(self.shelf.fetched_level(&spot.node, spot.level))? {
            Ok(node) => node,
            // What is damaged here says nothing of what is there.
            Err(_) => self.shelf.node(&spot.node, spot.level)?.node,
        };
        if spot.level > 0 {
            spot.below(self.shelf.store, &node).into_iter().try_for_each(|below| self.below(below))?;
        } else {
            for (_, entry) in node.iter().filter(|(_, entry)| *entry != ZERO_PAGE.0) {
                if self.shelf.catalog().find(&entry).is_none() && !self.whole.contains(&entry) {
                    self.in_an_image(&PageName(entry))?;
                    self.whole.insert(entry);
                }
            }
        }
        self.whole.insert(spot.node.0);
        Ok(())
    }

    /// Fails unless a page lies in a golden image here.
    fn in_an_image(&self, name: &PageName) -> Result<()> {
        let inner = &self.shelf.store.0;
        match apart(inner.locate_page(&*inner.index.read()?, name))? {
            Ok(Location::Image { .. }) => Ok(()),
            _ => self.has("page", name.as_bytes()),
        }
    }
}
