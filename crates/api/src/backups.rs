//! Keeping a copy of every checkpoint elsewhere: once, or by keepers as they take them.

use crate::{
    convert::problem,
    local,
    remote_prune::{self, RemotePruneRequest},
    remotes::{self, Copied, CopyRequest, Outcome, Refs, There},
    values::{Activity, BackupEntry, BackupStanding, Problem},
};
use fermata_linux::{clock::Stopwatch, priority::go_last};
use fermata_store::{Record, Store, remote::RefName};
use fermata_timeline::Keeper;
use fermata_types::CheckpointId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

/// Where a store remembers what keepers copy by themselves.
const FILE: &str = "backups.json";
/// Between two looks whether there is something to copy. What comes within is copied together, into few packs.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// After a copy that failed.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Between two looks at how the runs stand.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// So long each step of a copy keeps out of the way of checkpoints, which may follow each other without a gap.
const AWAY_MAX: Duration = Duration::from_secs(1);
/// Between two times that what is not kept is removed from a remote, for which all the tables there are read.
const THIN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// The same after it failed.
const THIN_AGAIN_AFTER: Duration = Duration::from_secs(60 * 60);
/// Transfers at a time beside running machines.
const JOBS: usize = 2;

/// What keepers copy by themselves.
pub fn kept(store: &Path) -> Result<Vec<BackupEntry>, Problem> {
    let path = store.join(FILE);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Problem::new(format!("cannot read {}: {error}", path.display()))),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(format!("{} is damaged: {error}; remove it, and say again what is to be backed up", path.display()))
        }),
    }
}

/// Fails unless a remote has this name here.
pub fn check_name(store: &Path, remote: &str) -> Result<(), Problem> {
    match remotes::remotes(store)?.iter().any(|known| known.name == remote) {
        true => Ok(()),
        false => Err(Problem::new(format!("no remote is called {remote}: `fermata remote add NAME {remote}` gives it a name first"))),
    }
}

/// From now on keepers copy what they take to this remote, as fast as was said last, and keep there what was said last. Those that run already see it when they look next.
pub fn keep(store: &Path, entry: BackupEntry) -> Result<Vec<BackupEntry>, Problem> {
    let _alone = remotes::changing(store)?;
    let mut all = kept(store)?;
    if all.contains(&entry) {
        return Ok(all);
    }
    match all.iter_mut().find(|known| known.remote == entry.remote && known.experiment == entry.experiment) {
        Some(known) => *known = entry,
        None => all.push(entry),
    }
    remotes::write_json(&store.join(FILE), &all)?;
    Ok(all)
}

/// No longer; what is there stays. Without an experiment: of none.
pub fn leave(store: &Path, entry: &BackupEntry) -> Result<Vec<BackupEntry>, Problem> {
    let _alone = remotes::changing(store)?;
    let mut all = kept(store)?;
    let before = all.len();
    all.retain(|known| known.remote != entry.remote || entry.experiment.is_some() && known.experiment != entry.experiment);
    if all.len() == before {
        let of = entry.experiment.as_ref().map(|experiment| format!(" of {experiment}")).unwrap_or_default();
        return Err(Problem::new(format!("no keeper copies anything{of} to {} by itself: `fermata backup` shows what is", entry.remote)));
    }
    remotes::write_json(&store.join(FILE), &all)?;
    Ok(all)
}

/// Copies every checkpoint of an experiment that a remote lacks, with branches, tags and golden images; without one, of every experiment of the store. Then one that cannot be
/// copied keeps nothing from the others, and says so in its answer.
pub fn back_up(store: &Path, request: &CopyRequest, busy: &mut dyn FnMut(Activity)) -> Result<Vec<Copied>, Problem> {
    let mut copy = |experiment: &str| {
        let request = CopyRequest { experiment: experiment.to_owned(), everything: true, ..request.clone() };
        remotes::push(store, &request, &mut *busy)
    };
    if !request.experiment.is_empty() {
        return Ok(vec![copy(&request.experiment)?]);
    }
    let address = remotes::entry(store, request)?.address;
    let mut copied = Vec::new();
    for experiment in experiments(&local::open(store)?)?.into_keys() {
        copied.push(copy(&experiment).unwrap_or_else(|problem| Copied::failed(address.clone(), experiment, problem)));
    }
    Ok(copied)
}

