//! The command line of Fermata: a thin door.
//!
//! - `args`: the command line as a whole, and options that hold for every command
//! - `commands`: one file a command: its options, what it asks for, how the answer looks
//! - `complete`: what the tab key offers
//! - `pick`: which experiment is meant; `instant`, `perturb`: instants, and what links are to do otherwise, as people write them
//! - `interrupt`: Ctrl-C for what has something to clear away
//! - `out`: answers and failures, as text or as JSON
//! - `progress`: a bar for what takes more than a second
//! - `draw`: pictures of figures over many checkpoints
//! - `graph`, `wires`, `table`, `text`: how trees, networks, tables, sizes and times look
//!
//! All figures come from `fermata-api` as plain values, which `--json` prints. It knows no store, no QEMU and no keeper but through that.

mod args;
mod commands;
mod complete;
mod draw;
mod graph;
mod instant;
mod interrupt;
mod out;
mod perturb;
mod pick;
mod progress;
mod table;
mod text;
mod wires;

use args::Cli;
use clap::Parser;
use out::{Failure, Out};
use std::{ffi::OsStr, io::IsTerminal as _, path::Path, process::ExitCode};

/// A keeper runs for weeks and its threads come and go. The C library's allocator keeps what each of them once held for itself; this one gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    if complete::answer() {
        return ExitCode::SUCCESS;
    }
    if std::io::stdin().is_terminal() {
        let ask = |store: &Path| rpassword::prompt_password(format!("passphrase of the store {}: ", store.display()));
        fermata_api::secrets::ask_passphrases_with(ask);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(misuse) => return refuse(&misuse),
    };
    let out = Out::new(&cli.global);
    let failed = cli.command.failed_status();
    let context = commands::Context { global: cli.global, out };
    match cli.command.run(&context) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            context.out.fail(&failure);
            ExitCode::from(if matches!(failure, Failure::Problem(_)) { failed } else { failure.status() })
        }
    }
}

/// Tells what is wrong with the command line; or prints the help, which arrives as an error too.
fn refuse(misuse: &clap::Error) -> ExitCode {
    // The options were not understood, so this one is looked for by hand. After `--` it would belong to the guest's command.
    let ours = std::env::args_os().skip(1).take_while(|argument| argument != OsStr::new("--"));
    if misuse.use_stderr() && ours.into_iter().any(|argument| argument == OsStr::new("--json")) {
        Out::json().fail(&Failure::Misuse(misuse.to_string().trim().to_owned()));
    } else if misuse.print().is_err() {
        return ExitCode::from(Failure::Pipe.status());
    }
    ExitCode::from(if misuse.use_stderr() { 2 } else { 0 })
}
