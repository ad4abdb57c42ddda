//! The threads around a program: one for each other rank whose messages come in, one that listens to the coordinator, one that tells it things, one that saves, and one that lets
//! writers through. The program itself has the main thread, and stands still only between two steps.

use super::{
    area::{self, Area},
    links::{Address, Listener, Stream},
    messages::{Inbox, Messages, Parcel, Wants},
    mode::{Mode, Transport},
    program::{Here, Layout, Next, Program, Ranks, Shared},
    side::{Captured, Side, encode_log, log_bytes},
    wire::{BYTES_MAX, Cost, Decoder, Encoder, Frame, Greeting, Message, Pages, RANKS_MAX, Restored, Token, VERSION},
};
use fermata_checkpoint::consistent::{Answer, Calls, Ccn, Cut, Rank, Tell};
use fermata_linux::{OwnMemory, clock::Stopwatch, own_memory::Pieces};
use fermata_types::id::parse_hex;
use std::{
    env, io,
    path::Path,
    process::{self, ExitCode},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

pub mod mpi;

/// Where the coordinator is.
pub(super) const ADDRESS: &str = "FERMATA_RANKS";
/// Which rank a process is.
pub(super) const RANK: &str = "FERMATA_RANK";
/// What the coordinator knows its ranks by.
pub(super) const TOKEN: &str = "FERMATA_RANKS_TOKEN";

/// The exit status of a rank without a coordinator.
pub(super) const ABANDONED: i32 = 75;
/// Passes over the memory before a capture that is copied ahead.
const PASSES: usize = 4;
/// What is beside the state of a rank in a frame, and more.
const FRAME_ROOM: u64 = 4096;
/// With fewer written pages than this a rank is captured.
const FEW: u64 = 64;

/// The whole `main` of a program. `make` makes the program from memory that the layout gives out; it must not write to that memory, which may have come from a checkpoint.
pub fn run<P: Program>(make: impl FnOnce(&mut Layout, Here) -> io::Result<P>) -> ExitCode {
    match try_run(make) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The same for whoever says himself what went wrong. It returns when all ranks are done.
pub fn try_run<P: Program>(make: impl FnOnce(&mut Layout, Here) -> io::Result<P>) -> io::Result<()> {
    let joined = Joined::join()?;
    let here = joined.here;
    let mut layout = Layout(joined.pieces);
    let mut program = make(&mut layout, here)?;
    let (restored, mut control) = (joined.restored.as_ref(), joined.control);
    let captured = joined.every.is_some();
    let area = match begin_area(joined.memory, layout.0.used(), restored, captured) {
        Ok(area) => area,
        Err(error) => {
            // No other process would fare better.
            Frame::Failed(error.to_string()).write(&mut control)?;
            // Who hears it ends all ranks, or hangs up. One that were gone before would be taken for dead, and all would go back.
            while let Ok(Some(_)) = Frame::read(&mut control) {}
            return Err(error);
        }
    };
    let state = State::begin(joined.mode, restored, &joined.late, here.ranks)?;
    let begun = restored.is_some();
    let links = joined.links.iter().map(|link| link.as_ref().map(|link| Ok(Mutex::new(link.try_clone()?))).transpose());
    let runtime = Runtime::start(here, joined.mode, control, links.collect::<io::Result<_>>()?, state, area)?;
    for (peer, link) in joined.links.into_iter().enumerate() {
        let Some(link) = link else { continue };
        thread::spawn(move || runtime.receive(peer, link));
    }
    if let Some(every) = joined.every.filter(|_| joined.mode == Mode::Optimistic) {
        thread::spawn(move || runtime.take_own(every));
    }
    runtime.go(&mut program, begun);
    Ok(())
}

/// The memory of a rank, as large as in the checkpoint that it begins from.
fn begin_area(memory: OwnMemory, used: u64, restored: Option<&Restored>, captured: bool) -> io::Result<Arc<Area>> {
    let area = match captured {
        true => Area::watch(memory, used, restored.is_some())?,
        false => Arc::new(Area::unwatched(memory, used, restored.is_some())),
    };
    match restored.filter(|restored| restored.used != area.used()) {
        Some(restored) => Err(another_program(restored.used, area.used())),
        None => Ok(area),
    }
}

fn another_program(has: u64, used: u64) -> io::Error {
    io::Error::other(format!("the checkpoint has {has} bytes of memory, and the program lays out {used}: it is not the same program"))
}

/// A rank without a coordinator, or that cannot be saved any more, is of no use. Its coordinator sees it go.
fn end_on_error(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("rank {}: {what}: {error}", env::var(RANK).unwrap_or_default());
    }
    process::exit(ABANDONED);
}

/// A rank that knows the others.
struct Joined {
    here: Here,
    mode: Mode,
    /// Time between checkpoints; none: there are none.
    every: Option<Duration>,
    memory: OwnMemory,
    pieces: Pieces,
    control: Stream,
    links: Vec<Option<Stream>>,
    restored: Option<Restored>,
    late: Vec<Vec<u8>>,
}

impl Joined {
    fn join() -> io::Result<Self> {
        let (address, rank, token) = invitation()?;
        let rank: u32 = rank.parse().map_err(|_| invalid(RANK))?;
        let mut control = Stream::connect(&address)?;
        let listener = match &address {
            Address::Unix(path) => Listener::new(Transport::Unix, path.parent().unwrap_or(Path::new("/")), &format!("rank-{rank}"))?,
            // Who reaches the coordinator there reaches us where it does.
            Address::Tcp(_) => Listener::at(control.own_ip()?)?,
        };
        Frame::Hello { token, version: VERSION, rank, pid: process::id(), address: listener.address()?.to_string() }.write(&mut control)?;
        let Some(Frame::Start { mode, every_ns, addresses }) = Frame::read(&mut control)? else {
            return Err(invalid("what the coordinator says"));
        };
        let mode = Mode::from_byte(mode).ok_or_else(|| invalid("the way of checkpoints"))?;
        let here = Here { rank: rank as usize, ranks: addresses.len() };
        if here.rank >= here.ranks || here.ranks > RANKS_MAX {
            return Err(invalid("the number of ranks"));
        }
        let (memory, pieces) = area::reserve()?;
        let (restored, late) = Self::contents(&mut control, &mut |offset, bytes| memory.write_at(&pieces, offset, bytes))?;
        let links = meet(here, token, &control, &listener, &addresses)?;
        let every = (every_ns > 0).then(|| Duration::from_nanos(every_ns));
        Ok(Self { here, mode, every, memory, pieces, control, links, restored, late })
    }

    /// What a checkpoint has of a rank, and what was on its way to it; its memory goes to `put`, in pieces.
    fn contents(control: &mut Stream, put: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<(Option<Restored>, Vec<Vec<u8>>)> {
        let mut late = Vec::new();
        loop {
            match Frame::read(control)? {
                Some(Frame::Contents { offset, bytes }) => put(offset, &bytes)?,
                Some(Frame::Late(piece)) => late.push(piece),
                Some(Frame::Go { restored }) => return Ok((restored, late)),
                _ => return Err(invalid("what the coordinator says")),
            }
        }
    }
}

/// What `fermata run-ranks` has put into the environment: where the coordinator is, which rank this is, and the token.
fn invitation() -> io::Result<(Address, String, Token)> {
    let (address, rank, token) = (variable(ADDRESS)?, variable(RANK)?, variable(TOKEN)?);
    Ok((address.parse()?, rank, parse_hex(&token).ok_or_else(|| invalid(TOKEN))?))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is not as `fermata run-ranks` sets it"))
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|_| {
        io::Error::other("this is a program of ranks: start it with `fermata run-ranks -n RANKS PROGRAM`, which checkpoints it and takes it back when a rank dies")
    })
}

/// Connects to those before, and is connected to by those after; not without a coordinator.
fn meet(here: Here, token: Token, control: &Stream, listener: &Listener, addresses: &[String]) -> io::Result<Vec<Option<Stream>>> {
    let mut links: Vec<Option<Stream>> = (0..here.ranks).map(|_| None).collect();
    for (peer, address) in addresses.iter().enumerate().take(here.rank) {
        let connected = Stream::connect(&address.parse()?);
        let mut link =
            connected.map_err(|error| io::Error::new(error.kind(), format!("cannot reach rank {peer} at {address}: {error}")))?;
        Greeting { token, rank: here.rank as u32 }.write(&mut link)?;
        links[peer] = Some(link);
    }
    let mut missing = here.ranks - here.rank - 1;
    while missing > 0 {
        let mut link = listener.accept_while(control)?;
        // Whoever else connects says something else or nothing, and must not hold us up.
        link.set_read_timeout(Some(Duration::from_secs(5)))?;
        let Ok(greeting) = Greeting::read(&mut link) else { continue };
        link.set_read_timeout(None)?;
        let place = links.get_mut(greeting.rank as usize).filter(|place| place.is_none());
        if let Some(place) = place.filter(|_| greeting.token == token && greeting.rank as usize > here.rank) {
            *place = Some(link);
            missing -= 1;
        }
    }
    Ok(links)
}

/// What is shared by the threads of a rank.
#[derive(Debug)]
pub(super) struct Runtime {
    here: Here,
    mode: Mode,
    control: Mutex<Stream>,
    links: Vec<Option<Mutex<Stream>>>,
    state: Mutex<State>,
    changed: Condvar,
    area: Arc<Area>,
    jobs: mpsc::Sender<Job>,
    tell: mpsc::Sender<Frame>,
}

#[derive(Debug)]
struct State {
    side: Side,
    inbox: Inbox,
    /// What the program had to say when it was done.
    done: Option<String>,
    exit: bool,
    /// The checkpoint for which memory is being saved ahead of the capture.
    ahead: Option<Ccn>,
    cost: Cost,
    /// Runs since the capture.
    since: Option<Stopwatch>,
    /// Where the rank can be captured at calls only: which of them, and how many it has made.
    calls: Calls,
    made: u64,
    /// It makes no call any more.
    finished: bool,
}

#[derive(Debug)]
enum Job {
    /// Save what was captured.
    Save { captured: Captured, state: Vec<u8> },
    /// Save what was written so far, ahead of the capture.
    Ahead(Ccn),
}

impl State {
    fn of(side: Side) -> Self {
        Self {
            side,
            inbox: Inbox::default(),
            done: None,
            exit: false,
            ahead: None,
            cost: Cost::default(),
            since: None,
            calls: Calls::default(),
            made: 0,
            finished: false,
        }
    }

    /// What a checkpoint keeps of this rank beside its memory.
    fn encode(&self, cut: &Cut) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.cut(cut).u8(self.done.is_some().into());
        if let Some(done) = &self.done {
            encoder.bytes(done.as_bytes());
        }
        encoder.u64(self.inbox.iter().len() as u64);
        self.inbox.iter().for_each(|(from, parcel)| _ = encoder.u32(*from as u32).parcel(parcel));
        encoder.0
    }

    /// As it is in the beginning, or as a checkpoint has it, with what was on its way.
    fn begin(mode: Mode, restored: Option<&Restored>, late: &[Vec<u8>], ranks: usize) -> io::Result<Self> {
        let (mut cut, mut done, mut inbox) = (Cut::new(ranks), None, Inbox::default());
        if let Some(restored) = restored {
            (cut, done, inbox) = decode_state(&restored.state, ranks)?;
        }
        late.iter().try_for_each(|piece| decode_late(piece, &mut cut, &mut inbox))?;
        Ok(Self { inbox, done, ..Self::of(Side::restored(mode, restored, cut)?) })
    }

    /// Moves what the program may have into its reach. Messages of the past are for the coordinator too.
    fn deliver(&mut self) -> Vec<Answer<Shared>> {
        let mut late = Vec::new();
        while let Some((from, parcel, of_the_past)) = self.side.deliver() {
            self.inbox.push(from, parcel);
            late.extend(of_the_past);
        }
        late
    }
}

