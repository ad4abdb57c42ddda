//! Remotes of a store, and copying checkpoints to and from them. None of it needs a keeper.
//!
//! - `copied`: what was copied, as values
//! - `mortal`: hosts that die while they change a remote, for tests

mod copied;
#[cfg(test)]
pub(crate) mod mortal;

pub use copied::{Broken, Copied, CopiedImage, CopiedRef, ImageOutcome, Outcome};

use crate::{
    convert::problem,
    housekeeping, keeping, local,
    values::{Activity, Experiment, ExperimentState, Problem},
};
use fermata_experiment::{ImageDetails, find_image, images_of};
use fermata_linux::lock::FileLock;
use fermata_remote::{Address, Sealed};
pub use fermata_store::{Encryption, remote::RefName};
use fermata_store::{
    Progress, Record, Secret, Store,
    remote::{CopyStage, Pull, PullOptions, PushOptions, RefSet, Remote, check_identity, identity, is_damage, make_remote},
};
use fermata_timeline::retention;
use fermata_types::{CheckpointId, ImageId};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs,
    io::{self, BufRead, Write},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::Duration,
};

/// The remote that is meant when none is named and there are several.
const ORIGIN: &str = "origin";
/// Where a store remembers its remotes.
const FILE: &str = "remotes.json";
/// How long somebody else may be changing the small files of a store.
const CHANGING_MAX: Duration = Duration::from_secs(10);

/// A remote by the name that it has here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteEntry {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// How fast bytes may travel there and back, a second; none: as fast as they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Whether what is there is encrypted.
    #[serde(default)]
    pub encryption: Encryption,
    /// Which remote it is, by the identity that it has there. None: nobody has used it under this name yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl RemoteEntry {
    /// A place that nobody has used yet.
    pub fn new(name: String, address: String, limit_bytes: Option<u64>, encryption: Encryption) -> Self {
        Self { name, address, limit_bytes, encryption, identity: None }
    }
}

/// What is to be copied.
#[derive(Debug, Clone, Default)]
pub struct CopyRequest {
    /// The name or the address of the remote; none: the only one, or `origin`.
    pub remote: Option<String>,
    /// The experiment.
    pub experiment: String,
    /// Branches, tags, or checkpoints by their ids; none: every branch and tag. Those before them come along.
    pub names: Vec<String>,
    /// How fast, in bytes a second, instead of what the remote's entry says.
    pub limit_bytes: Option<u64>,
    /// Transfers at a time.
    pub jobs: usize,
    /// Move branches and tags that are elsewhere, too.
    pub force: bool,
    /// Leave golden images where they are.
    pub without_images: bool,
    /// When pushing: also what no branch or tag leads to. Nothing is named then.
    pub everything: bool,
    /// What the remote is encrypted with, if that is a passphrase.
    pub passphrase: Option<String>,
    /// What the remote is encrypted with, where only its address is known.
    pub key_file: Option<PathBuf>,
}

/// All remotes of a store.
pub fn remotes(store: &Path) -> Result<Vec<RemoteEntry>, Problem> {
    let path = store.join(FILE);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Problem::new(format!("cannot read {}: {error}", path.display()))),
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(format!("{} is damaged: {error}; put it back from a copy, or remove it and add the remotes again", path.display()))
        }),
    }
}

/// How a remote is encrypted, as far as one can tell: by its entry, or by what is there. Where no entry tells, a key file is believed to be its key.
pub fn encryption(store: &Path, request: &CopyRequest) -> Result<Encryption, Problem> {
    let entry = entry(store, request)?;
    if !entry.name.is_empty() {
        return Ok(entry.encryption);
    }
    let is_sealed = Sealed::is_sealed(&reach(&entry, request)?).map_err(|error| unreachable(&entry, &error))?;
    Ok(match (is_sealed, &request.key_file) {
        (false, _) => Encryption::None,
        (true, None) => Encryption::Passphrase,
        (true, Some(file)) => Encryption::KeyFile(absolute(file)?),
    })
}

fn absolute(file: &Path) -> Result<PathBuf, Problem> {
    file.canonicalize().map_err(|error| Problem::new(format!("cannot find the key file {}: {error}", file.display())))
}

/// Held by whoever reads one of the store's small files and writes it anew: two at once would lose what one of them wrote.
pub(crate) fn changing(store: &Path) -> Result<FileLock, Problem> {
    let lock =
        FileLock::of_directory(store, CHANGING_MAX).map_err(|error| Problem::new(format!("cannot lock {}: {error}", store.display())))?;
    lock.ok_or_else(|| Problem::new(format!("somebody else changes {} all the time: try again", store.display())))
}

