//! Each commit of an area goes to a backup, too, and the area opens from the backup's store.

use crate::common::*;
use fermata_process::{Area, CriticalArea, Error, Options, Received, Receiving, Replica, Tracking, receive};
use fermata_store::Store;
use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

const BYTES: usize = 32 * PAGE;
const HOW: Receiving = Receiving { bytes_max: BYTES as u64, durable: false, keep_last: None };

/// Breaks off after so many bytes.
struct Thin {
    stream: UnixStream,
    left: usize,
}

impl Read for Thin {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let most = into.len().min(self.left);
        let read = self.stream.read(&mut into[..most])?;
        self.left -= read;
        Ok(read)
    }
}

impl Write for Thin {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

struct Backup {
    socket: PathBuf,
    thread: JoinHandle<Result<Option<Received>, Error>>,
}

/// Receives one area.
fn backup(place: &Path, store: &Store, left: usize, how: Receiving) -> Backup {
    let socket = place.join(format!("socket{}", fermata_linux::random::bytes::<4>().unwrap().map(|byte| byte.to_string()).join("-")));
    let (listener, store) = (UnixListener::bind(&socket).unwrap(), store.clone());
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        receive(Thin { stream, left }, &store, &how, &mut |_| {})
    });
    Backup { socket, thread }
}

fn contents(store: &Store, name: &str) -> Vec<u8> {
    let area = open(store, name, BYTES, Tracking::Compare).unwrap();
    area.as_slice().to_vec()
}

#[test]
fn an_area_opens_from_its_backup_as_at_the_last_commit() {
    each_tracking(|tracking| {
        let ((place, here), (_elsewhere, there)) = (store(), store());
        let name = "followed";
        // What the backup had of an earlier life does not shine through.
        let mut old = open(&there, name, BYTES, Tracking::Compare).unwrap();
        old.as_mut_slice().fill(9);
        old.begin().unwrap().commit().unwrap();
        drop(old);
        let Some(mut area) = open(&here, name, BYTES, tracking) else { return };
        area.as_mut_slice()[5 * PAGE..6 * PAGE].fill(5);
        let backup = backup(place.path(), &there, usize::MAX, Receiving { durable: tracking == Tracking::Protect, ..HOW });
        area.back_up_to(&backup.socket).unwrap();
        let mut numbers = Numbers(3);
        let mut committed = Vec::new();
        for round in 0..30 {
            let mut cycle = area.begin().unwrap();
            for _ in 0..numbers.below(60) {
                let at = numbers.below(BYTES as u64) as usize;
                cycle[at] = numbers.next() as u8;
            }
            if round % 2 == 0 {
                drop(cycle.commit_replicated().unwrap())
            } else {
                _ = cycle.commit().unwrap()
            }
            match round {
                10 => area.exclude(PAGE..4 * PAGE).unwrap(),
                15 => area.begin().unwrap().discard(8 * PAGE..12 * PAGE).unwrap(),
                20 => area.include(2 * PAGE..3 * PAGE).unwrap(),
                _ => {}
            }
            committed = area.as_slice().to_vec();
        }
        // Never committed.
        area.as_mut_slice()[20 * PAGE..].fill(1);
        drop(area);
        let received = backup.thread.join().unwrap().unwrap().unwrap();
        assert_eq!((received.area.as_str(), received.commits), (name, 31));
        for page in [1, 3] {
            committed[page * PAGE..(page + 1) * PAGE].fill(0);
        }
        assert!(contents(&there, name) == committed, "{tracking}");
        assert!(contents(&here, name) == committed, "{tracking}");
    });
}

/// Commits these values, each on a page of its own, and has them backed up meanwhile. All of the area goes there first, which is a commit, too.
fn commits(area: &mut CriticalArea, backup: Backup, values: Range<u8>) -> Received {
    area.back_up_to(&backup.socket).unwrap();
    for value in values {
        let mut cycle = area.begin().unwrap();
        cycle[value as usize * PAGE..][..PAGE].fill(value);
        cycle.commit().unwrap();
    }
    area.stop_backing_up(&backup.socket);
    backup.thread.join().unwrap().unwrap().unwrap()
}

