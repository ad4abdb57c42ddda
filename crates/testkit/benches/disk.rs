//! How fast the guest's disk is, fresh and aged and under checkpoints, beside QEMU's raw and qcow2 files on the same file system.
//!
//! One guest has all disks at once, and fio does each job on one disk right after the other, so whatever else the host does meets all alike: on a busy host the
//! same disk is half as fast a minute later. The rivals have `cache=writeback` and an I/O thread of their own: like ours they go through the host's page
//! cache and do not wait for QEMU's main loop. The jobs bypass the guest's cache and ask for no flush.
//!
//! Checkpoints here are the disk's share of one: the guest stops, the disk is cut, the guest goes on, and the cut is saved into a store. What capturing RAM costs
//! is another bench's.

use fermata_disk::{Cut, Disk, DiskOptions, Server, ServerOptions, Settled, part::BLOCKS_TABLE};
use fermata_store::{Cost, Record, Store};
use fermata_testkit::{
    guests,
    report::{Figure, Report, quantile},
};
use fermata_types::{CheckpointId, PartKind, PartState};
use fermata_vhost::DirtyPages;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const ROUNDS: usize = 8;
const INTERVAL: Duration = Duration::from_secs(2);
const DISK_BYTES: u64 = 4 << 30;
const RAM_BYTES: u64 = 1 << 30;
/// A guest that says nothing for so long hangs. A round of fio takes a minute.
const PATIENCE: Duration = Duration::from_secs(600);
/// No slower than raw by more than this.
const SLOWER_MAX: f64 = 0.05;
const PEERS: [&str; 3] = ["raw", "qcow2", "ours"];
/// Of ours too, under checkpoints: by itself, for those would disturb the others.
const BUSY: &str = "busy";
/// Pattern, block size, requests under way, bytes for each round.
const PATTERNS: [(&str, &str, u32, u64); 4] =
    [("seq", "4k", 16, 40 << 20), ("rand", "4k", 16, 40 << 20), ("seq", "1M", 4, 128 << 20), ("rand", "1M", 4, 128 << 20)];
const CMDLINE: &str = "root=/dev/vda rw console=ttyS0 quiet no_timer_check";

