//! A flipped bit anywhere in the file of the index: an error that names it and the way out, or nothing at all; never a wrong page, and never
//! the end of the process, for it may have guests. The flips are tried in children, which are this test binary again, at [`child`].

use crate::common::*;
use fermata_store::{Error, Record, Result, Store};
use fermata_types::*;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const STORE: &str = "FERMATA_TEST_STORE";

fn step_of(record: &Record) -> u64 {
    record.message.as_deref().unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Pages of a step. Step 0 has enough for a tree with branches.
fn seeds(step: u64) -> Vec<(PageNumber, u64)> {
    (0..if step == 0 { 300 } else { 12 })
        .map(|i| (i as PageNumber * 5 % 4000, step * 1000 + i))
        .collect::<BTreeMap<_, _>>()
        .into_iter()
        .collect()
}

fn grow(store: &Store, parent: Option<CheckpointId>, step: u64) -> Result<CheckpointId> {
    let root = match parent {
        Some(parent) => store.record(&parent)?.parts[0].tables["ram"],
        None => Root::empty(4000),
    };
    let mut writer = store.writer()?;
    let mut changes = Vec::new();
    for (number, seed) in seeds(step) {
        changes.push((number, Some(writer.put_page(&page(seed))?.0)));
    }
    let root = writer.update_table(&root, &changes)?;
    // A record of more than a page of LMDB.
    writer.commit(&record_of(parent, "main", &format!("{step} {}", "x".repeat(5000)), root))
}

/// Free pages, branches, large values, tags, branches by hand, hints.
fn sample(path: &Path) -> Vec<CheckpointId> {
    let store = open(path).unwrap();
    let mut ids: Vec<CheckpointId> = Vec::new();
    for step in 0..4 {
        ids.push(grow(&store, ids.last().copied(), step).unwrap());
    }
    store.tag("lab", "good", &ids[1]).unwrap();
    store.set_branch("lab", "side", &ids[2]).unwrap();
    store.set_hint(&ids[0], "first", &[7; 9000]).unwrap();
    ids
}

/// Everything is as it was, or an error says that it is not.
fn read_all(path: &Path) -> Result<()> {
    let store = open(path)?;
    let records = store.records()?;
    // The newest names everything, and the oldest is quick.
    for (id, record) in records.iter().filter(|(_, record)| [0, 3].contains(&step_of(record))) {
        let mut expected = BTreeMap::new();
        (0..=step_of(record)).for_each(|step| expected.extend(seeds(step)));
        let mut found = 0;
        let each = &mut |number, name| {
            found += 1;
            assert_eq!(read(&store, &name)?, page(expected[&number]), "page {number} of {id}");
            Ok(())
        };
        store.for_each_page(&record.parts[0].tables["ram"], each)?;
        assert_eq!(found, expected.len());
    }
    let (branches, tags) = (store.branches("lab")?, store.tags("lab")?);
    let lost = records.len() != 4
        || branches.len() != 2
        || !tags.contains_key("good")
        || !branches.contains_key("side")
        || !branches.contains_key("main");
    if lost {
        println!("=lost {} {:?} {:?}", records.len(), branches, tags);
    }
    let head = store.branch("lab", "main")?;
    // A guest that runs goes on, whatever else the index has lost.
    grow(&store, head, 9)?;
    Ok(())
}

/// Puts other bytes into an index, which nobody takes for what was checked: so soon after a commit the clock of the file system may not have gone on.
fn put(file: &Path, bytes: &[u8]) {
    std::fs::write(file, bytes).unwrap();
    let _ = std::fs::remove_file(file.with_file_name("checked"));
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE).map(PathBuf::from) else { return };
    let file = path.join("index/data.mdb");
    // Not the file itself: a child that died has left damage in it.
    let original = std::fs::read(path.with_file_name("original")).unwrap();
    let packs: Vec<_> = std::fs::read_to_string(path.with_file_name("packs")).unwrap().lines().map(PathBuf::from).collect();
    for line in std::io::stdin().lines() {
        let at: u64 = line.unwrap().parse().unwrap();
        put(&file, &original);
        files(&path.join("packs")).into_iter().filter(|pack| !packs.contains(pack)).for_each(|pack| std::fs::remove_file(pack).unwrap());
        let index = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        index.write_all_at(&[original[at as usize / 8] ^ 1 << (at % 8)], at / 8).unwrap();
        println!("\n@{at}");
        match read_all(&path) {
            Ok(()) => println!("=right"),
            Err(error) => println!("={}: {error}", kind(&error)),
        }
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Corrupt { .. } => "corrupt",
        Error::Unsupported { .. } => "unsupported",
        Error::Missing { .. } => "missing",
        Error::Refused { .. } => "refused",
        Error::Io { .. } => "io",
        _ => "other",
    }
}

