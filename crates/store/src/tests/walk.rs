//! The walk over the index by several threads: what is wrong between two children of a root is noticed, whichever threads walk below them.

use super::*;
use crate::{index::DATABASES, lmdb, pack::u16_at};

/// Where the pointers to the nodes of a page begin.
const POINTERS: usize = 16;
/// Bytes of a node before its key, whose length is in the last two.
const NODE: usize = 8;
const PAGE: usize = 4096;
const BRANCH: u16 = 1;
/// Enough for a root with many children.
const PAGES: u64 = 3000;

/// Places of the nodes of each branch of a file, as they lie in it.
fn branches(file: &[u8]) -> Vec<Vec<usize>> {
    let branch = |(at, page): (usize, &[u8])| {
        let nodes = (POINTERS..usize::from(u16_at(page, 12))).step_by(2);
        (u16_at(page, 10) == BRANCH).then(|| nodes.map(|pointer| at * PAGE + usize::from(u16_at(page, pointer))).collect())
    };
    file.chunks(PAGE).enumerate().skip(2).filter_map(branch).collect()
}

#[test]
fn children_out_of_order_are_noticed_wherever_they_are() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = open(dir.path()).unwrap();
        let mut writer = store.writer().unwrap();
        let changes: Vec<_> = (0..PAGES).map(|i| (i as PageNumber, Some(writer.put_page(&page(i)).unwrap().0))).collect();
        let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
        writer.commit(&record(None, 1, ram, BTreeMap::new())).unwrap();
        store.0.index.settle().unwrap();
    }
    let path = dir.path().join("index/data.mdb");
    let whole = std::fs::read(&path).unwrap();
    let check = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        lmdb::check(&path, &DATABASES)
    };
    check(&whole).unwrap();
    // Old versions of roots are free by now, and may say what they like; the largest in use has as many children as any.
    let mut noticed = Vec::new();
    for branch in branches(&whole) {
        let damaged = branch.windows(2).flat_map(|pair| {
            let swapped = {
                let mut bytes = whole.clone();
                // The number of the child's page, in the first six bytes of a node.
                bytes[pair[0]..pair[0] + 6].copy_from_slice(&whole[pair[1]..pair[1] + 6]);
                bytes[pair[1]..pair[1] + 6].copy_from_slice(&whole[pair[0]..pair[0] + 6]);
                bytes
            };
            let lowered = {
                let mut bytes = whole.clone();
                // The least key below the second: now less than what is below the first.
                bytes[pair[1] + NODE..][..usize::from(u16_at(&whole, pair[1] + 6))].fill(0);
                bytes
            };
            [check(&swapped).is_err(), check(&lowered).is_err()]
        });
        let damaged: Vec<_> = damaged.collect();
        if damaged.contains(&true) {
            assert!(damaged.iter().all(|noticed| *noticed), "{damaged:?}");
            noticed.push(branch.len());
        }
    }
    assert!(noticed.iter().any(|children| *children > 20), "{noticed:?}");
}
