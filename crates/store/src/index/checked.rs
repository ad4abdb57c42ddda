//! What is remembered of a check of the index, so that whoever opens it next need not read all of it again: as what the file was found whole, and when. It is good for an hour, for the file as it was
//! then or as our own transactions have changed it since. When anybody else has touched it, or the host was started anew, all of it is looked at again.

use super::Index;
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, SystemTime},
};

const FILE: &str = "checked";
/// What rots on the disk is seen after this time at the latest, when somebody opens the index.
const GOOD_FOR: Duration = Duration::from_secs(3600);
/// The file is written over, and not cut off first: file systems hurry to write down what was.
const LENGTH: usize = 192;

/// What the file is now: something else if anybody writes to it, or puts another in its place. No program can set the time of the change back.
pub(super) fn state(index: &Path) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let file = index.join(Index::FILE).metadata().ok()?;
    Some(format!("{} {}:{} {} {}.{:09}", boot.trim(), file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
}

/// When the file was found whole, in seconds since 1970, if that is still good.
pub(super) fn at(index: &Path) -> Option<u64> {
    let said = fs::read_to_string(index.join(FILE)).ok()?;
    let (state, at) = said.trim_end().rsplit_once(' ')?;
    let at = at.parse().ok()?;
    // A clock that was set back says nothing about age.
    let age = now()?.checked_sub(at)?;
    (age < GOOD_FOR.as_secs() && self::state(index)? == state).then_some(at)
}

/// Remembers it. Where nothing can be written, the next one looks again.
pub(super) fn remember(index: &Path, state: Option<String>, at: Option<u64>) {
    let (Some(state), Some(at)) = (state, at) else { return };
    let mut said = format!("{state} {at}");
    said.extend(std::iter::repeat_n(' ', LENGTH.saturating_sub(said.len() + 1)));
    said.push('\n');
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(index.join(FILE));
    let _ = file.and_then(|file| file.write_all_at(said.as_bytes(), 0));
}

/// From now on whoever opens it looks.
pub(super) fn forget(index: &Path) {
    let _ = fs::remove_file(index.join(FILE));
}

pub(super) fn now() -> Option<u64> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Error, VerifyOptions,
        tests::{grow, open},
    };

    #[test]
    fn what_was_found_whole_is_known_for_an_hour_and_as_long_as_only_we_change_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store");
        let index = path.join("index");
        let first = grow(&open(&path).unwrap(), None, 0).unwrap();
        assert_eq!(at(&index), None, "nobody has looked");
        drop(open(&path).unwrap());
        let since = at(&index);
        assert!(since.is_some());
        grow(&open(&path).unwrap(), Some(first), 1).unwrap();
        assert_eq!(at(&index), since, "what we write changes nothing, and counts for no check");
        let now = state(&index);
        for (age, is_good) in [(3500, true), (3700, false), (-100, false)] {
            remember(&index, now.clone(), self::now().map(|now| now.checked_add_signed(-age).unwrap()));
            assert_eq!(at(&index).is_some(), is_good, "{age} s ago");
        }
        fs::write(index.join(FILE), format!("another-{} {}\n", now.unwrap(), since.unwrap())).unwrap();
        assert_eq!(at(&index), None, "before the host was started");
    }

    #[test]
    fn what_somebody_else_has_changed_is_looked_at_again() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store");
        let index = path.join("index");
        grow(&open(&path).unwrap(), None, 0).unwrap();
        drop(open(&path).unwrap());
        let whole = open(&path).unwrap();
        // Where the file system counts time in ticks, it is another one.
        std::thread::sleep(Duration::from_millis(20));
        assert!(at(&index).is_some());
        let file = OpenOptions::new().write(true).open(index.join(Index::FILE)).unwrap();
        // Both of its first pages, which say where all else is.
        file.write_all_at(&[0xff; 24], 0).unwrap();
        file.write_all_at(&[0xff; 24], 4096).unwrap();
        assert_eq!(at(&index), None);
        // Nor is damage that left no trace passed over once somebody has found it.
        remember(&index, state(&index), now());
        assert!(at(&index).is_some());
        let is_damage = |error: &Error| matches!(error, Error::Corrupt { .. }) && error.to_string().contains("rebuild");
        assert!(whole.verify(&VerifyOptions::default(), &mut |_, _| {}).is_err_and(|error| is_damage(&error)));
        drop(whole);
        assert_eq!(at(&index), None);
        assert!(open(&path).is_err_and(|error| is_damage(&error)));
    }
}
