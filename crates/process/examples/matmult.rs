//! Multiplies two square matrices: `fermata run-ranks -n 16 matmult 1024`.
//!
//! Each rank computes its share of the rows of the product, some rows a step, and proves them by Freivalds' check. Nobody talks but to say that it is right.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

/// Rows of a step.
const ROWS: usize = 4;

struct Product {
    here: Here,
    n: usize,
    done: &'static mut u64,
    a: &'static mut [f64],
    b: &'static mut [f64],
    c: &'static mut [f64],
}

/// Small whole numbers, so that sums and products of them are exact.
fn element(row: usize, column: usize, salt: usize) -> f64 {
    ((row * 31 + column * 17 + row * column * 7 + salt) % 19) as f64 - 9.0
}

impl Product {
    fn new(layout: &mut Layout, here: Here, n: usize) -> io::Result<Self> {
        let rows = here.share(n).len();
        Ok(Self { here, n, done: layout.one()?, a: layout.many(rows * n)?, b: layout.many(n * n)?, c: layout.many(rows * n)? })
    }

    fn multiply_row(&mut self, row: usize) {
        let n = self.n;
        let into = &mut self.c[row * n..][..n];
        into.fill(0.0);
        for (factor, from) in self.a[row * n..][..n].iter().zip(self.b.chunks_exact(n)) {
            into.iter_mut().zip(from).for_each(|(sum, value)| *sum += factor * value);
        }
    }

    /// C r = A (B r) for some r of whole numbers: a wrong C passes with little chance.
    fn is_right(&self) -> bool {
        let n = self.n;
        let dot = |row: &[f64], vector: &[f64]| row.iter().zip(vector).map(|(a, b)| a * b).sum::<f64>();
        let r: Vec<f64> = (0..n).map(|at| element(at, at * at, 5)).collect();
        let br: Vec<f64> = self.b.chunks_exact(n).map(|row| dot(row, &r)).collect();
        self.c.chunks_exact(n).zip(self.a.chunks_exact(n)).all(|(c, a)| dot(c, &r) == dot(a, &br))
    }
}

impl Program for Product {
    fn begin(&mut self, _: &mut Ranks<'_>) {
        let (n, first) = (self.n, self.here.share(self.n).start);
        self.a.iter_mut().enumerate().for_each(|(at, value)| *value = element(first + at / n, at % n, 1));
        self.b.iter_mut().enumerate().for_each(|(at, value)| *value = element(at / n, at % n, 2));
    }

    fn wants(&self) -> Wants {
        if *self.done as usize > self.here.share(self.n).len() { Wants::all(self.here, 0) } else { Wants::nothing() }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        let rows = self.here.share(self.n).len();
        if !got.is_empty() {
            let right = got.reduce(|a: u64, b| a + b)[0];
            return if right == self.n as u64 {
                Next::Done(format!("the product of two matrices of {0} x {0} is right", self.n))
            } else {
                Next::Failed(format!("only {right} of {} rows are right", self.n))
            };
        }
        let first = *self.done as usize;
        if first < rows {
            let end = rows.min(first + ROWS);
            (first..end).for_each(|row| self.multiply_row(row));
            *self.done = end as u64;
            return Next::Step;
        }
        ranks.reduce(0, 0, &[if self.is_right() { rows as u64 } else { 0 }]);
        *self.done += 1;
        if self.here.rank == 0 { Next::Step } else { Next::Done(String::new()) }
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let n = args.first().copied().unwrap_or(1024);
    ranks::run(|layout, here| Product::new(layout, here, n))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
