//! An area that grows a line of checkpoints in a store.
//!
//! ```text
//!            begin()           commit()
//!   ───────────┬──────────────────┬─────────────┬───────────> the program
//!              │ Cycle: the slice │ capture     │
//!              │ to write to      │ (the pause) │
//!                                 ├── written behind it, if asked so ──> checkpoint
//!                                 └── sent, where there are backups ──> their checkpoints
//! ```

use crate::{Area, Capture, Error, Options, Pending, Result, capture::pages_of, copier::Copier, follower::Follower, line::Line};
use fermata_linux::{clock::Stopwatch, lock::FileLock};
use fermata_store::Store;
use fermata_types::{CheckpointId, PAGE_SIZE};
use std::{
    ops::{Deref, DerefMut, Range},
    path::Path,
    sync::Arc,
    time::Duration,
};

/// A critical data area: memory that comes back after a crash as it was at the last commit.
#[derive(Debug)]
pub struct CriticalArea {
    area: Area,
    line: Line,
    backups: Vec<Follower>,
    /// Copies behind the program, if it was asked for.
    copier: Option<Copier>,
    /// One process at a time: two would grow one line.
    _lock: FileLock,
}

/// From `begin` to `commit`: the slice of the area to write to, under one name for what becomes a checkpoint together.
///
/// Dropped without `commit`, it leaves the memory as it is, and what was written is part of the next commit. [`roll_back`](Self::roll_back) undoes it.
#[derive(Debug)]
#[must_use = "what was written becomes a checkpoint by `commit`"]
pub struct Cycle<'a> {
    area: &'a mut CriticalArea,
    message: Option<String>,
}

impl CriticalArea {
    /// Opens the area of this name as it was at its last commit, with pointers within it still right; a new one, all zero, if there is none.
    ///
    /// `Refused` if it is open already, here or in another process, or if it has another size.
    pub fn open(store: &Store, name: &str, bytes: usize, options: impl Into<Options>) -> Result<Self> {
        let (lock, options) = (Self::lock(store, name, Duration::ZERO)?, options.into());
        let copier = options.copies_on_write().then(|| Copier::start(name)).transpose()?;
        let (line, state) = Line::open(store, name)?;
        let keeps = options.keeps_last();
        let area = match state {
            None => Area::new(name, bytes, options)?,
            Some(state) => {
                // Before anything is made of that size: a checkpoint may claim to be of any.
                let found = pages_of(&state)?;
                if found != bytes.div_ceil(PAGE_SIZE) as u64 {
                    let what = format!("it has {} bytes, not {bytes}", u128::from(found) * PAGE_SIZE as u128);
                    return Err(Error::refused(name, what, "open it with its size, or choose another name"));
                }
                Area::restore(store, &state, options)?
            }
        };
        let area = Self { area, line, backups: Vec::new(), copier, _lock: lock };
        keeps.map_or(Ok(()), |commits| area.keep_last(commits))?;
        Ok(area)
    }

    /// The lock of an area, waiting for it at most so long.
    pub(crate) fn lock(store: &Store, name: &str, time: Duration) -> Result<FileLock> {
        // Names of areas are names of experiments: the store refuses others, but this file comes first.
        if name.is_empty() || name.len() > 128 || name.contains(['/', '~', '\0']) || name.starts_with('-') {
            return Err(Error::refused(
                name,
                "it cannot have this name",
                "a name has 1 to 128 bytes, no white space, no / or ~, and no - in front",
            ));
        }
        let path = store.live_dir().join(format!("area-{name}.lock"));
        let lock = FileLock::take_within(&path, time).map_err(Error::io(name, "locking it"))?;
        lock.ok_or_else(|| {
            Error::refused(
                name,
                "it is open already",
                "close it there first, end the `fermata receive` that has it, or choose another name",
            )
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.area.name()
    }

    /// Its addresses in this process; the same after a restore.
    pub fn range(&self) -> Range<u64> {
        self.area.range()
    }

    /// How its writes are found at the moment.
    pub fn mechanism(&self) -> &'static str {
        self.area.mechanism()
    }

    /// What is in it, to be read.
    pub fn as_slice(&self) -> &[u8] {
        self.area.as_slice()
    }

    /// The checkpoint that was made durable last.
    pub fn head(&self) -> Option<CheckpointId> {
        self.line.head()
    }

    /// From now on older checkpoints than those of the last so many commits are removed, those of earlier programs, too, but for the tagged ones; one stays at least. A thread does so every ten seconds, and
    /// frees their space when it is worth it, as `fermata gc` does. So for a while there are more, and some may be left when the program ends: whoever opens the area to keep as few begins with them.
    pub fn keep_last(&self, commits: u32) -> Result<()> {
        self.line.keep_last(commits)
    }

    /// Begins what shall become a checkpoint together. Costs nothing.
    pub fn begin(&mut self) -> Result<Cycle<'_>> {
        Ok(Cycle { area: self, message: None })
    }

