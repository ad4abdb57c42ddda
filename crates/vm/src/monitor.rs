//! QMP: the conversation with one QEMU process.

use crate::{Error, Result, lines::Lines};
use fermata_linux::{Child, clock::Stopwatch};
use qapi::{Command, ExecuteError, Qmp, Stream};
use std::{
    fs,
    io::{self, BufRead, BufReader, BufWriter},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A QEMU that is silent for this long is taken to hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// One answer or event. The longest that we ask for has some hundred bytes.
const LINE_MAX: u64 = 16 << 20;

pub(crate) type Connection = Qmp<Stream<Lines<BufReader<UnixStream>>, BufWriter<UnixStream>>>;

/// A QMP connection. One command at a time.
pub(crate) struct Monitor {
    machine: String,
    socket: PathBuf,
    child: Arc<Child>,
    log: PathBuf,
    // None once an answer failed to come: what arrives later would be taken for the answer of another command. The next command connects anew.
    connection: Mutex<Option<Connection>>,
}

impl Monitor {
    /// Connects to a QEMU that is starting.
    pub fn connect(machine: &str, socket: &Path, log: PathBuf, child: Arc<Child>) -> Result<Self> {
        let monitor = Self { machine: machine.to_owned(), socket: socket.to_owned(), child, log, connection: Mutex::new(None) };
        let waited = Stopwatch::start();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(_) if monitor.child.ended().is_some() => return Err(monitor.gone("ended")),
                Err(_) if waited.elapsed() > PATIENCE => return Err(monitor.gone("does not open its monitor")),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let connection = handshake(stream).map_err(|error| monitor.failed("qmp_capabilities", error))?;
        *monitor.connection.lock().expect("nobody panics with the lock") = Some(connection);
        Ok(monitor)
    }

    /// Runs a command and waits for its answer.
    pub fn run<C: Command>(&self, command: &C) -> Result<C::Ok> {
        Ok(self.run_beside(command, || ())?.0)
    }

    /// Runs a command, and does something else while QEMU is at it.
    pub fn run_beside<C: Command, T>(&self, command: &C, work: impl FnOnce() -> T) -> Result<(C::Ok, T)> {
        let mut slot = self.connection.lock().expect("nobody panics with the lock");
        if slot.is_none() && self.child.ended().is_none() {
            *slot = UnixStream::connect(&self.socket).map_err(ExecuteError::from).and_then(handshake).ok();
        }
        let Some(connection) = slot.as_mut() else { return Err(self.gone("does not answer")) };
        let asked = connection.write_command(command);
        let done = work();
        let answer = asked.map_err(ExecuteError::Io).and_then(|()| connection.read_response::<C>());
        // Nobody reads events: what they tell is asked for when it is needed.
        connection.events();
        if let Err(ExecuteError::Io(_)) = &answer {
            *slot = None;
        }
        Ok((answer.map_err(|error| self.failed(C::NAME, error))?, done))
    }

    fn failed(&self, command: &'static str, error: ExecuteError) -> Error {
        match error {
            ExecuteError::Qapi(refusal) => Error::Command { machine: self.machine.clone(), command, message: refusal.desc },
            ExecuteError::Io(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                self.gone(&format!("does not answer {command} for {} s", PATIENCE.as_secs()))
            }
            ExecuteError::Io(error) => self.gone(&format!("is gone ({command}: {error})")),
        }
    }

    /// What to say of a QEMU that is no more, or no more itself.
    pub fn gone(&self, otherwise: &str) -> Error {
        // A process that just closed its sockets takes a moment to become a corpse.
        for _ in 0..50 {
            if self.child.ended().is_some() || otherwise.contains("answer") {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let how = self.child.ended().map_or_else(|| otherwise.to_owned(), |status| format!("ended: {status}"));
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(3).collect();
        Error::Gone { machine: self.machine.clone(), how, log: last.into_iter().rev().collect::<Vec<_>>().join(" / ") }
    }
}

/// Begins a conversation.
pub(crate) fn handshake(stream: UnixStream) -> Result<Connection, ExecuteError> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut connection = Qmp::new(Stream::new(Lines::new(BufReader::new(stream.try_clone()?), LINE_MAX), BufWriter::new(stream)));
    // The greeting is read by a function that panics at the end of file.
    if connection.inner_mut().fill_buf()?.is_empty() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    connection.handshake()?;
    Ok(connection)
}
