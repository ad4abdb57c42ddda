//! The protocol among ranks that send messages, over a network that loses, doubles and reorders, where anybody may fail at any time: every order of events for three ranks
//! within small budgets, and random orders for more.

use super::{Answer, Ccn, Coordinator, Cut, Member, Order, Rank, Tell, Whole};
use crate::explore::{self, Numbers, World as _};

/// What a message is: who sent it to whom as which. It is the same in every life of its sender, who does not go by chance.
type Message = (Rank, Rank, u64);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Packet {
    Message { ccn: Ccn, message: Message },
    Tell(Rank, Tell),
    Answer(Rank, Answer<Message>),
}

/// How often something may happen yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    begins: u8,
    sends: u8,
    losses: u8,
    doubles: u8,
    ticks: u8,
    /// A rank that cannot save, or a store that cannot commit.
    failures: u8,
    /// Of a rank, several, or the coordinator: all go back.
    crashes: u8,
}

/// What a rank had sent and received when it was captured, by the other rank.
type Captured = (Ccn, Vec<u64>, Vec<u64>);

/// What is really so, beside what the machines believe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    coordinator: Coordinator<Message>,
    members: Vec<Member<Message>>,
    /// Unsaved captures.
    saving: Vec<Option<Ccn>>,
    /// On their way, in no order.
    packets: Vec<Packet>,
    /// Every message of this life that was sent: one that was lost is sent again from here.
    log: Vec<(Ccn, Message)>,
    /// By sender and receiver.
    sent: Vec<Vec<u64>>,
    /// By receiver and sender, as the programs have seen it.
    got: Vec<Vec<u64>>,
    /// Both at each rank's last capture.
    captured: Vec<Option<Captured>>,
    persisting: Option<Whole<Message>>,
    permanent: Option<Whole<Message>>,
    patience: u32,
    left: Budget,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Begin,
    Send(Rank, Rank),
    Arrive(usize),
    Lose(usize),
    Double(usize),
    Capture(Rank),
    Save(Rank, bool),
    Persist(bool),
    Tick,
    Crash,
}

