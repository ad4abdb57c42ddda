//! Pages that a guest touches first after a restore are remembered with the checkpoint, and are there before it asks next time. 15 seconds.

use fermata_experiment::{Journey, Run};
use fermata_testkit::{Bench, bench::await_console, cli::await_that, guests};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

#[test]
fn what_was_touched_first_comes_first_the_next_time() {
    let bench = Bench::new(&guests::tiny("touched", "fermata.run=work:64:20000:0", ""));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    run.pause().expect("it pauses");
    let store = bench.host.store();
    assert_eq!(store.hint(&id, "working-set.m1").expect("the index can be read"), None, "nobody restored it yet");

    let remembered = || store.hint(&id, "working-set.m1").expect("the index can be read").unwrap_or_default();
    let waited = waited_for(&bench.arrive("first", &id, &record, RUNNING));
    // Two may wait for the same page, and a page of zeros may be touched after all others are in.
    await_that("what was waited for is remembered", BOOT, || remembered().len() as u64 / 4 * 10 > waited * 9);
    let pages: Vec<u32> = remembered().chunks_exact(4).map(|page| u32::from_le_bytes(page.try_into().expect("four bytes"))).collect();
    assert!(pages.len() as u64 <= waited, "{} of {waited} pages are remembered", pages.len());

    // How many are waited for the next time depends on how fast they come. That they come first does not.
    let back = bench.arrive("second", &id, &record, Journey { paused: true, ..RUNNING });
    let machine = back.body().machine().clone();
    let paging = || machine.paging().expect("it was restored");
    await_that("all others are on their way", BOOT, || paging().wanted > 0);
    let ram = record.parts.iter().find(|part| part.name == "m1").expect("the machine is in it").tables["ram"];
    let kept = pages.iter().filter(|page| store.lookup(&ram, **page).expect("the table can be read").is_some()).count() as u64;
    let restored = paging().restored;
    println!("{kept} pages that were waited for, {restored} in when all others begin");
    assert!(0 < kept && kept <= restored, "{restored} pages are in, {kept} of them should be by now");
}

/// How many pages somebody had to wait for until all were there.
fn waited_for(run: &Run) -> u64 {
    let machine = run.body().machine().clone();
    loop {
        let paging = machine.paging().expect("it was restored");
        assert_eq!(paging.failure, None);
        if paging.complete {
            run.pause().expect("it pauses");
            // With what was touched since.
            return machine.paging().expect("it was restored").touched;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