    /// What is in it, to be written without a cycle: it belongs to the next commit.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.area.as_mut_slice()
    }

    /// See [`Area::exclude`].
    pub fn exclude(&mut self, bytes: Range<usize>) -> Result<()> {
        self.area.exclude(bytes)
    }

    /// See [`Area::include`].
    pub fn include(&mut self, bytes: Range<usize>) -> Result<()> {
        self.area.include(bytes)
    }

    /// Waits until a commit behind the program would not have to wait: at most four are captured and not yet written, or not yet sent to a backup.
    pub fn wait_for_room(&mut self) {
        self.line.make_room();
        self.backups.iter().for_each(Follower::make_room);
    }

    /// Waits until all that was committed is durable, and every backup has it. Says what failed of it, if no commit has said so yet; the next commit has what that held.
    ///
    /// [`Error::Backup`]: all is durable here, and a backup has not got all of it.
    pub fn drain(&mut self) -> Result<()> {
        self.settle()?;
        self.backups.iter().for_each(Follower::drain);
        self.check_backups()
    }

    /// The same of the store alone.
    fn settle(&mut self) -> Result<()> {
        self.line.drain();
        self.line.recover(&mut self.area)
    }

    /// Whether each backup has got all so far, as far as that is known.
    fn check_backups(&self) -> Result<()> {
        self.backups.iter().try_for_each(Follower::check)
    }

    /// Commits, and has every commit from this one on go to a backup, too: whoever receives at this socket ([`crate::receive`], `fermata receive`), which a tunnel may lead to from another host.
    /// All of the area goes there first. Returns when it is durable here and the backup has it.
    pub fn back_up_to(&mut self, socket: &Path) -> Result<()> {
        self.stop_backing_up(socket);
        let backup = Follower::connect(socket, &self.area)?;
        let there = backup.send(Arc::new(self.area.copy()?));
        self.begin()?.commit()?;
        there.wait()?;
        self.backups.push(backup);
        Ok(())
    }

    /// Whether it has a backup.
    pub fn is_backed_up(&self) -> bool {
        !self.backups.is_empty()
    }

    /// No commit goes to this backup any more. What it has stays there.
    pub fn stop_backing_up(&mut self, socket: &Path) {
        self.backups.retain(|backup| backup.socket() != socket);
    }

    /// In a child of `fork`, which has neither the memory nor the thread that writes, but the lock and the ways to its backups, as long as it lives: lets go of these, and leaves the rest alone.
    pub fn abandon(self) {
        let Self { area, line, backups, copier, _lock: lock } = self;
        std::mem::forget((area, line, copier));
        drop(lock);
        backups.into_iter().for_each(Follower::abandon);
    }

    /// Commits several areas at one instant: nobody writes to any of them until all are captured. One checkpoint each, durable when this returns, and every backup has it. They become so
    /// one after the other: after a crash in between some areas open as they were at this commit, and others as at the one before. What refers to each other belongs into one area.
    ///
    /// [`Error::Backup`]: all are durable here, and a backup has not got one.
    pub fn commit_together(areas: &mut [&mut CriticalArea]) -> Result<Vec<CheckpointId>> {
        let pending = Self::capture_together(areas, false)?;
        // All are waited for, whatever becomes of the first.
        let durable: Vec<_> = pending.iter().map(Pending::wait_durable).collect();
        if durable.iter().any(Result::is_err) {
            // Told here; the next commit need not say it again.
            areas.iter_mut().for_each(|area| _ = area.settle());
        }
        let ids = durable.into_iter().collect::<Result<_>>()?;
        pending.iter().try_for_each(Pending::wait_replicated).map(|()| ids)
    }

    /// The same, but returns as soon as what was written is copied; see [`Cycle::commit_behind`].
    pub fn commit_together_behind(areas: &mut [&mut CriticalArea]) -> Result<Vec<Pending>> {
        let known = areas.iter().try_for_each(|area| area.check_backups());
        let pending = Self::capture_together(areas, true)?;
        known.map(|()| pending)
    }

    fn capture_together(areas: &mut [&mut CriticalArea], behind: bool) -> Result<Vec<Pending>> {
        areas.iter_mut().for_each(|area| area.wait_for_room());
        areas.iter_mut().try_for_each(|area| area.line.recover(&mut area.area))?;
        let mut captures = Vec::new();
        for at in 0..areas.len() {
            let watch = Stopwatch::start();
            match areas[at].capture(behind) {
                Ok(capture) => captures.push((capture, watch.elapsed())),
                Err(error) => {
                    captures.into_iter().zip(areas).for_each(|((capture, _), area)| area.area.give_back(capture));
                    return Err(error);
                }
            }
        }
        Ok(areas.iter().zip(captures).map(|(area, (capture, pause))| area.write(capture, None, pause)).collect())
    }

    /// `behind`: may return before all is copied, if that was asked for.
    fn capture(&mut self, behind: bool) -> Result<Capture> {
        if behind && self.copier.is_some() { self.area.capture_behind() } else { self.area.capture() }
    }

    fn write(&self, capture: Capture, message: Option<String>, pause: Duration) -> Pending {
        let capture = Arc::new(capture);
        self.copier.iter().filter(|_| capture.is_behind()).for_each(|copier| copier.copy(&capture));
        let backups = self.backups.iter().map(|backup| backup.send(capture.clone())).collect();
        self.line.write(capture, message, pause).with_backups(backups)
    }
}

