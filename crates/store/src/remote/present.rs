//! Looks whether all of checkpoints is on a remote: before what is here goes, and where something there may have been lost.

use super::{
    JOBS, Name, Remote, apart, check_format, image, in_parallel,
    lease::Going,
    record,
    shelf::{Shelf, Spot},
};
use crate::{Error, Progress, Record, Result, Store, error::Named, index::Location};
use fermata_types::{CheckpointId, ImageId, PageName, Root, ZERO_PAGE};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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
    /// Fails unless all that these checkpoints are made of is on the remote: see [`verify_remote`](Self::verify_remote). Golden images are not looked at.
    pub fn check_remote(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        afresh: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        match Check::begin(self, remote, afresh)?.checkpoints(experiment, ids, progress)?.broken.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Looks whether all that these checkpoints are made of is on the remote, as its packs tell that are there now; but for pages that lie in golden images here. Of the
    /// golden images that they stand on, all of those that were sent there is to be there. With `afresh` the tables of contents are read again, which once is enough for
    /// whoever looks at several experiments. They are checked by their names and the packs by their lengths; what is in them was checked when it was sent, and is when it is
    /// read.
    pub fn verify_remote(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        afresh: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Verified> {
        let mut check = Check::begin(self, remote, afresh)?;
        let going = Going::look(remote)?;
        let stays = |(id, objects): (ImageId, BTreeSet<String>)| {
            let object = objects.into_iter().find(|object| !going.images.contains(object));
            object.map(|object| (id, object))
        };
        check.images = image::all(remote)?.into_iter().filter_map(stays).collect();
        check.checkpoints(experiment, ids, progress)
    }

    /// Fails unless all of a golden image that has this table is on the remote, as its packs tell that are there now; but for what lies in golden images here.
    pub(super) fn check_remote_image(&self, remote: &dyn Remote, root: &Root) -> Result<()> {
        let mut check = Check::begin(self, remote, true)?;
        let found = Spot::top(root, None)?.map_or(Ok(()), |top| check.below(top, false));
        check.end();
        found
    }
}

struct Check<'a> {
    shelf: Shelf<'a>,
    /// Golden images on the remote that are to be looked at, and the objects that describe them.
    images: BTreeMap<ImageId, String>,
    /// Nodes and pages that are there, with all below them: but for pages that lie in golden images here, and without that exception.
    whole: [HashSet<Name>; 2],
    /// What a pull fetched that was cut off, or that is under way, is its own.
    is_of_a_pull: bool,
}

impl<'a> Check<'a> {
    /// Looks what lies in the packs of the remote: with `afresh` without a cache.
    fn begin(store: &'a Store, remote: &'a dyn Remote, afresh: bool) -> Result<Self> {
        check_format(remote, false)?;
        let is_of_a_pull = store.0.incoming().directory.exists();
        let mut shelf = Shelf::new(store, remote, JOBS);
        shelf.look_again(&Going::look(remote)?, afresh, &mut |_, _| {})?;
        Ok(Self { shelf, images: BTreeMap::new(), whole: Default::default(), is_of_a_pull })
    }

    /// Removes what was fetched.
    fn end(self) {
        if !self.is_of_a_pull {
            self.shelf.clear();
        }
    }

    fn checkpoints(mut self, experiment: &str, ids: &[CheckpointId], progress: &mut dyn FnMut(Progress)) -> Result<Verified> {
        let remote = self.shelf.remote;
        let mut verified = Verified { unreadable: self.shelf.catalog().unreadable.clone(), ..Verified::default() };
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
                if let Err(error) = apart(found.and_then(|(record, _)| self.checkpoint(&record)))? {
                    verified.broken.push((*id, error));
                }
            }
        }
        self.end();
        Ok(verified)
    }

    fn checkpoint(&mut self, record: &Record) -> Result<()> {
        // What the last ones shared with it is not looked at again.
        self.shelf.nodes.clear();
        for part in &record.parts {
            part.blobs.values().try_for_each(|blob| self.has("blob", blob.as_bytes()))?;
            for root in part.tables.values() {
                Spot::top(root, None)?.map_or(Ok(()), |top| self.below(top, false))?;
            }
        }
        record.images.iter().try_for_each(|id| self.image(id))
    }

    /// All of a golden image is there, also what lies in it here: who fetches it from there has it nowhere.
    fn image(&mut self, id: &ImageId) -> Result<()> {
        let Some(object) = self.images.get(id) else { return Ok(()) };
        let root = image::record(self.shelf.remote, object)?.root();
        Spot::top(&root, None)?.map_or(Ok(()), |top| self.below(top, true))?;
        // It is whole, and needs not be looked at for the next checkpoint.
        self.images.remove(id);
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

    /// Everything from this node on down is there; but for pages that lie in golden images here, where not `all` of it is to be.
    fn below(&mut self, spot: Spot, all: bool) -> Result<()> {
        let of = usize::from(all);
        if self.whole[of].contains(&spot.node.0) {
            return Ok(());
        }
        self.has("node", spot.node.as_bytes())?;
        let node = match apart(self.shelf.fetched_level(&spot.node, spot.level))? {
            Ok(node) => node,
            // What is damaged here says nothing of what is there.
            Err(_) => self.shelf.node(&spot.node, spot.level)?.node,
        };
        if spot.level > 0 {
            spot.below(self.shelf.store, &node).into_iter().try_for_each(|below| self.below(below, all))?;
        } else {
            for (_, entry) in node.iter().filter(|(_, entry)| *entry != ZERO_PAGE.0) {
                if self.shelf.catalog().find(&entry).is_none() && !self.whole[of].contains(&entry) {
                    if all {
                        return self.has("page", &entry);
                    }
                    self.in_an_image(&PageName(entry))?;
                    self.whole[of].insert(entry);
                }
            }
        }
        self.whole[of].insert(spot.node.0);
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
