//! A program of ranks under a kernel that refuses userfaultfd: it ends once and says what to do, and comes to its end where no checkpoints are wanted.
//!
//! This test binary is also the program of every rank: it starts itself again as such, under a filter of system calls (`refuse_userfaultfd.c`).

use fermata_process::ranks::{Error, Event, Outcome, host};
use fermata_store::Store;
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

// Not all of it is needed here.
#[allow(dead_code)]
mod programs;

/// No test: what a rank runs.
#[test]
fn a_rank() {
    programs::be_a_rank();
}

/// What starts a program under the filter. None, with a word, where there can be none.
fn filter(place: &Path) -> Option<PathBuf> {
    let filter = place.join("refuse_userfaultfd");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refuse_userfaultfd.c");
    let Ok(compiled) = Command::new("cc").args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(&filter).arg(source).status() else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(compiled.success());
    let works = Command::new(&filter).arg("true").status().unwrap().success();
    if !works {
        println!("skipped: no filters of system calls on this host");
    }
    works.then_some(filter)
}

/// Runs it under the filter, and says how often its ranks were begun.
fn run(place: &Path, filter: &Path, every: Option<Duration>) -> (Result<Outcome, Error>, usize) {
    let store = Store::open(&place.join("store")).unwrap();
    let mut options = programs::options("grid 256 50");
    options.args.insert(0, options.program.to_str().unwrap().to_owned());
    options.program = filter.to_owned();
    options.every = every;
    let mut begun = 0;
    let outcome = host::run(&store, &options, &mut |event| match event {
        Event::Started { .. } => begun += 1,
        Event::Back { why, .. } => panic!("nothing is gained by going back: {why}"),
        _ => {}
    });
    (outcome, begun)
}

#[test]
fn ranks_that_cannot_be_watched_end_once_and_say_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let Some(filter) = filter(place.path()) else { return };
    // Checkpoints come so often that one begins while the ranks say it.
    for _ in 0..5 {
        let (outcome, begun) = run(place.path(), &filter, Some(Duration::from_millis(1)));
        let Err(Error::Program { why, .. }) = &outcome else { panic!("{outcome:?}") };
        for part in ["checkpoints need userfaultfd", "Operation not permitted", "`fermata doctor`", "--every 0s"] {
            assert!(why.contains(part), "{why}");
        }
        assert_eq!(begun, 1);
    }
    let (outcome, begun) = run(place.path(), &filter, None);
    let outcome = outcome.unwrap();
    assert!(outcome.answers.concat().contains("50 iterations on 256 x 256 points, right"), "{outcome:?}");
    assert_eq!((outcome.rollbacks, begun), (0, 1));
}
