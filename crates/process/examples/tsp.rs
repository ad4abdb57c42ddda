//! Finds the shortest way through N cities and home again, by branch and bound: `fermata run-ranks -n 16 tsp 15`.
//!
//! Rank 0 has the best way so far and a queue of beginnings of ways. The others look at what comes of a beginning, leave out what cannot be the best, and tell of a
//! better way. In the end rank 0 computes the length by another method (Held and Karp) and compares.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

const TASK: u32 = 0;
const ANSWER: u32 = 1;
/// Cities at most, for the comparison takes memory.
const MOST: usize = 18;

struct Salesman {
    here: Here,
    n: usize,
    lengths: Vec<Vec<u64>>,
    /// The length of the best way so far, 0 if there is none.
    best: &'static mut u64,
    /// Beginnings that were handed out.
    handed: &'static mut u64,
    dismissed: &'static mut u64,
}

impl Salesman {
    fn new(layout: &mut Layout, here: Here, n: usize) -> io::Result<Self> {
        let place = |city: u64| ((city * 7919 + 13) % 1000, (city * city * 104_729 + city * 31) % 1000);
        let length = |a: (u64, u64), b: (u64, u64)| ((a.0.abs_diff(b.0).pow(2) + a.1.abs_diff(b.1).pow(2)) as f64).sqrt() as u64 + 1;
        let lengths = (0..n as u64).map(|a| (0..n as u64).map(|b| length(place(a), place(b))).collect()).collect();
        Ok(Self { here, n, lengths, best: layout.one()?, handed: layout.one()?, dismissed: layout.one()? })
    }

    /// The next two cities after the first, for a beginning of this number; none if there is no such.
    fn beginning(&self, number: u64) -> Option<(usize, usize)> {
        let (second, third) = (number as usize / (self.n - 1) + 1, number as usize % (self.n - 1) + 1);
        (second < self.n).then_some((second, third))
    }

    fn hand_out(&mut self, to: usize, ranks: &mut Ranks<'_>) {
        while let Some((second, third)) = self.beginning(*self.handed) {
            *self.handed += 1;
            if second != third {
                return ranks.send(to, TASK, &[second as u64, third as u64, *self.best]);
            }
        }
        *self.dismissed += 1;
        ranks.send(to, TASK, &[0u64, 0, 0]);
    }

    /// Looks at all ways that go on from here, and makes `best` the shortest.
    fn search(&self, at: usize, visited: u32, length: u64, best: &mut u64) {
        if visited.count_ones() as usize == self.n {
            *best = (*best).min(length + self.lengths[at][0]);
            return;
        }
        let unseen = (0..self.n).filter(|city| visited & 1 << city == 0);
        // Each city that is left has to be come to from somewhere.
        let least = |city: usize| (0..self.n).filter(|from| *from != city).map(|from| self.lengths[from][city]).min().unwrap_or(0);
        if length + unseen.clone().map(least).sum::<u64>() + least(0) >= *best {
            return;
        }
        for city in unseen {
            self.search(city, visited | 1 << city, length + self.lengths[at][city], best);
        }
    }

    fn shortest(&self) -> u64 {
        let all = 1usize << (self.n - 1);
        let mut table = vec![u64::MAX / 2; all * self.n];
        (1..self.n).for_each(|city| table[(1 << (city - 1)) * self.n + city] = self.lengths[0][city]);
        for visited in 1..all {
            for at in (1..self.n).filter(|at| visited >> (at - 1) & 1 == 1) {
                let length = table[visited * self.n + at];
                for next in (1..self.n).filter(|next| visited >> (next - 1) & 1 == 0) {
                    let place = &mut table[(visited | 1 << (next - 1)) * self.n + next];
                    *place = (*place).min(length + self.lengths[at][next]);
                }
            }
        }
        (1..self.n).map(|at| table[(all - 1) * self.n + at] + self.lengths[at][0]).min().unwrap_or(0)
    }

    fn master(&mut self, ranks: &mut Ranks<'_>, got: &Messages) -> Next {
        let found = got.values::<u64>(0)[0];
        if found != 0 && (*self.best == 0 || found < *self.best) {
            *self.best = found;
        }
        self.hand_out(got.from(0), ranks);
        if (*self.dismissed as usize) < self.here.ranks - 1 {
            return Next::Step;
        }
        let shortest = self.shortest();
        if *self.best == shortest {
            Next::Done(format!("the shortest way through {} cities is {shortest} long", self.n))
        } else {
            Next::Failed(format!("the best way found is {} long, and there is one of {shortest}", self.best))
        }
    }
}

impl Program for Salesman {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        if self.here.rank == 0 {
            (1..self.here.ranks).for_each(|to| self.hand_out(to, ranks));
        }
    }

    fn wants(&self) -> Wants {
        match self.here {
            Here { ranks: 1, .. } => Wants::nothing(),
            Here { rank: 0, .. } => Wants::any(ANSWER),
            _ => Wants::one(0, TASK),
        }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        if self.here.ranks == 1 {
            return Next::Failed("there must be two ranks at least".into());
        }
        if self.here.rank == 0 {
            return self.master(ranks, &got);
        }
        let task = got.values::<u64>(0);
        let (second, third) = (task[0] as usize, task[1] as usize);
        if second == 0 {
            return Next::Done(String::new());
        }
        let before = if task[2] == 0 { u64::MAX } else { task[2] };
        let mut best = before;
        let length = self.lengths[0][second] + self.lengths[second][third];
        self.search(third, 1 | 1 << second | 1 << third, length, &mut best);
        ranks.send(0, ANSWER, &[if best < before { best } else { 0 }]);
        Next::Step
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let n = args.first().copied().unwrap_or(15).clamp(4, MOST);
    ranks::run(|layout, here| Salesman::new(layout, here, n))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
