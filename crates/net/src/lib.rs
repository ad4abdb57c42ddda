//! The network of an experiment: links and switches between the interfaces of its machines.
//!
//! - [`topology`]: which interfaces there are, and what connects them
//! - `world`: [`World`], the network as a value in virtual time
//! - `direction`: one direction of a cable; `codel`: its active queue discipline; `switch`: a switch's table
//! - `change`: changes of a live link; `counters`: what was counted; `random`: seeded randomness
//! - `state`: a network as bytes and back
//! - `pcapng`: captures of frames
//! - `fuzzing`: what fuzzers call, only with that feature
//!
//! This room knows no machine but by name, and no clock: virtual time is handed in.

mod change;
mod codel;
mod counters;
mod direction;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod pcapng;
mod random;
mod state;
mod switch;
pub mod topology;
mod world;

pub use change::{Change, Reshape};
pub use counters::{Counters, Dropped, Traffic};
pub use pcapng::{Recorded, Tap, Way};
pub use state::Unreadable;
pub use topology::{Chance, Discipline, Interface, InterfaceId, Lan, Link, Mac, ParseMacError, Port, Shape, Topology, TopologyError};
pub use world::World;
