//! Disks of which each checkpoint wrote some blocks here and there: once packs are rewritten, their blocks lie in the order of the disk.

use crate::common::*;
use fermata_store::{CollectOptions, Record, Removal, Store, VerifyOptions};
use fermata_types::*;
use std::{collections::BTreeMap, time::Instant};

/// Pages of the disk.
const PAGES: u32 = 16 * 512;
/// That are written together.
const CLUSTER: u32 = 16;

/// So many checkpoints, each with some clusters of its own, of which only the newest is left. What it holds.
fn aged(store: &Store, checkpoints: u64) -> (Root, BTreeMap<PageNumber, u64>) {
    let (mut root, mut head, mut state, mut ids) = (Root::empty(PAGES.into()), None, 7u64, Vec::new());
    let mut content = BTreeMap::new();
    for step in 0..checkpoints {
        let mut writer = store.writer().unwrap();
        let mut written = BTreeMap::new();
        // Each cluster is written some four times, so that little is left of what was written first.
        for _ in 0..(u64::from(4 * PAGES / CLUSTER) / checkpoints).max(1) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = (state >> 33) as u32 % (PAGES / CLUSTER) * CLUSTER;
            // Not all of it, and from anywhere, as guests write.
            let from = (state >> 20) as u32 % CLUSTER;
            written.extend((first + from..first + CLUSTER).map(|page| (page, step << 32 | u64::from(page))));
        }
        root = put(&mut writer, &root, &written.iter().map(|(page, seed)| (*page, *seed)).collect::<Vec<_>>());
        content.extend(written);
        let id = writer.commit(&record_of(head, "main", &step.to_string(), root)).unwrap();
        ids.extend(head.replace(id));
    }
    store.remove(&Removal { checkpoints: ids, ..Removal::default() }).unwrap();
    (root, content)
}

/// How many times a frame is decompressed by one who reads the disk from its beginning to its end and keeps what comes along; and how long that takes.
fn read_all(store: &Store, root: &Root, content: &BTreeMap<PageNumber, u64>) -> (usize, f64) {
    let began = Instant::now();
    let (mut frames, mut at) = (0, 0);
    while at < PAGES {
        let Some(name) = store.lookup(root, at).unwrap() else {
            at += 1;
            continue;
        };
        let along = store.along(root, at..at + 1, |page| page > at).unwrap();
        for number in along.clone() {
            let name = if number == at { name } else { store.lookup(root, number).unwrap().unwrap() };
            assert_eq!(read(store, &name).unwrap(), page(content[&number]), "page {number}");
        }
        (frames, at) = (frames + 1, along.end);
    }
    (frames, began.elapsed().as_secs_f64())
}

#[test]
fn blocks_of_many_checkpoints_lie_in_order_once_they_are_rewritten() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let checkpoints = if std::env::var_os("FERMATA_LONG").is_some() { 1000 } else { 100 };
    let (root, content) = aged(&store, checkpoints);
    let (before, time_before) = read_all(&store, &root, &content);
    let told = store.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert!(told.damaged.is_empty() && told.packs_rewritten > checkpoints / 2, "{told:?}");
    let (after, time_after) = read_all(&store, &root, &content);
    // As if one checkpoint had written all of it.
    let mut writer = store.writer().unwrap();
    let fresh: Vec<_> = content.iter().map(|(page, seed)| (*page, seed | 1 << 60)).collect();
    let fresh_root = put(&mut writer, &Root::empty(PAGES.into()), &fresh);
    writer.commit(&record_of(None, "fresh", "", fresh_root)).unwrap();
    let (least, time_least) = read_all(&store, &fresh_root, &fresh.into_iter().collect());
    println!(
        "{checkpoints} checkpoints, {} blocks: {before} frames in {time_before:.4} s before, {after} in {time_after:.4} s after, {least} in {time_least:.4} s of one",
        content.len()
    );
    // The newest pack has nothing dead and stays as it is, so that it lies between the others.
    assert!(after <= least + least / 8 && before > after + after / 4, "{before} frames before, {after} after, {least} of one");
}

/// Each of many checkpoints wrote some pieces, shorter than a frame, that no later one wrote: nothing is dead, and one who reads the disk needs a frame for each piece.
#[test]
fn small_packs_are_put_together_though_nothing_in_them_is_dead() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let (mut root, mut head, mut content) = (Root::empty(PAGES.into()), None, BTreeMap::new());
    let (checkpoints, piece) = (100, CLUSTER / 4);
    for step in 0..checkpoints {
        let mut writer = store.writer().unwrap();
        let pieces = (0..PAGES / piece).filter(|number| (number.wrapping_mul(0x9e37_79b9) >> 8) % checkpoints == step);
        let written: Vec<_> = pieces.flat_map(|number| number * piece..(number + 1) * piece).map(|page| (page, u64::from(page))).collect();
        root = put(&mut writer, &root, &written);
        content.extend(written);
        let record = record_of(head, "main", &step.to_string(), root);
        // One after the other: the tables of the newest are walked first.
        head = Some(writer.commit(&Record { created_ns: record.created_ns + u64::from(step), ..record }).unwrap());
    }
    let (before, _) = read_all(&store, &root, &content);
    let dry = store.collect(&CollectOptions { dry_run: true, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    let left = store.collect(&CollectOptions { rewrite_below: 0, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert_eq!((left.packs_removed, left.packs_written, left.packs), (0, 0, u64::from(checkpoints)));
    let told = store.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    // One of the disk's blocks, and one of all else.
    assert_eq!(
        (told.packs_rewritten, told.packs_removed, told.packs_written, told.objects_removed),
        (u64::from(checkpoints), u64::from(checkpoints), 2, 0)
    );
    assert_eq!((dry.packs_rewritten, dry.packs_removed), (told.packs_rewritten, told.packs_removed));
    let (after, _) = read_all(&store, &root, &content);
    let least = content.len().div_ceil(CLUSTER as usize);
    println!("{before} frames before, {after} after, of {} blocks", content.len());
    assert!(after <= least + least / 4 && before > 2 * after, "{before} frames before, {after} after, some {least} would do");
    // All are there, and nothing is left to be put together.
    assert_eq!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage, []);
    let again = store.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!((again.packs, again.packs_rewritten, again.packs_removed), (2, 0, 0));
}
