//! Checkpoints as a tree: log, go to, fork, compare, keep and forget.
//!
//! - [`history`]: the tree as the store has it
//! - [`keeper`]: the runs that grow it on this host, and journeys in it
//! - [`retention`]: what a policy keeps
//! - [`tally`]: what a keeper counted since it began
//! - `spares`: the process kept warm for the next journey
//!
//! It knows neither sockets nor terminals: requests come as calls.

mod error;
pub mod history;
pub mod keeper;
pub mod retention;
mod spares;
pub mod tally;

pub use error::{Error, Result};
pub use history::{Change, Entry};
pub use keeper::{Activity, FIRST_RUN, Fork, Instant, Keeper, Reached, Resumed, SwapIn};
