//! `fermata ls`: what runs.

use super::{Context, Result};
use crate::{
    out::{Paint, Style},
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    local, swapping,
    types::CheckpointId,
    values::{Experiment, ExperimentState, Loading, Machine, MachineState, Run, SwappedMachine, SwappedOut},
};
use std::collections::HashMap;

/// List experiments, their runs and machines
///
/// An experiment that is `swapped out` comes back with `fermata swapin`. A machine is `waiting` when it needs something that is still on a remote, which cannot be read.
/// An experiment is `dead` when its keeper is gone without having been told to; `fermata goto ID` brings it back from any of its checkpoints, and
/// `fermata down` clears away what is left of it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata ls
  fermata ls --json | jq -r '.[].runs[].name'")]
pub struct Ls {}

impl Ls {
    pub fn run(self, context: &Context) -> Result {
        let mut experiments = local::experiments(context.global.store.as_deref())?;
        let store = local::store_path(context.global.store.clone());
        // One that comes back, or died doing so, is shown as what it is now.
        let swapped = swapping::swapped_experiments(&store)?;
        let out: Vec<_> = swapped.into_iter().filter(|out| experiments.iter().all(|known| known.name != out.name)).collect();
        experiments.extend(out);
        experiments.retain(|experiment| context.experiment().is_none_or(|name| name == experiment.name));
        let out = &context.out;
        out.answer(&experiments, |style| {
            if out.quiet {
                return experiments.iter().map(|experiment| format!("{}\n", experiment.name)).collect();
            }
            text(&experiments, &last_pauses(&experiments), style)
        })?;
        Ok(0)
    }
}

/// The pause of each run's newest checkpoint. A store that cannot be read is no reason to tell nothing.
fn last_pauses(experiments: &[Experiment]) -> HashMap<CheckpointId, f64> {
    let heads = experiments.iter().flat_map(|experiment| experiment.runs.iter().filter_map(move |run| Some((experiment, run.head?))));
    let pause = |(experiment, head): (&Experiment, CheckpointId)| {
        let checkpoint = local::show(&experiment.store, Some(&experiment.name), &head.to_string()).ok()?;
        Some((head, checkpoint.pause_ms))
    };
    heads.filter_map(pause).collect()
}

fn text(experiments: &[Experiment], pauses: &HashMap<CheckpointId, f64>, style: &Style) -> String {
    if experiments.is_empty() {
        return "nothing runs; `fermata up` starts an experiment\n".to_owned();
    }
    let mut table = Table::new(&[
        ("EXPERIMENT", Set::Left),
        ("RUN", Set::Left),
        ("MACHINE", Set::Left),
        ("STATE", Set::Left),
        ("MEMORY", Set::Right),
        ("CPUS", Set::Right),
        ("BY", Set::Left),
        ("AT", Set::Left),
        ("PAUSE", Set::Right),
        ("BRANCH", Set::Elastic),
    ]);
    for experiment in experiments {
        for run in &experiment.runs {
            for machine in &run.machines {
                table.row(row(experiment, run, machine, pauses));
            }
        }
        if let Some(swapped) = &experiment.swapped {
            swapped.machines.iter().for_each(|machine| table.row(swapped_row(swapped, machine)));
        } else if experiment.runs.is_empty() {
            table.row(vec![Cell::new(Paint::Name, text::harmless(&experiment.name)), "-".into(), "-".into(), state(experiment, None)]);
        }
    }
    table.render(style) + &remarks(experiments, style)
}

fn row(experiment: &Experiment, run: &Run, machine: &Machine, pauses: &HashMap<CheckpointId, f64>) -> Vec<Cell> {
    let pause = run.head.and_then(|head| pauses.get(&head)).map_or_else(|| "-".to_owned(), |pause| text::ms(*pause));
    vec![
        Cell::new(Paint::Name, text::harmless(&experiment.name)),
        text::harmless(&run.name).into(),
        text::harmless(&machine.name).into(),
        state(experiment, Some(machine)),
        text::bytes(machine.memory_bytes).into(),
        machine.cpus.to_string().into(),
        text::harmless(&machine.accel).into(),
        Cell::new(Paint::Id, run.head.map_or_else(|| "-".to_owned(), |head| head.short())),
        pause.into(),
        text::harmless(&run.branch).into(),
    ]
}

