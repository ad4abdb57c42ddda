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
//! - [`host`]: starts the ranks, coordinates their checkpoints, and takes all of them back when one dies
//! - `stable`: checkpoints in the store
//!
//! Within a rank:
//!
//! - `area`: the memory that is captured, copied when it is written to before it was saved
//! - `runtime`: the threads around the program
//! - `wire`: what goes over the sockets
//!
//! The protocol is that of `fermata_checkpoint::consistent`; which shape a program has and why is in `docs/decisions/0038-ranks.md`.

mod area;
pub mod host;
mod links;
pub mod messages;
pub mod mode;
pub mod program;
mod runtime;
mod stable;
mod wire;

pub use fermata_linux::own_memory::Plain;
pub use host::{Error, Event, Options, Outcome, Taken};
pub use messages::{Messages, Wants};
pub use mode::{Mode, Transport};
pub use program::{Here, Layout, Next, Program, Ranks};
pub use runtime::{run, try_run};