#[test]
fn a_backup_keeps_all_commits_or_the_last_so_many_and_what_is_tagged() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "few", BYTES, Tracking::Compare).unwrap();
    let left = || -> Vec<_> { there.records().unwrap().into_iter().map(|(id, record)| (id, record.message.unwrap())).collect() };
    commits(&mut area, backup(place.path(), &there, usize::MAX, HOW), 1..6);
    let all = left();
    assert_eq!(all.len(), 6);
    there.tag("few", "good", &all[1].0).unwrap();
    let few = Receiving { keep_last: Some(3), ..HOW };
    let received = commits(&mut area, backup(place.path(), &there, usize::MAX, few), 6..16);
    assert_eq!(received.commits, 11);
    let left = left();
    let messages: Vec<_> = left.iter().map(|(_, message)| message.as_str()).collect();
    assert_eq!(messages, ["commit 2", "commit 9", "commit 10", "commit 11"]);
    assert_eq!((left[0].0, Some(left[3].0)), (all[1].0, received.checkpoint));
    assert!(contents(&there, "few") == area.as_slice());
    assert_eq!(here.records().unwrap().len(), 17, "the program keeps what it likes");
}

#[test]
fn what_cannot_be_removed_keeps_no_commit_from_the_backup() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "stuck", BYTES, Tracking::Compare).unwrap();
    commits(&mut area, backup(place.path(), &there, usize::MAX, HOW), 1..3);
    // No tag of the area's: it is not looked for, and the store lets nothing go that has one.
    there.tag("other", "good", &there.records().unwrap()[0].0).unwrap();
    let one = Receiving { keep_last: Some(1), ..HOW };
    let received = commits(&mut area, backup(place.path(), &there, usize::MAX, one), 3..6);
    assert_eq!((received.commits, there.records().unwrap().len()), (4, 7));
    assert!(contents(&there, "stuck") == area.as_slice());
}

#[test]
fn a_commit_that_is_cut_off_anywhere_is_not_in_the_backups_store() {
    for left in [30, 60, 500, 9000, 12_000, 30_000, 60_000] {
        let ((place, here), (_elsewhere, there)) = (store(), store());
        let mut area = open_with(&here, "cut", BYTES, Options::default().anywhere()).unwrap();
        let backup = backup(place.path(), &there, left, HOW);
        let mut acknowledged = None;
        if area.back_up_to(&backup.socket).is_ok() {
            acknowledged = Some(area.as_slice().to_vec());
            for value in 1..20 {
                let mut cycle = area.begin().unwrap();
                cycle[..3 * PAGE].fill(value);
                match cycle.commit_replicated() {
                    Ok(_) => acknowledged = Some(area.as_slice().to_vec()),
                    Err(error) => {
                        assert!(matches!(error, Error::Backup { .. }), "{error}");
                        break;
                    }
                }
            }
        }
        backup.thread.join().unwrap().unwrap_err();
        match acknowledged {
            Some(content) => assert!(contents(&there, "cut") == content, "after {left} bytes"),
            None => assert!(there.branch_to_grow("cut", "main").unwrap().is_none(), "after {left} bytes"),
        }
    }
}

#[test]
fn a_backup_that_is_lost_is_told_until_the_program_does_without() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "lost", BYTES, Tracking::Auto).unwrap();
    let none = area.begin().unwrap().commit_replicated().unwrap_err().to_string();
    assert!(none.contains("has no backup") && none.contains("back_up_to"), "{none}");
    let thin = backup(place.path(), &there, 20_000, HOW);
    area.back_up_to(&thin.socket).unwrap();
    let fill = |area: &mut CriticalArea, value| {
        let mut cycle = area.begin().unwrap();
        cycle.fill(value);
        cycle.commit()
    };
    for value in 1..4 {
        let before = area.head();
        let error = fill(&mut area, value).unwrap_err();
        assert!(matches!(error, Error::Backup { .. }), "{error}");
        assert_ne!(area.head(), before, "it is durable here");
    }
    thin.thread.join().unwrap().unwrap_err();
    // A second one beside it does not make up for it.
    let second = backup(place.path(), &there, usize::MAX, HOW);
    assert!(matches!(area.back_up_to(&second.socket), Err(Error::Backup { .. })));
    area.stop_backing_up(&thin.socket);
    assert!(!area.is_backed_up());
    fill(&mut area, 5).unwrap();
    _ = second.thread.join().unwrap();
    let third = backup(place.path(), &there, usize::MAX, HOW);
    area.back_up_to(&third.socket).unwrap();
    fill(&mut area, 6).unwrap();
    area.stop_backing_up(&third.socket);
    third.thread.join().unwrap().unwrap();
    fill(&mut area, 7).unwrap();
    assert!(contents(&there, "lost") == [6; BYTES]);
}

