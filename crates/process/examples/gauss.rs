//! Solves a dense system of linear equations by Gaussian elimination with partial pivoting: `fermata run-ranks -n 16 gauss 1024`, or several, one after the other: `gauss 1024 10`.
//!
//! Columns are dealt out to the ranks in turn. Whoever has the pivot column of an iteration sends it to all. The solution is known beforehand and is compared.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

/// Tags from here on are columns of the back substitution.
const BACK: u32 = 1 << 24;

struct Gauss {
    here: Here,
    n: usize,
    /// Systems to be solved, and those that were.
    systems: u64,
    solved: &'static mut u64,
    /// Iterations of the elimination, and then those of the back substitution.
    iteration: &'static mut u64,
    /// The columns of this rank, one after the other; the right-hand side is column `n`.
    columns: &'static mut [f64],
    /// The solution, at whoever has the right-hand side.
    solution: &'static mut [f64],
}

fn coefficient(system: u64, row: usize, column: usize) -> f64 {
    let mut mixed = ((system << 40) + row as u64 * 0x1_0000 + column as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 40;
    mixed as f64 / (1u64 << 24) as f64 - 0.5
}

fn expected(row: usize) -> f64 {
    (row % 10) as f64 + 1.0
}

impl Gauss {
    fn new(layout: &mut Layout, here: Here, n: usize, systems: u64) -> io::Result<Self> {
        let count = (0..=n).filter(|column| column % here.ranks == here.rank).count();
        let (solved, iteration) = (layout.one()?, layout.one()?);
        Ok(Self { here, n, systems, solved, iteration, columns: layout.many(count * n)?, solution: layout.many(n)? })
    }

    fn owner(&self, column: usize) -> usize {
        column % self.here.ranks
    }

    fn is_mine(&self, column: usize) -> bool {
        self.owner(column) == self.here.rank
    }

    fn column(&self, column: usize) -> &[f64] {
        &self.columns[column / self.here.ranks * self.n..][..self.n]
    }

    /// Finds the pivot of a column of ours and sends it with the factors of all rows below.
    fn send_pivot(&self, k: usize, ranks: &mut Ranks<'_>) {
        let column = self.column(k);
        let pivot = (k..self.n).max_by(|a, b| column[*a].abs().total_cmp(&column[*b].abs())).unwrap_or(k);
        let mut message = vec![pivot as f64];
        message.extend((k + 1..self.n).map(|row| (if row == pivot { column[k] } else { column[row] }) / column[pivot]));
        ranks.broadcast(k as u32, &message);
    }

    fn eliminate(&mut self, k: usize, message: &[f64], ranks: &mut Ranks<'_>) {
        let n = self.n;
        let pivot = message[0] as usize;
        let mine: Vec<_> = (k..=n).filter(|column| self.is_mine(*column)).collect();
        for column in mine {
            let values = &mut self.columns[column / self.here.ranks * n..][..n];
            values.swap(k, pivot);
            let head = values[k];
            values[k + 1..].iter_mut().zip(&message[1..]).for_each(|(value, factor)| *value -= factor * head);
            // The next pivot is on its way while the other columns are worked on.
            if column == k + 1 && column < n {
                self.send_pivot(column, ranks);
            }
        }
    }

    fn send_back(&self, k: usize, ranks: &mut Ranks<'_>) {
        if self.is_mine(k) {
            ranks.send(self.owner(self.n), BACK + k as u32, &self.column(k)[..=k]);
        }
    }

    fn substitute(&mut self, k: usize, column: &[f64]) {
        let right = &mut self.columns[self.n / self.here.ranks * self.n..][..self.n];
        let value = right[k] / column[k];
        self.solution[k] = value;
        right.iter_mut().zip(column).for_each(|(right, factor)| *right -= value * factor);
    }

    /// The next system, if there is one; those who wait for the solution of this one hear of the next meanwhile.
    fn solved(&mut self, ranks: &mut Ranks<'_>, answer: String) -> Next {
        *self.solved += 1;
        if *self.solved == self.systems {
            return Next::Done(answer);
        }
        *self.iteration = 0;
        self.begin(ranks);
        Next::Step
    }
}

impl Program for Gauss {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let (n, system) = (self.n, *self.solved);
        for column in (0..=n).filter(|column| column % self.here.ranks == self.here.rank) {
            let values = &mut self.columns[column / self.here.ranks * n..][..n];
            for (row, value) in values.iter_mut().enumerate() {
                *value = match column < n {
                    true => coefficient(system, row, column),
                    false => (0..n).map(|at| coefficient(system, row, at) * expected(at)).sum(),
                };
            }
        }
        if self.is_mine(0) {
            self.send_pivot(0, ranks);
        }
    }

    fn wants(&self) -> Wants {
        let (n, iteration) = (self.n, *self.iteration as usize);
        if iteration < n {
            return Wants::one(self.owner(iteration), iteration as u32);
        }
        if iteration == n || !self.is_mine(n) {
            return Wants::nothing();
        }
        let k = 2 * n - iteration;
        Wants::one(self.owner(k), BACK + k as u32)
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        let (n, iteration) = (self.n, *self.iteration as usize);
        *self.iteration += 1;
        if iteration < n {
            self.eliminate(iteration, &got.values::<f64>(0), ranks);
            return Next::Step;
        }
        if iteration == n {
            (0..n).rev().for_each(|k| self.send_back(k, ranks));
            return if self.is_mine(n) { Next::Step } else { self.solved(ranks, String::new()) };
        }
        let k = 2 * n - iteration;
        self.substitute(k, &got.values::<f64>(0));
        if k > 0 {
            return Next::Step;
        }
        let error = self.solution.iter().enumerate().map(|(row, value)| (value - expected(row)).abs()).fold(0.0, f64::max);
        if error < 1e-5 {
            self.solved(ranks, format!("{n} equations solved, right to {error:.1e}"))
        } else {
            Next::Failed(format!("an unknown is wrong by {error}"))
        }
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let (n, systems) = (args.first().copied().unwrap_or(1024).max(1), args.get(1).copied().unwrap_or(1).max(1));
    ranks::run(|layout, here| Gauss::new(layout, here, n, systems as u64))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
