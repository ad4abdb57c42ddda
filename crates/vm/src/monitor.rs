//! QMP: the conversation with one QEMU process.
//!
//! QEMU reads commands byte by byte, each with several system calls: 4 to 5 µs a byte, half a millisecond for a long command. So what is asked in the pause is said
//! before, all but its last byte ([`Monitor::prime`]): QEMU's parser waits for the end of it (`qobject/json-streamer.c`). With the capability `oob` it reads on while it
//! does what was asked before, though it does one thing after the other all the same (`monitor_qmp_dispatcher_pop_any` in QEMU's `monitor/qmp.c`).

use crate::{Error, Result, lines::Lines};
use fermata_linux::{Child, clock::Stopwatch};
use qapi::{Any, Command, ExecuteError, qmp};
use serde_json::json;
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{self, BufRead, BufReader, Write},
    ops::Range,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// A QEMU that is silent for this long is taken to hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// Questions that a QEMU may owe an answer to before somebody who only looks asks no more.
const ASKED_MAX: usize = 16;
/// How long somebody who only looks waits between two attempts to talk.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);
/// One answer or event. The longest that we ask for has some hundred bytes.
const LINE_MAX: u64 = 16 << 20;

/// A QMP connection. Commands are answered in the order in which they are asked.
pub(crate) struct Monitor {
    machine: String,
    socket: PathBuf,
    child: Arc<Child>,
    log: PathBuf,
    // None once an answer cannot be understood: nobody knows what the next one would be the answer of. The next command connects anew.
    talk: Mutex<Option<Talk>>,
}

/// A command that was asked, and whose answer is to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A conversation with QEMU. Commands are answered in their order.
pub(crate) struct Talk {
    /// What QEMU says.
    lines: Lines<BufReader<UnixStream>>,
    /// As much of a line as had come when patience ended.
    line: Vec<u8>,
    /// The same socket, to ask, and to say how long an answer may take.
    stream: UnixStream,
    tickets: u64,
    /// A command of which QEMU has all but the last byte.
    primed: Option<Vec<u8>>,
    /// What was asked and is not answered yet, in order; none if nobody wants the answer.
    asked: VecDeque<Option<Ticket>>,
    /// Answers that came while somebody else waited for another one.
    answers: BTreeMap<Ticket, Result<Any, qapi::Error>>,
    /// When the guest last stopped and went on, as QEMU told.
    stopped: Option<Duration>,
    resumed: Option<Duration>,
    /// The guest has switched itself off since.
    is_off: bool,
    /// The guest has suspended itself to RAM, and was not woken.
    sleeps: bool,
}

