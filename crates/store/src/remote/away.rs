//! A checkpoint that is not here yet: what of it is needed is read from a remote when it is asked for, while all of it is fetched behind whoever asks.
//!
//! Nothing of it is in the index before all of it is durable here: a [`Store`] that has such a checkpoint looks in the index first and then in the tables of
//! contents of the remote's packs. So whoever reads pages need not know of it, and a crash leaves a store without the checkpoint, and packs that are not fetched
//! again.
//!
//! Whoever waits for a page waits for as long as the remote cannot be reached, or says something wrong: it is asked again and again, at growing intervals. What
//! comes is checked against its name like everything else. One that says nothing at all, as a directory of a server that is gone, counts as failing after some seconds.
//!
//! Packs that are gone were rewritten, or pruned: then it is looked again where things lie. What lies nowhere any more may have been lost, and is waited for until somebody
//! has repaired the remote; so is what lay nowhere from the beginning, see `lacking`.

use super::{
    CopyStage, Name, PullOptions, Pulled, Remote,
    arriving::{Arriving, Came},
    catalog::{Catalog, RemotePack, pack_name},
    check_format,
    lacking::Lacking,
    lease::Going,
    record,
};
use crate::{
    Error, Progress, Record, Result, Store,
    cache::Cache,
    chunks::Source,
    error::Named,
    hash,
    hold::Presence,
    index::{Db, Location},
    node::{Node, Stored},
    pack::{self, Frame, Kind},
    removed,
    store::Inner,
    table::Nodes as _,
};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PAGE_SIZE, PackId, PageBuf, PageName, PageNumber};
use std::{
    collections::BTreeMap,
    fmt, io,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Read at once around what is asked for: neighbours in a pack are wanted together.
const AHEAD_MAX: u64 = 256 << 10;
/// Decompressed frames kept: 32 MiB at most.
const FRAMES_CACHED: usize = 512;
/// Deltas to deltas: as many as a push can have made.
const DELTAS_MAX: u32 = 64;
/// Between two attempts to reach a remote that failed, at first and at most.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// Fetched at once behind those who wait for something: so long they may have to wait for the line.
const PIECE: u64 = 1 << 20;
/// Who has waited so long for one thing is told that the remote fails.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// Between two looks at whether somebody still waits.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// How far a checkpoint is from being here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AwayState {
    /// Bytes of packs that have to be fetched; 0 as long as that is not known.
    pub total: u64,
    /// Of them those that are here.
    pub fetched: u64,
    /// Objects that somebody asked for before they were here, read one after the other.
    pub asked: u64,
    /// Why the remote cannot be read, while it cannot.
    pub trouble: Option<String>,
    /// Somebody waits for something that the remote does not give.
    pub waited_for: bool,
    /// What the remote said that was found to be wrong when it was believed already: why none of it can be used. That is told as trouble, and counts as waited for, too.
    pub lie: Option<String>,
}

/// A checkpoint that is read from a remote until it is here.
pub struct Away {
    pub(super) store: Store,
    /// For those who wait. Whoever fetches behind them has a line of their own.
    pub(super) remote: Box<dyn Remote>,
    catalog: Mutex<Arc<Catalog>>,
    id: CheckpointId,
    pub(super) record: Record,
    /// Golden images that are read from there.
    pub(super) images: Mutex<Vec<Arc<Arriving>>>,
    pub(super) lacking: Lacking,
    /// Where packs are fetched to.
    incoming: pack::Shelf,
    frames: Cache<(PackId, u32), Arc<Frame>>,
    /// Time, from whenever.
    clock: fn() -> Duration,
    state: Mutex<State>,
    changed: Condvar,
    /// What is in the store already, and is read there, stays until the checkpoint is.
    presence: Mutex<Option<Presence>>,
}

#[derive(Default)]
struct State {
    told: AwayState,
    /// Who waits for something that is away.
    demands: BTreeMap<u64, Waiting>,
    /// All of it is here.
    here: bool,
    /// Nobody wants it any more.
    ended: bool,
}

