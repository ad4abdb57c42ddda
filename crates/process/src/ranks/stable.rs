//! Stable storage: consistent checkpoints of ranks as checkpoints in the store, one pack and one transaction for all ranks. What is tentative is a writer, and leaves nothing if it is dropped.
//! Where each rank takes its own it is in [`own`].

pub(super) mod own;
pub(super) mod part;

use super::{
    messages::Parcel,
    runtime::encode_late,
    wire::{Pages, Restored},
};
use crate::record::record;
use fermata_checkpoint::consistent::{Ccn, Rank, Whole};
use fermata_store::{Contents, Cost, Hold, Removal, Result, Still, Store, Writer};
use fermata_types::{CheckpointId, PageCounts};
use part::{Collected, Part};
use std::{collections::BTreeMap, sync::Arc};

const LATE: &str = "late";

/// Where the checkpoints of a run of ranks go.
#[derive(Debug)]
pub(super) struct Stable {
    store: Store,
    experiment: String,
    branch: String,
    spec: serde_json::Value,
    ranks: usize,
    /// Keep the checkpoints that were replaced.
    keep: bool,
    head: Option<Head>,
    tentative: Option<Tentative>,
}

/// The permanent checkpoint.
#[derive(Debug)]
struct Head {
    ccn: Ccn,
    parts: Vec<Part>,
    // Its pages are named by the next one, and read if ranks go back to it.
    hold: Hold,
}

/// A checkpoint on its way.
struct Tentative {
    ccn: Ccn,
    writer: Writer,
    ranks: Vec<Collected>,
}

impl std::fmt::Debug for Tentative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tentative({})", self.ccn)
    }
}

/// A checkpoint that became permanent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub id: CheckpointId,
    /// Bytes of pages that the ranks sent.
    pub written: u64,
    /// Bytes that the store grew by.
    pub stored: u64,
}

fn damaged(what: &str) -> fermata_store::Error {
    fermata_store::Error::Caller(format!("the checkpoint of the ranks cannot be used: {what}").into())
}

impl Stable {
    /// A new run of an experiment.
    pub fn new(store: Store, experiment: &str, ranks: usize, spec: serde_json::Value, keep: bool) -> Result<Self> {
        let runs = last_run(&store.branches_to_grow(experiment)?).unwrap_or(0);
        let branch = format!("run-{}", runs + 1);
        Ok(Self { store, experiment: experiment.to_owned(), branch, spec, ranks, keep, head: None, tentative: None })
    }

    /// Goes on with the last run of an experiment, if it has a permanent checkpoint.
    pub fn resume(&mut self) -> Result<bool> {
        let branches = self.store.branches_to_grow(&self.experiment)?;
        let Some(run) = last_run(&branches) else { return Ok(false) };
        let Some((branch, id)) = branches.get_key_value(&format!("run-{run}")) else {
            return Err(damaged("each rank has its own: go on with --mode optimistic"));
        };
        let hold = self.store.hold(id)?;
        let record = self.store.record(id)?;
        if record.parts.len() != self.ranks {
            return Err(damaged(&format!("it has {} ranks, and there are to be {}", record.parts.len(), self.ranks)));
        }
        let parts = record.parts.iter().map(|part| Part::read(part, LATE)).collect::<Result<Vec<_>>>()?;
        let ccn = parts.last().map_or(0, |(ccn, _)| *ccn);
        let parts = parts.into_iter().map(|(_, part)| part).collect();
        self.branch.clone_from(branch);
        self.head = Some(Head { ccn, parts, hold });
        Ok(true)
    }

    /// The number of the permanent checkpoint, 0 if there is none.
    pub fn ccn(&self) -> Ccn {
        self.head.as_ref().map_or(0, |head| head.ccn)
    }

    /// The branch of this run.
    pub fn branch(&self) -> &str {
        &self.branch
    }

    /// The permanent checkpoint.
    pub fn id(&self) -> Option<CheckpointId> {
        self.head.as_ref().map(|head| head.hold.id())
    }

