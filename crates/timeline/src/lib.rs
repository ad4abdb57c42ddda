//! Checkpoints as a tree: log, go to, fork, compare.
//!
//! - [`history`]: the tree as the store has it
//! - [`keeper`]: the runs that grow it on this host, and journeys in it
//! - [`tally`]: what a keeper counted since it began
//! - `spares`: the process kept warm for the next journey
//!
//! It knows neither sockets nor terminals: requests come as calls.

mod error;
pub mod history;
pub mod keeper;
mod spares;
pub mod tally;

pub use error::{Error, Result};
pub use history::{Change, Entry};
pub use keeper::{Activity, FIRST_RUN, Fork, Instant, Keeper, Reached, Resumed};
