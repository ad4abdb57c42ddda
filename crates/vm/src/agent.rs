//! The guest agent: how commands get into a guest (QEMU guest agent protocol, `qga/qapi-schema.json`).
//!
//! We are connected only while somebody wants something: whether the host is connected is part of the guest's state.

use crate::{Error, Result, lines::Lines, monitor::Monitor};
use fermata_linux::{Child, clock::Stopwatch};
use qapi::{Command, ExecuteError, Qga, Stream, qga, qmp};
use std::{
    io::{self, BufReader, BufWriter, Read},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

/// What QEMU calls the agent's port.
pub(crate) const PORT: &str = "agent";

/// One answer of an agent that is there. On a busy host a guest may stand still for many seconds, and its command is lost when its agent is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// One attempt to find out whether an agent is there, and how often it is looked after while it is silent.
const KNOCK: Duration = Duration::from_millis(500);
/// Between two questions whether a command ended.
const POLL_MAX: Duration = Duration::from_millis(100);
/// One answer: twice 16 MiB of output as base64, and room to spare.
const LINE_MAX: u64 = 64 << 20;
const NS_PER_SECOND: i64 = 1_000_000_000;
/// How far a clock that was just set may be off, and how often it is set until it is not.
const CLOCK_OFF_MAX: i64 = NS_PER_SECOND / 10;
const SETTINGS_MAX: u32 = 3;

/// How a command in a guest ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// Its exit status; 128 and the signal when a signal ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained about.
    pub stderr: Vec<u8>,
    /// The agent keeps 16 MiB of each at most; there was more.
    pub truncated: bool,
}

pub(crate) type Connection = Qga<Stream<Lines<BufReader<Patient>>, BufWriter<UnixStream>>>;

/// Says whether a silent agent can still answer.
type There = Box<dyn Fn() -> bool + Send + Sync>;

/// What an agent says. While it greets, silence is an end; afterwards it is waited for as long as it is there.
pub(crate) struct Patient {
    stream: UnixStream,
    there: Arc<OnceLock<There>>,
}

impl Read for Patient {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let waited = Stopwatch::start();
        loop {
            match (self.stream.read(into), self.there.get()) {
                (Err(error), Some(there)) if error.kind() == io::ErrorKind::WouldBlock && waited.elapsed() < PATIENCE => {
                    if !there() {
                        return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the guest restarted, or ended its agent"));
                    }
                }
                (read, _) => return read,
            }
        }
    }
}

/// The guest agent of one machine. Several commands may run at once.
pub struct Agent {
    machine: String,
    socket: PathBuf,
    process: Arc<Child>,
    monitor: Arc<Monitor>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    users: usize,
    syncs: i32,
}

impl Agent {
    pub(crate) fn new(machine: String, socket: PathBuf, process: Arc<Child>, monitor: Arc<Monitor>) -> Self {
        Self { machine, socket, process, monitor, state: Mutex::default() }
    }

    /// Runs a command in the guest and waits for its end. A guest whose agent does not answer yet is waited for.
    pub fn execute(&self, command: &[String], input: Option<&[u8]>, wait: Duration) -> Result<Execution> {
        self.execute_while(command, input, wait, &|| true)
    }

    /// The same as long as it is `wanted`, which is asked now and then. Then the command is left alone: it goes on in the guest, and this fails.
    pub fn execute_while(&self, command: &[String], input: Option<&[u8]>, wait: Duration, wanted: &dyn Fn() -> bool) -> Result<Execution> {
        let visit = self.visit(wait, wanted)?;
        let begun = visit.begin(command, input)?;
        visit.end(begun, wanted)
    }

