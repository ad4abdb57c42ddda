//! `fermata try`: one instant under several conditions.

mod condition;

use super::{Context, Result};
use crate::{
    complete,
    instant::span,
    interrupt,
    out::{Failure, Paint, Style},
    perturb::Perturb,
    pick, progress,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use condition::{Condition, Each, product};
use fermata_api::{
    Client, Service, local,
    trials::{Lab, Trial},
    types::Perturbation,
    values::{LinkEnd, LinkRequest, Problem, Tried, TriedOnce},
};

/// Try one instant under several conditions, and tabulate what comes out
///
/// For each condition a fork of the checkpoint is made: what is different there is changed before it runs, virtual time passes, and then a script runs. Its exit
/// status and its last line are the result. The forks draw the same random numbers, so that nothing else is different, and end afterwards with the checkpoints that they took, whatever
/// happens; only --keep leaves them.
///
/// A condition is a property of a link as `fermata link` has it (rate, delay, jitter, loss, duplicate, reorder, queue, discipline), or a variable of the environment, in capitals, of
/// the script and of commands that --before runs; or perturb with seeds, by which all links do otherwise than they did, as --vary and --within say; or cpus, the number of processors
/// that are online in every guest: its agent takes the others offline. Several --each are tried in all combinations.
///
/// The script is given to a shell of this host, with FERMATA_EXPERIMENT, FERMATA_RUN and the condition in its environment, those of links in capitals
/// (LOSS); with --in to a shell in a guest.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata try main --for 20s --each loss=0%,1%,5% --in a --run 'tail -n 1 /var/log/transfer'
  fermata try 1f0c42 --for 10s --each loss=0%,1% --each delay=1ms,50ms --link a:eth1 --run 'fermata exec $FERMATA_RUN:b -- cat /tmp/rate'
  fermata try main~3 --for 10s --each perturb=1,2,3,4 --vary order --within 5ms --run ./is-consistent
  fermata try main --for 30s --each cpus=1,2,4 --in a --run 'tail -n 1 /var/log/throughput'
  fermata try known-good --for 1m --each CC=cubic,bbr --before 'a: sysctl -w net.ipv4.tcp_congestion_control=$CC' --in a --run ./measure --json
  fermata try main~3 --for 5s --run 'fermata exec $FERMATA_RUN:m1 -- systemctl is-active app' --keep")]
pub struct Try {
    /// The checkpoint: the beginning of its id, a tag or a branch; each with ~N, which alone counts from where the run is
    #[arg(value_name = "ID", add = complete::checkpoints())]
    checkpoint: String,
    /// Virtual time that passes before the script runs
    #[arg(long = "for", value_name = "TIME", default_value = "0s", value_parser = span)]
    wait: u64,
    /// What is different, and the values that are tried: loss=0%,1%,5%
    #[arg(long, value_name = "KEY=VALUE,...")]
    each: Vec<Each>,
    /// The link that changes, by one of its interfaces [default: the only one]
    #[arg(long, value_name = "MACHINE:INTERFACE")]
    link: Option<String>,
    /// Run a command in a machine first; what it sees of the condition are variables
    #[arg(long, value_name = "MACHINE: COMMAND", value_parser = before)]
    before: Vec<(String, String)>,
    /// What is run then, by a shell
    #[arg(long = "run", value_name = "SCRIPT")]
    script: String,
    /// Run it in this machine instead of on this host
    #[arg(long = "in", value_name = "MACHINE")]
    machine: Option<String>,
    /// Try so many at the same time: they take each other's processors [default: one after the other]
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    side_by_side: u16,
    /// Let the forks go on afterwards
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    perturb: Perturb,
}

/// A machine and a command for it.
fn before(text: &str) -> std::result::Result<(String, String), String> {
    let parts = text.split_once(':').map(|(machine, command)| (machine.trim().to_owned(), command.trim().to_owned()));
    parts
        .filter(|(_, command)| !command.is_empty())
        .ok_or_else(|| "write the machine, a colon and the command: 'm1: sysctl -w ...'".to_owned())
}

impl Try {
    pub fn run(self, context: &Context) -> Result {
        let conditions = product(&self.each);
        let changes_links = conditions.iter().any(|condition| condition.change.is_some());
        if self.link.is_some() && !changes_links {
            return Err(Failure::Misuse("--link is for what --each says of a link, such as loss=0%,5%".to_owned()));
        }
        let perturbations = self.perturbations(&conditions)?;
        let (experiment, keeper) = pick::keeper(context)?;
        let stored = pick::stored(context)?;
        let link = if changes_links { Some(link(&keeper, self.link.clone())?) } else { None };
        let from = local::show(&stored.store, Some(&stored.experiment), &stored.name(&self.checkpoint)?)?;
        let trial = |(condition, perturbation): (&Condition, Option<Perturbation>)| Trial {
            from: from.id,
            perturbation,
            changes: link.iter().cloned().zip(condition.change.clone()).collect(),
            cpus: condition.cpus,
            before: self.before.clone(),
            variables: condition.variables(),
            wait_ns: self.wait,
            script: self.script.clone(),
            machine: self.machine.clone(),
            keep: self.keep,
        };
        let trials: Vec<_> = conditions.iter().zip(perturbations).map(trial).collect();
        let lab = Lab::new(keeper.clone(), &experiment, interrupt::watch()?);
        let side_by_side = usize::from(self.side_by_side);
        // A line for each as it comes, where nobody sees a bar; the table comes at the end.
        let told = |number: usize, result: &std::result::Result<_, Problem>| {
            let how = if result.is_ok() { "tried" } else { "could not be tried" };
            context.out.note(&format!("{how}: {}", conditions[number].words()));
        };
        let outcomes = progress::during(&context.out, "trying", || keeper.activity(), || lab.all(&trials, side_by_side, &told));
        let tried = Tried {
            experiment: experiment.name,
            checkpoint: from.id,
            time_virtual_ns: from.time_virtual_ns,
            for_ns: self.wait,
            trials: conditions.iter().zip(outcomes).map(|(condition, outcome)| once(condition, outcome)).collect(),
        };
        let keys: Vec<_> = self.each.iter().map(|each| each.key.clone()).collect();
        context.out.answer(&tried, |style| text(&tried, &keys, style))?;
        Ok(u8::from(tried.trials.iter().any(|trial| trial.problem.is_some())))
    }
}

impl Try {
    /// What the links do otherwise under each condition, if anything. One seed holds for all that have none of their own.
    fn perturbations(&self, conditions: &[Condition]) -> std::result::Result<Vec<Option<Perturbation>>, Failure> {
        let own = conditions.iter().any(|condition| condition.seed.is_some());
        if own && self.perturb.has_seed() {
            return Err(Failure::Misuse("--each perturb=... says the seeds: leave --perturb out".to_owned()));
        }
        let for_all = if own { None } else { self.perturb.perturbation()? };
        conditions.iter().map(|condition| condition.seed.map(|seed| self.perturb.by(seed)).transpose().map(|own| own.or(for_all))).collect()
    }
}

fn once(condition: &Condition, outcome: std::result::Result<fermata_api::values::Outcome, Problem>) -> TriedOnce {
    let (outcome, problem) = match outcome {
        Ok(outcome) => (Some(outcome), None),
        Err(problem) => (None, Some(problem.message)),
    };
    TriedOnce { condition: condition.values.iter().cloned().collect(), outcome, problem }
}

/// The link that is meant: the one named, else the only one.
fn link(keeper: &Client, named: Option<String>) -> std::result::Result<String, Problem> {
    match named {
        Some(name) => Ok(name),
        None => only(&keeper.link(LinkRequest::default())?),
    }
}

fn only(ends: &[LinkEnd]) -> std::result::Result<String, Problem> {
    match ends {
        [one, ..] if ends.iter().all(|end| end.interface == one.interface || end.to == one.interface) => Ok(one.interface.clone()),
        ends => {
            let names: Vec<_> = ends.iter().map(|end| end.interface.as_str()).collect();
            Err(Problem::new(format!("there are several links: say which is to change with --link, by one of {}", names.join(", "))))
        }
    }
}

fn text(tried: &Tried, keys: &[String], style: &Style) -> String {
    let headers: Vec<_> = keys.iter().map(|key| key.to_uppercase()).collect();
    let conditions = headers.iter().map(|key| (key.as_str(), Set::Right));
    let columns = [("STATUS", Set::Right), ("AT", Set::Right), ("TOOK", Set::Right), ("RUN", Set::Left), ("RESULT", Set::Elastic)];
    let mut table = Table::new(&conditions.chain(columns).collect::<Vec<_>>());
    for trial in &tried.trials {
        let value = |key: &String| Cell::from(text::harmless(trial.condition.get(key).map_or("", String::as_str)));
        let mut cells: Vec<_> = keys.iter().map(value).collect();
        cells.extend(match &trial.outcome {
            Some(outcome) => [
                Cell::new(if outcome.status == 0 { Paint::Good } else { Paint::Bad }, outcome.status.to_string()),
                text::instant(outcome.began_ns).into(),
                text::ms(outcome.ended_ns.saturating_sub(outcome.began_ns) as f64 / 1e6).into(),
                Cell::new(Paint::Name, text::harmless(&outcome.run)),
                text::harmless(outcome.last_line()).into(),
            ],
            None => {
                let why = text::harmless(trial.problem.as_deref().unwrap_or_default());
                ["-".into(), "-".into(), "-".into(), "-".into(), Cell::new(Paint::Bad, why)]
            }
        });
        table.row(cells);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        args::Cli,
        commands::{Command, samples::id},
    };
    use clap::Parser;
    use fermata_api::values::Outcome;

    #[test]
    fn what_came_out() {
        let outcome = |status, stdout: &str| Outcome {
            run: "fork-1".into(),
            status,
            stdout: stdout.into(),
            stderr: String::new(),
            began_ns: 24_000_000_000,
            ended_ns: 24_500_000_000,
        };
        let condition = |loss: &str, cc: &str| [("loss".to_owned(), loss.to_owned()), ("CC".to_owned(), cc.to_owned())].into();
        let trials = vec![
            TriedOnce { condition: condition("0%", "bbr"), outcome: Some(outcome(0, "a\n93 Mbit\n")), problem: None },
            TriedOnce { condition: condition("5%", "bbr"), outcome: Some(outcome(7, "")), problem: None },
            TriedOnce { condition: condition("5%", "cubic"), outcome: None, problem: Some("no room".into()) },
        ];
        let tried = Tried { experiment: "tryout".into(), checkpoint: id(1), time_virtual_ns: 4, for_ns: 20, trials };
        let expected = "\
LOSS     CC  STATUS       AT    TOOK  RUN     RESULT
  0%    bbr       0  24.000s  500 ms  fork-1  93 Mbit
  5%    bbr       7  24.000s  500 ms  fork-1
  5%  cubic       -        -       -  -       no room
";
        assert_eq!(text(&tried, &["loss".to_owned(), "CC".to_owned()], &Style::default()), expected);
        let json = serde_json::to_value(&tried).unwrap();
        assert_eq!((&json["trials"][0]["status"], &json["trials"][2]["problem"]), (&0.into(), &"no room".into()));
        assert_eq!(serde_json::from_value::<Tried>(json).unwrap(), tried);
    }

    #[test]
    fn misuse_is_told() {
        let parse = |arguments: &[&str]| Cli::try_parse_from([&["fermata", "try", "main"], arguments].concat());
        assert!(parse(&["--run", "true", "--each", "loss=0%,5%", "--for", "20s", "--before", "m1: echo $LOSS"]).is_ok());
        for wrong in [
            &[][..],
            &["--run", "true", "--each", "loss"],
            &["--run", "true", "--each", "loss=lots"],
            &["--run", "true", "--each", "nonsense=1"],
            &["--run", "true", "--for", "soon"],
            &["--run", "true", "--before", "no colon"],
            &["--run", "true", "--side-by-side", "0"],
            &["--run", "true", "--each", "perturb=one"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn seeds_are_conditions() {
        let tried = |line: &str| match Cli::try_parse_from(format!("fermata try main --run true {line}").split(' ')).unwrap().command {
            Command::Try(tried) => tried.perturbations(&product(&tried.each)).map_err(|failure| failure.status()),
            other => panic!("{other:?}"),
        };
        let by = |seed| Some(Perturbation { seed, order: true, within_ns: 5_000_000, ..Perturbation::default() });
        assert_eq!(tried("--each perturb=1,2 --vary order --within 5ms"), Ok(vec![by(1), by(2)]));
        assert_eq!(tried("--each loss=0%,1% --perturb=3 --vary order --within 5ms"), Ok(vec![by(3), by(3)]));
        assert_eq!(tried("--each loss=0%,1%"), Ok(vec![None, None]));
        assert_eq!(tried("--each perturb=1 --perturb=2"), Err(2));
        assert_eq!(tried("--each loss=0% --vary order"), Err(2));
    }

    #[test]
    fn the_only_link_is_meant() {
        let end = |name: &str, to: &str| LinkEnd {
            interface: name.into(),
            mac: fermata_api::net::Mac([2; 6]),
            mtu: 1500,
            to: to.into(),
            up: true,
            sent: fermata_api::values::Direction { shape: Default::default(), counters: Default::default(), in_flight: 0 },
            received: fermata_api::values::Direction { shape: Default::default(), counters: Default::default(), in_flight: 0 },
        };
        let cable = [end("a:eth1", "b:eth1"), end("b:eth1", "a:eth1")];
        assert_eq!(only(&cable).unwrap(), "a:eth1");
        let three = [cable.to_vec(), vec![end("a:eth2", "lan")]].concat();
        assert!(only(&three).unwrap_err().message.contains("a:eth1, b:eth1, a:eth2"));
        assert!(only(&[]).is_err());
    }
}