impl Talk {
    pub fn begin(stream: UnixStream, patience: Duration) -> Result<Self, ExecuteError> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut talk = Self {
            lines: Lines::new(BufReader::new(stream.try_clone()?), LINE_MAX),
            line: Vec::new(),
            stream,
            tickets: 0,
            primed: None,
            asked: VecDeque::new(),
            answers: BTreeMap::new(),
            stopped: None,
            resumed: None,
            is_off: false,
            sleeps: false,
        };
        let greeting = talk.line()?;
        let offered = greeting.get("QMP").and_then(|greeting| greeting.get("capabilities")).and_then(Any::as_array);
        let Some(offered) = offered else { return Err(io::Error::new(io::ErrorKind::InvalidData, "no greeting of QEMU's").into()) };
        let reads_on = offered.iter().any(|one| one == "oob");
        let asked = talk.ask(&qmp::qmp_capabilities { enable: reads_on.then(|| vec![qmp::QMPCapability::oob]) })?;
        match talk.answer(asked, patience)? {
            Some(Ok(_)) => Ok(talk),
            Some(Err(refusal)) => Err(refusal.into()),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// Says all of a command but its last byte, unless that was done. The next one that is asked has to be this one.
    fn prime<C: Command>(&mut self, command: &C) -> io::Result<()> {
        if self.primed.is_none() {
            let bytes = spelled(command)?;
            (&self.stream).write_all(&bytes[..bytes.len() - 1])?;
            self.primed = Some(bytes);
        }
        Ok(())
    }

    /// Whether another command is half said.
    fn expects_another<C: Command>(&self, command: &C) -> bool {
        self.primed.as_ref().is_some_and(|primed| spelled(command).is_ok_and(|bytes| bytes != *primed))
    }

    pub fn ask<C: Command>(&mut self, command: &C) -> io::Result<Ticket> {
        match self.primed.take() {
            Some(primed) => (&self.stream).write_all(&primed[primed.len() - 1..])?,
            None => (&self.stream).write_all(&spelled(command)?)?,
        }
        self.tickets += 1;
        self.asked.push_back(Some(Ticket(self.tickets)));
        Ok(Ticket(self.tickets))
    }

    /// Reads the next answer, whoever waits for it.
    fn read(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))?;
        let answer = loop {
            let mut said = self.line()?;
            match said.get("event").and_then(Any::as_str) {
                Some("STOP") => self.stopped = since_1970(&said),
                Some("RESUME") => (self.resumed, self.is_off) = (since_1970(&said), false),
                Some("SHUTDOWN") => self.is_off = true,
                Some("SUSPEND") => self.sleeps = true,
                Some("WAKEUP" | "RESET") => self.sleeps = false,
                // What others tell is asked for when it is needed. A newer QEMU has some that nobody here has heard of.
                Some(_) => {}
                None => match said.get_mut("return") {
                    Some(value) => break Ok(value.take()),
                    None => break Err(serde_json::from_value(said)?),
                },
            }
        };
        if let Some(Some(ticket)) = self.asked.pop_front() {
            self.answers.insert(ticket, answer);
        }
        Ok(())
    }

    /// The next thing that QEMU says.
    fn line(&mut self) -> io::Result<Any> {
        if self.lines.read_until(b'\n', &mut self.line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let said = serde_json::from_slice(&self.line);
        self.line.clear();
        Ok(said?)
    }

    /// Answers that have yet to come or to be fetched.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn waiting(&self) -> usize {
        self.asked.len() + self.answers.len()
    }

    /// When the guest was last stopped; none if it has stopped by itself.
    fn stopped(&self) -> Option<Duration> {
        self.stopped.filter(|_| !self.is_off)
    }

    /// When the guest last stopped and when it last went on.
    pub fn stood(&self) -> Option<Range<Duration>> {
        Some(self.stopped?..self.resumed?)
    }

    /// When the guest last went on.
    pub fn went_on(&self) -> Option<Duration> {
        self.resumed
    }

    /// The answer of this command. None: it will not come.
    pub fn answer(&mut self, ticket: Ticket, patience: Duration) -> io::Result<Option<Result<Any, qapi::Error>>> {
        while !self.answers.contains_key(&ticket) && self.asked.contains(&Some(ticket)) {
            self.read(patience)?;
        }
        Ok(self.answers.remove(&ticket))
    }

    /// Reads what nobody will ask for, up to what somebody waits for.
    fn hear_out(&mut self, patience: Duration) -> io::Result<()> {
        while self.asked.front() == Some(&None) {
            self.read(patience)?;
        }
        Ok(())
    }

    /// Nobody will ask for it. It is read some day, and dropped.
    pub fn forget(&mut self, ticket: Ticket) {
        self.answers.remove(&ticket);
        self.asked.iter_mut().filter(|asked| **asked == Some(ticket)).for_each(|asked| *asked = None);
    }
}

impl Monitor {
    /// Connects to a QEMU that is starting.
    pub fn connect(machine: &str, socket: &Path, log: PathBuf, child: Arc<Child>) -> Result<Self> {
        let monitor = Self { machine: machine.to_owned(), socket: socket.to_owned(), child, log, talk: Mutex::new(None) };
        let waited = Stopwatch::start();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(_) if monitor.child.ended().is_some() => return Err(monitor.gone("ended")),
                Err(_) if waited.elapsed() > PATIENCE => return Err(monitor.gone("does not open its monitor")),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let talk = Talk::begin(stream, PATIENCE).map_err(|error| monitor.failed("qmp_capabilities", PATIENCE, error))?;
        *monitor.talk() = Some(talk);
        Ok(monitor)
    }

    /// Runs a command and waits for its answer.
    pub fn run<C: Command>(&self, command: &C) -> Result<C::Ok> {
        self.run_within(command, PATIENCE)
    }

    /// The same, for a shorter time.
    pub fn run_within<C: Command>(&self, command: &C, patience: Duration) -> Result<C::Ok> {
        let ticket = self.ask(command)?;
        self.answer::<C>(ticket, patience).inspect_err(|_| self.forget(ticket))
    }

    /// Asks for a command. QEMU is at it from now on, and the answer can be fetched.
    pub fn ask<C: Command>(&self, command: &C) -> Result<Ticket> {
        self.say(C::NAME, |talk| talk.expects_another(command), |talk| talk.ask(command))
    }

