//! Many checkpoints and journeys of one guest that checks its memory and disk all the time: it sees no difference, what the keeper
//! holds stays bounded, and no page is taken for a disk's block that differs from it.
//!
//! 100 checkpoints and 10 journeys, about a minute; 2,000 and 200 with `FERMATA_LONG=1`. Where they go comes from a seed, which is printed; `FERMATA_SEED`
//! repeats one.

use fermata_testkit::{
    Cli, Random,
    cli::{await_that, count, string},
    guests, is_long,
};
use std::{fs, time::Duration};

const SOON: Duration = Duration::from_secs(120);
/// Between two checkpoints.
const PERIOD: Duration = Duration::from_millis(50);
/// Pages that the guest writes between two checkpoints are some hundreds; what a checkpoint may add to the store, on average, is well above them.
const STORED_BYTES_MAX: u64 = 2 << 20;
/// Pages that a checkpoint takes for blocks of the disk, on average, at least.
const LOOKED_AT_EACH: u64 = 10;
/// What the newest checkpoint may have that the oldest has not, for the guest writes all of its 48 MiB anew; and what the index keeps of its size after all but these two were removed.
const STORE_SLACK: u64 = (48 + 32) << 20;
/// What a keeper of one machine holds itself, and the packs that the store keeps open for it, at most 128.
const DESCRIPTORS_MAX: u64 = 64 + 128;
/// Memory that may come on top, whatever the number of checkpoints: caches that are not full yet.
const MEMORY_SLACK: u64 = 96 << 20;
/// The same over the second half of the way, for the cache of page tables, which a paranoid checkpoint reads from end to end, may not be full halfway.
const MEMORY_SLACK_LATE: u64 = 64 << 20;
/// What may lie on the tmpfs: the memory of the machine, of its spare, and of one that goes; and small things.
const TMPFS_MAX: u64 = (3 * 256 + 64) << 20;

/// What a keeper holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Its own memory; not the guests', which it has mapped, nor files.
    memory: u64,
    descriptors: u64,
    threads: u64,
    /// Keeper, machine, spare.
    processes: u64,
    store: u64,
    tmpfs: u64,
}

fn held(cli: &Cli) -> Held {
    await_that("a spare stands ready and the old machine is gone", SOON, || {
        cli.json(&["ls"])[0]["spare_ready"] == true && cli.processes().len() == 3
    });
    await_that("all memory is there, and who brought it in has gone", SOON, || cli.machine("main")["pages_missing"].is_null());
    let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).expect("the keeper lives");
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
        line.trim_matches([':', ' ', '\t']).split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    Held {
        memory: field("RssAnon") << 10,
        descriptors: fs::read_dir(format!("/proc/{keeper}/fd")).expect("the keeper lives").count() as u64,
        threads: field("Threads"),
        processes: cli.processes().len() as u64,
        store: bytes(&cli.store().join("packs")) + bytes(&cli.store().join("index")),
        tmpfs: bytes(cli.run_root()),
    }
}

/// Room that files take on the disk.
fn bytes(directory: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries
        .map(|entry| if entry.path().is_dir() { bytes(&entry.path()) } else { entry.metadata().map_or(0, |meta| meta.blocks() * 512) })
        .sum()
}

