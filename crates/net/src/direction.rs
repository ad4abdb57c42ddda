//! One direction of a cable: a queue, a transmitter, and the frames on their way.

use crate::{
    codel::Codel,
    counters::Counters,
    perturb::Later,
    queue::{Queue, Waiting},
    random::Random,
    topology::{Chance, Discipline, Shape},
};
use std::{collections::VecDeque, sync::Arc};

/// A frame from the destination's address on, without a check sequence. Copies share their bytes.
pub(crate) type Frame = Arc<[u8]>;

/// Bytes of an Ethernet header.
pub(crate) const HEADER: usize = 14;
/// Bytes that a frame may have beyond the MTU: the header and a VLAN tag.
const BEYOND_MTU: usize = HEADER + 4;
/// Frames that a receiver without buffers is kept: what comes then is dropped, or the last of whoever has more there.
pub(crate) const LANDED_MAX: usize = 1024;
/// What a frame counts beside its bytes against the memory of a world.
pub(crate) const FRAME_COST: usize = 64;

const NS_PER_S: u64 = 1_000_000_000;
/// Time for which a direction stood is made good within so many times of it.
const MADE_GOOD_IN: u64 = 8;
/// More than this is not: what is overdue by more happens at once, and nothing is late by more for the sake of what came before it.
const MADE_GOOD_MAX_NS: u64 = 20_000_000;

/// The memory that frames may take.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    held: usize,
    /// What each direction may hold whatever the others do.
    own: usize,
}

impl Memory {
    /// Bytes of all frames of a world: half of it is for whoever comes first, the other half is divided among the directions, so that a
    /// flood in one of them leaves the others room.
    pub const MAX: usize = 256 << 20;

    pub fn new(directions: usize) -> Self {
        Self { held: 0, own: Self::MAX / 2 / directions.max(1) }
    }

    fn take(&mut self, held: &mut usize, frame: &Frame) -> bool {
        let cost = frame.len() + FRAME_COST;
        let room = *held + cost <= self.own || self.held + cost <= Self::MAX / 2;
        if room {
            *held += cost;
            self.held += cost;
        }
        room
    }

    /// Takes a frame that was admitted before: in another order than now, so it is not asked for room again.
    fn take_again(&mut self, held: &mut usize, frame: &Frame) {
        *held += frame.len() + FRAME_COST;
        self.held += frame.len() + FRAME_COST;
    }

    /// Whether directions that hold so much can have come to it, in whichever order. One that holds more than its own took the last of that
    /// when all together held no more than the common half; so those that do hold no more than that half now.
    pub fn can_hold(&self, held: impl Iterator<Item = usize>) -> bool {
        held.filter(|held| *held > self.own).sum::<usize>() <= Self::MAX / 2
    }
}

/// A frame on its way.
#[derive(Debug, Clone)]
pub(crate) struct Flying {
    pub due: u64,
    /// As of one that waits.
    pub from: u32,
    pub frame: Frame,
}

/// One direction of a cable. All times are virtual, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Direction {
    pub shape: Shape,
    pub up: bool,
    pub random: Random,
    /// In a replay that is to be another: by how much frames are late.
    pub later: Option<Later>,
    pub codel: Codel,
    pub counters: Counters,
    /// When the transmitter is free: at `free_at`, and `fraction` times 1/rate ns later.
    pub free_at: u64,
    pub fraction: u64,
    /// When the last of the frames that keep their order is due.
    pub last_due: u64,
    pub queue: Queue,
    /// In the order in which they are due.
    pub flying: VecDeque<Flying>,
    /// At the far end, where the guest has no buffer for them yet.
    pub landed: Queue,
    /// Bytes of the longest frame that both ends allow.
    longest: usize,
    held: usize,
}

impl Direction {
    /// An empty direction that takes frames of packets of at most `mtu` bytes.
    pub fn new(shape: Shape, mtu: u16, random: Random) -> Self {
        Self {
            shape,
            up: true,
            random,
            later: None,
            codel: Codel::default(),
            counters: Counters::default(),
            free_at: 0,
            fraction: 0,
            last_due: 0,
            queue: Queue::default(),
            flying: VecDeque::new(),
            landed: Queue::default(),
            longest: usize::from(mtu) + BEYOND_MTU,
            held: 0,
        }
    }

    /// Whether a frame of this many bytes can be anywhere in here.
    pub fn allows(&self, bytes: usize) -> bool {
        (HEADER..=self.longest).contains(&bytes)
    }

