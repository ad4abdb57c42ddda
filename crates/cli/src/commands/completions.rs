//! `fermata completions`: for the shell's tab key.

use super::{Context, Result};
use crate::complete;
use clap::Args;
use clap_complete::Shell;
use serde_json::json;

/// Print a completion script for a shell
///
/// With it the tab key completes commands and options, and names of checkpoints, branches, tags, runs, machines and interfaces: those of the
/// experiment that is meant. The script starts `fermata` to ask for them. Read it anew whenever Fermata is of another version.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  echo 'source <(fermata completions bash)' >> ~/.bashrc
  echo 'source <(fermata completions zsh)' >> ~/.zshrc
  echo 'fermata completions fish | source' > ~/.config/fish/completions/fermata.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self, context: &Context) -> Result {
        let shell = self.shell.to_string();
        let script = complete::script(&shell)?;
        let value = json!({"shell": shell, "script": script});
        context.out.answer(&value, |_| script)?;
        Ok(0)
    }
}
