//! A line to somebody whom `ssh` begins on another host.

use super::{
    Line,
    wire::{Answer, GREETING, PIECE, Request, read_answer, wait_for, write_line},
};
use crate::{address::Host, limit::Limit};
use std::{
    env,
    fs::File,
    io::{self, BufReader, Read, Seek, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

/// Of what the program that leads there said last, what is told.
const SAID_MAX: u64 = 600;

/// One who answers, on a stream.
pub(super) struct Piped {
    /// Of this host, the program that leads there.
    program: Option<Program>,
    stream: BufReader<UnixStream>,
}

pub(super) struct Program {
    name: String,
    child: Child,
    /// What it has to say to people.
    said: File,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Piped {
    /// Reads the greeting.
    pub fn begin(stream: UnixStream, program: Option<Program>, stalled: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(stalled))?;
        stream.set_write_timeout(Some(stalled))?;
        let mut line = Self { program, stream: BufReader::new(stream) };
        let mut greeting = Vec::new();
        let read = line.stream.by_ref().take(GREETING.len() as u64).read_to_end(&mut greeting);
        let greeting = String::from_utf8_lossy(&greeting).into_owned();
        match read {
            Ok(_) if greeting == GREETING => Ok(line),
            Ok(_) if !greeting.is_empty() => Err(io::Error::other(format!(
                "what answers begins with {greeting:?}, and is no `fermata peer` of this version: its shell must print nothing of its own, and find `fermata`"
            ))),
            Ok(_) => Err(line.failed(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(line.failed(error)),
        }
    }

    pub fn over_ssh(host: &Host, directory: &Path, stalled: Duration) -> io::Result<Self> {
        let ssh = env::var("FERMATA_SSH").unwrap_or_else(|_| "ssh".to_owned());
        let (ours, theirs) = UnixStream::pair()?;
        let said = tempfile::tempfile()?;
        let mut command = Command::new(&ssh);
        command.args(["-T", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=20"]);
        if let Some(port) = host.port {
            command.args(["-p", &port.to_string()]);
        }
        // A shell takes the words apart there.
        let quoted = directory.to_string_lossy().replace('\'', r"'\''");
        command.arg(&host.name).arg(format!("fermata peer '{quoted}'"));
        command.stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?))).stdout(Stdio::from(OwnedFd::from(theirs))).stderr(said.try_clone()?);
        let child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{ssh}: {error}")))?;
        // The command holds the other end, and whoever reads would never see it closed.
        drop(command);
        Self::begin(ours, Some(Program { name: format!("{ssh} {}", host.name), child, said }), stalled)
    }

    /// What went wrong, and what the program that leads there says of it.
    fn failed(&mut self, error: io::Error) -> io::Error {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        }
        let Some(program) = &mut self.program else { return error };
        let _ = program.child.kill();
        let ended = program.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut said = String::new();
        let length = program.said.metadata().map_or(0, |about| about.len());
        let _ = program.said.seek(io::SeekFrom::Start(length.saturating_sub(SAID_MAX)));
        let _ = program.said.read_to_string(&mut said);
        match said.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            None => io::Error::other(format!("{} ended: {ended}", program.name)),
            Some(last) => io::Error::other(format!("{} said: {last}", program.name)),
        }
    }

    fn exchange(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Limit>) -> io::Result<(Answer, Vec<u8>)> {
        write_line(self.stream.get_mut(), request)?;
        for piece in bodies.iter().flat_map(|body| body.chunks(PIECE)) {
            wait_for(piece.len(), limit);
            self.stream.get_mut().write_all(piece)?;
        }
        read_answer(&mut self.stream, limit)
    }
}

impl Line for Piped {
    fn ask(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Arc<Limit>>) -> io::Result<(Answer, Vec<u8>)> {
        self.exchange(request, bodies, limit.map(Arc::as_ref)).map_err(|error| self.failed(error))
    }
}
