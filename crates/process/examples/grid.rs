//! Relaxes a square grid: each point becomes the mean of its four neighbours, again and again: `fermata run-ranks -n 16 grid 2048 200`.
//!
//! Each rank has some rows, and sends the first and the last of them to its neighbours after each iteration. The grid begins as a product of two sines, which each iteration shrinks by a
//! factor that is known; so every point can be checked in the end.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{f64::consts::PI, io, process::ExitCode};

const EDGE: u32 = 0;
const ERROR: u32 = 1;

struct Grid {
    here: Here,
    n: usize,
    iterations: u64,
    iteration: &'static mut u64,
    /// Two grids by turns, each with a row more above and below.
    grids: [&'static mut [f64]; 2],
}

impl Grid {
    fn new(layout: &mut Layout, here: Here, n: usize, iterations: u64) -> io::Result<Self> {
        let size = (here.share(n).len() + 2) * n;
        Ok(Self { here, n, iterations, iteration: layout.one()?, grids: [layout.many(size)?, layout.many(size)?] })
    }

    fn neighbours(&self) -> impl Iterator<Item = usize> + use<> {
        let Here { rank, ranks } = self.here;
        [rank.checked_sub(1), Some(rank + 1).filter(|next| *next < ranks)].into_iter().flatten()
    }

    fn first_value(&self, row: usize, column: usize) -> f64 {
        let along = |place: usize| (PI * (place + 1) as f64 / (self.n + 1) as f64).sin();
        along(row) * along(column)
    }

    fn send_edges(&self, ranks: &mut Ranks<'_>) {
        let (n, rows) = (self.n, self.here.share(self.n).len());
        let now = &self.grids[(*self.iteration % 2) as usize];
        for neighbour in self.neighbours() {
            let row = if neighbour < self.here.rank { 1 } else { rows };
            ranks.send(neighbour, EDGE, &now[row * n..][..n]);
        }
    }

    fn relax(&mut self) {
        let (n, rows) = (self.n, self.here.share(self.n).len());
        let [even, odd] = &mut self.grids;
        let (now, next) = if self.iteration.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        for row in 1..=rows {
            let (above, below) = (&now[(row - 1) * n..][..n], &now[(row + 1) * n..][..n]);
            let (here, into) = (&now[row * n..][..n], &mut next[row * n..][..n]);
            for column in 0..n {
                let left = if column > 0 { here[column - 1] } else { 0.0 };
                let right = if column + 1 < n { here[column + 1] } else { 0.0 };
                into[column] = (above[column] + below[column] + left + right) / 4.0;
            }
        }
        *self.iteration += 1;
    }

    fn error(&self) -> f64 {
        let (n, mine) = (self.n, self.here.share(self.n));
        let factor = (PI / (n + 1) as f64).cos().powi(self.iterations as i32);
        let now = &self.grids[(*self.iteration % 2) as usize];
        let places = mine.clone().flat_map(|row| (0..n).map(move |column| (row, column)));
        places
            .map(|(row, column)| (now[(row - mine.start + 1) * n + column] - factor * self.first_value(row, column)).abs())
            .fold(0.0, f64::max)
    }
}

impl Program for Grid {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let (n, mine) = (self.n, self.here.share(self.n));
        for row in mine.clone() {
            for column in 0..n {
                self.grids[0][(row - mine.start + 1) * n + column] = self.first_value(row, column);
            }
        }
        self.send_edges(ranks);
    }

    fn wants(&self) -> Wants {
        if *self.iteration > self.iterations { Wants::all(self.here, ERROR) } else { Wants::each(self.neighbours(), EDGE) }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        if *self.iteration > self.iterations {
            let error = got.reduce(f64::max)[0];
            return if error < 1e-9 {
                Next::Done(format!("{} iterations on {1} x {1} points, right to {error:.1e}", self.iterations, self.n))
            } else {
                Next::Failed(format!("a point is wrong by {error}"))
            };
        }
        let (n, rows) = (self.n, self.here.share(self.n).len());
        for which in 0..got.len() {
            let row = if got.from(which) < self.here.rank { 0 } else { rows + 1 };
            got.fill(which, &mut self.grids[(*self.iteration % 2) as usize][row * n..][..n]);
        }
        if *self.iteration < self.iterations {
            self.relax();
            self.send_edges(ranks);
            return Next::Step;
        }
        ranks.reduce(0, ERROR, &[self.error()]);
        *self.iteration += 1;
        if self.here.rank == 0 { Next::Step } else { Next::Done(String::new()) }
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let (n, iterations) = (args.first().copied().unwrap_or(2048), args.get(1).copied().unwrap_or(100));
    ranks::run(|layout, here| Grid::new(layout, here, n, iterations as u64))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