/// Gives a place a name here. Nothing is asked of it yet.
pub fn add(store: &Path, entry: RemoteEntry) -> Result<RemoteEntry, Problem> {
    enter(store, entry, |_, _| false)
}

/// The same, where it may have this name already, as when what was begun with that is begun again.
pub fn add_again(store: &Path, entry: RemoteEntry) -> Result<RemoteEntry, Problem> {
    enter(store, entry, |known, entry| known.address == entry.address && known.encryption == entry.encryption)
}

/// `is_same`: whether what has this name already will do.
fn enter(store: &Path, mut entry: RemoteEntry, is_same: fn(&RemoteEntry, &RemoteEntry) -> bool) -> Result<RemoteEntry, Problem> {
    entry.address = address(&entry.address)?.to_string();
    if let Encryption::KeyFile(file) = &mut entry.encryption {
        *file = absolute(file)?;
    }
    if entry.name.is_empty() || entry.name.contains(|letter: char| letter == '/' || letter == ':' || letter.is_whitespace()) {
        return Err(Problem::new(format!("\"{}\" is no name for a remote: it would be taken for an address", entry.name)));
    }
    let _made = local::made(store)?;
    let _alone = changing(store)?;
    let mut all = remotes(store)?;
    if let Some(known) = all.iter().find(|known| known.name == entry.name) {
        if is_same(known, &entry) {
            return Ok(known.clone());
        }
        return Err(Problem::new(format!("{} is {} already: `fermata remote rm {0}` forgets it", known.name, known.address)));
    }
    all.push(entry.clone());
    write_json(&store.join(FILE), &all)?;
    Ok(entry)
}

/// Forgets a remote. What is there stays.
pub fn forget(store: &Path, name: &str) -> Result<RemoteEntry, Problem> {
    let _alone = changing(store)?;
    let mut all = remotes(store)?;
    let place = all.iter().position(|known| known.name == name).ok_or_else(|| no_remote(name, &all))?;
    let entry = all.remove(place);
    write_json(&store.join(FILE), &all)?;
    Ok(entry)
}

/// Writes a small file of the store, whole or not at all.
pub(crate) fn write_json<T: Serialize>(path: &Path, content: &T) -> Result<(), Problem> {
    let store = path.parent().expect("it lies in a store");
    let written = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(store)?;
        serde_json::to_writer_pretty(&mut file, content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        fs::File::open(store)?.sync_all()
    };
    written().map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))
}

/// What people set for remotes that are encrypted with a passphrase.
pub fn passphrase() -> Option<String> {
    std::env::var("FERMATA_PASSPHRASE").ok().filter(|words| !words.is_empty())
}

/// What a remote has of an experiment.
#[derive(Default)]
pub(crate) struct There {
    pub checkpoints: BTreeSet<CheckpointId>,
    /// That somebody removed there.
    pub removed: HashSet<CheckpointId>,
    pub refs: Refs,
}

/// The same; nothing where it is yet empty.
pub(crate) fn there(store: &Path, request: &CopyRequest) -> Result<There, Problem> {
    let (opened, remote) = (local::open(store)?, connect(store, request)?);
    if opened.is_empty_remote(&*remote).map_err(problem)? {
        return Ok(There::default());
    }
    let checkpoints = opened.remote_checkpoints(&*remote, &request.experiment).map_err(problem)?;
    let refs = opened.remote_refs(&*remote, &request.experiment).map_err(problem)?;
    let removed = opened.remote_removed(&*remote, &request.experiment).map_err(problem)?;
    Ok(There { checkpoints: checkpoints.into_iter().collect(), removed, refs })
}