/// Somebody who waits.
struct Waiting {
    since: Duration,
    /// An attempt failed.
    failed: bool,
}

impl Waiting {
    /// How long it has waited for an answer, if that is too long.
    fn silence(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.since)).filter(|waited| *waited >= SILENCE_MAX)
    }
}

impl State {
    fn fails(&self, now: Duration) -> bool {
        self.demands.values().any(|waiting| waiting.failed || waiting.silence(now).is_some())
    }

    /// It will never be here.
    fn is_over(&self) -> bool {
        self.ended || self.told.lie.is_some()
    }

    /// Somebody waits whom nothing keeps from having it soon.
    fn is_busy(&self, now: Duration) -> bool {
        self.demands.values().any(|waiting| !waiting.failed && waiting.silence(now).is_none())
    }
}

/// Why an object could not be read.
enum Missed {
    /// It is in no pack, or the pack is not there any more.
    Gone,
    Wrong(String),
}

impl From<String> for Missed {
    fn from(detail: String) -> Self {
        Self::Wrong(detail)
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it is gone"),
            Self::Wrong(detail) => f.write_str(detail),
        }
    }
}

impl fmt::Debug for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Away({} at {})", self.id.short(), self.remote)
    }
}

impl Store {
    /// Begins to read a checkpoint of an experiment from a remote, as if it were here. There can be one at a time. `remote` is for those who wait: it should
    /// tell soon when it cannot be reached; `clock` tells how long they have waited.
    pub fn begin_away(
        &self,
        remote: Box<dyn Remote>,
        experiment: &str,
        id: &CheckpointId,
        clock: fn() -> Duration,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Arc<Away>> {
        check_format(&*remote, false)?;
        let presence = Presence::writer(self)?;
        self.0.forget_if_collected()?;
        let (record, _) = record(&*remote, experiment, id)?;
        let catalog = look(self, &*remote, &mut |at| progress(CopyStage::Look, at))?;
        if !catalog.unreadable.is_empty() {
            // Who would need something of those is not begun with: there is nowhere else to get it from.
            self.check_remote(&*remote, experiment, &[*id], true, &mut |_| {})?;
        }
        let away = Arc::new(Away {
            // One that is away has no strong hold on a store that is: the store lets go of it when it ends.
            store: self.clone(),
            remote,
            catalog: Mutex::new(Arc::new(catalog)),
            id: *id,
            record,
            images: Mutex::default(),
            lacking: Lacking::default(),
            incoming: self.0.incoming(),
            frames: Cache::new(FRAMES_CACHED),
            clock,
            state: Mutex::default(),
            changed: Condvar::new(),
            presence: Mutex::new(Some(presence)),
        });
        let mut place = self.0.away.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_some() {
            return Err(Error::refused("another checkpoint is being read from a remote", "wait until all of it is here"));
        }
        *place = Some(away.clone());
        Ok(away)
    }

    /// The checkpoint that is read from a remote, as long as it is not here.
    pub fn away(&self) -> Option<Arc<Away>> {
        self.0.away()
    }

    /// Waits until the checkpoint that is away, if there is one, is here. False: nobody wanted that any more, who is asked now and then; or it never will be.
    pub fn await_away(&self, wanted: &dyn Fn() -> bool) -> bool {
        let Some(away) = self.away() else { return true };
        let mut state = away.lock();
        while !state.here && !state.is_over() {
            if !wanted() {
                return false;
            }
            state = away.changed.wait_timeout(state, BETWEEN_LOOKS).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.here
    }
}

impl Inner {
    pub fn away(&self) -> Option<Arc<Away>> {
        self.away.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Who has an object that cannot be read here; none: it can, or nobody has it.
    pub fn away_with(&self, db: &Db, name: &Name) -> Result<Option<Arc<Away>>> {
        let Some(away) = self.away().filter(|away| away.has(name) || away.lacking.has(name)) else { return Ok(None) };
        // What a collection is about to remove is as good as gone: nobody who came after it began is waited for.
        let place = self.index.lasting(&*self.index.read()?, db, name, &Named("object", name))?;
        Ok((!self.is_readable(place)).then_some(away))
    }

    /// Whether what lies there can be read here.
    pub fn is_readable(&self, place: Option<Location>) -> bool {
        match place {
            Some(Location::Pack { .. }) => true,
            Some(Location::Image { image, .. }) => self.images.read().unwrap_or_else(PoisonError::into_inner).contains_key(&image),
            None => false,
        }
    }
}

impl Away {
    /// The checkpoint.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// Where it is.
    pub fn remote(&self) -> String {
        self.remote.to_string()
    }

    /// How far it is.
    pub fn state(&self) -> AwayState {
        let (state, now) = (self.lock(), (self.clock)());
        let silence = state.demands.values().filter_map(|waiting| waiting.silence(now)).max();
        let silent = || silence.map(|silence| format!("it has not answered for {} s", silence.as_secs()));
        let told = &state.told;
        let trouble = told.lie.clone().or_else(|| told.trouble.clone()).or_else(silent);
        AwayState { waited_for: told.lie.is_some() || state.fails(now), trouble, ..told.clone() }
    }

    /// Its record. A parent that is not here counts as removed.
    pub(crate) fn record(&self) -> Record {
        self.record.clone()
    }

    /// Nobody wants it any more: whoever waits for something of it fails.
    pub fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
        *self.store.0.away.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The remote was believed what is not so: it never comes.
    pub(super) fn give_up(&self, lie: String) {
        self.lock().told.lie = Some(lie);
        self.changed.notify_all();
    }

    /// Fetches all of it over a line of its own, behind those who wait for something, and again when that fails; until it is here, when `entered` is told, before
    /// anybody who waits for it to be here. Then it is read like any other. Before that `came` is told of each golden image that was read from the remote, and has it read
    /// where it lies now. None: it ended before, or there was a lie.
    pub fn fetch(
        &self,
        remote: &dyn Remote,
        came: &mut dyn FnMut(&ImageId, &Path) -> Result<()>,
        entered: &mut dyn FnMut() -> Result<()>,
    ) -> Option<Pulled> {
        let polite = Polite { remote, away: self };
        let mut interval = RETRY_FIRST;
        loop {
            let fetched = self.pull(&polite, came).and_then(|pulled| entered().map(|()| pulled));
            match fetched {
                _ if self.lock().is_over() => return None,
                Ok(pulled) => {
                    self.arrived();
                    // Nobody waits for that: it waits for whoever collects or verifies.
                    if let Err(error) = removed::tell_of(&self.store, &[self.id], pulled.checkpoints > 0) {
                        tracing::warn!("{error}");
                    }
                    return Some(pulled);
                }
                Err(error) => {
                    tracing::warn!("checkpoint {} is not fetched yet: {error}", self.id.short());
                    self.lock().told.trouble = Some(error.to_string());
                }
            }
            if !self.sleep(interval) {
                return None;
            }
            interval = (interval * 2).min(RETRY_MAX);
        }
    }

    fn pull(&self, remote: &dyn Remote, came: Came<'_>) -> Result<Pulled> {
        let mut presence = self.presence.lock().unwrap_or_else(PoisonError::into_inner);
        if presence.is_none() {
            *presence = Some(Presence::writer(&self.store)?);
        }
        let mut report = |stage: CopyStage, at: Progress| {
            if stage == CopyStage::Transfer {
                let mut state = self.lock();
                // It is told once for nodes and once for the rest, of the images and then of the checkpoint; what is left is what counts.
                (state.told.fetched, state.told.total) = (at.done, at.total);
            }
        };
        let mut pull = self.store.begin(remote, &self.record.experiment, &[self.id], &PullOptions { jobs: 1 }, None)?;
        self.bring_images(&mut pull, came, &mut report)?;
        pull.finish_present(&mut presence, &mut report)
    }

    fn arrived(&self) {
        let mut state = self.lock();
        state.here = true;
        state.told.trouble = None;
        drop(state);
        *self.store.0.away.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_all();
    }

    pub(crate) fn has(&self, name: &Name) -> bool {
        self.catalog().find(name).is_some()
    }

    pub(super) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks again where things lie on the remote, for what is wanted is not there any more, or never was. False: it lies nowhere else.
    fn look_again(&self, before: &Arc<Catalog>, wanted: &Name) -> Result<bool> {
        // Somebody else may have looked.
        if !Arc::ptr_eq(before, &self.catalog()) {
            return Ok(true);
        }
        let now = look(&self.store, &*self.remote, &mut |_| {})?;
        let id = |catalog: &Catalog| catalog.find(wanted).map(|at| catalog.packs[at.pack as usize].id);
        // One that is found nowhere may come back where it was.
        if id(&now).is_none() || id(&now) == id(before) {
            return Ok(false);
        }
        *self.catalog.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(now);
        Ok(true)
    }

    /// Reads a page. False: it is here by now.
    pub(crate) fn page(&self, name: &PageName, into: &mut PageBuf) -> Result<bool> {
        let read = self.object(name.as_bytes(), Kind::Pages, "page", |bytes| {
            let page: &PageBuf = bytes.try_into().map_err(|_| format!("a page of {} bytes", bytes.len()))?;
            if hash::page(page) == *name { Ok(*page) } else { Err("the content does not fit the name".into()) }
        })?;
        Ok(read.map(|page| *into = page).is_some())
    }

    /// Reads many pages, those that lie together one after the other. Returns those that are here by now.
    pub(crate) fn pages(
        &self,
        mut wanted: Vec<(PageNumber, PageName)>,
        each: &dyn Fn(PageNumber, &PageBuf) -> bool,
    ) -> Result<Vec<(PageNumber, PageName)>> {
        let catalog = self.catalog();
        // What is in no pack there keeps nobody else waiting.
        wanted.sort_by_key(|(_, name)| {
            let place = catalog.find(name.as_bytes());
            (place.is_none(), place)
        });
        let (mut here, mut page) = (Vec::new(), [0; PAGE_SIZE]);
        for (number, name) in wanted {
            if !self.page(&name, &mut page)? {
                here.push((number, name));
            } else if !each(number, &page) {
                return Ok(Vec::new());
            }
        }
        Ok(here)
    }

    /// A blob; none: it is here by now.
    pub(crate) fn blob(&self, name: &BlobName) -> Result<Option<Vec<u8>>> {
        self.object(name.as_bytes(), Kind::Blob, "blob", |bytes| match hash::blob(bytes) == *name {
            true => Ok(bytes.to_vec()),
            false => Err("the content does not fit the name".into()),
        })
    }

    /// A node; none: it is here by now.
    pub(crate) fn node(&self, name: &NodeName) -> Result<Option<Node>> {
        self.node_upon(name, DELTAS_MAX)
    }

    fn node_upon(&self, name: &NodeName, deltas_left: u32) -> Result<Option<Node>> {
        let decode = |bytes: &[u8]| Stored::decode(bytes);
        let Some(stored) = self.object(name.as_bytes(), Kind::Nodes, "node", decode)? else { return Ok(None) };
        let wrong = |detail: String| Error::corrupt(&super::place(&*self.remote, "packs"), None, Named("node", name.as_bytes()), detail);
        let node = match stored {
            Stored::Full(node) => node,
            Stored::Delta(_) if deltas_left == 0 => return Err(wrong("too many nodes that each stand on another one".into())),
            Stored::Delta(delta) => {
                let inner = &self.store.0;
                let base = match inner.away_with(&inner.index.nodes, delta.base.as_bytes())? {
                    Some(_) => self.node_upon(&delta.base, deltas_left - 1)?,
                    None => match inner.load(&delta.base) {
                        // It is nowhere, and is waited for like what stands on it.
                        Err(Error::Missing { .. }) => self.node_upon(&delta.base, deltas_left - 1)?,
                        loaded => Some(loaded?.node.clone()),
                    },
                };
                let Some(base) = base else { return Ok(None) };
                delta.apply(&base).map_err(wrong)?
            }
        };
        if node.name() != *name {
            return Err(wrong("the content does not fit the name".into()));
        }
        Ok(Some(node))
    }

    /// An object that `check` finds to be what it should be. Asks until it has it, also where it is in no pack yet; none: it is here by now.
    fn object<T>(
        &self,
        name: &Name,
        kind: Kind,
        what: &'static str,
        check: impl Fn(&[u8]) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let demand = Demand::new(self);
        let (mut fresh, mut interval) = (false, RETRY_FIRST);
        loop {
            let catalog = self.catalog();
            let found = catalog.find(name).map(|at| (at, &catalog.packs[at.pack as usize]));
            let frame = match found {
                None => Err(Missed::Gone),
                Some((at, pack)) if pack.contents.entries[at.frame as usize].kind == kind => {
                    self.frame(pack, at.frame, fresh).map(|frame| (frame, at.place))
                }
                Some(_) => Err(Missed::Wrong(format!("what lies there is no {what}"))),
            };
            let read = frame.and_then(|(frame, place)| Ok(frame.object(place.into()).and_then(&check)?));
            match read {
                Ok(value) => return Ok(Some(value)),
                // Where it is now, it is asked for at once.
                Err(Missed::Gone) if self.look_again(&catalog, name).unwrap_or(false) => continue,
                Err(missed) => demand.failed(match found {
                    Some((_, pack)) => format!("{}: {missed}", pack_name(&pack.id)),
                    None => {
                        let what = Named(what, name);
                        format!("{what} is in no pack there: where it is whole, `fermata remote verify --repair` sends it again")
                    }
                }),
            }
            if !self.sleep(interval) {
                return if self.lock().here { Ok(None) } else { Err(self.ended(&Named(what, name))) };
            }
            (fresh, interval) = (true, (interval * 2).min(RETRY_MAX));
        }
    }

    fn ended(&self, what: &dyn fmt::Display) -> Error {
        Error::refused(format!("{what} was waited for from {}, and nobody wants it any more", self.remote), "swap it in again")
    }

    /// Waits; false if there is nothing to wait for any more.
    fn sleep(&self, time: Duration) -> bool {
        let over = |state: &mut State| !state.here && !state.ended;
        let (state, _) = self.changed.wait_timeout_while(self.lock(), time, over).unwrap_or_else(PoisonError::into_inner);
        !state.here && !state.ended
    }

    /// A frame of a pack, and its neighbours on the way. `fresh`: what was read before was not right.
    fn frame(&self, pack: &RemotePack, at: u32, fresh: bool) -> std::result::Result<Arc<Frame>, Missed> {
        if let Some(frame) = self.frames.get(&(pack.id, at)).filter(|_| !fresh) {
            return Ok(frame);
        }
        let entries = &pack.contents.entries[at as usize..];
        let first = &entries[0];
        // What may be large comes alone, and is not kept.
        let is_of_many = first.kind.is_of_many();
        let neighbours = entries.iter().take_while(|entry| {
            is_of_many && entry.kind == first.kind && entry.offset.saturating_sub(first.offset) + u64::from(entry.length) <= AHEAD_MAX
        });
        let count = neighbours.count().max(1);
        let last = &entries[count - 1];
        let bytes = self.bytes(pack, first.offset, last.offset + u64::from(last.length) - first.offset, fresh)?;
        let mut wanted = None;
        for (number, entry) in (at..).zip(&entries[..count]) {
            let from = (entry.offset - first.offset) as usize;
            let frame = match pack::unpack_entry(&bytes[from..from + entry.length as usize], entry) {
                Ok(frame) => Arc::new(frame),
                // A neighbour is wanted by nobody yet.
                Err(_) if wanted.is_some() => break,
                Err(error) => return Err(error.into()),
            };
            if is_of_many {
                self.frames.insert((pack.id, number), frame.clone());
            }
            wanted.get_or_insert(frame);
        }
        wanted.ok_or_else(|| Missed::Wrong("no frame lies there".to_owned()))
    }

    /// Bytes of a pack: of what was fetched already, or from the remote.
    fn bytes(&self, pack: &RemotePack, from: u64, length: u64, fresh: bool) -> std::result::Result<Vec<u8>, Missed> {
        if from.checked_add(length).is_none_or(|end| end > pack.length) {
            return Err(Missed::Wrong(format!("it should reach to byte {from} + {length}, and the pack has {}", pack.length)));
        }
        if !fresh && let Ok(source) = Source::open(&self.incoming.place(&pack.id), &self.incoming.sealing) {
            let mut bytes = vec![0; length as usize];
            if source.read_exact_at(&mut bytes, from).is_ok() {
                return Ok(bytes);
            }
        }
        let read = self.remote.range(&pack_name(&pack.id), from, length).map_err(|error| error.to_string())?.ok_or(Missed::Gone)?;
        if read.len() as u64 == length { Ok(read) } else { Err(Missed::Wrong("it is shorter than it was".to_owned())) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing half done can be in it, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What lies where on a remote.
fn look(store: &Store, remote: &dyn Remote, progress: &mut dyn FnMut(Progress)) -> Result<Catalog> {
    Catalog::read(store, remote, PullOptions::default().jobs, &Going::look(remote)?, false, progress)
}

/// Somebody who waits for something that is away. Whoever fetches behind them waits meanwhile.
struct Demand<'a> {
    away: &'a Away,
    number: u64,
}

impl<'a> Demand<'a> {
    fn new(away: &'a Away) -> Self {
        let mut state = away.lock();
        state.told.asked += 1;
        let number = state.told.asked;
        state.demands.insert(number, Waiting { since: (away.clock)(), failed: false });
        Self { away, number }
    }

    fn failed(&self, why: String) {
        let mut state = self.away.lock();
        if let Some(waiting) = state.demands.get_mut(&self.number) {
            waiting.failed = true;
        }
        if state.told.trouble.as_ref() != Some(&why) {
            tracing::warn!("waiting for {}: {why}", self.away.remote);
            state.told.trouble = Some(why);
        }
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        let mut state = self.away.lock();
        if state.demands.remove(&self.number).is_some_and(|waiting| waiting.failed) {
            state.told.trouble = None;
        }
        drop(state);
        self.away.changed.notify_all();
    }
}

/// A remote that fetches packs piece by piece, and lets whoever waits for something go first.
struct Polite<'a> {
    remote: &'a dyn Remote,
    away: &'a Away,
}

impl Polite<'_> {
    /// Waits until nobody waits for anything; fails when all ends.
    fn after_you(&self) -> io::Result<()> {
        let mut state = self.away.lock();
        // Nobody tells that a remote has become silent: it is looked at now and then.
        while !state.ended && state.is_busy((self.away.clock)()) {
            state = self.away.changed.wait_timeout(state, BETWEEN_LOOKS).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.ended { Err(io::Error::other("nobody wants it any more")) } else { Ok(()) }
    }
}

impl fmt::Display for Polite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.remote.fmt(f)
    }
}

impl Remote for Polite<'_> {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.after_you()?;
        if !name.starts_with("packs/") {
            return self.remote.get(name, most);
        }
        // Of a pack the length is known, and is the most that it may have.
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < most {
            self.after_you()?;
            let Some(piece) = self.remote.range(name, bytes.len() as u64, PIECE.min(most - bytes.len() as u64))? else { return Ok(None) };
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
        }
        Ok(Some(bytes))
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.after_you()?;
        self.remote.tail(name, most)
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        self.after_you()?;
        self.remote.range(name, from, length)
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.remote.put(name, bytes)
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        self.remote.swap(name, before, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.remote.remove(name)
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        self.remote.unique()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.remote.list(prefix)
    }
}
