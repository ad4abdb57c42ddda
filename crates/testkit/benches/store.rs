//! Bytes that are hashed, deduplicated and written in a second by one core, new and known ones, beside restic, borg and the raw disk.
//!
//! Needs Debian packages: restic borgbackup

use fermata_linux::clock::{Stopwatch, wall_ns};
use fermata_store::{Cost, Encryption, Record, Secret, Store};
use fermata_testkit::{
    guests,
    measure::pick,
    report::{Report, quantile},
};
use fermata_types::{PAGE_SIZE, PartKind, PartState, Root};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// How this program is called by itself, held to one core.
const OURS: &str = "--ours";
/// The core that all of them get, the second one: the first has more to do besides.
const CORE: &str = "1";
const MIB: f64 = (1 << 20) as f64;
const CHUNK: usize = 1 << 20;
/// As the packs of our store have it.
const BORG_COMPRESSION: &str = "zstd,1";

/// Seconds for bytes that a store does not have, and for the same again; and MiB that it then takes.
#[derive(Default)]
struct Times {
    new: Vec<f64>,
    known: Vec<f64>,
    size: f64,
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == OURS) {
        return ours_by_itself(&arguments[at + 1..]);
    }
    let place = tempfile::tempdir().expect("a directory");
    let data = place.path().join("data");
    let mib = write_data(&data, pick(400, 100)) as f64 / MIB;
    let key = place.path().join("key");
    fs::write(&key, fermata_linux::random::bytes::<32>().expect("randomness")).expect("a key");
    let [mut ours, mut encrypted, mut restic, mut borg, mut raw]: [Times; 5] = Default::default();
    for round in 0..pick(3, 1) {
        let within = |name: &str| place.path().join(format!("{name}-{round}"));
        self::ours(&within("ours"), &data, None, &mut ours);
        self::ours(&within("encrypted"), &data, Some(&key), &mut encrypted);
        self::restic(&within("restic"), &data, &mut restic);
        self::borg(&within("borg"), &data, &mut borg);
        self::raw(&within("raw"), &data, &mut raw);
    }
    let rate = |seconds: &[f64]| mib / quantile(seconds, 0.5);
    let slowest = |seconds: &[f64]| mib / quantile(seconds, 1.0);
    let mut report = Report::new("store");
    for (what, of) in [("new", (|times| &times.new) as fn(&Times) -> &[f64]), ("known", |times| &times.known)] {
        let mine = rate(of(&ours));
        for (rival, times) in [("restic", &restic), ("borg", &borg)] {
            let mark = ("faster", mine > rate(of(times)));
            report.mark(&format!("{what} data, p50"), mine, "MiB/s", Some((rival, rate(of(times)))), mark);
            report.tell(&format!("{what} data, slowest"), slowest(of(&ours)), "MiB/s", Some((rival, slowest(of(times)))));
        }
    }
    for (what, of) in [("new", (|times| &times.new) as fn(&Times) -> &[f64]), ("known", |times| &times.known)] {
        report.tell(&format!("{what} data, encrypted, p50"), rate(of(&encrypted)), "MiB/s", Some(("not encrypted", rate(of(&ours)))));
    }
    report.tell("takes on disk, encrypted", encrypted.size, "MiB", Some(("not encrypted", ours.size)));
    report.tell("new data, p50", rate(&ours.new), "MiB/s", Some(("raw disk, write and fsync", rate(&raw.new))));
    for (rival, times) in [("restic", &restic), ("borg", &borg), ("raw", &raw)] {
        report.tell("takes on disk", ours.size, "MiB", Some((rival, times.size)));
    }
    report.note(format!(
        "{mib:.0} MiB of a Debian disk, without zeros, in the page cache; each program on core {CORE} alone, with its own defaults"
    ));
    report.note("ours: pages of 4 KiB, BLAKE3, zstd 1. restic: chunks around 1 MiB, SHA-256, zstd (auto), always encrypted");
    report
        .note(format!("borg: chunks around 2 MiB, SHA-256, {BORG_COMPRESSION}, not encrypted. Known data is read and hashed again by all"));
    report.note("of restic's and borg's times, what they take for an empty file is taken off: their start, and opening the repository");
    report.print();
}

/// The blocks of the Debian guest's disk that are not zero, in order. Returns how many bytes there are.
fn write_data(to: &Path, mib: usize) -> usize {
    let mut image = File::open(guests::file("debian12.raw")).expect("the image");
    let mut data = File::create(to).expect("a file");
    let (mut chunk, mut written) = (vec![0; CHUNK], 0);
    while written < mib << 20 {
        let length = image.read(&mut chunk).expect("the image can be read");
        if length == 0 {
            break;
        }
        for page in chunk[..length].chunks(PAGE_SIZE).filter(|page| page.iter().any(|byte| *byte != 0)) {
            data.write_all(page).expect("room for the data");
            written += page.len();
        }
    }
    data.sync_all().expect("room for the data");
    written
}

