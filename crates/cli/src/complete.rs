//! What the tab key offers: commands and options, and the names that the store and living experiments know.
//!
//! A shell's script, which `fermata completions` prints, starts this program with [`VARIABLE`] set and the words of the line behind `--`. Whoever
//! presses the tab key wants no errors: what cannot be had, or not soon, is not offered.

use crate::{
    args::{Cli, Global},
    commands::{Context, log},
    out::{Failure, Out},
    pick, text,
};
use clap::{CommandFactory, FromArgMatches};
use clap_complete::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate,
    engine::complete,
    env::{CompleteEnv, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh},
};
use fermata_api::{
    Service, local, mounting, swapping,
    types::PartKind,
    values::{Checkpoint, Experiment, LinkRequest, Run},
};
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    io::{self, Write},
    path::Path,
    sync::mpsc::channel,
    thread,
    time::Duration,
};

/// The variable of the environment that asks for completions: the shell's name.
const VARIABLE: &str = "FERMATA_COMPLETE";
const PROGRAM: &str = "fermata";
const SHELLS: Shells<'static> = Shells(&[&Bash, &Elvish, &Fish, &Powershell, &Zsh]);
/// Nobody waits longer for a keeper, or a store, that does not answer.
const LOOK_MAX: Duration = Duration::from_secs(3);
/// Ids that are offered at once, the newest ones. Whoever means an older one knows how it begins.
const IDS_MAX: usize = 50;

/// Offers what fits, if that is what the program was started for.
pub fn answer() -> bool {
    let directory = env::current_dir().ok();
    let asked = CompleteEnv::with_factory(Cli::command).var(VARIABLE).shells(SHELLS);
    asked.try_complete(env::args_os(), directory.as_deref()).unwrap_or(true)
}

/// What a shell of this name has to read to ask us. Nothing for one that is not known.
pub fn script(shell: &str) -> io::Result<String> {
    let mut script = Vec::new();
    if let Some(shell) = SHELLS.completer(shell) {
        shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    }
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// The usual one is told too late that `:` divides words.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == self.name()
    }

    fn write_registration(&self, _: &str, _: &str, _: &str, _: &str, buffer: &mut dyn Write) -> io::Result<()> {
        buffer.write_all(include_bytes!("complete.bash"))
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        buffer: &mut dyn Write,
    ) -> io::Result<()> {
        // The script leaves out what is behind the cursor.
        let last = words.len().saturating_sub(1);
        for candidate in complete(command, words, last, directory)? {
            writeln!(buffer, "{}", candidate.get_value().to_string_lossy())?;
        }
        Ok(())
    }
}

type Candidates = Vec<CompletionCandidate>;

/// Checkpoints: branches for their newest, tags, ids.
pub fn checkpoints() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy().into_owned();
        soon(move |context| Ok(checkpoints_in(history(context)?, &current)))
    })
}

/// Branches.
pub fn branches() -> ArgValueCandidates {
    ArgValueCandidates::new(|| soon(|context| Ok(named(&history(context)?, |checkpoint| &checkpoint.heads))))
}

/// Tags.
pub fn tags() -> ArgValueCandidates {
    ArgValueCandidates::new(|| soon(|context| Ok(named(&history(context)?, |checkpoint| &checkpoint.tags))))
}

/// Machines and disks of the newest checkpoint.
pub fn parts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        soon(|context| {
            let newest = history(context)?.pop();
            let parts = newest.into_iter().flat_map(|checkpoint| checkpoint.parts);
            let shown = parts.filter(|part| matches!(part.kind, PartKind::Machine | PartKind::Disk));
            Ok(shown.map(|part| CompletionCandidate::new(part.name)).collect())
        })
    })
}

/// Directories in which checkpoints are mounted.
pub fn mounts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| mounting::mounted().into_iter().map(CompletionCandidate::new).collect())
}

/// Experiments that run, and those in the store.
pub fn experiments() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        soon(|context| {
            let living = local::experiments(None)?.into_iter().map(|experiment| experiment.name);
            let store = local::store_path(context.global.store.clone());
            let stored = local::names(&store).unwrap_or_default();
            let swapped = swapping::swapped(&store).unwrap_or_default().into_iter().map(|swapped| swapped.experiment);
            let names: BTreeSet<_> = living.chain(stored).chain(swapped).collect();
            Ok(names.into_iter().map(CompletionCandidate::new).collect())
        })
    })
}

/// Runs.
pub fn runs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        soon(|context| Ok(pick::living(context)?.runs.into_iter().map(|run| CompletionCandidate::new(run.name)).collect()))
    })
}

/// Machines as `[RUN:]MACHINE`.
pub fn machines() -> ArgValueCandidates {
    let of = |run: &Run| run.machines.iter().map(|machine| machine.name.clone()).collect();
    ArgValueCandidates::new(move || soon(move |context| Ok(of_runs(&pick::living(context)?, of))))
}

/// Interfaces at links as `[RUN:]MACHINE:INTERFACE`.
pub fn interfaces() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        soon(|context| {
            let (experiment, keeper) = pick::keeper(context)?;
            Ok(of_runs(&experiment, |run| {
                let request = LinkRequest { run: Some(run.name.clone()), ..LinkRequest::default() };
                // A run without a network has none.
                keeper.link(request).unwrap_or_default().into_iter().map(|end| end.interface).collect()
            }))
        })
    })
}

/// What is found, unless it takes too long. The thread ends with the process.
fn soon(look: impl FnOnce(&Context) -> Result<Candidates, Failure> + Send + 'static) -> Candidates {
    let (sender, found) = channel();
    thread::spawn(move || sender.send(look(&context(env::args_os())).unwrap_or_default()));
    found.recv_timeout(LOOK_MAX).unwrap_or_default()
}

