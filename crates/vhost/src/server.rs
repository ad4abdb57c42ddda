//! Serves a back end on a Unix socket to one QEMU at a time, and to the next when that one is gone.

use crate::{
    Backend, Error, Result,
    dirty::DirtyPages,
    guest::{MemoryWatch, Tracking, WriteWatch},
    messages::Messages,
    session::{Link, Running},
};
use fermata_linux::priority;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};
use vhost::vhost_user::Error as ProtocolError;

/// What a server serves.
pub struct ServerOptions {
    /// What answers the guest.
    pub backend: Arc<dyn Backend>,
    /// Where the pages of guest RAM that it writes are noted. All servers of one machine share one.
    pub dirty: Arc<DirtyPages>,
    /// Whom to ask before guest RAM is touched.
    pub watch: Option<Arc<dyn MemoryWatch>>,
}

/// A running server: a thread that accepts and speaks the protocol, and one more for the requests while a QEMU is connected.
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    socket: PathBuf,
    backend: Arc<dyn Backend>,
    tracking: Arc<Tracking>,
    running: Running,
    stopping: AtomicBool,
    wake: File,
    connection: Mutex<Option<UnixStream>>,
}

impl Server {
    /// Listens on `socket`; a socket that an earlier server left there is replaced. QEMU connects with `-chardev socket,id=ID,path=SOCKET`, and needs its RAM
    /// in a shared memory backend.
    pub fn start(socket: &Path, options: ServerOptions) -> Result<Self> {
        remove_socket(socket)?;
        let listener = UnixListener::bind(socket).map_err(Error::io("cannot listen on", socket))?;
        listener.set_nonblocking(true).map_err(Error::io("cannot listen on", socket))?;
        let wake =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| Error::io("cannot serve", socket)(error.into()))?;
        let tracking = Arc::new(Tracking::new(options.dirty));
        tracking.set_watch(options.watch);
        let shared = Arc::new(Shared {
            socket: socket.to_owned(),
            backend: options.backend,
            tracking,
            running: Running::default(),
            stopping: AtomicBool::new(false),
            wake: wake.into(),
            connection: Mutex::new(None),
        });
        let for_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("vhost-protocol".into())
            .spawn(move || {
                // Guests wait for it, and a pause does; and so for the worker, which it begins.
                priority::answer_soon();
                for_thread.run(&listener);
            })
            .map_err(Error::io("cannot start a thread to serve", socket))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The socket that is listened on.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Tells whether QEMU has stopped all rings, and whether they are served.
    pub fn running(&self) -> Running {
        self.shared.running.clone()
    }

    /// Pages of guest RAM written by the backend.
    pub fn dirty(&self) -> &Arc<DirtyPages> {
        &self.shared.tracking.dirty
    }

    /// Installs, replaces or removes whoever is asked before guest RAM is touched.
    pub fn set_watch(&self, watch: Option<Arc<dyn MemoryWatch>>) {
        self.shared.tracking.set_watch(watch);
    }

    /// From now on tells `watch` of the pages of guest RAM that the backend writes. Only the first one is taken. To be called before a guest runs.
    pub fn set_write_watch(&self, watch: Arc<dyn WriteWatch>) {
        self.shared.tracking.set_write_watch(watch);
    }

    /// Ends the connection, if there is one, and the threads, and removes the socket. The request that is under way is finished first.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        // Cannot fail but for a full counter, which wakes the thread as well.
        let _ = (&self.shared.wake).write(&1u64.to_ne_bytes());
        if let Some(connection) = &*self.shared.connection() {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        if thread.join().is_err() {
            tracing::error!(socket = %self.shared.socket.display(), "the thread of the protocol had panicked");
        }
        let _ = fs::remove_file(&self.shared.socket);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn connection(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.connection.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn run(&self, listener: &UnixListener) {
        loop {
            match self.accept(listener) {
                Ok(Some(stream)) => {
                    if let Err(error) = self.serve(stream) {
                        tracing::error!(socket = %self.socket.display(), %error, "cannot serve a connection");
                    }
                    // The last copy of the stream: a QEMU that is not served finds out by the hang-up.
                    *self.connection() = None;
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(socket = %self.socket.display(), %error, "cannot accept connections any more");
                    return;
                }
            }
        }
    }

    /// The next connection. None: the server stops.
    fn accept(&self, listener: &UnixListener) -> io::Result<Option<UnixStream>> {
        while !self.stopping.load(Ordering::Acquire) {
            let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return Ok(Some(stream));
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        *self.connection() = Some(stream.try_clone()?);
        // `stop` may have looked for a connection just before there was one.
        if self.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        let link = Link::new(self.backend.clone(), self.tracking.clone(), self.running.clone())?;
        let for_worker = link.clone();
        let for_hangup = stream.try_clone()?;
        let mut messages = Messages::new(stream, link.clone())?;
        let worker = thread::Builder::new().name("vhost-worker".into()).spawn(move || {
            if !for_worker.work() {
                // Requests that nobody serves would wait for ever; this way QEMU learns of it, and the protocol's thread too.
                let _ = for_hangup.shutdown(std::net::Shutdown::Both);
            }
        })?;
        self.backend.connected(&link);
        tracing::debug!(socket = %self.socket.display(), "QEMU has connected");
        let error = loop {
            if let Err(error) = messages.handle() {
                break error;
            }
        };
        self.backend.disconnected();
        link.close();
        self.tracking.set_logging(false);
        // It catches its own panics.
        let _ = worker.join();
        match error {
            ProtocolError::Disconnected | ProtocolError::PartialMessage | ProtocolError::SocketBroken(_) => {
                tracing::debug!(socket = %self.socket.display(), "QEMU has disconnected");
            }
            error => tracing::error!(socket = %self.socket.display(), ?error, "a message from QEMU ended the connection"),
        }
        Ok(())
    }
}

/// Removes a socket that nobody listens on any more. Refuses to remove anything else.
fn remove_socket(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("cannot examine", path)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(Error::Refused(format!("{} is there and is no socket", path.display()))),
        Ok(_) if UnixStream::connect(path).is_ok() => Err(Error::Refused(format!("another server listens on {}", path.display()))),
        Ok(_) => fs::remove_file(path).map_err(Error::io("cannot replace", path)),
    }
}
