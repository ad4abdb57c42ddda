//! Parts of a checkpoint as files for other programs, by the command line: against what QEMU itself says of the same machine at the same instant.

use fermata_testkit::{
    Bench, Cli,
    bench::{await_console, shell},
    cli::{count, string},
    guests,
};
use fermata_types::CheckpointId;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const BOOT: Duration = Duration::from_secs(90);
/// More than a q35 machine has below 4 GiB, so that some of it is above.
const DIVIDED_MIB: u32 = 2816;
const PT_LOAD: u64 = 1;
const PT_NOTE: u64 = 4;
const WORD: &str = "a word on the disk";

/// A core file, read as ELF's specification says.
struct Core {
    file: File,
    /// Kind, offset, physical address, bytes.
    headers: Vec<[u64; 4]>,
}

impl Core {
    fn open(path: &Path) -> Self {
        let file = File::open(path).expect("a core");
        let mut start = [0; 4096];
        file.read_exact_at(&mut start, 0).expect("a header");
        assert_eq!(&start[..7], b"\x7fELF\x02\x01\x01");
        let number =
            |at: usize, bytes: usize| start[at..at + bytes].iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        assert_eq!((number(16, 2), number(18, 2), number(54, 2)), (4, 62, 56), "a core of an x86-64");
        let at = |nth: u64| (number(32, 8) + nth * 56) as usize;
        let header = |at: usize| {
            assert_eq!((number(at + 16, 8), number(at + 40, 8)), (number(at + 24, 8), number(at + 32, 8)), "addresses, and sizes");
            [number(at, 4), number(at + 8, 8), number(at + 24, 8), number(at + 32, 8)]
        };
        Self { headers: (0..number(56, 2)).map(|nth| header(at(nth))).collect(), file }
    }

    fn notes(&self) -> Vec<u8> {
        let notes: Vec<_> = self.headers.iter().filter(|header| header[0] == PT_NOTE).collect();
        let mut bytes = vec![0; notes[0][3] as usize];
        self.file.read_exact_at(&mut bytes, notes[0][1]).expect("notes");
        bytes
    }

    /// What of the guest's addresses is there, neighbours as one.
    fn memory(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for [_, _, physical, bytes] in self.headers.iter().filter(|header| header[0] == PT_LOAD) {
            match ranges.last_mut() {
                Some(last) if last.end == *physical => last.end += bytes,
                _ => ranges.push(*physical..physical + bytes),
            }
        }
        ranges
    }

    /// Reads by the guest's addresses; as much as lies together.
    fn read(&self, physical: u64, into: &mut [u8]) -> usize {
        let holds = |header: &&[u64; 4]| header[0] == PT_LOAD && (header[2]..header[2] + header[3]).contains(&physical);
        let [_, offset, start, bytes] = self.headers.iter().find(holds).unwrap_or_else(|| panic!("no memory at {physical:#x}"));
        let length = (into.len() as u64).min(start + bytes - physical) as usize;
        self.file.read_exact_at(&mut into[..length], offset + (physical - start)).expect("memory");
        length
    }
}

/// Notes by name, the first of each: its description.
fn by_name(notes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut rest) = (BTreeMap::new(), notes);
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("a word")) as usize;
        let (name, description) = (word(0), word(4));
        let at = 12 + name.next_multiple_of(4);
        let name = String::from_utf8_lossy(&rest[12..12 + name - 1]).into_owned();
        found.entry(name).or_insert_with(|| rest[at..at + description].to_vec());
        rest = &rest[at + description.next_multiple_of(4)..];
    }
    found
}

/// All of a memory, compared.
fn same_memory(ours: &Core, theirs: &Core) {
    assert_eq!(ours.memory(), theirs.memory(), "{:#x?} {:#x?}", ours.headers, theirs.headers);
    let [mut a, mut b] = [(); 2].map(|()| vec![0; 1 << 20]);
    let (zeros, mut data) = (a.clone(), 0_u64);
    for range in ours.memory() {
        let mut at = range.start;
        while at < range.end {
            let length = ours.read(at, &mut a);
            let length = theirs.read(at, &mut b[..length]);
            let (ours, theirs) = (&a[..length], &b[..length]);
            // As a whole: byte by byte it would take most of the time of this test.
            if ours != theirs {
                let differs = ours.iter().zip(theirs).position(|(a, b)| a != b);
                panic!("they differ at {:#x}", at + differs.unwrap_or(0) as u64);
            }
            data += u64::from(*ours != zeros[..length]) << 20;
            at += length as u64;
        }
    }
    assert!(data > 30 << 20, "there was something to compare: {data}");
}