/// Copies checkpoints to a remote. `busy` is told how far it is.
pub fn push(store: &Path, request: &CopyRequest, busy: &mut dyn FnMut(Activity)) -> Result<Copied, Problem> {
    let (opened, remote) = (local::open(store)?, connect(store, request)?);
    let (entry, remote) = (entry(store, request)?, &*remote);
    if entry.name.is_empty() && opened.is_empty_remote(remote).map_err(problem)? {
        // So that nobody forgets to say whether what is there can be read there.
        return Err(Problem::new(format!("{remote} has no checkpoints yet: `fermata remote add NAME {remote}` begins there")));
    }
    let experiment = request.experiment.as_str();
    let here = refs(&opened, experiment)?;
    let records = opened.records().map_err(problem)?;
    let parents: HashMap<_, _> = records.iter().map(|(id, record)| (*id, record.parent)).collect();
    let (wanted, named) = chosen(request, &here, |text| opened.resolve(text, Some(experiment)).map_err(problem))?;
    let is_mine = |(id, record): &(CheckpointId, Record)| (record.experiment == *experiment).then_some(*id);
    let all = records.iter().filter(|_| request.everything).filter_map(is_mine);
    let mut ids: BTreeSet<_> = wanted.iter().flat_map(|id| line(&parents, *id)).chain(all).collect();
    // Somebody did not want these there. Who does names them.
    let removed = opened.remote_removed(remote, experiment).map_err(problem)?;
    ids.retain(|id| !removed.contains(id) || wanted.contains(id));
    // Parents before children, so that what is there is of use even if it does not come to an end.
    let ids: Vec<_> = records.iter().map(|(id, _)| *id).filter(|id| ids.contains(id)).collect();
    if ids.is_empty() {
        return Err(Problem::new(format!("there is no checkpoint of {experiment} to push: `fermata checkpoint` takes one")));
    }
    let images = images(&opened, remote, records.iter().filter(|(id, _)| ids.contains(id)).map(|(_, record)| record))?;
    let (_open, closed) = open_images(&opened, &images, busy);
    if let (false, Some((_, error))) = (request.without_images, closed.first()) {
        return Err(Problem::new(format!("{error}; or leave it out with --no-images")));
    }
    let identity = make(store, &entry, remote)?;
    let options = PushOptions { jobs: request.jobs, images: !request.without_images, identity };
    let mut send =
        |ids: &[_]| opened.push(remote, ids, &options, &mut |stage, progress| busy(activity(stage, "sending", "pages", progress)));
    let pushed = send(&ids).map_err(|error| match (error, closed.into_iter().next()) {
        (fermata_store::Error::ImageNotOpen { .. }, Some((_, error))) => error,
        (error, _) => problem(error),
    })?;
    if let Some(gone) = wanted.iter().find(|id| !request.names.is_empty() && pushed.gone.contains(id)) {
        return Err(Problem::new(format!(
            "checkpoint {} was removed here before it could be sent: push again what is there now",
            gone.short()
        )));
    }
    // Whoever removed one has moved or removed what was on it.
    let named = named.into_iter().filter(|(_, id)| !pushed.gone.contains(id));
    Ok(Copied {
        remote: remote.to_string(),
        experiment: experiment.to_owned(),
        checkpoints: pushed.checkpoints,
        packs: pushed.packs,
        bytes: pushed.bytes,
        images: if request.without_images {
            Vec::new()
        } else {
            images.into_keys().map(|id| CopiedImage { id, outcome: ImageOutcome::Sent }).collect()
        },
        refs: push_refs(&opened, remote, request, named, &parents, &mut |id| send(&[id]).map(drop).map_err(problem))?,
        gone: pushed.gone.clone(),
        ..Copied::default()
    })
}

/// Moves branches and tags on a remote to where they are here. `again` sends a checkpoint that somebody removed there meanwhile.
fn push_refs(
    store: &Store,
    remote: &dyn Remote,
    request: &CopyRequest,
    named: impl Iterator<Item = Named>,
    parents: &HashMap<CheckpointId, Option<CheckpointId>>,
    again: &mut dyn FnMut(CheckpointId) -> Result<(), Problem>,
) -> Result<Vec<CopiedRef>, Problem> {
    let there = store.remote_refs(remote, &request.experiment).map_err(problem)?;
    let push = |(name, id): Named| {
        let before = there.get(&name).copied();
        let mut outcome = outcome(&name, id, before, parents, request.force);
        if matches!(outcome, Outcome::New | Outcome::Moved) {
            let set = || store.set_remote_ref(remote, &request.experiment, &name, before.as_ref(), &id).map_err(problem);
            let mut came = set()?;
            if came == RefSet::Gone {
                again(id)?;
                came = set()?;
            }
            match came {
                RefSet::Done => {}
                // Somebody else was faster; whoever pushes again is told where it is.
                RefSet::Elsewhere => outcome = Outcome::Left { at: before.unwrap_or(id) },
                RefSet::Gone => {
                    return Err(Problem::new(format!(
                        "checkpoint {} is removed from {remote} again and again: push when that is over",
                        id.short()
                    )));
                }
            }
        }
        Ok(CopiedRef { name, checkpoint: id, outcome })
    };
    named.map(push).collect()
}

