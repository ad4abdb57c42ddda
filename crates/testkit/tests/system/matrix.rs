//! Every QEMU and guest kernel that is supported, with one and several processors and from 256 MiB to 8 GiB; from one QEMU to a newer one; and instants of a
//! guest's life that are easily forgotten: while it boots, and when it restarts after a journey.
//!
//! About a minute. What Debian's backports bring is skipped, with a line that says so, where `guests/build` could not have it.

use fermata_experiment::{Asked, Journey, Status};
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench, Cli, Snapshot,
    bench::{await_console, console},
    cli::{array, await_that},
    guests, is_long, oracle,
};
use fermata_types::Use;
use fermata_vm::{Accel, QemuVersion, qemu_program};
use std::{env, path::PathBuf, process::Command, time::Duration};

/// Other work may keep the host busy.
const BOOT: Duration = Duration::from_secs(240);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

/// The variable that hands a row to the process that does it.
const ROW: &str = "FERMATA_TEST_ROW";

/// QEMU, kernel, processors, memory: each QEMU meets each kernel and each number of processors, and every size is there.
const ROWS: [[&str; 4]; 7] = [
    ["host", "6.1", "1", "4G"],
    ["host", "6.1", "2", "8G"],
    ["host", "6.1", "4", "256M"],
    ["host", "6.12", "1", "2G"],
    ["10", "6.12", "1", "1G"],
    ["10", "6.1", "2", "2G"],
    ["10", "6.12", "4", "8G"],
];
/// With these almost every two values of different columns meet: with `FERMATA_LONG=1`.
const MORE_ROWS: &[[&str; 4]] = &[
    ["host", "6.1", "1", "256M"],
    ["host", "6.1", "4", "1G"],
    ["host", "6.1", "2", "4G"],
    ["10", "6.12", "4", "256M"],
    ["10", "6.12", "2", "8G"],
];

/// Linux 6.12 does not even boot every time under the translator of QEMU 7.2, with or without us: it leaves nonsense in the processor's flags, and the kernel
/// stops at traps that nobody asked for.
fn translates_wrongly(qemu: &str, kernel: &str) -> bool {
    if qemu != "host" || kernel != "6.12" || Accel::auto() == Accel::Kvm {
        return false;
    }
    QemuVersion::of(&qemu_program()) < QemuVersion(8, 0)
}

/// QEMU 10 beside the host's own.
pub fn newer_qemu() -> Option<PathBuf> {
    Some(guests::directory().join("qemu-10/usr/bin/qemu-system-x86_64")).filter(|path| path.exists())
}

/// A specification of the guest with a kernel, or none if there is no such guest.
fn guest(name: &str, kernel: &str, run: &str, more: &str) -> Option<String> {
    let directory = if kernel == "6.1" { "" } else { "linux-6.12/" };
    let there = guests::directory().join(directory).join("tiny.cpio").exists();
    there.then(|| guests::busybox(name, directory, run, more))
}

/// Runs one of the ignored tests with another QEMU: which one comes from the environment, and a process does not change its own.
pub fn elsewhere(test: &str, row: &str, qemu: Option<PathBuf>) {
    let mut child = Command::new(env::current_exe().expect("the test has a path"));
    run_by(child.env(ROW, row).envs(qemu.map(|qemu| ("FERMATA_QEMU", qemu))), test);
}

/// Runs one of the ignored tests by a command that runs this program.
pub fn run_by(this: &mut Command, test: &str) {
    let done = this.args(["--exact", test, "--ignored", "--nocapture"]).output().expect("the test runs");
    let [out, errors] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success() && out.contains("1 passed"), "{this:?}: {out}{errors}");
}

#[test]
fn a_guest_of_every_kind_comes_back_as_it_was() {
    let more: &[[&str; 4]] = if is_long() { MORE_ROWS } else { &[] };
    for row in ROWS.iter().chain(more) {
        if translates_wrongly(row[0], row[1]) {
            fermata_testkit::skipped!("{row:?}, for the translator of QEMU 7 does not run Linux 6.12 reliably");
            continue;
        }
        let kernel_missing = guest("kernel", row[1], "", "").is_none();
        let qemu = if row[0] == "host" { None } else { Some(newer_qemu()) };
        if kernel_missing || qemu == Some(None) {
            fermata_testkit::skipped!("{row:?}, for want of what guests/build takes from Debian's backports");
            continue;
        }
        elsewhere("matrix::one_row", &row.join(" "), qemu.flatten());
    }
}

