//! What benches of disks share: a guest with many disks, ours among them, and fio in it.

use fermata_disk::{Cut, Disk, DiskOptions, Server, ServerOptions, Settled, part::BLOCKS_TABLE};
use fermata_store::{Cost, Record, Store};
use fermata_testkit::guests;
use fermata_types::{CheckpointId, PartKind, PartState, Root};
use fermata_vhost::DirtyPages;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

const RAM_BYTES: u64 = 1 << 30;
/// A guest that says nothing for so long hangs. A round of fio takes minutes.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Lines of a job file, which have some 30 bytes.
const TYPED_AT_ONCE: usize = 60;

/// A job for fio, which each disk does in its turn.
pub struct Job {
    /// What it does, in words.
    pub name: String,
    /// The same in fio's.
    pub text: String,
    /// Whether what it writes is counted, and not what it reads.
    pub write: bool,
}

impl Job {
    /// A job of one pattern: `seq` or `rand`, the size of a request, and requests under way.
    pub fn new(name: String, (pattern, block, depth): (&str, &str, u32), write: bool, offset: u64, bytes: u64) -> Self {
        let rw = format!("{}{}", if pattern == "rand" { "rand" } else { "" }, if write { "write" } else { "read" });
        Self { name, text: format!("stonewall\nrw={rw}\nbs={block}\niodepth={depth}\noffset={offset}\nsize={bytes}\n"), write }
    }
}

/// A disk of the guest's.
pub enum Attached<'a> {
    /// A file that QEMU serves, in this format.
    File { name: &'a str, path: &'a Path, format: &'a str },
    /// One of ours, served there.
    Ours { name: &'a str, socket: &'a Path },
}

impl Attached<'_> {
    /// The rivals have `cache=writeback` and an I/O thread of their own: like ours they go through the host's page cache and do not wait for QEMU's main loop.
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::File { name, path, format } => vec![
                "-object".into(),
                format!("iothread,id=io-{name}"),
                "-drive".into(),
                format!("file={},if=none,id={name},format={format},cache=writeback,discard=unmap", path.display()),
                "-device".into(),
                format!("virtio-blk-pci,drive={name},serial={name},iothread=io-{name}"),
            ],
            Self::Ours { name, socket } => vec![
                "-chardev".into(),
                format!("socket,id={name},path={}", socket.display()),
                "-device".into(),
                format!("vhost-user-blk-pci,chardev={name},num-queues=1"),
            ],
        }
    }
}

/// A disk of ours, served.
pub struct Served {
    #[allow(dead_code, reason = "only some benches take checkpoints of it")]
    pub disk: Arc<Disk>,
    pub socket: PathBuf,
    server: Server,
}

impl Served {
    /// One of this name, at a checkpoint of the store or empty.
    pub fn new(place: &Path, name: &str, store: &Store, size: u64, root: Option<Root>) -> Self {
        let disk = Arc::new(open(place, store, size, root));
        let options = ServerOptions { disk: disk.clone(), serial: name.into(), dirty: Arc::new(DirtyPages::new()), watch: None };
        let socket = place.join(format!("{name}.sock"));
        let server = Server::start(&socket, options).expect("a server");
        Self { disk, socket, server }
    }

    pub fn stop(self) {
        self.server.stop();
    }
}

/// A disk at a checkpoint of the store, or an empty one.
pub fn open(place: &Path, store: &Store, size: u64, root: Option<Root>) -> Disk {
    let options = DiskOptions {
        golden: None,
        size: Some(size),
        root,
        pages: Arc::new(store.clone()),
        overlay_dir: place.to_owned(),
        read_only: false,
        drop_freed: true,
    };
    Disk::new(options).expect("a disk")
}

/// Saves a cut as a checkpoint of its own and returns it, parent of the next.
pub fn save(store: &Store, disk: &Disk, cut: &Cut, parent: Option<CheckpointId>) -> CheckpointId {
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
        after_ns: None,
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

pub struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).expect("QMP is JSON")
    }

    pub fn run(&mut self, command: &str) {
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
pub struct Guest {
    process: Child,
    console: BufReader<UnixStream>,
    #[allow(dead_code, reason = "only some benches stop it meanwhile")]
    pub monitor: Arc<Mutex<Monitor>>,
}

fn connect(path: &Path) -> UnixStream {
    // A chain of a thousand files takes QEMU a while to open.
    let stream = (0..6000).find_map(|_| {
        thread::sleep(Duration::from_millis(50));
        UnixStream::connect(path).ok()
    });
    stream.unwrap_or_else(|| panic!("QEMU does not open {}", path.display()))
}

impl Guest {
    /// Boots Debian with these disks beside its own.
    pub fn start(place: &Path, ram: &Path, disks: &[Attached<'_>]) -> Self {
        let (qmp, serial) = (place.join("qmp"), place.join("serial"));
        let process = Command::new(fermata_vm::qemu_program())
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-m", "1G", "-cpu", "max", "-accel", "tcg"])
            .args(["-machine", "q35,memory-backend=ram", "-object"])
            .arg(format!("memory-backend-file,id=ram,size={RAM_BYTES},share=on,mem-path={}", ram.join("ram").display()))
            .arg("-drive")
            .arg(format!("file={},if=none,id=root,format=raw,snapshot=on", guests::file("debian12.raw").display()))
            .args(["-device", "virtio-blk-pci,drive=root"])
            .args(disks.iter().flat_map(Attached::arguments))
            .arg("-kernel")
            .arg(guests::file("vmlinuz"))
            .arg("-initrd")
            .arg(guests::file("debian-initrd"))
            .args(["-append", &guests::debian_cmdline(), "-qmp"])
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

    /// Runs these jobs, each on one of these disks after the other. Returns MiB a second for each, in this order.
    pub fn fio(&mut self, jobs: &[Job], disks: &[&str]) -> Vec<f64> {
        let mut text = String::from("[global]\nioengine=libaio\ndirect=1\nthread=1\n");
        for (job, disk) in jobs.iter().flat_map(|job| disks.iter().map(move |disk| (job, disk))) {
            text.push_str(&format!("[j]\nfilename=/dev/disk/by-id/virtio-{disk}\n{}", job.text));
        }
        self.say("rm -f /tmp/jobs");
        // A terminal takes 4 KiB, and loses what comes before somebody has read them.
        for lines in text.lines().collect::<Vec<_>>().chunks(TYPED_AT_ONCE) {
            self.say("cat >>/tmp/jobs <<'END'");
            lines.iter().for_each(|line| self.say(line));
            self.say("END");
            self.say("echo wri''tten");
            self.await_line("written", |_| ());
        }
        self.say("fio --minimal /tmp/jobs; echo do''ne $?");
        let mut speeds = Vec::new();
        let mut said = Vec::new();
        self.await_line("done 0", |line| {
            assert!(!line.starts_with("done"), "fio failed: {said:?}");
            said.push(line.to_owned());
            // Terse output, version 3: bandwidth in KiB a second of reads, and of writes.
            let fields: Vec<_> = line.split(';').collect();
            if fields.first() == Some(&"3") {
                let field = fields[if jobs[speeds.len() / disks.len()].write { 47 } else { 6 }];
                speeds.push(field.parse::<f64>().expect("fio gives numbers") / 1024.0);
            }
        });
        assert_eq!(speeds.len(), jobs.len() * disks.len(), "fio said {said:?}");
        speeds
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
