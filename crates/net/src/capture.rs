//! Captures: what goes through some interfaces is noted beside the network, for somebody to read who may be slow.

use crate::{
    pcapng::{self, Packet, Recorded, Way},
    topology::{Interface, InterfaceId, Topology},
};
use fermata_types::VirtualTime;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

/// Frames that wait to be read, and bytes in them.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Bytes that are read at once, or those of one frame.
const READ_BYTES: usize = 64 << 10;

/// A capture under way, read as pcapng. It never holds up whoever has a frame for it: when too many wait to be read, those that come are counted and left out.
///
/// Times in it are virtual time, from 1970 on. After going back to a checkpoint they go on from there. A frame that a guest sends has the time at which it was taken
/// from the guest, one that it receives the time at which it was laid into its memory.
#[derive(Debug)]
pub struct Capture {
    interfaces: Vec<Interface>,
    queue: Mutex<Queue>,
    noted: Condvar,
}

#[derive(Debug)]
struct Queue {
    frames: VecDeque<Noted>,
    bytes: usize,
    /// Frames that are still wanted; none: any number.
    wanted: Option<u64>,
    /// By interface.
    recorded: Vec<Recorded>,
    /// Frames missed until then were told of.
    told: Vec<u64>,
    last: VirtualTime,
}

#[derive(Debug)]
struct Noted {
    interface: u32,
    at: VirtualTime,
    way: Way,
    frame: Box<[u8]>,
}

impl Capture {
    /// A capture of these interfaces, for so many frames.
    pub fn new(interfaces: Vec<Interface>, frames: Option<u64>) -> Self {
        let count = interfaces.len();
        let queue = Queue {
            frames: VecDeque::new(),
            bytes: 0,
            wanted: frames,
            recorded: vec![Recorded::default(); count],
            told: vec![0; count],
            last: VirtualTime::default(),
        };
        Self { interfaces, queue: Mutex::new(queue), noted: Condvar::new() }
    }

    /// How the file begins: the section and the interfaces.
    pub fn beginning(&self) -> Vec<u8> {
        let interfaces = self.interfaces.iter().map(pcapng::interface);
        [pcapng::section()].into_iter().chain(interfaces).collect::<Vec<_>>().concat()
    }

    /// What the file goes on with: as many blocks as are there, after waiting so long for the first. Empty if there is none. Where frames were missed, it says so.
    pub fn read(&self, wait: Duration) -> Vec<u8> {
        let nothing = |queue: &mut Queue| queue.frames.is_empty() && queue.wanted != Some(0);
        let (mut queue, _) = self.noted.wait_timeout_while(self.queue(), wait, nothing).unwrap_or_else(PoisonError::into_inner);
        let mut noted = Vec::new();
        let mut bytes = 0;
        while bytes < READ_BYTES
            && let Some(next) = queue.frames.pop_front()
        {
            bytes += next.frame.len();
            noted.push(next);
        }
        queue.bytes -= bytes;
        let mut missed = Vec::new();
        let Queue { recorded, told, last, .. } = &mut *queue;
        for (interface, (recorded, told)) in (0..).zip(recorded.iter().zip(told)) {
            if recorded.missed != *told {
                *told = recorded.missed;
                missed.push((interface, *last, *recorded));
            }
        }
        drop(queue);
        let packet =
            |Noted { interface, at, way, frame }: &Noted| pcapng::packet(Packet { interface: *interface, at: *at, way: *way, frame });
        let missed = missed.into_iter().map(|(interface, at, recorded)| pcapng::statistics(interface, at, recorded));
        noted.iter().map(packet).chain(missed).collect::<Vec<_>>().concat()
    }

    /// Whether it has all the frames that were wanted, or gets no more since its reader panicked.
    pub fn is_full(&self) -> bool {
        self.queue.is_poisoned() || self.queue().wanted == Some(0)
    }

    /// How the file ends: what became of the frames of each interface.
    pub fn end(&self) -> Vec<u8> {
        let queue = self.queue();
        let recorded = (0..).zip(&queue.recorded);
        recorded.map(|(interface, recorded)| pcapng::statistics(interface, queue.last, *recorded)).collect::<Vec<_>>().concat()
    }

