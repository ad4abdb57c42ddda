//! A QEMU that does all right, on the thread of whoever drives it: no socket, no worker, and nothing happens between two calls.

use super::QEMU;
use crate::{
    Backend, Running,
    guest::Tracking,
    ring::Next,
    session::{Link, Protocol},
};
use std::{fs::File, sync::Arc};
use vhost::vhost_user::{
    VhostUserBackendReqHandlerMut,
    message::{VhostUserMemoryRegion, VhostUserVringAddrFlags},
};

/// One connection. Dropped, QEMU is gone.
pub struct Connection {
    link: Arc<Link>,
    protocol: Protocol,
    backend: Arc<dyn Backend>,
}

impl Connection {
    /// Connects a guest whose memory begins at address 0 and is this file. All its rings are stopped yet.
    pub fn new(backend: Arc<dyn Backend>, ram: &File) -> Self {
        let link = Link::new(backend.clone(), Arc::new(Tracking::new(Arc::default())), Running::default()).expect("a descriptor");
        let mut protocol = Protocol(link.clone());
        let bytes = ram.metadata().expect("a file").len();
        let region = VhostUserMemoryRegion::new(0, bytes, QEMU, 0);
        protocol.set_mem_table(&[region], vec![ram.try_clone().expect("a descriptor")], None).expect("guest memory");
        backend.connected(&link);
        Self { link, protocol, backend }
    }

    /// Starts a ring at a position, with its descriptors, its available and its used ring at these addresses.
    pub fn start(&mut self, ring: u8, size: u32, position: u16, [descriptors, available, used]: [u64; 3]) {
        let (index, flags) = (u32::from(ring), VhostUserVringAddrFlags::empty());
        let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        let said = [
            self.protocol.set_vring_num(index, size),
            self.protocol.set_vring_base(index, position.into()),
            self.protocol.set_vring_addr(index, flags, QEMU + descriptors, QEMU + used, QEMU + available, 0),
            self.protocol.set_vring_kick(ring, Some(kick.into())),
            self.protocol.set_vring_enable(index, true),
        ];
        assert!(said.iter().all(Result::is_ok), "{said:?}");
    }

    /// Stops a ring, and returns its position.
    pub fn stop(&mut self, ring: u8) -> u16 {
        self.protocol.get_vring_base(ring.into()).expect("there is this ring").num as u16
    }

    /// The driver kicks: all is served that there is.
    pub fn kick(&self, ring: u8) {
        self.take(ring);
        self.backend.served();
    }

    /// The same as far as a worker comes that is then held up.
    pub fn take(&self, ring: u8) {
        let ring = ring.into();
        loop {
            match self.link.serve(ring) {
                Next::Again => {}
                Next::Look if self.link.rest(ring) == Next::Again => {}
                _ => break,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.backend.disconnected();
        self.link.close();
    }
}