/// A guest, a checkpoint of it, and beside that QEMU's own core and all of the disk at the same instant.
struct Seen {
    cli: Cli,
    /// Of which the checkpoint is; its store is there as long as it is.
    bench: Bench,
    id: CheckpointId,
    core: PathBuf,
    disk: Vec<u8>,
}

impl Seen {
    fn new() -> Self {
        let cli = Cli::new();
        let node = format!("    image: {}\n    cpus: 2\n", guests::file("tiny-disk.raw").display());
        let spec = guests::tiny("image", "fermata.run=work:48:2000 fermata.disk=ro", &node);
        let bench = Bench::exact(&spec.replace("memory: 256M", &format!("memory: {DIVIDED_MIB}M")));
        let run = bench.boot();
        await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
        // Without a journal to be replayed: what looks at the disk later only reads.
        shell(run.body().machine(), BOOT, &format!("mount -o remount,rw /disk; echo {WORD} >/disk/word; mount -o remount,ro /disk"));
        let (core, mut disk) = (cli.path().join("qemu.core"), Vec::new());
        let checkpoint = run.checkpoint_observed(None, &mut |body| {
            body.machine().dump(&core).expect("QEMU writes a core");
            let on = body.disks().next().expect("a disk");
            disk = vec![0; on.size() as usize];
            on.read_at(0, &mut disk).expect("the disk can be read");
        });
        let (id, _) = checkpoint.expect("a checkpoint");
        run.body().machine().kill();
        let mut seen = Self { cli, bench, id, core, disk };
        let store = seen.bench.host.store().path().to_owned();
        seen.cli.set("FERMATA_STORE", store);
        seen
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cli.path().join(name)
    }
}

#[test]
fn a_core_is_what_qemu_itself_writes_and_a_disk_what_the_guest_had() {
    let mut seen = Seen::new();
    a_core_is_what_qemu_itself_writes(&seen);
    a_disk_is_what_the_guest_had(&seen);
    what_cannot_be(&mut seen);
}

fn a_core_is_what_qemu_itself_writes(seen: &Seen) {
    let id = seen.id.to_string();
    let told = seen.cli.json(&["export", &id, "--core", "-o", "memory.core"]);
    assert_eq!((string(&told["checkpoint"]), string(&told["part"]), string(&told["format"])), (id.as_str(), "m1", "core"));
    assert_eq!((count(&told["core"]["processors"]), &told["core"]["vmcoreinfo"]), (2, &true.into()), "{told}");
    let path = seen.path("memory.core");
    let metadata = fs::metadata(&path).expect("a core");
    assert_eq!((count(&told["bytes"]), count(&told["bytes_allocated"])), (metadata.len(), metadata.blocks() * 512));
    assert!(metadata.blocks() * 512 < metadata.len() / 4, "zeros are holes: {told}");
    let [ours, theirs] = [&path, &seen.core].map(|path| Core::open(path));
    assert!(ours.notes() == theirs.notes(), "registers and the kernel's own note");
    assert!(ours.memory().last().is_some_and(|last| last.end > 4 << 30), "some of it is above 4 GiB");
    same_memory(&ours, &theirs);
    let notes = by_name(&ours.notes());
    let kernel = String::from_utf8_lossy(&notes["VMCOREINFO"]);
    assert!(kernel.starts_with("OSRELEASE=") && kernel.contains("KERNELOFFSET="), "{kernel}");
    programs_read_it(&path, &notes["CORE"], &ours);
    // In words, and again.
    seen.cli.fails(&["export", &id, "--core", "-o", "memory.core"], 1, &["memory.core is there already", "--force"]);
    let said = seen.cli.ok(&["export", &id, "--core", "--part", "m1", "--force", "-o", "memory.core"]);
    assert!(said.contains("the registers of 2 processors") && said.contains("VMCOREINFO"), "{said}");
}

