//! Sockets of ranks: Unix or TCP.

use super::mode::Transport;
use std::{
    fmt, io,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    str::FromStr,
};

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
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("\"{text}\" is no address of a rank"))),
        }
    }
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
            Address::Tcp(address) => Self::of_tcp(TcpStream::connect(address)?),
        }
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
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
    pub fn set_read_timeout(&self, time: Option<std::time::Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
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
    /// Listens: on a socket of this name in a directory, or on a free port of this host.
    pub fn new(transport: Transport, directory: &Path, name: &str) -> io::Result<Self> {
        match transport {
            Transport::Unix => {
                let path = directory.join(name);
                Ok(Self::Unix(UnixListener::bind(&path)?, path))
            }
            Transport::Tcp => Ok(Self::Tcp(TcpListener::bind(("127.0.0.1", 0))?)),
        }
    }

    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(_, path) => Address::Unix(path.clone()),
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
        })
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
            Self::Tcp(listener) => Stream::of_tcp(listener.accept()?.0),
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