#[test]
fn a_guest_that_checks_itself_sees_nothing_and_what_a_keeper_holds_stays_bounded() {
    let (checkpoints, journeys) = if is_long() { (2000, 200) } else { (100, 10) };
    let cli = Cli::new();
    let more = format!("    image: {}\n    cpus: 2\n", cli.disk().display());
    cli.write("machine.yaml", &guests::tiny("soak", "fermata.run=selfcheck:48 fermata.disk=rw", &more));
    cli.ok(&["up", "machine.yaml"]);
    await_that("the guest begins", SOON, || cli.console("main").contains("selfcheck round"));
    let mut ids = Vec::new();
    let (mut early, mut middle) = (None, None);
    let (mut rounds, mut looked_at) = (0, 0);
    let mut random = Random::anew();
    for number in 1..=checkpoints {
        std::thread::sleep(PERIOD);
        // Each page that would be taken for a block of the disk is looked at.
        let taken = cli.json(&["checkpoint", "--paranoid"]);
        looked_at += count(&taken["pages_by_part"]["m1"]["mapped"]);
        ids.push(string(&taken["id"]).to_owned());
        if number % (checkpoints / journeys) == 0 {
            rounds += looked(&cli);
            let to = &ids[random.below(ids.len() as u64) as usize];
            assert_eq!(string(&cli.json(&["goto", to])["checkpoint"]), to);
            await_that("the guest goes on", SOON, || looked(&cli) > 1);
        }
        if number % (checkpoints / 10) == 0 {
            let held = held(&cli);
            println!("after {number}: {held:?}");
            early.get_or_insert(held);
            if number == checkpoints / 2 {
                middle = Some(held);
            }
        }
    }
    rounds += looked(&cli);
    let (early, middle, late) = (early.expect("it was measured"), middle.expect("it was measured"), held(&cli));
    println!("{rounds} rounds checked, {looked_at} pages taken for blocks and looked at");
    assert!(looked_at > checkpoints as u64 * LOOKED_AT_EACH, "only {looked_at} pages were taken for blocks of the disk");
    assert_eq!(cli.machine("main")["state"], "running");
    assert!(rounds > journeys * 2, "only {rounds} rounds were checked");
    assert!(late.threads <= early.threads + 2, "threads: {early:?}, then {late:?}");
    assert!(late.descriptors <= DESCRIPTORS_MAX, "descriptors: {early:?}, then {late:?}");
    assert!(late.tmpfs <= TMPFS_MAX, "on the tmpfs: {early:?}, then {late:?}");
    assert!(late.memory <= middle.memory + MEMORY_SLACK_LATE, "memory: {middle:?}, then {late:?}");
    assert!(late.memory <= early.memory + MEMORY_SLACK, "memory: {early:?}, then {late:?}");
    assert_eq!(late.processes, 3, "{late:?}");
    let each = (late.store - early.store) / (checkpoints - checkpoints / 10) as u64;
    println!("{each} bytes of store a checkpoint");
    assert!(each <= STORED_BYTES_MAX, "the store grew by {each} bytes a checkpoint: {early:?}, then {late:?}");
    from_one_end_to_the_other(&cli, &ids);
    what_is_removed_is_given_back(&cli, &ids, early.store);
    cli.ok(&["down"]);
}

/// Of the history its ends are kept: the store is then not much larger than when it began, however long the history was.
fn what_is_removed_is_given_back(cli: &Cli, ids: &[String], early: u64) {
    let between: Vec<_> = ids[1..ids.len() - 1].iter().map(String::as_str).collect();
    for some in between.chunks(100) {
        cli.ok(&[&["rm", "--yes"], some].concat());
    }
    cli.ok(&["gc", "--rewrite-below", "100"]);
    let left = held(cli).store;
    println!("{left} bytes of store after gc");
    assert!(left <= early + STORE_SLACK, "the store has {left} bytes for two checkpoints, and had {early} for a tenth of them");
    from_one_end_to_the_other(cli, ids);
}

fn from_one_end_to_the_other(cli: &Cli, ids: &[String]) {
    for id in [ids.first(), ids.last()].into_iter().flatten() {
        cli.ok(&["goto", id, "--eager"]);
        await_that("the guest goes on", SOON, || looked(cli) > 0);
    }
}

/// Rounds of the guest's own look that this console shows. Panics if one failed.
fn looked(cli: &Cli) -> usize {
    let text = cli.console("main");
    assert!(!text.contains("FAIL"), "{text}");
    text.matches("selfcheck round").count()
}
