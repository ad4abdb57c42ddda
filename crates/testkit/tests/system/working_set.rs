//! Pages that a guest touches first after a restore are remembered with the checkpoint, and are there before it asks next time. 15 seconds.

use fermata_experiment::{Journey, Run};
use fermata_testkit::{Bench, bench::await_console, guests};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false };

#[test]
fn what_was_touched_first_comes_first_the_next_time() {
    let bench = Bench::new(&guests::tiny("touched", "fermata.run=work:64:20000:0", ""));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    run.pause().expect("it pauses");
    let store = bench.host.store();
    assert_eq!(store.hint(&id, "working-set.m1").expect("the index can be read"), None, "nobody restored it yet");

    let first = waited_for(&bench.arrive("first", &id, &record, RUNNING));
    let known = store.hint(&id, "working-set.m1").expect("the index can be read").expect("it is kept").len() / 4;
    // Two may wait for the same page, and a page of zeros may be touched after all others are in.
    assert!(known as u64 <= first && known as u64 * 10 > first * 9, "{known} of {first} pages are remembered");
    let second = waited_for(&bench.arrive("second", &id, &record, RUNNING));
    println!("pages waited for: {first}, then {second}");
    assert!(second < first, "{second} pages were waited for, {first} the first time");
}

/// How many pages somebody had to wait for until all were there.
fn waited_for(run: &Run) -> u64 {
    let machine = run.body().machine().clone();
    loop {
        let paging = machine.paging().expect("it was restored");
        assert_eq!(paging.failure, None);
        if paging.complete {
            // What was waited for is remembered right after.
            std::thread::sleep(Duration::from_millis(200));
            run.pause().expect("it pauses");
            return paging.touched;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