fn swapped_row(swapped: &SwappedOut, machine: &SwappedMachine) -> Vec<Cell> {
    vec![
        Cell::new(Paint::Name, text::harmless(&swapped.experiment)),
        "-".into(),
        text::harmless(&machine.name).into(),
        Cell::new(Paint::Dim, "swapped out"),
        text::bytes(machine.memory_bytes).into(),
        machine.cpus.to_string().into(),
        text::harmless(&machine.accel).into(),
        Cell::new(Paint::Id, swapped.checkpoint.short()),
        "-".into(),
        text::harmless(&swapped.branch).into(),
    ]
}

fn state(experiment: &Experiment, machine: Option<&Machine>) -> Cell {
    let (paint, word) = match (experiment.state, machine.map(|machine| machine.state)) {
        (ExperimentState::Dead, _) => (Paint::Bad, "dead"),
        (ExperimentState::Swapped, _) => (Paint::Dim, "swapped out"),
        (_, Some(MachineState::Running | MachineState::Paused | MachineState::Silent))
            if experiment.loading.as_ref().is_some_and(|loading| loading.waiting.is_some()) =>
        {
            (Paint::Bad, "waiting")
        }
        (_, Some(MachineState::Running)) if machine.is_some_and(|machine| !machine.starved.is_empty()) => (Paint::Bad, "held"),
        (_, Some(state)) => word(state),
        (_, None) => (Paint::Dim, "-"),
    };
    Cell::new(paint, word)
}

/// What a machine does, in a word and its colour.
pub fn word(state: MachineState) -> (Paint, &'static str) {
    match state {
        MachineState::Running => (Paint::Good, "running"),
        MachineState::Paused => (Paint::Warning, "paused"),
        MachineState::Off => (Paint::Dim, "off"),
        MachineState::Failed => (Paint::Bad, "failed"),
        MachineState::Silent => (Paint::Bad, "silent"),
        MachineState::Gone => (Paint::Bad, "gone"),
    }
}

/// Where it is, or what is still to come.
fn about_swapping(experiment: &Experiment) -> Option<String> {
    let name = &experiment.name;
    if let Some(swapped) = &experiment.swapped {
        let place = swapping::whereabouts(swapped.remote.as_ref());
        return Some(format!("{name}: swapped out since {}, {place}. `fermata swapin {name}` brings it back", swapped.swapped));
    }
    let loading = experiment.loading.as_ref()?;
    let Loading { remote, total_bytes, away_bytes, waiting, for_good, trouble, .. } = loading;
    Some(match (waiting, trouble) {
        (Some(why), _) if *for_good => format!("{name}: {why}"),
        (Some(why), _) => format!("{name}: waiting for remote {remote}, and goes on by itself when that can be read again: {why}"),
        (None, Some(why)) => format!("{name}: the rest of it does not come from {remote} at present, which is tried again: {why}"),
        (None, None) if *total_bytes == 0 => format!("{name}: being brought in from {remote}"),
        (None, None) => format!("{name}: {} of {} still to come from {remote}", text::bytes(*away_bytes), text::bytes(*total_bytes)),
    })
}

