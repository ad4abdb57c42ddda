//! How much interfaces receive over virtual time, seen from the network itself.

use super::pace::Pace;
use fermata_experiment::Run;
use fermata_net::InterfaceId;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Bytes that each of some interfaces had received at an instant of virtual time, s.
pub struct Sight {
    /// The instant.
    pub at: f64,
    /// By interface.
    pub bytes: Vec<u64>,
}

/// Looks at it while something is done.
pub fn during<T: Send>(run: &Run, machines: &[&str], work: impl FnOnce() -> T + Send) -> (T, Vec<Sight>) {
    let body = run.body();
    let fabric = body.fabric().expect("there is a network");
    let find = |machine: &&str| fabric.look(|world| world.topology().find(machine, "eth1")).expect("it has this interface");
    let interfaces: Vec<InterfaceId> = machines.iter().map(find).collect();
    let look = |ended: &AtomicBool| {
        let mut sights = Vec::new();
        while !ended.load(Ordering::Relaxed) {
            let of = |id: &InterfaceId| fabric.look(|world| world.counters(*id)).map_or(0, |[_, received]| received.arrived.bytes);
            let bytes = interfaces.iter().map(of).collect();
            sights.push(Sight { at: run.time_virtual().ns as f64 / 1e9, bytes });
            thread::sleep(BETWEEN_LOOKS);
        }
        sights
    };
    beside(look, work)
}

/// Works, and has another thread look on until that has ended, in whichever way.
pub fn beside<T, L: Send>(look: impl FnOnce(&AtomicBool) -> L + Send, work: impl FnOnce() -> T) -> (T, L) {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = &AtomicBool::new(false);
    thread::scope(|scope| {
        let looking = scope.spawn(move || look(ended));
        let done = {
            let _ends = Ends(ended);
            work()
        };
        (done, looking.join().expect("nobody panics who looks"))
    })
}

/// Mbit/s of one interface in each span of this many seconds of virtual time: where it begins, and the rate.
pub fn rates(sights: &[Sight], interface: usize, span: f64) -> Vec<(f64, f64)> {
    let mut rates = Vec::new();
    let Some(mut begin) = sights.first() else { return rates };
    for sight in sights {
        let passed = sight.at - begin.at;
        if passed >= span {
            rates.push((begin.at, (sight.bytes[interface] - begin.bytes[interface]) as f64 * 8.0 / passed / 1e6));
            begin = sight;
        }
    }
    rates
}

/// The rates in windows with checkpoints, and in those without.
pub fn by_kind(rates: &[(f64, f64)], pace: &Pace) -> [Vec<f64>; 2] {
    let of = |with: bool| {
        let inside = |at: f64| pace.has(at, with);
        rates.iter().filter(|(at, _)| inside(*at)).map(|(_, rate)| *rate).collect()
    };
    [of(true), of(false)]
}
