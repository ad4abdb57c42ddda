//! The threads around a program: one for each other rank whose messages come in, one that listens to the coordinator, one that tells it things, one that saves, and one that lets
//! writers through. The program itself has the main thread, and stands still only between two steps.

use super::{
    area::{self, Area},
    links::{Address, Listener, Stream},
    messages::{Inbox, Messages, Parcel, Wants},
    mode::{Mode, Transport},
    program::{Here, Layout, Next, Program, Ranks, Shared},
    wire::{Cost, Decoder, Encoder, Frame, Greeting, Message, Pages, RANKS_MAX, Restored, Token},
};
use fermata_checkpoint::consistent::{Answer, Ccn, Cut, Member, Rank, Tell};
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

/// Where the coordinator is.
pub(super) const ADDRESS: &str = "FERMATA_RANKS";
/// Which rank a process is.
pub(super) const RANK: &str = "FERMATA_RANK";
/// What the coordinator knows its ranks by.
pub(super) const TOKEN: &str = "FERMATA_RANKS_TOKEN";

/// The exit status of a rank without a coordinator.
const ABANDONED: i32 = 75;
/// Passes over the memory before a capture that is copied ahead.
const PASSES: usize = 4;
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
    let restored = joined.restored.as_ref();
    let area = Area::watch(joined.memory, layout.0.used(), restored.is_some())?;
    if let Some(restored) = restored.filter(|restored| restored.used != area.used()) {
        let told = format!(
            "the checkpoint has {} bytes of memory, and the program lays out {}: it is not the same program",
            restored.used,
            area.used()
        );
        let mut control = joined.control;
        Frame::Failed(told.clone()).write(&mut control)?;
        return Err(io::Error::other(told));
    }
    let state = restored.map_or_else(|| Ok(State::new(here.ranks)), |restored| State::restored(restored, here.ranks))?;
    let begun = restored.is_some();
    let (jobs, to_save) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    let runtime = Runtime {
        here,
        mode: joined.mode,
        control: Mutex::new(joined.control.try_clone()?),
        links: joined
            .links
            .iter()
            .map(|link| link.as_ref().map(|link| Ok(Mutex::new(link.try_clone()?))).transpose())
            .collect::<io::Result<_>>()?,
        state: Mutex::new(state),
        changed: Condvar::new(),
        area,
        jobs,
        tell,
    };
    // Until the process ends: threads look at it that nobody waits for.
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    thread::spawn(move || end_on_error("the coordinator", runtime.write_told(&told)));
    thread::spawn(move || end_on_error("saving", runtime.save_all(&to_save)));
    thread::spawn(move || end_on_error("the memory's watch", runtime.area.serve()));
    for (peer, link) in joined.links.into_iter().enumerate() {
        let Some(link) = link else { continue };
        thread::spawn(move || runtime.receive(peer, link));
    }
    thread::spawn(move || end_on_error("the coordinator", runtime.listen(joined.control)));
    runtime.go(&mut program, begun);
    Ok(())
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
    memory: OwnMemory,
    pieces: Pieces,
    control: Stream,
    links: Vec<Option<Stream>>,
    restored: Option<Restored>,
}

impl Joined {
    fn join() -> io::Result<Self> {
        let (address, rank, token) = (variable(ADDRESS)?, variable(RANK)?, variable(TOKEN)?);
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{what} is not as `fermata run-ranks` sets it"));
        let address: Address = address.parse()?;
        let rank: u32 = rank.parse().map_err(|_| invalid(RANK))?;
        let token: Token = parse_hex(&token).ok_or_else(|| invalid(TOKEN))?;
        let mut control = Stream::connect(&address)?;
        let listener = match &address {
            Address::Unix(path) => Listener::new(Transport::Unix, path.parent().unwrap_or(Path::new("/")), &format!("rank-{rank}"))?,
            Address::Tcp(_) => Listener::new(Transport::Tcp, Path::new("/"), "")?,
        };
        Frame::Hello { token, rank, address: listener.address()?.to_string() }.write(&mut control)?;
        let Some(Frame::Start { mode, addresses }) = Frame::read(&mut control)? else { return Err(invalid("what the coordinator says")) };
        let mode = Mode::from_byte(mode).ok_or_else(|| invalid("the way of checkpoints"))?;
        let here = Here { rank: rank as usize, ranks: addresses.len() };
        if here.rank >= here.ranks || here.ranks > RANKS_MAX {
            return Err(invalid("the number of ranks"));
        }
        let (memory, pieces) = area::reserve()?;
        let restored = loop {
            match Frame::read(&mut control)? {
                Some(Frame::Contents { offset, bytes }) => memory.write_at(&pieces, offset, &bytes)?,
                Some(Frame::Go(restored)) => break restored,
                _ => return Err(invalid("what the coordinator says")),
            }
        };
        let links = meet(here, token, &control, &listener, &addresses)?;
        Ok(Self { here, mode, memory, pieces, control, links, restored })
    }
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
        let mut link = Stream::connect(&address.parse()?)?;
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
    member: Member<Shared>,
    inbox: Inbox,
    /// What the program had to say when it was done.
    done: Option<String>,
    exit: bool,
    /// The checkpoint for which memory is being saved ahead of the capture.
    ahead: Option<Ccn>,
    cost: Cost,
    /// Runs since the capture.
    since: Option<Stopwatch>,
}

#[derive(Debug)]
enum Job {
    /// Save what was captured.
    Save { ccn: Ccn, state: Vec<u8> },
    /// Save what was written so far, ahead of the capture.
    Ahead(Ccn),
}

impl State {
    fn new(ranks: usize) -> Self {
        Self::of(Member::new(ranks))
    }

