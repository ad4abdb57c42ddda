//! Blocks that the guest's file system has freed are in no checkpoint, without `discard`; and what the guest's kernel relies on always is, at any instant under load.

use fermata_experiment::{Asked, Journey, Run};
use fermata_testkit::{
    Bench,
    bench::{self, check_file_system},
    guests,
};
use fermata_types::PageCounts;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(90);
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };
/// What is written and removed.
const BIG_MIB: u64 = 48;
/// The same where its blocks are to be in the guest's memory when all of the disk was read, which is as large.
const LARGE_MIB: u64 = 100;
const BLOCKS_PER_MIB: u64 = 256;

fn sh(run: &Run, script: &str) -> String {
    bench::shell(run.body().machine(), WAIT, script)
}

fn bench(name: &str) -> Bench {
    let image = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    Bench::new(&guests::tiny(name, "fermata.run=none fermata.disk=rw", &image))
}

/// A checkpoint, and how the blocks of its disk fell through the sieve.
fn checkpoint(run: &Run) -> (fermata_types::CheckpointId, fermata_store::Record, PageCounts) {
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    let pages = record.cost.parts["m1/disk0"];
    (id, record, pages)
}

fn big(mib: u64) -> String {
    format!("dd if=/dev/urandom of=/disk/big bs=1M count={mib} 2>/dev/null; sync")
}

/// One transaction with the removal in it, and two more.
const GONE: &str = "rm /disk/big; sync; for i in 1 2; do echo $i >/disk/more; sync; done";

#[test]
fn what_was_written_and_removed_is_not_stored() {
    let (bench, big) = (bench("freed"), big(BIG_MIB));
    let run = bench.boot();
    sh(&run, "mount -o remount,nodiscard /disk");
    sh(&run, &format!("{big}; {GONE}"));
    let (id, record, pages) = checkpoint(&run);
    println!("written and removed: {pages:?}");
    assert!(pages.free >= BIG_MIB * BLOCKS_PER_MIB, "{pages:?}");
    assert!(pages.new + pages.known < 8 * BLOCKS_PER_MIB, "{pages:?}");
    // Written, stored, removed: the entries go, and what is known of free blocks is told.
    sh(&run, &big);
    let (_, _, pages) = checkpoint(&run);
    // The guest's page cache has the same, and goes to the store first.
    assert!(pages.new + pages.known >= BIG_MIB * BLOCKS_PER_MIB, "{pages:?}");
    sh(&run, GONE);
    let (_, last, pages) = checkpoint(&run);
    println!("removed after it was stored: {pages:?}");
    assert!(pages.free >= BIG_MIB * BLOCKS_PER_MIB, "{pages:?}");
    let disk = last.parts.iter().find(|part| part.name == "m1/disk0").expect("it has a disk");
    let spaces = disk.details["free_space"].as_array().expect("a file system was found");
    assert_eq!(spaces.len(), 1);
    assert!(spaces[0]["blocks"].as_u64() >= Some(BIG_MIB * BLOCKS_PER_MIB) && spaces[0].get("unclear").is_none(), "{spaces:?}");
    // The same by `discard`, which the guest sends when it is told to: its bitmaps alone would do as well, so it is counted.
    let discarded = || -> u64 { sh(&run, "awk '{print $14}' /sys/block/vda/stat").parse().expect("sectors") };
    let before = discarded();
    sh(&run, "mount -o remount,discard /disk");
    sh(&run, &format!("{big}; {GONE}"));
    let (_, _, pages) = checkpoint(&run);
    let sectors = discarded() - before;
    println!("with discard: {pages:?}, {sectors} sectors");
    assert!(sectors >= BIG_MIB * 2048, "only {sectors} sectors were discarded");
    assert!(pages.new + pages.known < 8 * BLOCKS_PER_MIB, "{pages:?}");
    let back = bench.arrive("back", &id, &record, RUNNING);
    sh(&back, &format!("echo 3 >/proc/sys/vm/drop_caches; {big}; cksum /disk/big; cat /disk/more"));
    check_file_system(&back.body());
}

/// What was read past the file system, from the disk itself, stays in the guest's memory when a file goes. Such a page still equals a block, and the block has no
/// name in the checkpoint any more.
#[test]
fn memory_that_equals_a_freed_block_is_kept_as_it_is() {
    let (bench, large) = (bench("freed-mapped"), big(LARGE_MIB));
    let run = bench.boot();
    sh(&run, "mount -o remount,nodiscard /disk");
    sh(&run, &format!("{large}; echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=1M 2>/dev/null; {GONE}"));
    // Compares each page with what it was taken for.
    let (_, record) = run.checkpoint_as(Asked { paranoid: true, ..Asked::default() }, &|| true).expect("no page was mistaken");
    let (disk, memory) = (record.cost.parts["m1/disk0"], record.cost.parts["m1"]);
    println!("{disk:?} {memory:?}");
    assert!(disk.free >= LARGE_MIB * BLOCKS_PER_MIB, "{disk:?}");
    // Nothing on the disk is like this, but in the file that is gone.
    assert!(memory.new > 16 * BLOCKS_PER_MIB, "{memory:?}");
}

/// Files of known content come and go, most of them without a sync. Data is written at once, long before its transaction commits: the worst case there is.
const LOAD: &str = r#"
mount -o remount,nodiscard /disk; mkdir -p /disk/load
echo 5 >/proc/sys/vm/dirty_writeback_centisecs; echo 5 >/proc/sys/vm/dirty_expire_centisecs
i=0
while [ ! -e /run/stop ]; do
    i=$((i + 1)); n=$((i * 7919 % 250000 + 3000))
    yes "file $i" | head -c $n >/disk/load/new; mv /disk/load/new /disk/load/$i.$n
    old=$((i - 12 + i % 5)); [ -e /disk/load/$old.* ] && rm /disk/load/$old.*
    [ $((i % 16)) = 0 ] && sync
done
touch /run/stopped
"#;

/// Reads everything from the disk, and nothing from memory.
const LOOK: &str = r#"
touch /run/stop; while [ ! -e /run/stopped ]; do sleep 0.1; done
sync; echo 3 >/proc/sys/vm/drop_caches
for file in /disk/load/*.*; do
    name=${file##*/}
    yes "file ${name%.*}" | head -c ${name#*.} | cmp - $file || exit 1
done
dmesg | grep 'EXT4-fs error' && exit 1
ls /disk/load | wc -l
"#;

#[test]
fn files_in_use_survive_at_any_instant_under_load() {
    let bench = bench("freed-load");
    let run = bench.boot();
    sh(&run, &format!("({LOAD}) >/dev/null 2>&1 &"));
    let mut freed = 0;
    for wait in [4000, 1300, 2100, 700] {
        std::thread::sleep(Duration::from_millis(wait));
        let (id, record, pages) = checkpoint(&run);
        freed += pages.free;
        // It has the processor to itself.
        run.pause().expect("it stops");
        let copy = bench.arrive("copy", &id, &record, RUNNING);
        let files = sh(&copy, LOOK);
        println!("{files} files are right; {pages:?}");
        check_file_system(&copy.body());
        run.resume().expect("it goes on");
    }
    assert!(freed > 0, "no block was left out");
}
