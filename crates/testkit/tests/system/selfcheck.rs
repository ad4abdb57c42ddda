//! A guest that checks its own memory and disk all the time sees no difference across hundreds of checkpoints and many journeys; and no clock of a guest
//! shows the pauses.

use fermata_experiment::{Host, Status};
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
};
use fermata_timeline::Keeper;
use std::{sync::Arc, time::Duration};

const BOOT: Duration = Duration::from_secs(120);
const CHECKPOINTS: usize = 200;
const JOURNEYS: usize = 20;

/// A keeper over a bench's store, in a run directory of its own.
fn keeper(bench: &Bench) -> Arc<Keeper> {
    let host = Host::new(bench.host.store().clone(), bench.host.run_dir().join("kept")).expect("a host");
    let keeper = Keeper::new(host, bench.spec.clone());
    keeper.boot().expect("it boots");
    keeper
}

fn rounds(text: &str) -> usize {
    text.matches("selfcheck round").count()
}

#[test]
fn a_guest_that_checks_itself_sees_nothing_of_200_checkpoints_and_20_journeys() {
    let disk = guests::file("tiny-disk.raw");
    let node = format!("    image: {}\n    cpus: 2\n", disk.display());
    let bench = Bench::new(&guests::tiny("selfcheck", "fermata.run=selfcheck:48 fermata.disk=rw", &node));
    let keeper = keeper(&bench);
    let run = keeper.run(None).expect("a run");
    await_console(&run.body(), BOOT, |text| (rounds(text) > 0).then_some(()));
    let mut ids = Vec::new();
    let mut checked = 0;
    for number in 0..CHECKPOINTS {
        std::thread::sleep(Duration::from_millis(150));
        let (id, _) =
            keeper.checkpoint(None, None).unwrap_or_else(|error| panic!("checkpoint {number}: {error}\n{}", console(&run.body())));
        ids.push(id);
        if (number + 1) % (CHECKPOINTS / JOURNEYS) == 0 {
            // Each journey leaves a body; what it printed has to be looked at before.
            checked += look(&console(&run.body()));
            let target = ids[(number * 7) % ids.len()];
            keeper.goto(&target.to_string(), None, false, false).expect("a journey");
            await_console(&run.body(), BOOT, |text| (rounds(text) > 1 || text.contains("FAIL")).then_some(()));
        }
    }
    checked += look(&console(&run.body()));
    assert_eq!(run.body().machine().status(), Status::Running);
    assert!(checked > JOURNEYS * 2, "only {checked} rounds were checked");
    keeper.down(None).expect("it ends");
}

/// Rounds that were checked. Panics if one failed.
fn look(text: &str) -> usize {
    assert!(!text.contains("FAIL"), "{text}");
    rounds(text)
}
