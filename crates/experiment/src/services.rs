//! What answers a guest behind its control interface: the time, and the names of the machines.
//!
//! - `frames`: Ethernet, ARP, IPv4 and UDP, as far as somebody needs them who only answers
//! - `ntp`: the time
//! - `dns`: names
//!
//! The guest's frames come as datagrams from its QEMU, whose own user network takes none. Who answers them is a pure function of a frame, what is known, and a clock: it
//! has no state, reaches nothing of the host, and sends nothing that it was not asked for. So none of it belongs to a checkpoint.

mod dns;
mod frames;
mod ntp;

pub(crate) use dns::Names;

use crate::{guest_clock::GuestClock, plan::Outside};
use fermata_linux::clock::wall_ns;
use frames::Asked;
use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Between two looks at whether it is to end, should nobody wake it.
const LOOK: Duration = Duration::from_secs(1);

/// Answers the guest of one machine until it is dropped.
pub(crate) struct Responder {
    socket: Arc<UnixDatagram>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Takes frames at the socket `ours`, and sends answers to `theirs`.
    pub fn start(ours: &Path, theirs: PathBuf, outside: Outside, clock: Arc<GuestClock>) -> io::Result<Self> {
        let socket = Arc::new(UnixDatagram::bind(ours)?);
        socket.set_read_timeout(Some(LOOK))?;
        // Nobody waits for a QEMU that takes nothing: whoever asked asks again.
        socket.set_write_timeout(Some(LOOK))?;
        let ending = Arc::new(AtomicBool::new(false));
        let (its_socket, its_ending) = (socket.clone(), ending.clone());
        let work = move || serve(&its_socket, &theirs, &outside, &clock, &its_ending);
        let thread = thread::Builder::new().name("services".to_owned()).spawn(work)?;
        Ok(Self { socket, ending, thread: Some(thread) })
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        // If it fails, the thread looks in a second.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("whoever answered a guest behind its control interface had panicked");
        }
    }
}

fn serve(socket: &UnixDatagram, theirs: &Path, outside: &Outside, clock: &GuestClock, ending: &AtomicBool) {
    let known = Known {
        ntp: outside.ntp,
        names: outside.names.as_ref(),
        now: &|| if outside.clock.real { Some(wall_ns()) } else { clock.wall_ns() },
    };
    // What is longer than any frame is cut off, and then no frame.
    let mut frame = [0; frames::LONGEST + 1];
    while !ending.load(Ordering::Relaxed) {
        match socket.recv(&mut frame) {
            Ok(length) => {
                if let Some(answer) = answer(&frame[..length], &known)
                    && let Err(error) = socket.send_to(&answer, theirs)
                {
                    tracing::debug!("an answer for the guest behind {} was lost: {error}", theirs.display());
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!("nobody answers the guest behind {} any more: {error}", theirs.display());
                return;
            }
        }
    }
}

/// What answers are made of.
pub(crate) struct Known<'k> {
    /// It tells the time.
    pub ntp: bool,
    /// It tells names.
    pub names: Option<&'k Names>,
    /// The time, if it is known: nanoseconds since 1970.
    pub now: &'k dyn Fn() -> Option<u64>,
}

