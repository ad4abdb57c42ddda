//! Removing checkpoints, branches and experiments: what is named becomes invisible in one transaction. Packs are left alone; space comes
//! back with [`Store::collect`].

use crate::{
    Error, Record, Result, Store,
    index::{Index, ScanFrom},
    recent,
    refs::{self, Ref},
    removed,
};
use fermata_types::CheckpointId;
use heed::{RoTxn, RwTxn};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
};

/// What to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Removal {
    /// These checkpoints. Their children stay, and count the nearest ancestor that remains as their parent.
    pub checkpoints: Vec<CheckpointId>,
    /// These branches, with the checkpoints that are reached from no other branch.
    pub branches: Vec<BranchName>,
    /// All checkpoints, branches and tags of these experiments.
    pub experiments: Vec<String>,
    /// Also what is tagged, and the tags with it.
    pub force: bool,
    /// Only say what would go.
    pub dry_run: bool,
}

/// A branch of an experiment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BranchName {
    /// The experiment.
    pub experiment: String,
    /// The branch.
    pub branch: String,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Checkpoints, by id.
    pub checkpoints: Vec<RemovedCheckpoint>,
    /// Branches that went back to an ancestor of their head, or went.
    pub branches: Vec<MovedBranch>,
    /// Tags that went.
    pub tags: Vec<RemovedTag>,
}

/// A checkpoint that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedCheckpoint {
    /// Its id.
    pub id: CheckpointId,
    /// The experiment that it was of.
    pub experiment: String,
    /// The branch that it grew on.
    pub branch: String,
}

/// A branch whose head was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedBranch {
    /// The experiment.
    pub experiment: String,
    /// The branch.
    pub branch: String,
    /// Its head before.
    pub from: CheckpointId,
    /// Its head now; none: the branch is gone.
    pub to: Option<CheckpointId>,
}

/// A tag that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedTag {
    /// The experiment.
    pub experiment: String,
    /// The tag.
    pub tag: String,
    /// The checkpoint that it was on.
    pub checkpoint: CheckpointId,
}

impl Store {
    /// Removes checkpoints, branches, experiments, in one transaction. Refused if anything of it is tagged, unless forced; missing if
    /// anything that is named is not there.
    ///
    /// A branch whose head is removed goes back to the nearest ancestor that remains; when none does, it goes. A run that lives stays unhurt:
    /// what it stands on is held (see [`Store::hold`]), and its next checkpoint is taken as a child of what remains.
    pub fn remove(&self, what: &Removal) -> Result<Removed> {
        let index = &self.0.index;
        if what.dry_run {
            return Ok(Plan::new(index, &*index.read()?, what)?.removed());
        }
        index.write(|write| {
            let plan = Plan::new(index, write, what)?;
            plan.apply(index, write)?;
            Ok(plan.removed())
        })
    }
}

/// What is to go, thought through.
struct Plan<'a> {
    index: &'a Index,
    refs: Vec<Ref>,
    targets: BTreeMap<CheckpointId, Record>,
    moved: Vec<MovedBranch>,
    tags: Vec<RemovedTag>,
}

impl<'a> Plan<'a> {
    fn new(index: &'a Index, read: &RoTxn<'_>, what: &Removal) -> Result<Self> {
        let refs = refs::all(index, read)?;
        let mut plan = Self { index, refs, targets: BTreeMap::new(), moved: Vec::new(), tags: Vec::new() };
        for id in &what.checkpoints {
            let record = plan.record(read, id)?.ok_or_else(|| refs::no_checkpoint(id))?;
            plan.targets.insert(*id, record);
        }
        if !what.branches.is_empty() {
            plan.add_branches(read, &what.branches)?;
        }
        for experiment in &what.experiments {
            plan.add_experiment(read, experiment)?;
        }
        let goes = |branch: &Ref| {
            let named = |name: &BranchName| name.experiment == branch.experiment && name.branch == branch.name;
            what.experiments.contains(&branch.experiment) || what.branches.iter().any(named)
        };
        for branch in plan.refs.iter().filter(|name| name.is_branch && (goes(name) || plan.targets.contains_key(&name.id))) {
            let to = if goes(branch) { None } else { plan.remaining(read, branch.id)? };
            plan.moved.push(MovedBranch { experiment: branch.experiment.clone(), branch: branch.name.clone(), from: branch.id, to });
        }
        let of_experiment = |tag: &&Ref| what.experiments.contains(&tag.experiment) || plan.targets.contains_key(&tag.id);
        let tags = plan.refs.iter().filter(|name| !name.is_branch).filter(of_experiment);
        plan.tags = tags.map(|tag| RemovedTag { experiment: tag.experiment.clone(), tag: tag.name.clone(), checkpoint: tag.id }).collect();
        if !plan.tags.is_empty() && !what.force {
            let names: Vec<_> = plan.tags.iter().map(|tag| format!("{}/{}", tag.experiment, tag.tag)).collect();
            let what = format!("{} would be removed, but is tagged: {}", plural(plan.targets.len()), names.join(", "));
            return Err(Error::refused(what, "remove the tags first, or force it, which removes them too"));
        }
        Ok(plan)
    }

