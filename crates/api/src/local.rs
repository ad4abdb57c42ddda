//! What needs no keeper: the history in the store. And, from [`crate::keeping`], who keeps what on this host.

use crate::{
    convert::{self, problem},
    housekeeping::activity,
    links,
    values::{Activity, Checkpoint, Difference, DiskDifference, Problem, Rebuilt, Tag},
};
use fermata_experiment::net::{InterfaceId, World};
use fermata_linux::pace;
use fermata_store::{Progress, Store};
use fermata_timeline::{Entry, history};
use fermata_types::CheckpointId;
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

pub use crate::{
    keeping::{UpRequest, bury, client, end, experiments, keep, revive, up, up_in_foreground},
    paths::run_root,
};

/// The branch that is meant when none is named: that of the run that `up` starts.
const FIRST_RUN: &str = "main";

/// Tells what goes wrong behind what is asked for, in a process that stays.
pub(crate) fn log_to_stderr() {
    // It fails when somebody listens already, who then hears us too.
    let _ = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).try_init();
}

/// The store that is meant: the one given, else `$FERMATA_STORE`, else `fermata` in the user's data directory, else in the system's.
pub fn store_path(given: Option<PathBuf>) -> PathBuf {
    given.or_else(|| Store::default_path().ok()).unwrap_or_else(|| PathBuf::from("/var/lib/fermata"))
}

/// A seed that nobody has chosen, short enough to be typed again.
pub fn seed() -> Result<u64, Problem> {
    let bytes =
        fermata_linux::random::bytes().map_err(|error| Problem::new(format!("this host has no randomness: {error}; name a seed")))?;
    Ok(u32::from_le_bytes(bytes).into())
}

/// All checkpoints, children after their parents; of one experiment or of all in the store.
pub fn log(store: &Path, experiment: Option<&str>) -> Result<Vec<Checkpoint>, Problem> {
    let entries = history::log(&open(store)?, experiment).map_err(problem)?;
    Ok(entries.into_iter().map(convert::checkpoint).collect())
}

/// The newest checkpoints of an experiment, so many at most, by when they were taken; with a branch those of them that lead to its newest one. Costs the same
/// however many there are. None if there is no such branch.
pub fn newest_of(store: &Path, experiment: &str, branch: Option<&str>, count: usize) -> Result<Option<Vec<Checkpoint>>, Problem> {
    let store = open(store)?;
    let entries = match branch {
        None => history::newest(&store, experiment, count).map_err(problem)?,
        Some(branch) => match store.branch(experiment, branch) {
            Ok(Some(head)) => history::leading_to(&store, experiment, head, count).map_err(problem)?,
            // What cannot be a name is none.
            Ok(None) | Err(_) => return Ok(None),
        },
    };
    Ok(Some(entries.into_iter().map(convert::checkpoint).collect()))
}

/// The experiments that have checkpoints in a store.
pub fn names(store: &Path) -> Result<Vec<String>, Problem> {
    open(store)?.experiments().map_err(problem)
}

/// One checkpoint: id, unique beginning of one, tag or branch, each with `~N`.
pub fn show(store: &Path, experiment: Option<&str>, checkpoint: &str) -> Result<Checkpoint, Problem> {
    let store = open(store)?;
    let entry = find(&store, experiment, checkpoint)?;
    with_network(&store, entry)
}

/// The checkpoint that a name stands for: id, unique beginning of one, tag or branch, each with `~N`.
pub fn resolve(store: &Path, experiment: Option<&str>, checkpoint: &str) -> Result<CheckpointId, Problem> {
    open(store)?.resolve(checkpoint, experiment).map_err(problem)
}

/// The newest checkpoint of the branch `main`, or the latest of all where there is no such branch.
pub fn newest(store: &Path, experiment: &str) -> Result<Checkpoint, Problem> {
    let store = open(store)?;
    let entry = newest_in(&store, experiment)?;
    with_network(&store, entry)
}

/// A checkpoint, with its network as it was then.
fn with_network(store: &Store, entry: Entry) -> Result<Checkpoint, Problem> {
    let world = fermata_experiment::network_at(store, &entry.id, &entry.record).map_err(problem)?;
    let network = world.as_ref().map(World::topology);
    let down = world.iter().zip(&network).flat_map(|(world, network)| {
        let ids = (0..network.interfaces.len() as u32).map(InterfaceId);
        ids.filter(|id| world.is_up(*id) == Some(false))
    });
    let down = down.collect();
    let links = world.as_ref().map(links::all).unwrap_or_default();
    Ok(Checkpoint { down, links, network, ..convert::checkpoint(entry) })
}

/// The newest checkpoint of the branch `main`, or the latest of all where there is no such branch.
pub(crate) fn newest_in(store: &Store, experiment: &str) -> Result<Entry, Problem> {
    if let Ok(Some(head)) = store.branch(experiment, FIRST_RUN) {
        return history::entry(store, head).map_err(problem);
    }
    let latest = history::newest(store, experiment, 1).map_err(problem)?.pop();
    latest.ok_or_else(|| Problem::new(format!("there is no checkpoint of {experiment}: `fermata checkpoint` takes one")))
}