    /// Has QEMU read all of a command but its last byte, so that asking for it is one byte. Nothing else is to be asked in between: that has to begin a new conversation
    /// first. So this is for monitors on which only commands of the pause are asked.
    pub fn prime<C: Command>(&self, command: &C) -> Result<()> {
        self.say(C::NAME, |talk| talk.expects_another(command), |talk| talk.prime(command))
    }

    /// Says something, in a new conversation if the old one broke or is not to be gone on with.
    fn say<T>(&self, name: &'static str, is_over: impl FnOnce(&Talk) -> bool, what: impl FnOnce(&mut Talk) -> io::Result<T>) -> Result<T> {
        let mut slot = self.talk();
        if slot.as_ref().is_some_and(is_over) {
            // QEMU forgets what was half said when its peer hangs up.
            *slot = None;
        }
        let Some(talk) = self.connected(&mut slot, PATIENCE) else { return Err(self.gone("does not answer")) };
        let said = what(talk);
        if said.is_err() {
            *slot = None;
        }
        said.map_err(|error| self.failed(name, PATIENCE, error.into()))
    }

    /// Runs a command for somebody who only looks: whoever else waits for an answer of this QEMU, and however often that is asked of one that hangs,
    /// it takes no longer than about this. None: it does not answer.
    pub fn glance<C: Command>(&self, command: &C, patience: Duration) -> Result<Option<C::Ok>> {
        let waited = Stopwatch::start();
        let mut slot = loop {
            match self.talk.try_lock() {
                Ok(slot) => break slot,
                Err(_) if waited.elapsed() > patience => return Ok(None),
                Err(_) => std::thread::sleep(BETWEEN_ATTEMPTS),
            }
        };
        let Some(talk) = self.connected(&mut slot, patience) else {
            return if self.child.ended().is_some() { Err(self.gone("is gone")) } else { Ok(None) };
        };
        let asked = if talk.asked.len() < ASKED_MAX { Ok(()) } else { talk.read(patience) };
        let ticket = asked.and_then(|()| talk.ask(command));
        let answer = ticket.and_then(|ticket| talk.answer(ticket, patience).inspect_err(|_| talk.forget(ticket)));
        match answer {
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => {
                *slot = None;
                Err(self.failed(C::NAME, patience, error.into()))
            }
            Ok(None) => Err(self.gone("does not answer")),
            Ok(Some(Err(refusal))) => Err(self.failed(C::NAME, patience, ExecuteError::Qapi(refusal))),
            Ok(Some(Ok(value))) => match serde_json::from_value(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(self.failed(C::NAME, patience, ExecuteError::Io(error.into()))),
            },
        }
    }

