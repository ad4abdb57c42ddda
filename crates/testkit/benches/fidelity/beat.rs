//! A guest in which something is done again and again (`guests/src/beat.c`), and its clocks against virtual time.

use fermata_experiment::{Machine, Run};
use fermata_testkit::{beats::Noted, bench::shell_output};
use fermata_types::VirtualTime;
use std::time::Duration;

pub use fermata_testkit::beats::Beat;

const PATIENCE: Duration = Duration::from_secs(120);
const FILE: &str = "/run/beat";
/// A piece of the file: the guest's agent hands over 16 MiB of output at most.
const PIECE_MIB: usize = 8;
const TIMER_HZ: f64 = 3_579_545.0;
const TIMER_END: f64 = (1 << 24) as f64;
/// After so long the timer begins anew.
const TIMER_NS: f64 = TIMER_END / TIMER_HZ * 1e9;

/// All of them, in order.
#[derive(Debug)]
pub struct Beats {
    /// Each.
    pub all: Vec<Beat>,
    /// Replies that came twice.
    pub doubled: u64,
    /// The guest's clocks meanwhile.
    pub clock: GuestTime,
}

/// A guest's clocks at one instant of virtual time, ns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    virtual_ns: f64,
    monotonic: f64,
}

/// The clocks of a guest against virtual time: lines through two points. The guest's kernel found out by itself how fast its clocks go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuestTime([Look; 2]);

impl GuestTime {
    /// From the guest's clocks and the timer at two instants, of which the first was not before this virtual time, nor a turn of the timer after it.
    fn new([begin, end]: [[i64; 3]; 2], not_before: VirtualTime) -> Self {
        let timer_ns = |look: [i64; 3]| look[1] as f64 / TIMER_HZ * 1e9;
        let look = |look: [i64; 3], virtual_ns| Look { virtual_ns, monotonic: look[0] as f64 };
        let began = not_before.ns as f64 + (timer_ns(begin) - not_before.ns as f64).rem_euclid(TIMER_NS);
        // The nearest that the timer can mean.
        let ended = began + (end[0] - begin[0]) as f64;
        let ended = ended + (timer_ns(end) - ended + TIMER_NS / 2.0).rem_euclid(TIMER_NS) - TIMER_NS / 2.0;
        Self([look(begin, began), look(end, ended)])
    }

    /// The guest's monotonic clock at this virtual time, ns.
    fn monotonic(&self, at: VirtualTime) -> f64 {
        let [begin, end] = &self.0;
        let share = (at.ns as f64 - begin.virtual_ns) / (end.virtual_ns - begin.virtual_ns);
        begin.monotonic + share * (end.monotonic - begin.monotonic)
    }
}

impl Beats {
    fn parse(bytes: &[u8], began: VirtualTime) -> Self {
        let Noted { all, doubled, looks } = Noted::parse(bytes);
        Self { all, doubled, clock: GuestTime::new(looks, began) }
    }

    /// The guest's monotonic clock at this virtual time, ns.
    pub fn guest_time(&self, at: VirtualTime) -> f64 {
        self.clock.monotonic(at)
    }
}

/// A guest that is at it.
pub struct Beating<'a> {
    run: &'a Run,
    machine: usize,
    began: VirtualTime,
}

impl<'a> Beating<'a> {
    /// Begins in this machine of the run; `mode` and `more` are its arguments before and after the file.
    pub fn begin(run: &'a Run, machine: usize, mode: &str, more: &str) -> Self {
        let began = run.time_virtual();
        sh(run.body().machines()[machine].machine(), &format!("rm -f {FILE}; setsid beat {mode} {FILE} {more} >/dev/console 2>&1 &"));
        Self { run, machine, began }
    }

    /// Ends it.
    pub fn end(self) -> Beats {
        sh(self.run.body().machines()[self.machine].machine(), "killall -TERM beat; true");
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(self) -> Beats {
        let body = self.run.body();
        let machine = body.machines()[self.machine].machine();
        sh(machine, "while pidof beat >/dev/null; do sleep 0.1; done");
        Beats::parse(&fetch(machine, FILE), self.began)
    }
}

/// A file of a guest.
fn fetch(machine: &Machine, file: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let skip = bytes.len() >> 20;
        let piece = sh(machine, &format!("dd if={file} bs=1M skip={skip} count={PIECE_MIB} 2>/dev/null"));
        bytes.extend_from_slice(&piece);
        if piece.len() < PIECE_MIB << 20 {
            return bytes;
        }
    }
}

/// Runs a script in a guest. Returns what it printed.
pub fn sh(machine: &Machine, script: &str) -> Vec<u8> {
    shell_output(machine, PATIENCE, script)
}
