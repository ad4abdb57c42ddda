//! How fast the guest's disk is, fresh and aged and under checkpoints, beside QEMU's raw and qcow2 files on the same file system.
//!
//! One guest has all disks at once, and fio does each job on one disk right after the other, so whatever else the host does meets all alike: on a busy host the
//! same disk is half as fast a minute later. The rivals have `cache=writeback` and an I/O thread of their own: like ours they go through the host's page
//! cache and do not wait for QEMU's main loop. The jobs bypass the guest's cache and ask for no flush.
//!
//! Checkpoints here are the disk's share of one: the guest stops, the disk is cut, the guest goes on, and the cut is saved into a store. What capturing RAM costs
//! is another bench's.

mod disks;

use disks::{Attached, Guest, Job, Monitor, Served};
use fermata_disk::Disk;
use fermata_store::Store;
use fermata_testkit::report::{Figure, Report, quantile};
use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const ROUNDS: usize = 8;
/// As in the paper.
const INTERVAL: Duration = Duration::from_secs(5);
const DISK_BYTES: u64 = 4 << 30;
/// No slower than raw by more than this.
const SLOWER_MAX: f64 = 0.05;
const PEERS: [&str; 3] = ["raw", "qcow2", "ours"];
/// Of ours too, under checkpoints: by itself, for those would disturb the others.
const BUSY: &str = "busy";
/// Pattern, block size, requests under way, bytes for each round.
const PATTERNS: [(&str, &str, u32, u64); 4] =
    [("seq", "4k", 16, 40 << 20), ("rand", "4k", 16, 40 << 20), ("seq", "1M", 4, 128 << 20), ("rand", "1M", 4, 128 << 20)];

fn main() {
    let short = std::env::args().any(|argument| argument == "--short");
    // On the file system where stores and images usually are; RAM on the other.
    let place = tempfile::tempdir().expect("a directory");
    let ram = tempfile::tempdir_in("/dev/shm").expect("a directory for RAM");
    let store = Store::open(&place.path().join("store")).expect("a store");
    let serve = |name| Served::new(place.path(), name, &store, DISK_BYTES, None);
    let (ours, busy) = (serve("ours"), serve("busy"));
    let (raw, qcow2) = rivals(place.path());
    let attached = [
        Attached::File { name: "raw", path: &raw, format: "raw" },
        Attached::File { name: "qcow2", path: &qcow2, format: "qcow2" },
        Attached::Ours { name: "ours", socket: &ours.socket },
        Attached::Ours { name: BUSY, socket: &busy.socket },
    ];
    let mut guest = Guest::start(place.path(), ram.path(), &attached);
    let checkpoints = Checkpoints::new(store.clone(), busy.disk.clone(), &guest.monitor);
    let mut speeds: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    for round in 0..if short { 2 } else { ROUNDS } {
        // Each disk goes first in its turn.
        let order: Vec<_> = (0..PEERS.len()).map(|peer| PEERS[(peer + round) % PEERS.len()]).collect();
        for peers in [&order[..], &[BUSY]] {
            checkpoints.on.store(peers == [BUSY], Ordering::Relaxed);
            for (at, speed) in guest.fio(&jobs(round as u64), peers).into_iter().enumerate() {
                speeds.entry((at / peers.len(), peers[at % peers.len()])).or_default().push(speed);
            }
        }
    }
    let taken = checkpoints.end();
    drop(guest);
    ours.stop();
    busy.stop();
    report(&speeds, taken).print();
}

/// Empty files in QEMU's own formats.
fn rivals(place: &Path) -> (PathBuf, PathBuf) {
    let (raw, qcow2) = (place.join("raw"), place.join("qcow2"));
    File::create(&raw).and_then(|file| file.set_len(DISK_BYTES)).expect("a sparse file");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&qcow2).arg(DISK_BYTES.to_string()).status();
    assert!(made.expect("qemu-img runs").success());
    (raw, qcow2)
}

