//! Who pushes and who prunes at the same time: what one is about to remove the other does not count on. See `docs/formats/remote.md`.

use super::{Remote, damaged, get, list, place};
use crate::{Error, Result};
use fermata_types::{PackId, id::hex};
use std::{
    collections::{BTreeSet, HashSet},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

const LEASES: &str = "pushes/";
const LEASE_MAX: u64 = 64;
/// Between two signs of life of a push: a tenth of the time after which [`PruneOptions`](super::PruneOptions) takes one for dead that gives none.
const BEAT_EVERY: Duration = Duration::from_secs(30);
const GOING: &str = "pruning";
const GOING_MAX: u64 = 1 << 30;
const VERSION: &str = "fermata pruning 1";
/// Stands for nobody who prunes.
const NOBODY: &str = "-";

/// Somebody pushes, and counts on what is there.
pub(super) struct Lease<'a> {
    remote: &'a dyn Remote,
    number: String,
    object: String,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    beats: u64,
    /// Somebody took it for dead.
    is_lost: bool,
    is_over: bool,
}

impl<'a> Lease<'a> {
    /// From now on nothing goes that is not announced already: ask [`Going::look`] after this.
    pub fn take(remote: &'a dyn Remote) -> Result<Self> {
        let number = unique(remote)?;
        let object = format!("{LEASES}{number}");
        match remote.swap(&object, None, text(0)) {
            Ok(true) => {}
            Ok(false) => return Err(damaged(remote, &object, "somebody else drew the same number")),
            Err(error) => return Err(Error::io("write", &place(remote, &object))(error)),
        }
        let state = State { beats: 0, is_lost: false, is_over: false };
        Ok(Self { remote, number, object, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// What its packs begin with. See [`Going::dead`].
    pub fn number(&self) -> &str {
        &self.number
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something under a lease that gives signs of life from the beginning: on a slow line it takes minutes to learn what is there.
    pub fn during<T>(remote: &dyn Remote, work: impl FnOnce(&Lease<'_>) -> Result<T>) -> Result<T> {
        let lease = Lease::take(remote)?;
        thread::scope(|scope| {
            scope.spawn(|| lease.beat());
            // Also when the work panics, or its thread would wait for the beats for ever.
            let beats = Beats(&lease);
            let done = work(&lease);
            drop(beats);
            // Whatever failed, that somebody took it for dead is the cause.
            done.map_err(|error| lease.check().err().filter(|_| lease.is_lost()).unwrap_or(error))
        })
    }

    /// Gives signs of life until it is over.
    fn beat(&self) {
        let mut state = self.lock();
        loop {
            state = self.changed.wait_timeout_while(state, BEAT_EVERY, |state| !state.is_over).unwrap_or_else(PoisonError::into_inner).0;
            if state.is_over || state.is_lost {
                return;
            }
            self.beat_once(&mut state);
        }
    }

    fn beat_once(&self, state: &mut State) {
        // One that fails may be followed by one that does not.
        match self.remote.swap(&self.object, Some(&text(state.beats)), text(state.beats + 1)) {
            Ok(true) => state.beats += 1,
            Ok(false) => self.look_after_it(state),
            Err(_) => {}
        }
    }

    /// Another text was there than the last that we know to have written: that of a beat whose answer was lost, or none, because somebody took this push for dead.
    fn look_after_it(&self, state: &mut State) {
        match get(self.remote, &self.object, LEASE_MAX) {
            Ok(Some(found)) if found == text(state.beats + 1) => state.beats += 1,
            Ok(Some(found)) if found == text(state.beats) => {}
            Ok(_) => state.is_lost = true,
            // The next beat looks again.
            Err(_) => {}
        }
    }

    fn end_beats(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Fails if somebody took this push for dead: what it counted on may be gone.
    pub fn check(&self) -> Result<()> {
        let mut state = self.lock();
        // What a beat wrote whose answer was lost is as good.
        let is_ours = |found: Vec<u8>| found == text(state.beats) || found == text(state.beats + 1);
        let is_there = get(self.remote, &self.object, LEASE_MAX)?.is_some_and(is_ours);
        state.is_lost |= !is_there;
        match state.is_lost {
            false => Ok(()),
            true => Err(Error::refused(
                format!(
                    "somebody who removed checkpoints from {} took this push for dead, for nothing was heard of it for minutes",
                    self.remote
                ),
                "push again: what it had sent and not completed is sent anew",
            )),
        }
    }

    /// Whether a look found that somebody took it for dead.
    pub fn is_lost(&self) -> bool {
        self.lock().is_lost
    }
}

/// Signs of life end with it.
struct Beats<'a>(&'a Lease<'a>);

impl Drop for Beats<'_> {
    fn drop(&mut self) {
        self.0.end_beats();
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // If it stays there, whoever prunes waits for it a while.
        let _ = self.remote.remove(&self.object);
    }
}

fn text(beats: u64) -> Vec<u8> {
    format!("{beats}\n").into_bytes()
}

/// A name that nobody else has.
pub(super) fn unique(remote: &dyn Remote) -> Result<String> {
    remote.unique().map(|bytes| hex(&bytes)).map_err(Error::io("find a name at", &place(remote, "")))
}

/// The pushes under way: what each said last.
pub(super) fn pushes(remote: &dyn Remote) -> Result<BTreeSet<(String, Vec<u8>)>> {
    let mut pushes = BTreeSet::new();
    for (name, _) in list(remote, LEASES)? {
        pushes.extend(get(remote, &format!("{LEASES}{name}"), LEASE_MAX)?.map(|text| (name, text)));
    }
    Ok(pushes)
}

/// Takes a push for dead. It is to be among [`Going::dead`] before.
pub(super) fn break_lease(remote: &dyn Remote, name: &str) -> Result<()> {
    let object = format!("{LEASES}{name}");
    remote.remove(&object).map_err(Error::io("remove", &place(remote, &object)))
}

/// What is about to be removed: nobody may count on it any more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Going {
    pub packs: HashSet<PackId>,
    /// Objects that are records of images.
    pub images: BTreeSet<String>,
    /// Pushes that were taken for dead, for good: one that lives all the same may send nodes whose blocks are gone, so all its packs are about to go, whenever they come.
    pub dead: BTreeSet<String>,
}

impl Going {
    pub fn look(remote: &dyn Remote) -> Result<Self> {
        Ok(Self::read(remote)?.1)
    }

    /// What is written there, and what it says.
    fn read(remote: &dyn Remote) -> Result<(Option<Vec<u8>>, Self)> {
        let Some(bytes) = get(remote, GOING, GOING_MAX)? else { return Ok((None, Self::default())) };
        let wrong = || damaged(remote, GOING, "it is no list of what is about to be removed");
        let text = std::str::from_utf8(&bytes).map_err(|_| wrong())?;
        let mut lines = text.lines();
        if lines.next() != Some(VERSION) || lines.next().is_none() || !text.ends_with('\n') {
            return Err(wrong());
        }
        let mut going = Self::default();
        for line in lines {
            match line.split_once(' ') {
                Some(("pack", id)) => _ = going.packs.insert(id.parse().map_err(|_| wrong())?),
                Some(("image", name)) => _ = going.images.insert(name.to_owned()),
                Some(("dead", number)) => _ = going.dead.insert(number.to_owned()),
                _ => return Err(wrong()),
            }
        }
        Ok((Some(bytes), going))
    }

    fn encode(&self, who: &str) -> Vec<u8> {
        let packs: BTreeSet<_> = self.packs.iter().map(|pack| format!("pack {pack}\n")).collect();
        let images = self.images.iter().map(|name| format!("image {name}\n"));
        let dead = self.dead.iter().map(|number| format!("dead {number}\n"));
        [format!("{VERSION}\n{who}\n")].into_iter().chain(packs).chain(images).chain(dead).collect::<String>().into_bytes()
    }
}

/// The right to remove. Whoever takes it next takes it away, and goes on with what was announced.
pub(super) struct Claim<'a> {
    remote: &'a dyn Remote,
    who: String,
    pub going: Going,
}

impl<'a> Claim<'a> {
    pub fn take(remote: &'a dyn Remote) -> Result<Self> {
        let who = unique(remote)?;
        let (before, going) = Going::read(remote)?;
        let claim = Self { remote, who, going };
        claim.swap(before.as_deref(), claim.going.encode(&claim.who))?;
        Ok(claim)
    }

    fn swap(&self, before: Option<&[u8]>, now: Vec<u8>) -> Result<()> {
        match self.remote.swap(GOING, before, now) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::refused(
                format!("somebody else removes from {} at the same time", self.remote),
                "wait until that has ended, then look again with --dry-run",
            )),
            Err(error) => Err(Error::io("write", &place(self.remote, GOING))(error)),
        }
    }

    /// Announces more.
    pub fn announce(&mut self, more: Going) -> Result<()> {
        let before = self.going.encode(&self.who);
        self.going.packs.extend(more.packs);
        self.going.images.extend(more.images);
        self.going.dead.extend(more.dead);
        self.swap(Some(&before), self.going.encode(&self.who))
    }

    /// Fails if somebody else has taken the right away.
    pub fn check(&self) -> Result<()> {
        let now = self.going.encode(&self.who);
        self.swap(Some(&now), now.clone())
    }

    /// All that was announced is gone.
    pub fn end(self) -> Result<()> {
        let before = self.going.encode(&self.who);
        self.swap(Some(&before), Going { dead: self.going.dead.clone(), ..Going::default() }.encode(NOBODY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::{
        CopyStage, PruneOptions,
        tests::{Place, history, push, store},
    };

    #[test]
    fn a_sign_of_life_whose_answer_is_lost_is_one() {
        let place = Place::new();
        let lease = Lease::take(&place).unwrap();
        let beat = || lease.beat_once(&mut lease.lock());
        beat();
        place.lose_an_answer();
        for _ in 0..3 {
            beat();
            lease.check().unwrap();
        }
        // The one that was lost, and that which found it, are one.
        assert_eq!(pushes(&place).unwrap(), [(lease.number().to_owned(), text(3))].into());
        break_lease(&place, lease.number()).unwrap();
        beat();
        assert!(lease.is_lost());
        lease.check().unwrap_err();
    }

    #[test]
    fn a_push_that_panics_gives_no_more_signs_of_life() {
        let place = Place::new();
        let panics = std::panic::AssertUnwindSafe(|| Lease::during(&place, |_| -> Result<()> { panic!("within a push") }));
        let why = std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(why.downcast_ref::<&str>(), Some(&"within a push"));
        assert!(pushes(&place).unwrap().is_empty());
    }

    #[test]
    fn a_push_is_waited_for_as_long_as_it_gives_signs_of_life() {
        let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
        let from = store(here.path());
        push(&from, &place, &history(&from, 2)).unwrap();
        let lease = Lease::take(&place).unwrap();
        let options = PruneOptions { looks: 3, look_every: Duration::from_millis(1), ..PruneOptions::default() };
        let mut looks = 0;
        let pruned = from.prune_remote(&place, &options, &mut |stage, _| {
            looks += u32::from(stage == CopyStage::Wait);
            if looks <= 20 {
                lease.beat_once(&mut lease.lock());
            }
        });
        let pruned = pruned.unwrap();
        assert_eq!((pruned.dead_pushes, looks), (1, 20 + 1 + options.looks), "after the last sign it was looked so many times");
        assert!(pushes(&place).unwrap().is_empty());
        let error = lease.check().unwrap_err().to_string();
        assert!(error.contains("took this push for dead"), "{error}");
        // Whoever has ended is not waited for.
        drop(lease);
        drop(Lease::take(&place).unwrap());
        assert_eq!(from.prune_remote(&place, &options, &mut |_, _| {}).unwrap().dead_pushes, 0);
    }
}
