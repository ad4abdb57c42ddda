//! The store: pages, packs, index, page tables, checkpoint records and refs.
//!
//! A checkpoint is written through a [`Writer`] into one pack file and becomes visible in one transaction of the index. It is read through the
//! [`Store`], and everything read is checked against the hash that names it. Formats are in `docs/formats/`.
//!
//! - `store`: [`Store`], opening, reading pages and blobs
//! - `writer`: [`Writer`], the sieve, the commit
//! - `pack`: pack files; `index`: where everything lies
//! - `table` and `node`: page tables as trees of hashes
//! - `record`: [`Record`]; `refs`: branches, tags, finding checkpoints
//! - `image`: golden images
//! - `rebuild`: the index again from packs alone
//! - `files`: every change to files, the seam for faults; `cache`, `hash`, `error`: what the others stand on
//!
//! This room knows no machine and no disk: it keeps pages, trees of page names, blobs and records, and hands them back as they were. It does
//! not know what a page means, looks at no clock, and decides nothing about which checkpoints to keep.

mod cache;
mod error;
mod files;
mod hash;
mod image;
mod index;
mod node;
mod pack;
mod rebuild;
mod record;
mod refs;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{Error, Result};
pub use image::{ImageReader, Progress};
pub use rebuild::Rebuilt;
pub use record::{Cost, Record};
pub use store::Store;
pub use writer::{Class, Writer};
