//! A guest that takes its disk away from its kernel and drives it with nonsense: QEMU, the disk's server and checkpoints live on, and so does the disk after each
//! reset. Takes a minute.

use fermata_experiment::{Host, Status};
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
};
use fermata_timeline::Keeper;
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(120);
const CHECKPOINTS: usize = 40;
const JOURNEYS: usize = 4;

fn look(text: &str) -> usize {
    assert!(!text.contains("FAIL"), "{text}");
    text.matches("hostile round").count()
}

#[test]
fn a_guest_that_drives_its_disk_with_nonsense_harms_nobody() {
    let node = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    let bench = Bench::new(&guests::tiny("hostile", "fermata.run=hostile fermata.disk=none", &node));
    let host = Host::new(bench.host.store().clone(), bench.host.run_dir().join("kept")).expect("a host");
    let keeper = Keeper::new(host, bench.spec.clone());
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_console(&run.body(), BOOT, |text| (look(text) > 0).then_some(()));
    let mut ids = Vec::new();
    for number in 0..CHECKPOINTS {
        std::thread::sleep(Duration::from_millis(300));
        let (id, _) =
            keeper.checkpoint(None, None).unwrap_or_else(|error| panic!("checkpoint {number}: {error}\n{}", console(&run.body())));
        ids.push(id);
        if (number + 1) % (CHECKPOINTS / JOURNEYS) == 0 {
            look(&console(&run.body()));
            let target = ids[number / 2];
            keeper.goto(&target.to_string(), None, false, false).expect("a journey");
            await_console(&run.body(), BOOT, |text| (look(text) > 1).then_some(()));
        }
    }
    assert_eq!(run.body().machine().status(), Status::Running);
    keeper.down(None).expect("it ends");
}
