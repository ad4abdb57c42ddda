//! A QEMU that says anything to the disk's server.

use super::{checkpoint, disk};
use crate::{Disk, device::BlockBackend};
use fermata_vhost::fuzzing::Session;
use std::sync::Arc;

struct Bench {
    _place: tempfile::TempDir,
    disk: Arc<Disk>,
    session: Session,
}

impl Bench {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        Self { disk: disk(place.path()), session: Session::default(), _place: place }
    }
}

/// A ring of three good requests.
fn put_requests(ram: &mut [u8]) {
    let mut put = |at: usize, bytes: &[u8]| ram[at..at + bytes.len()].copy_from_slice(bytes);
    for (index, (at, len, flags)) in [(0x4000u64, 16u32, 1u16), (0x8000, 512, 3), (0x4100, 1, 2)].into_iter().enumerate() {
        let next = index as u16 + 1;
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        put(0x1000 + 16 * index, &bytes);
    }
    put(0x2002, &3u16.to_le_bytes());
}

/// QEMU sends any messages; after each that is understood the rings are served. Panics if that is not survived, or if a ring runs on after the end.
pub fn session(data: &[u8]) {
    thread_local!(static BENCH: Bench = Bench::new());
    BENCH.with(|bench| {
        bench.disk.reset(checkpoint()).expect("a disk");
        bench.session.run(data, Arc::new(BlockBackend::new(bench.disk.clone(), "fuzz", Arc::default())), put_requests);
    });
}
