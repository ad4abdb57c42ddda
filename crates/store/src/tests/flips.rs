//! One bit is flipped at a time, in every file of a store. Each flip is named when the store is opened or verified. Only in the index there are
//! bits that say nothing: those of free pages, of free space in pages, of LMDB's locks. There everything that is read is as it was.

use super::{
    crash::{Image, memory_dir},
    disk::Random,
    *,
};
use crate::{Remedy, index::Location, seal};

/// Files up to this length are flipped at each of their bytes.
const SMALL: usize = 4096;

/// A store with something of everything: packs, settled and fresh entries, a tag, a branch made by hand, a hint, checkpoints removed before and after a
/// collection, a golden image with the names of its blocks and its id.
fn sample(path: &Path) {
    let store = open(path).unwrap();
    let mut head = None;
    let ids: Vec<_> = (1..5).map(|step| *head.insert(grow(&store, head, step).unwrap())).collect();
    store.remove(&Removal { checkpoints: vec![ids[0]], ..Removal::default() }).unwrap();
    store.collect(&CollectOptions { rewrite_below: 0, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    store.remove(&Removal { checkpoints: vec![ids[1]], ..Removal::default() }).unwrap();
    store.0.index.settle().unwrap();
    store.add_image(ImageId([7; 32]), Arc::new(Image), &mut |_| {}).unwrap();
    let known = serde_json::json!({ "version": 2, "path": "/images/debian.qcow2", "id": ImageId([7; 32]).to_string() });
    std::fs::write(path.join("images/image-0123.json"), seal::seal_json(&known).unwrap()).unwrap();
    store.tag("lab", "good", &ids[2]).unwrap();
    store.set_branch("lab", "side", &ids[2]).unwrap();
    store.set_hint(&ids[2], "first", &[7; 900]).unwrap();
    grow(&store, head, 5).unwrap();
}

/// All that the index says, but whether objects are doomed: the next collection finds that out anew.
fn entries(store: &Store) -> Vec<(usize, Vec<u8>, Vec<u8>)> {
    let index = &store.0.index;
    let objects = [&index.pages, &index.nodes, &index.blobs];
    let others = [&index.packs, &index.pack_numbers, &index.records, &index.refs, &index.images, &index.meta];
    let more = [&index.removed, &index.trash, &index.hints];
    let mut all = Vec::new();
    for (number, db) in objects.into_iter().chain(others).chain(more).enumerate() {
        let each = |key: &[u8], value: &[u8]| {
            let location = Location::decode(value).filter(|_| number < objects.len());
            let value = location.map_or(value.to_vec(), |location| location.encode().as_ref().to_vec());
            all.push((number, key.to_vec(), value));
            Ok(true)
        };
        index.scan(&index.read().unwrap(), db, crate::index::ScanFrom::Start, each).unwrap();
    }
    all
}

/// Whether a store with this file flipped says so.
fn is_noticed(path: &Path, file: &Path, expected: &[(usize, Vec<u8>, Vec<u8>)], place: &str) -> bool {
    let of_index = file.starts_with(path.join("index"));
    let store = match open(path) {
        Ok(store) => store,
        Err(error) => {
            assert!(error.to_string().contains(path.to_str().unwrap()), "{place}: {error}");
            return true;
        }
    };
    match store.verify(&VerifyOptions::default(), &mut |_, _| {}) {
        Err(error) => assert!(of_index && matches!(error, Error::Corrupt { .. }), "{place}: {error}"),
        Ok(report) if report.damage.is_empty() => {
            assert!(of_index, "{place}: nobody noticed");
            let other = entries(&store).into_iter().zip(expected).find(|(found, expected)| found != *expected);
            assert!(other.is_none(), "{place}: nobody noticed that the index says something else: {other:?}");
            assert_eq!(entries(&store).len(), expected.len(), "{place}");
            return false;
        }
        Ok(report) => {
            let named = report.damage.iter().any(|damage| damage.path == file || (of_index && damage.remedy == Remedy::Rebuild));
            assert!(named, "{place}: {report:?}");
        }
    }
    true
}

#[test]
fn every_flipped_bit_is_noticed_or_says_nothing() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    sample(&path);
    let expected = {
        let store = open(&path).unwrap();
        assert_eq!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage, []);
        entries(&store)
    };
    let samples = match std::env::var_os("FERMATA_LONG") {
        Some(_) => 4000,
        None if is_encrypted() => 100,
        None => 250,
    };
    let mut random = Random(5);
    let mut files = Vec::new();
    for (below, content) in super::disk::tree(&path).into_iter().chain([("index/lock.mdb".into(), Some(Vec::new()))]) {
        let file = path.join(&below);
        let Some(content) = content.map(|_| std::fs::read(&file).unwrap()).filter(|content| !content.is_empty()) else { continue };
        let is_small = content.len() <= SMALL && !below.ends_with("lock.mdb");
        let count = if is_small { content.len() } else { samples };
        let mut noticed = 0;
        for nth in 0..count {
            let drawn = random.next();
            let at = if is_small { nth } else { drawn as usize % content.len() };
            let bit = (drawn >> 48) % 8;
            let mut flipped = content.clone();
            flipped[at] ^= 1 << bit;
            std::fs::write(&file, flipped).unwrap();
            // So soon after a commit the clock of the file system may not have gone on.
            let _ = std::fs::remove_file(path.join("index/checked"));
            noticed += usize::from(is_noticed(&path, &file, &expected, &format!("bit {bit} of byte {at} of {}", below.display())));
        }
        std::fs::write(&file, &content).unwrap();
        println!("{}: {noticed} of {count} flips noticed", below.display());
        assert!(below.starts_with("index") || noticed == count);
        files.push(below);
    }
    for kind in ["format", "removed", ".pack", ".names", ".json", "data.mdb"] {
        assert!(files.iter().any(|file| file.to_str().unwrap().ends_with(kind)), "no {kind} among {files:?}");
    }
}
