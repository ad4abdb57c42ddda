//! Writes a pack: objects are gathered into frames, and frames go to a file under `tmp/`, or into memory for one that is sent away.

use super::{
    Kind, Shelf,
    contents::{self, Contents, Entry},
    frame::{Encoder, NODES_MAX, NODES_RAW_MAX, PAGES_MAX},
};
use crate::{
    Error, Result,
    files::{Sink, TempFile},
    hash,
};
use crc32fast::Hasher;
use fermata_types::{BlobName, CheckpointId, NodeName, PAGE_SIZE, PackId, PageBuf, PageName};
use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

/// What tells a pack from another of the same contents takes no more in it: one blob, which nobody names.
pub(crate) const TOLD_APART_BYTES: u64 = 64;

/// A pack being written.
pub(crate) struct PackBuilder<S = TempFile> {
    sink: S,
    encoder: Encoder,
    /// Where the next frame goes.
    end: u64,
    /// Of all that lies before that.
    sum: Hasher,
    contents: Contents,
    pages: Vec<u8>,
    page_names: Vec<[u8; 32]>,
    nodes: Vec<u8>,
    node_lengths: Vec<u32>,
    node_names: Vec<[u8; 32]>,
    /// Called between frames: who writes long packs may rest.
    rest: fn(),
    /// A write failed, and what it held is lost.
    failed: bool,
}

/// A pack that is durable and has its place.
pub(crate) struct Published {
    pub id: PackId,
    pub path: PathBuf,
    pub contents: Contents,
}

impl<S: Sink> PackBuilder<S> {
    /// A new pack in something that is empty.
    pub fn new(mut sink: S, rest: fn()) -> Result<Self> {
        let mut sum = Hasher::new();
        sink.append(&contents::header(), 0)?;
        sum.update(&contents::header());
        let encoder = Encoder::new().map_err(Error::io("start to compress", sink.path()))?;
        Ok(Self {
            sink,
            encoder,
            end: contents::HEADER as u64,
            sum,
            contents: Contents::default(),
            pages: Vec::with_capacity(PAGES_MAX * PAGE_SIZE),
            page_names: Vec::with_capacity(PAGES_MAX),
            nodes: Vec::new(),
            node_lengths: Vec::new(),
            node_names: Vec::new(),
            rest,
            failed: false,
        })
    }

    pub fn add_page(&mut self, name: &PageName, page: &PageBuf) -> Result<()> {
        self.pages.extend_from_slice(page);
        self.page_names.push(name.0);
        if self.page_names.len() == PAGES_MAX { self.flush_pages() } else { Ok(()) }
    }

    /// Adds a node in the form in which it is stored.
    pub fn add_node(&mut self, name: &NodeName, stored: &[u8]) -> Result<()> {
        let together = (self.node_names.len() + 1) * 4 + self.nodes.len() + stored.len();
        if together > NODES_RAW_MAX || self.node_names.len() == NODES_MAX {
            self.flush_nodes()?;
        }
        self.nodes.extend_from_slice(stored);
        self.node_lengths.push(stored.len() as u32);
        self.node_names.push(name.0);
        Ok(())
    }

    /// Adds a blob whose length was checked.
    pub fn add_blob(&mut self, name: &BlobName, bytes: &[u8]) -> Result<()> {
        self.write_frame(Kind::Blob, vec![name.0], bytes)
    }

    /// Writes what is gathered, full or not.
    pub fn flush(&mut self) -> Result<()> {
        self.check()?;
        self.flush_pages()?;
        self.flush_nodes()
    }

    /// Length of the pack if it ended now.
    pub fn length(&self) -> u64 {
        self.end + self.contents.length() + contents::TRAILER as u64
    }

    /// Objects that are in it.
    pub fn objects(&self) -> usize {
        self.contents.entries.iter().map(|entry| entry.names.len()).sum()
    }

