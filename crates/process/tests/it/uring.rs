//! The kernel as a writer, through io_uring: by address, and through buffers that it has pinned.

use crate::common::*;
use fermata_linux::uring::{Buffer, Ring};
use fermata_process::{Area, Cycle, Error, Options, Tracking};
use std::{fs::File, io::Write as _, ops::Range, os::unix::net::UnixStream};

const PAGES: usize = 64;

/// Mechanisms under which a page is closed until it is written to, or may be.
const CLOSED: [Tracking; 3] = [Tracking::Auto, Tracking::Protect, Tracking::Emulate];

/// None, with a word, where the kernel has none for us.
fn ring() -> Option<Ring> {
    Ring::new().inspect_err(|error| skipped(format_args!("io_uring: {error}"))).ok()
}

/// Where bytes come from.
struct Sources {
    file: File,
    here: UnixStream,
    there: UnixStream,
}

impl Sources {
    fn new() -> Self {
        let (here, there) = UnixStream::pair().unwrap();
        Self { file: File::open("/dev/urandom").unwrap(), here, there }
    }

    /// Fills the first half from a file, and the other from a socket.
    fn fill(&mut self, ring: &mut Ring, into: &mut [u8], buffer: Buffer) {
        let (front, back) = into.split_at_mut(into.len() / 2);
        assert_eq!(ring.read(&self.file, front, buffer).unwrap(), front.len());
        let sent: Vec<_> = front.iter().map(|byte| !byte).cycle().take(back.len()).collect();
        self.there.write_all(&sent).unwrap();
        assert_eq!(ring.read(&self.here, back, buffer).unwrap(), back.len());
        assert!(*back == sent, "the kernel wrote something else");
    }
}

/// Bytes of two pages or three.
fn somewhere(numbers: &mut Numbers) -> Range<usize> {
    let from = numbers.below(((PAGES - 3) * PAGE) as u64) as usize;
    from..from + PAGE + numbers.below(PAGE as u64) as usize
}

