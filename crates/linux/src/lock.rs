//! Files that are held as long as a process lives (flock(2)).

use crate::clock::Stopwatch;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    time::Duration,
};

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// A held lock. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Takes the lock, making the file if there is none. None: somebody else holds it.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        Self::lock(OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?)
    }

    /// The same, waiting for it at most so long. None: somebody else held it all the time.
    pub fn take_within(path: &Path, time: Duration) -> io::Result<Option<Self>> {
        within(time, || Self::try_take(path))
    }

    /// Takes the lock of a directory itself, waiting for it at most so long. None: somebody else held it all the time.
    pub fn of_directory(path: &Path, time: Duration) -> io::Result<Option<Self>> {
        within(time, || Self::lock(File::open(path)?))
    }

    /// To see when whoever holds the lock lets go of it, even if its file is removed before.
    pub fn watch(path: &Path) -> Watch {
        Watch(File::open(path).ok())
    }

    /// Whether somebody holds the lock. No if there is no such file. Several may look at once, and none of them is taken for a holder.
    pub fn is_held(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| matches!(attempt(&file, FlockOperation::NonBlockingLockShared), Ok(None)))
    }

    fn lock(file: File) -> io::Result<Option<Self>> {
        Ok(attempt(&file, FlockOperation::NonBlockingLockExclusive)?.map(|()| Self { _file: file }))
    }
}

/// None: somebody has a lock that does not go with this one.
fn attempt(file: &File, how: FlockOperation) -> io::Result<Option<()>> {
    match flock(file, how) {
        Ok(()) => Ok(Some(())),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A lock that somebody may hold.
#[derive(Debug)]
pub struct Watch(Option<File>);

impl Watch {
    /// Waits until nobody holds it, at most so long. Whether it is so.
    pub fn free_within(&self, time: Duration) -> bool {
        let Some(file) = &self.0 else { return true };
        within(time, || attempt(file, FlockOperation::NonBlockingLockShared)).is_ok_and(|free| free.is_some())
    }
}

/// Looks again and again until something is there, for so long at most.
fn within<T>(time: Duration, look: impl Fn() -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let watch = Stopwatch::start();
    loop {
        match look()? {
            None if watch.elapsed() < time => std::thread::sleep(BETWEEN_LOOKS),
            found => return Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_looks_is_not_taken_for_a_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert!(!FileLock::is_held(&path), "there is no such file");
        let held = FileLock::try_take(&path).unwrap().expect("nobody else has it");
        assert!(FileLock::is_held(&path) && FileLock::try_take(&path).unwrap().is_none());
        drop(held);
        // It has what somebody has who is just looking.
        let looks = FileLock::watch(&path);
        assert!(looks.free_within(Duration::ZERO) && !FileLock::is_held(&path));
        drop(looks);
        assert!(FileLock::try_take(&path).unwrap().is_some());
    }
}
