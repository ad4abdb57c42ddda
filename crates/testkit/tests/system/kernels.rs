//! How memory of programs is watched on a fresh Debian 12: its kernel (Linux 6.1) has soft-dirty bits and takes no other note of writes, and hosts of today mostly
//! have it the other way round. On a processor without XSAVE, too, such as QEMU gives a guest when nobody says which.

use fermata_testkit::{
    Bench,
    bench::{shell, shell_output},
    guests,
};
use std::{env, fs, path::PathBuf, process::Command, time::Duration};

const WAIT: Duration = Duration::from_secs(180);

/// The newest program of this name that was made of this source, among others of the name: cargo notes beside it what it was made of.
fn program(name: &str, source: &str) -> PathBuf {
    let this = env::current_exe().expect("the test has a path");
    let beside = fs::read_dir(this.parent().expect("it lies in a directory")).expect("which can be read");
    let notes =
        beside.map(|entry| entry.expect("an entry").path()).filter(|path| path.extension().is_some_and(|extension| extension == "d"));
    let named = notes.filter(|path| path.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with(&format!("{name}-"))));
    let made = named.filter(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(source))).map(|path| path.with_extension(""));
    let newest = made.filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path))).max();
    newest.unwrap_or_else(|| panic!("no program of {source} was built: ./test builds all")).1
}

#[test]
fn every_tracker_of_programs_does_on_debian_12_what_it_must() {
    let place = tempfile::tempdir().expect("a directory");
    let programs = [("trackers", "crates/process/tests/trackers.rs"), ("fermata_linux", "crates/linux/src/traps/tests.rs")];
    for (name, source) in programs {
        fs::copy(program(name, source), place.path().join(name)).expect("room for it");
    }
    let disk = place.path().join("disk");
    let mut tar = Command::new("tar");
    tar.args(["--record-size=1M", "-cf"]).arg(&disk).arg("-C").arg(place.path()).args(programs.map(|(name, _)| name));
    assert!(tar.status().expect("tar runs").success());
    let more = format!("    cpus: 2\n    cpu: qemu64\n    disks: [{{image: {}}}]\n", disk.display());
    let bench = Bench::new(&guests::debian("kernels", "debian12.raw", &more));
    let run = bench.boot();
    let body = run.body();
    let machine = body.machine();
    assert!(shell(machine, WAIT, "tar -xf /dev/vdb -C /root; uname -r").starts_with("6.1."));

    let said = String::from_utf8_lossy(&shell_output(machine, WAIT, "/root/trackers --nocapture 2>&1")).into_owned();
    assert!(said.contains("test soft_dirty::hostile_writers ..."), "{said}");
    // That one wants Linux 6.7. All others can be had.
    let skipped = said.split("skipped: ").skip(1);
    assert!(skipped.clone().count() > 0 && skipped.clone().all(|why| why.starts_with("assisted: ")), "{said}");

    let vectors = "traps::tests::vectors_are_stored_as_the_processor_does_it";
    let said = shell(machine, WAIT, &format!("! grep -qw xsave /proc/cpuinfo && /root/fermata_linux --exact {vectors}"));
    assert!(said.contains("1 passed"), "{said}");
}
