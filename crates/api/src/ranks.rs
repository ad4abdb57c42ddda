//! Programs of ranks: running them to their end, with consistent checkpoints in the store and, in the quiet between them, on a remote.

use crate::{
    convert::problem,
    local,
    remotes::{self, CopyRequest},
    values::Problem,
};
use serde::Serialize;
use std::{path::Path, sync::mpsc, thread};

pub use fermata_process::ranks::{Aborted, Event, Garbage, Host, Line, Mode, Options, Outcome, Taken, Transport};

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

/// Runs a program of ranks to its end; makes the store if there is none. Each permanent checkpoint is copied to the remote `backup` while the ranks run on. `watch` is
/// told what happens.
pub fn run(store: &Path, options: &Options, backup: Option<&str>, watch: &mut dyn FnMut(Event)) -> Result<Ran, Problem> {
    let opened = local::made(store)?;
    let Some(remote) = backup else {
        let outcome = fermata_process::ranks::host::run(&opened, options, watch).map_err(problem)?;
        return Ok(Ran { outcome, backup: None });
    };
    let request =
        CopyRequest { remote: Some(remote.to_owned()), experiment: options.name.clone(), jobs: 1, force: true, ..CopyRequest::default() };
    // Before hours have gone by.
    remotes::encryption(store, &request)?;
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

/// Copies what is permanent, the latest only where several have become so meanwhile.
fn keep_up(store: &Path, request: &CopyRequest, permanent: &mpsc::Receiver<()>) -> Backup {
    let mut backup = Backup::default();
    while permanent.recv().is_ok() {
        while permanent.try_recv().is_ok() {}
        match remotes::push(store, request, &mut |_| {}) {
            Ok(copied) if copied.gone.is_empty() => {
                backup.updates += 1;
                backup.problem = None;
            }
            Ok(_) => backup.problem = Some("the last checkpoint was replaced before it could be copied".to_owned()),
            Err(problem) => backup.problem = Some(problem.message),
        }
    }
    // The last one may have been replaced while it was copied.
    if backup.problem.is_some() {
        backup.problem = remotes::push(store, request, &mut |_| {}).err().map(|problem| problem.message);
    }
    backup
}