fn main() {
    let short = std::env::args().any(|argument| argument == "--short");
    // On the file system where stores and images usually are; RAM on the other.
    let place = tempfile::tempdir().expect("a directory");
    let ram = tempfile::tempdir_in("/dev/shm").expect("a directory for RAM");
    let (ours, busy) = (Served::new(place.path(), "ours"), Served::new(place.path(), "busy"));
    let mut guest = Guest::start(place.path(), ram.path());
    let checkpoints = Checkpoints::new(place.path(), busy.disk.clone(), &guest.monitor);
    let mut speeds: BTreeMap<(usize, &str), Vec<f64>> = BTreeMap::new();
    for round in 0..if short { 2 } else { ROUNDS } {
        // Each disk goes first in its turn.
        let order: Vec<_> = (0..PEERS.len()).map(|peer| PEERS[(peer + round) % PEERS.len()]).collect();
        for peers in [&order[..], &[BUSY]] {
            checkpoints.on.store(peers == [BUSY], Ordering::Relaxed);
            for (at, speed) in guest.fio(peers, round as u64).into_iter().enumerate() {
                speeds.entry((at / peers.len(), peers[at % peers.len()])).or_default().push(speed);
            }
        }
    }
    let taken = checkpoints.end();
    drop(guest);
    ours.server.stop();
    busy.server.stop();
    report(&speeds, taken).print();
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
    let mut all = Vec::new();
    for (job, name) in jobs(0).into_iter().map(|job| job.name).enumerate() {
        for (peer, rival, how) in [("ours", "raw", ""), ("ours", "qcow2", ""), (BUSY, "raw", ", checkpoints")] {
            let [lower, of_rival, upper] = ratios(job, peer, rival);
            let judged = (peer, rival) == ("ours", "raw");
            if judged {
                all.push(of_rival);
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
    let mean = (all.iter().map(|ratio| ratio.ln()).sum::<f64>() / all.len() as f64).exp();
    let mut add = |name: &str, value, unit, at_least: &str, holds| {
        report.add(Figure { name: name.into(), value, unit, rival: String::new(), rival_value: None, at_least: at_least.into(), holds });
    };
    add("speed, of raw's, mean of all jobs", mean, "x", "0.95", mean >= 1.0 - SLOWER_MAX);
    add("checkpoints taken meanwhile", checkpoints as f64, "", "reported", true);
    report
}

struct Job {
    name: String,
    text: String,
    write: bool,
}

/// The jobs of a round. Each pattern has a part of the disk for itself, and each round a stretch of it that was never written: written first, written again, and
/// read.
fn jobs(round: u64) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (number, (pattern, block, depth, bytes)) in (0u64..).zip(PATTERNS) {
        for (what, write) in [("fresh write", true), ("aged write", true), ("read", false)] {
            let rw = format!("{}{}", if pattern == "rand" { "rand" } else { "" }, if write { "write" } else { "read" });
            let offset = number * (DISK_BYTES / 4) + round * bytes;
            jobs.push(Job {
                name: format!("{pattern} {block} {what}"),
                text: format!("stonewall\nrw={rw}\nbs={block}\niodepth={depth}\noffset={offset}\nsize={bytes}\n"),
                write,
            });
        }
    }
    jobs
}

/// A disk of ours, served.
struct Served {
    disk: Arc<Disk>,
    server: Server,
}

impl Served {
    fn new(place: &Path, name: &str) -> Self {
        let store = Store::open(&place.join("store")).expect("a store");
        let options = DiskOptions {
            golden: None,
            size: Some(DISK_BYTES),
            root: None,
            pages: Arc::new(store),
            overlay_dir: place.to_owned(),
            read_only: false,
            drop_freed: true,
        };
        let disk = Arc::new(Disk::new(options).expect("a disk"));
        let options = ServerOptions { disk: disk.clone(), serial: name.into(), dirty: Arc::new(DirtyPages::new()), watch: None };
        Self { disk, server: Server::start(&place.join(format!("{name}.sock")), options).expect("a server") }
    }
}

/// Takes a checkpoint of the disk every two seconds while it is switched on.
struct Checkpoints {
    on: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    thread: thread::JoinHandle<usize>,
}

impl Checkpoints {
    fn new(place: &Path, disk: Arc<Disk>, monitor: &Arc<Mutex<Monitor>>) -> Self {
        let store = Store::open(&place.join("store")).expect("a store");
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
                last = Some(save(&store, &disk, &cut, last));
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

/// Saves a cut as a checkpoint of its own and returns it, parent of the next.
fn save(store: &Store, disk: &Disk, cut: &Cut, parent: Option<CheckpointId>) -> CheckpointId {
    let mut writer = store.writer().expect("a writer");
    let (root, pages) = cut.save(&mut writer).expect("it is saved");
    let state = PartState {
        name: "disk".into(),
        kind: PartKind::Disk,
        tables: BTreeMap::from([(BLOCKS_TABLE.to_owned(), root)]),
        blobs: BTreeMap::new(),
        details: Value::Null,
    };
    let record = Record {
        parent,
        experiment: "bench".into(),
        branch: "main".into(),
        message: None,
        created_ns: 0,
        time_virtual_ns: 0,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: Value::Null,
        parts: vec![state],
        images: Vec::new(),
        cost: Cost { pages, ..Cost::default() },
    };
    let id = writer.commit(&record).expect("it is committed");
    disk.settle(cut.id(), Settled::Permanent(root));
    id
}

struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).expect("QMP is JSON")
    }

    fn run(&mut self, command: &str) {
        writeln!(self.0.get_mut(), "{}", json!({"execute": command})).expect("QEMU listens");
        loop {
            let answer = self.line();
            assert!(answer.get("error").is_none(), "{answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }
}

/// A guest with a shell on its serial console.
struct Guest {
    process: Child,
    console: BufReader<UnixStream>,
    monitor: Arc<Mutex<Monitor>>,
}

fn connect(path: &Path) -> UnixStream {
    let stream = (0..200).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        UnixStream::connect(path).ok()
    });
    stream.unwrap_or_else(|| panic!("QEMU does not open {}", path.display()))
}

impl Guest {
    fn start(place: &Path, ram: &Path) -> Self {
        let (raw, qcow2) = (place.join("raw"), place.join("qcow2"));
        File::create(&raw).and_then(|file| file.set_len(DISK_BYTES)).expect("a sparse file");
        let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&qcow2).arg(DISK_BYTES.to_string()).status();
        assert!(made.expect("qemu-img runs").success());
        let (qmp, serial) = (place.join("qmp"), place.join("serial"));
        let show = |path: &PathBuf| path.display().to_string();
        let rival = |name: &str, file: &PathBuf| {
            let drive = format!("file={},if=none,id={name},format={name},cache=writeback,discard=unmap", show(file));
            let device = format!("virtio-blk-pci,drive={name},serial={name},iothread=io-{name}");
            ["-object".into(), format!("iothread,id=io-{name}"), "-drive".into(), drive, "-device".into(), device]
        };
        let ours = |name: &str| {
            let socket = format!("socket,id={name},path={}", show(&place.join(format!("{name}.sock"))));
            ["-chardev".into(), socket, "-device".into(), format!("vhost-user-blk-pci,chardev={name},num-queues=1")]
        };
        let process = Command::new(fermata_vm::qemu_program())
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-m", "1G", "-cpu", "max", "-accel", "tcg"])
            .args(["-machine", "q35,memory-backend=ram", "-object"])
            .arg(format!("memory-backend-file,id=ram,size={RAM_BYTES},share=on,mem-path={}", ram.join("ram").display()))
            .arg("-drive")
            .arg(format!("file={},if=none,id=root,format=raw,snapshot=on", guests::file("debian12.raw").display()))
            .args(["-device", "virtio-blk-pci,drive=root"])
            .args(rival("raw", &raw))
            .args(rival("qcow2", &qcow2))
            .args(ours("ours"))
            .args(ours("busy"))
            .arg("-kernel")
            .arg(guests::file("vmlinuz"))
            .arg("-initrd")
            .arg(guests::file("debian-initrd"))
            .args(["-append", CMDLINE, "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", qmp.display()))
            .arg("-serial")
            .arg(format!("unix:{},server=on,wait=on", serial.display()))
            .stdin(Stdio::null())
            .spawn()
            .expect("QEMU starts");
        let console = BufReader::new(connect(&serial));
        console.get_ref().set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut monitor = Monitor(BufReader::new(connect(&qmp)));
        monitor.line();
        monitor.run("qmp_capabilities");
        let mut guest = Self { process, console, monitor: Arc::new(Mutex::new(monitor)) };
        guest.await_line("m1 login: root", |_| ());
        guest.find_shell();
        guest
    }

    /// Talks until somebody answers: the login throws away what was typed before it is done.
    fn find_shell(&mut self) {
        self.console.get_ref().set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
        let answered = (0..120).any(|_| {
            self.say("stty -echo; PS1=; dmesg -n 1; echo re''ady");
            let mut line = Vec::new();
            while self.console.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) && !line.ends_with(b"ready\r\n") {}
            line.ends_with(b"ready\r\n")
        });
        assert!(answered, "the guest has no shell on its console");
        self.console.get_ref().set_read_timeout(Some(PATIENCE)).expect("a socket");
    }

    fn say(&mut self, line: &str) {
        writeln!(self.console.get_mut(), "{line}").expect("the guest listens");
    }

    /// Waits for a line with this in it; the others go to `each`.
    fn await_line(&mut self, mark: &str, mut each: impl FnMut(&str)) {
        let mut last = String::new();
        loop {
            let mut line = Vec::new();
            let read = self.console.read_until(b'\n', &mut line);
            let line = String::from_utf8_lossy(&line);
            assert!(read.as_ref().is_ok_and(|count| *count > 0), "the guest is silent or gone ({read:?}); it said last: {last}{line}");
            if line.contains(mark) {
                return;
            }
            each(line.trim());
            last = line.into_owned();
        }
    }

    /// Runs the jobs of a round, each on one of these disks after the other. Returns MiB a second for each, in this order.
    fn fio(&mut self, peers: &[&str], round: u64) -> Vec<f64> {
        let jobs = jobs(round);
        let mut text = String::from("[global]\nioengine=libaio\ndirect=1\nthread=1\n");
        for (job, peer) in jobs.iter().flat_map(|job| peers.iter().map(move |peer| (job, peer))) {
            text.push_str(&format!("[j]\nfilename=/dev/disk/by-id/virtio-{peer}\n{}", job.text));
        }
        self.say("cat >/tmp/jobs <<'END'");
        text.lines().for_each(|line| self.say(line));
        self.say("END");
        self.say("fio --minimal /tmp/jobs; echo do''ne $?");
        let mut speeds = Vec::new();
        let mut said = Vec::new();
        self.await_line("done 0", |line| {
            assert!(!line.starts_with("done"), "fio failed: {said:?}");
            said.push(line.to_owned());
            // Terse output, version 3: bandwidth in KiB a second of reads, and of writes.
            let fields: Vec<_> = line.split(';').collect();
            if fields.first() == Some(&"3") {
                let field = fields[if jobs[speeds.len() / peers.len()].write { 47 } else { 6 }];
                speeds.push(field.parse::<f64>().expect("fio gives numbers") / 1024.0);
            }
        });
        assert_eq!(speeds.len(), jobs.len() * peers.len(), "fio said {said:?}");
        speeds
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