    /// Frames in here.
    pub fn in_flight(&self) -> u64 {
        (self.queue.len() + self.flying.len() + self.landed.len()) as u64
    }

    /// When something is to be done here: see [`step`](Self::step).
    pub fn next(&self) -> Option<u64> {
        let transmission = (!self.queue.is_empty()).then_some(self.free_at);
        let arrival = self.flying.front().map(|flying| flying.due);
        transmission.into_iter().chain(arrival).min()
    }

    /// A time before which nothing arrives at the far end. Nobody has to look after transmissions at the time at which they begin.
    pub fn earliest_arrival(&self) -> Option<u64> {
        let flight = if self.shape.reorder == Chance::NEVER { self.shape.delay_ns - self.shape.jitter_ns } else { 0 };
        let waiting = (!self.queue.is_empty()).then_some(self.free_at.saturating_add(flight));
        waiting.into_iter().chain(self.flying.front().map(|flying| flying.due)).min()
    }

    /// Puts a frame in at the near end. If that is a switch, it came in there at the port `from`.
    pub fn enter(&mut self, now: u64, from: u32, frame: &Frame, memory: &mut Memory) {
        self.counters.sent.count(frame);
        let dropped = &mut self.counters.dropped;
        if frame.len() < HEADER {
            dropped.runt += 1;
        } else if frame.len() > self.longest {
            dropped.giant += 1;
        } else if !self.up {
            dropped.down += 1;
        } else if self.random.happens(self.shape.loss) {
            dropped.loss += 1;
        } else {
            if self.random.happens(self.shape.duplicate) {
                self.counters.duplicated += 1;
                self.wait(now, from, frame, memory);
            }
            self.wait(now, from, frame, memory);
        }
    }

    fn wait(&mut self, now: u64, from: u32, frame: &Frame, memory: &mut Memory) {
        if !self.make_room(from, memory) {
            self.counters.dropped.queue += 1;
        } else if !memory.take(&mut self.held, frame) {
            self.counters.dropped.memory += 1;
        } else {
            self.queue.push(Waiting { since: now, from, frame: frame.clone() });
            if self.free_at <= now {
                self.transmit(now, memory);
            }
        }
    }

    /// Whether another frame finds room in the queue. In a full one, a frame makes room that somebody else has too many of.
    fn make_room(&mut self, from: u32, memory: &mut Memory) -> bool {
        if self.queue.len() < self.shape.queue as usize {
            return true;
        }
        let evicted = self.queue.evict_for(from);
        if let Some(evicted) = &evicted {
            self.counters.dropped.queue += 1;
            self.release(&evicted.frame, memory);
        }
        evicted.is_some()
    }

    /// Does the first of the things that are to be done at the time of [`next`](Self::next): a frame arrives and is returned, or another
    /// begins to be transmitted. An arriving frame is still held.
    pub fn step(&mut self, memory: &mut Memory) -> Option<Flying> {
        let now = self.next()?;
        if self.flying.front().is_some_and(|flying| flying.due <= now) {
            return self.flying.pop_front();
        }
        self.transmit(now, memory);
        None
    }

    /// Begins to transmit the next of the queue, and settles when it will arrive.
    fn transmit(&mut self, now: u64, memory: &mut Memory) {
        let Some(Waiting { from, frame, .. }) = self.dequeue(now, memory) else { return };
        let departs = self.occupy(now, frame.len());
        let (later, own) = self.later.as_mut().map_or((0, false), |later| (later.draw(), later.order));
        let due = if self.random.happens(self.shape.reorder) {
            departs.saturating_add(later)
        } else {
            let spread = self.random.up_to(2 * self.shape.jitter_ns);
            let due = departs.saturating_add(self.shape.delay_ns - self.shape.jitter_ns).saturating_add(spread);
            if own {
                self.last_due = self.last_due.max(due);
                self.last_due.saturating_add(later)
            } else {
                self.last_due = self.last_due.max(due.saturating_add(later));
                self.last_due
            }
        };
        let place = self.flying.partition_point(|flying| flying.due <= due);
        self.counters.reordered += u64::from(place < self.flying.len());
        self.flying.insert(place, Flying { due, from, frame });
    }

    fn dequeue(&mut self, now: u64, memory: &mut Memory) -> Option<Waiting> {
        let Self { queue, codel, counters, held, .. } = self;
        match self.shape.discipline {
            Discipline::DropTail => queue.pop(),
            Discipline::Codel => codel.dequeue(now, queue, self.longest, |frame| {
                counters.dropped.discipline += 1;
                release(held, frame, memory);
            }),
        }
    }