/// The store and the experiment that the line so far names. `arguments` are those of this program: the line is behind `--`.
fn context(arguments: impl Iterator<Item = OsString>) -> Context {
    let line = arguments.skip_while(|word| word != "--").skip(1);
    let parsed = Cli::command().ignore_errors(true).try_get_matches_from(line);
    let global = parsed.ok().and_then(|matches| Global::from_arg_matches(&matches).ok()).unwrap_or_default();
    Context { out: Out::new(&global), global }
}

fn history(context: &Context) -> Result<Vec<Checkpoint>, Failure> {
    let stored = pick::stored(context)?;
    Ok(local::log(&stored.store, Some(&stored.experiment))?)
}

fn checkpoints_in(mut history: Vec<Checkpoint>, current: &str) -> Candidates {
    history.reverse();
    let names = named(&history, |checkpoint| &checkpoint.heads).into_iter().chain(named(&history, |checkpoint| &checkpoint.tags));
    let ids = history.iter().filter_map(|checkpoint| {
        let (whole, short) = (checkpoint.id.to_string(), checkpoint.id.short());
        let fitting = if current.len() > short.len() { whole } else { short };
        fitting.starts_with(current).then(|| about(fitting, checkpoint))
    });
    let fitting = names.filter(|name| name.get_value().to_string_lossy().starts_with(current));
    fitting.chain(ids.take(IDS_MAX)).collect()
}

/// The names that checkpoints have, in the order of the checkpoints.
fn named(history: &[Checkpoint], of: fn(&Checkpoint) -> &[String]) -> Candidates {
    let named = history.iter().flat_map(|checkpoint| of(checkpoint).iter().map(move |name| about(name.clone(), checkpoint)));
    named.collect()
}

/// A name for a checkpoint, with what tells it from others.
fn about(name: String, checkpoint: &Checkpoint) -> CompletionCandidate {
    let message = checkpoint.message.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
    let names = log::names(checkpoint);
    let words = [text::instant(checkpoint.time_virtual_ns), names, text::harmless(message)];
    let told = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ");
    CompletionCandidate::new(name).help(Some(told.into()))
}

/// What is in runs, each with its run's name before it. Of the run that is meant when none is named the name may be left out, and is.
fn of_runs(experiment: &Experiment, names: impl Fn(&Run) -> Vec<String>) -> Candidates {
    let is_meant = |run: &Run| run.name == pick::FIRST_RUN || experiment.runs.len() == 1;
    let in_run = |run: &Run| {
        let each = names(run).into_iter().flat_map(|name| {
            let long = CompletionCandidate::new(format!("{}:{name}", run.name)).hide(is_meant(run));
            is_meant(run).then(|| CompletionCandidate::new(name)).into_iter().chain([long])
        });
        each.collect::<Candidates>()
    };
    experiment.runs.iter().flat_map(in_run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;

    fn shown(candidates: &[CompletionCandidate]) -> Vec<String> {
        candidates.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn names_come_before_ids_and_the_newest_first() {
        let offered = |current: &str| shown(&checkpoints_in(samples::history(), current));
        let [five, four] = ["050505050505", "040404040404"].map(str::to_owned);
        assert_eq!(offered("")[..5], ["main".to_owned(), "what-if".to_owned(), "known-good".to_owned(), five.clone(), four]);
        assert_eq!(offered("05"), [five]);
        assert_eq!(offered("0505050505050"), ["05".repeat(32)]);
        assert_eq!(offered("kn"), ["known-good"]);
        assert!(offered("nonsense").is_empty());
        let many = vec![samples::checkpoint(1, None, "main"); 2 * IDS_MAX];
        assert_eq!(checkpoints_in(many, "").len(), IDS_MAX);
        let told = checkpoints_in(samples::history(), "kn")[0].get_help().map(ToString::to_string);
        assert_eq!(told.as_deref(), Some("4.000s  #known-good  before the upgrade"));
    }

    #[test]
    fn of_the_first_run_names_are_short() {
        let mut experiment = samples::experiment("tryout");
        experiment.runs.push(samples::run("what-if"));
        let candidates = of_runs(&experiment, |_| vec!["a:eth1".to_owned(), "b:eth1".to_owned()]);
        let (hidden, visible): (Vec<_>, Vec<_>) = candidates.into_iter().partition(CompletionCandidate::is_hide_set);
        assert_eq!(shown(&visible), ["a:eth1", "b:eth1", "what-if:a:eth1", "what-if:b:eth1"]);
        assert_eq!(shown(&hidden), ["main:a:eth1", "main:b:eth1"]);
    }

    #[test]
    fn the_line_so_far_names_store_and_experiment() {
        let of = |line: &str| {
            let words = ["fermata", "--"].into_iter().chain(line.split(' ')).map(OsString::from);
            let Global { store, experiment, .. } = context(words).global;
            (store.map(|store| store.display().to_string()), experiment)
        };
        let both = (Some("/s".to_owned()), Some("tryout".to_owned()));
        assert_eq!(of("fermata --store /s show -e tryout "), both);
        assert_eq!(of("fermata goto --experiment=tryout --eager --store=/s nonsense --run "), both);
    }

    #[test]
    fn every_shell_has_a_script_that_asks_us() {
        for shell in SHELLS.names() {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains(PROGRAM), "{shell}: {script}");
        }
        assert_eq!(script("csh").unwrap(), "");
    }
}
