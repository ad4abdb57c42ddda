//! The commands, a file each: options, what is asked for, and how the answer looks.

mod attempt;
mod backup;
mod bisect;
mod capture;
mod checkpoint;
mod completions;
mod console;
mod diff;
mod doctor;
mod down;
mod exec;
mod export;
mod fork;
mod forward;
mod gc;
mod goto;
mod init;
mod keeper;
mod link;
pub mod log;
mod ls;
mod metrics;
mod mount;
mod pause;
mod peer;
mod plot;
mod ports;
mod prune;
mod push;
mod rebuild;
mod receive;
mod remote;
mod resume;
mod rm;
mod run_ranks;
#[cfg(test)]
pub mod samples;
mod schema;
mod show;
mod ssh;
mod stats;
mod swapin;
mod swapout;
mod tag;
mod umount;
mod up;
mod verify;

use crate::{
    args::Global,
    out::{Failure, Out},
};
use clap::Subcommand;

/// What every command gets.
pub struct Context {
    pub global: Global,
    pub out: Out,
}

impl Context {
    /// The same, but about the experiment of this name, if there is one.
    pub fn about(&self, experiment: Option<String>) -> Self {
        let global = Global { experiment: experiment.or_else(|| self.global.experiment.clone()), ..self.global.clone() };
        Self { global, out: self.out.clone() }
    }

    /// The experiment that was named.
    pub fn experiment(&self) -> Option<&str> {
        self.global.experiment.as_deref().filter(|name| !name.is_empty())
    }
}

/// The exit status of a command that did what it says, or what a command in a guest returned.
pub type Result = std::result::Result<u8, Failure>;

#[derive(Debug, Subcommand)]
pub enum Command {
    Up(up::Up),
    Exec(exec::Exec),
    Console(console::Console),
    Ssh(ssh::Ssh),
    Ports(ports::Ports),
    Forward(forward::Forward),
    Checkpoint(checkpoint::Checkpoint),
    Log(log::Log),
    Show(show::Show),
    Diff(diff::Diff),
    Export(export::Export),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Plot(plot::Plot),
    Goto(goto::Goto),
    Fork(fork::Fork),
    Try(attempt::Try),
    Bisect(bisect::Bisect),
    Link(link::Link),
    Capture(capture::Capture),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Tag(tag::Tag),
    Ls(ls::Ls),
    Stats(stats::Stats),
    Metrics(metrics::Metrics),
    Down(down::Down),
    Rm(rm::Rm),
    Prune(prune::Prune),
    Gc(gc::Gc),
    Remote(remote::Remote),
    Push(push::Push),
    Pull(push::Pull),
    Clone(push::Clone),
    Backup(backup::Backup),
    Swapout(swapout::Swapout),
    Swapin(swapin::Swapin),
    Verify(verify::Verify),
    Rebuild(rebuild::Rebuild),
    Init(init::Init),
    Rekey(init::Rekey),
    RunRanks(run_ranks::RunRanks),
    Receive(receive::Receive),
    Peer(peer::Peer),
    Schema(schema::Schema),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
    #[command(hide = true)]
    Keeper(keeper::Keeper),
}

impl Command {
    pub fn run(self, context: &Context) -> Result {
        match self {
            Self::Up(command) => command.run(context),
            Self::Exec(command) => command.run(context),
            Self::Console(command) => command.run(context),
            Self::Ssh(command) => command.run(context),
            Self::Ports(command) => command.run(context),
            Self::Forward(command) => command.run(context),
            Self::Checkpoint(command) => command.run(context),
            Self::Log(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Diff(command) => command.run(context),
            Self::Export(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            Self::Umount(command) => command.run(context),
            Self::Plot(command) => command.run(context),
            Self::Goto(command) => command.run(context),
            Self::Fork(command) => command.run(context),
            Self::Try(command) => command.run(context),
            Self::Bisect(command) => command.run(context),
            Self::Link(command) => command.run(context),
            Self::Capture(command) => command.run(context),
            Self::Pause(command) => command.run(context),
            Self::Resume(command) => command.run(context),
            Self::Tag(command) => command.run(context),
            Self::Ls(command) => command.run(context),
            Self::Stats(command) => command.run(context),
            Self::Metrics(command) => command.run(context),
            Self::Down(command) => command.run(context),
            Self::Rm(command) => command.run(context),
            Self::Prune(command) => command.run(context),
            Self::Gc(command) => command.run(context),
            Self::Remote(command) => command.run(context),
            Self::Push(command) => command.run(context),
            Self::Pull(command) => command.run(context),
            Self::Clone(command) => command.run(context),
            Self::Backup(command) => command.run(context),
            Self::Swapout(command) => command.run(context),
            Self::Swapin(command) => command.run(context),
            Self::Verify(command) => command.run(context),
            Self::Rebuild(command) => command.run(context),
            Self::Init(command) => command.run(context),
            Self::Rekey(command) => command.run(context),
            Self::RunRanks(command) => command.run(context),
            Self::Receive(command) => command.run(context),
            Self::Schema(command) => command.run(context),
            Self::Doctor(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Keeper(command) => command.run(context),
            Self::Peer(command) => command.run(context),
        }
    }

    /// The exit status when it could not be done: one that no guest's command is likely to return.
    pub fn failed_status(&self) -> u8 {
        if matches!(self, Self::Exec(_) | Self::Ssh(_)) { 255 } else { 1 }
    }
}
