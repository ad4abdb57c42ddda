//! What the tests of the store share.

#[path = "either.rs"]
mod either;

pub use either::{is_encrypted, open};
use fermata_store::{Cost, Encryption, Error, Record, Result, Secret, Store, Writer};
use fermata_types::*;
use std::path::{Path, PathBuf};

/// A page whose content depends on `seed` alone; compressible, as pages are.
pub fn page(seed: u64) -> PageBuf {
    let mut page = [0; PAGE_SIZE];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8).step_by(3) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

/// A page that does not compress.
pub fn noise(seed: u64) -> PageBuf {
    let mut page = [0; PAGE_SIZE];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut page);
    page
}

pub fn record(parent: Option<CheckpointId>, branch: &str, message: &str) -> Record {
    Record {
        parent,
        experiment: "lab".into(),
        branch: branch.into(),
        message: Some(message.into()),
        created_ns: 1_700_000_000_000_000_000,
        after_ns: None,
        time_virtual_ns: 2_000_000_000,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::json!({ "name": "lab", "nodes": { "m1": { "memory": "1G" } } }),
        parts: Vec::new(),
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// A directory that is gone when dropped; in memory where there is one, for tests that sync often and need no disk for it.
pub fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A record with one RAM.
pub fn record_of(parent: Option<CheckpointId>, branch: &str, message: &str, ram: Root) -> Record {
    let mut record = record(parent, branch, message);
    record.parts.push(PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: Default::default(),
        details: serde_json::Value::Null,
    });
    record
}

/// Writes these pages (number, seed) on top of `base`.
pub fn put(writer: &mut Writer, base: &Root, pages: &[(PageNumber, u64)]) -> Root {
    let changes: Vec<_> = pages.iter().map(|(number, seed)| (*number, Some(writer.put_page(&page(*seed)).unwrap().0))).collect();
    writer.update_table(base, &changes).unwrap()
}

pub fn read(store: &Store, name: &PageName) -> fermata_store::Result<PageBuf> {
    let mut page = [0xaa; PAGE_SIZE];
    store.read_page(name, &mut page).map(|()| page)
}

/// Every file below a directory.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

pub fn packs(store: &Path) -> Vec<PathBuf> {
    files(&store.join("packs"))
}