/// How far remotes are behind: those that keepers copy to, or the one that is asked for.
pub fn standing(store: &Path, request: &CopyRequest) -> Result<Vec<BackupStanding>, Problem> {
    let opened = local::open(store)?;
    let entries = kept(store)?;
    let experiments = experiments(&opened)?;
    let is_asked = |experiment: &str| request.experiment.is_empty() || request.experiment == experiment;
    let remotes: BTreeSet<_> = match &request.remote {
        Some(remote) => [remote.clone()].into(),
        None => entries.iter().map(|entry| entry.remote.clone()).collect(),
    };
    let mut standings = Vec::new();
    for remote in remotes {
        let request = CopyRequest { remote: Some(remote.clone()), ..request.clone() };
        let address = remotes::entry(store, &request)?.address;
        for (experiment, records) in experiments.iter().filter(|(experiment, _)| is_asked(experiment)) {
            let is_kept = |entry: &BackupEntry| entry.remote == remote && entry.experiment.as_ref().is_none_or(|name| name == experiment);
            let kept = entries.iter().any(is_kept);
            if !kept && request.experiment.is_empty() && entries.iter().any(|entry| entry.remote == remote) {
                continue;
            }
            let there = remotes::there(store, &CopyRequest { experiment: experiment.clone(), ..request.clone() });
            let here = (records, remotes::refs(&opened, experiment)?);
            standings.push(BackupStanding { kept, ..compared(&remote, &address, experiment, here, there) });
        }
    }
    Ok(standings)
}

type Records = Vec<(CheckpointId, Record)>;

fn experiments(store: &Store) -> Result<BTreeMap<String, Records>, Problem> {
    let mut experiments = BTreeMap::<_, Records>::new();
    for (id, record) in store.records().map_err(problem)? {
        experiments.entry(record.experiment.clone()).or_default().push((id, record));
    }
    Ok(experiments)
}

fn compared(
    remote: &str,
    address: &str,
    experiment: &str,
    (here, refs): (&Records, Refs),
    there: Result<There, Problem>,
) -> BackupStanding {
    let (there, trouble) = match there {
        Ok(there) => (there, None),
        Err(problem) => (There::default(), Some(problem.message)),
    };
    let is_lacking = |id: &CheckpointId| !there.checkpoints.contains(id) && !there.removed.contains(id);
    // The newest are the last, whatever the clock said.
    let newest = here.last();
    let newest_there = here.iter().rfind(|(id, _)| there.checkpoints.contains(id));
    let apart =
        |(newest, there): (&(CheckpointId, Record), &(CheckpointId, Record))| newest.1.created_ns.saturating_sub(there.1.created_ns);
    BackupStanding {
        remote: remote.to_owned(),
        address: address.to_owned(),
        experiment: experiment.to_owned(),
        kept: false,
        checkpoints: here.len() as u64,
        lacking: here.iter().filter(|(id, _)| is_lacking(id)).count() as u64,
        lacking_refs: refs.iter().filter(|(name, id)| there.refs.get(name) != Some(id)).count() as u64,
        newest: newest.map(|(id, _)| *id),
        newest_there: newest_there.map(|(id, _)| *id),
        behind_ns: newest.zip(newest_there).map(apart),
        trouble,
    }
}

/// Copies what a keeper takes to the remotes that it is to be copied to, in a thread of its own that lets everybody else go first. Ends with the keeper.
pub(crate) fn watch(keeper: &Arc<Keeper>) {
    let keeper = Arc::downgrade(keeper);
    thread::spawn(move || {
        go_last();
        let mut done = BTreeMap::new();
        loop {
            thread::sleep(LOOK_EVERY);
            let every = keeper.upgrade().and_then(|keeper| keeper.spec().every).unwrap_or_default();
            await_quiet(&|| stands(&keeper), every.saturating_mul(2).min(LOOK_EVERY));
            let Some(trouble) = look(&keeper, &mut done) else { return };
            if trouble {
                thread::sleep(AGAIN_AFTER);
            }
        }
    });
}

