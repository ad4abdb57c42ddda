//! A guest that takes its disk and its network interface away from its kernel and drives both with nonsense: QEMU, the servers and checkpoints live on, each device
//! serves after each reset, and the guests beside it notice nothing.

use fermata_experiment::{Body, Status};
use fermata_testkit::{Bench, bench::await_console_of, bench::console_of, guests};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(120);
const CHECKPOINTS: usize = 12;
const JOURNEYS: usize = 2;
/// What the consoles of the machines keep saying while all is well.
const WELL: [&[&str]; 3] = [&["hostile disk round", "hostile net round"], &["wire heard", "selfcheck round"], &["wire sent"]];

/// One that means harm, with a cable to one that knows what it must hear from a third.
fn three() -> String {
    let disk = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    let nodes = guests::several(
        "hostile",
        128,
        &[
            ("a", "fermata.run=hostile:disk,hostile:net fermata.disk=none", &disk),
            ("b", "fermata.run=wire:listen,selfcheck:8:2 fermata.ip=eth1:10.0.0.1/24,eth2:10.0.1.1/24", &disk),
            ("c", "fermata.run=wire:send:10.0.1.1 fermata.ip=eth1:10.0.1.2/24", ""),
        ],
    );
    format!("{nodes}links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n  - endpoints: [\"b:eth2\", \"c:eth1\"]\n")
}

/// Waits until every machine has said each of its lines twice more: once may have been under way.
fn await_well(body: &Body) {
    for (machine, lines) in body.machines().iter().zip(WELL) {
        for line in lines {
            let before = console_of(machine.machine()).matches(line).count();
            await_console_of(machine.machine(), BOOT, |text| {
                assert!(!text.contains("FAIL"), "{}: {text}", machine.name());
                (text.matches(line).count() > before + 1).then_some(())
            });
        }
    }
}

#[test]
fn a_guest_that_drives_its_devices_with_nonsense_harms_nobody() {
    let bench = Bench::new(&three());
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_well(&run.body());
    let mut ids = Vec::new();
    for number in 0..CHECKPOINTS {
        std::thread::sleep(Duration::from_millis(200));
        let (id, _) = keeper.checkpoint(None, None).unwrap_or_else(|error| {
            panic!("checkpoint {number}: {error}\n{}", console_of(run.body().machine()));
        });
        ids.push(id);
        if (number + 1) % (CHECKPOINTS / JOURNEYS) == 0 {
            keeper.goto(&ids[number / 2].to_string(), None, false, false).expect("a journey");
            await_well(&run.body());
        }
    }
    assert!(run.body().machines().iter().all(|machine| machine.machine().status() == Status::Running));
    keeper.down(None).expect("it ends");
}
