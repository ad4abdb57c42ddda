//! Stable storage where each rank takes checkpoints of its own: a branch for each, on which several stay until the recovery line has gone past them.

use super::{
    super::{
        runtime::encode_late,
        side::decode_log,
        wire::{Decoder, Pages, Restored},
    },
    Kept, damaged, last_run,
    part::{Collected, Part},
};
use crate::{ranks::program::Shared, record::record};
use fermata_checkpoint::{
    consistent::{Ccn, Cut, Rank},
    optimistic::{History, Line},
};
use fermata_store::{Contents, Cost, Error, Hold, Record, Removal, Result, Still, Store, Writer};
use fermata_types::CheckpointId;
use std::collections::BTreeMap;

const LOG: &str = "log";

/// Where the checkpoints of a run of ranks go that each take their own.
#[derive(Debug)]
pub(in crate::ranks) struct OwnStable {
    store: Store,
    experiment: String,
    run: u64,
    spec: serde_json::Value,
    /// Leave the garbage where it is.
    keep: bool,
    ranks: Vec<Own>,
    history: History,
    /// Where all go on, by rank.
    line: Vec<Ccn>,
    /// What is on its way there, by receiver.
    late: Vec<Vec<(Rank, u64, Shared)>>,
    collected: u64,
}

/// What there is of a rank.
#[derive(Debug, Default)]
struct Own {
    tentative: Option<Tentative>,
    permanent: BTreeMap<Ccn, Stored>,
    // Its pages are named by the next one.
    _newest: Option<Hold>,
}

/// A permanent checkpoint of a rank.
#[derive(Debug, Clone, Copy)]
struct Stored {
    id: CheckpointId,
    part: Part,
}

/// One on its way.
struct Tentative {
    ccn: Ccn,
    writer: Writer,
    collected: Collected,
}

impl std::fmt::Debug for Tentative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tentative({})", self.ccn)
    }
}

impl OwnStable {
    /// A new run of an experiment.
    pub fn new(store: Store, experiment: &str, ranks: usize, spec: serde_json::Value, keep: bool) -> Result<Self> {
        let run = last_run(&store.branches_to_grow(experiment)?).unwrap_or(0) + 1;
        Ok(Self {
            store,
            experiment: experiment.to_owned(),
            run,
            spec,
            keep,
            ranks: (0..ranks).map(|_| Own::default()).collect(),
            history: History::new(ranks),
            line: vec![0; ranks],
            late: vec![Vec::new(); ranks],
            collected: 0,
        })
    }

    /// Goes on with the last run of an experiment, if it has checkpoints.
    pub fn resume(&mut self) -> Result<()> {
        let branches = self.store.branches_to_grow(&self.experiment)?;
        let Some(run) = last_run(&branches) else { return Ok(()) };
        if branches.contains_key(&format!("run-{run}")) {
            return Err(damaged("it is one of all ranks: go on without --mode optimistic"));
        }
        self.run = run;
        for rank in 0..self.ranks.len() {
            let mut at = branches.get(&self.branch_of(rank)).copied();
            while let Some(id) = at {
                let record = self.store.record(&id)?;
                if record.spec.get("ranks") != self.spec.get("ranks") {
                    let (has, are) = (&record.spec["ranks"], self.ranks.len());
                    return Err(damaged(&format!("it has {has} ranks, and there are to be {are}")));
                }
                let (ccn, stored) = read(id, &record)?;
                self.ranks[rank].permanent.insert(ccn, stored);
                at = record.parent;
            }
            for (ccn, stored) in &self.ranks[rank].permanent {
                let state = self.store.read_blob(&stored.part.state)?;
                let cut = Decoder(&state).cut().map_err(|error| damaged(&error.to_string()))?;
                if !self.history.add(rank, *ccn, cut) {
                    return Err(damaged(&format!("what rank {rank} has is of another number of ranks")));
                }
            }
        }
        self.go_back().map(drop)
    }