/// The golden images that checkpoints stand on and that a remote lacks.
fn images<'r>(store: &Store, remote: &dyn Remote, records: impl Iterator<Item = &'r Record>) -> Result<Images, Problem> {
    let mut images = images_of_all(records)?;
    if !images.is_empty() {
        let there = store.remote_images(remote).map_err(problem)?;
        images.retain(|id, _| !there.contains(id));
    }
    Ok(images)
}

fn images_of_all<'r>(records: impl Iterator<Item = &'r Record>) -> Result<Images, Problem> {
    let mut images = Images::new();
    for record in records {
        images.extend(images_of(record).map_err(problem)?);
    }
    Ok(images)
}

/// Opens the golden images that checkpoints stand on, those that are on this host.
pub(crate) fn open_images_of<'r>(
    store: &Store,
    records: impl Iterator<Item = &'r Record>,
    busy: &mut dyn FnMut(Activity),
) -> Result<(), Problem> {
    let _ = open_images(store, &images_of_all(records)?, busy);
    Ok(())
}

/// Opens golden images wherever they lie on this host: where they lie, and what is wrong with those that cannot be opened.
fn open_images(store: &Store, images: &Images, busy: &mut dyn FnMut(Activity)) -> (BTreeMap<ImageId, PathBuf>, Vec<(ImageId, Problem)>) {
    let mut report = |what: &str, Progress { done, total }: Progress| {
        busy(housekeeping::activity((what, "bytes"), Progress { done, total }));
    };
    let (mut open, mut closed) = (BTreeMap::new(), Vec::new());
    for (id, image) in images {
        match find_image(store, image, &mut report) {
            Ok(golden) => _ = open.insert(*id, golden.path().to_owned()),
            Err(error) => closed.push((*id, problem(error))),
        }
    }
    (open, closed)
}

/// Copies checkpoints from a remote. Branches that a live run grows stay where they are. `busy` is told how far it is.
pub fn pull(store: &Path, request: &CopyRequest, busy: &mut dyn FnMut(Activity)) -> Result<Copied, Problem> {
    let (opened, remote) = (local::made(store)?, connect(store, request)?);
    let remote = &*remote;
    let experiment = request.experiment.as_str();
    let there = opened.remote_refs(remote, experiment).map_err(problem)?;
    let all = opened.remote_checkpoints(remote, experiment).map_err(problem)?;
    let by_id = |text: &str| match all.iter().filter(|id| id.to_string().starts_with(text)).collect::<Vec<_>>().as_slice() {
        [only] => Ok(**only),
        [] => Err(Problem::new(format!("{remote} has no checkpoint \"{text}\" of {experiment}"))),
        _ => Err(Problem::new(format!("\"{text}\" fits several checkpoints on {remote}: give more digits"))),
    };
    let (wanted, named) = chosen(request, &there, by_id)?;
    // All of the lines, or all that is there where nothing is named: what no branch leads to as well.
    let ids = if request.names.is_empty() { all.clone() } else { opened.remote_lines(remote, experiment, &wanted).map_err(problem)? };
    if ids.is_empty() {
        return Err(Problem::new(format!("{remote} has no checkpoint of {experiment}")));
    }
    let options = PullOptions { jobs: request.jobs };
    let mut pull = opened.begin_pull(remote, experiment, &ids, &options).map_err(problem)?;
    let images = if request.without_images { Vec::new() } else { fetch_images(&opened, &mut pull, &ids, busy)? };
    let pulled = pull.finish(&mut |stage, progress| busy(activity(stage, "fetching", "bytes", progress))).map_err(problem)?;
    let here = refs(&opened, experiment)?;
    let parents: HashMap<_, _> = opened.records().map_err(problem)?.into_iter().map(|(id, record)| (id, record.parent)).collect();
    let living = living(&keeping::experiments(Some(store))?, experiment);
    let mut copied = Copied {
        remote: remote.to_string(),
        experiment: experiment.to_owned(),
        checkpoints: pulled.checkpoints,
        packs: pulled.packs,
        bytes: pulled.bytes,
        images,
        left_out: pulled.left_out.into_iter().map(|(checkpoint, why)| Broken { checkpoint, why }).collect(),
        ..Copied::default()
    };
    for (name, id) in named {
        if copied.left_out.iter().any(|left| left.checkpoint == id) {
            continue;
        }
        let before = here.get(&name).copied();
        let mut outcome = outcome(&name, id, before, &parents, request.force);
        match (&name, &outcome) {
            (RefName::Branch(branch), Outcome::New | Outcome::Moved) if living.contains(branch) => {
                outcome = Outcome::Left { at: before.unwrap_or(id) }
            }
            (RefName::Branch(branch), Outcome::New | Outcome::Moved) => opened.set_branch(experiment, branch, &id).map_err(problem)?,
            (RefName::Tag(tag), Outcome::New) => opened.tag(experiment, tag, &id).map_err(problem)?,
            (RefName::Tag(tag), Outcome::Moved) => {
                opened.untag(experiment, tag).and_then(|()| opened.tag(experiment, tag, &id)).map_err(problem)?;
            }
            (_, Outcome::Same | Outcome::Left { .. }) => {}
        }
        copied.refs.push(CopiedRef { name, checkpoint: id, outcome });
    }
    Ok(copied)
}

