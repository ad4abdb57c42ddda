//! Ranks that wait between their calls, over channels and control connections that keep their order: every order of events for small programs, in which a checkpoint may begin and all may
//! go back at any time. Every program comes to its end, and sees each message once and in its turn.

use super::{super::Coordinator, super::Member, super::Order, super::Tell, super::Whole, *};
use crate::explore::{self, Numbers, World as _};
use std::collections::VecDeque;

/// What a message is: who sent it to whom as which.
type Message = (Rank, Rank, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    Call,
    Send(Rank),
    Receive(Rank),
    ReceiveAny,
}
use Op::{Call, Receive, ReceiveAny, Send};

/// A program: what each rank does in a round, and how many rounds.
#[derive(Debug, Clone, Copy)]
struct Program {
    ops: &'static [&'static [Op]],
    rounds: &'static [usize],
    /// What is sent in a round is received in that round or later, and all go through as many.
    in_step: bool,
    /// There is a checkpoint between the first call and the last.
    fits: bool,
}

/// Two that exchange, and one that looks on.
const EXCHANGE: Program = Program {
    ops: &[&[Call, Send(1), Receive(1)], &[Call, Send(0), Send(2), Receive(0)], &[Call, Receive(1)]],
    rounds: &[2, 2, 2],
    in_step: true,
    fits: true,
};
/// One after the other, the first far ahead.
const PIPELINE: Program =
    Program { ops: &[&[Call, Send(1)], &[Call, Receive(0), Send(2)], &[Call, Receive(1)]], rounds: &[2, 2, 2], in_step: true, fits: true };
/// Two that work for whoever asks first.
const MASTER: Program =
    Program { ops: &[&[Call, ReceiveAny], &[Call, Send(0)], &[Call, Send(0), Send(0)]], rounds: &[3, 1, 1], in_step: false, fits: true };
/// Whichever calls are taken, one has received what another sends later: there can be no checkpoint but before and behind all.
const NEVER: Program =
    Program { ops: &[&[Call, Send(1), Receive(1)], &[Receive(0), Call, Send(0)]], rounds: &[3, 3], in_step: false, fits: false };

/// What the memory of a rank has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Memory {
    at: usize,
    made: u64,
    sent: Vec<u64>,
    got: Vec<u64>,
    inbox: VecDeque<Message>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Told {
    Aim(Ccn, u64),
    Tell(Tell),
}

#[derive(Debug, Clone)]
struct World {
    program: Program,
    coordinator: Coordinator<Message>,
    members: Vec<Member<Message>>,
    calls: Vec<Calls>,
    memories: Vec<Memory>,
    /// By sender and receiver.
    channels: Vec<Vec<VecDeque<(Ccn, Message)>>>,
    told: Vec<VecDeque<Told>>,
    answers: Vec<VecDeque<Answer<Message>>>,
    captured: Vec<Option<Memory>>,
    permanent: Option<(Whole<Message>, Vec<Memory>)>,
    /// A rank has heard of the checkpoint on its way when it had passed the call.
    overtaken: bool,
    begins: u8,
    crashes: u8,
    /// What was seen, and is no part of the state.
    seen: Seen,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    late: usize,
    held: u64,
    given_up: usize,
    permanent: usize,
}

impl std::hash::Hash for World {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.coordinator, &self.members, &self.calls, &self.memories, &self.channels, &self.told, &self.answers).hash(state);
        (&self.captured, &self.permanent, self.overtaken, self.begins, self.crashes).hash(state);
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// At its next call, or from this one on.
    Begin(u64),
    Run(Rank),
    /// The rank has waited long.
    InVain(Rank),
    Arrive(Rank, Rank),
    Hear(Rank),
    Answer(Rank),
    Crash,
}

