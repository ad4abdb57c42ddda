//! A replicated service on three machines: Redis with two replicas, and a client whose writes count as acknowledged when all three have them. No
//! checkpoint and no `goto` loses such a write or does one twice, and the service never notices: its logs stay as they were.
//!
//! Ten checkpoints and three journeys; 200 and 50 with `FERMATA_LONG=1`.

use fermata_experiment::{Body, Journey, Machine};
use fermata_testkit::{
    Bench,
    bench::{self, await_console_of, console_of},
    cli::await_that,
    guests, is_long,
    measure::number_after,
};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(240);
const MEMORY_MIB: u32 = 192;
/// Between two checkpoints, so that there is always something under way.
const BETWEEN: Duration = Duration::from_millis(200);
/// Writes that the client does before it is looked at again.
const MORE: f64 = 20.0;

fn three() -> String {
    let ip = |host: u32| format!("fermata.ip=eth1:10.0.0.{host}/24");
    let runs = ["redis", "redis:10.0.0.1", "redis:10.0.0.1,ledger:10.0.0.1:2"];
    let runs: Vec<_> = runs.iter().zip(1..).map(|(run, host)| format!("fermata.run={run} {}", ip(host))).collect();
    let nodes = [("master", runs[0].as_str(), ""), ("replica", runs[1].as_str(), ""), ("third", runs[2].as_str(), "")];
    let links = "links:\n  - {lan: backbone, endpoints: [\"master:eth1\", \"replica:eth1\", \"third:eth1\"], rate: 1Gbit}\n";
    guests::several_of(guests::SERVICES, "replicated", MEMORY_MIB, &nodes) + links
}

fn machines(body: &Body) -> [&Machine; 3] {
    [0, 1, 2].map(|place| &**body.machines()[place].machine())
}

fn sh(machine: &Machine, script: &str) -> String {
    bench::shell(machine, BOOT, script)
}

/// What the client said last of how many writes were acknowledged.
fn acknowledged(text: &str) -> Option<f64> {
    assert!(!text.contains("FERMATA FAIL"), "{text}");
    let whole = &text[..text.rfind('\n')?];
    whole.lines().rev().find_map(|line| number_after(line, "ledger wrote "))
}

/// Waits until so many more writes are acknowledged than at present.
fn await_more(body: &Body) {
    let client = machines(body)[2];
    let before = acknowledged(&console_of(client)).unwrap_or_default();
    await_console_of(client, BOOT, |text| acknowledged(text).filter(|now| *now > before + MORE));
}

/// How much the service has written into its logs.
fn logs(body: &Body) -> [String; 3] {
    machines(body).map(|machine| sh(machine, "wc -l </run/redis.log"))
}

/// Stops the client for a moment, and compares what the three have: every number once, in order, up to the same one, and all that was acknowledged.
fn agree(body: &Body) -> u64 {
    let all = machines(body);
    sh(all[2], "killall -STOP ledger");
    let heard = acknowledged(&console_of(all[2])).unwrap_or_default() as u64;
    // Prints how many there are, unless one is not what its place says.
    let count = "redis-cli --raw lrange ledger 0 -1 | awk '$1 != NR {print \"write \" $1 \" at \" NR; exit} END {print NR}'";
    let counts = || all.map(|machine| sh(machine, count));
    // What the client had under way when it stopped is still on its way.
    await_that("all three have the same", BOOT, || counts().windows(2).all(|pair| pair[0] == pair[1]));
    let counts = counts();
    let last: u64 = counts[0].parse().unwrap_or_else(|_| panic!("{counts:?}"));
    assert!(last >= heard, "{heard} writes were acknowledged, and there are {counts:?}");
    sh(all[2], "killall -CONT ledger");
    last
}

#[test]
fn a_replicated_service_loses_and_repeats_nothing_and_notices_nothing() {
    let (checkpoints, journeys) = if is_long() { (200, 50) } else { (10, 3) };
    let bench = Bench::new(&three());
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_more(&run.body());
    let quiet = logs(&run.body());
    let mut ids = Vec::new();
    for number in 0..checkpoints {
        std::thread::sleep(BETWEEN);
        ids.push(keeper.checkpoint(None, None).unwrap_or_else(|error| panic!("checkpoint {number}: {error}")).0);
        // As evenly among the checkpoints as can be.
        if (number + 1) * journeys / checkpoints > number * journeys / checkpoints {
            await_more(&run.body());
            assert_eq!(logs(&run.body()), quiet, "the service noticed a checkpoint");
            keeper.goto(&ids[(number * 7919) % ids.len()].to_string(), None, Journey::default()).expect("a journey");
            await_more(&run.body());
            let writes = agree(&run.body());
            println!("after checkpoint {number} and a journey all three have {writes} writes");
            assert_eq!(logs(&run.body()), quiet, "the service noticed a journey");
        }
    }
    keeper.down(None).expect("it ends");
}
