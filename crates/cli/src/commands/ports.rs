//! `fermata ports`: which ports of machines are reached from this host, and where.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::values::{Experiment, ForwardOf, Machine, Run};

/// List the ports of machines that are forwarded from this host
///
/// A machine whose part of the specification has `ports` has one more interface, by which people come in. It is not part of checkpoints: connections
/// end at `fermata goto`, and the same ports of this host lead into the machine where it is then. A fork has ports of its own. The guest reaches
/// nothing by it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata ports
  fermata ports what-if:m1
  curl http://$(fermata ports m1 --json | jq -r '.[] | select(.guest_port == 80).host')/")]
pub struct Ports {
    /// The machine; without it all of all runs are listed. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE", add = complete::machines())]
    machine: Option<String>,
}

impl Ports {
    pub fn run(self, context: &Context) -> Result {
        let experiment = pick::living(context)?;
        let ports = match &self.machine {
            Some(wanted) => {
                let (run, machine) = pick::machine(&experiment, wanted)?;
                of(run, machine).collect()
            }
            None => all(&experiment),
        };
        context.out.answer(&ports, |style| text(&ports, style))?;
        Ok(0)
    }
}

fn all(experiment: &Experiment) -> Vec<ForwardOf> {
    experiment.runs.iter().flat_map(|run| run.machines.iter().flat_map(move |machine| of(run, machine))).collect()
}

fn of<'a>(run: &'a Run, machine: &'a Machine) -> impl Iterator<Item = ForwardOf> + 'a {
    machine.ports.iter().map(|forward| ForwardOf { machine: format!("{}:{}", run.name, machine.name), forward: *forward })
}

/// A table of ports.
pub fn text(ports: &[ForwardOf], style: &Style) -> String {
    if ports.is_empty() {
        return "no port is forwarded; `ports: [22]` in a machine's part of the specification makes it reachable\n".to_owned();
    }
    let mut table = Table::new(&[("MACHINE", Set::Left), ("PORT", Set::Right), ("REACHED AT", Set::Left)]);
    for ForwardOf { machine, forward } in ports {
        let host = forward.host.map_or_else(|| Cell::new(Paint::Bad, "-"), |host| host.to_string().into());
        table.row(vec![Cell::new(Paint::Name, text::harmless(machine)), forward.guest_port.to_string().into(), host]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::{experiment, run};
    use fermata_api::values::Forward;

    #[test]
    fn ports_of_all_runs() {
        let mut tryout = experiment("tryout");
        tryout.runs.push(run("what-if"));
        assert!(text(&all(&tryout), &Style::default()).contains("`ports: [22]`"));
        let forward = |guest_port, host: &str| Forward { guest_port, host: host.parse().ok() };
        tryout.runs[0].machines[0].ports = vec![forward(22, "127.0.0.1:40022"), forward(80, "127.0.0.1:8080")];
        tryout.runs[1].machines[0].ports = vec![forward(22, "")];
        let expected = "\
MACHINE     PORT  REACHED AT
main:m1       22  127.0.0.1:40022
main:m1       80  127.0.0.1:8080
what-if:m1    22  -
";
        assert_eq!(text(&all(&tryout), &Style::default()), expected);
    }
}
