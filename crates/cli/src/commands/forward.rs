//! `fermata forward`: makes one more port of a machine reachable from this host.

use super::{Context, Result, ports};
use crate::{complete, pick, progress};
use clap::Args;
use fermata_api::{Service, spec::Port, values::ForwardRequest};

/// Forward a port of a machine from this host while it runs
///
/// It is for machines whose part of the specification has `ports`, and lasts as long as the run. The interface by which it leads is not part of
/// checkpoints: connections end at `fermata goto`, and the same port of this host leads into the machine where it is then. Whoever has an account on
/// this host can connect.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata forward m1 80
  fermata forward m1 8080:80
  fermata forward what-if:m1 5432 --json | jq -r .host")]
pub struct Forward {
    /// The machine. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE", add = complete::machines())]
    machine: String,
    /// The machine's port, and before it that of 127.0.0.1 which is to lead to it; else it is any free one
    #[arg(value_name = "[HOST:]PORT")]
    port: Port,
}

impl Forward {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let request = ForwardRequest { machine: self.machine, port: self.port };
        let forward = progress::during(&context.out, "asking QEMU", || keeper.activity(), || keeper.forward(request))?;
        context.out.answer(&forward, |style| ports::text(std::slice::from_ref(&forward), style))?;
        Ok(0)
    }
}
