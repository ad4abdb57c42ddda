//! `fermata resume`: lets the machines of a run go on.

use super::{Context, Result};
use crate::{complete, pick, progress};
use clap::Args;
use fermata_api::{Service, values::RunRequest};

/// Let the machines of a paused run go on
///
/// They go on as if no time had passed since `fermata pause`, or since the checkpoint that `fermata goto --paused` took them to. A guest that has suspended itself to RAM is
/// woken.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata resume
  fermata resume what-if")]
pub struct Resume {
    /// The run; needed only if there are several and none is called main
    #[arg(add = complete::runs())]
    run: Option<String>,
}

impl Resume {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let request = RunRequest { run: self.run, ..RunRequest::default() };
        let run = progress::during(&context.out, "resuming", || keeper.activity(), || keeper.resume(request))?;
        context.out.answer(&run, |_| format!("{} runs", run.name))?;
        Ok(0)
    }
}