/// Some cycles, with a store in each of them; then the area must come back as it was at the last commit.
fn comes_back(tracking: Tracking, mut each: impl FnMut(&mut Cycle<'_>, u64)) {
    let (_directory, store) = store();
    // Without the promise, nothing is closed under the others.
    let options = Options::default().tracking(tracking).anywhere();
    let options = if CLOSED.contains(&tracking) { options.only_stores() } else { options };
    let Some(mut area) = open_with(&store, "buffers", PAGES * PAGE, options.clone()) else { return };
    let mut numbers = Numbers(5);
    for round in 0..6 {
        let mut cycle = area.begin().unwrap();
        cycle[numbers.below((PAGES * PAGE) as u64) as usize] = numbers.next() as u8;
        each(&mut cycle, round);
        cycle.commit().unwrap();
    }
    let content = area.as_slice().to_vec();
    drop(area);
    let again = open_with(&store, "buffers", PAGES * PAGE, options).unwrap();
    let missed: Vec<_> = (0..PAGES).filter(|page| again.as_slice()[page * PAGE..][..PAGE] != content[page * PAGE..][..PAGE]).collect();
    assert!(missed.is_empty(), "{tracking}: pages {missed:?} were missed");
}

#[test]
fn requests_write_into_an_area() {
    each_tracking(|tracking| {
        let Some(mut ring) = ring() else { return };
        let (mut sources, mut numbers) = (Sources::new(), Numbers(6));
        comes_back(tracking, |cycle, round| {
            let at = somewhere(&mut numbers);
            if CLOSED.contains(&tracking) {
                cycle.expect_writes(at.clone()).unwrap();
            }
            let buffer = if round % 2 == 0 { Buffer::Plain } else { Buffer::PlainByThread };
            sources.fill(&mut ring, &mut cycle[at], buffer);
        });
    });
}

/// The buffer is registered once, and the kernel writes to it in later cycles, behind everybody who watches.
#[test]
fn registered_buffers_write_into_an_area() {
    each_tracking(|tracking| {
        let Some(mut ring) = ring() else { return };
        let (mut sources, mut numbers) = (Sources::new(), Numbers(7));
        comes_back(tracking, |cycle, round| {
            if round == 0 {
                cycle.expect_writes(0..PAGES * PAGE).unwrap();
                ring.register(&mut cycle[..]).unwrap();
            }
            let at = somewhere(&mut numbers);
            cycle.expect_writes(at.clone()).unwrap();
            sources.fill(&mut ring, &mut cycle[at], Buffer::Registered);
        });
    });
}

/// Cycle by cycle, words and all, and through all that `Auto` changes to. Stores and requests go to the same pages.
#[test]
fn a_replica_has_what_registered_buffers_wrote() {
    each_tracking(|tracking| {
        let Some(mut ring) = ring() else { return };
        let mut area = match Area::new("buffers", PAGES * PAGE, Options::default().tracking(tracking).only_stores()) {
            Err(Error::Tracker { source, .. }) => return skipped(format_args!("{tracking}: {source}")),
            area => area.expect("an area"),
        };
        area.expect_writes(0..PAGES * PAGE).unwrap();
        ring.register(area.as_mut_slice()).unwrap();
        let (mut sources, mut numbers, mut replica) = (Sources::new(), Numbers(8), vec![0; PAGES * PAGE]);
        for round in 0..150 {
            let at = somewhere(&mut numbers);
            area.as_mut_slice()[at.start / 8 * 8] ^= 1;
            area.expect_writes(at.clone()).unwrap();
            sources.fill(&mut ring, &mut area.as_mut_slice()[at.clone()], Buffer::Registered);
            area.as_mut_slice()[at.end] ^= 1;
            apply(&area.capture().unwrap(), &mut replica);
            let missed: Vec<_> =
                (0..PAGES).filter(|page| replica[page * PAGE..][..PAGE] != area.as_slice()[page * PAGE..][..PAGE]).collect();
            assert!(missed.is_empty(), "{tracking}, round {round}: pages {missed:?} were missed");
        }
    });
}

#[test]
fn what_came_into_a_registered_buffer_is_rolled_back() {
    each_tracking(|tracking| {
        let Some(mut ring) = ring() else { return };
        let (_directory, store) = store();
        let Some(mut area) = open(&store, "buffers", PAGES * PAGE, tracking) else { return };
        let mut cycle = area.begin().unwrap();
        cycle.expect_writes(0..PAGES * PAGE).unwrap();
        ring.register(&mut cycle[..]).unwrap();
        cycle.fill(3);
        cycle.commit().unwrap();
        let mut cycle = area.begin().unwrap();
        cycle.expect_writes(PAGE + 9..3 * PAGE).unwrap();
        Sources::new().fill(&mut ring, &mut cycle[PAGE + 9..3 * PAGE], Buffer::Registered);
        cycle.roll_back().unwrap();
        assert!(area.as_slice().iter().all(|byte| *byte == 3), "{tracking}");
    });
}

/// Not lost silently, as far as the kernel asks the page tables.
#[test]
fn requests_that_were_not_announced_fail_under_signals() {
    for tracking in [Tracking::Protect, Tracking::Emulate] {
        let Some(mut ring) = ring() else { return };
        let (_directory, store) = store();
        let mut area = open(&store, "buffers", 4 * PAGE, tracking).unwrap();
        let mut cycle = area.begin().unwrap();
        let source = File::open("/dev/urandom").unwrap();
        for buffer in [Buffer::Plain, Buffer::PlainByThread] {
            assert_eq!(ring.read(&source, &mut cycle[..PAGE], buffer).unwrap_err().raw_os_error(), Some(14), "{tracking}");
        }
        assert_eq!(ring.register(&mut cycle[..PAGE]).unwrap_err().raw_os_error(), Some(14), "{tracking}");
    }
}
