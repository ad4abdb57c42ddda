//! How long until a guest runs again, warm and cold, and until its own work is at full speed, beside QEMU's loadvm and -incoming; and from disk blocks.
//!
//! With the argument `blocks` the last alone.

use fermata_experiment::{Journey, spare, travel};
use fermata_linux::clock::{Stopwatch, monotonic};
use fermata_store::{Record, Store};
use fermata_testkit::{
    Bench,
    bench::shell,
    guests,
    measure::{Counter, drop_page_cache, number_after, pick},
    report::{Report, quantile},
    rival::Stock,
};
use fermata_timeline::Keeper;
use fermata_types::{CheckpointId, Root};
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command, sync::Mutex, thread, time::Duration};

/// The guest is at its ordinary work after this.
const WARM_UP: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// At full speed: two neighbouring intervals of the guest's own clock with at least so much of the usual work.
const FULL: f64 = 0.9;
const WORD: &str = "steps ";
/// How this program is called by itself, for a restore by a process that has nothing in its caches.
const COLD: &str = "--cold";
/// Only how long it takes from disk blocks.
const BLOCKS: &str = "blocks";
/// The same for both sizes.
const ALIKE: f64 = 1.25;

/// One way to come back. In ms.
#[derive(Default)]
struct Way {
    first: Vec<f64>,
    full: Vec<f64>,
}

impl Way {
    fn add(&mut self, first: Duration, full: Duration) {
        self.first.push(first.as_secs_f64() * 1e3);
        self.full.push(full.as_secs_f64() * 1e3);
    }
}

#[derive(Default)]
struct Ways {
    warm: Way,
    cold: Way,
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == COLD) {
        return cold_by_itself(&arguments[at + 1..]);
    }
    let rounds = pick(7, 2);
    let mut report = Report::new("restore");
    if !arguments.iter().any(|argument| argument == BLOCKS) {
        whole(&mut report, rounds);
    }
    from_blocks(&mut report, rounds.min(4));
    report.print();
}

/// How long until a guest runs again and is at full speed, with one that stands ready and without.
fn whole(report: &mut Report, rounds: usize) {
    let mut first = [("warm", Vec::new()), ("cold", Vec::new())];
    for mib in [1024, 4096] {
        let ours = ours(mib, rounds);
        let (loadvm, incoming) = rivals(mib, rounds.min(5));
        let size = format!("{} GiB", mib / 1024);
        let tell = |report: &mut Report, how: &str, ours: &Way, rival: &str, theirs: &Way, limit: f64| {
            let (median, their_median) = (quantile(&ours.first, 0.5), quantile(&theirs.first, 0.5));
            let name = |what: &str| format!("{size}, {how}: {what}");
            let mark = format!("under {limit} ms");
            report.mark(&name("first instruction, p50"), median, "ms", Some((rival, their_median)), (&mark, median < limit));
            report.tell(&name("first instruction, worst"), quantile(&ours.first, 1.0), "ms", Some((rival, quantile(&theirs.first, 1.0))));
            report.tell(&name("full speed, p50"), quantile(&ours.full, 0.5), "ms", Some((rival, quantile(&theirs.full, 0.5))));
            report.tell(&name("full speed, worst"), quantile(&ours.full, 1.0), "ms", Some((rival, quantile(&theirs.full, 1.0))));
        };
        tell(report, "warm", &ours.warm, "loadvm", &loadvm, 30.0);
        tell(report, "warm", &ours.warm, "-incoming, ready", &incoming.warm, 30.0);
        tell(report, "cold", &ours.cold, "-incoming", &incoming.cold, 250.0);
        [&ours.warm, &ours.cold].into_iter().zip(&mut first).for_each(|(way, (_, medians))| medians.push(quantile(&way.first, 0.5)));
    }
    for (how, medians) in first {
        let ratio = medians[1] / medians[0];
        report.mark(&format!("4 GiB, {how}, first instruction"), ratio, "x", Some(("1 GiB", 1.0)), ("the same", ratio <= ALIKE));
    }
    report.note("warm: a process stands ready, the state was just written; cold: no process, and the page cache dropped");
    if !drop_page_cache() {
        report.note("not root: the page cache could not be dropped, so \"cold\" means only that no process was ready");
    }
    report.note(
        "the guest writes at random over three quarters of its memory; full speed: 90 % of its usual work, for two intervals of 20 ms",
    );
}

/// What is read of the image in the guest, in MiB: its page cache holds that, and behind it the image is zero.
const READ_MIB: u32 = 640;
/// What must be blocks of the image then, at least.
const FULL_MIB: f64 = 512.0;
/// Pages taken from one store to another at a time.
const BATCH: usize = 8192;
/// No slower, but for what two measurements of the same thing differ.
const NO_SLOWER: f64 = 1.1;

