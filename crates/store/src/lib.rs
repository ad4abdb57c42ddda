//! The store: pages, packs, index, page tables, checkpoint records and refs.
//!
//! A checkpoint is written through a [`Writer`] into one pack file and becomes visible in one transaction of the index. It is read through the
//! [`Store`], and everything read is checked against the hash that names it. Formats are in `docs/formats/`.
//!
//! - `store`: [`Store`], opening, reading pages and blobs; `sweep`: reading many pages in the order in which they lie
//! - `writer`: [`Writer`], the sieve, the commit
//! - `pack`: pack files; `index`: where everything lies; `lmdb`: checks its file before LMDB sees it
//! - `table` and `node`: page tables as trees of hashes
//! - `record`: [`Record`]; `refs`: branches, tags, finding checkpoints; `recent`: the newest ones
//! - `image`: golden images; `image_names`: the names of their blocks by number
//! - `still`: a RAM or a disk as a checkpoint has it, read like a file
//! - `remove`: removing checkpoints; `removed`: what is remembered of them; `hold`: what must stay all the same; `hints`: bytes beside a checkpoint
//! - [`remote`]: copying checkpoints to other places and back
//! - `retention`: which checkpoints a policy keeps
//! - `collect`: garbage, and the steps in which it goes; `mark`: what is alive
//! - `verify`: finding damage and what it touches; `stats`: what is in the store
//! - `rebuild`: the index again from packs alone
//! - `fuzzing`: what fuzzers call, only with that feature
//! - `seal`: texts that vouch for themselves
//! - `keys`: whether a store is encrypted, and what opens it; `secret`: what keys are made of; `cipher`: how bytes and names are encrypted; `chunks`: files
//!   of the store, encrypted or not
//! - `files`: every change to files, the seam for faults; `cache`, `hash`, `error`: what the others stand on
//!
//! This room knows no machine and no disk: it keeps pages, trees of page names, blobs and records, and hands them back as they were. It does
//! not know what a page means, looks at no clock, and removes no checkpoint by itself: it is told.

mod cache;
mod chunks;
mod cipher;
mod collect;
mod error;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hash;
mod hints;
mod hold;
mod image;
mod image_names;
mod index;
mod keys;
mod lmdb;
mod mark;
mod node;
mod pack;
mod rebuild;
mod recent;
mod record;
mod refs;
pub mod remote;
mod remove;
mod removed;
mod retention;
mod seal;
mod secret;
mod stats;
mod still;
mod store;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub use collect::{CollectOptions, CollectStage, Collected};
pub use error::{Error, Result};
pub use hash::{ImageHasher, blob as blob_name};
pub use hold::Hold;
pub use image::{ImageReader, Progress};
pub use keys::{Ask, Encryption, PASSPHRASE_VARIABLE, ask_passphrases_with};
pub use rebuild::Rebuilt;
pub use record::{Cost, Record, Skew, Waiting};
pub use remove::{BranchName, MovedBranch, Removal, Removed, RemovedCheckpoint, RemovedTag};
pub use retention::{Candidate, Keep, ParseKeepError, Why};
pub use seal::{is_sealed_json, seal_json};
pub use secret::Secret;
pub use stats::{Saved, Stats};
pub use still::{Contents, EachPiece, Still};
pub use store::Store;
pub use verify::{Damage, Remedy, Report, Touched, VerifyOptions, VerifyStage};
pub use writer::{Class, Writer};