/// What those see who shall read it.
fn programs_read_it(path: &Path, status: &[u8], core: &Core) {
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).env("DEBUGINFOD_URLS", "").output().ok()?;
        assert!(done.status.success(), "{program}: {done:?}");
        Some((String::from_utf8_lossy(&done.stdout).into_owned(), String::from_utf8_lossy(&done.stderr).into_owned()))
    };
    let path = path.to_str().expect("a path");
    let (read, complaints) = run("readelf", &["--wide", "--all", path]).expect("readelf runs");
    assert!(read.contains("CORE (Core file)") && read.contains("VMCOREINFO") && complaints.is_empty(), "{read}{complaints}");
    let asked = ["-batch", "-nx", "-ex", "print $rip", "-ex", "info threads", "-ex", "x/8xb 0x1000000", "-c", path];
    let Some((said, _)) = run("gdb", &asked) else {
        println!("skipped: no gdb to look at a core with");
        return;
    };
    // Behind what comes before the registers, and sixteen of them.
    let instruction = u64::from_le_bytes(status[112 + 16 * 8..][..8].try_into().expect("eight bytes"));
    assert!(said.contains(&format!("{instruction:#x}")), "{instruction:#x}: {said}");
    let mut bytes = [0; 8];
    core.read(0x100_0000, &mut bytes);
    let bytes = bytes.map(|byte| format!("0x{byte:02x}")).join("\t");
    assert!(said.contains(&bytes), "{bytes}: {said}");
    assert!(said.contains("LWP 1") && said.contains("LWP 2"), "two processors: {said}");
}

fn a_disk_is_what_the_guest_had(seen: &Seen) {
    let id = seen.id.to_string();
    let told = seen.cli.json(&["export", &format!("image/{}", &id[..12]), "--raw", "-o", "disk.raw"]);
    assert_eq!((string(&told["part"]), string(&told["format"]), count(&told["bytes"])), ("m1/disk0", "raw", seen.disk.len() as u64));
    assert!(told.get("core").is_none(), "{told}");
    let raw = seen.path("disk.raw");
    assert!(fs::read(&raw).expect("an image") == seen.disk, "byte by byte");
    assert!(count(&told["bytes_allocated"]) < seen.disk.len() as u64 / 2, "zeros are holes: {told}");
    let word = Command::new("debugfs").args(["-R", "cat /word"]).arg(&raw).output().expect("debugfs runs");
    assert_eq!(String::from_utf8_lossy(&word.stdout).trim(), WORD);
    let told = seen.cli.json(&["export", &id, "--qcow2", "--part", "m1", "-o", "disk.qcow2"]);
    assert!(count(&told["bytes"]) < seen.disk.len() as u64 / 2, "{told}");
    for arguments in [&["check", "disk.qcow2"][..], &["compare", "disk.qcow2", "disk.raw"]] {
        let done = Command::new("qemu-img").args(arguments).current_dir(seen.cli.path()).output().expect("qemu-img runs");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
}

/// What is refused and what fails says why, and leaves nothing behind.
fn what_cannot_be(seen: &mut Seen) {
    let id = seen.id.to_string();
    let id = id.as_str();
    let small = seen.cli.mount("small", "4m");
    let cli = &seen.cli;
    let before = files(cli.path());
    cli.fails(&["export", id, "--core", "--part", "m1/disk0", "-o", "new"], 1, &["m1/disk0 is no machine", "m1"]);
    cli.fails(&["export", id, "--raw", "--part", "m2", "-o", "new"], 1, &["m2 is no disk", "m1/disk0"]);
    cli.fails(&["export", "nonsense", "--raw", "-o", "new"], 1, &["nonsense", "`log`"]);
    cli.fails(&["export", id, "--raw", "-o", "."], 1, &["is a directory"]);
    cli.fails(&["export", id, "--raw", "-o", "none/new"], 1, &["none/new"]);
    cli.fails(&["export", id, "-o", "new"], 2, &["--core"]);
    match &small {
        Some(small) => {
            cli.fails(&["export", id, "--core", "-o", "small/new"], 1, &["m1 was not written to small/new", "No space left"]);
            assert!(files(small).is_empty());
        }
        None => println!("skipped: no tmpfs can be mounted here to fill it up"),
    }
    let shelves = files(&seen.bench.host.store().path().join("packs"));
    for pack in shelves.iter().flat_map(|shelf| files(shelf)) {
        let file = File::options().write(true).open(&pack).expect("a pack");
        let bytes = file.metadata().expect("its size").len();
        file.write_all_at(&vec![0x55; 4096.min(bytes as usize / 2)], bytes / 3).expect("it is damaged");
    }
    cli.fails(&["export", id, "--core", "-o", "new"], 1, &["m1 was not written to new", "damaged"]);
    assert_eq!(files(cli.path()), before);
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}
