//! The network at work: a [`World`] behind a lock, a server for each interface, and a thread that hands frames over when they are due.
//!
//! ```text
//!   a guest kicks ──> its worker: frames into the inbox ──┐
//!   a frame is due ──> the thread of the timer ───────────┴──> turn: inbox into the world, what is due out of it, timer set
//! ```
//!
//! Whoever takes a turn has the lock of the world, and takes the lock of a receiving interface's connection for one frame. A worker has the lock of its connection
//! while it takes frames out of the guest's memory; so it leaves them in the inbox, whose lock nobody holds for longer than that, and takes its turn afterwards,
//! without any lock. A frame is in the inbox before the guest is told that it was sent. So with the rings stopped, the inbox and the world have all there is.
//!
//! Nobody waits for a guest's memory with the lock of the world: a frame for buffers that are yet to be restored waits as for a guest without
//! buffers, while the worker of that interface brings them in.

use crate::{
    Capture, Change, Clock, Handover, InterfaceId, Topology, TopologyError, Way, World,
    capture::Tap,
    counters::Traffic,
    device::{Nic, Plug, RECEIVE, Receiver},
    direction::{FRAME_COST, Frame},
};
use fermata_linux::{Timer, priority};
use fermata_types::VirtualTime;
use fermata_vhost::{Chain, DirtyPages, GuestRam, MemoryWatch, Running, Server, ServerOptions, WriteWatch, ring::Offer};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

pub use crate::device::Trouble;

/// Captures of one network at a time.
pub const CAPTURES_MAX: usize = 16;

/// Of a network whose state may be half changed.
pub(crate) const LOST: &str = "it panicked, which is a fault of Fermata's: the keeper's log tells more";

/// How an interface is served.
pub struct NicOptions {
    /// Where QEMU connects.
    pub socket: PathBuf,
    /// Where the pages of guest RAM that are written are noted. All servers of one machine share one.
    pub dirty: Arc<DirtyPages>,
    /// Whom to ask before guest RAM is touched.
    pub watch: Option<Arc<dyn MemoryWatch>>,
}

/// A network at work. Dropping it ends its connections and removes its sockets.
///
/// It begins frozen and empty, with its clock standing.
pub struct Fabric {
    // The servers go first: their workers take turns.
    servers: Vec<Server>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of a network share.
pub(crate) struct Shared {
    state: Mutex<State>,
    inbox: Mutex<Inbox>,
    /// There are taps in the inbox, or were until lately.
    tapped: AtomicBool,
    plugs: Vec<Plug>,
    clock: Arc<Clock>,
    timer: Timer,
    ending: File,
}

struct State {
    world: World,
    frozen: bool,
    /// By interface: the guest's driver has once begun to listen.
    listening: Vec<bool>,
    receiver: Receiver,
}

/// Bytes of frames of one interface that wait to be put into the world: more than there is time for between two turns, and a machine may be waited for for seconds
/// while others send.
const WAITING_MAX: usize = 16 << 20;
/// Such frames themselves. What machines sent while they were stopped is worked off in the pause, and a small frame takes as long as a large one.
const WAITING_FRAMES_MAX: usize = 8192;

/// What guests have sent that is not in the world yet; and, since this lock is that of the order of time, who notes frames as they come and go.
#[derive(Default)]
struct Inbox {
    sent: Vec<Sent>,
    /// By interface: what it has in there, and what found no room.
    waiting: BTreeMap<InterfaceId, Waiting>,
    taps: Vec<Tap>,
    /// The time of the last frame that was noted. While machines go on one after the other, the clock may be set back a little.
    noted: VirtualTime,
}

impl Inbox {
    fn note(&mut self, at: VirtualTime, interface: InterfaceId, way: Way, frame: &[u8]) {
        self.noted = self.noted.max(at);
        self.taps.iter().for_each(|tap| tap.note(self.noted, interface, way, frame));
    }
}

#[derive(Default)]
struct Waiting {
    frames: usize,
    bytes: usize,
    lost: Traffic,
}

struct Sent {
    at: VirtualTime,
    /// The same by the host's clock.
    host: Duration,
    from: InterfaceId,
    frame: Frame,
}

/// A network as it is at one instant.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Everything in it.
    pub world: World,
    /// By interface: whether the guest's driver has once begun to listen. What comes before is lost, as on a cable whose other end is switched off.
    pub listening: Vec<bool>,
    /// By interface: where its receive ring was stopped last, if anybody knows. If it goes on elsewhere, the driver has been reset in between.
    pub positions: Vec<Option<u16>>,
    /// The instant.
    pub at: VirtualTime,
}

