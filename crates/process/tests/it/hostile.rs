//! Writers that are no stores: system calls.

use crate::common::*;
use fermata_process::{CriticalArea, Tracking};
use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

/// Mechanisms under which the kernel may write into the area unannounced.
const OPEN_TO_THE_KERNEL: [Tracking; 3] = [Tracking::Assisted, Tracking::Compare, Tracking::Difference];

#[test]
fn system_calls_write_into_an_area() {
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let promised = !OPEN_TO_THE_KERNEL.contains(&tracking);
        let opened = |store| {
            if promised {
                open(store, "buffers", 16 * PAGE, tracking)
            } else {
                CriticalArea::open(store, "buffers", 16 * PAGE, tracking).ok()
            }
        };
        let Some(mut area) = opened(&store) else { return };
        area.begin().unwrap().commit().unwrap();
        let mut source = File::open("/dev/urandom").unwrap();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        for round in 0..4 {
            let mut cycle = area.begin().unwrap();
            let from = round * 3 * PAGE + 100;
            if promised {
                cycle.expect_writes(from..from + 2 * PAGE).unwrap();
            }
            source.read_exact(&mut cycle[from..from + PAGE]).unwrap();
            there.write_all(b"from afar").unwrap();
            here.read_exact(&mut cycle[from + PAGE..from + PAGE + 9]).unwrap();
            assert_eq!(&cycle[from + PAGE..from + PAGE + 9], b"from afar");
            cycle.commit().unwrap();
        }
        let content = area.as_slice().to_vec();
        drop(area);
        assert!(opened(&store).unwrap().as_slice() == content, "{tracking}");
    });
}

/// What the documentation says of signals: not lost silently.
#[test]
fn a_call_that_was_not_announced_fails_under_signals() {
    for tracking in [Tracking::Protect, Tracking::Emulate] {
        let (_directory, store) = store();
        let mut area = open(&store, "buffers", 4 * PAGE, tracking).unwrap();
        let mut cycle = area.begin().unwrap();
        let refused = File::open("/dev/urandom").unwrap().read(&mut cycle[..PAGE]).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(14), "{tracking}: {refused}");
    }
}

/// `Auto` without the promise takes nothing that would fail so.
#[test]
fn auto_without_a_promise_lets_the_kernel_write() {
    let (_directory, store) = store();
    let mut area = CriticalArea::open(&store, "buffers", 4 * PAGE, Tracking::Auto).unwrap();
    for _ in 0..20 {
        let mut cycle = area.begin().unwrap();
        File::open("/dev/urandom").unwrap().read_exact(&mut cycle[..PAGE]).unwrap();
        cycle.commit().unwrap();
    }
}