    /// Comes to the agent, as [`reach`](Self::reach) does, and stays for as long as the visit lasts.
    pub fn visit(&self, wait: Duration, wanted: &dyn Fn() -> bool) -> Result<Visit<'_>> {
        let visit = Visit::enter(self);
        self.reach(wait, wanted)?;
        Ok(visit)
    }

    /// Waits until the agent answers. Fails as soon as QEMU is gone, or `wanted` says that nobody waits any more.
    pub fn reach(&self, wait: Duration, wanted: &dyn Fn() -> bool) -> Result<()> {
        let waited = Stopwatch::start();
        loop {
            let mut state = self.state.lock().expect("nobody panics with the lock");
            if state.connection.is_some() {
                return Ok(());
            }
            state.syncs = (state.syncs + 1) & 0x7fff_ffff;
            match self.connect(state.syncs) {
                Ok(connection) => {
                    state.connection = Some(connection);
                    return Ok(());
                }
                Err(error) => match self.process.ended() {
                    Some(status) => return Err(self.failed(&format!("QEMU ended ({status}); `fermata goto ID` brings the machine back"))),
                    None if waited.elapsed() >= wait => return Err(self.silent(&error)),
                    None => {}
                },
            }
            drop(state);
            self.check_wanted(wanted)?;
            std::thread::sleep(POLL_MAX);
        }
    }

    fn connect(&self, sync: i32) -> Result<Connection, ExecuteError> {
        let (connection, there) = greet(UnixStream::connect(&self.socket)?, sync)?;
        let monitor = self.monitor.clone();
        let _ = there.set(Box::new(move || is_open(&monitor)));
        Ok(connection)
    }

    fn ask<C: Command>(&self, command: &C) -> Result<C::Ok> {
        let mut state = self.state.lock().expect("nobody panics with the lock");
        let Some(connection) = state.connection.as_mut() else {
            return Err(self.failed("the connection to the guest agent broke"));
        };
        match connection.execute(command) {
            Ok(answer) => Ok(answer),
            Err(ExecuteError::Qapi(refusal)) => Err(self.failed(&format!("the guest refused: {}", refusal.desc))),
            Err(ExecuteError::Io(error)) => {
                state.connection = None;
                Err(self.failed(&format!(
                    "the guest agent was lost while the command ran ({error}): the machine was taken to another checkpoint, was ended, or its agent was"
                )))
            }
        }
    }

    fn check_wanted(&self, wanted: &dyn Fn() -> bool) -> Result<()> {
        if wanted() { Ok(()) } else { Err(self.failed("whoever asked for the command has left; what was begun goes on in the guest")) }
    }

    fn silent(&self, error: &ExecuteError) -> Error {
        self.failed(&format!(
            "the guest agent does not answer ({error}). The guest may still be booting (`fermata console` shows it), lack the package qemu-guest-agent, or, with `agent: legacy`, a driver for old virtio devices"
        ))
    }

    fn failed(&self, message: &str) -> Error {
        Error::Agent { machine: self.machine.clone(), message: message.to_owned() }
    }
}

/// Somebody who needs the connection; the last one closes it.
pub struct Visit<'a>(&'a Agent);

/// A command that has begun in a guest.
#[derive(Debug)]
pub struct Begun {
    pid: i64,
}

impl<'a> Visit<'a> {
    fn enter(agent: &'a Agent) -> Self {
        agent.state.lock().expect("nobody panics with the lock").users += 1;
        Self(agent)
    }

    /// Begins a command in the guest.
    pub fn begin(&self, command: &[String], input: Option<&[u8]>) -> Result<Begun> {
        let [path, arguments @ ..] = command else { return Err(self.0.failed("no command given")) };
        let process = self.0.ask(&qga::guest_exec {
            path: path.clone(),
            arg: Some(arguments.to_vec()),
            env: None,
            input_data: input.map(<[u8]>::to_vec),
            capture_output: Some(qga::GuestExecCaptureOutput::flag(true)),
        })?;
        Ok(Begun { pid: process.pid })
    }