/// Makes the golden images again that checkpoints stand on and that are nowhere on this host; those that come, and those that are here already.
fn fetch_images(
    store: &Store,
    pull: &mut Pull<'_>,
    ids: &[CheckpointId],
    busy: &mut dyn FnMut(Activity),
) -> Result<Vec<CopiedImage>, Problem> {
    let here = ids.iter().filter_map(|id| store.record(id).ok()).collect::<Vec<_>>();
    let mut images = images_of_all(here.iter().chain(pull.records()))?;
    let (open, closed) = open_images(store, &images, busy);
    let copied = make_images(pull, closed, busy)?;
    // What lies in them needs not come again with the memories of machines.
    images.retain(|id, _| !open.contains_key(id));
    let _ = open_images(store, &images, busy);
    Ok(copied)
}

/// Finds the golden images that one checkpoint stands on. A [`Problem`] if one is neither on this host nor on the remote that the checkpoint comes from.
pub(crate) fn find_images_of(store: &Store, remote: &dyn Remote, record: &Record, busy: &mut dyn FnMut(Activity)) -> Result<(), Problem> {
    let (_, closed) = open_images(store, &images_of(record).map_err(problem)?, busy);
    if closed.is_empty() {
        return Ok(());
    }
    let there = store.remote_images(remote).map_err(problem)?;
    match closed.into_iter().find(|(id, _)| !there.contains(id)) {
        None => Ok(()),
        Some((_, why)) => Err(Problem::new(format!("{}; and {remote} does not have it", why.message))),
    }
}

/// Makes golden images from what a remote has of them. Why they are wanted is told of those that it lacks.
fn make_images(pull: &mut Pull<'_>, lacking: Vec<(ImageId, Problem)>, busy: &mut dyn FnMut(Activity)) -> Result<Vec<CopiedImage>, Problem> {
    let mut copied = Vec::new();
    for (id, why) in lacking {
        let fetched = pull.image(&id, &mut |stage, progress| busy(activity(stage, "fetching", "bytes", progress)));
        let outcome = match fetched {
            Ok(Some(path)) => ImageOutcome::Fetched { path },
            Ok(None) => ImageOutcome::Lacking { why: why.message },
            // What does not stand on it can come all the same.
            Err(error) if is_damage(&error) => ImageOutcome::Damaged { why: problem(error).message },
            Err(error) => return Err(problem(error)),
        };
        copied.push(CopiedImage { id, outcome });
    }
    Ok(copied)
}

/// The experiments that a remote has checkpoints of.
pub fn experiments_on(store: &Path, request: &CopyRequest) -> Result<Vec<String>, Problem> {
    let opened = local::made(store)?;
    opened.remote_experiments(&*connect(store, request)?).map_err(problem)
}

/// Answers for a directory, to somebody on another host for whom it is a remote, until he goes.
pub fn serve(directory: &Path, from: impl BufRead, to: impl Write) -> Result<(), Problem> {
    fermata_remote::serve(directory, from, to).map_err(|error| cannot_answer(directory, &error))
}

/// The same over HTTP, for whoever knows the token of `FERMATA_PEER_TOKEN`, on a port of this host alone; `began` is told which. Returns only when it cannot go on.
pub fn listen(directory: &Path, address: SocketAddr, began: impl FnOnce(SocketAddr)) -> Result<(), Problem> {
    let listen = || {
        let token = fermata_remote::Token::of_environment()?;
        let listener = TcpListener::bind(address).map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
        let bound = listener.local_addr()?;
        fermata_remote::listen(directory, listener, token, || began(bound))
    };
    listen().map_err(|error| cannot_answer(directory, &error))
}