impl World {
    fn new(program: Program, begins: u8, crashes: u8) -> Self {
        let ranks = program.ops.len();
        let memory = Memory { at: 0, made: 0, sent: vec![0; ranks], got: vec![0; ranks], inbox: VecDeque::new() };
        Self {
            program,
            coordinator: Coordinator::new(ranks, 0, 1),
            members: vec![Member::new(ranks); ranks],
            calls: vec![Calls::default(); ranks],
            memories: vec![memory; ranks],
            channels: vec![vec![VecDeque::new(); ranks]; ranks],
            told: vec![VecDeque::new(); ranks],
            answers: vec![VecDeque::new(); ranks],
            captured: vec![None; ranks],
            permanent: None,
            overtaken: false,
            begins,
            crashes,
            seen: Seen::default(),
        }
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    /// What a rank does next; none: it is at its end.
    fn op(&self, rank: Rank) -> Option<Op> {
        let (ops, at) = (self.program.ops[rank], self.memories[rank].at);
        (at < ops.len() * self.program.rounds[rank]).then(|| ops[at % ops.len()])
    }

    /// Which message it would take.
    fn find(&self, rank: Rank) -> Option<usize> {
        let inbox = &self.memories[rank].inbox;
        match self.op(rank)? {
            Receive(wanted) => inbox.iter().position(|(from, ..)| *from == wanted),
            ReceiveAny if inbox.is_empty() => None,
            ReceiveAny => Some(0),
            Call | Send(_) => None,
        }
    }

    fn can_run(&self, rank: Rank) -> bool {
        match self.op(rank) {
            None => false,
            Some(Send(_)) => true,
            Some(Call) => self.calls[rank].come(self.memories[rank].made + 1, &self.members[rank]) != Chance::Wait,
            Some(Receive(_) | ReceiveAny) => self.find(rank).is_some(),
        }
    }

    fn run(&mut self, rank: Rank) {
        match self.op(rank).expect("it can run") {
            Send(to) => {
                let (ccn, number) = self.members[rank].sending(to);
                let memory = &mut self.memories[rank];
                memory.sent[to] += 1;
                assert_eq!(number, memory.sent[to], "the channel does not stand where the program does");
                self.channels[rank][to].push_back((ccn, (rank, to, number)));
            }
            Call => {
                self.memories[rank].made += 1;
                if self.calls[rank].come(self.memories[rank].made, &self.members[rank]) == Chance::Capture {
                    self.capture(rank);
                }
            }
            Receive(_) | ReceiveAny => {
                let place = self.find(rank).expect("it can run");
                let memory = &mut self.memories[rank];
                let (from, to, number) = memory.inbox.remove(place).expect("it was found");
                memory.got[from] += 1;
                assert_eq!((to, number), (rank, memory.got[from]), "lost, doubled or out of turn");
            }
        }
        self.memories[rank].at += 1;
        if self.op(rank).is_none() {
            let answer = self.calls[rank].give_up(&self.members[rank]);
            self.answers[rank].extend(answer);
        }
    }

    fn capture(&mut self, rank: Rank) {
        self.seen.held += self.members[rank].held();
        // It goes on behind the call.
        let mut memory = self.memories[rank].clone();
        memory.at += 1;
        self.captured[rank] = Some(memory);
        let (ccn, _) = self.members[rank].captured().expect("it is wanted");
        // How long it takes to save is gone through where the protocol is.
        let answer = self.members[rank].saved(ccn, true);
        self.answers[rank].extend(answer);
        self.deliver(rank);
    }

    fn deliver(&mut self, rank: Rank) {
        while let Some(delivery) = self.members[rank].deliver() {
            self.memories[rank].inbox.push_back(delivery.message);
            self.answers[rank].extend(delivery.late);
        }
    }

    /// What it would tell, now that it has waited.
    fn vain(&self, rank: Rank) -> Option<(Calls, Answer<Message>)> {
        let from = match self.op(rank)? {
            Receive(from) => Some(from),
            ReceiveAny => None,
            Call | Send(_) => return None,
        };
        let mut calls = self.calls[rank].clone();
        let answer = self.find(rank).is_none().then(|| calls.in_vain(&self.members[rank], from, true, self.ranks())).flatten()?;
        Some((calls, answer))
    }

    /// What is of no interest when it arrives does so at once: in which order coordinator and members hear of each other is gone through where the protocol is.
    fn hurry(&mut self) {
        for rank in 0..self.ranks() {
            while let Some(answer) = self.answers[rank].pop_front_if(|answer| !matches!(answer, Answer::Failure { .. })) {
                let orders = self.coordinator.heard(rank, answer);
                self.follow(orders);
            }
        }
        for rank in 0..self.ranks() {
            while self.told[rank].front().is_some_and(|told| matches!(told, Told::Tell(Tell::Commit(_) | Tell::Marker(_)))) {
                self.hear(rank);
                self.hurry();
            }
        }
    }

    fn is_overtaken(&self) -> bool {
        let passed =
            |(told, memory): (&VecDeque<Told>, &Memory)| told.iter().any(|told| matches!(told, Told::Aim(_, call) if memory.made >= *call));
        self.overtaken || self.told.iter().zip(&self.memories).any(passed)
    }

    fn follow(&mut self, orders: Vec<Order<Message>>) {
        for order in orders {
            match order {
                Order::Tell(rank, told) => self.told[rank].push_back(Told::Tell(told)),
                Order::Persist(whole) => self.persist(whole),
                Order::Over { .. } => assert!(self.members.iter().all(|member| !member.is_tentative())),
            }
        }
    }

    fn hear(&mut self, rank: Rank) {
        match self.told[rank].pop_front().expect("something was told") {
            Told::Aim(ccn, call) => {
                self.overtaken |= self.memories[rank].made >= call;
                self.calls[rank].aimed(ccn, call);
                self.told(rank, Tell::Marker(ccn));
            }
            Told::Tell(told) => self.told(rank, told),
        }
    }

    fn told(&mut self, rank: Rank, told: Tell) {
        let answers = self.members[rank].told(told);
        self.answers[rank].extend(answers);
        self.deliver(rank);
        if self.op(rank).is_none() {
            let answer = self.calls[rank].give_up(&self.members[rank]);
            self.answers[rank].extend(answer);
        }
    }

    fn persist(&mut self, whole: Whole<Message>) {
        let memories: Vec<_> = self.captured.iter().map(|captured| captured.clone().expect("all were captured")).collect();
        for (to, memory) in memories.iter().enumerate() {
            for (from, sender) in memories.iter().enumerate() {
                let here = memory.inbox.iter().filter(|message| message.0 == from).count() as u64;
                let late = whole.late[to].iter().filter(|message| message.0 == from).count() as u64;
                assert_eq!(memory.got[from] + here + late, sender.sent[to], "from {from} to {to}");
            }
        }
        self.seen.late += whole.late.iter().map(Vec::len).sum::<usize>();
        self.seen.permanent += 1;
        self.permanent = Some((whole, memories));
        let orders = self.coordinator.persisted(true);
        self.follow(orders);
    }

    fn go_back(&mut self) {
        let fresh = Self { seen: self.seen, ..Self::new(self.program, self.begins, self.crashes) };
        let permanent = self.permanent.take();
        *self = fresh;
        let Some((whole, memories)) = permanent else { return };
        self.coordinator = Coordinator::new(self.ranks(), whole.ccn, 1);
        self.memories.clone_from(&memories);
        for rank in 0..self.ranks() {
            let mut cut = whole.cuts[rank].clone();
            for (from, number, message) in &whole.late[rank] {
                cut.received[*from] = *number;
                self.memories[rank].inbox.push_back(*message);
            }
            self.members[rank] = Member::restored(whole.ccn, cut);
        }
        self.permanent = Some((whole, memories));
    }
}

impl explore::World for World {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let ranks = self.ranks();
        let mut events = Vec::new();
        if self.begins > 0 && self.coordinator.is_idle() {
            events.extend([0, 2].map(Event::Begin));
        }
        for rank in 0..ranks {
            events.extend((0..ranks).filter(|from| !self.channels[*from][rank].is_empty()).map(|from| Event::Arrive(from, rank)));
            events.extend(self.can_run(rank).then_some(Event::Run(rank)));
            events.extend(self.vain(rank).map(|_| Event::InVain(rank)));
            events.extend((!self.told[rank].is_empty()).then_some(Event::Hear(rank)));
            events.extend((!self.answers[rank].is_empty()).then_some(Event::Answer(rank)));
        }
        if self.crashes > 0 {
            events.push(Event::Crash);
        }
        events
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(call) => {
                self.begins -= 1;
                self.overtaken = false;
                let orders = self.coordinator.begin();
                let ccn = self.coordinator.ccn();
                self.told.iter_mut().for_each(|told| told.push_back(Told::Aim(ccn, call)));
                self.follow(orders);
            }
            Event::Run(rank) => self.run(rank),
            Event::InVain(rank) => {
                let (calls, answer) = self.vain(rank).expect("it waits in vain");
                // Others may have heard of its end, and send with its number.
                let is_over = self.told[rank].iter().any(|told| matches!(told, Told::Tell(Tell::Abort(_))));
                assert!(!self.program.in_step || is_over || self.is_overtaken(), "all knew of the call in time, and a rank gives up");
                self.calls[rank] = calls;
                self.answers[rank].push_back(answer);
                self.seen.given_up += 1;
            }
            Event::Arrive(from, to) => {
                let (ccn, message) = self.channels[from][to].pop_front().expect("it is on its way");
                assert!(self.members[to].arrived(from, ccn, message.2, message));
                self.deliver(to);
            }
            Event::Hear(rank) => self.hear(rank),
            Event::Answer(rank) => {
                let answer = self.answers[rank].pop_front().expect("something was answered");
                let orders = self.coordinator.heard(rank, answer);
                self.follow(orders);
            }
            Event::Crash => {
                self.crashes -= 1;
                self.go_back();
            }
        }
        self.hurry();
    }

    /// From here on no checkpoint begins and nobody dies: then all come to their end, and once more from the last checkpoint.
    fn settle(mut self) {
        (self.begins, self.crashes) = (0, 0);
        for _ in 0..2 {
            while let Some(event) = self.events().first() {
                self.happen(*event);
            }
            assert!(self.coordinator.is_idle(), "a checkpoint does not end");
            for rank in 0..self.ranks() {
                assert_eq!(self.op(rank), None, "rank {rank} does not come to its end: {self:?}");
                for from in 0..self.ranks() {
                    assert_eq!(self.memories[rank].got[from], self.memories[from].sent[rank], "from {from} to {rank}");
                }
            }
            self.go_back();
        }
    }
}

