//! Ranks with checkpoints of their own, over a network that loses, doubles and reorders, where all may have to go back at any time: every order of events for three ranks within small budgets, and random orders
//! for more. The recovery line is compared with all combinations of checkpoints.

use super::{Captured, History, Member, Stamp};
use crate::{
    consistent::{Ccn, Cut, Rank},
    explore::{self, Numbers, World as _},
};

/// Who sent it to whom as which: the same in every life of its sender, who does not go by chance.
type Message = (Rank, Rank, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    sends: u8,
    captures: u8,
    losses: u8,
    doubles: u8,
    crashes: u8,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Send(Rank, Rank),
    Arrive(usize),
    Lose(usize),
    Double(usize),
    Capture(Rank),
    /// It becomes permanent, or cannot.
    Save(Rank, bool),
    Crash,
}

/// What is really so, beside what the members believe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    members: Vec<Member<Message>>,
    /// By sender and receiver, and by receiver and sender, as the programs have seen it.
    sent: Vec<Vec<u64>>,
    got: Vec<Vec<u64>>,
    packets: Vec<(Stamp, Message)>,
    /// Every message of this life, to be sent again when it was lost.
    all: Vec<(Stamp, Message)>,
    saving: Vec<Option<Captured<Message>>>,
    stored: Vec<Vec<Captured<Message>>>,
    history: History,
    left: Budget,
}

/// Whether no rank has received what its sender has not sent.
fn fits(cuts: &[&Cut]) -> bool {
    cuts.iter().enumerate().all(|(to, cut)| cut.received.iter().zip(cuts).all(|(received, sender)| *received <= sender.sent[to]))
}

