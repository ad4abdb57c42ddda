//! Sockets of ranks: Unix or TCP.

use super::mode::Transport;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{Shutdown, shutdown, sockopt},
};
use std::{
    fmt, io,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

/// How long a connection to another host may take to come about.
const CONNECTING: Duration = Duration::from_secs(20);
/// A host that acknowledges nothing for so long is taken for lost.
const SILENT: Duration = Duration::from_secs(15);

/// Where somebody listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl FromStr for Address {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        match text.split_once(':') {
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => Ok(Self::Tcp(address.to_owned())),
            _ => Err(no_address(text)),
        }
    }
}

fn no_address(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("\"{text}\" is no address of a rank"))
}

/// A connection.
#[derive(Debug)]
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
            Address::Tcp(text) => {
                let address: SocketAddr = text.parse().map_err(|_| no_address(&address.to_string()))?;
                Self::of_tcp(TcpStream::connect_timeout(&address, CONNECTING)?)
            }
        }
    }

    /// A host that is cut off says nothing, and neither does one that has nothing to say: it is asked whether it is there.
    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENT / 3)?;
        sockopt::set_tcp_keepintvl(&stream, SILENT / 3)?;
        sockopt::set_tcp_user_timeout(&stream, SILENT.as_millis() as u32)?;
        Ok(Self::Tcp(stream))
    }

    /// The address of this host that the other end has.
    pub fn own_ip(&self) -> io::Result<IpAddr> {
        match self {
            Self::Unix(_) => Ok(Ipv4Addr::LOCALHOST.into()),
            Self::Tcp(stream) => Ok(stream.local_addr()?.ip()),
        }
    }

    /// Ends the connection, whoever else holds it here.
    pub fn hang_up(&self) {
        // One that has ended already needs nothing.
        let _ = shutdown(self, Shutdown::Both);
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Waits where there is nothing to be had, as a stream from a listener that does not wait may not.
    pub fn set_blocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(false),
            Self::Tcp(stream) => stream.set_nonblocking(false),
        }
    }

    /// Waits at most so long for what comes next; for ever without a time.
    pub fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Who listens.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens: on a socket of this name in a directory, or on a free port that only this host reaches.
    pub fn new(transport: Transport, directory: &Path, name: &str) -> io::Result<Self> {
        match transport {
            // What goes over MPI is messages, and not what ranks and their coordinator tell each other.
            Transport::Unix | Transport::Mpi => {
                let path = directory.join(name);
                Ok(Self::Unix(UnixListener::bind(&path)?, path))
            }
            Transport::Tcp => Self::at(Ipv4Addr::LOCALHOST.into()),
        }
    }

    /// Listens on a free port at this address.
    pub fn at(address: IpAddr) -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind((address, 0))?))
    }

    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(_, path) => Address::Unix(path.clone()),
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
        })
    }

    /// Where other hosts find it, if they can.
    pub fn ip(&self) -> io::Result<Option<IpAddr>> {
        match self {
            Self::Unix(..) => Ok(None),
            Self::Tcp(listener) => Ok(Some(listener.local_addr()?.ip())),
        }
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
            Self::Tcp(listener) => Stream::of_tcp(listener.accept()?.0),
        }
    }

    /// Waits until somebody connects, as long as there is somebody at the other end of `wanted`.
    pub fn accept_while(&self, wanted: &Stream) -> io::Result<Stream> {
        loop {
            let mut events = [PollFd::new(self, PollFlags::IN), PollFd::new(wanted, PollFlags::RDHUP)];
            match poll(&mut events, None) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            if !events[0].revents().is_empty() {
                return self.accept();
            }
            if !events[1].revents().is_empty() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the coordinator is gone"));
            }
        }
    }

    /// Does not wait in `accept` for who comes.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Ranks that wait for one another end with their coordinator.
    #[test]
    fn nobody_waits_for_who_will_not_come() {
        let directory = tempfile::tempdir().unwrap();
        for transport in [Transport::Unix, Transport::Tcp] {
            let listener = Listener::new(transport, directory.path(), "rank-0").unwrap();
            let coordinator = Listener::new(transport, directory.path(), "coordinator").unwrap();
            let control = Stream::connect(&coordinator.address().unwrap()).unwrap();
            let mut other_end = coordinator.accept().unwrap();
            // What it says meanwhile is read later.
            other_end.write_all(b"a word").unwrap();
            let address = listener.address().unwrap();
            let peer = thread::spawn(move || Stream::connect(&address).unwrap());
            listener.accept_while(&control).unwrap();
            peer.join().unwrap();
            let dies = thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                drop(other_end);
            });
            assert_eq!(listener.accept_while(&control).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
            dies.join().unwrap();
        }
    }

    /// Though another thread reads from it, and so holds it open.
    #[test]
    fn who_hangs_up_is_heard() {
        let listener = Listener::new(Transport::Tcp, Path::new("/"), "").unwrap();
        let mut far = Stream::connect(&listener.address().unwrap()).unwrap();
        let near = listener.accept().unwrap();
        let mut held = near.try_clone().unwrap();
        let reads = thread::spawn(move || held.read(&mut [0; 1]).unwrap_or(0));
        near.hang_up();
        assert_eq!((far.read(&mut [0; 1]).unwrap_or(0), reads.join().unwrap()), (0, 0));
    }
}