#[test]
#[ignore = "one row, done by the test of all rows in a process of its own"]
fn one_row() {
    let row = env::var(ROW).expect("the test of all rows says which");
    let row: Vec<_> = row.split(' ').collect();
    let [_, kernel, cpus, memory] = row[..] else { panic!("no row: {row:?}") };
    let disk = guests::file("tiny-disk.raw");
    let more = format!("    image: {}\n    cpus: {cpus}\n", disk.display());
    let spec = guest("matrix", kernel, "fermata.run=selfcheck:24:8 fermata.disk=rw", &more).expect("it was looked for");
    let bench = Bench::new(&spec.replace("memory: 256M", &format!("memory: {memory}")));
    let run = bench.boot();
    let checked = |text: &str| (text.matches("selfcheck round").count() >= 2 || text.contains("FAIL")).then_some(());
    await_console(&run.body(), BOOT, checked);
    let mut original = None;
    let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
    let (original, left_out) = (original.expect("the pause was seen"), oracle::left_out(&run.body()));
    await_console(&run.body(), BOOT, |text| (text.matches("selfcheck round").count() >= 4 || text.contains("FAIL")).then_some(()));
    let paranoid = || Asked { paranoid: true, ..Asked::default() };
    // What is in the map is what was read and written lately, which on a busy host may be nothing since the checkpoint before.
    let watch = Stopwatch::start();
    let (later, later_record) = loop {
        let taken = run.checkpoint_as(paranoid(), &|| true).expect("a second checkpoint");
        if taken.1.cost.parts["m1"].mapped > 0 {
            break taken;
        }
        assert!(watch.elapsed() < BOOT, "{row:?}: {:?}", taken.1.cost.parts["m1"]);
        std::thread::sleep(Duration::from_secs(1));
    };
    let seen = console(&run.body());
    assert!(!seen.contains("FAIL"), "{seen}");
    // Two machines of 8 GiB need not fit.
    drop(run);
    assert!(original.free.len() > 1000, "{row:?}: {:?}", record.cost.composition);
    assert_eq!(record.cost.composition["m1"].of(Use::Free), original.free.len(), "{row:?}: {:?}", record.cost.composition);
    let copy = Snapshot::of(&bench.arrive("paused", &id, &record, PAUSED).body());
    let differences = original.differences_beside(&copy, &left_out);
    assert!(differences.is_empty(), "{row:?}: {differences:?}");
    for (name, id, record, fresh_randomness) in [("goto", &id, &record, false), ("fork", &later, &later_record, true)] {
        let run = bench.arrive(name, id, record, Journey { fresh_randomness, ..RUNNING });
        await_console(&run.body(), BOOT, checked);
        assert!(!console(&run.body()).contains("FAIL"), "{row:?} {name}: {}", console(&run.body()));
        assert_eq!(run.body().machine().status(), Status::Running);
        run.checkpoint_as(paranoid(), &|| true).expect("a checkpoint after the journey");
    }
}

/// A Debian, too, which boots through its boot loader; and what the newer QEMU's guests need of the shell.
#[test]
fn a_debian_under_the_newer_qemu() {
    let Some(qemu) = newer_qemu() else {
        fermata_testkit::skipped!("a Debian under QEMU 10, for want of what guests/build takes from Debian's backports");
        return;
    };
    let mut cli = Cli::new();
    cli.set("FERMATA_QEMU", qemu);
    let image = guests::file("debian12.qcow2");
    cli.write("machine.yaml", &format!("name: newer\nnodes:\n  m1: {{image: {}, memory: 512M, cpus: 2}}\n", image.display()));
    cli.ok(&["up", "machine.yaml"]);
    is_up(&cli);
    cli.shell("m1", "systemctl start redis-server; redis-cli set instrument lute");
    let id = cli.checkpoint("lute");
    cli.shell("m1", "redis-cli set instrument drum; redis-cli save; sync");
    cli.ok(&["goto", &id]);
    assert_eq!(cli.shell("m1", "redis-cli get instrument; dmesg | grep -ciE 'i/o error|soft lockup' || true"), "lute\n0");
}

