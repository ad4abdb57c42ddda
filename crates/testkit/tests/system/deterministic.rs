//! The strongest proof of transparency there is: with one tick an instruction, a run that was checkpointed many times and restored on the way ends with the
//! very same RAM, byte for byte, as one that was left alone.
//!
//! 10 checkpoints; 50, of a run that is as much longer, with `FERMATA_LONG=1`.

use fermata_experiment::{Journey, Run, Status};
use fermata_testkit::{Bench, Snapshot, bench::await_console, guests, is_long, oracle::differing};
use std::time::Duration;

const END: Duration = Duration::from_secs(240);

/// How many checkpoints, and how many steps of work.
fn length() -> (usize, u32) {
    if is_long() { (50, 30) } else { (10, 6) }
}

fn closed() -> Bench {
    Bench::new(&guests::tiny("closed", &format!("fermata.run=det:{}", length().1), "    deterministic: true\n"))
}

/// Waits until the guest has halted, its processor waiting for ever with interrupts off, and stops the machine.
fn end(run: &Run) -> Snapshot {
    let body = run.body();
    await_console(&body, END, |text| text.contains("System halted").then_some(()));
    // The message comes a few instructions before the halt.
    std::thread::sleep(Duration::from_secs(1));
    body.machine().stop().expect("it stops");
    Snapshot::of(&body)
}

#[test]
fn checkpoints_and_a_restore_leave_no_trace() {
    let undisturbed = closed();
    let reference = undisturbed.boot();
    let bench = closed();
    let run = bench.boot();
    let mut middle = None;
    let checkpoints = length().0;
    for number in 0..checkpoints {
        std::thread::sleep(Duration::from_millis(250));
        assert_eq!(run.body().machine().status(), Status::Running, "the guest ended before checkpoint {number}: make it work longer");
        let checkpoint = run.checkpoint(None).expect("a checkpoint");
        if number == checkpoints / 2 {
            middle = Some(checkpoint);
        }
    }
    let (id, record) = middle.expect("there was a middle");
    let restored =
        bench.arrive("restored", &id, &record, Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None });
    let (reference, run, restored) = (end(&reference), end(&run), end(&restored));
    // The devices' states tell which process it was; RAM is the guest's.
    assert_eq!(differing(&reference.ram, &run.ram), Vec::<usize>::new(), "pages differ after {checkpoints} checkpoints");
    assert_eq!(differing(&reference.ram, &restored.ram), Vec::<usize>::new(), "pages differ after a restore");
}
