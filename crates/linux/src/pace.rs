//! Long work in pieces, with rests between them for as long as others want the processors.
//!
//! A nice value says who has how much of a processor, and a short slice how soon another one has it. Neither says what a neighbour costs besides: on a kernel without
//! preemption nobody interrupts whoever copies within it, caches are filled with what he reads, and the disk is busy with what he writes. Doing less of it at a time is
//! all that helps, and it costs nobody anything but whoever waits for its end.

use crate::clock::monotonic;
use rustix::{process::getpriority_process, time::ClockId};
use std::{
    cell::RefCell,
    fs::File,
    marker::PhantomData,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// How much of a processor's time a piece takes: long enough for a rest that others can make something of.
const PIECE: Duration = Duration::from_millis(2);
/// A rest is so many times as long as the piece before it.
const REST: u32 = 5;
/// Others want the processors, too, when a piece has waited for one for more than this part of its time.
const CROWDED: u32 = 20;
/// Whoever wanted them a moment ago is taken to go on.
const GOES_ON: Duration = Duration::from_millis(500);

thread_local! {
    static PACE: RefCell<Pace> = RefCell::new(Pace::inherited());
}

/// To be called between short pieces of long work. A thread that goes last ([`crate::priority::go_last`]), or is [gentle](gently), rests here once it has done something
/// for some milliseconds and had to wait for a processor, lately, while it did. For all others, and on a host with processors to spare, it is as good as nothing.
pub fn rest() {
    let rest = PACE.with_borrow_mut(|pace| pace.paced.then(Sample::of_caller).map(|now| pace.piece(now, waited, &CROWDED_UNTIL)));
    if let Some(rest) = rest.filter(|rest| !rest.is_zero()) {
        std::thread::sleep(rest);
    }
}

/// For how long to rest after work that took so long and that another thread did for the calling one.
pub fn rest_after(work: Duration) -> Duration {
    let paced = PACE.with_borrow(|pace| pace.paced);
    if paced && is_before(monotonic(), &CROWDED_UNTIL) { work * REST } else { Duration::ZERO }
}

/// As long as this lives, the calling thread [rests](rest) between the pieces of its work.
pub fn gently() -> Gently {
    let before = PACE.with_borrow_mut(|pace| std::mem::replace(&mut pace.paced, true));
    Gently { before, own: PhantomData }
}

/// A thread that rests between the pieces of its work. Dropped, it is as it was.
#[must_use]
#[derive(Debug)]
pub struct Gently {
    before: bool,
    /// It is about the thread that it was made in.
    own: PhantomData<*const ()>,
}

impl Drop for Gently {
    fn drop(&mut self) {
        PACE.with_borrow_mut(|pace| pace.paced = self.before);
    }
}

/// From now on the calling thread rests between the pieces of its work.
pub(crate) fn from_now_on() {
    PACE.with_borrow_mut(|pace| pace.paced = true);
}

/// What a thread has had so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    /// Time on a processor.
    ran: Duration,
    now: Duration,
}

impl Sample {
    fn of_caller() -> Self {
        let ran = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        Self { ran: Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32), now: monotonic() }
    }
}