fn cannot_answer(directory: &Path, error: &io::Error) -> Problem {
    Problem::new(format!("cannot answer for {}: {error}", directory.display()))
}

/// The remote that is meant.
pub(crate) fn entry(store: &Path, request: &CopyRequest) -> Result<RemoteEntry, Problem> {
    let all = remotes(store)?;
    let named = |text: &str| all.iter().find(|known| known.name == text || known.address == text);
    let unnamed = |address: &str| RemoteEntry::new(String::new(), address.to_owned(), None, Encryption::None);
    match &request.remote {
        Some(text) => match named(text) {
            Some(entry) => Ok(entry.clone()),
            None if text.contains('/') => Ok(unnamed(text)),
            None => Err(no_remote(text, &all)),
        },
        None => match (all.as_slice(), named(ORIGIN)) {
            ([only], _) => Ok(only.clone()),
            (_, Some(origin)) => Ok(origin.clone()),
            ([], None) => Err(Problem::new("this store has no remote: `fermata remote add origin ADDRESS` gives it one")),
            (several, None) => {
                let names: Vec<_> = several.iter().map(|known| known.name.as_str()).collect();
                Err(Problem::new(format!("this store has several remotes: say which of {}", names.join(", "))))
            }
        },
    }
}

pub(crate) fn connect(store: &Path, request: &CopyRequest) -> Result<Box<dyn Remote>, Problem> {
    let entry = entry(store, request)?;
    let remote = unseal(store, request, &entry, reach(&entry, request)?)?;
    recognize(store, &entry, &*remote)?;
    Ok(remote)
}

/// Fails unless a place is what it was when it was used before under this name. Where that is not known, it is remembered what it is.
fn recognize(store: &Path, entry: &RemoteEntry, remote: &dyn Remote) -> Result<(), Problem> {
    match &entry.identity {
        Some(expected) => check_identity(remote, expected).map_err(problem),
        None if entry.name.is_empty() => Ok(()),
        None => identity(remote).map_err(problem)?.map_or(Ok(()), |found| remember(store, entry, found)),
    }
}

/// What a place is that is pushed to, which becomes a remote if it is none yet. That is remembered before anything is sent there, so that from then on no other
/// place is taken for it. None: it has no name here.
fn make(store: &Path, entry: &RemoteEntry, remote: &dyn Remote) -> Result<Option<String>, Problem> {
    if entry.name.is_empty() || entry.identity.is_some() {
        return Ok(entry.identity.clone());
    }
    let made = make_remote(remote).map_err(problem)?;
    remember(store, entry, made.clone())?;
    Ok(Some(made))
}

fn remember(store: &Path, entry: &RemoteEntry, identity: String) -> Result<(), Problem> {
    let _alone = changing(store)?;
    let mut all = remotes(store)?;
    // Somebody may have forgotten it meanwhile.
    if let Some(known) = all.iter_mut().find(|known| **known == *entry) {
        known.identity = Some(identity);
        write_json(&store.join(FILE), &all)?;
    }
    Ok(())
}

/// The same for those who wait: as fast as it can be, and told soon when it cannot.
pub(crate) fn connect_impatient(store: &Path, request: &CopyRequest) -> Result<Box<dyn Remote>, Problem> {
    let entry = entry(store, request)?;
    let place = fermata_remote::open_impatient(&address(&entry.address)?).map_err(|error| unreachable(&entry, &error))?;
    unseal(store, request, &entry, place)
}

fn reach(entry: &RemoteEntry, request: &CopyRequest) -> Result<Box<dyn Remote>, Problem> {
    let address = address(&entry.address)?;
    let place = fermata_remote::open(&address, request.limit_bytes.or(entry.limit_bytes)).map_err(|error| unreachable(entry, &error))?;
    #[cfg(test)]
    let place = mortal::of_this_life(place);
    Ok(place)
}

/// A place, through its encryption where it has one.
fn unseal(store: &Path, request: &CopyRequest, entry: &RemoteEntry, place: Box<dyn Remote>) -> Result<Box<dyn Remote>, Problem> {
    let failed = |error: io::Error| unreachable(entry, &error);
    let secret = match (encryption(store, request)?, &request.passphrase) {
        (Encryption::None, _) if Sealed::is_sealed(&place).map_err(failed)? => {
            let what = format!(
                "{} is encrypted: `fermata remote rm {}`, and add it again with its passphrase or key file",
                entry.address, entry.name
            );
            return Err(Problem::new(what));
        }
        (Encryption::None, _) => return Ok(place),
        (Encryption::KeyFile(path), _) => Secret::read(&path).map_err(failed)?,
        (Encryption::Passphrase, Some(words)) => Secret::Passphrase(words.clone()),
        (Encryption::Passphrase, None) => {
            return Err(Problem::new(format!("{} is encrypted: set FERMATA_PASSPHRASE, or name its --key-file", entry.address)));
        }
    };
    if let Some(expected) = &entry.identity
        && !Sealed::is_sealed(&place).map_err(failed)?
    {
        // What is gone is not begun anew.
        check_identity(&place, expected).map_err(problem)?;
    }
    Ok(Box::new(Sealed::open(place, &secret).map_err(failed)?))
}