impl World {
    fn new(ranks: usize, left: Budget) -> Self {
        let beginning = Captured { number: 0, cut: Cut::new(ranks), log: vec![Vec::new(); ranks] };
        Self {
            members: vec![Member::new(ranks); ranks],
            sent: vec![vec![0; ranks]; ranks],
            got: vec![vec![0; ranks]; ranks],
            packets: Vec::new(),
            all: Vec::new(),
            saving: vec![None; ranks],
            stored: vec![vec![beginning]; ranks],
            history: History::new(ranks),
            left,
        }
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn arrive(&mut self, place: usize) {
        let (stamp, message) = self.packets.swap_remove(place);
        let to = message.1;
        assert!(self.members[to].arrived(message.0, stamp, message));
        while let Some((from, message)) = self.members[to].deliver() {
            self.see(to, from, message);
        }
    }

    /// The program sees a message: each one once, and in its turn.
    fn see(&mut self, to: Rank, from: Rank, message: Message) {
        self.got[to][from] += 1;
        assert_eq!(message, (from, to, self.got[to][from]), "lost, doubled or out of turn");
    }

    fn save(&mut self, rank: Rank, ok: bool) {
        let captured = self.saving[rank].take().expect("it was captured");
        let number = captured.number;
        if ok {
            assert!(self.history.add(rank, number, captured.cut.clone()));
            self.stored[rank].push(captured);
            for (rank, number) in self.history.collect() {
                self.stored[rank].retain(|stored| stored.number != number);
            }
            self.check();
        }
        self.members[rank].over(number, &self.history.received(rank));
    }

    /// All combinations of what is stored.
    fn combinations(&self) -> Vec<Vec<usize>> {
        self.stored.iter().fold(vec![Vec::new()], |sets, stored| {
            sets.iter().flat_map(|set| (0..stored.len()).map(|place| [&set[..], &[place]].concat())).collect()
        })
    }

    fn cuts(&self, set: &[usize]) -> Vec<&Cut> {
        set.iter().zip(&self.stored).map(|(place, stored)| &stored[*place].cut).collect()
    }

    /// Every combination that fits has all messages that were on their way across it; the latest of them is the line, and nothing before it is left.
    fn check(&self) {
        let fitting: Vec<_> = self.combinations().into_iter().filter(|set| fits(&self.cuts(set))).collect();
        fitting.iter().for_each(|set| drop(self.late(set)));
        let latest: Vec<_> =
            (0..self.ranks()).map(|rank| fitting.iter().map(|set| set[rank]).max().expect("there is one that fits")).collect();
        assert!(fitting.contains(&latest), "the latest of each is no line");
        assert_eq!(latest, vec![0; self.ranks()], "garbage is left");
        let line = self.history.clone().go_back().expect("there is a line");
        let numbers: Vec<_> = self.stored.iter().map(|stored| stored[0].number).collect();
        assert_eq!(line.numbers, numbers);
        assert_eq!(line.dropped, self.stored.iter().map(|stored| stored.len() as u64 - 1).collect::<Vec<_>>());
    }

    /// What was on its way across a line, by receiver.
    fn late(&self, set: &[usize]) -> Vec<Vec<Message>> {
        let cuts = self.cuts(set);
        let late_of = |to: Rank, from: Rank| {
            let (received, sent) = (cuts[to].received[from], cuts[from].sent[to]);
            let log = self.stored[from][set[from]].log[to].iter();
            let late: Vec<_> = log.filter(|(number, _)| *number > received).map(|(_, message)| *message).collect();
            assert_eq!(late, (received + 1..=sent).map(|number| (from, to, number)).collect::<Vec<_>>(), "lost");
            late
        };
        (0..cuts.len()).map(|to| (0..cuts.len()).flat_map(|from| late_of(to, from)).collect()).collect()
    }

    fn go_back(&mut self) {
        let line = self.history.go_back().expect("there is a line");
        self.packets.clear();
        self.all.clear();
        for (rank, number) in line.numbers.iter().enumerate() {
            self.saving[rank] = None;
            self.stored[rank].retain(|stored| stored.number <= *number);
        }
        let set: Vec<_> = self.stored.iter().map(|stored| stored.len() - 1).collect();
        let late = self.late(&set);
        for (rank, late) in late.into_iter().enumerate() {
            let mut from = self.stored[rank][set[rank]].clone();
            self.sent[rank].clone_from(&from.cut.sent);
            self.got[rank].clone_from(&from.cut.received);
            late.iter().for_each(|message| self.see(rank, message.0, *message));
            from.cut.received.clone_from(&self.got[rank]);
            self.members[rank] = Member::restored(from);
        }
    }
}

impl explore::World for World {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let (left, ranks) = (&self.left, self.ranks());
        let mut events: Vec<_> = (0..self.packets.len()).map(Event::Arrive).collect();
        if left.sends > 0 {
            events.extend((0..ranks).flat_map(|from| (0..ranks).filter(move |to| *to != from).map(move |to| Event::Send(from, to))));
        }
        if left.losses > 0 {
            events.extend((0..self.packets.len()).map(Event::Lose));
        }
        if left.doubles > 0 {
            events.extend((0..self.packets.len()).map(Event::Double));
        }
        for rank in 0..ranks {
            match self.saving[rank] {
                None if left.captures > 0 => events.push(Event::Capture(rank)),
                None => {}
                Some(_) => events.extend([Event::Save(rank, true), Event::Save(rank, false)]),
            }
        }
        if left.crashes > 0 {
            events.push(Event::Crash);
        }
        events
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Send(from, to) => {
                self.left.sends -= 1;
                self.sent[from][to] += 1;
                let message = (from, to, self.sent[from][to]);
                let packet = (self.members[from].sending(to, message), message);
                self.packets.push(packet);
                self.all.push(packet);
            }
            Event::Arrive(place) => self.arrive(place),
            Event::Lose(place) => {
                self.left.losses -= 1;
                self.packets.swap_remove(place);
            }
            Event::Double(place) => {
                self.left.doubles -= 1;
                self.packets.push(self.packets[place]);
            }
            Event::Capture(rank) => {
                self.left.captures -= 1;
                let member = &mut self.members[rank];
                member.due();
                let captured = member.captured().expect("it is wanted");
                assert_eq!(captured.cut, Cut { sent: self.sent[rank].clone(), received: self.got[rank].clone() });
                assert!(member.wanted().is_none() && member.captured().is_none());
                self.saving[rank] = Some(captured);
            }
            Event::Save(rank, ok) => self.save(rank, ok),
            Event::Crash => {
                self.left.crashes -= 1;
                self.go_back();
            }
        }
    }

    /// From here on nothing goes wrong: all messages arrive, and when then each rank takes a checkpoint, these are the line and all else is garbage.
    fn settle(mut self) {
        self.left = Budget { sends: 0, captures: 2 * self.ranks() as u8, losses: 0, doubles: 0, crashes: 0 };
        self.packets.extend(self.all.clone());
        while !self.packets.is_empty() {
            self.arrive(0);
        }
        for rank in 0..self.ranks() {
            if self.saving[rank].is_some() {
                self.save(rank, true);
            }
            self.happen(Event::Capture(rank));
            self.save(rank, true);
        }
        assert_eq!(self.history.len(), self.ranks());
        assert!(!self.history.is_empty());
        let sent = self.sent.clone();
        self.go_back();
        assert_eq!(self.sent, sent);
        assert!((0..self.ranks()).all(|from| (0..self.ranks()).all(|to| self.sent[from][to] == self.got[to][from])));
    }
}