impl World {
    fn new(ranks: usize, patience: u32, left: Budget) -> Self {
        Self {
            coordinator: Coordinator::new(ranks, 0, patience),
            members: vec![Member::new(ranks); ranks],
            saving: vec![None; ranks],
            packets: Vec::new(),
            log: Vec::new(),
            sent: vec![vec![0; ranks]; ranks],
            got: vec![vec![0; ranks]; ranks],
            captured: vec![None; ranks],
            persisting: None,
            permanent: None,
            patience,
            left,
        }
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Puts packets on their way. What is told again while it is on its way already is not told apart from being told once; doubles are events of their own.
    fn put(&mut self, packets: impl IntoIterator<Item = Packet>) {
        for packet in packets {
            if !self.packets.contains(&packet) {
                self.packets.push(packet);
            }
        }
    }

    fn send(&mut self, from: Rank, to: Rank) {
        let (ccn, number) = self.members[from].sending(to);
        self.sent[from][to] += 1;
        assert_eq!(number, self.sent[from][to]);
        self.log.push((ccn, (from, to, number)));
        self.put([Packet::Message { ccn, message: (from, to, number) }]);
    }

    fn tick(&mut self) {
        let orders = self.coordinator.tick();
        self.follow(orders);
        // Whoever carries messages sends those again that have not arrived, as they were.
        for (ccn, message) in self.log.clone() {
            let packet = Packet::Message { ccn, message };
            if self.got[message.1][message.0] < message.2 {
                self.put([packet]);
            }
        }
    }

    fn follow(&mut self, orders: Vec<Order<Message>>) {
        for order in orders {
            match order {
                Order::Tell(rank, told) => self.put([Packet::Tell(rank, told)]),
                Order::Persist(whole) => self.persisting = Some(whole),
                Order::Over { ccn, permanent } => {
                    assert_eq!(permanent, self.permanent.as_ref().is_some_and(|whole| whole.ccn == ccn));
                    assert!(
                        self.members.iter().all(|member| !member.is_tentative()),
                        "a rank keeps a capture of a checkpoint that is over"
                    );
                }
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Message { ccn, message } => {
                assert!(self.members[message.1].arrived(message.0, ccn, message.2, message));
                self.deliver(message.1);
            }
            Packet::Tell(rank, told) => {
                if let Tell::Commit(ccn) = told {
                    assert!(self.permanent.as_ref().is_some_and(|whole| whole.ccn >= ccn), "committed before it was durable");
                }
                let answers = self.members[rank].told(told);
                self.saving[rank] = self.saving[rank].filter(|_| self.members[rank].is_tentative());
                self.put(answers.into_iter().map(|answer| Packet::Answer(rank, answer)));
                self.deliver(rank);
            }
            Packet::Answer(rank, answer) => {
                let orders = self.coordinator.heard(rank, answer);
                self.follow(orders);
            }
        }
    }

    fn deliver(&mut self, rank: Rank) {
        while let Some(delivery) = self.members[rank].deliver() {
            self.see(rank, delivery.from, delivery.message);
            self.put(delivery.late.map(|late| Packet::Answer(rank, late)));
        }
    }

    /// The program sees a message: each one once, and in its turn.
    fn see(&mut self, rank: Rank, from: Rank, message: Message) {
        self.got[rank][from] += 1;
        assert_eq!(message, (from, rank, self.got[rank][from]), "lost, doubled or out of turn");
    }

    fn capture(&mut self, rank: Rank) {
        let (ccn, cut) = self.members[rank].captured().expect("it is wanted");
        assert_eq!(cut, Cut { sent: self.sent[rank].clone(), received: self.got[rank].clone() });
        self.captured[rank] = Some((ccn, cut.sent, cut.received));
        self.saving[rank] = Some(ccn);
        self.deliver(rank);
    }

    /// What is about to be permanent is one state that the whole could have been in, with all that was on its way.
    fn check(&self, whole: &Whole<Message>) {
        let captured: Vec<_> = self.captured.iter().map(|captured| captured.as_ref().expect("all were captured")).collect();
        for (to, (ccn, _, got)) in captured.iter().enumerate() {
            assert_eq!(*ccn, whole.ccn, "rank {to} was captured for another checkpoint");
            for (from, (_, sent, _)) in captured.iter().enumerate() {
                assert!(got[from] <= sent[to], "rank {to} has a message that rank {from} has not sent");
                let late: Vec<_> =
                    whole.late[to].iter().filter(|(sender, ..)| *sender == from).map(|(_, number, message)| (*number, *message)).collect();
                let expected: Vec<_> = (got[from] + 1..=sent[to]).map(|number| (number, (from, to, number))).collect();
                assert_eq!(late, expected, "what was on its way from {from} to {to}");
            }
        }
    }

    /// Everybody goes back to the last permanent checkpoint. What is on its way is of an earlier life, and arrives nowhere.
    fn go_back(&mut self) {
        let ranks = self.ranks();
        let fresh = Self::new(ranks, self.patience, self.left);
        let permanent = self.permanent.take();
        *self = fresh;
        let Some(whole) = permanent else { return };
        self.coordinator = Coordinator::new(ranks, whole.ccn, self.patience);
        for rank in 0..ranks {
            let mut cut = whole.cuts[rank].clone();
            self.sent[rank].clone_from(&cut.sent);
            self.got[rank].clone_from(&cut.received);
            whole.late[rank].iter().for_each(|(from, _, message)| self.see(rank, *from, *message));
            cut.received.clone_from(&self.got[rank]);
            self.members[rank] = Member::restored(whole.ccn, cut);
        }
        self.permanent = Some(whole);
    }

    fn quiet(&mut self) {
        self.left = Budget { begins: 0, sends: 0, losses: 0, doubles: 0, ticks: 0, failures: 0, crashes: 0 };
        for _ in 0..16 {
            while let Some(event) = self.events().first() {
                self.happen(*event);
            }
            self.tick();
        }
        assert!(self.members.iter().all(|member| member.wanted().is_none() && !member.is_tentative()));
        assert!(self.packets.is_empty(), "{:?}", self.packets);
    }
}

impl explore::World for World {
    type Event = Event;

    /// All that can happen now.
    fn events(&self) -> Vec<Event> {
        let (left, ranks) = (&self.left, self.ranks());
        let mut events = Vec::new();
        if left.begins > 0 && self.coordinator.is_idle() {
            events.push(Event::Begin);
        }
        if left.sends > 0 {
            events.extend((0..ranks).flat_map(|from| (0..ranks).filter(move |to| *to != from).map(move |to| Event::Send(from, to))));
        }
        for packet in 0..self.packets.len() {
            events.push(Event::Arrive(packet));
            if left.losses > 0 {
                events.push(Event::Lose(packet));
            }
            if left.doubles > 0 {
                events.push(Event::Double(packet));
            }
        }
        events.extend((0..ranks).filter(|rank| self.members[*rank].wanted().is_some()).map(Event::Capture));
        let fails = if left.failures > 0 { &[true, false][..] } else { &[true] };
        for ok in fails {
            events.extend((0..ranks).filter(|rank| self.saving[*rank].is_some()).map(|rank| Event::Save(rank, *ok)));
            events.extend(self.persisting.as_ref().map(|_| Event::Persist(*ok)));
        }
        if left.ticks > 0 && !self.coordinator.is_idle() {
            events.push(Event::Tick);
        }
        if left.crashes > 0 {
            events.push(Event::Crash);
        }
        events
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin => {
                self.left.begins -= 1;
                let orders = self.coordinator.begin();
                self.follow(orders);
            }
            Event::Send(from, to) => {
                self.left.sends -= 1;
                self.send(from, to);
            }
            Event::Arrive(packet) => {
                let packet = self.packets.remove(packet);
                self.arrive(packet);
            }
            Event::Lose(packet) => {
                self.left.losses -= 1;
                self.packets.remove(packet);
            }
            Event::Double(packet) => {
                self.left.doubles -= 1;
                self.packets.push(self.packets[packet].clone());
            }
            Event::Capture(rank) => self.capture(rank),
            Event::Save(rank, ok) => {
                self.left.failures -= u8::from(!ok);
                let ccn = self.saving[rank].take().expect("something is saved");
                let answer = self.members[rank].saved(ccn, ok);
                self.put(answer.map(|answer| Packet::Answer(rank, answer)));
            }
            Event::Persist(ok) => {
                self.left.failures -= u8::from(!ok);
                let whole = self.persisting.take().expect("something is made durable");
                if ok {
                    self.check(&whole);
                    self.permanent = Some(whole);
                }
                let orders = self.coordinator.persisted(ok);
                self.follow(orders);
            }
            Event::Tick => {
                self.left.ticks -= 1;
                self.tick();
            }
            Event::Crash => {
                self.left.crashes -= 1;
                self.go_back();
            }
        }
        self.packets.sort_by_cached_key(explore::hash);
    }

    /// From here on nothing goes wrong: then all messages arrive, the checkpoint on its way ends, and another one becomes permanent.
    fn settle(mut self) {
        let before = self.permanent.as_ref().map(|whole| whole.ccn);
        self.quiet();
        assert!(self.coordinator.is_idle());
        let orders = self.coordinator.begin();
        self.follow(orders);
        self.quiet();
        let after = self.permanent.as_ref().map(|whole| whole.ccn);
        assert_eq!(after, Some(self.coordinator.ccn()));
        assert!(after > before);
        self.go_back();
        for from in 0..self.ranks() {
            for to in 0..self.ranks() {
                assert_eq!(self.sent[from][to], self.got[to][from], "from {from} to {to}");
            }
        }
    }
}

/// Goes through every order of events. Returns how many states there are.
fn explore(ranks: usize, budget: Budget) -> usize {
    explore::explore(World::new(ranks, PATIENCE, budget))
}

/// In ticks: little, so that its end is among what is gone through.
const PATIENCE: u32 = 1;

const NOTHING: Budget = Budget { begins: 1, sends: 0, losses: 0, doubles: 0, ticks: 0, failures: 0, crashes: 0 };

#[test]
fn every_order_of_three_ranks_with_messages() {
    let states = explore(3, Budget { sends: 2, ..NOTHING });
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_three_ranks_with_a_loss() {
    let states = explore(3, Budget { sends: 1, losses: 1, ticks: 1, ..NOTHING });
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_three_ranks_with_a_double_and_a_failure() {
    let states = explore(3, Budget { sends: 1, doubles: 1, failures: 1, ..NOTHING });
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_three_ranks_with_a_crash() {
    let states = explore(3, Budget { sends: 1, crashes: 1, begins: 2, ..NOTHING });
    assert!(states > 10_000, "{states}");
}

#[test]
fn every_order_of_three_ranks_whose_patience_ends() {
    let states = explore(3, Budget { sends: 1, ticks: 2, ..NOTHING });
    assert!(states > 10_000, "{states}");
}

#[test]
fn random_orders_of_more_ranks() {
    let seeds = if std::env::var_os("FERMATA_LONG").is_some() { 50_000 } else { 1_500 };
    let mut permanent = 0;
    for seed in 0..seeds {
        let mut numbers = Numbers(seed);
        let ranks = 2 + numbers.below(7);
        let (losses, crashes) = (numbers.below(20) as u8, numbers.below(4) as u8);
        let mut world = World::new(ranks, 3, Budget { begins: 8, sends: 80, losses, doubles: 10, ticks: 40, failures: 2, crashes });
        for _ in 0..1500 {
            let events = world.events();
            if events.is_empty() {
                break;
            }
            // A crash is one event of dozens, and would come at once.
            let event = events[numbers.below(events.len())];
            if !matches!(event, Event::Crash | Event::Lose(_) | Event::Double(_) | Event::Tick) || numbers.below(12) == 0 {
                world.happen(event);
            }
        }
        permanent += usize::from(world.permanent.is_some());
        world.settle();
    }
    assert!(permanent * 2 > seeds as usize, "only {permanent} of {seeds} runs had a permanent checkpoint");
}