/// Runs a program on one core; how long it took in seconds.
fn timed(program: &str, arrange: impl FnOnce(&mut Command)) -> f64 {
    let mut command = Command::new("taskset");
    command.args(["-c", CORE, program]);
    arrange(&mut command);
    let watch = Stopwatch::start();
    let output = command.stdin(Stdio::null()).output().expect("taskset runs");
    let took = watch.elapsed().as_secs_f64();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    took
}

fn size(of: &Path) -> f64 {
    let output = Command::new("du").arg("-sk").arg(of).output().expect("du runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).expect("du prints a size") / 1024.0
}

/// Ours begins and ends with the process too; there is no start to take off.
fn ours(store: &Path, data: &Path, key: Option<&Path>, times: &mut Times) {
    let itself = std::env::current_exe().expect("this program has a path");
    let run = || timed(&itself.display().to_string(), |command| _ = command.arg(OURS).arg(store).arg(data).args(key));
    times.new.push(run());
    times.known.push(run());
    times.size = size(store);
}

/// One checkpoint with a RAM of these bytes.
fn ours_by_itself(arguments: &[String]) {
    let (store, data, key) = match arguments {
        [store, data] => (Path::new(store), data, None),
        [store, data, key] => (Path::new(store), data, Some(Path::new(key))),
        _ => panic!("called by hand: {arguments:?}"),
    };
    let store = match key.filter(|_| !store.exists()) {
        None => Store::open(store),
        Some(key) => {
            let secret = Secret::read(key).expect("a key");
            Store::create(store, &Encryption::KeyFile(key.to_owned()), &secret, &fermata_linux::random::bytes().expect("randomness"))
        }
    };
    let store = store.expect("a store");
    let mut data = File::open(data).expect("the data");
    let bytes = data.metadata().expect("the data").len();
    let mut writer = store.writer().expect("a writer");
    let (mut chunk, mut changes) = (vec![0; CHUNK], Vec::new());
    loop {
        let length = data.read(&mut chunk).expect("the data can be read");
        if length == 0 {
            break;
        }
        for page in chunk[..length].chunks(PAGE_SIZE) {
            let (name, _) = writer.put_page(page.try_into().expect("whole pages")).expect("a page is put");
            changes.push((changes.len() as u32, Some(name)));
        }
    }
    let ram = writer.update_table(&Root::empty(bytes / PAGE_SIZE as u64), &changes).expect("a table");
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: Default::default(),
        details: serde_json::Value::Null,
    };
    let record = Record {
        parent: store.branch("bench", "main").expect("the branch"),
        experiment: "bench".into(),
        branch: "main".into(),
        message: None,
        created_ns: wall_ns(),
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    };
    writer.commit(&record).expect("a commit");
}

fn restic(repository: &Path, data: &Path, times: &mut Times) {
    let run = |arguments: &[&str], file: Option<&Path>| {
        timed("restic", |command| {
            command.env("RESTIC_PASSWORD", "bench").env("RESTIC_CACHE_DIR", repository.with_extension("cache"));
            command.arg("-r").arg(repository).args(arguments).args(file);
        })
    };
    run(&["init"], None);
    let start = run(&["backup", "--force"], Some(&empty(repository)));
    times.new.push(run(&["backup", "--force"], Some(data)) - start);
    times.known.push(run(&["backup", "--force"], Some(data)) - start);
    times.size = size(repository);
}

fn borg(repository: &Path, data: &Path, times: &mut Times) {
    let run = |arguments: &[&str], file: Option<&Path>| {
        timed("borg", |command| {
            command.env("BORG_REPO", repository).env("BORG_BASE_DIR", repository.with_extension("base"));
            command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").args(arguments).args(file);
        })
    };
    let create =
        |name: &str, file: &Path| run(&["create", "--compression", BORG_COMPRESSION, "--files-cache", "disabled", name], Some(file));
    run(&["init", "--encryption", "none"], None);
    let start = create("::empty", &empty(repository));
    times.new.push(create("::first", data) - start);
    times.known.push(create("::second", data) - start);
    times.size = size(repository);
}

fn raw(to: &Path, data: &Path, times: &mut Times) {
    let arguments = [format!("if={}", data.display()), format!("of={}", to.display()), "bs=1M".into(), "conv=fsync".into()];
    times.new.push(timed("dd", |command| _ = command.args(arguments)));
    times.size = size(to);
}

/// An empty file beside a repository.
fn empty(repository: &Path) -> PathBuf {
    let path = repository.with_extension("empty");
    fs::write(&path, "").expect("a file");
    path
}