    /// The time at which the last bit has left. What divides into no whole nanosecond is carried over to the next frame if that follows at
    /// once, so that the rate is exact for frames of any size.
    fn occupy(&mut self, now: u64, bytes: usize) -> u64 {
        let Some(rate) = self.shape.rate else {
            (self.free_at, self.fraction) = (now, 0);
            return now;
        };
        let carried = if self.free_at == now { self.fraction } else { 0 };
        let work = bytes as u64 * 8 * NS_PER_S + carried;
        self.free_at = now.saturating_add(work / rate);
        self.fraction = work % rate;
        self.free_at
    }

    /// A frame is at the far end, and waits there until the guest has a buffer for it. Where as many wait as are kept, one makes room that somebody else has too many
    /// of: else a guest that floods another one faster than that takes frames would have all of them, whoever sends there besides.
    pub fn land(&mut self, Flying { from, frame, .. }: Flying, memory: &mut Memory) {
        if self.landed.len() >= LANDED_MAX {
            self.counters.dropped.receiver += 1;
            let Some(evicted) = self.landed.evict_for(from) else { return self.release(&frame, memory) };
            self.release(&evicted.frame, memory);
        }
        self.landed.push(Waiting { since: 0, from, frame });
    }

    /// A frame has left, in whichever way.
    pub fn release(&mut self, frame: &Frame, memory: &mut Memory) {
        release(&mut self.held, frame, memory);
    }

    /// Counts frames that were put into the lists from outside. Returns the bytes that it holds then.
    pub fn hold(&mut self, memory: &mut Memory) -> usize {
        let Self { queue, flying, landed, held, .. } = self;
        let waiting = queue.frames().into_iter().chain(landed.frames()).map(|waiting| &waiting.frame);
        waiting.chain(flying.iter().map(|flying| &flying.frame)).for_each(|frame| memory.take_again(held, frame));
        *held
    }

    /// Drops what waits at the far end for buffers. Returns how many frames that were.
    pub fn clear_door(&mut self, memory: &mut Memory) -> u64 {
        let landed = std::mem::take(&mut self.landed);
        landed.frames().into_iter().for_each(|waiting| self.release(&waiting.frame, memory));
        self.counters.dropped.door += landed.len() as u64;
        landed.len() as u64
    }

    /// Treats the frames that are transmitted from now on as the shape says.
    pub fn reshape(&mut self, shape: Shape) {
        if shape.rate != self.shape.rate {
            self.fraction = 0;
        }
        if shape.discipline != self.shape.discipline {
            self.codel = Codel::default();
        }
        self.shape = shape;
    }

    /// Moves all its times.
    pub fn shift(&mut self, moved: impl Fn(u64) -> u64) {
        [&mut self.free_at, &mut self.last_due].into_iter().for_each(|at| *at = moved(*at));
        self.queue.shift(&moved);
        self.flying.iter_mut().for_each(|flying| flying.due = moved(flying.due));
        self.codel.shift(moved);
    }

    /// Goes on at this time after it stood: see [`World::go_on`](crate::World::go_on).
    pub fn go_on(&mut self, now: u64) {
        let (Some(first), Some(arrival)) = (self.next(), self.earliest_arrival()) else { return };
        let late = now.saturating_sub(arrival).min(MADE_GOOD_MAX_NS);
        if late == 0 {
            return;
        }
        // What has been stays: a transmitter that is free takes the next frame when it is sent.
        let moved = |at: u64| at.saturating_add(late.saturating_sub(at.saturating_sub(arrival) / MADE_GOOD_IN));
        self.shift(|at| if at < first { at } else { moved(at) });
    }

    /// Plugs the cable in, or out: then what is on it is lost, and so is all that it would have held up.
    pub fn plug(&mut self, up: bool, memory: &mut Memory) {
        self.up = up;
        if up {
            return;
        }
        while let Some(frame) = self.queue.pop().map(|waiting| waiting.frame).or_else(|| self.flying.pop_front().map(|flying| flying.frame))
        {
            self.counters.dropped.down += 1;
            self.release(&frame, memory);
        }
        // Nothing waits for a frame that is no more: neither for its end nor for its turn to arrive.
        (self.free_at, self.fraction, self.last_due) = (0, 0, 0);
        self.codel = Codel::default();
    }
}

fn release(held: &mut usize, frame: &Frame, memory: &mut Memory) {
    *held -= frame.len() + FRAME_COST;
    memory.held -= frame.len() + FRAME_COST;
}