impl Cycle<'_> {
    /// What is said of the checkpoint.
    pub fn message(mut self, message: &str) -> Self {
        self.message = Some(message.to_owned());
        self
    }

    /// Makes a checkpoint of the area as it is now, and returns when it is durable, and when every backup has it.
    ///
    /// [`Error::Backup`]: it is durable here, and a backup has not got it. After any other error it is no checkpoint here, but a backup may have it: it goes there at the same time.
    pub fn commit(self) -> Result<CheckpointId> {
        let (pending, owner) = self.capture(false)?;
        let result = pending.wait_durable();
        if result.is_err() {
            // Told here; the next commit need not say it again.
            let _ = owner.line.recover(&mut owner.area);
        }
        result.and_then(|id| pending.wait_replicated().map(|()| id))
    }

    /// The same, but returns as soon as every backup has it in its memory. It becomes durable behind the program, here and there.
    pub fn commit_replicated(self) -> Result<Pending> {
        if !self.area.is_backed_up() {
            return Err(Error::refused(self.area.name(), "it has no backup", "name one with back_up_to, or use commit"));
        }
        let (pending, _) = self.capture(false)?;
        pending.wait_replicated()?;
        Ok(pending)
    }

    /// The same, but returns as soon as what was written is copied, and with [`Options::copy_on_write`] before. An error of the writing is told by
    /// [`Pending::wait`] and by the next commit; it never
    /// becomes a checkpoint, and the commit after that has all of it.
    ///
    /// [`Error::Backup`]: a backup is lost, as an earlier commit found. This one is being written here all the same.
    ///
    /// Copies take memory: where four commits are captured and not yet written, it waits for the first of them before it captures.
    pub fn commit_behind(self) -> Result<Pending> {
        let known = self.area.check_backups();
        let (pending, _) = self.capture(true)?;
        known.map(|()| pending)
    }

    /// The kernel or a device writes here in this cycle, for system calls or through pages that it has pinned; see [`Area::expect_writes`] for when that has to be said.
    pub fn expect_writes(&mut self, bytes: Range<usize>) -> Result<()> {
        self.area.area.expect_writes(bytes)
    }

    /// Sets whole pages to zero; see [`Area::discard`].
    pub fn discard(&mut self, bytes: Range<usize>) -> Result<()> {
        self.area.area.discard(bytes)
    }

    /// Undoes all writes since the last commit: the area is again as it was then, but for what is excluded, which stays. Waits until that is durable. After an error some pages may have been undone.
    pub fn roll_back(self) -> Result<()> {
        self.area.settle()?;
        let CriticalArea { area, line, .. } = self.area;
        let written = area.written()?;
        let mut page = [0; PAGE_SIZE];
        for number in &written {
            line.read_page(number, &mut page)?;
            area.put_back(number, &page);
        }
        Ok(())
    }
}

impl<'a> Cycle<'a> {
    fn capture(self, behind: bool) -> Result<(Pending, &'a mut CriticalArea)> {
        // First: what fails meanwhile is told now.
        self.area.wait_for_room();
        let CriticalArea { area, line, .. } = &mut *self.area;
        line.recover(area)?;
        let watch = Stopwatch::start();
        let capture = self.area.capture(behind)?;
        let pending = self.area.write(capture, self.message, watch.elapsed());
        Ok((pending, self.area))
    }
}

impl Deref for Cycle<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.area.area.as_slice()
    }
}

impl DerefMut for Cycle<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.area.area.as_mut_slice()
    }
}