fn of_others() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the checkpoint of this rank is of another number of ranks")
}

pub(super) fn decode_state(state: &[u8], ranks: usize) -> io::Result<(Cut, Option<String>, Inbox)> {
    let mut from = Decoder(state);
    let cut = from.cut()?;
    let done = if from.u8()? == 1 { Some(from.text()?) } else { None };
    let mut inbox = Inbox::default();
    if cut.sent.len() != ranks || cut.received.len() != ranks {
        return Err(of_others());
    }
    for _ in 0..from.u64()? {
        let sender = from.u32()? as usize;
        if sender >= ranks {
            return Err(of_others());
        }
        inbox.push(sender, from.parcel()?);
    }
    from.end()?;
    Ok((cut, done, inbox))
}

/// Messages that had been sent, and had not arrived.
pub(super) fn decode_late(late: &[u8], cut: &mut Cut, inbox: &mut Inbox) -> io::Result<()> {
    let mut late = Decoder(late);
    for _ in 0..late.u64()? {
        let (sender, number) = (late.u32()? as usize, late.u64()?);
        let received = cut.received.get_mut(sender).filter(|received| **received + 1 == number).ok_or_else(of_others)?;
        *received = number;
        inbox.push(sender, late.parcel()?);
    }
    late.end()
}

/// Messages that were on their way, as a checkpoint keeps them.
pub(super) fn encode_late(late: &[(Rank, u64, Arc<Parcel>)]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    encoder.u64(late.len() as u64);
    late.iter().for_each(|(from, number, parcel)| _ = encoder.u32(*from as u32).u64(*number).parcel(parcel));
    encoder.0
}

