//! How much memory a collection takes. It runs in a process of its own, this test binary again at [`child`], and is looked at. 400,000 pages; ten million, which take
//! some gigabytes of disk, with FERMATA_LONG.

use crate::common::*;
use fermata_store::{CollectOptions, Removal, Store};
use fermata_types::*;
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const STORE: &str = "FERMATA_TEST_STORE";
/// Pages of a checkpoint.
const EACH: u64 = 100_000;
/// Of its own a collection takes this much for each page in a pack, and as much besides: docs/decisions/0039-scale.md.
const BYTES_A_PAGE: u64 = 2;
const BESIDES: u64 = 128 << 20;

/// Each with pages that nobody else has, and beside each a small one that shares three tenths of them. Returns those that shall go: packs lose all, most or nothing.
fn fill(store: &Store, pages: u64) -> Vec<CheckpointId> {
    let mut goes = Vec::new();
    for number in 0..pages / EACH {
        let mut writer = store.writer().unwrap();
        let mut page = [0; PAGE_SIZE];
        let mut put = |nth: u64| {
            page[..8].copy_from_slice(&(number * EACH + nth + 1).to_le_bytes());
            (nth as PageNumber, Some(writer.put_page(&page).unwrap().0))
        };
        let mut all: Vec<_> = (0..EACH).map(&mut put).collect();
        let root = writer.update_table(&Root::empty(EACH), &all).unwrap();
        let large = writer.commit(&record_of(None, &format!("large-{number}"), "", root)).unwrap();
        let mut writer = store.writer().unwrap();
        // Whole frames and parts of them.
        all.retain(|(nth, _)| nth % 40 < 12);
        let root = writer.update_table(&Root::empty(EACH), &all).unwrap();
        let small = writer.commit(&record_of(None, &format!("small-{number}"), "", root)).unwrap();
        match number % 4 {
            0 => goes.push(large),
            1 => goes.extend([large, small]),
            2 => goes.push(large),
            _ => {}
        }
    }
    goes
}

/// Memory of this process's own, in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse::<u64>().ok()).unwrap() << 10
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE) else { return };
    let store = open(Path::new(&path)).unwrap();
    let (over, most, mapped, before) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), memory("RssAnon:"));
    let look = || {
        most.fetch_max(memory("RssAnon:"), Relaxed);
        mapped.fetch_max(memory("VmRSS:"), Relaxed);
    };
    let watch = Instant::now();
    let told = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                look();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let told = store.collect(&CollectOptions::default(), &mut |_, _| look());
        over.store(true, Relaxed);
        told.unwrap()
    });
    println!(
        "{told:?} in {:.1} s; {} MiB before, {} mapped in all",
        watch.elapsed().as_secs_f64(),
        before >> 20,
        mapped.into_inner() >> 20
    );
    assert!(told.packs_rewritten > 0 && told.packs_removed > told.packs_rewritten && told.packs_removed < told.packs);
    println!("\n={}", most.into_inner() - before);
}

#[test]
fn a_collection_takes_little_memory() {
    let is_long = std::env::var_os("FERMATA_LONG").is_some();
    let (dir, pages) = if is_long { (tempfile::tempdir().unwrap(), 10_000_000) } else { (memory_dir(), 4 * EACH) };
    {
        let store = open(dir.path()).unwrap();
        let watch = Instant::now();
        let goes = fill(&store, pages);
        println!("filled in {:.0} s", watch.elapsed().as_secs_f64());
        store.remove(&Removal { checkpoints: goes, ..Removal::default() }).unwrap();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "bound::child", "--nocapture"]).env(STORE, dir.path()).stdout(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let most = said.lines().find_map(|line| line.strip_prefix('=')?.parse::<u64>().ok()).unwrap();
    let bound = pages * BYTES_A_PAGE + BESIDES;
    println!("{said}\n{} KiB for {pages} pages, the bound is {} KiB", most >> 10, bound >> 10);
    assert!(most <= bound);
}
