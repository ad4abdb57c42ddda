//! The network of an experiment: links and switches between the interfaces of its machines.
//!
//! - [`topology`]: which interfaces there are, and what connects them
//! - `world`: [`World`], the network as a value in virtual time
//! - `direction`: one direction of a cable; `queue`: the frames that wait for its transmitter; `codel`: its active queue discipline; `switch`: a switch's table
//! - `change`: changes of a live link; `counters`: what was counted; `random`: seeded randomness; `perturb`: what is different in a replay
//! - `state`: a network as bytes and back
//! - [`clock`]: virtual time, made of the host's
//! - [`fabric`]: the network at work: a server for each interface, and a thread that hands frames over when they are due
//! - `device`: an interface as a guest's driver sees it
//! - [`part`]: the network as a part of an experiment
//! - `capture`: frames noted beside the network for somebody to read; [`pcapng`]: how they are written
//! - `fuzzing`: what fuzzers call, only with that feature
//!
//! **A frame** is taken out of a guest's memory by `device`, waits in the fabric's inbox until somebody has the lock of the [`World`], goes through it in virtual
//! time, and is laid into the receiver's memory.
//!
//! This room knows no machine but by name, and no clock but the one that it is handed.

mod capture;
mod change;
pub mod clock;
mod codel;
mod counters;
mod device;
mod direction;
pub mod fabric;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod part;
pub mod pcapng;
mod perturb;
mod queue;
mod random;
mod state;
mod switch;
pub mod topology;
mod world;

pub use capture::Capture;
pub use change::{Change, Reshape};
pub use clock::Clock;
pub use counters::{Counters, Dropped, Traffic};
pub use fabric::{CAPTURES_MAX, Fabric, NicOptions, Snapshot, Trouble};
pub use part::{NetworkDetails, NetworkPart, WORLD};
pub use pcapng::{Block, Packet, Recorded, Way};
pub use state::Unreadable;
pub use topology::{Chance, Discipline, Interface, InterfaceId, Lan, Link, Mac, ParseMacError, Port, Shape, Topology, TopologyError};
pub use world::{Handover, World};
