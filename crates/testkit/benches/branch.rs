//! How fast a disk is at the end of 1, 10, 100 and 1,000 checkpoints, fresh and aged, beside a raw file and QEMU's qcow2 chains of the same depth.
//!
//! Every disk holds the same bytes. Of ours each checkpoint wrote its share of them, spread all over the disk, and the disk is opened at the last one; a chain has
//! the same share in each of its files, and an empty one on top. Each round reads stretches of the old content that nobody has read yet, reads them again, writes
//! others for the first time and again, and reads what was written. The guest has all disks at once, and fio does each job on one right after the other.

mod disks;

use disks::{Attached, Guest, Job, Served};
use fermata_linux::clock::Stopwatch;
use fermata_store::{CollectOptions, Store};
use fermata_testkit::{
    Random,
    measure::pick,
    report::{Report, Table, quantile},
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// What is written at once when a history is made: a cluster of qcow2's.
const CLUSTER: u64 = 64 << 10;
/// Bytes of a job, sequential and random.
const STRETCHES: [u64; 2] = [48 << 20, 24 << 20];
/// How often an aged job goes through its stretch: once a sequential one would be over in some milliseconds. A random one takes a chain of a thousand files minutes.
const LOOPS: [u32; 2] = [16, 1];
/// Pattern, block size, requests under way.
const PATTERNS: [(&str, &str, u32); 2] = [("seq", "1M", 4), ("rand", "4k", 16)];
const WHAT: [(&str, bool); 5] = [
    ("old content, first read", false),
    ("old content, read again", false),
    ("first write", true),
    ("second write", true),
    ("read of that", false),
];
/// The jobs of a pattern that meet what this run has touched before.
const AGED: [usize; 3] = [1, 3, 4];
/// Aged, no slower than raw by more than this.
const SLOWER_MAX: f64 = 0.02;
/// The deepest no slower than the shallowest by more than this.
const FLAT: f64 = 0.10;
/// A chain that takes longer than this to open is left out, seconds.
const OPEN_MAX: u64 = 300;

type Speeds = BTreeMap<(usize, String), Vec<f64>>;

fn main() {
    let (depths, rounds) = (vec![1, 10, 100, 1000], pick(4, 1));
    // On the file system where stores and images usually are; RAM on the other.
    let place = tempfile::tempdir().expect("a directory");
    let ram = tempfile::tempdir_in("/dev/shm").expect("a directory for RAM");
    let mut report = Report::new("branch");
    let size = rounds * STRETCHES.iter().sum::<u64>() * 2;
    let raw = place.path().join("raw");
    write_clusters(&raw, size, 0..size / CLUSTER);
    let mut ours = Vec::new();
    let mut chains = Vec::new();
    for depth in &depths {
        let watch = Stopwatch::start();
        let (disk, collected) = history(place.path(), *depth, size);
        ours.push((format!("ours-{depth}"), disk));
        let made = watch.elapsed();
        let name = format!("qcow2-{depth}");
        let top = chain(&place.path().join(&name), *depth, size);
        match opens(&top) {
            Ok(took) => {
                report.note(format!(
                    "depth {depth}: a history made in {:.1} s, {:.1} of them for a collection; a chain opened in {took:.2} s",
                    made.as_secs_f64(),
                    collected.as_secs_f64()
                ));
                chains.push((name, top));
            }
            Err(problem) => report.note(format!("no qcow2 chain of depth {depth}: {problem}")),
        }
    }
    report.note(device_mapper());
    let attached: Vec<_> = std::iter::once(Attached::File { name: "raw", path: &raw, format: "raw" })
        .chain(ours.iter().map(|(name, disk)| Attached::Ours { name, socket: &disk.socket }))
        .chain(chains.iter().map(|(name, top)| Attached::File { name, path: top, format: "qcow2" }))
        .collect();
    let mut names: Vec<_> =
        std::iter::once("raw").chain(ours.iter().map(|(name, _)| &**name)).chain(chains.iter().map(|(name, _)| &**name)).collect();
    let mut guest = Guest::start(place.path(), ram.path(), &attached);
    let mut speeds = Speeds::new();
    for round in 0..rounds {
        for (at, speed) in guest.fio(&jobs(round, rounds), &names).into_iter().enumerate() {
            speeds.entry((at / names.len(), names[at % names.len()].to_owned())).or_default().push(speed);
        }
        eprintln!("round {} of {rounds}", round + 1);
        // Each disk goes first in its turn, and the deep ones do not always follow the shallow.
        names.rotate_left(2);
    }
    drop(guest);
    ours.into_iter().for_each(|(_, disk)| disk.stop());
    tell(&mut report, &speeds, &depths);
    report.print();
}

/// The jobs of a round. Each kind has a part of the disk for itself, and each round a stretch of that.
fn jobs(round: u64, rounds: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut start = 0;
    for ((pattern, bytes), loops) in PATTERNS.into_iter().zip(STRETCHES).zip(LOOPS) {
        for (nth, (what, write)) in WHAT.into_iter().enumerate() {
            // What is only read has one part, what is written another.
            let part = if nth < 2 { start } else { start + rounds * bytes };
            let mut job = Job::new(format!("{} {}, {what}", pattern.0, pattern.1), pattern, write, part + round * bytes, bytes);
            if AGED.contains(&nth) {
                job.text.push_str(&format!("loops={loops}\n"));
            }
            jobs.push(job);
        }
        start += 2 * rounds * bytes;
    }
    jobs
}

/// The clusters that a level wrote: everywhere on the disk.
fn clusters(level: u64, depth: u64, size: u64) -> impl Iterator<Item = u64> {
    (0..size / CLUSTER).filter(move |cluster| (cluster.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % depth == level)
}

/// What a cluster holds: to be compressed to less than half, as most of what disks hold.
fn content(cluster: u64) -> Vec<u8> {
    let mut bytes = vec![0; CLUSTER as usize];
    let mut random = Random::new(cluster.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    bytes.chunks_exact_mut(8).step_by(3).for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
    bytes
}

fn write_clusters(path: &Path, size: u64, clusters: impl Iterator<Item = u64>) {
    let file = File::create(path).expect("a file");
    file.set_len(size).expect("a sparse file");
    clusters.for_each(|cluster| file.write_all_at(&content(cluster), cluster * CLUSTER).expect("room for it"));
}

/// A disk of ours at the last of so many checkpoints, and how long its garbage collection took.
fn history(place: &Path, depth: u64, size: u64) -> (Served, Duration) {
    let store = Store::open(&place.join(format!("store-{depth}"))).expect("a store");
    let disk = disks::open(place, &store, size, None);
    let mut last = None;
    for level in 0..depth {
        for cluster in clusters(level, depth, size) {
            disk.write_at(cluster * CLUSTER, &content(cluster)).expect("room for it");
        }
        let cut = disk.cut().expect("no cut is pending");
        last = Some(disks::save(&store, &disk, &cut, last));
    }
    // Nothing is garbage; but packs of many small checkpoints are put together, in the order of the disk, as the paper merges deltas (section 5.3).
    let watch = Stopwatch::start();
    store.collect(&CollectOptions::default(), &mut |_, _| {}).expect("a collection");
    (Served::new(place, &format!("ours-{depth}"), &store, size, Some(disk.root())), watch.elapsed())
}

/// A chain of so many qcow2 files with an empty one on top, which is returned. Each is made by itself and put on the one before without a look at it: else making
/// the chain would take the square of its length.
fn chain(place: &Path, depth: u64, size: u64) -> PathBuf {
    fs::create_dir(place).expect("a directory");
    let (level_file, file) = (place.join("level"), |level: u64| place.join(level.to_string()));
    let run = |arguments: &[&str], paths: &[&Path]| {
        let made = Command::new("qemu-img").args(arguments).args(paths).status();
        assert!(made.expect("qemu-img runs").success(), "qemu-img {arguments:?} {paths:?}");
    };
    for level in 0..depth {
        write_clusters(&level_file, size, clusters(level, depth, size));
        run(&["convert", "-q", "-f", "raw", "-O", "qcow2"], &[&level_file, &file(level)]);
        if level > 0 {
            let below = (level - 1).to_string();
            run(&["rebase", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", &below], &[&file(level)]);
        }
    }
    fs::remove_file(&level_file).expect("it is there");
    let (top, below, size) = (place.join("top"), (depth - 1).to_string(), size.to_string());
    run(&["create", "-q", "-u", "-f", "qcow2", "-F", "qcow2", "-b", &below], &[&top, Path::new(&size)]);
    top
}

/// How many seconds QEMU takes to open a chain, or why it does not.
fn opens(top: &Path) -> Result<f64, String> {
    let watch = Stopwatch::start();
    let mut command = Command::new("timeout");
    command.arg(OPEN_MAX.to_string()).args(["qemu-io", "-r", "-f", "qcow2", "-c", "read 0 4k"]).arg(top);
    let output = command.output().expect("timeout runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).lines().last().unwrap_or_default().to_owned();
    match output.status.code() {
        Some(0) if !said.contains("failed") => Ok(watch.elapsed().as_secs_f64()),
        Some(124) => Err(format!("QEMU did not open it within {OPEN_MAX} s")),
        code => Err(format!("qemu-io ended with {code:?} after {:.1} s: {said}", watch.elapsed().as_secs_f64())),
    }
}

/// Whether LVM's snapshots could be measured beside these.
fn device_mapper() -> String {
    let known = fs::read_to_string("/proc/devices").is_ok_and(|devices| devices.lines().any(|line| line.ends_with(" device-mapper")));
    if known {
        "this kernel has a device mapper, but LVM thin snapshots are not measured: nobody could try it where there is none".into()
    } else {
        "LVM thin snapshots are not measured: this kernel has no device mapper (/proc/devices)".into()
    }
}

/// The ratios of a disk to raw in each round: what changes from round to round is left out.
fn ratios(speeds: &Speeds, job: usize, name: &str) -> Vec<f64> {
    let pairs = speeds[&(job, name.to_owned())].iter().zip(&speeds[&(job, "raw".to_owned())]);
    pairs.map(|(mine, raw)| mine / raw).collect()
}

fn tell(report: &mut Report, speeds: &Speeds, depths: &[u64]) {
    let names: Vec<_> = jobs(0, 1).into_iter().map(|job| job.name).collect();
    let aged = |job: usize| AGED.contains(&(job % WHAT.len()));
    let first_reads = |job: usize| job.is_multiple_of(WHAT.len());
    // The mean of ratios is that of their logarithms: twice as fast and half as fast make one.
    let mean = |name: &str, of: &dyn Fn(usize) -> bool| {
        let logs: Vec<_> = (0..names.len()).filter(|job| of(*job)).map(|job| quantile(&ratios(speeds, job, name), 0.5).ln()).collect();
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    };
    let of = |kind: &str, depth: u64, jobs: &dyn Fn(usize) -> bool| {
        let name = format!("{kind}-{depth}");
        speeds.contains_key(&(0, name.clone())).then(|| mean(&name, jobs))
    };
    for (what, jobs, mark) in [
        ("aged", &aged as &dyn Fn(usize) -> bool, Some(1.0 - SLOWER_MAX)),
        ("old content, first read", &first_reads, None),
        ("all jobs", &|_| true, None),
    ] {
        for depth in depths {
            let (mine, theirs) = (of("ours", *depth, jobs).expect("ours opens"), of("qcow2", *depth, jobs));
            let text = mark.map_or_else(|| "reported".to_owned(), |mark| format!("at least {mark} of raw"));
            let holds = mark.is_none_or(|mark| mine >= mark);
            report.mark(
                &format!("{what}, depth {depth}, of raw's speed"),
                mine,
                "x",
                theirs.map(|theirs| ("qcow2", theirs)),
                (&text, holds),
            );
        }
        let [first, last] =
            [depths.first(), depths.last()].map(|depth| of("ours", *depth.expect("there are depths"), jobs).expect("ours opens"));
        report.mark(
            &format!("{what}: the deepest"),
            last / first,
            "x",
            Some(("the shallowest", 1.0)),
            ("flat", last / first >= 1.0 - FLAT),
        );
    }
    report.tables.push(table(speeds, depths, &names));
}

fn table(speeds: &Speeds, depths: &[u64], jobs: &[String]) -> Table {
    let disks: Vec<_> = ["ours", "qcow2"].iter().flat_map(|kind| depths.iter().map(move |depth| format!("{kind}-{depth}"))).collect();
    let mut rows = vec![["job", "raw MiB/s"].into_iter().map(str::to_owned).chain(disks.iter().cloned()).collect::<Vec<_>>()];
    for (job, name) in jobs.iter().enumerate() {
        let raw = quantile(&speeds[&(job, "raw".to_owned())], 0.5);
        let cell = |disk: &String| match speeds.contains_key(&(job, disk.clone())) {
            true => {
                let ratios = ratios(speeds, job, disk);
                let [lower, middle, upper] = [0.25, 0.5, 0.75].map(|part| (quantile(&ratios, part) - 1.0) * 100.0);
                format!("{middle:+.0} ({lower:+.0} to {upper:+.0})")
            }
            false => "-".into(),
        };
        rows.push([name.clone(), format!("{raw:.0}")].into_iter().chain(disks.iter().map(cell)).collect());
    }
    Table { title: "Percent faster or slower than raw: median of the rounds' ratios (quartiles)".into(), rows }
}