    /// Has so many processors of the guest be online, the first ones. Returns how many it has. What a guest does without is still there for the machine, and idle.
    pub fn set_cpus(&self, online: u32) -> Result<u32> {
        let cpus = self.0.ask(&qga::guest_get_vcpus {})?;
        let mut left = cpu_changes(&cpus, online).map_err(|why| self.0.failed(&why))?;
        while !left.is_empty() {
            // It does those at the beginning; asked for the rest, it says why not.
            let done = self.0.ask(&qga::guest_set_vcpus { vcpus: left.clone() })?;
            match usize::try_from(done) {
                Ok(done) if (1..=left.len()).contains(&done) => left.drain(..done),
                _ => return Err(self.0.failed("the guest neither changed its processors nor said why")),
            };
        }
        let now = self.0.ask(&qga::guest_get_vcpus {})?.iter().filter(|cpu| cpu.online).count();
        match now == online as usize {
            true => Ok(cpus.len() as u32),
            false => Err(self.0.failed(&format!("the guest has {now} processors online, and not {online}"))),
        }
    }

    /// Sets the guest's clock, and with it the one that it reads when it boots. `time` tells the right one, in nanoseconds since 1970, and is asked when there is nothing
    /// left to wait for. A request that lay waiting set it to what was right before, so the clock is read back, and set again if need be. Returns by how many nanoseconds it
    /// was set on.
    pub fn set_time(&self, time: &dyn Fn() -> i64) -> Result<i64> {
        let was = self.0.ask(&qga::guest_get_time {})?;
        let moved = time().saturating_sub(was);
        for _ in 0..SETTINGS_MAX {
            self.set_time_once(time)?;
            let before = time();
            let is = self.0.ask(&qga::guest_get_time {})?;
            if (before.saturating_sub(CLOCK_OFF_MAX)..=time().saturating_add(CLOCK_OFF_MAX)).contains(&is) {
                break;
            }
        }
        Ok(moved)
    }

    fn set_time_once(&self, time: &dyn Fn() -> i64) -> Result<()> {
        let Err(refused) = self.0.ask(&qga::guest_set_time { time: Some(time()) }) else { return Ok(()) };
        // The agent sets no clock where it does not find hwclock, as in small systems. Their date(1) may know whole seconds only, so it is told when one begins.
        let second = time().div_euclid(NS_PER_SECOND) + 1;
        std::thread::sleep(Duration::from_nanos(u64::try_from(second.saturating_mul(NS_PER_SECOND).saturating_sub(time())).unwrap_or(0)));
        let script = format!("date -u -s @{second} >/dev/null && {{ hwclock -u -w 2>/dev/null || true; }}");
        let begun = self.begin(&["/bin/sh".to_owned(), "-c".to_owned(), script], None)?;
        match self.end(begun, &|| true)? {
            Execution { status: 0, .. } => Ok(()),
            failed => Err(self.0.failed(&format!("{refused}; and its date says: {}", String::from_utf8_lossy(&failed.stderr).trim()))),
        }
    }

    /// Waits for its end, as long as that is `wanted`, which is asked now and then.
    pub fn end(&self, Begun { pid }: Begun, wanted: &dyn Fn() -> bool) -> Result<Execution> {
        let mut pause = Duration::from_millis(2);
        loop {
            let status = self.0.ask(&qga::guest_exec_status { pid })?;
            if status.exited {
                return Ok(execution(status));
            }
            self.0.check_wanted(wanted)?;
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_MAX);
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().expect("nobody panics with the lock");
        state.users -= 1;
        if state.users == 0 {
            state.connection = None;
        }
    }
}

/// What becomes different so that so many processors are online: those that must be, and then the first ones. Who comes is told before who goes.
fn cpu_changes(cpus: &[qga::GuestLogicalProcessor], online: u32) -> std::result::Result<Vec<qga::GuestLogicalProcessor>, String> {
    let several = |count: usize| if count == 1 { "1 processor".to_owned() } else { format!("{count} processors") };
    let mut order: Vec<_> = cpus.iter().collect();
    // One of which it says nothing can be taken away, or it refuses.
    order.sort_by_key(|cpu| (cpu.can_offline.unwrap_or(true), cpu.logical_id));
    let fixed = order.iter().filter(|cpu| cpu.can_offline == Some(false) && cpu.online).count();
    let online = online as usize;
    if online > cpus.len() || online < fixed.max(1) {
        let few = if online > cpus.len() { String::new() } else { format!(", {fixed} of which cannot go offline") };
        return Err(format!("the guest has {}{few}: {online} cannot be online", several(cpus.len())));
    }
    let changed = |(place, cpu): (usize, &qga::GuestLogicalProcessor)| {
        let wanted = place < online;
        (cpu.online != wanted).then(|| qga::GuestLogicalProcessor { online: wanted, ..cpu.clone() })
    };
    let mut changes: Vec<_> = order.into_iter().enumerate().filter_map(changed).collect();
    changes.sort_by_key(|cpu| !cpu.online);
    Ok(changes)
}

