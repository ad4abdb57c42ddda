//! A fork must not draw its parent's random numbers; a journey back must.

use fermata_experiment::Journey;
use fermata_testkit::{Bench, bench::await_console, guests};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(120);
const SAME: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };
const FRESH: Journey = Journey { fresh_randomness: true, ..SAME };

/// Attempts at an instant that the guest's kernel does not happen to follow with a reseeding of its own: while it is young it does so every few seconds.
const INSTANTS: usize = 6;

#[test]
fn forks_draw_numbers_of_their_own_and_journeys_the_same_again() {
    let bench = Bench::new(&guests::generic("randomness", "fermata.run=random", ""));
    let run = bench.boot();
    let mut same_again = false;
    for instant in 1..=INSTANTS {
        await_console(&run.body(), BOOT, |text| (text.matches("random ").count() >= 4 * instant).then_some(()));
        let (id, record) = run.checkpoint(None).expect("a checkpoint");
        // The number that the guest was at may be half drawn at the checkpoint; the next one is not.
        let draw = |name: &str, how| {
            let copy = bench.arrive(name, &id, &record, how);
            await_console(&copy.body(), BOOT, |text| {
                let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
                whole.lines().filter_map(|line| line.strip_prefix("random ")).nth(1).map(str::to_owned)
            })
        };
        let (first, second) = (draw("first", FRESH), draw("second", FRESH));
        let (again, once_more) = (draw("again", SAME), draw("once-more", SAME));
        assert_ne!(first, second, "two forks drew the same number");
        assert_ne!(first, again, "a fork drew its parent's number");
        same_again |= again == once_more;
        if same_again {
            break;
        }
    }
    assert!(same_again, "the same instant drew different numbers, {INSTANTS} times");
}
