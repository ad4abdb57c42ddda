//! The commands, a file each: options, what is asked for, and how the answer looks.

mod checkpoint;
mod completions;
mod console;
mod diff;
mod doctor;
mod down;
mod exec;
mod fork;
mod goto;
mod keeper;
mod log;
mod ls;
mod pause;
mod rebuild;
mod resume;
#[cfg(test)]
pub mod samples;
mod schema;
mod show;
mod tag;
mod up;

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
    Checkpoint(checkpoint::Checkpoint),
    Log(log::Log),
    Show(show::Show),
    Diff(diff::Diff),
    Goto(goto::Goto),
    Fork(fork::Fork),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Tag(tag::Tag),
    Ls(ls::Ls),
    Down(down::Down),
    Rebuild(rebuild::Rebuild),
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
            Self::Checkpoint(command) => command.run(context),
            Self::Log(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Diff(command) => command.run(context),
            Self::Goto(command) => command.run(context),
            Self::Fork(command) => command.run(context),
            Self::Pause(command) => command.run(context),
            Self::Resume(command) => command.run(context),
            Self::Tag(command) => command.run(context),
            Self::Ls(command) => command.run(context),
            Self::Down(command) => command.run(context),
            Self::Rebuild(command) => command.run(context),
            Self::Schema(command) => command.run(context),
            Self::Doctor(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Keeper(command) => command.run(context),
        }
    }

    /// The exit status when it could not be done: one that no guest's command is likely to return.
    pub fn failed_status(&self) -> u8 {
        if matches!(self, Self::Exec(_)) { 255 } else { 1 }
    }
}
