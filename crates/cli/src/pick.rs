//! Which experiment is meant when the user does not say, and which machine of it.

use crate::{commands::Context, out::Failure};
use fermata_api::{
    Client, local,
    types::CheckpointId,
    values::{Experiment, ExperimentState, Machine, Problem, Run},
};
use std::{collections::BTreeSet, path::PathBuf};

/// The run that is meant when nobody is named.
pub const FIRST_RUN: &str = "main";

/// The experiment that is meant, if it lives: the one named, else the only one that lives.
pub fn living(context: &Context) -> Result<Experiment, Failure> {
    Ok(choose_living(context.experiment(), &known(context)?)?.clone())
}

/// The same, and its keeper.
pub fn keeper(context: &Context) -> Result<(Experiment, Client), Failure> {
    let experiment = living(context)?;
    let client = local::client(&experiment.name)?;
    Ok((experiment, client))
}

/// An experiment in a store. Whether it lives does not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The store.
    pub store: PathBuf,
    /// Its name.
    pub experiment: String,
    /// It lives.
    pub lives: bool,
    /// If it does: the newest checkpoint of the run that is meant when nobody names one.
    pub head: Option<CheckpointId>,
    /// If it does: its runs.
    pub runs: Vec<Run>,
}

impl Stored {
    /// A checkpoint as somebody names it, where `~N` alone counts from the newest one of the run that is meant. A [`Problem`] if it is named by a
    /// run that was forked and has taken none yet.
    pub fn name(&self, text: &str) -> Result<String, Problem> {
        let (base, steps) = text.split_at(text.find('~').unwrap_or(text.len()));
        if base.is_empty() {
            return Ok(format!("{}{steps}", self.head.map_or_else(|| FIRST_RUN.to_owned(), |head| head.to_string())));
        }
        let is_run = self.runs.iter().any(|run| run.name == base);
        if is_run && local::resolve(&self.store, Some(&self.experiment), base).is_err() {
            let message = format!("the run {base} has no checkpoint of its own yet: `fermata checkpoint --run {base}` takes one");
            return Err(Problem::new(message));
        }
        Ok(text.to_owned())
    }
}

/// The experiment whose checkpoints are meant: the one named, else the only one that lives, else the only one in the store.
pub fn stored(context: &Context) -> Result<Stored, Failure> {
    let known = known(context)?;
    let running: Vec<_> = known.iter().filter(|experiment| lives(experiment)).collect();
    let named = context.experiment().map(|name| (name, known.iter().find(|experiment| experiment.name == name)));
    let of = |experiment: &Experiment| {
        let store = context.global.store.clone().unwrap_or_else(|| experiment.store.clone());
        let run = experiment.runs.iter().find(|run| run.name == FIRST_RUN).or(experiment.runs.first());
        let (lives, head) = (lives(experiment), run.and_then(|run| run.head));
        let runs = if lives { experiment.runs.clone() } else { vec![] };
        Stored { store, experiment: experiment.name.clone(), lives, head, runs }
    };
    let asleep = |store, experiment| Stored { store, experiment, lives: false, head: None, runs: vec![] };
    match (named, running.as_slice()) {
        (Some((_, Some(experiment))), _) => Ok(of(experiment)),
        (Some((name, None)), _) => Ok(asleep(local::store_path(context.global.store.clone()), name.to_owned())),
        (None, [only]) => Ok(of(only)),
        (None, []) => {
            let store = local::store_path(context.global.store.clone());
            let names: BTreeSet<_> = local::names(&store)?.into_iter().collect();
            let experiment = only_one_in(&store.display().to_string(), &names)?;
            Ok(asleep(store, experiment))
        }
        (None, several) => Err(which(several).into()),
    }
}

/// The experiment whose checkpoint is meant, and what names the checkpoint in it: `EXPERIMENT/` before a name says which, as -e does.
pub fn stored_at(context: &Context, checkpoint: &str) -> Result<(Stored, String), Failure> {
    match checkpoint.split_once('/') {
        Some((experiment, name)) => Ok((stored(&context.about(Some(experiment.to_owned())))?, name.to_owned())),
        None => Ok((stored(context)?, checkpoint.to_owned())),
    }
}

/// Whether an experiment has this name: one that runs, or one in the store.
pub fn is_experiment(context: &Context, name: &str) -> Result<bool, Problem> {
    if local::experiments(None)?.iter().any(|experiment| experiment.name == name) {
        return Ok(true);
    }
    let store = local::store_path(context.global.store.clone());
    Ok(store.exists() && local::names(&store)?.iter().any(|known| known == name))
}

fn only_one_in(store: &str, names: &BTreeSet<String>) -> Result<String, Problem> {
    let mut all = names.iter();
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only.clone()),
        (None, _) => Err(Problem::new(format!(
            "no checkpoint is in the store {store}: `fermata up` starts an experiment, `fermata checkpoint` takes one"
        ))),
        (Some(_), Some(_)) => {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            Err(Problem::new(format!("several experiments are in the store {store}: say which with -e NAME, one of {}", names.join(", "))))
        }
    }
}

/// Experiments of the store that was named, or of all. One that is named is looked for in all.
fn known(context: &Context) -> Result<Vec<Experiment>, Problem> {
    match context.experiment() {
        Some(_) => local::experiments(None),
        None => local::experiments(context.global.store.as_deref()),
    }
}

fn lives(experiment: &Experiment) -> bool {
    experiment.state == ExperimentState::Running
}

fn which(several: &[&Experiment]) -> Problem {
    let names: Vec<_> = several.iter().map(|experiment| experiment.name.as_str()).collect();
    Problem::new(format!("several experiments run: say which with -e NAME, one of {}", names.join(", ")))
}

