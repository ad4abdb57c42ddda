//! A checkpoint as a directory of files, by the command line: what is in them, who may take it away, and what damage does.

use crate::matrix::run_by;
use fermata_experiment::Run;
use fermata_testkit::{
    Bench, Cli,
    bench::{await_console, shell},
    cli::{array, await_that, count, end, string},
    guests,
};
use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const BOOT: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_secs(30);
const WORD: &str = "a word on the disk";
/// What the kernel says of a page that cannot be had.
const EIO: i32 = 5;

/// Runs one of the tests in mounts of its own. A mount lasts, and who serves it lives, as long as it is in anybody's: other tests begin processes with mounts of
/// their own meanwhile, which have copies of all that they find.
fn apart(test: &str, otherwise: fn()) {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        fermata_testkit::skipped!("mounts, for there is no /dev/fuse that opens");
        return;
    }
    let may = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if may.is_ok_and(|status| status.success()) {
        run_by(Command::new("unshare").arg("--mount").arg(env::current_exe().expect("the test has a path")), test);
    } else {
        otherwise();
    }
}

#[test]
fn a_checkpoint_is_a_directory_of_files() {
    apart("mounts::files_are_right_and_stay", files_are_right_and_stay);
}

#[test]
fn damage_is_an_error_where_it_is() {
    apart("mounts::a_damaged_page_is_no_other_s_error", a_damaged_page_is_no_other_s_error);
}

/// Takes the directory away when a test ends, however it does.
struct Place(PathBuf);

impl Place {
    fn new(cli: &Cli) -> Self {
        let path = cli.path().join("then");
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        mounts.lines().any(|line| line.contains(self.0.to_str().expect("a path")))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

/// A run with something on its disk, and a checkpoint of it with all of the disk at that instant.
fn checkpoint(cli: &mut Cli, name: &str) -> (Bench, Run, String, Vec<u8>) {
    let node = format!("    image: {}\n    cpus: 2\n", guests::file("tiny-disk.raw").display());
    let bench = Bench::exact(&guests::tiny(name, "fermata.run=work:32:2000 fermata.disk=ro", &node));
    cli.set("FERMATA_STORE", bench.host.store().path());
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    // Without a journal to be replayed: what looks at the disk later only reads.
    shell(run.body().machine(), BOOT, &format!("mount -o remount,rw /disk; echo {WORD} >/disk/word; mount -o remount,ro /disk"));
    let mut disk = Vec::new();
    let taken = run.checkpoint_observed(None, &mut |body| {
        let on = body.disks().next().expect("a disk");
        disk = vec![0; on.size() as usize];
        on.read_at(0, &mut disk).expect("the disk can be read");
    });
    let (id, _) = taken.expect("a checkpoint");
    (bench, run, id.to_string(), disk)
}

#[test]
#[ignore = "done in mounts of its own"]
fn files_are_right_and_stay() {
    let mut cli = Cli::new();
    let (bench, run, id, disk) = checkpoint(&mut cli, "then");
    let place = Place::new(&cli);
    let mounted = cli.json(&["mount", &format!("then/{}", &id[..12]), "then"]);
    assert_eq!((string(&mounted["checkpoint"]), string(&mounted["experiment"])), (id.as_str(), "then"), "{mounted}");
    assert_eq!(Path::new(string(&mounted["directory"])), place.0.canonicalize().expect("it is there"));
    let files: BTreeSet<_> = array(&mounted["files"]).iter().map(string).collect();
    assert_eq!(files, ["m1/disk0.raw", "m1/memory.core", "record.json"].into());
    let record: serde_json::Value = serde_json::from_slice(&fs::read(place.0.join("record.json")).expect("a record")).expect("JSON");
    assert_eq!((string(&record["experiment"]), array(&record["parts"]).len()), ("then", 2));
    the_files_are_right(&cli, &place, &id, &disk);
    nobody_writes(&place);
    nothing_is_taken_away(&cli, &place, &run, &id);
    cli.fails(&["mount", "main", "then"], 1, &["then is not empty"]);
    // Somebody has a file open.
    let open = File::open(place.0.join("record.json")).expect("a record");
    cli.fails(&["umount", "then"], 1, &["in use"]);
    drop(open);
    let unmounted = cli.json(&["umount", "then"]);
    assert_eq!(string(&unmounted["checkpoint"]), id);
    assert!(!place.is_mounted() && fs::read_dir(&place.0).expect("a directory").next().is_none());
    cli.fails(&["umount", "then"], 1, &["no checkpoint is mounted on then"]);
    await_that("who served it is gone", SOON, || !is_alive(count(&mounted["pid"])));
    // Now it goes: its own pages, which nothing else has.
    cli.ok(&["gc", "--rewrite-below", "100"]);
    cli.fails(&["mount", &id, "then"], 1, &[&id[..12]]);
    drop(bench);
}

fn is_alive(pid: u64) -> bool {
    // One that has ended and that nobody has asked after is not alive.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn the_files_are_right(cli: &Cli, place: &Place, id: &str, disk: &[u8]) {
    let raw = place.0.join("m1/disk0.raw");
    assert!(fs::read(&raw).expect("a disk") == disk, "byte by byte");
    let word = Command::new("debugfs").args(["-R", "cat /word"]).arg(&raw).output().expect("debugfs runs");
    assert_eq!(String::from_utf8_lossy(&word.stdout).trim(), WORD);
    let core = place.0.join("m1/memory.core");
    cli.ok(&["export", id, "--core", "-o", "memory.core"]);
    let exported = fs::read(cli.path().join("memory.core")).expect("a core");
    assert!(fs::read(&core).expect("a core") == exported, "the same as the exported one");
    let read = Command::new("readelf").args(["--wide", "--all"]).arg(&core).output().expect("readelf runs");
    assert!(read.status.success() && read.stderr.is_empty() && String::from_utf8_lossy(&read.stdout).contains("VMCOREINFO"), "{read:?}");
    // Not from the beginning, not whole pages, and across the end.
    let file = File::open(&raw).expect("a disk");
    let mut some = vec![0; 10_001];
    file.read_exact_at(&mut some, 123_457).expect("the middle");
    assert!(some == disk[123_457..133_458]);
    assert_eq!(file.read_at(&mut some, disk.len() as u64 - 7).expect("the end"), 7);
    assert!(some[..7] == disk[disk.len() - 7..]);
    assert_eq!(file.read_at(&mut some, disk.len() as u64 + 4096).expect("behind it"), 0);
}

fn nobody_writes(place: &Place) {
    let denied = |error: io::Error| matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied);
    let raw = place.0.join("m1/disk0.raw");
    assert!(File::options().write(true).open(&raw).is_err_and(denied));
    assert!(fs::remove_file(&raw).is_err_and(denied) && fs::create_dir(place.0.join("new")).is_err_and(denied));
    let metadata = fs::metadata(&raw).expect("a disk");
    assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o400, fs::metadata("/proc/self").expect("us").uid()));
    assert!(fs::metadata(place.0.join("none")).is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
}

