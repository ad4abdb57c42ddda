//! Long work in pieces, with rests between them for as long as others want the processors.
//!
//! A nice value says who has how much of a processor, and a short slice how soon another one has it. Neither says what a neighbour costs besides: on a kernel without
//! preemption nobody interrupts whoever copies within it, caches are filled with what he reads, and the disk is busy with what he writes. Doing less of it at a time is
//! all that helps, and it costs nobody anything but whoever waits for its end.

use rustix::{process::getpriority_process, time::ClockId};
use std::{
    cell::RefCell,
    fs::File,
    marker::PhantomData,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

/// How much of a processor's time a piece takes: long enough for a rest that others can make something of.
const PIECE: Duration = Duration::from_millis(2);
/// A rest is so many times as long as the piece before it.
const REST: u32 = 5;
/// How much of a processor's time is looked at together: within a single piece there is always somebody who wants it just once.
const LOOK: Duration = Duration::from_millis(20);
/// Others want the processors, too, when a thread has waited for one for more than this part of its time.
const CROWDED: u32 = 16;

/// Whether others wanted the processors when a thread last looked: what one has noticed holds for all.
static IS_CROWDED: AtomicBool = AtomicBool::new(false);
/// How many there are who wait for the end of what this process does.
static HURRIES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PACE: RefCell<Pace> = RefCell::new(Pace::inherited());
}

/// To be called between short pieces of long work. A thread that goes last ([`crate::priority::go_last`]), or is [gentle](gently), rests here once it has done something
/// for some milliseconds and others wanted the processors lately. For all others, and on a host with processors to spare, it is as good as nothing.
pub fn rest() {
    let rest = PACE.with_borrow_mut(|pace| pace.paced.then(|| pace.piece(ran(), waited, &IS_CROWDED)));
    if let Some(rest) = rest.filter(|rest| !rest.is_zero() && !is_hurried()) {
        std::thread::sleep(rest);
    }
}

/// For how long to rest after work that took so long and that another thread did for the calling one.
pub fn rest_after(work: Duration) -> Duration {
    let rests = PACE.with_borrow(|pace| pace.paced) && IS_CROWDED.load(Ordering::Relaxed) && !is_hurried();
    if rests { work * REST } else { Duration::ZERO }
}

fn is_hurried() -> bool {
    HURRIES.load(Ordering::Relaxed) > 0
}

/// As long as this lives, nobody in this process rests: somebody waits for the end of what it does.
pub fn hurry() -> Hurry {
    HURRIES.fetch_add(1, Ordering::Relaxed);
    Hurry(())
}

/// Somebody who waits.
#[must_use]
#[derive(Debug)]
pub struct Hurry(());

impl Drop for Hurry {
    fn drop(&mut self) {
        HURRIES.fetch_sub(1, Ordering::Relaxed);
    }
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

/// How long the calling thread has run so far.
fn ran() -> Duration {
    let ran = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32)
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

#[derive(Debug, Default)]
struct Pace {
    paced: bool,
    /// What the thread had had when the piece began.
    piece: Duration,
    /// The same when it looked last, and how long it had waited for a processor by then.
    look: (Duration, Duration),
}

impl Pace {
    /// A thread goes last if the one did that began it.
    fn inherited() -> Self {
        Self { paced: getpriority_process(None).is_ok_and(|nice| nice >= crate::priority::BEHIND), ..Self::default() }
    }

    /// How long to rest, if a piece is done now, of a thread that ran for so long. It looks whether that is called for, now and then.
    fn piece(&mut self, ran: Duration, waited: impl FnOnce() -> Duration, is_crowded: &AtomicBool) -> Duration {
        let piece = ran.saturating_sub(self.piece);
        if piece < PIECE {
            return Duration::ZERO;
        }
        self.piece = ran;
        let (ran_then, waited_then) = self.look;
        if ran.saturating_sub(ran_then) >= LOOK {
            let waited = waited();
            is_crowded.store(waited.saturating_sub(waited_then) > (ran - ran_then) / CROWDED, Ordering::Relaxed);
            self.look = (ran, waited);
        }
        if is_crowded.load(Ordering::Relaxed) { piece * REST } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_rests_and_who_is_alone_does_not() {
        let ms = Duration::from_millis;
        let (mut pace, mut ran, mut waited, is_crowded) = (Pace::default(), ms(0), ms(0), AtomicBool::new(false));
        let mut rests = |pieces: u32, piece: Duration, wait: Duration| {
            let mut rests = Duration::ZERO;
            for _ in 0..pieces {
                (ran, waited) = (ran + piece, waited + wait);
                rests += pace.piece(ran, || waited, &is_crowded);
            }
            rests
        };
        assert_eq!(rests(100, PIECE, ms(0)), ms(0));
        assert_eq!(rests(10, PIECE / 2, ms(1)), ms(0), "nobody has looked yet");
        rests(10, PIECE / 2, ms(1));
        assert_eq!(rests(5, PIECE, ms(1)), 5 * PIECE * REST);
        rests(5, PIECE, ms(1));
        assert_eq!(rests(1, ms(40), ms(3)), ms(40) * REST, "what cannot be interrupted is made up for");
        assert_eq!(rests(1, ms(40), ms(2)), ms(0), "some waiting there is always");
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
                let watch = crate::clock::Stopwatch::start();
                while watch.elapsed() < Duration::from_millis(100) {}
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
