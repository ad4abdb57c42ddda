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
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

/// How much of a processor's time a piece takes: long enough for a rest that others can make something of.
const PIECE: Duration = Duration::from_millis(2);
/// A rest is so many times as long as the piece before it.
const REST: u32 = 8;
/// For how long it is watched who wants the processors before that is judged: for a moment there is always somebody.
const LOOK: Duration = Duration::from_millis(100);
/// Others want them, too, when a thread has waited for one for more than this part of its time on it, ...
const WAITED: u32 = 16;
/// ... or, if it rests and is in nobody's way for most of the time, for more than this part; ...
const WAITED_STILL: u32 = 64;
/// ... and other processes have had more than this part of the time of one. Else it is threads of this one that are in each other's way.
const OTHERS: u32 = 2;

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
    let rest = PACE.with_borrow_mut(|pace| pace.paced.then(|| pace.piece(monotonic(), ran(), Look::now, &IS_CROWDED)));
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
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long the calling thread has waited for a processor so far (`proc_pid_schedstat(5)`). A kernel that does not count it says so never.
fn waited() -> Duration {
    thread_local! {
        static COUNTS: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    let mut text = [0; 64];
    let read = COUNTS.with(|counts| counts.as_ref().and_then(|counts| counts.read_at(&mut text, 0).ok())).unwrap_or(0);
    Duration::from_nanos(numbers(&text[..read]).nth(1).unwrap_or(0))
}

/// How long the processors have worked for other processes so far, all together (`proc_stat(5)`).
fn others() -> Duration {
    // The first line: user, nice, system, idle, iowait, irq, softirq.
    let mut text = [0; 256];
    let read = File::open("/proc/stat").and_then(|counts| counts.read_at(&mut text, 0)).unwrap_or(0);
    let ticks: u64 = numbers(&text[..read]).take(7).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks).sum();
    let worked = Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
    worked.saturating_sub(time_of(ClockId::ProcessCPUTime))
}

/// The numbers in the first line of a text.
fn numbers(text: &[u8]) -> impl Iterator<Item = u64> {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    str::from_utf8(line).unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok())
}

/// What a thread sees of who wants the processors.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    at: Duration,
    waited: Duration,
    others: Duration,
}

impl Look {
    fn now() -> Self {
        Self { at: monotonic(), waited: waited(), others: others() }
    }
}

#[derive(Debug, Default)]
struct Pace {
    paced: bool,
    /// How long the thread had run when the piece began.
    piece: Duration,
    /// The same when it looked last, and what it saw.
    looked: (Duration, Look),
}

impl Pace {
    /// A thread goes last if the one did that began it.
    fn inherited() -> Self {
        Self { paced: getpriority_process(None).is_ok_and(|nice| nice >= crate::priority::BEHIND), ..Self::default() }
    }

    /// How long to rest, if a piece is done now, of a thread that has run for so long.
    fn piece(&mut self, now: Duration, ran: Duration, look: impl FnOnce() -> Look, is_crowded: &AtomicBool) -> Duration {
        let piece = ran.saturating_sub(self.piece);
        if piece < PIECE {
            return Duration::ZERO;
        }
        self.piece = ran;
        let (ran_then, then) = self.looked;
        if now.saturating_sub(then.at) >= LOOK {
            let now = look();
            let part = if is_crowded.load(Ordering::Relaxed) { WAITED_STILL } else { WAITED };
            let waits = now.waited.saturating_sub(then.waited) > ran.saturating_sub(ran_then) / part;
            let others = now.others.saturating_sub(then.others) > now.at.saturating_sub(then.at) / OTHERS;
            is_crowded.store(waits && others, Ordering::Relaxed);
            self.looked = (ran, now);
        }
        if is_crowded.load(Ordering::Relaxed) { piece * REST } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_others_rests_and_nobody_else() {
        let ms = Duration::from_millis;
        let (mut pace, mut ran, mut look, is_crowded) = (Pace::default(), ms(0), Look::default(), AtomicBool::new(false));
        // Others have a processor to themselves, or none.
        let mut rests = |pieces: u32, piece: Duration, wait: Duration, others: bool| {
            let mut rests = Duration::ZERO;
            for _ in 0..pieces {
                let before = look.at;
                ran += piece;
                (look.at, look.waited) = (look.at + piece + wait, look.waited + wait);
                look.others += if others { look.at - before } else { Duration::ZERO };
                let rest = pace.piece(look.at, ran, || look, &is_crowded);
                look.at += rest;
                look.others += if others { rest } else { Duration::ZERO };
                rests += rest;
            }
            rests
        };
        assert_eq!(rests(100, PIECE, ms(0), true), ms(0), "there are processors enough");
        assert_eq!(rests(100, PIECE, ms(1), false), ms(0), "nobody else is here");
        assert_eq!(rests(10, PIECE / 2, ms(1), true), ms(0), "nobody has looked yet");
        rests(100, PIECE, ms(1), true);
        assert_eq!(rests(10, PIECE, ms(1), true), 10 * PIECE * REST);
        assert_eq!(rests(10, PIECE, PIECE / 32, true), 10 * PIECE * REST, "they are still there");
        assert_eq!(rests(1, ms(40), ms(1), true), ms(40) * REST, "what cannot be interrupted is made up for");
        rests(20, PIECE, ms(0), true);
        assert_eq!(rests(10, PIECE, PIECE / 32, true), ms(0), "they do with what is left");
    }

    #[test]
    fn what_others_do_is_told_from_what_this_process_does() {
        let all = others();
        let watch = crate::clock::Stopwatch::start();
        let mut other = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        // However many others there are, this one gets some of the processors' time in the end.
        let mut grew = Duration::ZERO;
        while grew < Duration::from_millis(50) && watch.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
            grew = others().saturating_sub(all);
        }
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(grew >= Duration::from_millis(50), "{grew:?}");
    }

    #[test]
    fn a_thread_is_gentle_for_as_long_as_it_says_and_one_that_goes_last_for_good() {
        fn paced() -> bool {
            PACE.with_borrow(|pace| pace.paced)
        }
        let of_another = || std::thread::spawn(paced).join().unwrap();
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