    /// Adds a record behind all that was added before.
    pub fn add_record(&mut self, id: &CheckpointId, record: &[u8]) -> Result<()> {
        self.flush()?;
        self.write_frame(Kind::Record, vec![id.0], record)
    }

    /// Writes what comes behind the last frame.
    fn end(&mut self) -> Result<PackId> {
        self.flush()?;
        let encoded = self.contents.encode();
        if encoded.len() as u64 > contents::CONTENTS_MAX {
            return Err(too_large());
        }
        let (id, trailer) = contents::trailer(&encoded, self.end, std::mem::take(&mut self.sum));
        self.sink.append(&encoded, self.end)?;
        self.sink.append(&trailer, self.end + encoded.len() as u64)?;
        Ok(id)
    }

    fn check(&self) -> Result<()> {
        match self.failed {
            true => Err(Error::refused("a write of this checkpoint failed before", "write the checkpoint again from the start")),
            false => Ok(()),
        }
    }

    fn flush_pages(&mut self) -> Result<()> {
        if self.page_names.is_empty() {
            return Ok(());
        }
        let pages = std::mem::take(&mut self.pages);
        let names = std::mem::take(&mut self.page_names);
        let written = self.write_frame(Kind::Pages, names, &pages);
        self.pages = pages;
        self.pages.clear();
        written
    }

    fn flush_nodes(&mut self) -> Result<()> {
        if self.node_names.is_empty() {
            return Ok(());
        }
        let mut raw = Vec::with_capacity(self.node_lengths.len() * 4 + self.nodes.len());
        self.node_lengths.drain(..).for_each(|length| raw.extend(length.to_le_bytes()));
        raw.append(&mut self.nodes);
        let names = std::mem::take(&mut self.node_names);
        self.write_frame(Kind::Nodes, names, &raw)
    }

    fn write_frame(&mut self, kind: Kind, names: Vec<[u8; 32]>, raw: &[u8]) -> Result<()> {
        self.check()?;
        if self.contents.entries.len() == contents::FRAMES_MAX {
            return Err(too_large());
        }
        self.failed = true;
        let frame = self.encoder.encode(kind, names.len(), raw).map_err(Error::io("compress for", self.sink.path()))?;
        self.sink.append(frame, self.end)?;
        self.sum.update(frame);
        self.failed = false;
        let length = frame.len() as u32;
        self.contents.push(Entry { kind, offset: self.end, length, names });
        self.end += u64::from(length);
        (self.rest)();
        Ok(())
    }
}

impl PackBuilder {
    /// Adds the record, ends the pack, makes it durable and gives it its place below `shelf`.
    pub fn publish(mut self, id: &CheckpointId, record: &[u8], shelf: &Shelf) -> Result<Published> {
        self.add_record(id, record)?;
        self.seal(shelf)
    }

    /// Ends the pack as it is, makes it durable and gives it its place below `shelf`.
    pub fn seal(mut self, shelf: &Shelf) -> Result<Published> {
        self.flush()?;
        // A checkpoint that comes from a remote again may make the very pack that it made before, and so may a collection that puts the same things together: but a
        // pack that is there may be about to be removed, by its name. The time makes another one of it, whose number of writes depends on nothing that was left before.
        while shelf.place(&hash::contents(&self.contents.encode())).exists() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_le_bytes();
            self.add_blob(&hash::blob(&now), &now)?;
        }
        let id = self.end()?;
        let path = shelf.place(&id);
        self.sink.place(&path)?;
        Ok(Published { id, path, contents: self.contents })
    }
}

impl PackBuilder<Vec<u8>> {
    /// Ends the pack as it is.
    pub fn into_bytes(mut self) -> Result<(PackId, Vec<u8>)> {
        let id = self.end()?;
        Ok((id, self.sink))
    }
}

fn too_large() -> Error {
    Error::refused("this checkpoint is larger than a pack can be", "make the machine smaller, or checkpoint fewer parts at once")
}