fn choose_living<'a>(named: Option<&str>, known: &'a [Experiment]) -> Result<&'a Experiment, Problem> {
    let running: Vec<_> = known.iter().filter(|experiment| lives(experiment)).collect();
    let dead = |name: &str| {
        Problem::new(format!(
            "{name} is dead: its keeper is gone. `fermata goto ID -e {name}` brings it back, `fermata log -e {name}` lists its checkpoints"
        ))
    };
    if let Some(name) = named {
        return match known.iter().find(|experiment| experiment.name == name) {
            Some(experiment) if lives(experiment) => Ok(experiment),
            Some(experiment) => Err(dead(&experiment.name)),
            None if running.is_empty() => Err(Problem::new(format!(
                "no experiment {name} runs, and no other; `fermata goto ID -e {name}` brings it back if the store has it"
            ))),
            None => {
                let names: Vec<_> = running.iter().map(|experiment| experiment.name.as_str()).collect();
                Err(Problem::new(format!("no experiment {name} runs; there is {}", names.join(", "))))
            }
        };
    }
    match (running.as_slice(), known) {
        ([only], _) => Ok(only),
        ([], []) => {
            Err(Problem::new("no experiment runs; `fermata up` starts one, and `fermata goto ID` brings one back that is in the store"))
        }
        ([], [died, ..]) => Err(dead(&died.name)),
        (several, _) => Err(which(several)),
    }
}

/// The machine that `[RUN:]MACHINE` means, and its run. Without a run the first one is meant; without a machine the only one.
pub fn machine<'a>(experiment: &'a Experiment, text: &str) -> Result<(&'a Run, &'a Machine), Problem> {
    let (run, machine) = match text.split_once(':') {
        Some((run, machine)) => (Some(run), machine),
        None => (None, text),
    };
    let all = || {
        let each = experiment.runs.iter().flat_map(|run| run.machines.iter().map(move |machine| format!("{}:{}", run.name, machine.name)));
        each.collect::<Vec<_>>().join(", ")
    };
    let wanted = |candidate: &&Run| run.is_none_or(|run| run == candidate.name);
    let fits = |candidate: &&Machine| machine.is_empty() || machine == candidate.name;
    let mut runs: Vec<_> = experiment.runs.iter().filter(wanted).collect();
    if run.is_none() && runs.iter().any(|run| run.name == FIRST_RUN) {
        runs.retain(|run| run.name == FIRST_RUN);
    }
    let found: Vec<_> = runs.into_iter().flat_map(|run| run.machines.iter().filter(fits).map(move |machine| (run, machine))).collect();
    match found.as_slice() {
        [only] => Ok(*only),
        [] => Err(Problem::new(format!("{} has no machine \"{text}\"; it has {}", experiment.name, all()))),
        _ => Err(Problem::new(format!("\"{text}\" could be several machines of {}: say which of {}", experiment.name, all()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::{experiment, machine as sample_machine, run};

    fn dead(name: &str) -> Experiment {
        Experiment { state: ExperimentState::Dead, ..experiment(name) }
    }

    #[track_caller]
    fn check(named: Option<&str>, known: &[Experiment], expected: Result<&str, &str>) {
        match (choose_living(named, known), expected) {
            (Ok(found), Ok(name)) => assert_eq!(found.name, name),
            (Err(problem), Err(part)) => assert!(problem.message.contains(part), "{problem}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    #[test]
    fn the_one_that_lives_is_meant() {
        check(None, &[], Err("`fermata up` starts one"));
        check(None, &[experiment("a")], Ok("a"));
        check(None, &[dead("a"), experiment("b")], Ok("b"));
        check(None, &[experiment("a"), experiment("b")], Err("one of a, b"));
        check(None, &[dead("a")], Err("`fermata goto ID -e a` brings it back"));
    }

    #[test]
    fn the_one_that_is_named_is_meant() {
        check(Some("b"), &[experiment("a"), experiment("b")], Ok("b"));
        check(Some("b"), &[experiment("a"), dead("b")], Err("b is dead"));
        check(Some("c"), &[experiment("a"), experiment("b")], Err("there is a, b"));
        check(Some("c"), &[], Err("goto ID -e c"));
    }

    #[test]
    fn the_only_one_in_the_store() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(only_one_in("/s", &names(&["a"])).unwrap(), "a");
        assert!(only_one_in("/s", &names(&[])).unwrap_err().message.contains("/s"));
        assert!(only_one_in("/s", &names(&["a", "b"])).unwrap_err().message.contains("one of a, b"));
    }

    #[test]
    fn machines() {
        let mut tryout = experiment("tryout");
        tryout.runs.push(run("what-if"));
        tryout.runs[0].machines.push(sample_machine("m2"));
        let check = |text: &str, expected: Result<&str, &str>| match (machine(&tryout, text), expected) {
            (Ok((run, machine)), Ok(name)) => assert_eq!(format!("{}:{}", run.name, machine.name), name),
            (Err(problem), Err(part)) => assert!(problem.message.contains(part), "{problem}"),
            (found, _) => panic!("{found:?}"),
        };
        check("m1", Ok("main:m1"));
        check("m2", Ok("main:m2"));
        check("what-if:m1", Ok("what-if:m1"));
        check("what-if:", Ok("what-if:m1"));
        check("", Err("say which of main:m1, main:m2, what-if:m1"));
        check("m3", Err("it has main:m1"));
        check("other:m1", Err("no machine \"other:m1\""));
    }
}
