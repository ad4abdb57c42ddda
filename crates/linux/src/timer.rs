//! A timer that a thread can wait for beside other descriptors (timerfd_create(2)). Unlike the timeout of a poll it is not put off by the timer slack.

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// A timer; readable from when it is due until [`clear`](Self::clear) or the next [`set`](Self::set).
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    pub fn new() -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?))
    }

    /// Makes it due at an instant of [`clock::monotonic`](crate::clock::monotonic), which may be past. Any thread may do this while another one waits.
    pub fn set(&self, at: Duration) -> io::Result<()> {
        // All zero would clear it.
        self.settime(at.max(Duration::from_nanos(1)))
    }

    /// Makes it never due.
    pub fn clear(&self) -> io::Result<()> {
        self.settime(Duration::ZERO)
    }

    fn settime(&self, at: Duration) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX), tv_nsec: at.subsec_nanos().into() };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: zero, it_value: value })?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::Timer;
    use crate::clock::monotonic;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::time::Duration;

    fn due(timer: &Timer, patience: i64) -> bool {
        let time = rustix::time::Timespec { tv_sec: patience, tv_nsec: 0 };
        poll(&mut [PollFd::new(timer, PollFlags::IN)], Some(&time)).unwrap() > 0
    }

    #[test]
    fn it_is_due_when_it_was_set_to_be_and_stays_so() {
        let timer = Timer::new().unwrap();
        assert!(!due(&timer, 0));
        let at = monotonic() + Duration::from_millis(20);
        timer.set(at).unwrap();
        assert!(due(&timer, 10) && monotonic() >= at && due(&timer, 0));
        timer.set(monotonic() + Duration::from_secs(3600)).unwrap();
        assert!(!due(&timer, 0));
        timer.set(Duration::ZERO).unwrap();
        assert!(due(&timer, 10));
        timer.clear().unwrap();
        assert!(!due(&timer, 0));
    }
}