/// How long the calling thread has waited for a processor so far (`proc_pid_schedstat(5)`). A kernel that does not count it says so never.
fn waited() -> Duration {
    thread_local! {
        static COUNTS: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    let mut text = [0; 64];
    let read = COUNTS.with(|counts| counts.as_ref().and_then(|counts| counts.read_at(&mut text, 0).ok())).unwrap_or(0);
    let second = str::from_utf8(&text[..read]).ok().and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    Duration::from_nanos(second.unwrap_or(0))
}

/// Until when the host is taken to be crowded, ns: what one thread has noticed holds for all.
static CROWDED_UNTIL: AtomicU64 = AtomicU64::new(0);

fn is_before(now: Duration, until: &AtomicU64) -> bool {
    now.as_nanos() < until.load(Ordering::Relaxed).into()
}

#[derive(Debug, Default)]
struct Pace {
    paced: bool,
    /// When the piece began.
    began: Sample,
    /// How long the thread had waited then.
    waited: Duration,
}

impl Pace {
    /// A thread goes last if the one did that began it.
    fn inherited() -> Self {
        Self { paced: getpriority_process(None).is_ok_and(|nice| nice >= crate::priority::BEHIND), ..Self::default() }
    }

    /// How long to rest, if a piece is done now.
    fn piece(&mut self, now: Sample, waited: impl FnOnce() -> Duration, crowded_until: &AtomicU64) -> Duration {
        let ran = now.ran.saturating_sub(self.began.ran);
        if ran < PIECE {
            return Duration::ZERO;
        }
        let waited = waited();
        if waited.saturating_sub(self.waited) > ran / CROWDED {
            crowded_until.store((now.now + GOES_ON).as_nanos() as u64, Ordering::Relaxed);
        }
        let rest = if is_before(now.now, crowded_until) { ran * REST } else { Duration::ZERO };
        (self.began, self.waited) = (now, waited);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_rests_and_who_is_alone_does_not() {
        let ms = Duration::from_millis;
        let (mut pace, mut ran, mut now, mut waited) = (Pace::default(), ms(0), ms(1000), ms(0));
        let crowded_until = AtomicU64::new(0);
        let mut piece = |run, wait| {
            (ran, now, waited) = (ran + run, now + run + wait, waited + wait);
            let rest = pace.piece(Sample { ran, now }, || waited, &crowded_until);
            now += rest;
            rest
        };
        // The first has all before it in it: whatever was waited for then.
        piece(PIECE, ms(0));
        assert_eq!(piece(PIECE, ms(0)), ms(0));
        assert_eq!(piece(PIECE / 2, ms(1)), ms(0), "it is no piece yet");
        assert_eq!(piece(PIECE / 2, ms(0)), PIECE * REST);
        assert_eq!(piece(PIECE, ms(0)), PIECE * REST, "others go on");
        assert_eq!(piece(ms(40), ms(0)), ms(40) * REST, "what cannot be interrupted is made up for");
        let rests = std::iter::from_fn(|| Some(piece(PIECE, ms(0)))).take_while(|rest| !rest.is_zero()).count() as u32;
        assert!(PIECE * (1 + REST) * rests <= GOES_ON, "{rests}");
        assert_eq!(piece(ms(40), ms(1)), ms(0), "some waiting there is always");
    }

    #[test]
    fn a_thread_is_gentle_for_as_long_as_it_says_and_one_that_goes_last_for_good() {
        let paced = || PACE.with_borrow(|pace| pace.paced);
        let of_another = move || std::thread::spawn(move || paced()).join().unwrap();
        let check = move || {
            assert!(!paced());
            let gentle = gently();
            assert!(paced() && !of_another());
            let within = gently();
            drop(within);
            assert!(paced());
            drop(gentle);
            assert!(!paced());
            crate::priority::go_last();
            drop(gently());
            assert!(paced() && of_another(), "and so do those that it begins");
        };
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn a_thread_that_shares_its_processor_waits() {
        let share = || {
            let mut own = rustix::thread::CpuSet::new();
            own.set(rustix::thread::sched_getcpu());
            rustix::thread::sched_setaffinity(None, &own).unwrap();
            let other = std::thread::spawn(|| {
                let until = monotonic() + Duration::from_millis(100);
                while monotonic() < until {}
            });
            let before = waited();
            while !other.is_finished() {}
            waited() - before
        };
        let waited = std::thread::spawn(share).join().unwrap();
        // Kernels that do not count it have no such file.
        assert!(waited > Duration::from_millis(10) || !std::fs::exists("/proc/thread-self/schedstat").unwrap(), "{waited:?}");
    }
}