fn unreachable(entry: &RemoteEntry, error: &io::Error) -> Problem {
    Problem::new(format!("cannot use {}: {error}", entry.address))
}

fn address(text: &str) -> Result<Address, Problem> {
    text.parse().map_err(|error: String| Problem::new(error))
}

fn no_remote(name: &str, all: &[RemoteEntry]) -> Problem {
    let names: Vec<_> = all.iter().map(|known| known.name.as_str()).collect();
    Problem::new(match names.as_slice() {
        [] => format!("there is no remote \"{name}\", and no other: `fermata remote add {name} ADDRESS` makes one"),
        _ => format!("there is no remote \"{name}\"; there is {}", names.join(", ")),
    })
}

/// Golden images, and where they were when checkpoints were taken.
type Images = BTreeMap<ImageId, ImageDetails>;
pub(crate) type Refs = BTreeMap<RefName, CheckpointId>;
/// A branch or tag, and where it is.
type Named = (RefName, CheckpointId);

pub(crate) fn refs(store: &Store, experiment: &str) -> Result<Refs, Problem> {
    let branches = store.branches(experiment).map_err(problem)?.into_iter().map(|(name, id)| (RefName::Branch(name), id));
    let tags = store.tags(experiment).map_err(problem)?.into_iter();
    // Those of trials last as long as these, and are copied nowhere.
    let tags = tags.filter(|(name, _)| !name.starts_with(retention::TRIAL)).map(|(name, id)| (RefName::Tag(name), id));
    Ok(branches.chain(tags).collect())
}

/// The checkpoints that are asked for, and the branches and tags among what is.
fn chosen(
    request: &CopyRequest,
    refs: &Refs,
    by_id: impl Fn(&str) -> Result<CheckpointId, Problem>,
) -> Result<(Vec<CheckpointId>, Vec<Named>), Problem> {
    if request.names.is_empty() {
        let named: Vec<_> = refs.iter().map(|(name, id)| (name.clone(), *id)).collect();
        return Ok((named.iter().map(|(_, id)| *id).collect(), named));
    }
    let (mut ids, mut named) = (Vec::new(), Vec::new());
    for text in &request.names {
        let found: Vec<_> =
            [RefName::Tag(text.clone()), RefName::Branch(text.clone())].into_iter().filter(|name| refs.contains_key(name)).collect();
        if found.is_empty() {
            ids.push(by_id(text)?);
        }
        for name in found {
            ids.push(refs[&name]);
            named.push((name.clone(), refs[&name]));
        }
    }
    Ok((ids, named))
}

/// A checkpoint and those before it.
fn line(parents: &HashMap<CheckpointId, Option<CheckpointId>>, from: CheckpointId) -> impl Iterator<Item = CheckpointId> {
    std::iter::successors(parents.contains_key(&from).then_some(from), |id| parents[id].filter(|parent| parents.contains_key(parent)))
}

/// What becomes of a branch or tag that is at `id` on one side, and at `before` on the other.
fn outcome(
    name: &RefName,
    id: CheckpointId,
    before: Option<CheckpointId>,
    parents: &HashMap<CheckpointId, Option<CheckpointId>>,
    force: bool,
) -> Outcome {
    let Some(before) = before else { return Outcome::New };
    let is_branch = matches!(name, RefName::Branch(_));
    if before == id || is_branch && line(parents, before).any(|ancestor| ancestor == id) {
        return if force && before != id { Outcome::Moved } else { Outcome::Same };
    }
    match force || is_branch && line(parents, id).any(|ancestor| ancestor == before) {
        true => Outcome::Moved,
        false => Outcome::Left { at: before },
    }
}

/// Branches of an experiment that live runs grow.
fn living(known: &[Experiment], experiment: &str) -> BTreeSet<String> {
    let living = known.iter().filter(|known| known.name == experiment && known.state == ExperimentState::Running);
    living.flat_map(|known| &known.runs).map(|run| run.branch.clone()).collect()
}

