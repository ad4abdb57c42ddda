//! What the tests share.

use fermata_process::{Capture, CriticalArea, Error, Options, Tracking};
use fermata_store::Store;
use std::{
    fmt::Display,
    io::{self, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

pub const PAGE: usize = 4096;

/// Numbers that look random and are the same every time (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Says what is not tried on this host, past what holds a test's output back.
pub fn skipped(why: impl Display) {
    // Nobody needs to hear it.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// What a capture names and nothing else, as a replica takes it.
pub fn apply(capture: &Capture, replica: &mut [u8]) {
    for (page, content) in capture.each_page() {
        let at = page as usize * PAGE;
        match capture.words().parts.iter().find(|(part, _)| *part == page) {
            None => replica[at..at + PAGE].copy_from_slice(content),
            Some((_, mask)) => (0..512).filter(|word| mask[word / 64] & 1 << (word % 64) != 0).for_each(|word| {
                replica[at + word * 8..at + word * 8 + 8].copy_from_slice(&content[word * 8..word * 8 + 8]);
            }),
        }
    }
}

/// A store of a test's own.
pub fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(&directory.path().join("store")).expect("a store");
    (directory, store)
}

/// Every way that this host has, with the promise that only stores write.
pub fn each_tracking(mut test: impl FnMut(Tracking)) {
    for (_, tracking) in Tracking::NAMES {
        let _alone = alone(tracking);
        test(tracking);
    }
}

/// The soft-dirty bits are the process's: one test at a time has them.
pub fn alone(tracking: Tracking) -> Option<MutexGuard<'static, ()>> {
    static SOFT_DIRTY: Mutex<()> = Mutex::new(());
    (tracking == Tracking::SoftDirty).then(|| SOFT_DIRTY.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The area; none, with a word, where this host cannot track so.
pub fn open(store: &Store, name: &str, bytes: usize, tracking: Tracking) -> Option<CriticalArea> {
    // Tests run beside each other, and may take each other's addresses.
    open_with(store, name, bytes, Options::default().tracking(tracking).only_stores().anywhere())
}

pub fn open_with(store: &Store, name: &str, bytes: usize, options: Options) -> Option<CriticalArea> {
    // A program that another test starts has the descriptors of this process, and with them the lock of an area that was just closed, until it is that program.
    let mut tries = 0..100;
    let opened = loop {
        match CriticalArea::open(store, name, bytes, options.clone()) {
            Err(Error::Refused { what, .. }) if what.contains("open already") && tries.next().is_some() => {
                thread::sleep(Duration::from_millis(10));
            }
            other => break other,
        }
    };
    match opened {
        Ok(area) => Some(area),
        Err(error @ Error::Tracker { .. }) => {
            skipped(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}