    fn note(&self, interface: u32, at: VirtualTime, way: Way, frame: &[u8]) {
        // It has to do without a capture in which somebody panicked: with the network's own locks held, nobody may panic in turn.
        let Ok(mut queue) = self.queue.lock() else { return };
        if queue.wanted == Some(0) {
            return;
        }
        queue.last = at;
        if queue.frames.len() >= WAITING_MAX || queue.bytes + frame.len() > WAITING_BYTES_MAX {
            queue.recorded[interface as usize].missed += 1;
            return;
        }
        queue.recorded[interface as usize].written += 1;
        queue.wanted = queue.wanted.map(|wanted| wanted - 1);
        queue.bytes += frame.len();
        queue.frames.push_back(Noted { interface, at, way, frame: frame.into() });
        self.noted.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a capture gets its frames. It is over when nobody has the capture any more.
#[derive(Debug)]
pub(crate) struct Tap {
    capture: Weak<Capture>,
    /// By interface of the network: its number in the capture.
    numbers: Vec<Option<u32>>,
    /// What is later is not wanted.
    until: Option<VirtualTime>,
}

impl Tap {
    /// None of the capture's interfaces may be there.
    pub fn new(capture: &Arc<Capture>, topology: &Topology, until: Option<VirtualTime>) -> Self {
        let same = |one: &Interface, other: &Interface| (&one.machine, &one.name) == (&other.machine, &other.name);
        let number = |own: &Interface| capture.interfaces.iter().position(|wanted| same(wanted, own)).map(|number| number as u32);
        Self { capture: Arc::downgrade(capture), numbers: topology.interfaces.iter().map(number).collect(), until }
    }

    /// The same for another network, whose clock stands at `at` where this one's stands at `from`. None if it is over.
    pub fn elsewhere(&self, topology: &Topology, from: VirtualTime, at: VirtualTime) -> Option<Self> {
        Some(Self::new(&self.capture.upgrade()?, topology, self.until.map(|until| moved(until, from, at))))
    }

    /// Time jumps.
    pub fn shift(&mut self, from: VirtualTime, to: VirtualTime) {
        self.until = self.until.map(|until| moved(until, from, to));
    }

    /// Whether somebody reads it.
    pub fn is_read(&self) -> bool {
        self.capture.strong_count() > 0
    }

    /// Whether it is the same capture's.
    pub fn is_like(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.capture, &other.capture)
    }

    /// Whether it is this capture's, and frames may come.
    pub fn feeds(&self, capture: &Capture, now: VirtualTime) -> bool {
        let hopes = self.until.is_none_or(|until| now <= until) && self.numbers.iter().any(Option::is_some);
        hopes && std::ptr::eq(self.capture.as_ptr(), capture)
    }

    /// Takes note of a frame.
    pub fn note(&self, at: VirtualTime, interface: InterfaceId, way: Way, frame: &[u8]) {
        if let Some(Some(number)) = self.numbers.get(interface.index())
            && self.until.is_none_or(|until| at <= until)
            && let Some(capture) = self.capture.upgrade()
        {
            capture.note(*number, at, way, frame);
        }
    }
}

/// As far from `to` as `until` is from `from`.
fn moved(until: VirtualTime, from: VirtualTime, to: VirtualTime) -> VirtualTime {
    VirtualTime::from_ns(to.ns.saturating_add(until.ns.saturating_sub(from.ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, topology::Mac};

    const NOW: Duration = Duration::ZERO;

    fn capture(frames: Option<u64>) -> Arc<Capture> {
        Arc::new(Capture::new(topology(&["a", "b"]).interfaces, frames))
    }

    fn topology(machines: &[&str]) -> Topology {
        let interface = |(number, machine): (u8, &&str)| Interface {
            machine: (*machine).into(),
            name: "eth1".into(),
            mac: Mac([2, 0, 0, 0, 0, number]),
            mtu: 1500,
        };
        Topology { interfaces: (0..).zip(machines).map(interface).collect(), ..Topology::default() }
    }

    fn at(ns: u64) -> VirtualTime {
        VirtualTime::from_ns(ns)
    }

    fn blocks(mut bytes: &[u8]) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        while let Some((block, length)) = pcapng::read(bytes).unwrap() {
            blocks.push(block);
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty());
        blocks
    }

    #[test]
    fn what_was_noted_is_read() {
        let capture = capture(None);
        let beginning = capture.beginning();
        assert_eq!(blocks(&beginning), [Block::Section, Block::Interface("a:eth1".into()), Block::Interface("b:eth1".into())]);
        assert!(capture.read(NOW).is_empty());
        let tap = Tap::new(&capture, &topology(&["0", "b", "a"]), None);
        for (number, interface) in [2, 0, 1].into_iter().enumerate() {
            tap.note(at(number as u64), InterfaceId(interface), Way::Sent, &[interface as u8; 60]);
        }
        let read = capture.read(NOW);
        let packet = |interface, time, frame| Block::Packet(Packet { interface, at: at(time), way: Way::Sent, frame });
        assert_eq!(blocks(&read), [packet(0, 0, &[2; 60]), packet(1, 2, &[1; 60])]);
        let one = Recorded { written: 1, missed: 0 };
        assert_eq!(blocks(&capture.end()), [Block::Statistics(0, at(2), one), Block::Statistics(1, at(2), one)]);
    }

    #[test]
    fn a_slow_reader_misses_frames_and_is_told() {
        for bytes in [60, 9000] {
            let capture = capture(None);
            let tap = Tap::new(&capture, &topology(&["a"]), None);
            let total = 3 * WAITING_MAX as u64;
            (0..total).for_each(|time| tap.note(at(time), InterfaceId(0), Way::Received, &vec![0; bytes]));
            let (mut packets, mut told) = (0, Vec::new());
            loop {
                let read = capture.read(NOW);
                if read.is_empty() {
                    break;
                }
                assert!(read.len() <= 2 * READ_BYTES, "{} bytes at once", read.len());
                for block in blocks(&read) {
                    match block {
                        Block::Packet(packet) => {
                            assert_eq!(packet.at, at(packets));
                            packets += 1;
                        }
                        Block::Statistics(0, _, recorded) => told.push(recorded),
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert_eq!(packets, WAITING_MAX.min(WAITING_BYTES_MAX / bytes) as u64);
            assert_eq!(told, [Recorded { written: packets, missed: total - packets }]);
        }
    }

    #[test]
    fn a_capture_is_full_or_its_time_is_over() {
        let capture = capture(Some(2));
        let mut tap = Tap::new(&capture, &topology(&["a"]), Some(at(20)));
        tap.note(at(20), InterfaceId(0), Way::Sent, &[1; 60]);
        tap.note(at(21), InterfaceId(0), Way::Sent, &[2; 60]);
        assert!(!capture.is_full() && tap.feeds(&capture, at(20)) && !tap.feeds(&capture, at(21)));
        tap.shift(at(15), at(7));
        assert!(tap.feeds(&capture, at(12)) && !tap.feeds(&capture, at(13)));
        let elsewhere = tap.elsewhere(&topology(&["b"]), at(10), at(100)).unwrap();
        elsewhere.note(at(102), InterfaceId(0), Way::Sent, &[3; 60]);
        assert!(capture.is_full());
        elsewhere.note(at(102), InterfaceId(0), Way::Sent, &[4; 60]);
        assert_eq!(blocks(&capture.read(NOW)).len(), 2);
        assert!(capture.read(Duration::MAX).is_empty(), "nobody waits for what is not wanted");
        let nowhere = tap.elsewhere(&topology(&["c"]), at(10), at(10)).unwrap();
        assert!(!nowhere.feeds(&capture, at(10)));
        drop(capture);
        assert!(!tap.is_read());
        assert!(tap.elsewhere(&topology(&["a"]), at(10), at(10)).is_none());
    }
}
