//! What the doors need: requests and answers as plain values, and who fulfils them.
//!
//! - [`values`]: the values. `--json` prints them and the HTTP interface carries them
//! - [`service`]: what a keeper offers, as a trait
//! - [`server`], [`client`]: the same over HTTP/1.1 on a Unix socket
//! - `desk`: where a keeper turns requests into calls; `convert`: from what the rooms below know to these values
//! - [`local`]: what needs no keeper: the store's history, who keeps what on this host, and starting a keeper
//! - `keeping`: starting a keeper, finding one, being one
//! - [`paths`]: where things are on this host
//! - [`metrics`]: figures for Prometheus
//! - [`housekeeping`]: removing, collecting, verifying and counting what is in a store
//! - `links`: the links of a run, as they are and as they are to be
//! - `captures`: what goes through interfaces, as it goes
//! - [`remotes`]: places that checkpoints are copied to and from
//! - [`ranks`]: programs of ranks, run with consistent checkpoints
//! - [`remote_prune`]: removing checkpoints from there; [`remote_verify`]: whether all is there
//! - [`backups`]: a copy of every checkpoint elsewhere
//! - [`secrets`]: stores that are encrypted, and what opens them
//! - [`swapping`]: experiments that leave this host and come back
//! - [`exports`]: parts of checkpoints as files for other programs
//! - [`mounting`]: checkpoints as directories of files
//! - [`plots`]: figures over many checkpoints, as series to draw
//! - [`receiving`]: second copies of programs' areas
//! - [`trials`]: forks in which a script runs, for whoever tries things; [`bisect`]: which checkpoint to try next
//! - [`doctor`]: what this host can and cannot do
//! - [`spec`], [`net`]: the specification of an experiment and its network, handed through to the doors
//!
//! It knows no command line and no terminal, and decides nothing about checkpoints.

pub mod backups;
pub mod bisect;
mod captures;
pub mod client;
mod convert;
mod desk;
pub mod doctor;
pub mod exports;
pub mod housekeeping;
mod keeping;
mod links;
pub mod local;
pub mod metrics;
pub mod mounting;
pub mod paths;
pub mod plots;
pub mod ranks;
pub mod receiving;
pub mod remote_prune;
pub mod remote_verify;
pub mod remotes;
#[cfg(test)]
mod samples;
pub mod secrets;
pub mod server;
pub mod service;
pub mod swapping;
pub mod trials;
pub mod values;

pub use client::Client;
pub use fermata_experiment::{net, spec};
pub use fermata_linux::signals::on_termination;
pub use fermata_types as types;
pub use server::Server;
pub use service::{EXEC_INPUT_BYTES_MAX, Service};