/// All of a guest whose memory is full of blocks of its golden image: those are read from the image, beside the same memory from packs alone.
fn from_blocks(report: &mut Report, rounds: usize) {
    let image = format!("    image: {}\n", guests::file("debian12.raw").display());
    let spec = guests::tiny("blocks", "fermata.run=none fermata.disk=none", &image).replace("memory: 256M", "memory: 1024M");
    let bench = Bench::new(&spec);
    let run = bench.boot();
    // Linux forgets what it read of a disk when the last one closes it.
    let hold_and_read = format!("sleep 1000000 </dev/vda >/dev/null 2>&1 & dd if=/dev/vda of=/dev/null bs=1M count={READ_MIB}");
    shell(run.body().machine(), PATIENCE, &hold_and_read);
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    run.body().machine().kill();
    drop(run);
    let packed = Bench::new(&spec);
    let (packed_id, packed_record) = refill(bench.host.store(), packed.host.store(), &record);
    let mib = |pages: u64| pages as f64 / 256.0;
    let pages = &record.cost.parts["m1"];
    assert!(mib(pages.mapped + pages.on_disk) > FULL_MIB, "the guest's page cache is full of blocks of the image");
    for (how, cold) in [("warm", false), ("cold", true)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(eager(&bench, &id, &record, cold));
            theirs.push(eager(&packed, &packed_id, &packed_record, cold));
        }
        let (median, their_median) = (quantile(&ours, 0.5), quantile(&theirs, 0.5));
        let rival = Some(("all in packs", their_median));
        report.mark(&format!("from disk blocks, {how}: all of it"), median, "ms", rival, ("no slower", median <= their_median * NO_SLOWER));
    }
    report.note(format!(
        "from disk blocks: eagerly, a guest of 1 GiB with {:.0} MiB of blocks of its golden image, and {:.0} MiB besides that are not zero",
        mib(pages.mapped + pages.on_disk),
        mib(pages.known + pages.new)
    ));
}

/// The same checkpoint in another store, which has never seen the golden image: all its pages lie in packs, in the order of memory.
fn refill(from: &Store, to: &Store, record: &Record) -> (CheckpointId, Record) {
    let mut writer = to.writer().expect("a writer");
    for part in &record.parts {
        for root in part.tables.values() {
            let mut changes = Vec::new();
            let mut note = |page, name| {
                changes.push((page, Some(name)));
                Ok(())
            };
            from.for_each_page(root, &mut note).expect("a page table");
            for batch in changes.chunks(BATCH) {
                let pages = Mutex::new(Vec::with_capacity(batch.len()));
                let wanted = batch.iter().filter_map(|(page, name)| Some((*page, (*name)?))).collect();
                from.read_pages(wanted, &|page, content| {
                    pages.lock().expect("nobody panics with the lock").push((page, *content));
                    true
                })
                .expect("pages");
                let mut pages = pages.into_inner().expect("nobody panics with the lock");
                pages.sort_unstable_by_key(|(page, _)| *page);
                pages.iter().for_each(|(_, content)| _ = writer.put_page(content).expect("room in the store"));
            }
            let again = writer.update_table(&Root::empty(root.pages), &changes).expect("a page table");
            assert_eq!(again, *root);
        }
        part.blobs.values().for_each(|name| _ = writer.put_blob(&from.read_blob(name).expect("a blob")).expect("room in the store"));
    }
    let record = Record { parent: None, ..record.clone() };
    (writer.commit(&record).expect("a checkpoint"), record)
}

/// How long until a process that stands ready has everything, in ms.
fn eager(bench: &Bench, id: &CheckpointId, record: &Record, cold: bool) -> f64 {
    let body = spare(&bench.host, id, record, &mut |_, _| {}).expect("a spare machine");
    if cold {
        drop_page_cache();
    }
    let begin = monotonic();
    let how = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
    let arrival = travel(&bench.host, body, id, record, "back", how).expect("a journey");
    let took = monotonic() - begin;
    drop(arrival);
    took.as_secs_f64() * 1e3
}

fn program(mib: u32) -> String {
    format!("steps:{}", mib / 4 * 3)
}

fn spec(mib: u32) -> String {
    guests::tiny_with("restore", mib, &program(mib))
}