    /// The conversation, begun anew if it broke.
    fn connected<'t>(&self, slot: &'t mut Option<Talk>, patience: Duration) -> Option<&'t mut Talk> {
        if slot.is_none() && self.child.ended().is_none() {
            let talk = |stream| Talk::begin(stream, patience);
            *slot = UnixStream::connect(&self.socket).map_err(ExecuteError::from).and_then(talk).ok();
        }
        slot.as_mut()
    }

    /// Fetches the answer of a command. If it does not come in time, it can still be fetched, or forgotten.
    pub fn answer<C: Command>(&self, ticket: Ticket, patience: Duration) -> Result<C::Ok> {
        let mut slot = self.talk();
        let Some(talk) = slot.as_mut() else { return Err(self.gone("does not answer")) };
        let failed = |error| self.failed(C::NAME, patience, error);
        match talk.answer(ticket, patience) {
            Ok(Some(answer)) => {
                let value = answer.map_err(|refusal| failed(ExecuteError::Qapi(refusal)))?;
                serde_json::from_value(value).map_err(|error| failed(ExecuteError::Io(error.into())))
            }
            Ok(None) => Err(self.gone("does not answer")),
            Err(error) => {
                if !is_timeout(&error) {
                    *slot = None;
                }
                Err(failed(error.into()))
            }
        }
    }

    /// Reads the answers that are owed and that nobody will fetch: until then QEMU is yet to do what it was told. False: they do not come in this time.
    pub fn hear_out(&self, patience: Duration) -> bool {
        // Who has the lock waits for an answer.
        let Ok(mut slot) = self.talk.try_lock() else { return true };
        let Some(talk) = slot.as_mut() else { return true };
        match talk.hear_out(patience) {
            Err(error) if is_timeout(&error) => false,
            Err(_) => {
                *slot = None;
                true
            }
            Ok(()) => true,
        }
    }

    /// Says that nobody will fetch the answer of a command.
    pub fn forget(&self, ticket: Ticket) {
        if let Some(talk) = self.talk().as_mut() {
            talk.forget(ticket);
        }
    }

    /// When the guest was last stopped, as QEMU told: wall clock of the host, to the microsecond. None if it has switched itself off.
    pub fn stopped(&self) -> Option<Duration> {
        self.talk().as_ref()?.stopped()
    }

    /// Whether the guest has switched itself off, as QEMU told before its last answer. Whoever waits for another answer is not waited for.
    pub fn is_off(&self) -> bool {
        self.talk.try_lock().is_ok_and(|talk| talk.as_ref().is_some_and(|talk| talk.is_off))
    }

    /// Whether the guest has suspended itself to RAM, as QEMU told before its last answer.
    pub fn sleeps(&self) -> bool {
        self.talk().as_ref().is_some_and(|talk| talk.sleeps)
    }

    /// When the guest last stopped and when it last went on, as QEMU told: wall clock of the host, to the microsecond.
    pub fn stood(&self) -> Option<Range<Duration>> {
        self.talk().as_ref()?.stood()
    }

    /// When the guest last went on, by the same clock.
    pub fn went_on(&self) -> Option<Duration> {
        self.talk().as_ref()?.went_on()
    }

    fn talk(&self) -> MutexGuard<'_, Option<Talk>> {
        self.talk.lock().expect("nobody panics with the lock")
    }

    fn failed(&self, command: &'static str, patience: Duration, error: ExecuteError) -> Error {
        match error {
            ExecuteError::Qapi(refusal) => Error::Command { machine: self.machine.clone(), command, message: refusal.desc },
            ExecuteError::Io(error) if is_timeout(&error) => {
                self.gone(&format!("does not answer {command} for {} s", patience.as_secs_f64().ceil()))
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
        let mut how = self.child.ended().map_or_else(|| otherwise.to_owned(), |status| format!("ended: {status}"));
        if self.child.found_no_memory() {
            // Which lies beside its log. A page gets its room when it is touched.
            let place = self.log.parent().unwrap_or(&self.log);
            how += &format!(", as happens when the tmpfs of {} is full; make room there", place.display());
        }
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(3).collect();
        Error::Gone { machine: self.machine.clone(), how, log: last.into_iter().rev().collect::<Vec<_>>().join(" / ") }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// When an event happened: wall clock of the host.
fn since_1970(event: &Any) -> Option<Duration> {
    let field = |name: &str| event.get("timestamp")?.get(name)?.as_u64();
    Duration::from_secs(field("seconds")?).checked_add(Duration::from_micros(field("microseconds")?))
}

/// A command without a byte too many.
fn spelled<C: Command>(command: &C) -> io::Result<Vec<u8>> {
    let arguments = serde_json::to_value(command)?;
    let command = match arguments.as_object() {
        Some(none) if none.is_empty() => json!({"execute": C::NAME}),
        _ => json!({"execute": C::NAME, "arguments": arguments}),
    };
    Ok(command.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const GREETING: &str =
        r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

    #[test]
    fn a_command_that_was_said_before_is_asked_by_its_last_byte() {
        let (ours, mut qemu) = UnixStream::pair().expect("a pair of sockets");
        qemu.set_nonblocking(true).expect("a socket");
        // QEMU's answers, ahead of the questions: the socket keeps them.
        let stopped = r#"{"timestamp": {"seconds": 7, "microseconds": 5}, "event": "STOP"}"#;
        let returned = r#"{"return": {}}"#;
        let off =
            r#"{"timestamp": {"seconds": 8, "microseconds": 0}, "event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#;
        let answers = [returned, stopped, returned, returned, off, stopped, returned].join("\r\n");
        write!(qemu, "{GREETING}\r\n{answers}\r\n").expect("it is written");
        let mut said = || {
            let mut bytes = vec![0; 1024];
            let length = qemu.read(&mut bytes).unwrap_or(0);
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let mut talk = Talk::begin(ours, PATIENCE).expect("a conversation");
        assert!(said().contains("qmp_capabilities"));
        talk.prime(&qmp::stop {}).expect("it is said");
        talk.prime(&qmp::stop {}).expect("it is said once");
        assert_eq!(said(), r#"{"execute":"stop""#);
        assert!(!talk.expects_another(&qmp::stop {}) && talk.expects_another(&qmp::cont {}));
        let asked = talk.ask(&qmp::stop {}).expect("it is asked");
        assert_eq!(said(), "}");
        assert!(matches!(talk.answer(asked, PATIENCE), Ok(Some(Ok(_)))));
        assert_eq!(talk.stopped(), Some(Duration::new(7, 5_000)));
        // What nobody waits for is heard out.
        let left = talk.ask(&qmp::stop {}).expect("it is asked");
        assert_eq!(said(), r#"{"execute":"stop"}"#);
        talk.hear_out(PATIENCE).expect("somebody waits");
        assert_eq!(talk.waiting(), 1);
        talk.forget(left);
        talk.hear_out(PATIENCE).expect("it is read");
        assert_eq!(talk.waiting(), 0);
        // Nothing was said before of this one.
        let asked = talk.ask(&qmp::cont {}).expect("it is asked");
        assert_eq!(said(), r#"{"execute":"cont"}"#);
        assert!(matches!(talk.answer(asked, PATIENCE), Ok(Some(Ok(_)))));
        assert_eq!(talk.stopped(), None, "it has switched itself off, and was not stopped");
    }

    #[test]
    fn what_a_newer_qemu_tells_besides_is_passed_over() {
        let (ours, mut qemu) = UnixStream::pair().expect("a pair of sockets");
        let news = r#"{"timestamp": {"seconds": 9, "microseconds": 0}, "event": "NEVER_HEARD_OF", "data": {"new": ["kind"]}}"#;
        let resumed = r#"{"timestamp": {"seconds": 9, "microseconds": 1}, "event": "RESUME"}"#;
        let (returned, refused) = (r#"{"return": {}}"#, r#"{"error": {"class": "GenericError", "desc": "no"}}"#);
        let answers = [GREETING, news, returned, resumed, news, refused, news, r#"{"return": 7}"#].join("\r\n");
        write!(qemu, "{answers}\r\n").expect("it is written");
        let mut talk = Talk::begin(ours, PATIENCE).expect("a conversation");
        let [refused, answered] = [(); 2].map(|()| talk.ask(&qmp::stop {}).expect("it is asked"));
        assert!(matches!(talk.answer(refused, PATIENCE), Ok(Some(Err(refusal))) if refusal.desc == "no"));
        assert!(matches!(talk.answer(answered, PATIENCE), Ok(Some(Ok(value))) if value == 7));
        assert_eq!(talk.went_on(), Some(Duration::new(9, 1_000)));
    }

    #[test]
    fn a_guest_sleeps_until_it_is_woken() {
        let (ours, mut qemu) = UnixStream::pair().expect("a pair of sockets");
        let returned = r#"{"return": {}}"#;
        let told = |event: &str| format!(r#"{{"timestamp": {{"seconds": 9, "microseconds": 0}}, "event": "{event}"}}"#);
        let answers = [GREETING, returned, &told("SUSPEND"), returned, &told("SUSPEND_DISK"), returned, &told("WAKEUP"), returned];
        write!(qemu, "{}\r\n", answers.join("\r\n")).expect("it is written");
        let mut talk = Talk::begin(ours, PATIENCE).expect("a conversation");
        let slept = [(); 3].map(|()| {
            let asked = talk.ask(&qmp::stop {}).expect("it is asked");
            assert!(matches!(talk.answer(asked, PATIENCE), Ok(Some(Ok(_)))));
            talk.sleeps
        });
        assert_eq!(slept, [true, true, false]);
    }

    #[test]
    fn a_line_that_comes_in_two_pieces_is_one() {
        let (ours, mut qemu) = UnixStream::pair().expect("a pair of sockets");
        write!(qemu, "{GREETING}\r\n{{\"return\": {{}}}}\r\n{{\"retu").expect("it is written");
        let mut talk = Talk::begin(ours, PATIENCE).expect("a conversation");
        let asked = talk.ask(&qmp::stop {}).expect("it is asked");
        let waited = talk.answer(asked, Duration::from_millis(1));
        assert!(waited.is_err_and(|error| is_timeout(&error)));
        write!(qemu, "rn\": {{}}}}\r\n").expect("it is written");
        assert!(matches!(talk.answer(asked, PATIENCE), Ok(Some(Ok(_)))));
    }

    #[test]
    fn commands_are_as_short_as_can_be() {
        let text = |command: io::Result<Vec<u8>>| String::from_utf8(command.expect("it can be said")).expect("JSON");
        assert_eq!(text(spelled(&qmp::cont {})), r#"{"execute":"cont"}"#);
        let save = qmp::xen_save_devices_state { filename: "x".into(), live: Some(false) };
        assert_eq!(text(spelled(&save)), r#"{"arguments":{"filename":"x","live":false},"execute":"xen-save-devices-state"}"#);
    }
}