impl Snapshot {
    /// An empty network that was never used.
    pub fn new(topology: &Topology, seed: u64) -> Result<Self, TopologyError> {
        let world = World::new(topology, seed)?;
        let count = topology.interfaces.len();
        Ok(Self { world, listening: vec![false; count], positions: vec![None; count], at: VirtualTime::default() })
    }
}

impl Fabric {
    /// Serves the interfaces of a network, in the order of its topology. The clock is the experiment's; whoever has it stops it when the machines stop.
    ///
    /// # Errors
    /// A socket or a thread cannot be had.
    pub fn start(snapshot: Snapshot, clock: Arc<Clock>, nics: Vec<NicOptions>) -> fermata_vhost::Result<Self> {
        assert_eq!(nics.len(), snapshot.listening.len(), "each interface has its options");
        let failed = |source| fermata_vhost::Error::Io { what: "cannot make what the network needs beside", path: PathBuf::new(), source };
        let shared = Arc::new(Shared::new(snapshot, clock).map_err(failed)?);
        let for_thread = shared.clone();
        let thread = thread::Builder::new().name("network".into()).spawn(move || {
            // A frame is due at its time, whoever else runs.
            priority::answer_soon();
            for_thread.run();
        });
        let thread = thread.map_err(failed)?;
        let mut fabric = Self { servers: Vec::new(), shared, thread: Some(thread) };
        for (nic, id) in nics.into_iter().zip((0..).map(InterfaceId)) {
            let NicOptions { socket, dirty, watch } = nic;
            let backend = Arc::new(Nic { id, shared: fabric.shared.clone() });
            fabric.servers.push(Server::start(&socket, ServerOptions { backend, dirty, watch })?);
        }
        Ok(fabric)
    }

    /// Tells of an interface how its rings are.
    ///
    /// # Panics
    /// If there is no such interface; so do the next two.
    pub fn running(&self, interface: InterfaceId) -> Running {
        self.servers[interface.index()].running()
    }

    /// What was wrong with an interface.
    pub fn trouble(&self, interface: InterfaceId) -> Arc<Trouble> {
        self.shared.plug(interface).trouble.clone()
    }

    /// From now on tells `watch` of the pages of guest RAM that frames are laid into. Only the first one is taken. To be called before a guest runs.
    pub fn set_write_watch(&self, interface: InterfaceId, watch: Arc<dyn WriteWatch>) {
        self.servers[interface.index()].set_write_watch(watch);
    }