#[test]
fn every_order_where_neighbours_exchange() {
    let states = explore::explore(World::new(EXCHANGE, 1, 0));
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_a_pipeline_with_a_crash() {
    let states = explore::explore(World::new(PIPELINE, 1, 1));
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_a_master_with_a_crash() {
    let states = explore::explore(World::new(MASTER, 1, 1));
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_where_no_checkpoint_fits() {
    let states = explore::explore(World::new(NEVER, 2, 1));
    assert!(states > 1_000, "{states}");
}

/// Also that what is handled does occur.
#[test]
fn random_orders() {
    let seeds = if std::env::var_os("FERMATA_LONG").is_some() { 50_000 } else { 2_000 };
    for program in [EXCHANGE, PIPELINE, MASTER, NEVER] {
        let mut sum = Seen::default();
        for seed in 0..seeds {
            let mut numbers = Numbers(seed);
            let mut world = World::new(program, 4, 2);
            loop {
                let events = world.events();
                if events.is_empty() {
                    break;
                }
                let event = events[numbers.below(events.len())];
                if !matches!(event, Event::Crash | Event::Begin(_)) || numbers.below(8) == 0 {
                    world.happen(event);
                }
            }
            let Seen { late, held, given_up, permanent } = world.seen;
            sum.late += late;
            sum.held += held;
            sum.given_up += given_up;
            sum.permanent += permanent;
            world.settle();
        }
        let Seen { late, held, given_up, permanent } = sum;
        assert!(given_up > 10, "{program:?}: {sum:?}");
        assert!(if program.fits { permanent.min(held as usize) > 10 } else { permanent == 0 }, "{program:?}: {sum:?}");
        assert!(!program.in_step || late > 10, "{program:?}: {sum:?}");
    }
}
