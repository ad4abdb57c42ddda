//! What a program of ranks is.
//!
//! A program goes in steps. A step says what messages it waits for, gets all of them, computes, and sends; then comes the next step. All that a step changes lies in memory that
//! the [`Layout`] gave out. So between two steps, and while one waits, the memory and the messages are all there is of a rank: that is where it is captured, and from there it goes
//! on after a failure. What a step must not do, wait in its middle, cannot be written down: [`Program::wants`] cannot change anything, and [`Program::step`] has
//! nothing to wait with.
//!
//! ```no_run
//! use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
//!
//! /// Adds up the numbers of all ranks, a hundred times.
//! struct Sum {
//!     here: Here,
//!     round: &'static mut u64,
//!     total: &'static mut u64,
//! }
//!
//! impl Program for Sum {
//!     fn begin(&mut self, ranks: &mut Ranks<'_>) {
//!         ranks.broadcast(0, &[self.here.rank as u64]);
//!     }
//!
//!     fn wants(&self) -> Wants {
//!         Wants::all(self.here, 0)
//!     }
//!
//!     fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
//!         *self.total += got.reduce(|a: u64, b| a + b)[0];
//!         *self.round += 1;
//!         if *self.round == 100 {
//!             return Next::Done(self.total.to_string());
//!         }
//!         ranks.broadcast(0, &[self.here.rank as u64]);
//!         Next::Step
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     ranks::run(|layout: &mut Layout, here| Ok(Sum { here, round: layout.one()?, total: layout.one()? }))
//! }
//! ```

use super::{
    Plain,
    messages::{Messages, Parcel, Wants},
    runtime::Runtime,
};
use fermata_linux::own_memory::Pieces;
use std::{io, ops::Range, sync::Arc};

/// Which rank this is, and of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// Its number, from 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Here {
    /// The share of this rank in `count` things that are divided evenly.
    pub fn share(self, count: usize) -> Range<usize> {
        self.share_of(self.rank, count)
    }

    /// The share of another rank.
    pub fn share_of(self, rank: usize, count: usize) -> Range<usize> {
        count * rank / self.ranks..count * (rank + 1) / self.ranks
    }
}

/// What to do after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The next step.
    Step,
    /// This rank has done its work; this is what it has to say, perhaps nothing. It is printed once, when all ranks are done.
    Done(String),
    /// Something is wrong that trying again will not mend. All ranks end.
    Failed(String),
}

/// A program, as each rank runs it. Whatever changes must lie in the memory of the [`Layout`]: a rank that goes back to a checkpoint is made anew, and finds there what was there.
pub trait Program {
    /// Comes before the first step. A rank that goes on from a checkpoint has done this before.
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let _ = ranks;
    }

    /// What the next step waits for.
    fn wants(&self) -> Wants;

    /// One step. A checkpoint waits for the end of it.
    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next;
}

/// Gives out the memory of a rank. It must be asked for the same pieces in the same order whenever the program starts.
#[derive(Debug)]
pub struct Layout(pub(super) Pieces);

impl Layout {
    /// So many values: zeros in the beginning.
    pub fn many<T: Plain>(&mut self, count: usize) -> io::Result<&'static mut [T]> {
        self.0.take(count)
    }

    /// One value, zero in the beginning.
    pub fn one<T: Plain>(&mut self) -> io::Result<&'static mut T> {
        Ok(&mut self.many(1)?[0])
    }
}

/// All ranks, for sending. What is sent to one rank arrives in the order in which it was sent, once.
#[derive(Debug)]
pub struct Ranks<'a> {
    pub(super) runtime: &'a Runtime,
}

impl Ranks<'_> {
    /// Which rank this is.
    pub fn here(&self) -> Here {
        self.runtime.here()
    }

    /// Sends values to a rank, which may be this one. All ranks end if there is no such rank.
    pub fn send<T: Plain>(&mut self, to: usize, tag: u32, values: &[T]) {
        self.runtime.send(to, &Parcel::new(tag, values));
    }

    /// Sends the same to all, this rank among them.
    pub fn broadcast<T: Plain>(&mut self, tag: u32, values: &[T]) {
        let parcel = Parcel::new(tag, values);
        (0..self.here().ranks).for_each(|to| self.runtime.send(to, &parcel));
    }

    /// Sends to each rank what is its own, this rank among them: the next step of each wants [`Wants::all`].
    pub fn all_to_all<T: Plain>(&mut self, tag: u32, mut values: impl FnMut(usize) -> Vec<T>) {
        (0..self.here().ranks).for_each(|to| self.runtime.send(to, &Parcel::new(tag, &values(to))));
    }

    /// This rank's part of a reduction: `root` wants [`Wants::all`] and puts together what it gets with [`Messages::reduce`].
    pub fn reduce<T: Plain>(&mut self, root: usize, tag: u32, values: &[T]) {
        self.send(root, tag, values);
    }

    /// The same where every rank is to have the result.
    pub fn all_reduce<T: Plain>(&mut self, tag: u32, values: &[T]) {
        self.broadcast(tag, values);
    }
}

/// Messages are shared where many get the same.
pub(super) type Shared = Arc<Parcel>;
