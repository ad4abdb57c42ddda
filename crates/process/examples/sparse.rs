//! Solves a sparse system of linear equations, a variation on Gauss and Seidel: `fermata run-ranks -n 16 sparse 48000 100`.
//!
//! Each rank has some of the unknowns. After each iteration it sends their new values to all others; within an iteration it uses its own new ones at once. The solution is known
//! beforehand, and so is how much an iteration brings it nearer at least.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

/// Coefficients of a row beside the diagonal.
const ROW: usize = 40;
/// Their sum, as a share of the diagonal: with each iteration the error shrinks by this at least.
const SHARE: f64 = 0.9;

struct Sparse {
    here: Here,
    n: usize,
    iterations: u64,
    iteration: &'static mut u64,
    places: &'static mut [u32],
    coefficients: &'static mut [f64],
    right: &'static mut [f64],
    values: &'static mut [f64],
}

fn expected(row: usize) -> f64 {
    (row % 10) as f64 + 1.0
}

impl Sparse {
    fn new(layout: &mut Layout, here: Here, n: usize, iterations: u64) -> io::Result<Self> {
        let rows = here.share(n).len();
        Ok(Self {
            here,
            n,
            iterations,
            iteration: layout.one()?,
            places: layout.many(rows * ROW)?,
            coefficients: layout.many(rows * ROW)?,
            right: layout.many(rows)?,
            values: layout.many(n)?,
        })
    }

    fn iterate(&mut self) {
        let first = self.here.share(self.n).start;
        for row in 0..self.right.len() {
            let (places, coefficients) = (&self.places[row * ROW..][..ROW], &self.coefficients[row * ROW..][..ROW]);
            let others: f64 = places.iter().zip(coefficients).map(|(place, coefficient)| coefficient * self.values[*place as usize]).sum();
            self.values[first + row] = self.right[row] - others;
        }
    }
}

impl Program for Sparse {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let mine = self.here.share(self.n);
        let mut mixed = 0x2545_f491_4f6c_dd1d_u64.wrapping_mul(self.here.rank as u64 + 1);
        for row in 0..mine.len() {
            for at in row * ROW..(row + 1) * ROW {
                mixed ^= mixed << 13;
                mixed ^= mixed >> 7;
                mixed ^= mixed << 17;
                let place = (mixed >> 20) as usize % self.n;
                // The diagonal is 1.
                self.coefficients[at] =
                    if place == mine.start + row { 0.0 } else { SHARE / ROW as f64 * if mixed & 1 == 0 { 1.0 } else { -1.0 } };
                self.places[at] = place as u32;
            }
            let entries = row * ROW..(row + 1) * ROW;
            let others: f64 = entries.map(|at| self.coefficients[at] * expected(self.places[at] as usize)).sum();
            self.right[row] = expected(mine.start + row) + others;
        }
        ranks.broadcast(0, &self.values[mine]);
    }

    fn wants(&self) -> Wants {
        Wants::all(self.here, 0)
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        for which in 0..got.len() {
            let theirs = self.here.share_of(got.from(which), self.n);
            got.fill(which, &mut self.values[theirs]);
        }
        if *self.iteration < self.iterations {
            self.iterate();
            *self.iteration += 1;
            ranks.broadcast(0, &self.values[self.here.share(self.n)]);
            return Next::Step;
        }
        let error = self.values.iter().enumerate().map(|(row, value)| (value - expected(row)).abs()).fold(0.0, f64::max);
        let bound = 10.0 * SHARE.powi(self.iterations as i32) + 1e-9;
        if error > bound {
            return Next::Failed(format!("an unknown is wrong by {error}, and may be by {bound}"));
        }
        let told = if self.here.rank == 0 { format!("{} unknowns, right to {error:.1e}", self.n) } else { String::new() };
        Next::Done(told)
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let (n, iterations) = (args.first().copied().unwrap_or(48000), args.get(1).copied().unwrap_or(100));
    ranks::run(|layout, here| Sparse::new(layout, here, n, iterations as u64))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
