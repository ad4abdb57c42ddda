//! Pages that are known to equal blocks of disks, in a guest that reads and writes in every way at once: each checkpoint looks at what it would have
//! taken as known, and the guest goes on from any of them.

use fermata_experiment::{Asked, Journey, Machine, Run, Status};
use fermata_store::Record;
use fermata_testkit::{
    Bench, Random, Snapshot,
    bench::{await_console, console, shell},
    guests,
};
use fermata_types::{CheckpointId, PAGE_SIZE, ZERO_PAGE};
use std::{fs::File, os::unix::fs::FileExt, process::Command, time::Duration};

const BOOT: Duration = Duration::from_secs(120);
/// Looks at the content of all that would be taken as known.
const PARANOID: Asked = Asked { message: None, paranoid: true, gentle: false, when: None, in_turn: false };

/// A disk of a test's own.
fn disk() -> tempfile::NamedTempFile {
    let disk = tempfile::NamedTempFile::new().expect("a file");
    let copied = Command::new("cp").arg("--sparse=always").arg(guests::file("tiny-disk.raw")).arg(disk.path()).status();
    assert!(copied.expect("cp runs").success());
    disk
}

/// What a guest does with its disk.
struct Load {
    /// What its first process runs.
    runs: &'static str,
    /// What each of them says when it has checked what it has.
    says: &'static [&'static str],
    /// What goes on beside it, and leaves nothing of the agent's open.
    beside: Option<&'static str>,
    checkpoints: usize,
    journeys: usize,
}

/// A file by O_DIRECT in units of 512 bytes, one through the page cache, which is dropped again and again, one through a shared mapping; and beside them
/// whole files are copied, and a program is run from the disk.
const EVERYTHING: Load = Load {
    runs: "selfcheck:16:8,mapio:8,direct:8",
    says: &["selfcheck round", "mapio round", "direct round"],
    beside: Some(
        "(cp /bin/busybox /disk/busybox; sync; while :; do echo 3 >/proc/sys/vm/drop_caches; /disk/busybox cksum /disk/busybox; \
         dd if=/dev/vda of=/dev/null bs=1M count=24 iflag=direct; dd if=/dev/urandom of=/disk/more bs=64k count=48; done) \
         </dev/null >/dev/null 2>&1 &",
    ),
    checkpoints: 10,
    journeys: 3,
};
/// Past the page cache into a program's own memory, and from there.
const DIRECT: Load = Load { runs: "direct:8", says: &["direct round"], beside: None, checkpoints: 4, journeys: 2 };
/// A file that is mapped, written through the mapping, and read anew.
const MAPPED: Load = Load { runs: "mapio:8", says: &["mapio round"], ..DIRECT };
/// Pages that were taken for known and looked at, in all checkpoints together.
const LOOKED_AT_MIN: u64 = 100;

fn checked_under_load(name: &str, keys: &str, load: &Load) {
    let disk = disk();
    let node = format!("    image: {}\n    cpus: 2\n", disk.path().display());
    let bench = Bench::new(&(keys.to_owned() + &guests::tiny(name, &format!("fermata.run={} fermata.disk=rw", load.runs), &node)));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    let mut taken: Vec<(CheckpointId, Record)> = Vec::new();
    let checks = |text: &str| (text.contains("FAIL") || load.says.iter().all(|words| text.contains(words))).then_some(());
    await_console(&run.body(), BOOT, checks);
    if let Some(beside) = load.beside {
        shell(run.body().machine(), BOOT, beside);
    }
    let mut random = Random::anew();
    for number in 0..load.checkpoints {
        std::thread::sleep(Duration::from_millis(300));
        let checkpoint = keeper.checkpoint_as(None, PARANOID, &|| true);
        taken.push(checkpoint.unwrap_or_else(|error| panic!("checkpoint {number}: {error}\n{}", console(&run.body()))));
        let each = load.checkpoints / load.journeys;
        if number % each == each - 1 {
            assert!(!console(&run.body()).contains("FAIL"), "{}", console(&run.body()));
            let target = taken[random.below(taken.len() as u64) as usize].0;
            keeper.goto(&target.to_string(), None, Journey::default()).expect("a journey");
            await_console(&run.body(), BOOT, checks);
        }
    }
    assert!(!console(&run.body()).contains("FAIL"), "{}", console(&run.body()));
    assert_eq!(run.body().machine().status(), Status::Running);
    let mapped: Vec<_> = taken.iter().map(|(_, record)| record.cost.parts["m1"].mapped).collect();
    println!("{name}: pages known to equal a block: {mapped:?}");
    // A guest that has no processor for a while moves nothing meanwhile.
    assert!(mapped.iter().filter(|pages| **pages > 0).count() * 2 > mapped.len(), "{mapped:?}");
    assert!(mapped.iter().sum::<u64>() > LOOKED_AT_MIN, "{mapped:?}");
    for (_, record) in &taken {
        assert_eq!(record.cost.parts["m1"].total(), 256 << 8, "every page is counted once");
    }
    keeper.down(None).expect("it ends");
}

#[test]
fn what_is_known_is_so_under_load() {
    checked_under_load("known", "", &EVERYTHING);
}

#[test]
fn what_is_known_is_so_with_write_faults() {
    checked_under_load("known-faults", "tracker: userfault\n", &EVERYTHING);
}

#[test]
fn what_is_known_is_so_of_direct_transfers() {
    checked_under_load("known-direct", "", &DIRECT);
}

#[test]
fn what_is_known_is_so_of_a_file_that_is_mapped() {
    checked_under_load("known-mapped", "", &MAPPED);
}

