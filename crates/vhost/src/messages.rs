//! The messages of one connection, one after the other.
//!
//! The protocol's crate reads and answers them, but for two that it refuses though QEMU does nothing wrong. The one is sent earlier than the crate expects it. The
//! other one is the guest's doing: where a ring lies is what its driver says, and QEMU passes that on as it is. Whoever ended the connection for that
//! would let a guest take its device away from itself for good.

use crate::session::{Link, Protocol};
use rustix::net::{RecvFlags, recv};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
};
use vhost::vhost_user::{
    BackendReqHandler, Error, Result, VhostUserBackendReqHandlerMut,
    message::{VhostUserVirtioFeatures, VhostUserVringAddrFlags},
};

/// Flags of a message: the version of the protocol, that it is an answer, and that one is waited for.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Request, flags and size of the body.
const HEAD_BYTES: usize = 12;

/// Says where a ring lies: its number, flags, and four addresses in QEMU, of the descriptors, the used ring, the available ring, and the log.
const SET_VRING_ADDR: u32 = 9;
const ADDRESSES_BYTES: usize = 40;

/// What QEMU says.
pub(crate) struct Messages {
    handler: BackendReqHandler<Mutex<Protocol>>,
    stream: UnixStream,
    link: Arc<Link>,
}

impl Messages {
    pub fn new(stream: UnixStream, link: Arc<Link>) -> io::Result<Self> {
        let handler = BackendReqHandler::from_stream(stream.try_clone()?, Arc::new(Mutex::new(Protocol(link.clone()))));
        Ok(Self { handler, stream, link })
    }

    /// Waits for the next message and does what it says. After an error the connection is of no use.
    pub fn handle(&mut self) -> Result<()> {
        // Whatever is wrong with it is found when it is read.
        let [request, flags, bytes] = self.head().unwrap_or_default();
        if (request, flags & !NEED_REPLY, bytes as usize) == (SET_VRING_ADDR, VERSION, ADDRESSES_BYTES) {
            self.set_addresses()?;
            return self.acknowledge(request, flags);
        }
        match self.handler.handle_request() {
            // QEMU enables the rings of a network interface before it says which features it takes. The protocol's crate refuses that without a word of
            // what was in the message; but rings are disabled at first, and there is nothing to tell so early but that they are not.
            Err(Error::InactiveFeature(VhostUserVirtioFeatures::PROTOCOL_FEATURES)) => {
                self.link.enable_rings();
                // QEMU 7 does not wait for an answer, and QEMU 10 does.
                self.acknowledge(request, flags)
            }
            result => result,
        }
    }

    /// The head of the next message, which is left where it is.
    fn head(&self) -> io::Result<[u32; 3]> {
        let mut head = [0; HEAD_BYTES];
        let (read, _) = recv(&self.stream, &mut head, RecvFlags::PEEK | RecvFlags::WAITALL)?;
        if read < head.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok([0, 4, 8].map(|at| word(&head, at))) }
    }

    /// Remembers where a ring lies. Whether one can lie there is looked at when it is started.
    fn set_addresses(&mut self) -> Result<()> {
        let mut message = [0; HEAD_BYTES + ADDRESSES_BYTES];
        self.stream.read_exact(&mut message).map_err(Error::SocketBroken)?;
        let body = &message[HEAD_BYTES..];
        let [descriptors, used, available, log] = [8, 16, 24, 32].map(|at| u64::from(word(body, at)) | u64::from(word(body, at + 4)) << 32);
        let mut protocol = Protocol(self.link.clone());
        protocol.set_vring_addr(word(body, 0), VhostUserVringAddrFlags::empty(), descriptors, used, available, log)
    }

    /// Says that a message was done, if its sender wants to know.
    fn acknowledge(&mut self, request: u32, flags: u32) -> Result<()> {
        if flags & NEED_REPLY == 0 {
            return Ok(());
        }
        let words = [request, VERSION | REPLY, size_of::<u64>() as u32, 0, 0];
        let answer: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        self.stream.write_all(&answer).map_err(Error::SocketBroken)
    }
}

/// Four bytes of a message; there are so many.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
