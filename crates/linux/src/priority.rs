//! Who goes first when there are more threads than processors.

use crate::pace;
use std::{fmt, fs, time::Duration};

/// How much later the others are let go first: a tenth of the share of an ordinary thread (`sched(7)`, nice values).
pub(crate) const BEHIND: i32 = 10;

/// From now on the calling thread lets all others go first, and so do those that it begins; and it [rests](pace::rest) where others want the processors. Without privileges
/// there is no way back.
///
/// On Linux a nice value is a thread's own (`setpriority(2)`, "C library/kernel differences").
pub fn go_last() {
    // Raising it is always allowed. If any of this fails the work is done no less well.
    let _ = rustix::process::setpriority_process(None, BEHIND);
    change(caller(), in_the_way_of_nobody);
    pace::from_now_on();
}

/// As long as this lives, the calling thread takes no processor from whoever runs when it is woken (`SCHED_BATCH`), and gives it up to whoever is woken as soon as it has
/// had it for 0.1 ms. Of what is left it has its share. For long work beside those who answer each other: else each of them waits for a slice of it, some
/// milliseconds, whatever its nice value (`RUN_TO_PARITY` in the kernel's `sched/features.h`).
pub fn give_way() -> Meanwhile {
    Meanwhile::with(&[caller()], in_the_way_of_nobody)
}

fn in_the_way_of_nobody(own: libc::sched_attr) -> libc::sched_attr {
    libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, sched_runtime: SHORT, ..own }
}

/// Threads, of any process, that go sooner or later than others as long as this lives. Dropped, they are as they were. Those that are not ordinary ones, or that we may
/// not change, are left alone: nothing depends on it but who goes first.
#[must_use]
pub struct Meanwhile(Vec<(u32, libc::sched_attr)>);

impl Meanwhile {
    fn with(threads: &[u32], how: impl Fn(libc::sched_attr) -> libc::sched_attr) -> Self {
        Self(threads.iter().filter_map(|thread| Some((*thread, change(*thread, &how)?))).collect())
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(thread, _)| thread)).finish()
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        for (thread, before) in &self.0 {
            set(*thread, before);
        }
    }
}

fn caller() -> u32 {
    rustix::thread::gettid().as_raw_pid() as u32
}

/// Time in which whoever was let go gets a processor, and a lock that somebody else is about to give up: some tens of microseconds.
const ASIDE: Duration = Duration::from_micros(200);

/// Whoever waits for the calling thread's processor goes first. For one that was woken by somebody who is not done yet: it pushed them aside, and it may be a lock of
/// theirs that others wait for.
pub fn after_you() {
    rustix::thread::sched_yield();
}

/// Leaves the processor to others before a long piece of work: the kernel spreads threads over processors as they are woken, and else not before its next tick.
pub fn step_aside() {
    std::thread::sleep(ASIDE);
}

/// Nanoseconds for which a thread wants to run at a time, the shortest that the kernel takes.
const SHORT: u64 = 100_000;

/// From now on the calling thread, and those that it begins, run soon when they are woken, for as short a time, instead of after whoever runs: for threads that
/// somebody waits for, who answer and sleep again. They get no more of the processor for it than before. Kernels before 6.12 let them wait as ever.
pub fn answer_soon() {
    shorten(caller());
}

/// The same for the threads of another process, but for these.
pub fn answer_soon_in(process: u32, but: &[u32]) {
    threads(process).filter(|thread| !but.contains(thread)).for_each(shorten);
}

fn threads(process: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn shorten(thread: u32) {
    change(thread, for_a_short_time);
}

fn for_a_short_time(own: libc::sched_attr) -> libc::sched_attr {
    libc::sched_attr { sched_runtime: SHORT, ..own }
}

/// Only an ordinary thread that we may change: returns what it was.
fn change(thread: u32, how: impl FnOnce(libc::sched_attr) -> libc::sched_attr) -> Option<libc::sched_attr> {
    let own = attributes(thread).filter(is_ordinary)?;
    set(thread, &how(own)).then_some(own)
}

fn is_ordinary(attributes: &libc::sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER as u32
}

fn set(thread: u32, attributes: &libc::sched_attr) -> bool {
    // SAFETY: The kernel only reads what it is given, before it returns.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread as libc::pid_t, std::ptr::from_ref(attributes), 0) == 0 }
}

fn attributes(thread: u32) -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: The kernel writes at most `size` bytes, which are there.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, thread as libc::pid_t, &raw mut attributes, size, 0) } == 0;
    known.then_some(attributes)
}

/// As long as this lives, these threads, when they are woken, wait for whoever runs instead of pushing it aside (`SCHED_BATCH`, `sched(7)`): no more than a slice of
/// time of the processor that they wake up on, and not at all if another one is idle.
pub fn hold_back(threads: &[u32]) -> Meanwhile {
    Meanwhile::with(threads, |own| libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, ..own })
}

/// As long as this lives, the calling thread runs [soon](answer_soon) when it is woken, and is not pushed aside by each that it wakes and that answers soon. For who has slept: one
/// that has computed gets no more than its share.
pub fn soon() -> Meanwhile {
    Meanwhile::with(&[caller()], for_a_short_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test: what one of them changes the other would see.
    #[test]
    fn threads_go_first_or_last_as_they_are_told() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (id, ids) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            id.send(rustix::thread::gettid().as_raw_pid() as u32).unwrap();
            let _ = told.recv();
        });
        let other_id = ids.recv().unwrap();
        let others = threads(std::process::id()).collect::<Vec<_>>();
        let slice = || attributes(other_id).map(|attributes| (attributes.sched_runtime, attributes.sched_nice, attributes.sched_policy));
        let before = slice().unwrap();
        answer_soon_in(std::process::id(), &others);
        assert_eq!(slice(), Some(before), "it was left out");
        answer_soon_in(std::process::id(), &others.into_iter().filter(|thread| *thread != other_id).collect::<Vec<_>>());
        // Older kernels have no slices of a thread's own, and tell of none.
        let short = if before.0 == 0 { 0 } else { SHORT };
        assert_eq!(slice(), Some((short, before.1, before.2)));
        let policy = || slice().unwrap().2 as i32;
        let held = hold_back(&[other_id]);
        assert_eq!(policy(), libc::SCHED_BATCH);
        // Whoever was held back by somebody else is left to them.
        drop(hold_back(&[other_id]));
        assert_eq!(policy(), libc::SCHED_BATCH);
        drop(held);
        assert_eq!(policy(), libc::SCHED_OTHER);
        drop(tell);
        other.join().unwrap();
        let own = || attributes(caller()).map(|own| (own.sched_policy as i32, own.sched_runtime, own.sched_nice)).unwrap();
        let before = own();
        let giving_way = give_way();
        assert_eq!(own(), (libc::SCHED_BATCH, short, before.2));
        drop(giving_way);
        assert_eq!(own(), before);
        let soon = soon();
        assert_eq!(own(), (before.0, short, before.2));
        drop(soon);
        assert_eq!(own(), before);
        go_last();
        assert_eq!(own(), (libc::SCHED_BATCH, short, BEHIND));
    }
}
