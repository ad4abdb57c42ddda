//! `fermata pause`: stops the machines of a run.

use super::{Context, Result};
use crate::{complete, pick, progress};
use clap::Args;
use fermata_api::{Service, values::RunRequest};

/// Stop the machines of a run
///
/// Its guests see no time pass. `fermata resume` lets them go on; checkpoints can be taken meanwhile.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata pause
  fermata pause what-if")]
pub struct Pause {
    /// The run; needed only if there are several and none is called main
    #[arg(add = complete::runs())]
    run: Option<String>,
}

impl Pause {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let request = RunRequest { run: self.run, ..RunRequest::default() };
        let run = progress::during(&context.out, "pausing", || keeper.activity(), || keeper.pause(request))?;
        context.out.answer(&run, |_| format!("{} is paused", run.name))?;
        Ok(0)
    }
}