/// Tries all flips in one child after another; says how often each outcome came.
fn try_all(path: &Path, flips: &[u64]) -> BTreeMap<String, Vec<String>> {
    let mut outcomes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut left = flips;
    while !left.is_empty() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "index_damage::child", "--nocapture"])
            .env(STORE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let lines: String = left.iter().map(|at| format!("{at}\n")).collect();
        let feeder = std::thread::spawn(move || _ = input.write_all(lines.as_bytes()));
        let (mut tried, mut at) = (0, String::new());
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(bit) = line.strip_prefix('@') {
                tried += 1;
                at = bit.to_owned();
            } else if let Some(outcome) = line.strip_prefix('=') {
                let kind = outcome.split([':', ' ']).next().unwrap().to_owned();
                outcomes.entry(kind).or_default().push(format!("{at}: {outcome}"));
            }
        }
        feeder.join().unwrap();
        let status = child.wait().unwrap();
        if !status.success() {
            outcomes.entry("died".into()).or_default().push(format!("{at}: {status}"));
        }
        assert!(tried > 0, "{status}");
        left = &left[tried..];
    }
    outcomes
}

#[test]
fn a_flipped_bit_anywhere_in_the_index_ends_no_process_and_gives_no_wrong_page() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    sample(&path);
    let bits = std::fs::copy(path.join("index/data.mdb"), path.with_file_name("original")).unwrap() * 8;
    let list: String = packs(&path).iter().map(|pack| format!("{}\n", pack.display())).collect();
    std::fs::write(path.with_file_name("packs"), list).unwrap();
    let count: u64 = if std::env::var_os("FERMATA_LONG").is_some() { 4000 } else { 300 };
    let mut state = 1u64;
    // Headers of pages, and pages of few entries, count for more than their bytes.
    let flips: Vec<u64> = (0..count)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 16) % bits;
            match i % 4 {
                0 => at - at % (4096 * 8) + (state >> 50) % (64 * 8),
                1 => (state >> 20) % (2 * 4096 * 8),
                _ => at,
            }
        })
        .collect();
    let outcomes = try_all(&path, &flips);
    for (outcome, all) in &outcomes {
        println!("{outcome}: {} of {count}", all.len());
        all.iter().take(20).for_each(|one| println!("    {one}"));
    }
    assert!(!outcomes.contains_key("died"));
    // Errors that a person can do nothing with.
    for unclear in ["other", "io", "refused"] {
        assert!(!outcomes.contains_key(unclear), "{unclear}");
    }
    // The name of a branch or a tag is in the index alone, and nothing vouches for it.
    assert!(outcomes.get("lost").is_none_or(|lost| lost.len() as u64 * 500 < count));
    assert!(outcomes["corrupt"].len() as u64 * 20 > count, "damage is noticed");
}

/// The ways of a file to be no index of ours: none of them is shown to LMDB, and each is named.
#[test]
fn an_index_cut_short_or_foreign_is_refused_with_the_way_out_and_built_again() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    sample(&path);
    let file = path.join("index/data.mdb");
    let original = std::fs::read(&file).unwrap();
    let open = |bytes: &[u8]| {
        put(&file, bytes);
        open(&path).map(drop)
    };
    let mut short = 0;
    for length in (1..original.len()).step_by(original.len() / 40).chain([original.len() - 4096]) {
        match open(&original[..length]) {
            // The last pages may be free ones.
            Ok(()) => read_all(&path).unwrap(),
            Err(Error::Corrupt { path, .. }) if path == file => short += 1,
            Err(error) => panic!("{length}: {error}"),
        }
    }
    assert!(short > 30, "{short}");
    assert!(matches!(open(b""), Err(Error::IndexLost { .. })), "an empty index over packs");
    let mut foreign = original.clone();
    foreign[20] = 2;
    assert!(matches!(open(&foreign), Err(Error::Unsupported { .. })));
    // Zeros, as a lost write leaves them, in place of each page in turn.
    let (mut refused, mut unused) = (0, 0);
    for at in (0..original.len()).step_by(4096) {
        let mut holed = original.clone();
        holed[at..at + 4096].fill(0);
        put(&file, &holed);
        match crate::common::open(&path) {
            Ok(store) => unused += store.records().map_or(0, |records| usize::from(records.len() == 4)),
            Err(error) => refused += usize::from(error.to_string().contains("fermata rebuild")),
        }
    }
    assert!(refused > 15 && refused + unused > original.len() / 4096 - 12, "{refused} refused, {unused} not in use");
    assert!(Store::rebuild_index(&path).unwrap().damaged.is_empty());
    read_all(&path).unwrap();
}

#[test]
fn a_rebuild_takes_tags_out_of_an_index_that_is_damaged_elsewhere() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let ids = sample(&path);
    let file = path.join("index/data.mdb");
    let original = std::fs::read(&file).unwrap();
    let (mut kept, mut damaged) = (0, 0);
    for at in (2 * 4096..original.len()).step_by(4096) {
        let mut holed = original.clone();
        holed[at..at + 4096].fill(0);
        put(&file, &holed);
        if open(&path).is_ok() {
            continue;
        }
        damaged += 1;
        assert_eq!(Store::rebuild_index(&path).unwrap().checkpoints, 4);
        let store = open(&path).unwrap();
        let tags = store.tags("lab").unwrap();
        kept += usize::from(tags.get("good") == Some(&ids[1]) && store.branch("lab", "side").unwrap() == Some(ids[2]));
        assert!(tags.is_empty() || tags["good"] == ids[1]);
    }
    assert!(damaged > 10 && kept + 3 > damaged, "{kept} of {damaged}");
}