#[test]
fn a_newer_qemu_takes_up_checkpoints_of_an_older_one_and_not_the_other_way() {
    let Some(newer) = newer_qemu() else {
        fermata_testkit::skipped!("from one QEMU to another, for want of what guests/build takes from Debian's backports");
        return;
    };
    let mut cli = Cli::new();
    let image = cli.disk();
    let more = format!("    image: {}\n    cpus: 2\n", image.display());
    cli.write("machine.yaml", &guests::tiny("versions", "fermata.run=selfcheck:24:8 fermata.disk=rw", &more));
    cli.ok(&["up", "machine.yaml"]);
    is_up(&cli);
    cli.shell("m1", "echo kept > /tmp/kept; echo kept > /disk/kept; sync");
    let older = cli.checkpoint("under the host's QEMU");
    cli.ok(&["down"]);
    cli.set("FERMATA_QEMU", &newer);
    for how in [&["goto", older.as_str()][..], &["goto", "--eager", older.as_str()]] {
        cli.ok(how);
        assert_eq!(cli.shell("m1", "cat /tmp/kept /disk/kept; dmesg | grep -ciE 'i/o error|soft lockup' || true"), "kept\nkept\n0");
    }
    checks_itself(&cli);
    // It goes on under the newer one as a machine of the older one's type, so the way back is open.
    let between = cli.checkpoint("under the newer QEMU");
    cli.ok(&["down"]);
    cli.unset("FERMATA_QEMU");
    cli.ok(&["goto", &between]);
    assert_eq!(cli.shell("m1", "cat /tmp/kept /disk/kept"), "kept\nkept");
    checks_itself(&cli);
    cli.ok(&["down"]);
    // A machine that began under the newer one is of a type that the older one does not know.
    cli.set("FERMATA_QEMU", &newer);
    cli.ok(&["up", "machine.yaml", "--name", "newer"]);
    let newest = cli.checkpoint("of the newer QEMU");
    cli.ok(&["down"]);
    cli.unset("FERMATA_QEMU");
    cli.fails(
        &["goto", &newest, "-e", "newer"],
        1,
        &["m1", "qemu-system-x86_64 has no machine type pc-q35-", "a newer QEMU", "FERMATA_QEMU"],
    );
    await_that("nothing is left of the attempt", BOOT, || cli.processes().is_empty());
    assert_eq!(array(&cli.json(&["ls"])).len(), 0);
}

/// A busy host may boot a guest more slowly than a command waits for it.
#[track_caller]
fn is_up(cli: &Cli) {
    await_that("the guest is up", BOOT, || cli.run(&["exec", "m1", "--", "true"]).status.success());
}

/// The guest's own look at its memory and disk finds nothing wrong, twice more.
#[track_caller]
fn checks_itself(cli: &Cli) {
    let seen = || cli.console("main");
    let before = seen().matches("selfcheck round").count();
    await_that("it checks itself", BOOT, || seen().contains("FAIL") || seen().matches("selfcheck round").count() >= before + 2);
    assert!(!seen().contains("FAIL"), "{}", seen());
}

/// While a guest boots its devices are in states that they are never in again: not yet found, used by the BIOS, just reset by the kernel.
#[test]
fn a_guest_that_boots_goes_on_booting_from_every_instant() {
    let disk = guests::file("tiny-disk.raw");
    let bench = Bench::new(&guests::tiny("booting", "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n", disk.display())));
    let run = bench.boot();
    let mut instants = Vec::new();
    for _ in 0..INSTANTS {
        instants.push(run.checkpoint(None).expect("a checkpoint"));
        std::thread::sleep(BETWEEN_INSTANTS);
    }
    drop(run);
    for (id, record) in &instants {
        let copy = bench.arrive("copy", id, record, RUNNING);
        println!("from {} ms", record.time_virtual_ns / 1_000_000);
        await_console(&copy.body(), BOOT, |text| text.contains("tick ").then_some(()));
        assert!(!console(&copy.body()).contains("FAIL"), "{}", console(&copy.body()));
    }
}

/// From the BIOS to the first process, under emulation.
const INSTANTS: usize = 8;
const BETWEEN_INSTANTS: Duration = Duration::from_millis(250);

/// A restart begins in the firmware's memory, and finds every device as it was left.
#[test]
fn a_guest_may_restart_after_a_journey() {
    let mut cli = Cli::new();
    let image = cli.disk();
    let more = format!("    image: {}\n    cpus: 2\n", image.display());
    // The second journey is to a checkpoint that was taken after a first one.
    for (qemu, journeys) in [(None, 2)].into_iter().chain(newer_qemu().map(|qemu| (Some(qemu), 1))) {
        if let Some(qemu) = qemu {
            cli.set("FERMATA_QEMU", qemu);
        }
        cli.write("machine.yaml", &guests::tiny("restart", "fermata.run=tick fermata.disk=rw", &more));
        cli.ok(&["up", "machine.yaml"]);
        is_up(&cli);
        cli.shell("m1", "echo kept > /disk/kept; sync");
        let mut id = cli.checkpoint("before");
        for _ in 0..journeys {
            cli.ok(&["goto", &id]);
            id = cli.checkpoint("after a journey");
            cli.shell("m1", "touch /tmp/gone; sync; (sleep 0.2; reboot -f) < /dev/null > /dev/null 2>&1 &");
            let restarted = || cli.run(&["exec", "m1", "--", "sh", "-c", "! test -e /tmp/gone && cat /disk/kept"]).stdout == "kept\n";
            await_that("it is up again", BOOT, restarted);
        }
        cli.ok(&["down"]);
    }
}
