//! Heat in a rod: each point becomes the mean of its two neighbours, again and again. The rod is divided among the ranks, and neighbours exchange their ends. In the end rank 0 does the
//! same alone, and compares every bit.
//!
//!     rod POINTS ROUNDS

mod fermata;

use fermata::Piece;
use mpi::{collective::SystemOperation, traits::*};
use std::{env, process::ExitCode};

fn in_the_beginning(point: usize) -> f64 {
    (point * 37 % 101) as f64
}

/// One round. The first and the last stay as they are.
fn relax(to: &mut [f64], from: &[f64]) {
    for (to, around) in to[1..].iter_mut().zip(from.windows(3)) {
        *to = 0.5 * (around[0] + around[2]);
    }
}

/// The points after all rounds, by one alone.
fn alone(points: usize, rounds: usize) -> Vec<f64> {
    let mut now: Vec<_> = (0..points + 2).map(in_the_beginning).collect();
    let mut next = now.clone();
    for _ in 0..rounds {
        relax(&mut next, &now);
        std::mem::swap(&mut now, &mut next);
    }
    now[1..=points].to_vec()
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let (points, rounds): (usize, usize) = (arguments.next().unwrap_or(1 << 16), arguments.next().unwrap_or(20_000));
    let universe = mpi::initialize().expect("nobody else begins MPI");
    let world = universe.world();
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    assert!(points % ranks == 0, "{points} points cannot be divided among {ranks} ranks");
    let own = points / ranks;

    let mut round = Piece::<u64>::take(1);
    let mut rods = [(); 2].map(|()| Piece::<f64>::take(own + 2));
    for rod in &mut rods {
        (rank * own..).zip(rod.get()).for_each(|(point, value)| *value = in_the_beginning(point));
    }
    while (round.get()[0] as usize) < rounds {
        let [even, odd] = &mut rods;
        fermata::checkpoint([&mut round, even, odd]);
        let round = &mut round.get()[0];
        let (now, next) = if *round % 2 == 0 { (even.get(), odd.get()) } else { (odd.get(), even.get()) };
        // To the left and from the right, then the other way.
        if rank > 0 {
            world.process_at_rank(rank as i32 - 1).send(&now[1]);
        }
        if rank + 1 < ranks {
            world.process_at_rank(rank as i32 + 1).receive_into(&mut now[own + 1]);
            world.process_at_rank(rank as i32 + 1).send(&now[own]);
        }
        if rank > 0 {
            world.process_at_rank(rank as i32 - 1).receive_into(&mut now[0]);
        }
        relax(next, now);
        *round += 1;
        if *round % 100 == 0 {
            let (most, mut of_all) = (next.iter().copied().fold(f64::MIN, f64::max), 0.0);
            world.all_reduce_into(&most, &mut of_all, SystemOperation::max());
            assert!(of_all <= 100.0, "heat came from nowhere");
        }
    }

    let mine = &rods[rounds % 2].get()[1..=own];
    let root = world.process_at_rank(0);
    if rank > 0 {
        root.gather_into(mine);
        return ExitCode::SUCCESS;
    }
    let mut all = vec![0.0; points];
    root.gather_into_root(mine, &mut all);
    let right = all == alone(points, rounds);
    println!("{rounds} rounds on {points} points: {}", if right { "right" } else { "wrong" });
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
