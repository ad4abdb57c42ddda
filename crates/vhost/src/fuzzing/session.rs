//! A QEMU that says anything, in any order, with any descriptors.

use super::{Bytes, HIGH, LOW, QEMU};
use crate::{Backend, Running, guest::Tracking, messages::Messages, session::Link};
use rustix::{
    fs::MemfdFlags,
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};
use std::{
    fs::File,
    io::{self, IoSlice, Read},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::Arc,
};

const MESSAGES_MAX: usize = 48;
/// All of them fit into the socket at once.
const BYTES_MAX: usize = 64 << 10;
/// Requests of the protocol that have a body worth shaping: GET_FEATURES and so on by number.
const SET_FEATURES: u32 = 2;
const SET_MEM_TABLE: u32 = 5;
const SET_LOG_BASE: u32 = 6;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ENABLE: u32 = 18;
const GET_CONFIG: u32 = 24;

/// The files that messages may bring: RAM, too short a file, an event descriptor, and something else.
pub struct Session([File; 4]);

impl Default for Session {
    fn default() -> Self {
        let memory = |len| {
            let file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory"));
            file.set_len(len).expect("a file in memory");
            file
        };
        let event = File::from(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor"));
        Self([memory(2 * LOW), memory(100), event, File::open("/dev/null").expect("there is one")])
    }
}

fn index(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.byte() {
        byte @ 0..=0xdf => (byte % 4).into(),
        0xe0..=0xef => 60 + u32::from(bytes.byte() % 16),
        _ => bytes.u32(),
    }
}

fn address_in_qemu(bytes: &mut Bytes<'_>, usual: u64) -> u64 {
    match bytes.byte() % 4 {
        0 | 1 => QEMU + usual,
        2 => QEMU + u64::from(bytes.u16()),
        _ => bytes.address(),
    }
}

fn body(request: u32, bytes: &mut Bytes<'_>) -> Vec<u8> {
    let two = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
    match request {
        SET_FEATURES => {
            let all = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 26;
            if bytes.byte() < 0xc0 { (all & bytes.u64()).to_le_bytes().to_vec() } else { bytes.u64().to_le_bytes().to_vec() }
        }
        SET_MEM_TABLE => {
            let count = u32::from(bytes.byte() % 9);
            let mut body = two(count, 0);
            for region in 0..count {
                let usual = [(0, LOW, QEMU, 0), (HIGH, LOW, QEMU + LOW, LOW)].get(region as usize).copied();
                let shape = bytes.byte();
                let fields = match usual {
                    Some((guest, len, qemu, offset)) if shape < 0xa0 => [guest, len, qemu, offset],
                    _ => [bytes.address(), u64::from(bytes.u32()), address_in_qemu(bytes, 0), u64::from(bytes.u16())],
                };
                fields.iter().for_each(|field| body.extend(field.to_le_bytes()));
            }
            body
        }
        SET_VRING_NUM | SET_VRING_BASE | SET_VRING_ENABLE => {
            let index = index(bytes);
            two(index, if bytes.byte() < 0xc0 { u32::from(bytes.byte() % 9) } else { bytes.u32() })
        }
        SET_VRING_ADDR => {
            let mut body = two(index(bytes), u32::from(bytes.byte() / 0xf0));
            for usual in [0x1000, 0x3000, 0x2000, 0] {
                body.extend(address_in_qemu(bytes, usual).to_le_bytes());
            }
            body
        }
        SET_VRING_KICK | SET_VRING_CALL => u64::from(bytes.byte() & 3 | if bytes.byte() > 0xe0 { 0xfc } else { 0 }).to_le_bytes().to_vec(),
        SET_LOG_BASE => [u64::from(bytes.u16()).to_le_bytes(), u64::from(bytes.u16()).to_le_bytes()].concat(),
        GET_CONFIG => {
            let (offset, size) = (bytes.byte(), bytes.byte());
            let mut body = [two(offset.into(), size.into()), vec![0; 4]].concat();
            body.extend(vec![0; size.into()]);
            body
        }
        _ => {
            let count = bytes.byte();
            bytes.some((count % 80).into()).to_vec()
        }
    }
}

/// Sends one message of those that the input describes. False when the socket takes no more.
fn send(socket: &UnixStream, bytes: &mut Bytes<'_>, files: &[File; 4]) -> io::Result<usize> {
    let (request, shape) = (u32::from(bytes.byte() % 48), bytes.byte());
    let body = body(request, bytes);
    let size = if shape & 0xe0 == 0xe0 { bytes.u32() } else { body.len() as u32 };
    // Version 1, and a reply now and then.
    let flags = if shape & 0x10 == 0 { 1 } else { u32::from(bytes.byte()) };
    let message = [&request.to_le_bytes()[..], &flags.to_le_bytes(), &size.to_le_bytes(), &body].concat();
    let count = match request {
        SET_MEM_TABLE if shape & 8 == 0 => body.first().copied().unwrap_or(0).into(),
        SET_VRING_KICK | SET_VRING_CALL | SET_LOG_BASE if shape & 8 == 0 => 1,
        _ => usize::from(shape & 7),
    };
    let kind = if request == SET_VRING_KICK || request == SET_VRING_CALL { 2 } else { 0 };
    let descriptors: Vec<BorrowedFd<'_>> =
        (0..count).map(|_| if shape & 8 == 0 { kind } else { usize::from(bytes.byte() % 4) }).map(|file| files[file].as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    // Header and body apart: that is how they are received, and descriptors belong to the header.
    sendmsg(socket, &[IoSlice::new(&message[..12])], &mut ancillary, SendFlags::DONTWAIT)?;
    if !body.is_empty() {
        sendmsg(socket, &[IoSlice::new(&body)], &mut SendAncillaryBuffer::default(), SendFlags::DONTWAIT)?;
    }
    Ok(message.len())
}

impl Session {
    /// QEMU sends any messages; after each that is understood the first rings are served. `put` lays something good into RAM where a session may say that there
    /// is a ring: descriptors at 0x1000, available ring at 0x2000, used ring at 0x3000. Panics if that is not survived, or if a ring runs on after the end.
    pub fn run(&self, data: &[u8], backend: Arc<dyn Backend>, put: impl FnOnce(&mut [u8])) {
        let mut ram = vec![0; 2 * LOW as usize];
        put(&mut ram);
        self.0[0].write_all_at(&ram, 0).expect("it has room");
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        theirs.set_nonblocking(true).expect("a socket");
        let mut bytes = Bytes(data);
        let mut sent = 0;
        for _ in 0..MESSAGES_MAX {
            if bytes.is_empty() || sent > BYTES_MAX {
                break;
            }
            match send(&theirs, &mut bytes, &self.0) {
                Ok(count) => sent += count,
                Err(_) => break,
            }
        }
        theirs.shutdown(Shutdown::Write).expect("a socket");
        let (tracking, running) = (Arc::new(Tracking::new(Arc::default())), Running::default());
        let link = Link::new(backend.clone(), tracking, running.clone()).expect("a link");
        let mut messages = Messages::new(ours, link.clone()).expect("a descriptor");
        backend.connected(&link);
        let mut replies = [0; 4096];
        while messages.handle().is_ok() {
            while theirs.read(&mut replies).is_ok_and(|count| count > 0) {}
            (0..backend.rings().min(4)).for_each(|ring| {
                link.serve(ring);
                link.rest(ring);
            });
            backend.served();
        }
        backend.disconnected();
        link.close();
        assert_eq!(running.rings(), 0, "a ring runs on after the connection's end");
    }
}