/// The checkpoint is removed and the garbage collected: as long as it is mounted it can be read.
fn nothing_is_taken_away(cli: &Cli, place: &Place, run: &Run, id: &str) {
    // Nobody else stands on it then.
    shell(run.body().machine(), BOOT, "dd if=/dev/urandom of=/run/blob bs=1M count=8");
    run.checkpoint(None).expect("another checkpoint");
    run.body().machine().kill();
    let core = place.0.join("m1/memory.core");
    let before = blake3_of(&core);
    cli.ok(&["rm", id]);
    cli.ok(&["gc", "--rewrite-below", "100"]);
    // What the kernel has kept would tell nothing.
    let _ = fs::write("/proc/sys/vm/drop_caches", "1");
    assert_eq!(blake3_of(&core), before);
}

fn blake3_of(path: &Path) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path).expect("a file"), &mut hasher).expect("it can be read");
    hasher.finalize()
}

/// A page that is damaged in the store is an error where it is read, and others are read all the same. In the foreground, until it is told to end.
#[test]
#[ignore = "done in mounts of its own"]
fn a_damaged_page_is_no_other_s_error() {
    let mut cli = Cli::new();
    let (bench, run, id, _) = checkpoint(&mut cli, "damaged");
    run.body().machine().kill();
    let shelves = entries(&bench.host.store().path().join("packs"));
    for pack in shelves.iter().flat_map(|shelf| entries(shelf)) {
        let file = File::options().write(true).open(&pack).expect("a pack");
        let bytes = file.metadata().expect("its size").len();
        file.write_all_at(&vec![0x55; 4096.min(bytes as usize / 2)], bytes / 3).expect("it is damaged");
    }
    let place = Place::new(&cli);
    let log = cli.path().join("log");
    let mut command = cli.command(&["mount", &id, "then", "--foreground", "--json"]);
    let mut server = command.stdout(Stdio::null()).stderr(File::create(&log).expect("a file")).spawn().expect("it starts");
    await_that("it is mounted", SOON, || place.0.join("record.json").exists());
    let core = File::open(place.0.join("m1/memory.core")).expect("a core");
    let (mut page, mut good, mut damaged) = ([0; 4096], 0, 0);
    for at in (0..core.metadata().expect("its size").len()).step_by(page.len()) {
        match core.read_at(&mut page, at) {
            Ok(_) => good += 1,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "{error}");
                damaged += 1;
            }
        }
    }
    println!("{good} pages are good, {damaged} are not");
    assert!(damaged > 0 && good > 60_000, "{good} pages are good, {damaged} are not");
    drop(core);
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("m1/memory.core cannot be read") && said.contains("damaged"), "{said}");
    // As Ctrl-C does.
    let asked = Command::new("kill").args(["-INT", &server.id().to_string()]).status().expect("kill runs");
    assert!(asked.success());
    let status = end(&mut server, SOON).expect("it ends");
    assert!(status.success() && !place.is_mounted(), "{status}: {}", fs::read_to_string(&log).expect("a log"));
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path()).collect()
}