impl Runtime {
    /// All that runs beside the program, but for what receives messages.
    fn start(
        here: Here,
        mode: Mode,
        control: Stream,
        links: Vec<Option<Mutex<Stream>>>,
        state: State,
        area: Arc<Area>,
    ) -> io::Result<&'static Self> {
        let (jobs, to_save) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let runtime = Self { here, mode, control: Mutex::new(control.try_clone()?), links, state, changed, area, jobs, tell };
        // Until the process ends: threads look at it that nobody waits for.
        let runtime: &'static Self = Box::leak(Box::new(runtime));
        thread::spawn(move || end_on_error("the coordinator", runtime.write_told(&told)));
        thread::spawn(move || end_on_error("saving", runtime.save_all(&to_save)));
        if runtime.area.is_watched() {
            thread::spawn(move || end_on_error("the memory's watch", runtime.area.serve()));
        }
        thread::spawn(move || end_on_error("the coordinator", runtime.listen(control)));
        Ok(runtime)
    }

    pub fn here(&self) -> Here {
        self.here
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the coordinator; not now, but soon.
    fn tell(&self, answers: impl IntoIterator<Item = Answer<Shared>>) {
        // Nobody takes them only where the process is about to end.
        answers.into_iter().for_each(|answer| _ = self.tell.send(Frame::Answer(self.sendable(answer))));
    }

    /// A message that no frame can carry to the coordinator is in no checkpoint: the one that it belongs to fails, and the program goes on.
    fn sendable(&self, answer: Answer<Shared>) -> Answer<Shared> {
        match answer {
            Answer::Late { ccn, ref message, .. } if message.bytes.len() as u64 + FRAME_ROOM > BYTES_MAX => {
                eprintln!("rank {}: no checkpoint, for a message of {} bytes was on its way to it", self.here.rank, message.bytes.len());
                Answer::Failure { ccn }
            }
            other => other,
        }
    }

    fn write(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.control())
    }

    fn control(&self) -> MutexGuard<'_, Stream> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_told(&self, told: &mpsc::Receiver<Frame>) -> io::Result<()> {
        told.iter().try_for_each(|frame| self.write(&frame))
    }

    // The program's thread.

    fn go(&'static self, program: &mut impl Program, begun: bool) {
        let mut ranks = Ranks { runtime: self };
        if !begun {
            program.begin(&mut ranks);
        }
        // Not within the condition: the lock would be held until the end.
        let done = self.state().done.clone();
        if let Some(done) = done {
            let _ = self.tell.send(Frame::Done(done));
            return self.attend();
        }
        loop {
            let wants = program.wants();
            if let Some(nobody) = wants.beyond(self.here.ranks) {
                self.impossible(format!("it waits for a message of {}", self.nobody(nobody)));
            }
            let Some(got) = self.next(&wants) else { return };
            match program.step(&mut ranks, got) {
                Next::Step => {}
                Next::Done(answer) => {
                    self.state().done = Some(answer.clone());
                    let _ = self.tell.send(Frame::Done(answer));
                    return self.attend();
                }
                Next::Failed(why) => {
                    let _ = self.tell.send(Frame::Failed(why));
                    return self.attend();
                }
            }
        }
    }

    /// The program asks for what cannot be, and would again: all ranks end.
    fn impossible(&self, why: String) -> ! {
        let _ = self.tell.send(Frame::Failed(why));
        loop {
            thread::park();
        }
    }

    fn nobody(&self, rank: usize) -> String {
        format!("rank {rank}, and there are ranks from 0 to {}", self.here.ranks - 1)
    }

    /// There is nothing to do but to be captured until all are done.
    fn attend(&self) {
        self.wait(|_| None::<()>);
    }

    /// The messages of the next step; none when all is over.
    fn next(&self, wants: &Wants) -> Option<Messages> {
        self.wait(|state| state.inbox.take(wants))
    }

    /// Stands between two steps until there is what is looked for: here a rank can be captured.
    fn wait<T>(&self, look: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        loop {
            if state.exit {
                return None;
            }
            if state.side.wanted().is_some() {
                state = self.capture(state);
                continue;
            }
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The instant of this rank.
    fn capture<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let watch = Stopwatch::start();
        let Some(ccn) = state.side.wanted() else { return state };
        let pages = self.area.capture(ccn, self.mode == Mode::Full).unwrap_or_else(|error| {
            eprintln!("rank {}: capturing the memory: {error}", self.here.rank);
            process::exit(ABANDONED);
        });
        let held = state.side.member().map_or(0, |member| member.held());
        let Some(captured) = state.side.captured() else { return state };
        let encoded = state.encode(&captured.cut);
        state.since = Some(watch);
        state.cost = Cost { ccn, pages, copied: 0, blocked_ns: 0, held };
        let late = state.deliver();
        // Who saves is there as long as the process is.
        let _ = self.jobs.send(Job::Save { captured, state: encoded });
        self.tell(late);
        if matches!(self.mode, Mode::Blocking | Mode::Precopy) {
            let is_waiting = |state: &State| {
                state.side.is_tentative() && !state.exit && (self.mode == Mode::Blocking || state.cost.ccn == ccn && state.since.is_some())
            };
            while is_waiting(&state) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if state.cost.ccn == ccn {
            state.cost.blocked_ns = watch.elapsed().as_nanos() as u64;
        }
        state
    }

    /// Sends a message for the program.
    pub fn send(&self, to: usize, parcel: &Shared) {
        if to >= self.here.ranks {
            self.impossible(format!("it sends a message to {}", self.nobody(to)));
        }
        if parcel.bytes.len() as u64 > BYTES_MAX {
            let bytes = parcel.bytes.len();
            self.impossible(format!("a message of {bytes} bytes to rank {to}; one may have {BYTES_MAX}: send it in pieces"));
        }
        let mut state = self.state();
        let stamp = state.side.sending(to, parcel);
        let Some(link) = &self.links[to] else {
            state.side.arrived(to, stamp, parcel.clone());
            let late = state.deliver();
            drop(state);
            return self.tell(late);
        };
        drop(state);
        let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
        if (Message { stamp, parcel: parcel.clone() }).write(&mut *link).is_err() {
            // Nobody goes on from here: the other one is gone, and the coordinator will end this one too.
            let _ = self.tell.send(Frame::Lost { peer: to as u32 });
            loop {
                thread::park();
            }
        }
    }

    // Messages of another rank.

    fn receive(&self, peer: usize, link: Stream) {
        let mut link = io::BufReader::with_capacity(64 << 10, link);
        while let Ok(Some(Message { stamp, parcel })) = Message::read(&mut link) {
            let mut state = self.state();
            state.side.arrived(peer, stamp, parcel);
            let late = state.deliver();
            drop(state);
            self.changed.notify_all();
            self.tell(late);
        }
        let _ = self.tell.send(Frame::Lost { peer: peer as u32 });
    }

    // What the coordinator says.

    fn listen(&self, control: Stream) -> io::Result<()> {
        let mut control = io::BufReader::new(control);
        while let Some(frame) = Frame::read(&mut control)? {
            match frame {
                Frame::Tell(told) => self.told(told),
                Frame::Over { ccn, permanent, received } => self.over(ccn, permanent, &received),
                Frame::Ask => self.say_calls(),
                Frame::Aim { ccn, call } => {
                    self.state().calls.aimed(ccn, call);
                    self.told(Tell::Marker(ccn));
                }
                Frame::Exit => self.state().exit = true,
                _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the coordinator says what only a rank says")),
            }
            self.changed.notify_all();
        }
        // When all is over it hangs up, and the program's thread ends the process; else nobody is left who could tell what to do.
        if self.state().exit {
            loop {
                thread::park();
            }
        }
        Ok(())
    }

    fn told(&self, told: Tell) {
        let mut state = self.state();
        match told {
            Tell::Marker(ccn) if self.mode == Mode::Precopy && state.side.ccn() < ccn => {
                if state.ahead.replace(ccn) != Some(ccn) {
                    let _ = self.jobs.send(Job::Ahead(ccn));
                }
                return;
            }
            Tell::Marker(_) => {}
            Tell::Commit(ccn) | Tell::Abort(ccn) => {
                let permanent = matches!(told, Tell::Commit(_));
                self.report_cost(&mut state, ccn);
                self.area.over(ccn, permanent);
            }
        }
        let mut answers = state.side.told(told);
        let late = state.deliver();
        if state.finished {
            answers.extend(state.give_up());
        }
        drop(state);
        self.tell(late);
        self.tell(answers);
    }

    /// A checkpoint that this rank took by itself is over.
    fn over(&self, ccn: Ccn, permanent: bool, received: &[u64]) {
        let mut state = self.state();
        self.report_cost(&mut state, ccn);
        self.area.over(ccn, permanent);
        state.side.over(ccn, received);
        drop(state);
        self.tell([Answer::Ack { ccn }]);
    }

    /// Says again and again that it is time for a checkpoint of this rank. The ranks divide the time evenly among them, so that not all write at once; the first ones come within the second half of
    /// the first interval and the first half of the next, so that each rank has taken as many in a time as if all took them together.
    fn take_own(&self, every: Duration) {
        let place = (self.here.rank as f64 + 0.5) / self.here.ranks as f64;
        thread::sleep(every.mul_f64(0.5 + place));
        loop {
            self.state().side.due();
            self.changed.notify_all();
            thread::sleep(every);
        }
    }

    fn report_cost(&self, state: &mut State, ccn: Ccn) {
        if state.cost.ccn != ccn {
            return;
        }
        let faults = self.area.faults();
        let mut cost = std::mem::take(&mut state.cost);
        cost.copied = faults.copied;
        if let (Mode::Blocking, Some(since)) = (self.mode, &state.since) {
            cost.blocked_ns = since.elapsed().as_nanos() as u64;
        }
        cost.blocked_ns += faults.waited.as_nanos() as u64;
        let _ = self.tell.send(Frame::Cost(cost));
    }

    // Saving.

    fn save_all(&self, jobs: &mpsc::Receiver<Job>) -> io::Result<()> {
        for job in jobs {
            match job {
                Job::Save { captured, state } => self.save(captured, state)?,
                Job::Ahead(ccn) => self.save_ahead(ccn)?,
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    fn save_pages(&self, ccn: Ccn) -> io::Result<()> {
        // One for all: memory that is new each time costs more than to copy to it.
        let (mut pages, mut more) = (Pages::new(ccn, area::BATCH), true);
        while more {
            pages.clear();
            more = self.area.save_some(&mut pages)?;
            if !pages.is_empty() {
                pages.write(&mut *self.control())?;
            }
        }
        Ok(())
    }

    fn save(&self, captured: Captured, state: Vec<u8>) -> io::Result<()> {
        let Captured { ccn, cut, log } = captured;
        self.save_pages(ccn)?;
        // Messages are in both: those that the program has not received, and those that it may have to send again. Nobody would read more, and the checkpoint fails; the program goes on.
        let bytes = state.len() as u64 + log.as_ref().map_or(0, log_bytes);
        let fits = bytes + FRAME_ROOM <= BYTES_MAX;
        if fits {
            self.write(&Frame::State { ccn, used: self.area.used(), state })?;
        } else {
            let rank = self.here.rank;
            eprintln!("rank {rank}: no checkpoint, for {bytes} bytes of messages wait to be received by it, or may have to be sent again");
        }
        if let Some(log) = log {
            if fits {
                return self.write(&Frame::Own { ccn, cut, log: encode_log(&log) });
            }
            // Unless it hears that this one is over it takes no other.
            self.tell([Answer::Failure { ccn }]);
            return Ok(());
        }
        let mut state = self.state();
        if self.mode == Mode::Precopy {
            state.since = None;
        }
        let answer = state.side.saved(ccn, fits);
        drop(state);
        self.tell(answer);
        Ok(())
    }

    fn save_ahead(&self, ccn: Ccn) -> io::Result<()> {
        for _ in 0..PASSES {
            // Under the lock: behind the capture nothing may be added to it.
            let state = self.state();
            if state.side.ccn() >= ccn {
                return Ok(());
            }
            let pages = self.area.capture(ccn, false)?;
            drop(state);
            self.save_pages(ccn)?;
            if pages <= FEW {
                break;
            }
        }
        let answers = self.state().side.told(Tell::Marker(ccn));
        self.tell(answers);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A rank without others, and its coordinator's end of the connection, which stays open: a rank that is abandoned ends the process.
    fn rank(mode: Mode) -> (&'static Runtime, &'static mut Stream) {
        let (near, far) = UnixStream::pair().unwrap();
        let (memory, pieces) = area::reserve().unwrap();
        let area = Arc::new(Area::unwatched(memory, pieces.used(), true));
        let state = State::begin(mode, None, &[], 1).unwrap();
        let runtime = Runtime::start(Here { rank: 0, ranks: 1 }, mode, Stream::Unix(near), vec![None], state, area).unwrap();
        (runtime, Box::leak(Box::new(Stream::Unix(far))))
    }

    fn parcel(bytes: usize) -> Shared {
        Arc::new(Parcel { tag: 0, bytes: vec![0; bytes] })
    }

    #[test]
    fn what_was_on_its_way_may_come_in_several_pieces() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let pieces: Vec<_> = (0..2).map(|from| encode_late(&[(from, 1, parcel(from)), (from, 2, parcel(8 + from))])).collect();
        let frames = pieces.clone().into_iter().map(Frame::Late).chain([Frame::Go { restored: None }]);
        frames.for_each(|frame| frame.write(&mut far).unwrap());
        let (restored, late) = Joined::contents(&mut Stream::Unix(near), &mut |_, _| Ok(())).unwrap();
        assert!(restored.is_none() && late == pieces, "{late:?}");
        let state = State::begin(Mode::Optimistic, None, &late, 2).unwrap();
        let found: Vec<_> = state.inbox.iter().map(|(from, parcel)| (*from, parcel.bytes.len())).collect();
        assert_eq!(found, [(0, 0), (0, 8), (1, 1), (1, 9)]);
        // A piece that comes twice is of another checkpoint.
        assert!(State::begin(Mode::Optimistic, None, &[late[0].clone(), late[0].clone()], 2).is_err());
    }

    #[test]
    fn messages_that_no_frame_can_carry_fail_their_checkpoint_and_nothing_else() {
        let (runtime, coordinator) = rank(Mode::Optimistic);
        let large = parcel(64 << 20);
        let log = vec![(1..=16).map(|number| (number, large.clone())).collect()];
        let captured = Captured { ccn: 1, cut: Cut::new(1), log: Some(log) };
        thread::spawn(move || runtime.save(captured, Vec::new()));
        assert_eq!(Frame::read(coordinator).unwrap(), Some(Frame::Answer(Answer::Failure { ccn: 1 })));
        // Nobody touches its bytes: they take no memory.
        runtime.tell([Answer::Late { ccn: 2, from: 0, number: 1, message: parcel(BYTES_MAX as usize) }]);
        assert_eq!(Frame::read(coordinator).unwrap(), Some(Frame::Answer(Answer::Failure { ccn: 2 })));
    }
}
