//! A backup of an area that puts what it receives into a store: when the program has ended, or its host has, the area opens from there as at the last commit that was acknowledged.
//!
//! ```text
//!   CriticalArea ──commit 7──> Backup: in memory ──> line of checkpoints in the store
//!                <──7──────────┘ (or only here, if asked so) ────┘
//! ```

use crate::{Backup, CriticalArea, Error, Pending, Result, line::Line};
use fermata_store::Store;
use fermata_types::CheckpointId;
use serde::Serialize;
use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    sync::Arc,
    time::Duration,
};

/// Commits that are acknowledged and not durable yet, at most: more memory than for their pages is not taken.
const BEHIND: usize = 2;
/// A program that says `back_up_to` once more hangs up and comes at once. What it committed before may be written then still, and so long is waited for whoever receives that.
const LETTING_GO: Duration = Duration::from_secs(3);
/// How often a program is told that its commit is waited for, which gives up whoever says nothing for long: all of an area may take long to write.
const BEAT: Duration = Duration::from_secs(5);

/// How areas are received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiving {
    /// Larger areas are refused: each takes as much memory.
    pub bytes_max: u64,
    /// A commit is acknowledged when it is durable, and not when it is in memory.
    pub durable: bool,
    /// The last so many commits of an area stay, one at least, and what is tagged; if it is not said, all of them.
    pub keep_last: Option<u32>,
}

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Received {
    /// The area.
    pub area: String,
    /// How large it is.
    pub bytes: u64,
    /// Commits that it has received.
    pub commits: u64,
    /// The newest one in the store.
    pub checkpoint: Option<CheckpointId>,
}

/// Receives the commits of one area until its program ends, and says what it has then; nothing if whoever came only looked whether somebody is here. `began` is told when the area is there as it was in the beginning.
///
/// Nobody can open the area from this store meanwhile. A stream whose reads end after a time is given up when the program has said nothing for so long ([`Error::Silent`]); a program that has nothing to commit says every five
/// seconds that it is there. An area is refused if it is open, if it is too large, or if what has its name in the store is no area.
///
/// What is not to be kept goes as by [`CriticalArea::keep_last`], and in the end at once. Where it cannot be removed it stays for now: commits are taken all the same.
pub fn receive<S: Read + Write>(stream: S, store: &Store, how: &Receiving, began: &mut dyn FnMut(&Received)) -> Result<Option<Received>> {
    let Some(mut backup) = Backup::greeted(stream, how.bytes_max)? else { return Ok(None) };
    let opened = CriticalArea::lock(store, backup.name(), LETTING_GO).and_then(|lock| {
        let line = Line::open(store, backup.name())?.0;
        how.keep_last.map_or(Ok(()), |commits| line.keep_last(commits))?;
        Ok((lock, line))
    });
    let (lock, line) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            backup.refuse(&error.to_string());
            return Err(error);
        }
    };
    let mut behind: VecDeque<Pending> = VecDeque::new();
    let mut has_begun = false;
    let outcome = loop {
        match step(&mut backup, &line, &mut behind, how) {
            Ok(true) if has_begun => {}
            Ok(true) => {
                has_begun = true;
                began(&received(&backup, &line));
            }
            Ok(false) => break Ok(()),
            Err(error) => break Err(silent(error)),
        }
    };
    // What was acknowledged is not lost with the stream.
    let written = behind.iter().try_for_each(|pending| pending.wait().map(drop));
    line.drain();
    // Whoever opens the area now does not wait for what is removed.
    drop(lock);
    line.stop_pruning();
    outcome.and(written).map(|()| Some(received(&backup, &line)))
}

/// In the place of what a read says that has waited for too long.
fn silent(error: Error) -> Error {
    match error {
        Error::Io { area, source, .. } if matches!(source.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Error::Silent { area },
        other => other,
    }
}

fn received<S: Read + Write>(backup: &Backup<S>, line: &Line) -> Received {
    Received { area: backup.name().to_owned(), bytes: backup.as_slice().len() as u64, commits: backup.commits(), checkpoint: line.head() }
}

/// One commit. Returns whether there was one.
fn step<S: Read + Write>(backup: &mut Backup<S>, line: &Line, behind: &mut VecDeque<Pending>, how: &Receiving) -> Result<bool> {
    let Some(capture) = backup.take_in()? else { return Ok(false) };
    let message = format!("commit {}", backup.commits());
    let (capture, message) = (Arc::new(capture), Some(message));
    let is_first = backup.commits() == 1;
    behind.push_back(if is_first { line.write_whole(capture, message) } else { line.write(capture, message, Duration::ZERO) });
    let most = if how.durable { 0 } else { BEHIND };
    while let Some(oldest) = behind.front().filter(|_| behind.len() > most) {
        let written = oldest.wait_durable_saying(BEAT, &mut || backup.say_waiting())?;
        if let Err(error) = written {
            backup.refuse(&error.to_string());
            return Err(error);
        }
        behind.pop_front();
    }
    backup.acknowledge()?;
    Ok(true)
}
