//! A rank of a program of MPI: the protocol and the captured memory, for an interposition library that carries the messages.
//!
//! Whoever carries messages puts in front of each what [`MpiRank::head`] says, and hands over here what arrives, all of it; the program takes from here. Between `MPI_Init` and the first call at which the rank can be
//! captured the protocol knows nothing of messages: that part of a program runs again in every life. At the first call the memory becomes what a checkpoint has, if there is one, and the channels
//! begin where the checkpoint left them.

use super::{
    ADDRESS, Answer, Here, Inbox, Joined, MutexGuard, Parcel, PoisonError, RANKS_MAX, Runtime, Shared, State, begin_area, invalid,
    invitation, of_others,
};
use crate::ranks::{
    area,
    links::Stream,
    mode::Mode,
    wire::{Decoder, Encoder, Frame, VERSION},
};
use fermata_checkpoint::consistent::{Chance, Rank};
use fermata_linux::{OwnMemory, clock::Stopwatch, own_memory::Pieces};
use std::{env, io, process, sync::Arc, time::Duration};

/// Bytes in front of a message: the sender's CCN (8), the message's number on its channel (8), its context (4), its tag (4); little-endian.
pub const HEAD: usize = 24;
/// In the context of a message: its sender waits until it is received. It is found as one without.
const SYNCHRONOUS: u32 = 1 << 31;
/// How long a rank may wait for a message of anyone while one is held.
const LONG: Duration = Duration::from_millis(100);

/// Which message is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Which {
    /// Who sent it; none: anyone.
    pub from: Option<Rank>,
    /// In which context it was sent.
    pub context: u32,
    /// Its tag; none: any.
    pub tag: Option<i32>,
}

/// A message that has arrived.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Who sent it.
    pub from: Rank,
    parcel: Shared,
}

impl Arrival {
    /// In which context it was sent, and whether its sender waits.
    pub fn context(&self) -> u32 {
        self.parcel.tag
    }

    /// Its tag.
    pub fn tag(&self) -> i32 {
        tag(&self.parcel)
    }

    /// What was sent.
    pub fn bytes(&self) -> &[u8] {
        &self.parcel.bytes[TAG..]
    }
}

/// A parcel's tag is the context; that of MPI comes first in its bytes.
const TAG: usize = 4;

/// Whether a parcel has the tag that those of MPI have.
fn is_message(parcel: &Parcel) -> bool {
    parcel.bytes.len() >= TAG
}

fn tag(parcel: &Parcel) -> i32 {
    parcel.bytes.first_chunk().map_or(0, |tag| i32::from_le_bytes(*tag))
}

/// A rank.
#[derive(Debug)]
pub struct MpiRank {
    here: Here,
    pieces: Pieces,
    /// Until the first call.
    memory: Option<OwnMemory>,
    control: Option<Stream>,
    /// Of before the first call, and where there is no coordinator.
    inbox: Inbox,
    runtime: Option<&'static Runtime>,
    /// Messages that were there when it was looked last.
    seen: usize,
    /// Runs since a message was asked for in vain.
    vain: Option<Stopwatch>,
}

impl MpiRank {
    /// Comes to its coordinator. Without `fermata run-ranks` there is none: then the program runs as if it were not there.
    pub fn join(here: Here) -> io::Result<Self> {
        if here.rank >= here.ranks || here.ranks > RANKS_MAX {
            return Err(io::Error::other(format!("rank {} of {}: there can be from 1 to {RANKS_MAX}", here.rank, here.ranks)));
        }
        let control = if env::var_os(ADDRESS).is_some() {
            let (address, _, token) = invitation()?;
            let mut control = Stream::connect(&address)?;
            Frame::Hello { token, version: VERSION, rank: here.rank as u32, pid: process::id(), address: String::new() }
                .write(&mut control)?;
            Some(control)
        } else {
            None
        };
        let (memory, pieces) = area::reserve()?;
        Ok(Self { here, pieces, memory: Some(memory), control, inbox: Inbox::default(), runtime: None, seen: 0, vain: None })
    }