    fn of(member: Member<Shared>) -> Self {
        Self { member, inbox: Inbox::default(), done: None, exit: false, ahead: None, cost: Cost::default(), since: None }
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

    fn restored(restored: &Restored, ranks: usize) -> io::Result<Self> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the checkpoint of this rank is of another number of ranks");
        let mut from = Decoder(&restored.state);
        let mut cut = from.cut()?;
        let done = if from.u8()? == 1 { Some(from.text()?) } else { None };
        let mut inbox = Inbox::default();
        if cut.sent.len() != ranks || cut.received.len() != ranks {
            return Err(invalid());
        }
        for _ in 0..from.u64()? {
            inbox.push(from.u32()? as usize, from.parcel()?);
        }
        from.end()?;
        // Messages of the past: they had been sent, and had not arrived.
        let mut late = Decoder(&restored.late);
        for _ in 0..late.u64()? {
            let (sender, number) = (late.u32()? as usize, late.u64()?);
            let received = cut.received.get_mut(sender).filter(|received| **received + 1 == number).ok_or_else(invalid)?;
            *received = number;
            inbox.push(sender, late.parcel()?);
        }
        late.end()?;
        Ok(Self { inbox, done, ..Self::of(Member::restored(restored.ccn, cut)) })
    }

    /// Moves what the program may have into its reach. Messages of the past are for the coordinator too.
    fn deliver(&mut self) -> Vec<Answer<Shared>> {
        let mut late = Vec::new();
        while let Some(delivery) = self.member.deliver() {
            self.inbox.push(delivery.from, delivery.message);
            late.extend(delivery.late);
        }
        late
    }
}

/// Messages of the past, as a checkpoint keeps them.
pub(super) fn encode_late(late: &[(Rank, u64, Arc<Parcel>)]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    encoder.u64(late.len() as u64);
    late.iter().for_each(|(from, number, parcel)| _ = encoder.u32(*from as u32).u64(*number).parcel(parcel));
    encoder.0
}

impl Runtime {
    pub fn here(&self) -> Here {
        self.here
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the coordinator; not now, but soon.
    fn tell(&self, answers: impl IntoIterator<Item = Answer<Shared>>) {
        // Nobody takes them only where the process is about to end.
        answers.into_iter().for_each(|answer| _ = self.tell.send(Frame::Answer(answer)));
    }

    fn write(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *self.control.lock().unwrap_or_else(PoisonError::into_inner))
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
        while let Some(got) = self.next(&program.wants()) {
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
            if state.member.wanted().is_some() {
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
        let Some(ccn) = state.member.wanted() else { return state };
        let pages = self.area.capture(ccn, self.mode == Mode::Full).unwrap_or_else(|error| {
            eprintln!("rank {}: capturing the memory: {error}", self.here.rank);
            process::exit(ABANDONED);
        });
        let Some((ccn, cut)) = state.member.captured() else { return state };
        let encoded = state.encode(&cut);
        state.since = Some(watch);
        state.cost = Cost { ccn, pages, copied: 0, blocked_ns: 0 };
        let late = state.deliver();
        // Who saves is there as long as the process is.
        let _ = self.jobs.send(Job::Save { ccn, state: encoded });
        self.tell(late);
        if matches!(self.mode, Mode::Blocking | Mode::Precopy) {
            let is_waiting = |state: &State| {
                state.member.is_tentative()
                    && !state.exit
                    && (self.mode == Mode::Blocking || state.cost.ccn == ccn && state.since.is_some())
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
        assert!(to < self.here.ranks, "there is no rank {to}: there are {}", self.here.ranks);
        let mut state = self.state();
        let (ccn, number) = state.member.sending(to);
        let Some(link) = &self.links[to] else {
            state.member.arrived(to, ccn, number, parcel.clone());
            let late = state.deliver();
            drop(state);
            return self.tell(late);
        };
        drop(state);
        let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
        if (Message { ccn, number, parcel: parcel.clone() }).write(&mut *link).is_err() {
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
        while let Ok(Some(Message { ccn, number, parcel })) = Message::read(&mut link) {
            let mut state = self.state();
            state.member.arrived(peer, ccn, number, parcel);
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
            Tell::Marker(ccn) if self.mode == Mode::Precopy && state.member.ccn() < ccn => {
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
        let answers = state.member.told(told);
        let late = state.deliver();
        drop(state);
        self.tell(late);
        self.tell(answers);
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
                Job::Save { ccn, state } => self.save(ccn, state)?,
                Job::Ahead(ccn) => self.save_ahead(ccn)?,
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    fn save_pages(&self, ccn: Ccn) -> io::Result<()> {
        let mut more = true;
        while more {
            let mut pages = Pages::new(ccn);
            more = self.area.save_some(ccn, |page, content| pages.push(page, content))?;
            if !pages.is_empty() {
                self.write(&Frame::Pages(pages))?;
            }
        }
        Ok(())
    }

    fn save(&self, ccn: Ccn, state: Vec<u8>) -> io::Result<()> {
        self.save_pages(ccn)?;
        self.write(&Frame::State { ccn, used: self.area.used(), state })?;
        let mut state = self.state();
        if self.mode == Mode::Precopy {
            state.since = None;
        }
        let answer = state.member.saved(ccn, true);
        drop(state);
        self.tell(answer);
        Ok(())
    }

    fn save_ahead(&self, ccn: Ccn) -> io::Result<()> {
        for _ in 0..PASSES {
            // Under the lock: behind the capture nothing may be added to it.
            let state = self.state();
            if state.member.ccn() >= ccn {
                return Ok(());
            }
            let pages = self.area.capture(ccn, false)?;
            drop(state);
            self.save_pages(ccn)?;
            if pages <= FEW {
                break;
            }
        }
        let answers = self.state().member.told(Tell::Marker(ccn));
        self.tell(answers);
        Ok(())
    }
}
