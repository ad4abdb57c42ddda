//! Fast Fourier transforms of N points, forth and back, again and again: `fermata run-ranks -n 16 fft 16384 100`.
//!
//! The points are a square matrix of which each rank has some rows. A transform is two passes of small ones over the rows, with transpositions between them, in which everybody sends to
//! everybody. The points are a sum of a few waves, so every point is known forth and back.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{f64::consts::TAU, io, process::ExitCode};

/// Frequencies, as shares of 97 of all, and amplitudes.
const WAVES: [(usize, f64); 3] = [(3, 1.0), (31, 0.5), (83, 0.25)];

type Complex = [f64; 2];

fn times(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn turn(share: f64) -> Complex {
    [(TAU * share).cos(), (TAU * share).sin()]
}

struct Fourier {
    here: Here,
    /// Rows, and columns.
    m: usize,
    rounds: u64,
    /// Of a transform: which transposition is on its way.
    phase: &'static mut u64,
    /// Transforms so far: the even ones go forth, the odd ones back.
    transforms: &'static mut u64,
    rows: &'static mut [f64],
}

impl Fourier {
    fn new(layout: &mut Layout, here: Here, m: usize, rounds: u64) -> io::Result<Self> {
        let rows = layout.many(here.share(m).len() * m * 2)?;
        Ok(Self { here, m, rounds, phase: layout.one()?, transforms: layout.one()?, rows })
    }

    fn frequency(&self, wave: usize) -> usize {
        WAVES[wave].0 * (self.m * self.m - 1) / 97
    }

    fn input(&self, at: usize) -> Complex {
        let n = self.m * self.m;
        let wave = |wave: usize| turn((at * self.frequency(wave) % n) as f64 / n as f64).map(|part| part * WAVES[wave].1);
        (0..WAVES.len()).map(wave).fold([0.0; 2], |sum, wave| [sum[0] + wave[0], sum[1] + wave[1]])
    }

    fn output(&self, at: usize) -> Complex {
        let waves = (0..WAVES.len()).filter(|wave| self.frequency(*wave) == at);
        [waves.map(|wave| WAVES[wave].1).sum::<f64>() * (self.m * self.m) as f64, 0.0]
    }

    fn transpose(&self, ranks: &mut Ranks<'_>) {
        let (m, rows) = (self.m, self.here.share(self.m).len());
        ranks.all_to_all(0, |to| {
            let cells = self.here.share_of(to, m).flat_map(|column| (0..rows).map(move |row| 2 * (row * m + column)));
            cells.flat_map(|cell| [self.rows[cell], self.rows[cell + 1]]).collect()
        });
    }

    fn arrange(&mut self, got: &Messages) {
        let (m, here) = (self.m, self.here);
        for which in 0..got.len() {
            let (part, theirs) = (got.values::<f64>(which), here.share_of(got.from(which), m));
            for (row, part) in part.chunks_exact(theirs.len().max(1) * 2).enumerate() {
                self.rows[2 * (row * m + theirs.start)..][..part.len()].copy_from_slice(part);
            }
        }
    }

    /// Transforms each row; then each value is turned by what the position of row and column ask for, if it is `twisted`.
    fn transform_rows(&mut self, twisted: bool) {
        let (m, first) = (self.m, self.here.share(self.m).start);
        let sign = if self.transforms.is_multiple_of(2) { -1.0 } else { 1.0 };
        for (row, values) in self.rows.chunks_exact_mut(2 * m).enumerate() {
            let (values, _) = values.as_chunks_mut::<2>();
            transform(values, sign);
            if twisted {
                let step = (first + row) as f64 / (m * m) as f64;
                values.iter_mut().enumerate().for_each(|(column, value)| *value = times(*value, turn(sign * step * column as f64)));
            }
        }
    }

    fn error(&self) -> f64 {
        let (m, first) = (self.m, self.here.share(self.m).start);
        let forth = *self.transforms % 2 == 1;
        let scale = if forth { (m * m) as f64 } else { 1.0 };
        let (values, _) = self.rows.as_chunks::<2>();
        let off = values.iter().enumerate().map(|(at, value)| {
            let expected = if forth { self.output(first * m + at) } else { self.input(first * m + at) };
            (value[0] - expected[0]).hypot(value[1] - expected[1]) / scale
        });
        off.fold(0.0, f64::max)
    }
}

fn transform(values: &mut [Complex], sign: f64) {
    let n = values.len();
    let bits = n.trailing_zeros();
    for at in 0..n {
        let other = if bits == 0 { at } else { at.reverse_bits() >> (usize::BITS - bits) };
        if other > at {
            values.swap(at, other);
        }
    }
    let mut half = 1;
    while half < n {
        for at in 0..half {
            let factor = turn(sign * at as f64 / (2 * half) as f64);
            for low in (at..n).step_by(2 * half) {
                let (a, b) = (values[low], times(values[low + half], factor));
                (values[low], values[low + half]) = ([a[0] + b[0], a[1] + b[1]], [a[0] - b[0], a[1] - b[1]]);
            }
        }
        half *= 2;
    }
}

impl Program for Fourier {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let first = self.here.share(self.m).start * self.m;
        for at in 0..self.rows.len() / 2 {
            let value = self.input(first + at);
            self.rows[2 * at..][..2].copy_from_slice(&value);
        }
        self.transpose(ranks);
    }

    fn wants(&self) -> Wants {
        Wants::all(self.here, 0)
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        self.arrange(&got);
        if *self.phase < 2 {
            self.transform_rows(*self.phase == 0);
            *self.phase += 1;
            self.transpose(ranks);
            return Next::Step;
        }
        if *self.transforms % 2 == 1 {
            let scale = 1.0 / (self.m * self.m) as f64;
            self.rows.iter_mut().for_each(|value| *value *= scale);
        }
        *self.phase = 0;
        *self.transforms += 1;
        let error = self.error();
        if error > 1e-7 {
            return Next::Failed(format!("after {} transforms a point is wrong by {error}", self.transforms));
        }
        if *self.transforms == 2 * self.rounds {
            return Next::Done(format!("{} transforms of {} points, right to {error:.1e} here", self.transforms, self.m * self.m));
        }
        self.transpose(ranks);
        Next::Step
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let (points, rounds) = (args.first().copied().unwrap_or(16384), args.get(1).copied().unwrap_or(100));
    let m = 1 << (points.max(4).ilog2() / 2);
    ranks::run(|layout, here| Fourier::new(layout, here, m, rounds as u64))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
