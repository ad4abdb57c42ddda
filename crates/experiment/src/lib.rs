//! Reads the specification of an experiment, builds its parts and coordinates them.
//!
//! - [`spec`]: the YAML, its errors and its schema
//! - `topology`: the network that a specification describes
//! - `plan`: a specification with all that depends on the host settled
//! - [`host`]: store, run directory and golden images on this host
//! - [`images`]: golden images by what is in them; `boot`: the files that guests boot from, likewise
//! - [`body`]: the machines that a run lives in
//! - [`machine_body`]: one QEMU process with the servers of its disks
//! - `network`: what the network and the machines have to know of each other
//! - `together`, `several`: the same for several machines, side by side
//! - [`forwards`]: ports of machines that are reached from this host; `services`: what answers guests there
//! - `real_time`: guests that are told the real time when they go on
//! - `guest_clock`: what virtual time it is while the guests run; `pace`: how the network's time and the machines' stay one
//! - `events`: what happens by itself at given times
//! - `blocks`: what the disks know of a machine's memory
//! - [`compare`]: what differs between two checkpoints besides their pages
//! - `coordinate`: one checkpoint over all parts
//! - [`stills`]: what a checkpoint has of its machines, without running them
//! - `fuzzing`: what fuzzers call, only with that feature
//! - [`run`]: a live execution that grows a branch, and journeys to checkpoints
//!
//! It knows no tree of checkpoints, no keeper and no command line. The parts do not know each other: what one has to tell another goes through here.

mod blocks;
pub mod body;
mod boot;
pub mod compare;
mod coordinate;
mod error;
mod events;
pub mod forwards;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guest_clock;
pub mod host;
pub mod images;
pub mod machine_body;
mod network;
mod pace;
mod plan;
mod real_time;
pub mod run;
mod services;
mod several;
pub mod spec;
pub mod stills;
mod together;
mod topology;

pub use body::{Blueprint, Body};
pub use compare::{Compared, LinkDiffers, LinkState, compare};
pub use coordinate::{Moment, PartFailure};
pub use error::{Error, Result};
pub use fermata_disk::ImageDetails;
pub use fermata_disk::files::{FileChange, FileDiffers, FileKind, FilesDiffer};
pub use fermata_net as net;
pub use fermata_vm::{Accel, CoreTold, Execution, GLANCE, Machine, Paging, QemuVersion, Status, TrackerStanding, qemu_program};
pub use forwards::Forward;
pub use host::{Host, remembered_working_set};
pub use images::{find_image, images_of, open_own_images};
pub use machine_body::MachineBody;
pub use network::network_at;
pub use run::{Arrival, Asked, Journey, Run, Standing, When, fits, spare, spare_like, travel};
pub use spec::Spec;
pub use stills::{ImageFormat, Stills};