    /// All go back to the recovery line. What is later than it will not be found again by anybody.
    pub fn go_back(&mut self) -> Result<Line> {
        let lacks = || damaged("some that belong to it were removed; it cannot go on");
        let mut dropped = vec![0; self.ranks.len()];
        let numbers = loop {
            let line = self.history.go_back().ok_or_else(lacks)?;
            dropped.iter_mut().zip(&line.dropped).for_each(|(sum, more)| *sum += more);
            // Others may have removed what is not held. Then there may be another line before.
            let gone = self.hold(&line.numbers)?;
            if gone.is_empty() {
                break line.numbers;
            }
            gone.into_iter().for_each(|rank| self.history.forget(rank, line.numbers[rank]));
        };
        let mut later = Vec::new();
        for (own, number) in self.ranks.iter_mut().zip(&numbers) {
            own.tentative = None;
            later.extend(own.permanent.split_off(&(number + 1)).into_values().map(|stored| stored.id));
        }
        // They are of a life that is over. What comes now would not fit to them, and nobody could tell.
        self.remove(later, true)?;
        self.line = numbers;
        self.late = self.find_late()?;
        Ok(Line { numbers: self.line.clone(), dropped })
    }

    /// Holds these checkpoints of the ranks. Returns whose are not there. Where the store cannot tell, nothing is given up.
    fn hold(&mut self, numbers: &[Ccn]) -> Result<Vec<Rank>> {
        let mut gone = Vec::new();
        for (rank, (own, number)) in self.ranks.iter_mut().zip(numbers).enumerate() {
            let hold = own.permanent.get(number).map(|stored| self.store.hold(&stored.id));
            match hold.transpose() {
                Ok(hold) => own._newest = hold,
                Err(Error::Missing { .. }) => gone.push(rank),
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// What was on its way across the line: sent before the sender's checkpoint, and not received before the receiver's.
    fn find_late(&self) -> Result<Vec<Vec<(Rank, u64, Shared)>>> {
        let cut = |rank: Rank| self.history.cut(rank, self.line[rank]).ok_or_else(|| damaged("a rank has none"));
        let mut late = vec![Vec::new(); self.ranks.len()];
        for (from, own) in self.ranks.iter().enumerate() {
            let log = match own.permanent.get(&self.line[from]) {
                Some(stored) => {
                    decode_log(&self.store.read_blob(&stored.part.messages)?, late.len()).map_err(|error| damaged(&error.to_string()))?
                }
                None => vec![Vec::new(); late.len()],
            };
            for (to, messages) in log.into_iter().enumerate() {
                let (received, sent) = (cut(to)?.received[from], cut(from)?.sent[to]);
                let messages: Vec<_> = messages.into_iter().filter(|(number, _)| *number > received).collect();
                if !messages.iter().map(|(number, _)| *number).eq(received + 1..=sent) {
                    return Err(damaged(&format!("messages from rank {from} to rank {to} are missing")));
                }
                late[to].extend(messages.into_iter().map(|(number, parcel)| (from, number, parcel)));
            }
        }
        Ok(late)
    }

    /// Where all go on, by rank: 0 for the beginning.
    pub fn line(&self) -> &[Ccn] {
        &self.line
    }

    /// What the names of the run's branches begin with.
    pub fn branch(&self) -> String {
        format!("run-{}", self.run)
    }

    fn branch_of(&self, rank: Rank) -> String {
        format!("run-{}-rank-{rank}", self.run)
    }

    /// How many checkpoints were garbage and removed.
    pub fn collected(&self) -> u64 {
        self.collected
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.history.len() as u64
    }

    /// How many messages of a rank the receivers have for good.
    pub fn received(&self, from: Rank) -> Vec<u64> {
        self.history.received(from)
    }

    /// What a rank has at the line, and what is on its way to it, in a piece for each sender: a log is no larger than a frame, and several may be. Its memory goes to `each`, in pieces.
    pub fn restore(&self, rank: Rank, each: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<(Option<Restored>, Vec<Vec<u8>>)> {
        let late = self.late[rank].chunk_by(|(one, ..), (next, ..)| one == next).map(encode_late).collect();
        let Some(Stored { part, .. }) = self.ranks[rank].permanent.get(&self.line[rank]) else { return Ok((None, late)) };
        Still::new(self.store.clone(), part.memory, part.used).for_each_piece(each)?;
        let (state, log) = (self.store.read_blob(&part.state)?, self.store.read_blob(&part.messages)?);
        Ok((Some(Restored { ccn: self.line[rank], used: part.used, state, log }), late))
    }

    fn tentative(&mut self, rank: Rank, ccn: Ccn) -> Result<&mut Tentative> {
        let place = &mut self.ranks[rank].tentative;
        if place.as_ref().is_none_or(|tentative| tentative.ccn != ccn) {
            *place = Some(Tentative { ccn, writer: self.store.writer()?, collected: Collected::default() });
        }
        place.as_mut().ok_or_else(|| damaged("it was not begun"))
    }

    /// Pages of a rank.
    pub fn put_pages(&mut self, rank: Rank, pages: &Pages) -> Result<()> {
        let tentative = self.tentative(rank, pages.ccn)?;
        tentative.collected.put_pages(&mut tentative.writer, pages)
    }

    /// All else of a rank but its log.
    pub fn put_state(&mut self, rank: Rank, ccn: Ccn, used: u64, state: Vec<u8>) -> Result<()> {
        self.tentative(rank, ccn)?.collected.put_state(used, state);
        Ok(())
    }

    /// Makes a rank's checkpoint permanent, and removes what is garbage by it.
    pub fn persist(&mut self, rank: Rank, ccn: Ccn, cut: Cut, log: &[u8]) -> Result<Kept> {
        let tentative = self.ranks[rank].tentative.take().filter(|tentative| tentative.ccn == ccn);
        let Some(Tentative { mut writer, collected, .. }) = tentative else {
            return Err(damaged(&format!("rank {rank} sent no state")));
        };
        let (counts, written) = (collected.counts, collected.written + log.len() as u64);
        let before = self.ranks[rank].permanent.last_key_value().map(|(_, stored)| stored.part.memory);
        let part = collected.write(&mut writer, rank, before, log)?;
        let stored = writer.stored_bytes()?;
        let branch = self.branch_of(rank);
        let parent = self.store.branch_to_grow(&self.experiment, &branch)?;
        let cost = Cost { stored_bytes: stored, pages: counts, ..Cost::default() };
        let parts = vec![part.write(rank, ccn, LOG)?];
        let record = record(parent, &self.experiment, &branch, self.spec.clone(), parts, cost);
        let hold = writer.commit_held(&self.store.in_line(record))?;
        let id = hold.id();
        self.ranks[rank].permanent.insert(ccn, Stored { id, part });
        self.ranks[rank]._newest = Some(hold);
        if !self.history.add(rank, ccn, cut) {
            return Err(damaged(&format!("rank {rank} counts messages of other ranks than there are")));
        }
        self.collect();
        Ok(Kept { id, written, stored })
    }

    fn collect(&mut self) {
        let garbage = self.history.collect();
        let ids: Vec<_> = garbage.into_iter().filter_map(|(rank, ccn)| Some(self.ranks[rank].permanent.remove(&ccn)?.id)).collect();
        if self.keep || ids.is_empty() {
            return;
        }
        let count = ids.len() as u64;
        match self.remove(ids, false) {
            Ok(()) => self.collected += count,
            // There are more than need be; nobody goes back to them.
            Err(error) => tracing::warn!("{count} checkpoints before the recovery line stay in the store: {error}"),
        }
    }

    fn remove(&self, ids: Vec<CheckpointId>, force: bool) -> Result<()> {
        let checkpoints: Vec<_> = ids.into_iter().filter(|id| self.store.record(id).is_ok()).collect();
        if checkpoints.is_empty() {
            return Ok(());
        }
        self.store.remove(&Removal { checkpoints, force, ..Removal::default() }).map(drop)
    }
}

fn read(id: CheckpointId, record: &Record) -> Result<(Ccn, Stored)> {
    let [part] = &record.parts[..] else { return Err(damaged("a record lacks what a rank has")) };
    let (ccn, part) = Part::read(part, LOG)?;
    Ok((ccn, Stored { id, part }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::{messages::Parcel, side::encode_log};

    #[test]
    fn what_several_have_sent_to_one_comes_in_a_piece_for_each() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("store")).unwrap();
        let mut stable = OwnStable::new(store, "logs", 3, serde_json::json!({ "ranks": 3 }), false).unwrap();
        let logged = |from: Rank| Parcel::new(7, &[from as u64]);
        for from in 0..2 {
            let (mut cut, mut log) = (Cut::new(3), vec![Vec::new(); 3]);
            cut.sent[2] = 1;
            log[2].push((1, logged(from)));
            stable.put_state(from, 1, 4096, vec![0]).unwrap();
            stable.persist(from, 1, cut, &encode_log(&log)).unwrap();
        }
        assert_eq!(stable.go_back().unwrap().numbers, [1, 1, 0]);
        let (restored, late) = stable.restore(2, &mut |_, _| Ok(())).unwrap();
        let expected: Vec<_> = (0..2).map(|from| encode_late(&[(from, 1, logged(from))])).collect();
        assert!(restored.is_none() && late == expected, "{late:?}");
    }
}
