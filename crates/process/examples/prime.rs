//! Finds the two factors of a number by Pollard's rho: `fermata run-ranks -n 16 prime 34`, for two primes of some 34 bits each.
//!
//! Rank 0 hands out walks, and the others walk until they find a factor or have gone far enough. Each talks to rank 0 only.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{io, process::ExitCode};

const TASK: u32 = 0;
const ANSWER: u32 = 1;
/// Paces of a step, and of a walk.
const STEP: u64 = 1 << 14;
const WALK: u64 = 1 << 22;
/// Instead of a walk: there are none any more.
const OVER: u64 = 0;

struct Rho {
    here: Here,
    n: u128,
    /// Walks that were handed out; at the others, the one that they are on, or [`OVER`].
    walk: &'static mut u64,
    paces: &'static mut u64,
    /// The slow walker and the fast one.
    places: &'static mut [u128],
    factor: &'static mut u128,
    /// Ranks that were told that it is over.
    dismissed: &'static mut u64,
}

/// a b mod n, for a and b below n, and n below 2^120: as many bits of b at a time as there is room for above n.
fn multiply(a: u128, b: u128, n: u128) -> u128 {
    let room = n.leading_zeros();
    let parts = (u128::BITS - room).div_ceil(room);
    (0..parts).rev().fold(0, |sum, part| ((sum << room) % n + a * (b >> (room * part) & ((1 << room) - 1)) % n) % n)
}

fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn is_prime(n: u128) -> bool {
    let (mut odd, twos) = (n - 1, (n - 1).trailing_zeros());
    odd >>= twos;
    // These witnesses leave no doubt below 3.3 * 10^24.
    [2u128, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41].into_iter().filter(|witness| *witness < n).all(|witness| {
        let (mut power, mut base, mut exponent) = (1, witness % n, odd);
        while exponent > 0 {
            if exponent & 1 == 1 {
                power = multiply(power, base, n);
            }
            base = multiply(base, base, n);
            exponent >>= 1;
        }
        let mut passes = power == 1 || power == n - 1;
        for _ in 1..twos {
            power = multiply(power, power, n);
            passes |= power == n - 1;
        }
        passes
    })
}

fn prime_from(mut n: u128) -> u128 {
    n |= 1;
    while !is_prime(n) {
        n += 2;
    }
    n
}

impl Rho {
    fn new(layout: &mut Layout, here: Here, bits: usize) -> io::Result<Self> {
        let n = prime_from((1 << bits) / 5 * 4) * prime_from((1 << bits) / 7 * 6);
        Ok(Self {
            here,
            n,
            walk: layout.one()?,
            paces: layout.one()?,
            places: layout.many(2)?,
            factor: layout.one()?,
            dismissed: layout.one()?,
        })
    }

    fn hand_out(&mut self, to: usize, ranks: &mut Ranks<'_>) {
        if *self.factor == 0 {
            *self.walk += 1;
            ranks.send(to, TASK, &[*self.walk]);
        } else {
            *self.dismissed += 1;
            ranks.send(to, TASK, &[OVER]);
        }
    }

    /// Some paces of a walk; a factor if one is found.
    fn go(&mut self) -> Option<u128> {
        let (n, shift) = (self.n, u128::from(*self.walk));
        let pace = |place: u128| (multiply(place, place, n) + shift) % n;
        let mut product = 1;
        for _ in 0..STEP {
            self.places[0] = pace(self.places[0]);
            self.places[1] = pace(pace(self.places[1]));
            let apart = self.places[0].abs_diff(self.places[1]);
            if apart == 0 {
                // Around without a factor.
                *self.paces = WALK;
                break;
            }
            product = multiply(product, apart, n);
        }
        *self.paces += STEP;
        Some(common_divisor(product, n)).filter(|factor| *factor > 1 && *factor < n)
    }

    fn master(&mut self, ranks: &mut Ranks<'_>, got: &Messages) -> Next {
        let found = got.values::<u128>(0)[0];
        if found > 1 {
            *self.factor = found;
        }
        self.hand_out(got.from(0), ranks);
        if (*self.dismissed as usize) < self.here.ranks - 1 {
            return Next::Step;
        }
        let (one, other) = (*self.factor, self.n / *self.factor);
        if one * other != self.n || !is_prime(one) || !is_prime(other) {
            return Next::Failed(format!("{one} and {other} are not the prime factors of {}", self.n));
        }
        Next::Done(format!("{} = {} * {}", self.n, one.min(other), one.max(other)))
    }
}

impl Program for Rho {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        if self.here.rank == 0 {
            (1..self.here.ranks).for_each(|to| self.hand_out(to, ranks));
        }
    }

    fn wants(&self) -> Wants {
        match (self.here.rank, *self.walk) {
            _ if self.here.ranks == 1 => Wants::nothing(),
            (0, _) => Wants::any(ANSWER),
            (_, OVER) => Wants::one(0, TASK),
            _ => Wants::nothing(),
        }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        if self.here.ranks == 1 {
            return Next::Failed("there must be two ranks at least".into());
        }
        if self.here.rank == 0 {
            return self.master(ranks, &got);
        }
        if !got.is_empty() {
            *self.walk = got.values::<u64>(0)[0];
            *self.paces = 0;
            self.places.fill(u128::from(*self.walk));
            return if *self.walk == OVER { Next::Done(String::new()) } else { Next::Step };
        }
        let found = self.go();
        if found.is_some() || *self.paces >= WALK {
            *self.walk = OVER;
            ranks.send(0, ANSWER, &[found.unwrap_or(0)]);
        }
        Next::Step
    }
}

/// What each rank runs, with these arguments.
pub fn program(args: &[usize]) -> ExitCode {
    let bits = args.first().copied().unwrap_or(34).clamp(8, 56);
    ranks::run(|layout, here| Rho::new(layout, here, bits))
}

#[allow(dead_code)]
fn main() -> ExitCode {
    program(&std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect::<Vec<_>>())
}
