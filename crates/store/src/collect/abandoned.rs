//! What a pull fetched, and nobody took up again.
//!
//! It lies beside the store until all that was wanted of it is in there, so that a pull that was cut off goes on where it was. If none comes for a day, it goes. One that is
//! under way is a writer, which the collection has waited for; one that has begun since, and who only looks through what a remote has, fetch again what they miss.

use super::Collection;
use crate::{Result, files::remove_tree};
use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

/// For so long nothing has come.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

impl Collection<'_> {
    /// Removes it, unless that is only asked for.
    pub(super) fn remove_abandoned(&mut self) -> Result<()> {
        let inner = &self.store.0;
        let directory = inner.incoming().directory;
        let mut found = Found { bytes: 0, newest: SystemTime::UNIX_EPOCH };
        // What cannot be looked at, or is gone meanwhile, is somebody's who pulls.
        let is_abandoned = found.look(&directory).is_ok() && found.newest.elapsed().is_ok_and(|age| age >= ABANDONED);
        if is_abandoned {
            if !self.options.dry_run {
                remove_tree(&*inner.medium, &directory)?;
            }
            self.told.abandoned_bytes = found.bytes;
        }
        Ok(())
    }
}

struct Found {
    bytes: u64,
    newest: SystemTime,
}

impl Found {
    fn look(&mut self, path: &Path) -> io::Result<()> {
        let about = fs::symlink_metadata(path)?;
        self.newest = self.newest.max(about.modified()?);
        if about.is_dir() {
            return fs::read_dir(path)?.try_for_each(|entry| self.look(&entry?.path()));
        }
        self.bytes += about.len();
        Ok(())
    }
}
