//! Stable storage: consistent checkpoints of ranks as checkpoints in the store, one pack and one transaction for all ranks. What is tentative is a writer, and leaves nothing if it is dropped.
//! Where each rank takes its own it is in [`own`].

pub(super) mod own;

use super::{
    messages::Parcel,
    runtime::encode_late,
    wire::{Pages, Restored},
};
use fermata_checkpoint::consistent::{Ccn, Rank, Whole};
use fermata_linux::clock;
use fermata_store::{Contents, Cost, Hold, Record, Removal, Result, Still, Store, Writer};
use fermata_types::{BlobName, CheckpointId, PAGE_SIZE, PageCounts, PageName, PageNumber, PartKind, PartState, Root, ZERO_PAGE};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

const MEMORY: &str = "memory";
const STATE: &str = "state";
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

/// What a checkpoint has of a rank.
#[derive(Debug)]
struct Part {
    memory: Root,
    used: u64,
    state: BlobName,
    late: BlobName,
}

/// The details of a rank in a record.
#[derive(Debug, Serialize, Deserialize)]
struct Details {
    /// The number of the consistent checkpoint.
    ccn: Ccn,
    /// Bytes of memory.
    used: u64,
}

/// A checkpoint on its way.
struct Tentative {
    ccn: Ccn,
    writer: Writer,
    ranks: Vec<Collected>,
    pages: PageCounts,
    written: u64,
}

impl std::fmt::Debug for Tentative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tentative({})", self.ccn)
    }
}

/// What came of a rank so far.
#[derive(Debug, Default, Clone)]
struct Collected {
    pages: BTreeMap<PageNumber, Option<PageName>>,
    state: Option<(u64, Vec<u8>)>,
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
        let runs = last_run(&store.branches(experiment)?).unwrap_or(0);
        let branch = format!("run-{}", runs + 1);
        Ok(Self { store, experiment: experiment.to_owned(), branch, spec, ranks, keep, head: None, tentative: None })
    }

    /// Goes on with the last run of an experiment, if it has a permanent checkpoint.
    pub fn resume(&mut self) -> Result<bool> {
        let branches = self.store.branches(&self.experiment)?;
        let Some(run) = last_run(&branches) else { return Ok(false) };
        let Some((branch, id)) = branches.get_key_value(&format!("run-{run}")) else {
            return Err(damaged("each rank has its own: go on with --mode optimistic"));
        };
        let hold = self.store.hold(id)?;
        let record = self.store.record(id)?;
        if record.parts.len() != self.ranks {
            return Err(damaged(&format!("it has {} ranks, and there are to be {}", record.parts.len(), self.ranks)));
        }
        let mut ccn = 0;
        let parts = record.parts.iter().map(|part| {
            let missing = || damaged(&format!("{} lacks what a rank has", part.name));
            let details = Details::deserialize(&part.details).map_err(|_| missing())?;
            ccn = details.ccn;
            let blob = |name: &str| part.blobs.get(name).copied().ok_or_else(missing);
            let memory = part.tables.get(MEMORY).copied().ok_or_else(missing)?;
            Ok(Part { memory, used: details.used, state: blob(STATE)?, late: blob(LATE)? })
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
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
    pub fn restore(&self, rank: Rank, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<(Option<Restored>, Vec<u8>)> {
        let Some(head) = &self.head else { return Ok((None, encode_late(&[]))) };
        let part = &head.parts[rank];
        Still::new(self.store.clone(), part.memory, part.used).for_each_piece(each)?;
        let (state, late) = (self.store.read_blob(&part.state)?, self.store.read_blob(&part.late)?);
        Ok((Some(Restored { ccn: head.ccn, used: part.used, state, log: Vec::new() }), late))
    }

    /// A tentative checkpoint is begun.
    pub fn begin(&mut self, ccn: Ccn) -> Result<()> {
        let writer = self.store.writer()?;
        let ranks = vec![Collected::default(); self.ranks];
        self.tentative = Some(Tentative { ccn, writer, ranks, pages: PageCounts::default(), written: 0 });
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
        for (page, content) in pages.iter() {
            let (name, class) = tentative.writer.put_page(content)?;
            class.count_into(&mut tentative.pages);
            tentative.ranks[rank].pages.insert(page, (name != ZERO_PAGE).then_some(name));
        }
        tentative.written += (pages.len() * PAGE_SIZE) as u64;
        Ok(())
    }

    /// All else of a rank.
    pub fn put_state(&mut self, rank: Rank, ccn: Ccn, used: u64, state: Vec<u8>) {
        if let Some(tentative) = self.tentative(ccn) {
            tentative.written += state.len() as u64;
            tentative.ranks[rank].state = Some((used, state));
        }
    }

    /// Makes the tentative checkpoint permanent, in place of the one before. When this fails that one stays.
    pub fn persist(&mut self, whole: &Whole<Arc<Parcel>>) -> Result<Kept> {
        let tentative = self.tentative.take().filter(|tentative| tentative.ccn == whole.ccn);
        let Some(Tentative { ccn, mut writer, ranks, pages, written }) = tentative else { return Err(damaged("it was not begun")) };
        let mut parts = Vec::with_capacity(ranks.len());
        for (rank, (collected, late)) in ranks.into_iter().zip(&whole.late).enumerate() {
            let Some((used, state)) = collected.state else { return Err(damaged(&format!("rank {rank} sent no state"))) };
            let pages = used.div_ceil(PAGE_SIZE as u64);
            let base = self.head.as_ref().map_or(Root::empty(pages), |head| head.parts[rank].memory);
            if base.pages != pages {
                return Err(damaged(&format!("rank {rank} has {pages} pages of memory now and had {}", base.pages)));
            }
            let changes: Vec<_> = collected.pages.into_iter().collect();
            let memory = writer.update_table(&base, &changes)?;
            let (state, late) = (writer.put_blob(&state)?, writer.put_blob(&encode_late(late))?);
            parts.push(Part { memory, used, state, late });
        }
        let stored = writer.stored_bytes()?;
        let hold = writer.commit_held(&self.record(ccn, &parts, pages, stored)?)?;
        let kept = Kept { id: hold.id(), written, stored };
        if let Some(before) = self.head.replace(Head { ccn, parts, hold })
            && !self.keep
        {
            self.remove(before.hold.id());
        }
        Ok(kept)
    }

    fn record(&self, ccn: Ccn, parts: &[Part], pages: PageCounts, stored_bytes: u64) -> Result<Record> {
        let parts = parts.iter().enumerate().map(|(rank, part)| {
            Ok(PartState {
                name: format!("rank{rank}"),
                kind: PartKind::Process,
                tables: BTreeMap::from([(MEMORY.to_owned(), part.memory)]),
                blobs: BTreeMap::from([(STATE.to_owned(), part.state), (LATE.to_owned(), part.late)]),
                details: serde_json::to_value(Details { ccn, used: part.used }).map_err(|error| damaged(&error.to_string()))?,
            })
        });
        Ok(Record {
            parent: self.id(),
            experiment: self.experiment.clone(),
            branch: self.branch.clone(),
            message: None,
            created_ns: clock::wall_ns(),
            time_virtual_ns: 0,
            began_ns: None,
            spec: self.spec.clone(),
            events: 0,
            waiting: Vec::new(),
            parts: parts.collect::<Result<_>>()?,
            images: Vec::new(),
            cost: Cost { stored_bytes, pages, ..Cost::default() },
        })
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
