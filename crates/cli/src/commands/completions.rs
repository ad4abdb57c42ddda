//! `fermata completions`: for the shell's tab key.

use super::{Context, Result};
use crate::args::Cli;
use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use serde_json::json;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata completions bash > ~/.local/share/bash-completion/completions/fermata
  fermata completions zsh > ~/.zfunc/_fermata")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self, context: &Context) -> Result {
        let mut script = Vec::new();
        generate(self.shell, &mut Cli::command(), "fermata", &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        let value = json!({"shell": self.shell.to_string(), "script": script});
        context.out.answer(&value, |_| script)?;
        Ok(0)
    }
}
