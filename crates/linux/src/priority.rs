//! Who goes first when there are more threads than processors.

/// How much later the others are let go first: a tenth of the share of an ordinary thread (`sched(7)`, nice values).
const BEHIND: i32 = 10;

/// From now on the calling thread lets all others go first, and so do those that it begins. Without privileges there is no way back.
///
/// On Linux a nice value is a thread's own (`setpriority(2)`, "C library/kernel differences").
pub fn go_last() {
    // Raising it is always allowed. If it fails all the same, the work is done no less well.
    let _ = rustix::process::setpriority_process(None, BEHIND);
}
