//! Programs of ranks: running them to their end, with consistent checkpoints in the store and, in the quiet between them, on a remote.

use crate::{
    convert::problem,
    local,
    remotes::{self, CopyRequest},
    values::Problem,
};
use fermata_linux::priority;
use fermata_store::Store;
use serde::Serialize;
use std::{
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

pub use fermata_process::ranks::{Aborted, Event, Garbage, Host, Line, Mode, Options, Outcome, Taken, Transport};

/// Between two looks at whether a collection is worth it.
const COLLECT_EVERY: Duration = Duration::from_secs(60);

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ran {
    /// What came out of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What became of the second copy, if one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<Backup>,
}

/// The second copy of a run's checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Backup {
    /// How often it was brought up to date.
    pub updates: u64,
    /// Why it could not be the last time; none: it has the last checkpoint.
    pub problem: Option<String>,
}

/// Runs a program of ranks to its end; makes the store if there is none. Each permanent checkpoint is copied to the remote `backup` while the ranks run on, and the space of those
/// that it replaces is freed now and then. `watch` is told what happens.
pub fn run(store: &Path, options: &Options, backup: Option<&str>, watch: &mut dyn FnMut(Event)) -> Result<Ran, Problem> {
    let opened = local::made(store)?;
    let _collects = collect(opened.clone(), COLLECT_EVERY);
    let Some(remote) = backup else {
        let outcome = fermata_process::ranks::host::run(&opened, options, watch).map_err(problem)?;
        return Ok(Ran { outcome, backup: None });
    };
    let request = copy(remote, &options.name);
    // Before hours have gone by: it is there, and opens.
    remotes::connect(store, &request)?;
    thread::scope(|scope| {
        let (permanent, to_copy) = mpsc::channel();
        let copying = scope.spawn(move || keep_up(store, &request, &to_copy));
        let outcome = fermata_process::ranks::host::run(&opened, options, &mut |event| {
            if matches!(event, Event::Permanent(_)) {
                // Who copies is there until we hang up.
                let _ = permanent.send(());
            }
            watch(event);
        });
        drop(permanent);
        let backup = copying.join().map_err(|_| Problem::new("copying to the backup ended unexpectedly"))?;
        Ok(Ran { outcome: outcome.map_err(problem)?, backup: Some(backup) })
    })
}

fn copy(remote: &str, name: &str) -> CopyRequest {
    let (remote, experiment, passphrase) = (Some(remote.to_owned()), name.to_owned(), remotes::passphrase());
    CopyRequest { remote, experiment, passphrase, jobs: 1, force: true, ..CopyRequest::default() }
}

/// Collects garbage when it is worth it, until what this returns is dropped. Nobody waits for it then: a collection that ends anywhere only leaves work to the next one. It goes
/// after all others.
fn collect(store: Store, every: Duration) -> mpsc::Sender<()> {
    let (ends, ended) = mpsc::channel();
    thread::spawn(move || {
        priority::go_last();
        while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            if let Err(error) = store.collect_if_due(&mut |_, _| {}) {
                tracing::warn!("the space of checkpoints that were replaced could not be freed: {error}");
            }
        }
    });
    ends
}

/// Copies what is permanent, the latest only where several have become so meanwhile.
fn keep_up(store: &Path, request: &CopyRequest, permanent: &mpsc::Receiver<()>) -> Backup {
    let mut backup = Backup::default();
    while permanent.recv().is_ok() {
        while permanent.try_recv().is_ok() {}
        backup.note(bring_up_to_date(store, request));
    }
    // The last one may have been replaced while it was copied.
    if backup.problem.is_some() {
        backup.note(bring_up_to_date(store, request));
    }
    backup
}

fn bring_up_to_date(store: &Path, request: &CopyRequest) -> Result<(), Problem> {
    let copied = remotes::push(store, request, &mut |_| {})?;
    if !copied.gone.is_empty() {
        return Err(Problem::new("the last checkpoint was replaced before it could be copied"));
    }
    if copied.is_partial() {
        return Err(Problem::new(format!("{} has not got all of it: `fermata push` says what it lacks", copied.remote)));
    }
    Ok(())
}

impl Backup {
    fn note(&mut self, outcome: Result<(), Problem>) {
        self.updates += u64::from(outcome.is_ok());
        self.problem = outcome.err().map(|problem| problem.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        remotes::{Encryption, RemoteEntry},
        samples,
    };
    use fermata_linux::clock::Stopwatch;
    use fermata_store::{Cost, Record, Removal};
    use std::fs;

    const SOON: Duration = Duration::from_secs(60);

    fn packs(store: &Path) -> usize {
        let directories = fs::read_dir(store.join("packs")).unwrap().flatten();
        directories.filter_map(|directory| fs::read_dir(directory.path()).ok()).flatten().count()
    }

    #[test]
    fn what_a_long_run_replaced_is_freed() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let record = Record { cost: Cost { stored_bytes: 1 << 30, ..Cost::default() }, ..samples::record("grid", 1) };
        let replaced = store.writer().unwrap().commit(&record).unwrap();
        store.remove(&Removal { checkpoints: vec![replaced], ..Removal::default() }).unwrap();
        assert_eq!(packs(place.path()), 1);
        let ends = collect(store, Duration::from_millis(1));
        let watch = Stopwatch::start();
        while packs(place.path()) > 0 && watch.elapsed() < SOON {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(packs(place.path()), 0);
        drop(ends);
    }

    #[test]
    fn a_backup_that_does_not_open_is_told_before_the_run_begins() {
        let place = tempfile::tempdir().unwrap();
        let (store, address) = (place.path().join("store"), place.path().join("nas").display().to_string());
        remotes::add(&store, RemoteEntry::new("nas".into(), address, None, Encryption::Passphrase)).unwrap();
        // Nobody has said the passphrase. With it, it is copied with it.
        assert_eq!(copy("nas", "grid").passphrase, remotes::passphrase());
        if remotes::passphrase().is_none() {
            let options = Options::new("grid", 2, "/nonexistent/program");
            let told = run(&store, &options, Some("nas"), &mut |event| panic!("{event:?}")).unwrap_err().message;
            assert!(told.contains("FERMATA_PASSPHRASE"), "{told}");
        }
    }
}
