//! A whole Debian: it boots from its own disk through the BIOS, keeps a database, compiles, and all of it survives checkpoints and journeys. One guest does all
//! of that, for its boot takes longer than the rest.

use fermata_experiment::{Journey, Run};
use fermata_testkit::{Bench, Snapshot, bench, guests};
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(180);

fn sh(run: &Run, script: &str) -> String {
    bench::shell(run.body().machine(), WAIT, script)
}

#[test]
fn it_boots_from_its_own_disk_keeps_a_database_and_compiles() {
    let image = guests::file("debian12.qcow2");
    let bench = Bench::exact(&format!("name: debian\nnodes:\n  m1: {{image: {}, memory: 512M, cpus: 2}}\n", image.display()));
    let run = bench.boot();
    a_database_goes_back_in_time(&bench, &run);
    a_compilation_goes_on_and_its_result_is_the_same(&bench, &run);
}

fn a_database_goes_back_in_time(bench: &Bench, run: &Run) {
    sh(run, "systemctl start redis-server; redis-cli set instrument lute");
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    sh(run, "redis-cli set instrument drum; redis-cli save; sync");
    let back = bench.arrive("back", &id, &record, Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None });
    assert_eq!(sh(&back, "redis-cli get instrument"), "lute");
    assert_eq!(sh(run, "redis-cli get instrument"), "drum");
    // Both go on, and what they write lands on disks of their own.
    sh(&back, "redis-cli set tune folia; redis-cli save; sync; echo 3 > /proc/sys/vm/drop_caches; test -s /var/lib/redis/dump.rdb");
    assert_eq!(sh(run, "redis-cli exists tune"), "0");
}

fn a_compilation_goes_on_and_its_result_is_the_same(bench: &Bench, run: &Run) {
    // Without optimizing: it is to be at work for a while, not for minutes.
    sh(run, "cd /src && (make -j2 MYCFLAGS=-O0 >/root/make.log 2>&1; echo $? >/root/made) >/dev/null 2>&1 &");
    let mut last = None;
    for number in 0..6 {
        std::thread::sleep(Duration::from_secs(2));
        let mut original = None;
        let checkpoint =
            run.checkpoint_observed(None, &mut |body| original = (number == 5).then(|| Snapshot::of(body))).expect("a checkpoint");
        last = Some((checkpoint, original));
    }
    let ((id, record), original) = last.expect("there was one");
    let original = original.expect("the last pause was seen");
    // The machine that was never moved ends its run here; the one that came back finishes the work.
    run.body().machine().kill();
    let back = bench.arrive("compiled", &id, &record, Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None });
    let differences = original.differences(&Snapshot::of(&back.body()));
    assert!(differences.is_empty(), "{differences:?}");
    back.body().machine().run().expect("it runs");
    let wait = "for i in $(seq 300); do test -e /root/made && break; sleep 1; done; cat /root/made; tail -n 3 /root/make.log";
    let log = sh(&back, wait);
    assert!(log.starts_with('0'), "{log}");
    assert_eq!(sh(&back, "echo 'print(6 * 7)' | /src/src/lua -"), "42");
}
