//! The network of an experiment: links and switches between the interfaces of its machines.
//!
//! - [`topology`]: which interfaces there are, and what connects them
//!
//! This room knows no machine but by name, and no clock: virtual time is handed in.

pub mod topology;

pub use topology::{Chance, Discipline, Interface, InterfaceId, Lan, Link, Mac, ParseMacError, Port, Shape, Topology, TopologyError};
