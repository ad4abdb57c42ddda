//! Who goes first when there are more threads than processors.

use std::{fs, marker::PhantomData, time::Duration};

/// How much later the others are let go first: a tenth of the share of an ordinary thread (`sched(7)`, nice values).
const BEHIND: i32 = 10;

/// From now on the calling thread lets all others go first, and so do those that it begins. Without privileges there is no way back.
///
/// On Linux a nice value is a thread's own (`setpriority(2)`, "C library/kernel differences").
pub fn go_last() {
    // Raising it is always allowed. If any of this fails the work is done no less well.
    let _ = rustix::process::setpriority_process(None, BEHIND);
    change(CALLER, in_the_way_of_nobody);
}

/// As long as this lives, the calling thread takes no processor from whoever runs when it is woken (`SCHED_BATCH`), and gives it up to whoever is woken as soon as it has
/// had it for 0.1 ms. Of what is left it has its share. For long work beside those who answer each other: else each of them waits for a slice of it, some
/// milliseconds, whatever its nice value (`RUN_TO_PARITY` in the kernel's `sched/features.h`).
#[must_use]
pub fn give_way() -> GivingWay {
    GivingWay { before: change(CALLER, in_the_way_of_nobody), _of_this_thread: PhantomData }
}

fn in_the_way_of_nobody(own: libc::sched_attr) -> libc::sched_attr {
    libc::sched_attr { sched_policy: libc::SCHED_BATCH as u32, sched_runtime: SHORT, ..own }
}

/// A thread that gives way: see [`give_way`].
pub struct GivingWay {
    /// None if it is not an ordinary one.
    before: Option<libc::sched_attr>,
    /// What is put back is the caller's.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for GivingWay {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            set(CALLER, before);
        }
    }
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

/// The calling thread, for the kernel.
const CALLER: u32 = 0;

/// Nanoseconds for which a thread wants to run at a time, the shortest that the kernel takes.
const SHORT: u64 = 100_000;

/// From now on the calling thread, and those that it begins, run soon when they are woken, for as short a time, instead of after whoever runs: for threads that
/// somebody waits for, who answer and sleep again. They get no more of the processor for it than before. Kernels before 6.12 let them wait as ever.
pub fn answer_soon() {
    shorten(CALLER);
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
    change(thread, |own| libc::sched_attr { sched_runtime: SHORT, ..own });
}

/// Only an ordinary thread: returns what it was. If it fails, nothing is done less well.
fn change(thread: u32, how: impl FnOnce(libc::sched_attr) -> libc::sched_attr) -> Option<libc::sched_attr> {
    let own = attributes(thread).filter(is_ordinary)?;
    set(thread, &how(own));
    Some(own)
}

fn is_ordinary(attributes: &libc::sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER as u32
}

fn set(thread: u32, attributes: &libc::sched_attr) {
    // SAFETY: The kernel only reads what it is given, before it returns.
    unsafe { libc::syscall(libc::SYS_sched_setattr, thread as libc::pid_t, std::ptr::from_ref(attributes), 0) };
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

/// Threads of other processes that, when they are woken, wait for whoever runs instead of pushing it aside (`SCHED_BATCH`, `sched(7)`): no more than a slice of
/// time of the processor that they wake up on, and not at all if another one is idle. Dropped, they are as they were.
#[derive(Debug)]
#[must_use]
pub struct HeldBack(Vec<u32>);

/// Holds back those of these threads that are ordinary ones and that we may change. Nothing depends on it but who goes first.
pub fn hold_back(threads: &[u32]) -> HeldBack {
    let held = |thread: &u32| policy(*thread) == Some(libc::SCHED_OTHER) && set_policy(*thread, libc::SCHED_BATCH);
    HeldBack(threads.iter().copied().filter(held).collect())
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        for thread in self.0.iter().filter(|thread| policy(**thread) == Some(libc::SCHED_BATCH)) {
            set_policy(*thread, libc::SCHED_OTHER);
        }
    }
}

/// None if there is no such thread.
fn policy(thread: u32) -> Option<libc::c_int> {
    // SAFETY: It takes a number and touches no memory of ours.
    let policy = unsafe { libc::sched_getscheduler(thread as libc::pid_t) };
    (policy >= 0).then_some(policy)
}

fn set_policy(thread: u32, policy: libc::c_int) -> bool {
    // The static priority, which ordinary threads do not have. Nice values stay.
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: `none` lives until the call returns, which only reads it.
    unsafe { libc::sched_setscheduler(thread as libc::pid_t, policy, &none) == 0 }
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
        let held = hold_back(&[other_id]);
        assert_eq!(policy(other_id), Some(libc::SCHED_BATCH));
        // Whoever was held back by somebody else is left to them.
        drop(hold_back(&[other_id]));
        assert_eq!(policy(other_id), Some(libc::SCHED_BATCH));
        drop(held);
        assert_eq!(policy(other_id), Some(libc::SCHED_OTHER));
        drop(tell);
        other.join().unwrap();
        let own = || attributes(CALLER).map(|own| (own.sched_policy as i32, own.sched_runtime, own.sched_nice)).unwrap();
        let before = own();
        let giving_way = give_way();
        assert_eq!(own(), (libc::SCHED_BATCH, short, before.2));
        drop(giving_way);
        assert_eq!(own(), before);
        go_last();
        assert_eq!(own(), (libc::SCHED_BATCH, short, BEHIND));
    }
}
