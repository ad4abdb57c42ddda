//! Counts in how many ways N queens stand on a board of N by N and none takes another: `fermata run-ranks -n 16 nqueens 14`.
//!
//! Each rank has an equal share of the places of the first two queens. Nobody talks until the end, when the counts are put together.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

/// How many there are, for boards from 0 by 0 on (OEIS A000170).
const KNOWN: [u64; 18] = [1, 1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2680, 14200, 73712, 365_596, 2_279_184, 14_772_512, 95_815_104];

struct Queens {
    here: Here,
    n: usize,
    /// Places of the first two queens that were looked at.
    looked: &'static mut u64,
    found: &'static mut u64,
}

impl Queens {
    fn new(layout: &mut Layout, here: Here, n: usize) -> io::Result<Self> {
        Ok(Self { here, n, looked: layout.one()?, found: layout.one()? })
    }

    /// The solutions below two queens in the first two rows.
    fn below(&self, place: usize) -> u64 {
        let (first, second) = (1u32 << (place / self.n), 1u32 << (place % self.n));
        let all = (1u32 << self.n) - 1;
        if second & (first | first << 1 | first >> 1) != 0 {
            return 0;
        }
        count(all, first | second, (first << 2 | second << 1) & all, first >> 2 | second >> 1)
    }
}

fn count(all: u32, columns: u32, left: u32, right: u32) -> u64 {
    if columns == all {
        return 1;
    }
    let (mut free, mut found) = (all & !(columns | left | right), 0);
    while free != 0 {
        let queen = free & free.wrapping_neg();
        free ^= queen;
        found += count(all, columns | queen, (left | queen) << 1 & all, (right | queen) >> 1);
    }
    found
}

impl Program for Queens {
    fn wants(&self) -> Wants {
        let is_over = *self.looked > self.here.share(self.n * self.n).len() as u64;
        if is_over { Wants::all(self.here, 0) } else { Wants::nothing() }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        if !got.is_empty() {
            let total = got.reduce(|a: u64, b| a + b)[0];
            return match KNOWN.get(self.n) {
                Some(known) if *known != total => Next::Failed(format!("{total} ways, and there are {known}")),
                _ => Next::Done(format!("{total} ways to place {} queens", self.n)),
            };
        }
        let mine = self.here.share(self.n * self.n);
        if (*self.looked as usize) < mine.len() {
            *self.found += self.below(mine.start + *self.looked as usize);
            *self.looked += 1;
            return Next::Step;
        }
        ranks.reduce(0, 0, &[*self.found]);
        *self.looked += 1;
        if self.here.rank == 0 { Next::Step } else { Next::Done(String::new()) }
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let n = args.first().copied().unwrap_or(14).clamp(2, 24);
    ranks::run(|layout, here| Queens::new(layout, here, n))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