    fn record(&self, read: &RoTxn<'_>, id: &CheckpointId) -> Result<Option<Record>> {
        let bytes = self.index.get(read, &self.index.records, id.as_bytes())?;
        bytes.map(|bytes| Record::decode(&bytes, id, self.index.path())).transpose()
    }

    /// What is reached from these branches, or grew on them, and is reached from no other branch.
    fn add_branches(&mut self, read: &RoTxn<'_>, names: &[BranchName]) -> Result<()> {
        let is_named = |experiment: &str, branch: &str| names.iter().any(|name| name.experiment == experiment && name.branch == branch);
        for name in names {
            let is_there =
                self.refs.iter().any(|known| known.is_branch && known.experiment == name.experiment && known.name == name.branch);
            if !is_there {
                let what = format!("branch {}/{}", name.experiment, name.branch);
                return Err(Error::missing(what, "look for the right one with `log`"));
            }
        }
        let mut kept = HashSet::new();
        let mut reached = HashSet::new();
        for branch in self.refs.iter().filter(|name| name.is_branch) {
            let into = if is_named(&branch.experiment, &branch.name) { &mut reached } else { &mut kept };
            let mut at = refs::remaining(self.index, read, Some(branch.id))?;
            while let Some(id) = at.filter(|id| into.insert(*id)) {
                let parent = self.record(read, &id)?.and_then(|record| record.parent);
                at = refs::remaining(self.index, read, parent)?;
            }
        }
        self.scan(read, |id, record| !kept.contains(id) && (reached.contains(id) || is_named(&record.experiment, &record.branch)))
    }

    fn add_experiment(&mut self, read: &RoTxn<'_>, experiment: &str) -> Result<()> {
        self.scan(read, |_, record| record.experiment == experiment)?;
        let is_there = self.targets.values().any(|record| record.experiment == experiment)
            || self.refs.iter().any(|known| known.experiment == experiment);
        if is_there { Ok(()) } else { Err(Error::missing(format!("experiment {experiment}"), "look for the right one with `log`")) }
    }

    fn scan(&mut self, read: &RoTxn<'_>, is_target: impl Fn(&CheckpointId, &Record) -> bool) -> Result<()> {
        let index = self.index;
        index.scan(read, &index.records, ScanFrom::Start, |key, value| {
            let id = index.checkpoint_id(key, &"a record")?;
            let record = Record::decode(value, &id, index.path())?;
            if is_target(&id, &record) {
                self.targets.insert(id, record);
            }
            Ok(true)
        })
    }

    /// The nearest of a checkpoint and its ancestors that will remain.
    fn remaining(&self, read: &RoTxn<'_>, id: CheckpointId) -> Result<Option<CheckpointId>> {
        let mut at = Some(id);
        while let Some(record) = at.and_then(|id| self.targets.get(&id)) {
            at = refs::remaining(self.index, read, record.parent)?;
        }
        Ok(at)
    }

    fn apply(&self, index: &Index, write: &mut RwTxn<'_>) -> Result<()> {
        for (id, record) in &self.targets {
            let bytes = index.get(write, &index.records, id.as_bytes())?.map(Cow::into_owned).unwrap_or_default();
            recent::delete(index, write, id, record)?;
            index.put(write, &index.trash, id.as_bytes(), &bytes)?;
            removed::enter(index, write, id, record.parent.as_ref())?;
            self.forget_hints(index, write, id)?;
        }
        if !self.targets.is_empty() {
            let stored = self.targets.values().map(|record| record.cost.stored_bytes);
            let bytes = stored.fold(index.removed_bytes(write)?, u64::saturating_add);
            index.set_removed_bytes(write, bytes)?;
        }
        for branch in &self.moved {
            let key = refs::branch_key(&branch.experiment, &branch.branch)?;
            match branch.to {
                Some(to) => index.put(write, &index.refs, &key, to.as_bytes())?,
                None => _ = index.delete(write, &index.refs, &key)?,
            }
        }
        for tag in &self.tags {
            index.delete(write, &index.refs, &refs::tag_key(&tag.experiment, &tag.tag)?)?;
        }
        Ok(())
    }

    fn forget_hints(&self, index: &Index, write: &mut RwTxn<'_>, id: &CheckpointId) -> Result<()> {
        let mut keys = Vec::new();
        index.scan(write, &index.hints, ScanFrom::At(id.as_bytes()), |key, _| {
            let is_ours = key.starts_with(id.as_bytes());
            keys.extend(is_ours.then(|| key.to_vec()));
            Ok(is_ours)
        })?;
        keys.iter().try_for_each(|key| index.delete(write, &index.hints, key).map(|_| ()))
    }

    fn removed(self) -> Removed {
        let checkpoints = self.targets.into_iter();
        let checkpoints =
            checkpoints.map(|(id, record)| RemovedCheckpoint { id, experiment: record.experiment, branch: record.branch }).collect();
        Removed { checkpoints, branches: self.moved, tags: self.tags }
    }
}

fn plural(checkpoints: usize) -> String {
    if checkpoints == 1 { "a checkpoint".into() } else { format!("{checkpoints} checkpoints") }
}
