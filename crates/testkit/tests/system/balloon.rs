//! Guests that report free pages through the balloon, and do not tell of them otherwise: what they give back is gone at once, no checkpoint keeps it, and nobody
//! sees it again. About a minute and a quarter.

use crate::matrix::{elsewhere, newer_qemu};
use fermata_experiment::{Asked, Journey, Run, Status};
use fermata_testkit::{
    Bench, Snapshot,
    bench::{self, await_console, console},
    cli::await_that,
    guests, oracle,
};
use fermata_types::PAGE_SIZE;
use std::{fs, os::unix::fs::MetadataExt, time::Duration};

/// Where the guest with that kernel is.
const NEWER: &str = "linux-6.12/";
const BOOT: Duration = Duration::from_secs(120);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };
/// Looks at the content of all that would be taken as known to equal a block.
const PARANOID: Asked = Asked { message: None, paranoid: true, gentle: false, when: None, in_turn: false };

/// What is written and given back: half as a file in memory, half as the page cache of one on the disk.
const FILE_MIB: u64 = 24;
const PAGES: u64 = 2 * FILE_MIB * 256;
/// The kernel reports blocks of 2 MiB and more only, and somebody may have taken a page in the middle of one.
const MOST: u64 = PAGES / 2;

fn shell(run: &Run, script: &str) -> String {
    bench::shell(run.body().machine(), BOOT, script)
}

/// Pages of the host that the guest's memory takes.
fn taken(run: &Run) -> u64 {
    fs::metadata(run.body().machine().ram().path()).expect("it has memory").blocks() / (PAGE_SIZE as u64 / 512)
}

/// Waits until the guest has looked at its memory and its files twice more.
fn goes_on(run: &Run) {
    let rounds = |text: &str| text.matches("selfcheck round").count();
    let before = rounds(&console(&run.body()));
    await_console(&run.body(), BOOT, |text| (text.contains("SELFCHECK FAIL") || rounds(text) >= before + 2).then_some(()));
    assert!(!console(&run.body()).contains("SELFCHECK FAIL"), "{}", console(&run.body()));
    assert_eq!(shell(run, "dmesg | grep -cE 'pagealloc|corruption|Bad page|Oops|BUG:' || true"), "0");
    assert_eq!(run.body().machine().status(), Status::Running);
}

/// Has the guest give back what it has, and waits until it is gone. What the file lay in may hold pages of others by then: those of the guest that checks
/// itself, and what each processor keeps at hand. They are moved together, or too few whole blocks are free.
fn gives_back(run: &Run) {
    let before = taken(run);
    shell(run, "rm /run/large; echo 3 > /proc/sys/vm/drop_caches; echo 1 > /proc/sys/vm/compact_memory");
    await_that("the kernel has reported what is free", BOOT, || taken(run) + MOST <= before);
}

/// A checkpoint, each page of which is what the machine had; and each block that its file system had not freed.
fn exact(bench: &Bench, run: &Run) {
    let mut original = None;
    let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
    let copy = Snapshot::of(&bench.arrive("look", &id, &record, PAUSED).body());
    let left_out = oracle::left_out(&run.body());
    assert_eq!(original.expect("the pause was seen").differences_beside(&copy, &left_out), Vec::<String>::new());
}

/// Takes all memory that is free, which nobody clears then: the kernel has cleared it when it was given back.
fn finds_only_zeros(run: &Run) {
    shell(run, "/work/zeros");
}

fn given_back(name: &str, directory: &str, keys: &str) {
    let disk = tempfile::NamedTempFile::new().expect("a file");
    fs::copy(guests::file("tiny-disk.raw"), disk.path()).expect("room for the disk");
    let node = format!("    image: {}\n    cpus: 2\n", disk.path().display());
    // The driver through which the kernel would tell where it has described its pages.
    let told = "module_blacklist=qemu_fw_cfg init_on_free=1 fermata.run=selfcheck:16:4 fermata.disk=rw";
    let bench = Bench::new(&(keys.to_owned() + "free: balloon\n" + &guests::busybox(name, directory, told, &node)));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| (text.contains("SELFCHECK FAIL") || text.contains("selfcheck round")).then_some(()));
    shell(&run, &format!("head -c {} /dev/urandom > /run/large; cat /run/large > /disk/large; sync", FILE_MIB << 20));
    let (full, full_record) = run.checkpoint_as(PARANOID, &|| true).expect("a checkpoint");
    assert!(full_record.cost.composition["m1"].unknown.is_some(), "{:?}", full_record.cost.composition);
    // Clean pages go: no write, nothing but the report tells of them.
    gives_back(&run);
    let (_, record) = run.checkpoint_as(PARANOID, &|| true).expect("a checkpoint");
    let (before, after) = (full_record.cost.parts["m1"], record.cost.parts["m1"]);
    assert!(before.total() == after.total() && after.zero >= MOST, "{before:?} {after:?}");
    exact(&bench, &run);
    finds_only_zeros(&run);
    goes_on(&run);
    drop(run);
    // And while its pages are still on their way.
    let back = bench.arrive("back", &full, &full_record, RUNNING);
    shell(&back, "rm /run/large; echo 3 > /proc/sys/vm/drop_caches; sleep 5");
    finds_only_zeros(&back);
    goes_on(&back);
    await_that("all is restored", BOOT, || back.body().machine().paging().is_some_and(|paging| paging.complete));
    exact(&bench, &back);
    assert_eq!(shell(&back, "head -c 1000 /disk/large | wc -c"), "1000");
}

#[test]
fn what_is_given_back_is_gone() {
    given_back("gone", "", "");
}

#[test]
fn what_is_given_back_is_gone_where_writes_wait() {
    given_back("gone-cow", "", "tracker: userfault\ncapture: cow\n");
}

#[test]
fn what_is_given_back_is_gone_under_a_newer_kernel() {
    let Some(qemu) = newer_qemu().filter(|_| guests::directory().join(NEWER).exists()) else {
        fermata_testkit::skipped!("Linux 6.12, for want of what guests/build takes from Debian's backports");
        return;
    };
    elsewhere("balloon::under_a_newer_kernel", NEWER, Some(qemu));
}

#[test]
#[ignore = "done in a process of its own"]
fn under_a_newer_kernel() {
    given_back("gone-newer", NEWER, "");
}