fn report(speeds: &BTreeMap<(usize, &str), Vec<f64>>, checkpoints: usize) -> Report {
    let mut report = Report::new("disk");
    // Rounds are pairs: the ratio of each, and then the median, leaves out what changes from round to round. The quartiles tell how far to believe it.
    let ratios = |job, peer, rival| {
        let pairs = speeds[&(job, peer)].iter().zip(&speeds[&(job, rival)]);
        let ratios: Vec<_> = pairs.map(|(ours, theirs)| ours / theirs).collect();
        [0.25, 0.5, 0.75].map(|part| quantile(&ratios, part))
    };
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let mut all = BTreeMap::<&str, Vec<f64>>::new();
    for (job, name) in jobs(0).into_iter().map(|job| job.name).enumerate() {
        for (peer, rival, how) in [("ours", "raw", ""), ("ours", "qcow2", ""), (BUSY, "raw", ", checkpoints")] {
            let [lower, of_rival, upper] = ratios(job, peer, rival);
            let judged = (peer, rival) == ("ours", "raw");
            if rival == "raw" {
                all.entry(peer).or_default().push(of_rival);
            }
            report.add(Figure {
                name: format!("{name}{how}"),
                value: quantile(&speeds[&(job, peer)], 0.5),
                unit: "MiB/s",
                rival: format!("{rival} ({:+.0} %, {:+.0} to {:+.0})", percent(of_rival), percent(lower), percent(upper)),
                rival_value: Some(quantile(&speeds[&(job, rival)], 0.5)),
                at_least: if judged { "within 5 % of raw" } else { "reported" }.into(),
                holds: !judged || of_rival >= 1.0 - SLOWER_MAX,
            });
        }
    }
    let mean = |peer| (all[peer].iter().map(|ratio| ratio.ln()).sum::<f64>() / all[peer].len() as f64).exp();
    let (mean, mean_busy) = (mean("ours"), mean(BUSY));
    let mut add = |name: &str, value, unit, at_least: &str, holds| {
        report.add(Figure { name: name.into(), value, unit, rival: String::new(), rival_value: None, at_least: at_least.into(), holds });
    };
    add("speed, of raw's, mean of all jobs", mean, "x", "0.95", mean >= 1.0 - SLOWER_MAX);
    add("the same under checkpoints", mean_busy, "x", "0.95", mean_busy >= 1.0 - SLOWER_MAX);
    add("checkpoints taken meanwhile", checkpoints as f64, "", "reported", true);
    report
}

/// The jobs of a round. Each pattern has a part of the disk for itself, and each round a stretch of it that was never written: written first, written again, and
/// read.
fn jobs(round: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (number, (pattern, block, depth, bytes)) in (0u64..).zip(PATTERNS) {
        for (what, write) in [("fresh write", true), ("aged write", true), ("read", false)] {
            let offset = number * (DISK_BYTES / 4) + round * bytes;
            jobs.push(Job::new(format!("{pattern} {block} {what}"), (pattern, block, depth), write, offset, bytes));
        }
    }
    jobs
}

/// Takes a checkpoint of the disk every five seconds while it is switched on.
struct Checkpoints {
    on: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Checkpoints {
    fn new(store: Store, disk: Arc<Disk>, monitor: &Arc<Mutex<Monitor>>) -> Self {
        let (on, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_on, has_ended, monitor) = (on.clone(), ended.clone(), monitor.clone());
        let thread = thread::spawn(move || {
            let (mut taken, mut last) = (0, None);
            while !has_ended.load(Ordering::Relaxed) {
                if !is_on.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
                thread::sleep(INTERVAL);
                let cut = {
                    let mut monitor = monitor.lock().expect("the monitor lives");
                    monitor.run("stop");
                    let cut = disk.cut().expect("no cut is pending");
                    monitor.run("cont");
                    cut
                };
                last = Some(disks::save(&store, &disk, &cut, last));
                taken += 1;
            }
            taken
        });
        Self { on, ended, thread }
    }

    fn end(self) -> usize {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().expect("checkpoints were taken")
    }
}