    /// Why frames are handed over no more.
    pub fn failure(&self) -> Option<String> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Some("its thread has ended: the keeper's log tells more".into());
        }
        if self.shared.state.is_poisoned() {
            return Some(LOST.into());
        }
        self.servers.iter().find_map(|server| server.running().failure())
    }

    /// Its clock.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// From now on hands nothing over. What guests send is still taken. Returns whether it was so before, as it is for good after a
    /// [`failure`](Self::failure) that was a panic.
    pub fn freeze(&self) -> bool {
        self.shared.freeze()
    }

    /// The network as it is, with all that guests were told is sent. To be called while it is frozen and the machines stand still.
    ///
    /// # Panics
    /// After a panic of its own there is none: [`failure`](Self::failure) tells.
    pub fn snapshot(&self) -> Snapshot {
        self.try_snapshot().expect(LOST)
    }

    /// The same, and none after a panic.
    pub(crate) fn try_snapshot(&self) -> Option<Snapshot> {
        self.shared.snapshot()
    }

    /// All machines stand still, and so does the clock.
    pub fn machines_stand(&self) {
        self.shared.machines_stand();
    }

    /// The machines have all gone on. The clock is `at` at this time of the host, and what is on its way is due so many nanoseconds later, or
    /// earlier, than it was. It hands nothing over before [`thaw`](Self::thaw).
    pub fn machines_run(&self, at: VirtualTime, host: Duration, later: i64) {
        self.shared.machines_run(at, host, later);
    }

    /// Goes on, and the clock with it if it stands.
    pub fn thaw(&self) {
        self.shared.thaw();
    }

    /// Puts another state into a frozen network. Its clock stands at that instant.
    ///
    /// # Panics
    /// If it is a network of other interfaces, or one that has panicked.
    pub fn restore(&self, snapshot: Snapshot) {
        self.shared.restore(snapshot);
    }

    /// From now on gives the frames of its interfaces to a capture, for so long in virtual time, until the capture is dropped. False: it was not begun, since
    /// there are [`CAPTURES_MAX`] already.
    pub fn capture(&self, capture: &Arc<Capture>, time: Option<Duration>) -> bool {
        let topology = self.look(World::topology);
        let mut inbox = self.shared.inbox();
        inbox.taps.retain(Tap::is_read);
        if inbox.taps.len() >= CAPTURES_MAX {
            return false;
        }
        let until = time.map(|time| self.shared.clock.now().plus(time));
        inbox.taps.push(Tap::new(capture, &topology, until));
        self.shared.tapped.store(true, Ordering::Relaxed);
        true
    }

    /// Whether frames may still come into a capture.
    pub fn feeds(&self, capture: &Capture) -> bool {
        let inbox = self.shared.inbox();
        let now = self.shared.clock.now();
        inbox.taps.iter().any(|tap| tap.feeds(capture, now))
    }

    /// Gives frames to the captures of another network, which stands still, as well, but for those that get them already. What is left of their time is left here too.
    pub fn share_captures(&self, other: &Self) {
        let topology = self.look(World::topology);
        let (from, at) = (other.shared.clock.now(), self.shared.clock.now());
        let taps: Vec<_> = other.shared.inbox().taps.iter().filter_map(|tap| tap.elsewhere(&topology, from, at)).collect();
        let mut inbox = self.shared.inbox();
        inbox.taps.retain(Tap::is_read);
        for tap in taps {
            if !inbox.taps.iter().any(|own| own.is_like(&tap)) {
                inbox.taps.push(tap);
            }
        }
        self.shared.tapped.store(!inbox.taps.is_empty(), Ordering::Relaxed);
    }

    /// Changes the cable of an interface, from now on.
    ///
    /// # Errors
    /// No such interface, or a value that cannot be. Then nothing was changed.
    pub fn change(&self, interface: InterfaceId, change: &Change) -> Result<(), TopologyError> {
        let Some(mut state) = self.shared.state() else { return Err(TopologyError(format!("the network is served no more: {LOST}"))) };
        // Where it goes on from, if it stands: it hands nothing over before it has come there.
        let now = if state.frozen {
            self.shared.clock.instant()
        } else {
            self.shared.take_in(&mut state);
            self.shared.clock.now()
        };
        state.world.set(now, interface, change)?;
        drop(state);
        self.shared.turn(None);
        Ok(())
    }

    /// Looks at the network as it is now.
    pub fn look<R>(&self, with: impl FnOnce(&World) -> R) -> R {
        // However half done it may be, who only looks may, and there is nothing else to see.
        with(&self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).world)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.servers.clear();
        // Cannot fail but for a full counter, which wakes the thread as well.
        let _ = (&self.shared.ending).write(&1u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the network's thread had panicked");
        }
    }
}