/// What was done for a remote.
#[derive(Default)]
struct Done {
    /// Where branches and tags were when all was copied.
    copied: Refs,
    /// Since what is not kept there was removed, and whether that could be; none: not yet.
    thinned: Option<(Stopwatch, Result<(), Problem>)>,
}

/// How runs stand: on which checkpoints, and whether one is being taken.
type Stands = (Vec<Option<CheckpointId>>, bool);

/// None: the keeper is gone.
fn stands(keeper: &Weak<Keeper>) -> Option<Stands> {
    let runs = keeper.upgrade()?.runs();
    Some((runs.iter().map(|run| run.standing().head).collect(), runs.iter().any(|run| run.is_taking())))
}

/// Waits until a checkpoint has just become permanent, so that the next one is far. It may be that none comes.
fn await_quiet(stands: &dyn Fn() -> Option<Stands>, time: Duration) {
    let (watch, before) = (Stopwatch::start(), stands().map(|(heads, _)| heads));
    while watch.elapsed() < time && stands().map(|(heads, _)| heads) == before {
        thread::sleep(BETWEEN_LOOKS);
    }
    stay_away(stands);
}

/// Waits as long as a checkpoint is being taken.
fn stay_away(stands: &dyn Fn() -> Option<Stands>) {
    let watch = Stopwatch::start();
    while watch.elapsed() < AWAY_MAX && stands().is_some_and(|(_, is_taking)| is_taking) {
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// Copies what is new, which shows in branches and tags that are elsewhere than they were. Whether something could not be copied; none: the keeper is gone.
fn look(keeper: &Weak<Keeper>, done: &mut BTreeMap<String, Done>) -> Option<bool> {
    let (store, experiment) = {
        let keeper = keeper.upgrade()?;
        (keeper.host().store().path().to_owned(), keeper.spec().name.clone())
    };
    // A panic is a bug of ours; without this thread nothing would be copied any more, and nobody told.
    let copied = catch_unwind(AssertUnwindSafe(|| copy_new(&store, &experiment, done, &|| stay_away(&|| stands(keeper)))));
    let copied = match copied {
        Ok(copied) => copied.map_err(|problem| format!("checkpoints could not be backed up, which is tried again: {problem}")),
        Err(_) => Err("backing up checkpoints panicked. This is a bug, of which the keeper's log tells more".to_owned()),
    };
    if let Err(trouble) = &copied {
        tracing::warn!("{trouble}");
    }
    let has_failed = copied.is_err();
    keeper.upgrade()?.tell_backup(copied.map_or_else(Some, |unthinned| unthinned.map(|problem| problem.message)));
    Some(has_failed)
}

/// `step` is called between the steps of a copy. Where all was copied: why what a remote is not to keep could not be removed there, which keeps no copy from going on.
fn copy_new(store: &Path, experiment: &str, done: &mut BTreeMap<String, Done>, step: &dyn Fn()) -> Result<Option<Problem>, Problem> {
    let mine = of_experiment(kept(store)?, experiment);
    done.retain(|remote, _| mine.contains_key(remote));
    // One that cannot be reached keeps nothing from the others.
    let (mut failed, mut unthinned) = (None, None);
    for (remote, entry) in &mine {
        let done = done.entry(remote.clone()).or_default();
        let copied = copy_to(store, experiment, entry, done, step);
        let thinned = if copied.is_ok() { thin(store, experiment, entry, done, step) } else { Ok(()) };
        failed = failed.or(copied.err());
        unthinned = unthinned.or(thinned.err());
    }
    failed.map_or(Ok(unthinned), Err)
}

/// By remote, how an experiment is copied. What was said of it counts for more than what was said of all.
fn of_experiment(mut entries: Vec<BackupEntry>, experiment: &str) -> BTreeMap<String, BackupEntry> {
    entries.retain(|entry| entry.experiment.as_ref().is_none_or(|name| name == experiment));
    entries.sort_by_key(|entry| entry.experiment.is_some());
    entries.into_iter().map(|entry| (entry.remote.clone(), entry)).collect()
}

fn request(experiment: &str, entry: &BackupEntry) -> CopyRequest {
    CopyRequest {
        remote: Some(entry.remote.clone()),
        experiment: experiment.to_owned(),
        limit_bytes: entry.limit_bytes,
        jobs: JOBS,
        passphrase: remotes::passphrase(),
        ..CopyRequest::default()
    }
}

fn copy_to(store: &Path, experiment: &str, entry: &BackupEntry, done: &mut Done, step: &dyn Fn()) -> Result<(), Problem> {
    let remote = &entry.remote;
    let refs = remotes::refs(&local::open(store)?, experiment)?;
    if refs.is_empty() || done.copied == refs {
        return Ok(());
    }
    let request = CopyRequest { everything: true, ..request(experiment, entry) };
    let copied = remotes::push(store, &request, &mut |_| step())?;
    if let Some(left) = copied.refs.iter().find(|name| matches!(name.outcome, Outcome::Left { .. })) {
        let (RefName::Branch(name) | RefName::Tag(name)) = &left.name;
        return Err(Problem::new(format!(
            "{name} is elsewhere on {remote}, where another host may have moved it: `fermata push {remote} {name} --force` moves it"
        )));
    }
    if copied.checkpoints > 0 {
        tracing::info!("{} checkpoints were backed up to {remote}, {} bytes", copied.checkpoints, copied.bytes);
    }
    done.copied = refs;
    Ok(())
}

/// Removes from a remote what is not to be kept of an experiment there, behind a copy and once in a while.
fn thin(store: &Path, experiment: &str, entry: &BackupEntry, done: &mut Done, step: &dyn Fn()) -> Result<(), Problem> {
    let Some(keep) = entry.keep.clone().filter(|_| !done.copied.is_empty()) else { return Ok(()) };
    let rest = |result: &Result<(), Problem>| if result.is_ok() { THIN_EVERY } else { THIN_AGAIN_AFTER };
    if let Some((since, result)) = &done.thinned
        && since.elapsed() < rest(result)
    {
        return result.clone();
    }
    let remote = &entry.remote;
    let request = RemotePruneRequest { copy: request(experiment, entry), keep: Some(keep), ..RemotePruneRequest::default() };
    let pruned = remote_prune::prune(store, &request, &mut |_| step());
    let result = match pruned {
        Ok(pruned) => {
            tracing::info!("{} checkpoints were not to be kept on {remote} any longer", pruned.removed.len());
            Ok(())
        }
        Err(problem) => {
            let trouble = format!("what {remote} is not to keep could not be removed there, which is tried again: {problem}");
            tracing::warn!("{trouble}");
            Err(Problem::new(trouble))
        }
    };
    done.thinned = Some((Stopwatch::start(), result.clone()));
    result
}

#[cfg(test)]
mod deaths;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        remotes::{Encryption, RemoteEntry},
        samples,
    };
    use fermata_remote::Address;
    use fermata_store::remote::PullOptions;
    use std::{cell::Cell, path::PathBuf};

    #[test]
    fn a_copy_begins_behind_a_checkpoint_and_not_within_one() {
        let id = |number| Some(CheckpointId([number; 32]));
        // One is being taken, becomes permanent, and the next one begins at once.
        let told = [(id(1), false), (id(1), true), (id(2), true), (id(2), true), (id(2), false), (id(2), true)];
        let at = Cell::new(0);
        let stands = || {
            let (head, is_taking) = told[at.replace(at.get() + 1).min(told.len() - 1)];
            Some((vec![head], is_taking))
        };
        await_quiet(&stands, LOOK_EVERY);
        assert_eq!(at.get(), 5, "it was looked until none was taken any more");
        // None comes.
        let watch = Stopwatch::start();
        await_quiet(&|| Some((vec![id(1)], false)), Duration::from_millis(50));
        assert!(watch.elapsed() >= Duration::from_millis(50));
        // They never end; and the keeper is gone.
        stay_away(&|| Some((vec![id(1)], true)));
        assert!(watch.elapsed() >= AWAY_MAX);
        let watch = Stopwatch::start();
        stay_away(&|| None);
        assert!(watch.elapsed() < AWAY_MAX);
    }

    /// A store below a directory, whose keepers copy to another directory beside it, `nas`, where the last one of a branch is kept.
    pub(super) fn kept_up(place: &Path) -> (PathBuf, Store, BackupEntry) {
        let here = place.join("store");
        let store = Store::open(&here).unwrap();
        let address = place.join("nas").display().to_string();
        remotes::add(&here, RemoteEntry::new("nas".into(), address, None, Encryption::None)).unwrap();
        let entry = BackupEntry { remote: "nas".into(), experiment: None, limit_bytes: None, keep: Some("last 1".parse().unwrap()) };
        keep(&here, entry.clone()).unwrap();
        (here, store, entry)
    }

    pub(super) fn there(here: &Path) -> There {
        let request = CopyRequest { remote: Some("nas".into()), experiment: "lab".into(), ..CopyRequest::default() };
        remotes::there(here, &request).unwrap()
    }

    fn grow(store: &Store, parent: Option<CheckpointId>, created_ns: u64) -> CheckpointId {
        let record = Record { parent, ..samples::record("lab", created_ns) };
        store.writer().unwrap().commit(&record).unwrap()
    }

    #[test]
    fn a_thinning_that_fails_keeps_no_copy_from_going_on() {
        let place = tempfile::tempdir().unwrap();
        let (here, store, _) = kept_up(place.path());
        let mut done = BTreeMap::new();
        // What stands on a pack that cannot be read is not known, so nothing goes; and it keeps nothing from being sent.
        let pack = place.path().join(format!("nas/packs/00/{}.pack", "0".repeat(64)));
        fs::create_dir_all(pack.parent().unwrap()).unwrap();
        fs::write(&pack, "no pack").unwrap();
        let first = grow(&store, None, 1);
        let unthinned = copy_new(&here, "lab", &mut done, &|| ()).unwrap().unwrap().message;
        assert!(unthinned.contains("nas is not to keep") && unthinned.contains("cannot be read"), "{unthinned}");
        let second = grow(&store, Some(first), 2);
        assert_eq!(copy_new(&here, "lab", &mut done, &|| ()).unwrap().unwrap().message, unthinned, "not tried again yet, and still told");
        assert_eq!(there(&here).checkpoints, [first, second].into());
        fs::remove_file(pack).unwrap();
        assert!(copy_new(&here, "lab", &mut BTreeMap::new(), &|| ()).unwrap().is_none());
        assert_eq!(there(&here).checkpoints, [second].into());
    }

    #[test]
    fn a_copy_that_is_kept_up_keeps_what_was_said() {
        let place = tempfile::tempdir().unwrap();
        let (here, store, _) = kept_up(place.path());
        let (grow, there) = (|parent, created_ns| grow(&store, parent, created_ns), || there(&here).checkpoints);
        let mut done = BTreeMap::new();
        let copy = |done: &mut BTreeMap<String, Done>| assert!(copy_new(&here, "lab", done, &|| ()).unwrap().is_none());
        copy(&mut done);
        let first = grow(None, 1);
        let second = grow(Some(first), 2);
        copy(&mut done);
        assert_eq!(there(), [second].into());
        // What went does not come again, and what comes is not looked at each time.
        let third = grow(Some(second), 3);
        copy(&mut done);
        assert_eq!(there(), [second, third].into());
        copy(&mut BTreeMap::new());
        assert_eq!(there(), [third].into());
        assert_eq!(store.records().unwrap().len(), 3, "here all stays");
    }

    /// Why a remote remembers for good what was removed there, also where no line leads over it any more: nobody knows which hosts still have it.
    #[test]
    fn what_went_does_not_come_again_from_another_host() {
        let place = tempfile::tempdir().unwrap();
        let (here, store, entry) = kept_up(place.path());
        let first = grow(&store, None, 1);
        let second = grow(&store, Some(first), 2);
        let third = grow(&store, Some(second), 3);
        let asked = request("lab", &entry);
        remotes::push(&here, &CopyRequest { everything: true, ..asked.clone() }, &mut |_| ()).unwrap();
        let (address, elsewhere) = (place.path().join("nas"), place.path().join("elsewhere"));
        let other = Store::open(&elsewhere).unwrap();
        remotes::add(&elsewhere, RemoteEntry::new("nas".into(), address.display().to_string(), None, Encryption::None)).unwrap();
        let nas = fermata_remote::open(&Address::Directory(address.clone()), None).unwrap();
        other.pull(&*nas, "lab", &[first, second, third], &PullOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(copy_new(&here, "lab", &mut BTreeMap::new(), &|| ()), Ok(None));
        assert_eq!(there(&here).checkpoints, [third].into());
        let fork = Record { parent: Some(second), branch: "what-if".into(), ..samples::record("lab", 4) };
        let fork = other.writer().unwrap().commit(&fork).unwrap();
        remotes::push(&elsewhere, &asked, &mut |_| ()).unwrap();
        assert_eq!(there(&here).checkpoints, [third, fork].into());
        // The same for one from which nothing there descends directly.
        fs::remove_file(address.join(format!("removed/lab/{first}"))).unwrap();
        remotes::push(&elsewhere, &asked, &mut |_| ()).unwrap();
        assert_eq!(there(&here).checkpoints, [first, third, fork].into(), "forgotten, it is taken for one that was never sent, or lost");
    }

    #[test]
    fn what_is_to_be_kept_is_remembered() {
        let place = tempfile::tempdir().unwrap();
        let entry = |remote: &str, experiment: Option<&str>| BackupEntry {
            remote: remote.into(),
            experiment: experiment.map(str::to_owned),
            limit_bytes: None,
            keep: None,
        };
        assert_eq!(kept(place.path()).unwrap(), []);
        keep(place.path(), entry("nas", Some("lab"))).unwrap();
        keep(place.path(), entry("nas", Some("lab"))).unwrap();
        keep(place.path(), entry("nas", Some("other"))).unwrap();
        keep(place.path(), BackupEntry { limit_bytes: Some(5), ..entry("nas", None) }).unwrap();
        let limits = |experiment| {
            let entries = of_experiment(kept(place.path()).unwrap(), experiment);
            entries.into_iter().map(|(remote, entry)| (remote, entry.limit_bytes)).collect::<Vec<_>>()
        };
        assert_eq!([limits("lab"), limits("new")], [[("nas".to_owned(), None)], [("nas".to_owned(), Some(5))]]);
        keep(place.path(), BackupEntry { limit_bytes: Some(7), ..entry("nas", Some("lab")) }).unwrap();
        assert_eq!(limits("lab"), [("nas".to_owned(), Some(7))]);
        keep(place.path(), entry("nas", Some("lab"))).unwrap();
        leave(place.path(), &entry("nas", None)).unwrap();
        for experiment in ["lab", "other"] {
            keep(place.path(), entry("nas", Some(experiment))).unwrap();
        }
        keep(place.path(), entry("s3", None)).unwrap();
        assert_eq!(kept(place.path()).unwrap(), [entry("nas", Some("lab")), entry("nas", Some("other")), entry("s3", None)]);
        assert!(leave(place.path(), &entry("s3", Some("lab"))).unwrap_err().message.contains("of lab to s3"));
        leave(place.path(), &entry("nas", Some("lab"))).unwrap();
        assert_eq!(leave(place.path(), &entry("s3", None)).unwrap(), [entry("nas", Some("other"))]);
        assert!(leave(place.path(), &entry("s3", None)).unwrap_err().message.contains("to s3"));
        fs::write(place.path().join(FILE), "[{").unwrap();
        assert!(kept(place.path()).unwrap_err().message.contains("is damaged"));
    }
}
