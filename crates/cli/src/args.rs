//! The command line as a whole.

use crate::{commands::Command, complete};
use clap::{Args, Parser};
use std::path::PathBuf;

const ABOUT: &str = "Version control for running systems";

const LONG_ABOUT: &str = "\
Version control for running systems.

Fermata runs a virtual machine and takes a checkpoint of it every few seconds: all of its memory, disks and devices, at the cost of a pause of a few \
milliseconds that the guest does not see. You can go back to any checkpoint, and start a second run from one beside the first.";

const EXAMPLES: &str = "\
Examples:
  fermata up debian.qcow2 --memory 1G --every 2s
  fermata exec m1 -- make -C /src
  fermata checkpoint -m \"before the upgrade\"
  fermata log --graph
  fermata goto ID
  fermata fork ID --name what-if

`fermata doctor` says what this host can do. `fermata help COMMAND` tells more about a command.

Exit status: 0 only when it did what it says, 1 when that failed, 2 for misuse or a wrong specification. `fermata exec` passes on the status of the \
command in the guest, and has 255 for its own failures.";

#[derive(Debug, Parser)]
#[command(name = "fermata", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// Print one JSON value instead of text; failures too, as {"error": {"message"}}
    #[arg(long, global = true)]
    pub json: bool,

    /// The store [default: $FERMATA_STORE, else fermata in the user's data directory]
    #[arg(long, global = true, value_name = "DIR", env = "FERMATA_STORE", hide_env = true)]
    pub store: Option<PathBuf>,

    /// The experiment; needed only if several could be meant [default: $FERMATA_EXPERIMENT]
    #[arg(short, long, global = true, value_name = "NAME", env = "FERMATA_EXPERIMENT", hide_env = true, add = complete::experiments())]
    pub experiment: Option<String>,

    /// Show no progress bar
    #[arg(long, global = true)]
    pub no_progress: bool,

    /// Print nothing but ids and names
    #[arg(short, long, global = true)]
    pub quiet: bool,
}
