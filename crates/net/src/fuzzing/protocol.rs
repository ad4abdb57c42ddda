//! A QEMU that says anything to the server of a network interface.

use super::guest::{OURS, shared};
use crate::{InterfaceId, device::Nic};
use fermata_vhost::fuzzing::{Session, descriptor};
use std::sync::Arc;

/// Frames that wait for the guest.
const FRAMES: u8 = 4;

/// A ring that is good for either direction: a frame to send, and room for two that come.
fn put_buffers(ram: &mut [u8]) {
    let mut put = |at: usize, bytes: &[u8]| ram[at..at + bytes.len()].copy_from_slice(bytes);
    for (index, (at, len, flags)) in [(0x4000, 72, 0), (0x8000, 2048, 2), (0x9000, 2048, 2)].into_iter().enumerate() {
        put(0x1000 + 16 * index, &descriptor(at, len, flags, 0));
        put(0x2004 + 2 * index, &(index as u16).to_le_bytes());
    }
    put(0x2002, &3u16.to_le_bytes());
}

/// QEMU sends any messages; after each that is understood the rings are served, and frames handed over. Panics if that is not survived, or if a ring runs on
/// after the end.
pub fn session(data: &[u8]) {
    thread_local!(static SESSION: Session = Session::default());
    SESSION.with(|session| {
        let shared = shared();
        shared.thaw();
        shared.turn(None);
        (0..FRAMES).for_each(|byte| shared.accept(InterfaceId(1), vec![byte; 60].into()));
        session.run(data, Arc::new(Nic { id: OURS, shared }), put_buffers);
    });
}