    /// Memory that is captured, zeros in the beginning. Only before the first call; the same pieces in the same order in every life.
    pub fn take(&mut self, bytes: usize) -> io::Result<&'static mut [u8]> {
        if self.memory.is_none() {
            return Err(io::Error::other("memory is to be taken before the first call of fermata_mpi_checkpoint"));
        }
        self.pieces.take(bytes)
    }

    /// Bytes that were taken, in whole.
    pub fn used(&self) -> u64 {
        self.pieces.used()
    }

    /// The first call: all ranks are at it, and have received all that was sent before. `put` gets what a checkpoint has in the memory, in pieces with their offsets; the rest of it is zero. Returns whether there
    /// was a checkpoint.
    pub fn begin(&mut self, put: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        let memory = self.memory.take().ok_or_else(|| io::Error::other("it has begun already"))?;
        let left = self.inbox.iter().len();
        if left > 0 {
            return Err(io::Error::other(format!(
                "{left} messages to rank {} were sent before the first call of fermata_mpi_checkpoint, and are not received there: receive them before it, for what is before it is done again after a failure",
                self.here.rank
            )));
        }
        let Some(mut control) = self.control.take() else { return Ok(false) };
        let Some(Frame::Start { mode, every_ns, addresses }) = Frame::read(&mut control)? else {
            return Err(invalid("what the coordinator says"));
        };
        let mode = Mode::from_byte(mode).ok_or_else(|| invalid("the way of checkpoints"))?;
        if addresses.len() != self.here.ranks {
            return Err(of_others());
        }
        let (restored, late) = Joined::contents(&mut control, put)?;
        let area = match begin_area(memory, self.used(), restored.as_ref(), every_ns > 0) {
            Ok(area) => area,
            Err(error) => {
                // Whoever made the call says why.
                self.control = Some(control);
                return Err(error);
            }
        };
        let state = State::begin(mode, restored.as_ref(), &late, self.here.ranks)?;
        if state.inbox.iter().any(|(_, parcel)| !is_message(parcel)) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the checkpoint has a message that no program of MPI sent"));
        }
        let links = (0..self.here.ranks).map(|_| None).collect();
        self.runtime = Some(Runtime::start(self.here, mode, control, links, state, area)?);
        Ok(restored.is_some())
    }

    /// What goes in front of a message to a rank.
    pub fn head(&mut self, to: Rank, context: u32, tag: i32) -> io::Result<[u8; HEAD]> {
        if to >= self.here.ranks {
            return Err(io::Error::other(format!("there is no rank {to}: there are {}", self.here.ranks)));
        }
        let (ccn, number) = self.runtime.and_then(|runtime| Some(runtime.state().side.member()?.sending(to))).unwrap_or((0, 0));
        let mut head = Encoder::default();
        head.u64(ccn).u64(number).u32(context).u32(tag as u32);
        head.0.try_into().map_err(|_| io::Error::other("a head of another length"))
    }

    /// A message has arrived, with its head.
    pub fn arrived(&mut self, from: Rank, message: &[u8]) -> io::Result<()> {
        let mut head = Decoder(message);
        let (ccn, number, context) = (head.u64()?, head.u64()?, head.u32()?);
        let parcel = Arc::new(Parcel { tag: context, bytes: head.0.to_vec() });
        if !is_message(&parcel) {
            return Err(invalid("what came from another rank"));
        }
        let Some(runtime) = self.runtime else {
            self.inbox.push(from, parcel);
            return Ok(());
        };
        let mut state = runtime.state();
        if let Some(member) = state.side.member() {
            member.arrived(from, ccn, number, parcel);
        }
        let late = state.deliver();
        drop(state);
        runtime.tell(late);
        Ok(())
    }

    /// Looks what has come. Only that is found from now on: messages that were held come at any time, and who asks for several, one after the other, would find the second for the first.
    pub fn look(&mut self) {
        self.seen = match self.runtime {
            Some(runtime) => runtime.state().inbox.iter().len(),
            None => self.inbox.iter().len(),
        };
    }

    /// The first message that is meant, if it may be had and was there at the last [`look`](Self::look); it stays here unless it is taken.
    pub fn find(&mut self, which: Which, take: bool) -> Option<Arrival> {
        let fits = |from: Rank, parcel: &Parcel| {
            parcel.tag & !SYNCHRONOUS == which.context
                && which.from.is_none_or(|wanted| from == wanted)
                && which.tag.is_none_or(|wanted| tag(parcel) == wanted)
        };
        let found = match self.runtime {
            Some(runtime) => runtime.state().inbox.find(fits, self.seen, take),
            None => self.inbox.find(fits, self.seen, take),
        };
        let (from, parcel) = found?;
        self.seen -= usize::from(take);
        self.vain = None;
        Some(Arrival { from, parcel })
    }

    /// A message of this rank, or of anyone, was asked for in vain, and the program is not at a call.
    pub fn in_vain(&mut self, from: Option<Rank>) {
        let Some(runtime) = self.runtime else { return };
        let long = self.vain.get_or_insert_with(Stopwatch::start).elapsed() > LONG;
        let mut state = runtime.state();
        let State { side, calls, .. } = &mut *state;
        let answer = side.member().and_then(|member| calls.in_vain(member, from, long, self.here.ranks));
        drop(state);
        runtime.tell(answer);
    }

    /// The rank is at a call, its `made`th: here it is captured, if it is time.
    pub fn call(&mut self, made: u64) {
        self.vain = None;
        if let Some(runtime) = self.runtime {
            runtime.call(made);
        }
    }

    /// The program is at its end, and all messages have arrived everywhere. Returns when all ranks are there.
    pub fn finish(&mut self) -> io::Result<()> {
        if self.control.is_some() {
            return Err(io::Error::other(
                "the program is at its end and has not called fermata_mpi_checkpoint: every rank calls it at least once, or none can be captured",
            ));
        }
        if let Some(runtime) = self.runtime {
            runtime.finish();
        }
        Ok(())
    }

    /// The program cannot go on, and trying again would not mend it.
    pub fn fail(&mut self, why: &str) {
        let frame = Frame::Failed(why.to_owned());
        // If it cannot be said the coordinator is gone already.
        let _ = match (self.runtime, &mut self.control) {
            (Some(runtime), _) => runtime.write(&frame),
            (None, Some(control)) => frame.write(control),
            (None, None) => Ok(()),
        };
    }
}

impl State {
    pub(super) fn give_up(&mut self) -> Option<Answer<Shared>> {
        let Self { side, calls, .. } = self;
        side.member().and_then(|member| calls.give_up(member))
    }
}

impl Runtime {
    /// Tells the coordinator how many calls this rank has made; not if it makes no more.
    pub(super) fn say_calls(&self) {
        let state = self.state();
        if !state.finished {
            let _ = self.tell.send(Frame::Calls { made: state.made });
        }
    }

    fn call(&self, made: u64) {
        let mut state = self.state();
        state.made = made;
        while !state.exit {
            let State { side, calls, .. } = &mut *state;
            match side.member().map_or(Chance::Pass, |member| calls.come(made, member)) {
                Chance::Pass => return,
                Chance::Capture => {
                    state = self.capture(state);
                    return drop(state);
                }
                Chance::Wait => state = self.wait_for_change(state),
            }
        }
    }

    fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self) {
        let mut state = self.state();
        state.finished = true;
        let answer = state.give_up();
        self.tell(answer);
        let _ = self.tell.send(Frame::Done(String::new()));
        while !state.exit {
            state = self.wait_for_change(state);
        }
    }
}
