//! Programs of several ranks on one host or many: they compute, send each other messages, and are checkpointed together while they run.
//!
//! For whoever writes such a program:
//!
//! - [`program`]: what a program is: steps, each of which takes messages, computes and sends
//! - [`messages`]: what a step waits for and gets
//! - [`run`]: the whole `main` of a program
//!
//! For whoever runs it:
//!
//! - [`host`]: runs a program to its end, and takes all ranks back when one dies
//! - `hosts`: where ranks run, and how they are started there
//! - `life`: the processes of the ranks from one beginning to one end
//! - `together`: coordinates checkpoints of all ranks
//! - `apart`: keeps those that each rank takes by itself
//! - `stable`: checkpoints in the store
//!
//! Within a rank:
//!
//! - `area`: the memory that is captured, copied when it is written to before it was saved
//! - `around`: which pages it is about to write to
//! - `runtime`: the threads around the program
//! - `side`: its side of either protocol
//! - [`mpi`]: the same for a program of MPI, which is no program of steps
//! - `wire`: what goes over the sockets
//! - `fuzzing`: what fuzzers call, only with that feature
//!
//! The protocols are those of `fermata_checkpoint::consistent` and `fermata_checkpoint::optimistic`; which shape a program has and why is in `docs/decisions/0038-ranks.md`.

mod apart;
mod area;
mod around;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub mod host;
mod hosts;
mod life;
mod links;
pub mod messages;
pub mod mode;
mod mpirun;
pub mod program;
mod runtime;
mod side;
mod stable;
mod together;
mod wire;

pub use fermata_linux::own_memory::Plain;
pub use host::{Aborted, Error, Event, Garbage, Line, Options, Outcome, Taken};
pub use hosts::Host;
pub use messages::{Messages, Wants};
pub use mode::{Mode, Transport};
pub use program::{Here, Layout, Next, Program, Ranks};
pub use runtime::mpi;
pub use runtime::{run, try_run};
