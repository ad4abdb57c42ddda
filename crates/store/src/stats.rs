//! Statistics over the whole store.

use crate::{
    Error, Result, Store,
    collect::Turn,
    mark::Marker,
    pack::{Kind, PackFile, contents::Entry},
    table::Nodes as _,
};
use fermata_types::{NodeName, PAGE_SIZE, PackId, PageCounts};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

const PAGE: u64 = PAGE_SIZE as u64;

/// What is in the store, and what each sieve saved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Checkpoints.
    pub checkpoints: u64,
    /// Packs.
    pub packs: u64,
    /// Bytes of all packs.
    pub pack_bytes: u64,
    /// Bytes of the index's file that are in use.
    pub index_bytes: u64,
    /// Pages that lie in packs: each once, unless two checkpoints stored it at the same time.
    pub pages_unique: u64,
    /// Bytes of the pages in packs, as they lie there, compressed.
    pub pages_bytes: u64,
    /// Nodes of page tables in packs.
    pub nodes: u64,
    /// Pages that the tables of all checkpoints name, each as often as it is named.
    pub pages_referenced: u64,
    /// How the pages of all checkpoints fell through the sieve when they were taken, with their distances.
    pub sieve: PageCounts,
    /// Bytes of pages per byte stored of them: 2.0 when compression halves them. None when there is none.
    pub compression: Option<f64>,
    /// Bytes that each class of the sieve saved, uncompressed, and what compression saved.
    pub saved: Saved,
    /// Bytes of dead objects in packs, about: what a collection could free.
    pub dead_bytes: u64,
}

/// Bytes that were not written, by why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Pages not written to since the parent.
    pub unchanged: u64,
    /// Pages of zeros.
    pub zero: u64,
    /// Free pages of the guest.
    pub free: u64,
    /// Pages known to equal a block of a disk, without a look at them.
    #[serde(default)]
    pub mapped: u64,
    /// Pages equal to a block of a golden image.
    pub on_disk: u64,
    /// Pages put before in the same checkpoint.
    pub within: u64,
    /// Pages of earlier checkpoints.
    pub across: u64,
    /// By compression, of the pages that lie in packs.
    pub compression: u64,
}

impl Store {
    /// Counts what is in the store; of one experiment, or of all. What lies in packs is counted for the whole store in any case, since
    /// experiments share it. Reads the tables of contents of all packs and all nodes of page tables, but no pages.
    pub fn stats(&self, experiment: Option<&str>) -> Result<Stats> {
        let _no_collection = Turn::together(self)?;
        self.0.forget();
        let index = &self.0.index;
        let (packs, ids) = {
            let read = index.read()?;
            (index.all_packs(&read)?, index.checkpoint_ids(&read, &index.records, &"a record")?)
        };
        let mut stats = Stats { packs: packs.len() as u64, index_bytes: index.bytes_used()?, ..Stats::default() };
        for (_, id) in &packs {
            // A pack that cannot be read is for `verify` to tell of.
            if let Ok(file) = PackFile::open(&self.0.shelf(), id) {
                stats.pack_bytes += file.stored();
                file.contents(id).iter().flat_map(|contents| &contents.entries).for_each(|entry| stats.count_frame(entry));
            }
        }
        let mut counted = HashMap::new();
        for id in &ids {
            let record = match self.record(id) {
                Ok(record) => record,
                Err(Error::Missing { .. }) => continue,
                Err(error) => return Err(error),
            };
            if experiment.is_some_and(|experiment| experiment != record.experiment) {
                continue;
            }
            stats.checkpoints += 1;
            stats.sieve += record.cost.pages;
            for root in record.parts.iter().flat_map(|part| part.tables.values()) {
                stats.pages_referenced += root.node.map_or(Ok(0), |node| self.pages_below(&node, &mut counted))?;
            }
        }
        stats.dead_bytes = self.dead_bytes(packs)?;
        stats.sum_up();
        Ok(stats)
    }

    /// Pages that are named below a node. A node that many tables share is looked at once.
    fn pages_below(&self, name: &NodeName, counted: &mut HashMap<NodeName, u64>) -> Result<u64> {
        if let Some(count) = counted.get(name) {
            return Ok(*count);
        }
        let loaded = self.0.load(name)?;
        let mut count = 0;
        for (_, entry) in loaded.node.iter() {
            count += if loaded.node.level == 0 { 1 } else { self.pages_below(&NodeName(entry), counted)? };
        }
        counted.insert(*name, count);
        Ok(count)
    }

    /// Bytes that no checkpoint needs, whoever holds them.
    fn dead_bytes(&self, packs: Vec<(u32, PackId)>) -> Result<u64> {
        let mut marker = Marker::new(self, packs)?;
        // Whatever was committed since is among these, and lies in packs that are not counted.
        for (id, _) in self.records()? {
            marker.mark(&id)?;
        }
        Ok(marker.packs.values().map(|pack| pack.bytes() - pack.bytes_alive()).sum())
    }
}

impl Stats {
    fn count_frame(&mut self, entry: &Entry) {
        match entry.kind {
            Kind::Pages => {
                self.pages_unique += entry.names.len() as u64;
                self.pages_bytes += u64::from(entry.length);
            }
            Kind::Nodes => self.nodes += entry.names.len() as u64,
            Kind::Blob | Kind::Record => {}
        }
    }

    fn sum_up(&mut self) {
        let raw = self.pages_unique * PAGE;
        self.compression = (self.pages_bytes > 0).then(|| raw as f64 / self.pages_bytes as f64);
        self.saved = Saved {
            unchanged: self.sieve.unchanged * PAGE,
            zero: self.sieve.zero * PAGE,
            free: self.sieve.free * PAGE,
            mapped: self.sieve.mapped * PAGE,
            on_disk: self.sieve.on_disk * PAGE,
            within: self.sieve.within * PAGE,
            across: (self.sieve.known - self.sieve.within.min(self.sieve.known)) * PAGE,
            compression: raw.saturating_sub(self.pages_bytes),
        };
    }
}
