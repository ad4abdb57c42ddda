//! What a checkpoint has of a rank, and what comes of it until then.

use super::damaged;
use crate::ranks::wire::Pages;
use fermata_checkpoint::consistent::{Ccn, Rank};
use fermata_store::{Result, Writer};
use fermata_types::{BlobName, PAGE_SIZE, PageCounts, PageName, PageNumber, PartKind, PartState, Root, ZERO_PAGE};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const MEMORY: &str = "memory";
const STATE: &str = "state";
/// More than any run takes. What counts on from there does not come to the end of its numbers.
const CCN_MAX: Ccn = 1 << 48;

/// What a checkpoint has of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ranks) struct Part {
    pub memory: Root,
    /// Bytes of memory.
    pub used: u64,
    pub state: BlobName,
    /// Those that were on their way to it, or those that it may have to send again.
    pub messages: BlobName,
}

/// The details of a rank in a record.
#[derive(Debug, Serialize, Deserialize)]
struct Details {
    /// The number of the checkpoint.
    ccn: Ccn,
    /// Bytes of memory.
    used: u64,
}

impl Part {
    /// As a record has it, and the number of the checkpoint. `messages` is what the blob of those is called.
    pub fn read(part: &PartState, messages: &str) -> Result<(Ccn, Self)> {
        let missing = || damaged(&format!("{} lacks what a rank has", part.name));
        let Details { ccn, used } = Details::deserialize(&part.details).map_err(|_| missing())?;
        let blob = |name: &str| part.blobs.get(name).copied().ok_or_else(missing);
        let memory = part.tables.get(MEMORY).copied().ok_or_else(missing)?;
        if used.div_ceil(PAGE_SIZE as u64) != memory.pages {
            return Err(damaged(&format!("{} has {used} bytes in {} pages", part.name, memory.pages)));
        }
        if ccn > CCN_MAX {
            return Err(damaged(&format!("{} has number {ccn}", part.name)));
        }
        Ok((ccn, Self { memory, used, state: blob(STATE)?, messages: blob(messages)? }))
    }

    /// As a record has it.
    pub fn write(&self, rank: Rank, ccn: Ccn, messages: &str) -> Result<PartState> {
        Ok(PartState {
            name: format!("rank{rank}"),
            kind: PartKind::Process,
            tables: BTreeMap::from([(MEMORY.to_owned(), self.memory)]),
            blobs: BTreeMap::from([(STATE.to_owned(), self.state), (messages.to_owned(), self.messages)]),
            details: serde_json::to_value(Details { ccn, used: self.used }).map_err(|error| damaged(&error.to_string()))?,
        })
    }
}

/// What came of a rank so far.
#[derive(Debug, Default, Clone)]
pub(super) struct Collected {
    pages: BTreeMap<PageNumber, Option<PageName>>,
    state: Option<(u64, Vec<u8>)>,
    /// What became of its pages.
    pub counts: PageCounts,
    /// Bytes that it sent.
    pub written: u64,
}

impl Collected {
    pub fn put_pages(&mut self, writer: &mut Writer, pages: &Pages) -> Result<()> {
        for (page, content) in pages.iter() {
            let (name, class) = writer.put_page(content)?;
            class.count_into(&mut self.counts);
            self.pages.insert(page, (name != ZERO_PAGE).then_some(name));
        }
        self.written += (pages.len() * PAGE_SIZE) as u64;
        Ok(())
    }

    pub fn put_state(&mut self, used: u64, state: Vec<u8>) {
        self.written += state.len() as u64;
        self.state = Some((used, state));
    }

    /// Writes the rank's part, on top of the memory that it had before.
    pub fn write(self, writer: &mut Writer, rank: Rank, before: Option<Root>, messages: &[u8]) -> Result<Part> {
        let Some((used, state)) = self.state else { return Err(damaged(&format!("rank {rank} sent no state"))) };
        let pages = used.div_ceil(PAGE_SIZE as u64);
        let base = before.unwrap_or(Root::empty(pages));
        if base.pages != pages {
            return Err(damaged(&format!("rank {rank} has {pages} pages of memory now and had {}", base.pages)));
        }
        let memory = writer.update_table(&base, &self.pages.into_iter().collect::<Vec<_>>())?;
        Ok(Part { memory, used, state: writer.put_blob(&state)?, messages: writer.put_blob(messages)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_rank_can_have_is_refused() {
        let name = BlobName([1; 32]);
        let part = Part { memory: Root::empty(3), used: 2 * PAGE_SIZE as u64 + 1, state: name, messages: name };
        let written = |part: Part, ccn| part.write(0, ccn, "late").unwrap();
        assert_eq!(Part::read(&written(part, 7), "late").unwrap().0, 7);
        for used in [0, PAGE_SIZE as u64, 1 << 44, u64::MAX] {
            assert!(Part::read(&written(Part { used, ..part }, 7), "late").is_err(), "{used} bytes in 3 pages");
        }
        assert!(Part::read(&written(part, Ccn::MAX), "late").is_err());
    }
}