/// Whether the guest holds its end of the agent's port open. A guest that restarts does not, and forgets what it was asked.
fn is_open(monitor: &Monitor) -> bool {
    // Who cannot be asked is given time.
    let ports = monitor.glance(&qmp::query_chardev {}, KNOCK).ok().flatten().unwrap_or_default();
    ports.iter().find(|port| port.label == PORT).is_none_or(|port| port.frontend_open)
}

/// Begins a conversation: whatever was said before is skipped. Once it is said how to see that the agent is there, a silent one is waited for.
pub(crate) fn greet(stream: UnixStream, sync: i32) -> Result<(Connection, Arc<OnceLock<There>>), ExecuteError> {
    stream.set_read_timeout(Some(KNOCK))?;
    stream.set_write_timeout(Some(KNOCK))?;
    let (patient, there) = (stream.try_clone()?, Arc::default());
    let lines = Lines::new(BufReader::new(Patient { stream: stream.try_clone()?, there: Arc::clone(&there) }), LINE_MAX);
    let mut connection = Qga::new(Stream::new(lines, BufWriter::new(stream)));
    connection.write_command(&qga::guest_sync { id: sync.into() })?;
    let waited = Stopwatch::start();
    // What an earlier conversation left behind comes first.
    while !matches!(connection.read_response::<qga::guest_sync>(), Ok(id) if id == i64::from(sync)) {
        let lines = connection.inner().get_ref_read();
        lines.check()?;
        // An agent that never stops talking is none.
        if lines.inner().buffer().is_empty() || waited.elapsed() > PATIENCE {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
    }
    patient.set_write_timeout(Some(PATIENCE))?;
    Ok((connection, there))
}

pub(crate) fn execution(status: qga::GuestExecStatus) -> Execution {
    let truncated = status.out_truncated == Some(true) || status.err_truncated == Some(true);
    Execution {
        status: status.exitcode.or(status.signal.map(|signal| signal.saturating_add(128))).unwrap_or(-1) as i32,
        stdout: status.out_data.unwrap_or_default(),
        stderr: status.err_data.unwrap_or_default(),
        truncated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processors_stay() {
        let cpu = |logical_id, online, can_offline| qga::GuestLogicalProcessor { logical_id, online, can_offline };
        let four = [cpu(3, true, Some(true)), cpu(0, true, Some(false)), cpu(2, false, Some(true)), cpu(1, true, Some(true))];
        let changes = |online| {
            let changes = cpu_changes(&four, online)?;
            Ok::<_, String>(changes.iter().map(|cpu| (cpu.logical_id, cpu.online)).collect::<Vec<_>>())
        };
        assert_eq!(changes(1), Ok(vec![(1, false), (3, false)]));
        assert_eq!(changes(2), Ok(vec![(3, false)]));
        assert_eq!(changes(3), Ok(vec![(2, true), (3, false)]));
        assert_eq!(changes(4), Ok(vec![(2, true)]));
        assert_eq!(changes(5).unwrap_err(), "the guest has 4 processors: 5 cannot be online");
        assert_eq!(changes(0).unwrap_err(), "the guest has 4 processors, 1 of which cannot go offline: 0 cannot be online");
        // An agent that does not tell which can go offline.
        assert_eq!(cpu_changes(&[cpu(0, true, None), cpu(1, true, None)], 1).unwrap().len(), 1);
    }
}