/// Somebody changes the golden image and sets its time back, and the guest reads what was changed. Names are those of the image as it was, and are not
/// believed: neither while it is another one, nor when it is put back.
#[test]
fn an_image_that_was_changed_unseen_is_found_and_what_was_read_of_it_is_kept() {
    const MIB: u64 = 1 << 20;
    let (was, is): (&[u8], &[u8]) = (b"what the image has", b"what somebody puts");
    let disk = disk();
    let image = File::options().write(true).open(disk.path()).expect("the image");
    let put = |text: &[u8]| (0..16).for_each(|at| image.write_all_at(text, 200 * MIB + at * 65536).expect("it is written"));
    put(was);
    let modified = image.metadata().and_then(|metadata| metadata.modified()).expect("times");
    let bench =
        Bench::new(&guests::tiny("unseen", "fermata.run=tick fermata.disk=none", &format!("    image: {}\n", disk.path().display())));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("tick").then_some(()));
    run.checkpoint(None).expect("a checkpoint");
    put(is);
    image.set_modified(modified).expect("times can be set");
    // Somebody has the disk open from now on, or else what was read would be free again, and soon something else.
    let read = "exec 3</dev/vda; sleep 100000 </dev/null >/dev/null 2>&1 & dd if=/dev/vda of=/dev/null bs=1M skip=200 count=2";
    shell(run.body().machine(), BOOT, read);
    for asked in [Asked::default(), PARANOID] {
        let error = run.checkpoint_as(asked, &|| true).expect_err("another image").to_string();
        assert!(error.contains("m1/disk0") && error.contains("its time was set back"), "{error}");
    }
    put(was);
    image.set_modified(modified).expect("times can be set");
    let (id, record) = run.checkpoint_as(PARANOID, &|| true).expect("a checkpoint by content");
    assert_eq!((record.cost.parts["m1"].mapped, run.body().machine().status()), (0, Status::Running));
    let back = bench.arrive("back", &id, &record, Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None });
    assert!(pages_with(back.body().machine(), is).len() >= 16, "the guest's memory is not what it was");
    drop(back);
    a_page_that_is_not_its_block_is_found(&run, was);
    a_write_that_nobody_told_of_is_found(&run);
}

/// Pages of a machine's memory that begin with this.
fn pages_with(machine: &Machine, text: &[u8]) -> Vec<u64> {
    let mut page = [0; PAGE_SIZE];
    let begins = |number: &u64| {
        machine.ram().read_at(number * PAGE_SIZE as u64, &mut page).expect("RAM can be read");
        page.starts_with(text)
    };
    (0..machine.ram().bytes() / PAGE_SIZE as u64).filter(begins).collect()
}

/// A page becomes another one than the block that it is taken for, and no tracker sees it.
fn a_page_that_is_not_its_block_is_found(run: &Run, text: &[u8]) {
    shell(run.body().machine(), BOOT, "echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda of=/dev/null bs=1M skip=200 count=2");
    run.pause().expect("it stops");
    let body = run.body();
    let ram = body.machine().ram();
    for page in pages_with(body.machine(), text) {
        ram.write_at(page * PAGE_SIZE as u64, b"W").expect("RAM can be written");
    }
    let error = run.checkpoint_as(PARANOID, &|| true).expect_err("a page that differs from its block").to_string();
    assert!(error.contains("m1/disk0") && error.contains("block 51"), "{error}");
    // From now on everything is looked at, and the guest goes on.
    run.resume().expect("it goes on");
    let (_, record) = run.checkpoint(None).expect("a checkpoint by content");
    assert_eq!((record.cost.parts["m1"].mapped, run.body().machine().status()), (0, Status::Running));
}

/// Somebody writes to pages of a machine that stands still so that no tracker sees it: a checkpoint does not, unless it looks at the content.
fn a_write_that_nobody_told_of_is_found(run: &Run) {
    const UNTOLD: usize = 3;
    run.pause().expect("it stops");
    run.checkpoint(None).expect("a checkpoint of what was written before");
    let body = run.body();
    let ram = body.machine().ram();
    let seen = Snapshot::of(&body);
    let used = (0..seen.ram.len()).filter(|page| seen.ram[*page] != ZERO_PAGE && !seen.free.contains(*page as u32));
    let pages: Vec<_> = used.step_by(1000).take(UNTOLD).collect();
    let mut before = [[0; PAGE_SIZE]; UNTOLD];
    for (page, content) in pages.iter().zip(&mut before) {
        ram.read_at((page * PAGE_SIZE) as u64, content).expect("RAM can be read");
        ram.write_at((page * PAGE_SIZE) as u64, &[0x5e; PAGE_SIZE]).expect("RAM can be written");
    }
    let (_, plain) = run.checkpoint(None).expect("nobody looks");
    assert_eq!(plain.cost.parts["m1"].written(), 0, "{:?}", plain.cost.parts["m1"]);
    let error = run.checkpoint_as(PARANOID, &|| true).expect_err("pages that differ and were not written").to_string();
    assert!(error.contains(&format!("{UNTOLD} of the pages")) && error.contains(&format!("the first is page {}.", pages[0])), "{error}");
    // Now they are known to differ.
    let (_, record) = run.checkpoint_as(PARANOID, &|| true).expect("a checkpoint with these pages");
    assert_eq!(record.cost.parts["m1"].written(), UNTOLD as u64, "{:?}", record.cost.parts["m1"]);
    for (page, content) in pages.iter().zip(&before) {
        ram.write_at((page * PAGE_SIZE) as u64, content).expect("RAM can be written");
    }
}
