//! Whether guests notice checkpoints: lost time, sleeps, computing, ping, TCP and BitTorrent with and without them; and how exact links are.
//!
//! As section 7.1 of "Transparent Checkpoints of Closed Distributed Systems in Emulab" (2009). Arguments name what is to be measured of it:
//! `lost`, `deterministic`, `sleep`, `cpu`, `ping`, `link`, `tcp`, `narrow`, `bittorrent`; all of it takes some hour and three quarters. The disk is the affair of
//! `./bench disk`. Pictures go into `target/bench`.
//!
//! Needs Debian packages: tshark
//! Needs guests: services

mod fidelity {
    pub mod beat;
    pub mod bittorrent;
    pub mod capture;
    pub mod computing;
    pub mod link;
    pub mod pace;
    pub mod picture;
    pub mod ping;
    pub mod sleep;
    pub mod tcp;
    pub mod time;
    pub mod traffic;
}

use fermata_testkit::report::Report;
use fidelity::{bittorrent, computing, link, pace, ping, sleep, tcp, time};

/// A part of it.
type Measure = fn(&mut Report);

/// What can be measured, by name.
const PARTS: [(&str, Measure); 9] = [
    ("lost", time::lost),
    ("deterministic", time::deterministic),
    ("sleep", sleep::sleep),
    ("cpu", computing::cpu),
    ("ping", ping::ping),
    ("link", link::link),
    ("tcp", tcp::gigabit),
    ("narrow", tcp::narrow),
    ("bittorrent", bittorrent::bittorrent),
];

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let names = PARTS.map(|(name, _)| name);
    if let Some(unknown) = wanted.iter().find(|wanted| !names.contains(&wanted.as_str())) {
        panic!("nothing is called {unknown}; there are {}", names.join(", "));
    }
    let mut report = Report::new("fidelity");
    for (name, measure) in PARTS {
        // All of them where none is named.
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            measure(&mut report);
        }
    }
    report.note(format!("checkpoints every {} s where nothing else is said; times are the guests' own", pace::INTERVAL.as_secs()));
    report.note("the paper: Xen on 3 GHz Xeons, which stops for much longer; a guest under emulation is slower and its timers are coarser");
    report.print();
}
