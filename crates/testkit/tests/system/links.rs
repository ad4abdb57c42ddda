//! Links that are changed while they are in use, by hand and by events, and what a `goto` makes of it.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

#[test]
fn links_change_by_hand_and_by_events_and_change_back_on_a_journey() {
    let cli = Cli::new();
    let (a, b) = ("    interfaces: {eth1: {ipv4: 10.9.0.1/24}}\n", "    interfaces: {eth1: {ipv4: 10.9.0.2/24}}\n    clock: +2h\n");
    let nodes = guests::several("links", 128, &[("a", "fermata.run=none", a), ("b", "fermata.run=none", b)]);
    let links = "links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n";
    let events = "events:\n  - {at: 30s, exec: b, run: \"echo here >> /tmp/event\"}\n  - {at: 30s, link: \"a:eth1\", delay: 30ms}\n";
    cli.write("links.yaml", &format!("{nodes}{links}{events}"));
    cli.ok(&["up", "links.yaml"]);
    let early = cli.checkpoint("early");
    let delay = || count(&cli.json(&["link", "b:eth1"])[0]["received"]["shape"]["delay_ns"]);
    assert_eq!(delay(), 10_000_000);
    for journey in 0..2 {
        let happened = || cli.shell("b", "cat /tmp/event 2>/dev/null || true") == "here" && delay() == 30_000_000;
        await_that("the events happen, once each", SOON, happened);
        let time = || count(&cli.json(&["ls"])[0]["runs"][0]["time_virtual_ns"]);
        assert!(time() >= 30_000_000_000, "{}", time());
        let late = cli.checkpoint("late");
        if journey == 0 {
            let answers = || cli.shell("a", "ping -c 1 -W 2 10.9.0.2 >/dev/null && echo back || true") == "back";
            await_that("the guests have their addresses", SOON, answers);
            let clock = |machine: &str| cli.shell(machine, "date +%s").parse::<i64>().expect("seconds");
            assert!((clock("b") - clock("a") - 7200).abs() < 60, "{} and {}", clock("a"), clock("b"));
            cli.ok(&["goto", &late]);
            assert_eq!(delay(), 30_000_000, "a link is restored as it was");
            cli.ok(&["goto", &early]);
            assert_eq!(delay(), 10_000_000, "and as it was before");
        }
    }
    assert_eq!(cli.shell("b", "cat /tmp/event"), "here", "what had happened at the checkpoint did not happen again");

    let ends = cli.json(&["link", "a:eth1", "--delay", "50ms", "--loss", "2%", "--sent"]);
    assert_eq!((array(&ends).len(), string(&ends[0]["to"])), (1, "b:eth1"));
    assert_eq!(count(&ends[0]["sent"]["shape"]["delay_ns"]), 50_000_000);
    assert_eq!(count(&ends[0]["sent"]["shape"]["loss"]), 20_000_000);
    assert_eq!(count(&ends[0]["received"]["shape"]["delay_ns"]), 30_000_000);
    assert_eq!(delay(), 50_000_000, "the other end of the same cable");
    assert_eq!(cli.json(&["link", "main:a:eth1", "--down"])[0]["up"], false);
    assert!(cli.ok(&["link"]).contains("down"));
    assert_eq!(cli.json(&["link", "b:eth1", "--up"])[0]["up"], true);
    cli.fails(&["link", "a:eth7"], 1, &["no interface \"a:eth7\"", "a:eth1, b:eth1"]);
    cli.fails(&["link", "--delay", "1ms"], 1, &["name one of its interfaces"]);
    cli.fails(&["link", "a:eth1", "--jitter", "1h"], 1, &["nothing was changed", "jitter"]);
    cli.ok(&["down"]);
}