/// Whichever way a program commits.
#[test]
fn a_backup_that_is_lost_is_told_to_who_does_not_wait() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "unwaited", BYTES, Tracking::Auto).unwrap();
    let thin = backup(place.path(), &there, 20_000, HOW);
    area.back_up_to(&thin.socket).unwrap();
    let lost = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Backup { .. })), "{result:?}");
    let fill = |area: &mut CriticalArea, value| {
        let mut cycle = area.begin().unwrap();
        cycle.fill(value);
        cycle.commit_behind()
    };
    // The first one that is not acknowledged: nobody knows before it is waited for.
    let pending = fill(&mut area, 1).unwrap();
    lost(pending.wait().map(drop));
    lost(pending.poll().unwrap().map(drop));
    thin.thread.join().unwrap().unwrap_err();
    // From then on all do, and are checkpoints all the same.
    let before = area.head();
    lost(fill(&mut area, 2).map(drop));
    lost(area.drain());
    assert_ne!(area.head(), before);
    let before = area.head();
    area.as_mut_slice()[0] = 3;
    lost(CriticalArea::commit_together(&mut [&mut area]).map(drop));
    lost(CriticalArea::commit_together_behind(&mut [&mut area]).map(drop));
    assert_ne!(area.head(), before);
    // What was written is undone without it.
    area.as_mut_slice()[1] = 9;
    area.begin().unwrap().roll_back().unwrap();
    assert_eq!(area.as_slice()[..2], [3, 2]);
    area.stop_backing_up(&thin.socket);
    fill(&mut area, 4).unwrap().wait().unwrap();
    area.drain().unwrap();
}

/// As when its host loses its power.
#[test]
fn an_area_opens_from_its_backup_when_its_program_falls_silent() {
    let (_place, there) = store();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (of_thread, socket) = (there.clone(), theirs.try_clone().unwrap());
    let mut began = move |_: &Received| socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let receiver = thread::spawn(move || receive(theirs, &of_thread, &HOW, &mut began));
    let mut area = Area::new("silent", BYTES, Options::default().tracking(Tracking::Compare)).unwrap();
    area.as_mut_slice()[PAGE..2 * PAGE].fill(4);
    // Nothing comes from here any more, and it stays open.
    let replica = Replica::connect(ours, &mut area).unwrap();
    let error = receiver.join().unwrap().unwrap_err();
    assert!(matches!(&error, Error::Silent { area } if area == "silent"), "{error}");
    assert!(contents(&there, "silent") == area.as_slice());
    drop(replica);
}

/// What it committed before may be written there still.
#[test]
fn a_program_that_comes_once_more_is_received_when_its_area_is_let_go_of() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "anew", BYTES, Tracking::Compare).unwrap();
    let before = open(&there, "anew", BYTES, Tracking::Compare).unwrap();
    let lets_go = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        drop(before);
    });
    let backup = backup(place.path(), &there, usize::MAX, HOW);
    area.back_up_to(&backup.socket).unwrap();
    lets_go.join().unwrap();
    area.stop_backing_up(&backup.socket);
    backup.thread.join().unwrap().unwrap().unwrap();
}

#[test]
fn who_cannot_receive_says_why() {
    let ((place, here), (_elsewhere, there)) = (store(), store());
    let mut area = open(&here, "refused", BYTES, Tracking::Auto).unwrap();
    let refused = |area: &mut CriticalArea, how, words: &str| {
        let backup = backup(place.path(), &there, usize::MAX, how);
        let error = area.back_up_to(&backup.socket).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("back_up_to"), "{error}");
        backup.thread.join().unwrap().unwrap_err();
        area.begin().unwrap().commit().unwrap();
    };
    refused(&mut area, Receiving { bytes_max: BYTES as u64 - 1, ..HOW }, "at most");
    let other = CriticalArea::open(&there, "refused", BYTES, Options::default().anywhere()).unwrap();
    refused(&mut area, HOW, "open already");
    drop(other);
    let nowhere = area.back_up_to(&place.path().join("nowhere")).unwrap_err().to_string();
    assert!(nowhere.contains("No such file"), "{nowhere}");
}
