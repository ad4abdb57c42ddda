//! A second process takes over, as at the last commit that was acknowledged.

use crate::common::*;
use fermata_process::{Area, Backup, Error, Options, Replica, Tracking};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    thread,
};

const BYTES: usize = 32 * PAGE;

/// Counts what goes out, and breaks off after so many bytes.
struct Thin {
    stream: UnixStream,
    left: usize,
    sent: usize,
}

impl Read for Thin {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Thin {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.stream.shutdown(std::net::Shutdown::Write)?;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let sent = self.stream.write(&bytes[..bytes.len().min(self.left)])?;
        self.left -= sent;
        self.sent += sent;
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pair(left: usize) -> (Thin, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    (Thin { stream: here, left, sent: 0 }, there)
}

#[test]
fn a_backup_has_every_commit_and_takes_over() {
    each_tracking(|tracking| {
        let options = Options::default().tracking(tracking).only_stores();
        let mut area = match Area::new("pair", BYTES, options.clone()) {
            Err(Error::Tracker { source, .. }) => return skipped(format_args!("{tracking}: {source}")),
            area => area.unwrap(),
        };
        area.as_mut_slice()[5 * PAGE..6 * PAGE].fill(5);
        let (here, there) = pair(usize::MAX);
        let backup = thread::spawn(move || {
            let mut backup = Backup::accept(there, BYTES).unwrap();
            while backup.receive().unwrap().is_some() {}
            backup
        });
        let mut replica = Replica::connect(here, &mut area).unwrap();
        let mut numbers = Numbers(3);
        let mut committed = Vec::new();
        for _ in 0..40 {
            for _ in 0..numbers.below(60) {
                let at = numbers.below(BYTES as u64) as usize;
                area.as_mut_slice()[at] = numbers.next() as u8;
            }
            replica.commit(&mut area).unwrap();
            committed = area.as_slice().to_vec();
        }
        // Never committed.
        area.as_mut_slice().fill(1);
        let range = area.range();
        drop((replica, area));
        let area = backup.join().unwrap().take_over(options).unwrap();
        assert!(area.as_slice() == committed, "{tracking}");
        assert_eq!((area.range(), area.name()), (range, "pair"));
    });
}

#[test]
fn a_commit_that_is_cut_off_anywhere_is_not_applied() {
    for left in [50, 500, 1000, 5000, 9000, 12_000, 20_000, 30_000] {
        let mut area = Area::new("cut", BYTES, Tracking::Auto).unwrap();
        area.as_mut_slice()[0] = 1;
        let (here, there) = pair(left);
        let backup = thread::spawn(move || {
            let mut backup = Backup::accept(there, BYTES).ok()?;
            while let Ok(Some(_)) = backup.receive() {}
            Some(backup.as_slice().to_vec())
        });
        let mut acknowledged = None;
        if let Ok(mut replica) = Replica::connect(here, &mut area) {
            acknowledged = Some(area.as_slice().to_vec());
            for value in 2..20 {
                area.as_mut_slice()[..3 * PAGE].fill(value);
                match replica.commit(&mut area) {
                    Ok(_) => acknowledged = Some(area.as_slice().to_vec()),
                    Err(_) => {
                        assert!(matches!(replica.commit(&mut area), Err(Error::Refused { .. })), "it must be connected anew");
                        break;
                    }
                }
            }
            // What was not acknowledged is not lost to the area.
            assert_eq!(area.capture().unwrap().pages(), 3);
        }
        assert!(backup.join().unwrap() == acknowledged, "after {left} bytes");
    }
}

#[test]
fn words_travel_where_words_are_known() {
    let mut sent = [Tracking::Emulate, Tracking::Protect].map(|tracking| {
        let mut area = Area::new("thin", BYTES, tracking).unwrap();
        let (here, there) = pair(usize::MAX);
        let backup = thread::spawn(move || {
            let mut backup = Backup::accept(there, BYTES).unwrap();
            backup.receive().unwrap();
        });
        let mut counted = here;
        let mut replica = Replica::connect(&mut counted, &mut area).unwrap();
        for page in 0..20 {
            area.as_mut_slice()[page * PAGE + 64..page * PAGE + 72].copy_from_slice(&7_u64.to_le_bytes());
        }
        replica.commit(&mut area).unwrap();
        backup.join().unwrap();
        counted.sent
    });
    sent.sort_unstable();
    assert!(sent[0] * 10 < sent[1], "{sent:?}");
}

/// One that says nothing for a minute is lost.
#[test]
fn a_backup_that_has_much_to_write_says_that_it_is_there() {
    const NAME: &str = "waiting";
    let mut area = Area::new(NAME, PAGE, Tracking::Compare).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let backup = thread::spawn(move || {
        // The greeting, and a commit without pages.
        theirs.read_exact(&mut [0; 8 + 3 * 8 + NAME.len() + 4 * 8]).unwrap();
        [u64::MAX, u64::MAX, 1].iter().for_each(|number| theirs.write_all(&number.to_le_bytes()).unwrap());
    });
    Replica::connect(ours, &mut area).unwrap();
    backup.join().unwrap();
}

#[test]
fn nonsense_is_refused() {
    let mut numbers = Numbers(9);
    for round in 0..300 {
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut bytes = b"fermrep3".to_vec();
        [1_u64 << 45, BYTES as u64, 1].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.push(b'a');
        [1_u64, 1, 1, 1].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend((0..200).map(|_| numbers.next() as u8));
        if round > 0 {
            let at = numbers.below(60) as usize;
            bytes[at] ^= 1 << numbers.below(8);
        }
        here.write_all(&bytes).unwrap();
        drop(here);
        assert!(Backup::accept(there, BYTES).is_err());
    }
}