fn ours(mib: u32, rounds: usize) -> Ways {
    let bench = Bench::new(&spec(mib));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let usual = usual(&console(&keeper));
    let (id, _) = keeper.checkpoint(None, None).expect("a checkpoint");
    let mut ways = Ways::default();
    for _ in 0..rounds {
        while !keeper.spare_ready() {
            thread::sleep(Duration::from_millis(5));
        }
        // What the journey before left is being buried.
        thread::sleep(Duration::from_secs(1));
        let begin = monotonic();
        let resumed = keeper.goto(&id.to_string(), None, Journey::default()).expect("a journey");
        assert!(resumed.warm, "a spare process stood ready");
        ways.warm.add(resumed.took, full_speed(&console(&keeper), 0, usual) - begin);
    }
    keeper.down(None).expect("it ends");
    drop(keeper);
    for round in 0..rounds {
        drop_page_cache();
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.arg(COLD).arg(mib.to_string()).arg(bench.host.store().path()).arg(id.to_string());
        let output = command.arg(bench.host.run_dir().join(format!("cold-{round}"))).arg(usual.to_string()).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("it tells what it took");
        let seconds = |key: &str| Duration::from_secs_f64(told[key].as_f64().expect("a number"));
        ways.cold.add(seconds("first"), seconds("full"));
    }
    ways
}

/// Brings a run back in a process that has just begun, and tells what it took.
fn cold_by_itself(arguments: &[String]) {
    let [mib, store, id, run_dir, usual] = arguments else { panic!("called by hand: {arguments:?}") };
    // From here on is what a keeper does that is started for a goto.
    let begin = monotonic();
    let store = fermata_store::Store::open(Path::new(store)).expect("the store");
    let host = fermata_experiment::Host::new(store, run_dir.into()).expect("a host");
    let keeper = Keeper::new(host, guests::spec(&spec(mib.parse().expect("a size"))));
    keeper.revive(id.parse().expect("an id"), Journey::default()).expect("it comes back");
    let first = monotonic() - begin;
    let full = full_speed(&console(&keeper), 0, usual.parse().expect("a rate")) - begin;
    println!("{}", json!({"first": first.as_secs_f64(), "full": full.as_secs_f64()}));
    keeper.down(None).expect("it ends");
}

fn console(keeper: &Keeper) -> std::path::PathBuf {
    keeper.run(None).expect("a run").body().machine().place().console_log()
}

/// By `loadvm` in the process that runs, and by `-incoming` in a fresh one.
fn rivals(mib: u32, rounds: usize) -> (Way, Ways) {
    let stock = Stock::tiny(mib, &program(mib));
    let place = tempfile::tempdir().expect("a directory");
    let state = place.path().join("state");
    let mut qemu = stock.boot();
    let usual = usual(&qemu.console());
    qemu.savevm("s");
    let mut loadvm = Way::default();
    for _ in 0..rounds {
        thread::sleep(Duration::from_secs(1));
        let (begin, shown) = (monotonic(), length(&qemu.console()));
        let took = qemu.loadvm("s");
        loadvm.add(took, full_speed(&qemu.console(), shown, usual) - begin);
    }
    qemu.migrate(&state);
    drop(qemu);
    let mut incoming = Ways::default();
    for _ in 0..rounds {
        let mut qemu = stock.incoming("defer");
        thread::sleep(Duration::from_secs(1));
        let begin = monotonic();
        let took = qemu.load(&state);
        incoming.warm.add(took, full_speed(&qemu.console(), 0, usual) - begin);
        drop(qemu);
        drop_page_cache();
        let mut qemu = stock.incoming(&format!("exec:cat {}", state.display()));
        qemu.await_running();
        let took = monotonic() - qemu.started();
        incoming.cold.add(took, full_speed(&qemu.console(), 0, usual) - qemu.started());
    }
    (loadvm, incoming)
}

fn length(console: &Path) -> usize {
    fs::metadata(console).map_or(0, |metadata| metadata.len() as usize)
}

/// The guest's usual rate, in steps a second of its own clock.
fn usual(console: &Path) -> f64 {
    Counter::new(console, WORD).after(None);
    thread::sleep(WARM_UP);
    quantile(&rates(console, 0), 0.5)
}

/// When the guest is at full speed, by the host's clock; the first `skip` bytes of the console were there before.
fn full_speed(console: &Path, skip: usize, usual: f64) -> Duration {
    let watch = Stopwatch::start();
    loop {
        let rates = rates(console, skip);
        if rates.windows(2).any(|pair| pair.iter().all(|rate| *rate >= usual * FULL)) {
            return monotonic();
        }
        assert!(watch.elapsed() < PATIENCE, "not at full speed ({usual}) within {PATIENCE:?}: {rates:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Steps a second of the guest's own clock, between each two lines.
fn rates(console: &Path, skip: usize) -> Vec<f64> {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(bytes.get(skip..).unwrap_or_default());
    let whole = &text[..text.rfind('\n').unwrap_or_default()];
    // The first line may have begun before.
    let lines = whole.lines().skip(usize::from(skip > 0));
    let told: Vec<_> = lines.filter_map(|line| Some((number_after(line, WORD)?, number_after(line, "at_us ")?))).collect();
    told.windows(2).map(|pair| (pair[1].0 - pair[0].0) / (pair[1].1 - pair[0].1) * 1e6).collect()
}