impl Shared {
    pub(crate) fn new(snapshot: Snapshot, clock: Arc<Clock>) -> io::Result<Self> {
        let Snapshot { world, listening, positions, at } = snapshot;
        clock.set(at);
        let plugs: Vec<_> = world.topology().interfaces.iter().map(|interface| Plug::new(interface.to_string())).collect();
        plugs.iter().zip(positions).for_each(|(plug, position)| plug.set_position(position));
        Ok(Self {
            plugs,
            state: Mutex::new(State { world, frozen: true, listening, receiver: Receiver::default() }),
            inbox: Mutex::default(),
            tapped: AtomicBool::new(false),
            clock,
            timer: Timer::new()?,
            ending: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(),
        })
    }

    pub(crate) fn plug(&self, interface: InterfaceId) -> &Plug {
        &self.plugs[interface.index()]
    }

    /// None after a panic with the lock: what is half done may be a frame lost or doubled. So nobody touches it any more, and the network stands still
    /// until there is another one. Nobody panics for it either: whoever stops the network or leaves it is on the way to that other one.
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock().ok()
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Each frame is put there in one go. Whoever panicked noting it was a worker or had the world's lock, and those tell of it.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what a guest sends, now. It is seen by the next turn.
    pub(crate) fn accept(&self, from: InterfaceId, frame: Frame) {
        let mut inbox = self.inbox();
        // Under the lock, so that they lie there in the order of time.
        let (at, host) = self.clock.read();
        inbox.note(at, from, Way::Sent, &frame);
        let waiting = inbox.waiting.entry(from).or_default();
        if waiting.frames >= WAITING_FRAMES_MAX || waiting.bytes + frame.len() + FRAME_COST > WAITING_MAX {
            return waiting.lost.count(&frame);
        }
        waiting.frames += 1;
        waiting.bytes += frame.len() + FRAME_COST;
        inbox.sent.push(Sent { at, host, from, frame });
    }

    /// Has a frame noted that is in a guest's memory, before the guest is told of it: so nobody's answer is noted before the question.
    fn note_received(&self, to: InterfaceId, frame: &[u8]) {
        if !self.tapped.load(Ordering::Relaxed) {
            return;
        }
        let mut inbox = self.inbox();
        let at = self.clock.now();
        inbox.taps.retain(Tap::is_read);
        self.tapped.store(!inbox.taps.is_empty(), Ordering::Relaxed);
        inbox.note(at, to, Way::Received, frame);
    }

    /// None after a panic.
    pub(crate) fn snapshot(&self) -> Option<Snapshot> {
        let mut state = self.state()?;
        self.take_in(&mut state);
        let positions = self.plugs.iter().map(Plug::position).collect();
        Some(Snapshot { world: state.world.clone(), listening: state.listening.clone(), positions, at: self.clock.instant() })
    }

    fn restore(&self, snapshot: Snapshot) {
        assert_eq!(snapshot.listening.len(), self.plugs.len(), "a network of as many interfaces");
        let mut state = self.state().expect(LOST);
        let mut inbox = self.inbox();
        inbox.sent.clear();
        inbox.waiting.clear();
        inbox.noted = VirtualTime::default();
        let from = self.clock.now();
        inbox.taps.iter_mut().for_each(|tap| tap.shift(from, snapshot.at));
        (state.world, state.listening) = (snapshot.world, snapshot.listening);
        self.plugs.iter().zip(snapshot.positions).for_each(|(plug, position)| plug.set_position(position));
        self.clock.set(snapshot.at);
    }

    /// See [`Fabric::machines_stand`].
    fn machines_stand(&self) {
        let state = self.state();
        self.clock.stop();
        if let Some(mut state) = state {
            self.take_in(&mut state);
        }
    }

    /// See [`Fabric::machines_run`].
    fn machines_run(&self, at: VirtualTime, host: Duration, later: i64) {
        let mut state = self.state();
        let mut inbox = self.inbox();
        if let Some(state) = &mut state {
            state.world.shift(later);
        }
        self.clock.go_on(at, host);
        // They are from machines that went on before the others, while the clock stood.
        inbox.sent.iter_mut().for_each(|sent| sent.at = self.clock.at(sent.host));
    }

    fn freeze(&self) -> bool {
        self.state().is_none_or(|mut state| std::mem::replace(&mut state.frozen, true))
    }