/// Goes through every order of events of three ranks. Returns how many states there are.
fn explore(budget: Budget) -> usize {
    explore::explore(World::new(3, budget))
}

const NOTHING: Budget = Budget { sends: 0, captures: 0, losses: 0, doubles: 0, crashes: 0 };

#[test]
fn every_order_of_three_ranks_that_go_back() {
    let states = explore(Budget { sends: 2, captures: 2, crashes: 1, ..NOTHING });
    assert!(states > 1_000, "{states}");
}

#[test]
fn every_order_of_three_ranks_with_a_loss_and_a_double() {
    let states = explore(Budget { sends: 2, captures: 1, losses: 1, doubles: 1, ..NOTHING });
    assert!(states > 1_000, "{states}");
}

#[test]
fn random_orders_of_ranks() {
    let seeds = if std::env::var_os("FERMATA_LONG").is_some() { 50_000 } else { 2_000 };
    let (mut collected, mut most) = (0, 0);
    for seed in 0..seeds {
        let mut numbers = Numbers(seed);
        let ranks = 2 + numbers.below(3);
        let (losses, crashes) = (numbers.below(8) as u8, numbers.below(4) as u8);
        let mut world = World::new(ranks, Budget { sends: 80, captures: 15, losses, doubles: 8, crashes });
        for _ in 0..600 {
            let events = world.events();
            if events.is_empty() {
                break;
            }
            // Of dozens of events most are messages that arrive or are sent.
            let event = events[numbers.below(events.len())];
            if !matches!(event, Event::Crash | Event::Lose(_) | Event::Double(_)) || numbers.below(12) == 0 {
                world.happen(event);
                most = most.max(world.history.len());
            }
        }
        collected += usize::from(world.stored.iter().all(|stored| stored[0].number > 0));
        world.settle();
    }
    assert!(collected > 0, "no line ever left the beginning");
    assert!(most > 8, "there were never more than {most} checkpoints");
}

/// The line of arbitrary checkpoints is that of all combinations.
#[test]
fn the_line_is_the_latest_combination_that_fits() {
    for seed in 0..3_000 {
        let mut numbers = Numbers(seed);
        let mut history = History::new(3);
        let mut stored: Vec<Vec<(Ccn, Cut)>> = vec![vec![(0, Cut::new(3))]; 3];
        for (rank, stored) in stored.iter_mut().enumerate() {
            for number in 1..=numbers.below(5) as u64 {
                let mut cut = stored.last().expect("the beginning").1.clone();
                cut.sent.iter_mut().chain(&mut cut.received).for_each(|count| *count += numbers.below(3) as u64);
                // What one sends to itself is there at once.
                cut.received[rank] = cut.sent[rank];
                history.add(rank, number, cut.clone());
                stored.push((number, cut));
            }
        }
        let mut latest = vec![0; 3];
        for (a, b, c) in (0..stored[0].len())
            .flat_map(|a| (0..stored[1].len()).map(move |b| (a, b)))
            .flat_map(|(a, b)| (0..stored[2].len()).map(move |c| (a, b, c)))
        {
            if fits(&[&stored[0][a].1, &stored[1][b].1, &stored[2][c].1]) {
                latest = latest.iter().zip([a, b, c]).map(|(latest, place)| (*latest).max(place)).collect();
            }
        }
        let garbage: usize = latest.iter().sum();
        assert_eq!(history.clone().collect().len(), garbage, "{stored:?}");
        let line = history.go_back().expect("the beginning fits");
        assert_eq!(line.numbers, latest.iter().map(|place| *place as u64).collect::<Vec<_>>(), "{stored:?}");
        let dropped: Vec<_> = stored.iter().zip(&latest).map(|(stored, place)| (stored.len() - 1 - place) as u64).collect();
        assert_eq!(line.dropped, dropped);
    }
}
