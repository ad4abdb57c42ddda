//! Serves a disk on a Unix socket to one QEMU at a time, and to the next when that one is gone.

use crate::{
    Disk, PageMap, Result,
    device::{BlockBackend, Counters},
};
use fermata_vhost::{DirtyPages, MemoryWatch, Running};
use std::{path::Path, sync::Arc};

/// What a server serves.
pub struct ServerOptions {
    /// The disk.
    pub disk: Arc<Disk>,
    /// The serial number that the guest sees; the first 20 bytes of it.
    pub serial: String,
    /// Where the pages of guest RAM that the backend writes are noted. All servers of one machine share one.
    pub dirty: Arc<DirtyPages>,
    /// Whom to ask before guest RAM is touched.
    pub watch: Option<Arc<dyn MemoryWatch>>,
}

/// A running server of a disk.
pub struct Server {
    disk: Arc<Disk>,
    counters: Arc<Counters>,
    server: fermata_vhost::Server,
}

impl Server {
    /// Listens on `socket`; a socket that an earlier server left there is replaced. QEMU connects with
    /// `-chardev socket,id=ID,path=SOCKET -device vhost-user-blk-pci,chardev=ID`, and needs its RAM in a shared memory backend.
    pub fn start(socket: &Path, options: ServerOptions) -> Result<Self> {
        let ServerOptions { disk, serial, dirty, watch } = options;
        let counters = Arc::<Counters>::default();
        let backend = Arc::new(BlockBackend::new(disk.clone(), &serial, counters.clone()));
        let server = fermata_vhost::Server::start(socket, fermata_vhost::ServerOptions { backend, dirty, watch })?;
        Ok(Self { disk, counters, server })
    }

    /// The disk that is served.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// The socket that is listened on.
    pub fn socket(&self) -> &Path {
        self.server.socket()
    }

    /// Tells whether QEMU has stopped all rings, and whether they are served.
    pub fn running(&self) -> Running {
        self.server.running()
    }

    /// What was served so far.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Pages of guest RAM written by the backend.
    pub fn dirty(&self) -> &Arc<DirtyPages> {
        self.server.dirty()
    }

    /// Installs, replaces or removes whoever is asked before guest RAM is touched.
    pub fn set_watch(&self, watch: Option<Arc<dyn MemoryWatch>>) {
        self.server.set_watch(watch);
    }

    /// From now on tells `map` of every transfer between pages and blocks; in it the disk has this number. To be called before a guest runs.
    pub fn set_page_map(&self, map: &Arc<PageMap>, number: u32) {
        self.disk.set_page_map(map.clone(), number);
        self.server.set_write_watch(map.clone());
    }

    /// Ends the connection, if there is one, and the threads, and removes the socket. The request that is under way is finished first.
    pub fn stop(self) {
        self.server.stop();
    }
}