    /// What a rank had at the permanent checkpoint; its memory goes to `each`, in pieces.
    /// Then comes what was on its way to it.
    pub fn restore(&self, rank: Rank, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<(Option<Restored>, Vec<Vec<u8>>)> {
        let Some(head) = &self.head else { return Ok((None, Vec::new())) };
        let part = &head.parts[rank];
        Still::new(self.store.clone(), part.memory, part.used).for_each_piece(each)?;
        let (state, late) = (self.store.read_blob(&part.state)?, self.store.read_blob(&part.messages)?);
        Ok((Some(Restored { ccn: head.ccn, used: part.used, state, log: Vec::new() }), vec![late]))
    }

    /// A tentative checkpoint is begun.
    pub fn begin(&mut self, ccn: Ccn) -> Result<()> {
        let writer = self.store.writer()?;
        let ranks = vec![Collected::default(); self.ranks];
        self.tentative = Some(Tentative { ccn, writer, ranks });
        Ok(())
    }

    /// It will not become permanent.
    pub fn drop_tentative(&mut self) {
        self.tentative = None;
    }

    fn tentative(&mut self, ccn: Ccn) -> Option<&mut Tentative> {
        self.tentative.as_mut().filter(|tentative| tentative.ccn == ccn)
    }

    /// Pages of a rank. Those of a checkpoint that was aborted come to nothing.
    pub fn put_pages(&mut self, rank: Rank, pages: &Pages) -> Result<()> {
        let Some(tentative) = self.tentative(pages.ccn) else { return Ok(()) };
        tentative.ranks[rank].put_pages(&mut tentative.writer, pages)
    }

    /// All else of a rank.
    pub fn put_state(&mut self, rank: Rank, ccn: Ccn, used: u64, state: Vec<u8>) {
        if let Some(tentative) = self.tentative(ccn) {
            tentative.ranks[rank].put_state(used, state);
        }
    }

    /// Makes the tentative checkpoint permanent, in place of the one before. When this fails that one stays.
    pub fn persist(&mut self, whole: &Whole<Arc<Parcel>>) -> Result<Kept> {
        let tentative = self.tentative.take().filter(|tentative| tentative.ccn == whole.ccn);
        let Some(Tentative { ccn, mut writer, ranks }) = tentative else { return Err(damaged("it was not begun")) };
        let mut parts = Vec::with_capacity(ranks.len());
        let (mut pages, mut written) = (PageCounts::default(), 0);
        for (rank, (collected, late)) in ranks.into_iter().zip(&whole.late).enumerate() {
            pages += collected.counts;
            written += collected.written;
            let before = self.head.as_ref().map(|head| head.parts[rank].memory);
            parts.push(collected.write(&mut writer, rank, before, &encode_late(late))?);
        }
        let stored = writer.stored_bytes()?;
        let states = parts.iter().enumerate().map(|(rank, part)| part.write(rank, ccn, LATE)).collect::<Result<_>>()?;
        let cost = Cost { stored_bytes: stored, pages, ..Cost::default() };
        let record = record(self.id(), &self.experiment, &self.branch, self.spec.clone(), states, cost);
        let hold = writer.commit_held(&self.store.in_line(record))?;
        let kept = Kept { id: hold.id(), written, stored };
        if let Some(before) = self.head.replace(Head { ccn, parts, hold })
            && !self.keep
        {
            self.remove(before.hold.id());
        }
        Ok(kept)
    }

    /// The new one is permanent; if the old one cannot be removed there is one more than need be.
    fn remove(&self, id: CheckpointId) {
        let removal = Removal { checkpoints: vec![id], ..Removal::default() };
        if let Err(error) = self.store.remove(&removal) {
            tracing::warn!("checkpoint {} was replaced and stays in the store: {error}", id.short());
        }
    }
}

/// The number of the last run of an experiment. It has one branch, or one for each rank.
fn last_run(branches: &BTreeMap<String, CheckpointId>) -> Option<u64> {
    let number = |branch: &str| branch.strip_prefix("run-")?.split("-rank-").next()?.parse().ok();
    branches.keys().filter_map(|branch| number(branch)).max()
}
