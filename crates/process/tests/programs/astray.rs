//! A program that has to do with a rank that is not there: it waits for a message of it, or sends it one.

use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::process::ExitCode;

/// Of four ranks.
const NOBODY: usize = 7;

struct Astray {
    here: Here,
    waits: bool,
}

impl Program for Astray {
    fn wants(&self) -> Wants {
        if self.waits && self.here.rank == 2 { Wants::one(NOBODY, 0) } else { Wants::nothing() }
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, _: Messages) -> Next {
        match self.here.rank {
            2 => ranks.send(NOBODY, 0, &[1u8]),
            // Those who are right go on, and would for ever.
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
        Next::Step
    }
}

/// It waits if there is a 1 among its arguments, and sends otherwise.
pub fn program(args: &[usize]) -> ExitCode {
    ranks::run(|_: &mut Layout, here| Ok(Astray { here, waits: args == [1] }))
}