/// What is not as it should be, and what to do.
fn remarks(experiments: &[Experiment], style: &Style) -> String {
    let mut remarks = Vec::new();
    for experiment in experiments {
        let name = &experiment.name;
        if experiment.state == ExperimentState::Dead {
            remarks.push(format!(
                "{name}: its keeper is gone. `fermata goto ID -e {name}` brings it back (`fermata log -e {name}` lists its checkpoints), `fermata down -e {name}` clears it away"
            ));
        }
        for (run, machine) in experiment.runs.iter().flat_map(|run| run.machines.iter().map(move |machine| (run, machine))) {
            if let Some(reason) = &machine.reason {
                remarks.push(format!("{name}, {}:{}: {reason}. `fermata goto {}` brings it back", run.name, machine.name, run.branch));
            }
            if !machine.starved.is_empty() {
                remarks.push(format!(
                    "{name}, {}:{}: held by a full disk: what the guest writes to {} waits until there is space at {}",
                    run.name,
                    machine.name,
                    machine.starved.join(", "),
                    experiment.store.display()
                ));
            }
            if let Some(missing) = machine.pages_missing {
                remarks.push(format!("{name}, {}:{}: {} still to be brought in", run.name, machine.name, text::several(missing, "page")));
            }
        }
        remarks.extend(about_swapping(experiment));
        if let Some(trouble) = &experiment.trouble {
            remarks.push(format!("{name}: {trouble}"));
        }
    }
    remarks.iter().map(|remark| format!("{}\n", style.paint(Paint::Warning, &text::harmless(remark)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::{experiment, id, run};

    #[test]
    fn runs_with_their_machines() {
        let mut tryout = experiment("tryout");
        tryout.runs.push(run("what-if"));
        tryout.runs[1].head = None;
        tryout.runs[1].machines[0].state = MachineState::Gone;
        tryout.runs[1].machines[0].reason = Some("QEMU ended with signal 9".into());
        tryout.trouble = Some("no space left".into());
        let mut other = experiment("other");
        other.state = ExperimentState::Dead;
        let expected = "\
EXPERIMENT  RUN      MACHINE  STATE     MEMORY  CPUS  BY   AT              PAUSE  BRANCH
tryout      main     m1       running  1.0 GiB     2  tcg  050505050505  4.21 ms  main
tryout      what-if  m1       gone     1.0 GiB     2  tcg  -                   -  what-if
other       main     m1       dead     1.0 GiB     2  tcg  050505050505  4.21 ms  main
tryout, what-if:m1: QEMU ended with signal 9. `fermata goto what-if` brings it back
tryout: no space left
other: its keeper is gone. `fermata goto ID -e other` brings it back (`fermata log -e other` lists its checkpoints), `fermata down -e other` clears it away
";
        assert_eq!(text(&[tryout, other], &HashMap::from([(id(5), 4.213)]), &Style::default()), expected);
        assert!(text(&[], &HashMap::new(), &Style::default()).contains("fermata up"));
    }

    #[test]
    fn what_is_out_and_what_waits() {
        let mut away = experiment("away");
        let machine = SwappedMachine { name: "m1".into(), memory_bytes: 1 << 30, cpus: 2, accel: "tcg".into() };
        let swapped = SwappedOut {
            experiment: "away".into(),
            branch: "main".into(),
            checkpoint: id(5),
            time_virtual_ns: 0,
            swapped_ns: 0,
            swapped: "2026-11-23T08:00:00Z".into(),
            remote: None,
            spec: serde_json::Value::Null,
            machines: vec![machine],
            working_sets: [].into(),
        };
        (away.state, away.runs, away.swapped) = (ExperimentState::Swapped, vec![], Some(Box::new(swapped)));
        let mut waits = experiment("waits");
        let loading = Loading {
            remote: "/nas".into(),
            total_bytes: 10 << 20,
            away_bytes: 5 << 20,
            asked: 3,
            waiting: Some("it is gone".into()),
            for_good: false,
            trouble: None,
        };
        waits.loading = Some(loading.clone());
        let mut betrayed = experiment("betrayed");
        betrayed.loading = Some(Loading { waiting: Some("it was another image".into()), for_good: true, ..loading.clone() });
        let mut comes = experiment("comes");
        comes.loading = Some(Loading { waiting: None, ..loading });
        let expected = "\
EXPERIMENT  RUN   MACHINE  STATE         MEMORY  CPUS  BY   AT            PAUSE  BRANCH
away        -     m1       swapped out  1.0 GiB     2  tcg  050505050505      -  main
waits       main  m1       waiting      1.0 GiB     2  tcg  050505050505      -  main
betrayed    main  m1       waiting      1.0 GiB     2  tcg  050505050505      -  main
comes       main  m1       running      1.0 GiB     2  tcg  050505050505      -  main
away: swapped out since 2026-11-23T08:00:00Z, in the store. `fermata swapin away` brings it back
waits: waiting for remote /nas, and goes on by itself when that can be read again: it is gone
betrayed: it was another image
comes: 5.0 MiB of 10.0 MiB still to come from /nas
";
        assert_eq!(text(&[away, waits, betrayed, comes], &HashMap::new(), &Style::default()), expected);
    }
}