/// The line of checkpoints that leads to one, from the oldest to the newest. Without a name it leads to the newest of the branch
/// `main`, or to the latest of all where there is no such branch. With `since` it begins behind that checkpoint, which must be on it.
pub fn line(store: &Path, experiment: &str, to: Option<&str>, since: Option<&str>) -> Result<Vec<Checkpoint>, Problem> {
    let store = open(store)?;
    let entries = history::log(&store, Some(experiment)).map_err(problem)?;
    let to = match to {
        Some(name) => find(&store, Some(experiment), name)?.id,
        None => newest_in(&store, experiment)?.id,
    };
    let since = since.map(|name| find(&store, Some(experiment), name)).transpose()?.map(|entry| entry.id);
    let mut entries: HashMap<_, _> = entries.into_iter().map(|entry| (entry.id, entry)).collect();
    let mut line = Vec::new();
    let mut next = Some(to);
    while let Some(id) = next.filter(|id| Some(*id) != since) {
        // A parent that was removed ends the line.
        let Some(entry) = entries.remove(&id) else { break };
        next = entry.record.parent;
        line.push(convert::checkpoint(entry));
    }
    if let Some(since) = since.filter(|since| next != Some(*since)) {
        return Err(Problem::new(format!(
            "checkpoint {} is not on the line that leads to {}: `fermata log --graph` shows both",
            since.short(),
            to.short()
        )));
    }
    line.reverse();
    Ok(line)
}

/// How two checkpoints differ; `quick`: by pages alone. `busy` is told what takes long.
pub fn diff(
    store: &Path,
    experiment: Option<&str>,
    [a, b]: [&str; 2],
    quick: bool,
    busy: &mut dyn FnMut(Activity),
) -> Result<Difference, Problem> {
    let store = open(store)?;
    let (a, b) = (find(&store, experiment, a)?, find(&store, experiment, b)?);
    let changes = history::diff(&store, &a.record, &b.record).map_err(problem)?;
    let difference = convert::difference(&a, &b, changes);
    if quick {
        return Ok(difference);
    }
    let mut progress = |what: &str, progress: Progress| busy(activity((what, ""), progress));
    let compared = fermata_experiment::compare(&store, (&a.id, &a.record), (&b.id, &b.record), &mut progress).map_err(problem)?;
    let disks = compared.disks.into_iter().map(|(name, file_systems)| DiskDifference { name, file_systems }).collect();
    Ok(Difference { disks, memory: compared.memory, links: compared.links, ..difference })
}

/// Tags a checkpoint.
pub fn tag(store: &Path, experiment: Option<&str>, checkpoint: &str, name: &str) -> Result<Tag, Problem> {
    let store = open(store)?;
    let entry = find(&store, experiment, checkpoint)?;
    store.tag(&entry.record.experiment, name, &entry.id).map_err(problem)?;
    Ok(convert::tag(&entry.record.experiment, name, Some(entry.id)))
}

/// Takes a tag away.
pub fn untag(store: &Path, experiment: Option<&str>, name: &str) -> Result<Tag, Problem> {
    let store = open(store)?;
    let having = tags_in(&store, experiment)?.into_iter().filter(|tag| tag.tag == name).collect::<Vec<_>>();
    match having.as_slice() {
        [tag] => {
            store.untag(&tag.experiment, name).map_err(problem)?;
            Ok(convert::tag(&tag.experiment, name, None))
        }
        [] => Err(Problem::new(format!("there is no tag \"{name}\"; `fermata tag` lists them"))),
        several => {
            let experiments: Vec<_> = several.iter().map(|tag| tag.experiment.as_str()).collect();
            Err(Problem::new(format!("several experiments have a tag \"{name}\": say which with -e, one of {}", experiments.join(", "))))
        }
    }
}

/// All tags.
pub fn tags(store: &Path, experiment: Option<&str>) -> Result<Vec<Tag>, Problem> {
    tags_in(&open(store)?, experiment)
}

/// Builds the store's index again from its packs. Nobody may have the store open.
pub fn rebuild(store: &Path) -> Result<Rebuilt, Problem> {
    if !store.exists() {
        return Err(missing(store));
    }
    let rebuilt = Store::rebuild_index(store).map_err(problem)?;
    let damaged = rebuilt.damaged.iter().map(|(path, error)| format!("{}: {error}", path.display())).collect();
    Ok(Rebuilt { store: store.to_owned(), packs: rebuilt.packs, checkpoints: rebuilt.checkpoints, damaged })
}

fn tags_in(store: &Store, experiment: Option<&str>) -> Result<Vec<Tag>, Problem> {
    let names = match experiment {
        Some(name) => vec![name.to_owned()],
        None => store.experiments().map_err(problem)?,
    };
    let mut all = Vec::new();
    for name in names {
        let tags = store.tags(&name).map_err(problem)?;
        all.extend(tags.into_iter().map(|(tag, id)| convert::tag(&name, &tag, Some(id))));
    }
    Ok(all)
}

fn find(store: &Store, experiment: Option<&str>, checkpoint: &str) -> Result<Entry, Problem> {
    let id = store.resolve(checkpoint, experiment).map_err(problem)?;
    history::entry(store, id).map_err(problem)
}

/// Opens a store that is there. Looking at one that is not must not make one.
pub(crate) fn open(path: &Path) -> Result<Store, Problem> {
    if !path.exists() {
        return Err(missing(path));
    }
    made(path)
}

/// Opens a store, and makes it if it is not there. Whoever goes last in it rests.
pub(crate) fn made(path: &Path) -> Result<Store, Problem> {
    let store = Store::open(path).map_err(problem)?;
    store.rest_by(pace::rest);
    Ok(store)
}

fn missing(store: &Path) -> Problem {
    Problem::new(format!("there is no store at {}: `fermata up` makes one, and --store or FERMATA_STORE names another", store.display()))
}