    /// The driver of a guest has been reset, as in one that reboots: what waits for buffers that it laid in before is lost.
    pub(crate) fn reset(&self, interface: InterfaceId) {
        let lost = self.state().map_or(0, |mut state| state.world.reset(interface));
        if lost > 0 {
            self.plug(interface).trouble.note_reset(lost);
        }
    }

    pub(crate) fn thaw(&self) {
        self.clock.start();
        if let Some(mut state) = self.state() {
            state.frozen = false;
            state.world.go_on(self.clock.now());
        }
        // The network's own thread does it: guests' processors that have just been let go push aside whoever did that, with the network's lock in its hands.
        self.timer.set(Duration::ZERO).expect("a timer takes every time");
    }

    /// Puts what guests have sent into the world. Not to be called while some machines have gone on after a pause and the clock has not.
    fn take_in(&self, state: &mut State) {
        let (sent, waiting) = {
            let mut inbox = self.inbox();
            (std::mem::take(&mut inbox.sent), std::mem::take(&mut inbox.waiting))
        };
        sent.iter().for_each(|sent| state.world.put_in(sent.at, sent.from, &sent.frame));
        waiting.iter().for_each(|(from, waiting)| state.world.note_lost(*from, waiting.lost));
    }

    /// Does what there is to do now. The guest of `retry` may have buffers again.
    pub(crate) fn turn(&self, retry: Option<InterfaceId>) {
        let Some(mut state) = self.state() else { return };
        if let Some(interface) = retry {
            state.world.retry(interface);
        }
        // Whoever sends then may have gone on before others, and what time it is for that frame is known only when the clock goes on.
        if state.frozen {
            return;
        }
        self.take_in(&mut state);
        let State { world, listening, receiver, .. } = &mut *state;
        let now = self.clock.now();
        // What was sent last before a pause may have been later than what the clock goes on from.
        if now >= world.now() {
            world.deliver(now, &mut |interface, frame| self.hand_over(interface, frame, listening, receiver));
        }
        let set = self.due(world).map_or_else(|| self.timer.clear(), |at| self.timer.set(at));
        set.expect("a timer takes every time");
    }

    /// The host's time at which the next turn is to be taken, if nothing is sent until then and the clock runs.
    fn due(&self, world: &World) -> Option<Duration> {
        world.next_due().and_then(|at| self.clock.host_time(at))
    }

    /// Hands a frame to a guest.
    fn hand_over(&self, to: InterfaceId, frame: &[u8], listening: &mut [bool], receiver: &mut Receiver) -> Handover {
        let Plug { link, trouble, .. } = self.plug(to);
        let link = link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut has_it = false;
        let lay = |ram: &GuestRam, chain: Chain<'_>| {
            let laid = receiver.lay(ram, chain, frame, trouble);
            has_it = laid.as_ref().is_ok_and(|bytes| *bytes > 0);
            if has_it {
                self.note_received(to, frame);
            }
            laid
        };
        let offer = link.map_or(Offer::Stopped, |link| link.offer(RECEIVE, lay));
        let listening = &mut listening[to.index()];
        *listening |= offer != Offer::Stopped;
        match offer {
            Offer::Taken if has_it => Handover::Taken,
            Offer::Taken => Handover::Lost,
            // A ring that stopped will run again; one that never ran has nobody behind it.
            _ if *listening => Handover::Waits,
            _ => {
                trouble.note_unheard();
                Handover::Lost
            }
        }
    }

    /// The thread that hands over what becomes due.
    fn run(&self) {
        loop {
            let mut polled = [PollFd::new(&self.ending, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(error = %io::Error::from(error), "the network cannot wait for what is due");
                    return;
                }
            }
            if !polled[0].revents().is_empty() {
                return;
            }
            if !polled[1].revents().is_empty() {
                // It is readable until it is set anew.
                if let Err(error) = self.timer.clear() {
                    tracing::error!(%error, "the network's timer cannot be cleared");
                    return;
                }
                self.turn(None);
            }
        }
    }
}

#[cfg(test)]
mod properties;