pub(crate) fn activity(stage: CopyStage, transfer: &str, unit: &str, progress: Progress) -> Activity {
    let stage = match stage {
        CopyStage::Look => ("looking what is there", "packs"),
        CopyStage::Compare => ("comparing", "checkpoints"),
        CopyStage::Transfer => (transfer, unit),
        CopyStage::Enter => ("storing", "checkpoints"),
        CopyStage::Mark => ("finding what is needed", "nodes"),
        CopyStage::Wait => ("waiting for those who push at the same time", "pushes"),
        CopyStage::Rewrite => ("writing anew what is needed", "objects"),
        CopyStage::Remove => ("removing", "packs"),
        CopyStage::Images => (if transfer == "sending" { "sending golden images" } else { "making golden images" }, "blocks"),
        _ => ("copying", "steps"),
    };
    housekeeping::activity(stage, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> CheckpointId {
        CheckpointId([number; 32])
    }

    #[test]
    fn branches_move_along_their_lines_and_tags_stay() {
        // 1 - 2 - 3, and 4 beside 3.
        let parents = [(id(1), None), (id(2), Some(id(1))), (id(3), Some(id(2))), (id(4), Some(id(2)))].into();
        let (branch, tag) = (RefName::Branch("main".into()), RefName::Tag("good".into()));
        let check = |name: &RefName, at: u8, before: Option<u8>, force: bool, expected: Outcome| {
            assert_eq!(outcome(name, id(at), before.map(id), &parents, force), expected, "{name:?} {at} {before:?} {force}");
        };
        check(&branch, 3, None, false, Outcome::New);
        check(&branch, 3, Some(3), false, Outcome::Same);
        check(&branch, 3, Some(1), false, Outcome::Moved);
        check(&branch, 1, Some(3), false, Outcome::Same);
        check(&branch, 1, Some(3), true, Outcome::Moved);
        check(&branch, 3, Some(4), false, Outcome::Left { at: id(4) });
        check(&branch, 3, Some(4), true, Outcome::Moved);
        // A checkpoint that is not here leads nowhere.
        check(&branch, 3, Some(9), false, Outcome::Left { at: id(9) });
        check(&tag, 3, Some(1), false, Outcome::Left { at: id(1) });
        check(&tag, 3, Some(3), false, Outcome::Same);
        check(&tag, 3, Some(1), true, Outcome::Moved);
    }

    #[test]
    fn a_place_is_named_again_only_as_what_it_is() {
        let place = tempfile::tempdir().unwrap();
        let entry = |address: &str, encryption| RemoteEntry::new("origin".into(), address.into(), None, encryption);
        let first = add_again(place.path(), entry("/somewhere/", Encryption::None)).unwrap();
        assert_eq!(add_again(place.path(), entry("/somewhere/", Encryption::None)).unwrap(), first);
        assert!(add(place.path(), entry("/somewhere/", Encryption::None)).unwrap_err().message.contains("already"));
        assert!(add_again(place.path(), entry("/elsewhere", Encryption::None)).unwrap_err().message.contains("already"));
        assert!(add_again(place.path(), entry("/somewhere/", Encryption::Passphrase)).unwrap_err().message.contains("already"));
        assert_eq!(remotes(place.path()).unwrap(), [first]);
    }

    #[test]
    fn remotes_are_remembered() {
        let place = tempfile::tempdir().unwrap();
        let entry = |name: &str, address: &str| RemoteEntry::new(name.into(), address.into(), Some(5), Encryption::None);
        assert_eq!(remotes(place.path()).unwrap(), []);
        add(place.path(), entry("origin", "s3://bucket/a/")).unwrap();
        add(place.path(), entry("other", "/somewhere")).unwrap();
        assert!(add(place.path(), entry("origin", "/x")).unwrap_err().message.contains("s3://bucket/a already"));
        assert!(add(place.path(), entry("a/b", "/x")).unwrap_err().message.contains("no name"));
        assert!(add(place.path(), entry("ftp", "ftp://x")).unwrap_err().message.contains("s3://BUCKET"));
        assert_eq!(remotes(place.path()).unwrap(), [entry("origin", "s3://bucket/a"), entry("other", "/somewhere")]);
        assert!(forget(place.path(), "none").unwrap_err().message.contains("origin, other"));
        forget(place.path(), "origin").unwrap();
        assert_eq!(remotes(place.path()).unwrap().len(), 1);
    }
}