/// The frame that answers this one, if any does.
pub(crate) fn answer(frame: &[u8], known: &Known<'_>) -> Option<Vec<u8>> {
    match frames::read(frame)? {
        Asked::Address(asked) => Some(asked.answer()),
        Asked::Datagram(datagram) => {
            let payload = match datagram.port {
                ntp::PORT if known.ntp => ntp::answer(datagram.payload, known.now)?.to_vec(),
                dns::PORT => dns::answer(datagram.payload, known.names?)?,
                _ => return None,
            };
            Some(datagram.answer(&payload))
        }
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod trial {
    //! Any frame to whoever answers guests.

    use super::*;

    /// Panics if an answer is not one to the frame, goes to anybody but who asked, or is more than anybody may be sent.
    pub fn answers(data: &[u8]) {
        let names = Names::trial();
        let known = Known { ntp: true, names: Some(&names), now: &|| Some(1_795_418_188_250_000_000) };
        let Some(answer) = answer(data, &known) else { return };
        assert!(answer.len() <= frames::LONGEST, "{} bytes", answer.len());
        assert_eq!(answer[..6], data[6..12], "it goes to whoever asked");
        assert_eq!(answer[6..12], frames::ETHERNET_ADDRESS);
        // Whoever got it back would find nothing wrong with it, and would not answer it.
        assert!(super::answer(&answer, &known).is_none(), "an answer to an answer");
        frames::check(&answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_linux::clock::monotonic;
    use fermata_types::VirtualTime;

    const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn asked(port: u16, payload: &[u8]) -> Vec<u8> {
        frames::trial_datagram(GUEST, ([198, 18, 0, 15].into(), 4711), port, payload)
    }

    fn query(name: &str) -> Vec<u8> {
        dns::trial_query(7, name, 1)
    }

    fn outside(real: bool, names: bool) -> Outside {
        let clock = crate::spec::Clock { real, ahead_ms: 0 };
        Outside { clock, ntp: true, names: names.then(Names::trial) }
    }

    /// A machine's responder as QEMU sees it.
    fn with(outside: Outside, clock: GuestClock, test: impl FnOnce(&dyn Fn(&[u8]) -> Option<Vec<u8>>)) {
        let directory = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
        let qemu = UnixDatagram::bind(&theirs).unwrap();
        let _responder = Responder::start(&ours, theirs, outside, Arc::new(clock)).unwrap();
        test(&|frame| {
            qemu.send_to(frame, &ours).unwrap();
            // Behind whatever is answered comes the answer to who has the address.
            qemu.send_to(&frames::trial_who_has(GUEST), &ours).unwrap();
            let mut answers = Vec::new();
            loop {
                let mut answer = vec![0; 2000];
                let length = qemu.recv(&mut answer).unwrap();
                answer.truncate(length);
                if answer[12..14] == [8, 6] {
                    return answers.pop();
                }
                answers.push(answer);
            }
        });
    }

    #[test]
    fn a_guest_is_told_names_and_the_virtual_time() {
        let clock = GuestClock::default();
        clock.begin(1_700_000_000_000_000_000);
        clock.stop_at(VirtualTime::from_ns(5_500_000_000));
        with(outside(false, true), clock, |ask| {
            let time = ask(&asked(ntp::PORT, &ntp::trial_request(4))).expect("the time");
            let payload = frames::check(&time).expect("a datagram");
            assert_eq!(ntp::trial_time(&payload[40..48]), 1_700_000_005_500_000_000);
            assert_eq!(payload[40..48], payload[32..40]);
            let name = ask(&asked(dns::PORT, &query("a"))).expect("an address");
            assert!(frames::check(&name).expect("a datagram").ends_with(&[10, 0, 0, 1]));
            assert!(ask(&asked(69, b"file")).is_none(), "nobody is there");
            assert!(ask(&[0xff; frames::LONGEST + 100]).is_none());
            assert!(ask(&[]).is_none(), "and it goes on");
        });
    }

    #[test]
    fn a_guest_is_told_the_real_time_if_it_is_to_have_that() {
        with(outside(true, false), GuestClock::default(), |ask| {
            let before = wall_ns();
            let time = ask(&asked(ntp::PORT, &ntp::trial_request(4))).expect("the time");
            let told = ntp::trial_time(&frames::check(&time).expect("a datagram")[40..48]);
            // What is told is cut off to a quarter of a nanosecond.
            assert!((before - 1..=wall_ns()).contains(&told), "{told}");
            assert!(ask(&asked(dns::PORT, &query("a"))).is_none(), "no names were asked for");
        });
    }

    #[test]
    fn nobody_is_told_a_time_that_is_not_known() {
        let clock = GuestClock::default();
        clock.go_on(None, monotonic());
        with(outside(false, true), clock, |ask| {
            assert!(ask(&asked(ntp::PORT, &ntp::trial_request(4))).is_none());
        });
    }
}
