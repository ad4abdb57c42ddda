//! Signals that ask a process to end.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::{
    consts::{SIGHUP, TERM_SIGNALS},
    iterator::Signals,
};
use std::{
    fs, io,
    process::{Child, ExitStatus},
    thread,
    time::Duration,
};

/// How long a group may take to end by itself.
const ENDING: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Ends a child that leads a process group, and with it whom it has started: asks them, and after a second they have no choice. Nobody may have waited for it
/// before.
pub fn end_group(child: &mut Child) -> io::Result<ExitStatus> {
    let group = Pid::from_child(child);
    // Who is gone needs no signal.
    let _ = kill_process_group(group, Signal::TERM);
    let mut waited = Duration::ZERO;
    while !has_ended(child)? && waited < ENDING {
        thread::sleep(BETWEEN_LOOKS);
        waited += BETWEEN_LOOKS;
    }
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()
}

/// Whether a child has ended. Nobody has waited for it then: its number is not given to another, and the kernel still knows what it took.
pub fn has_ended(child: &Child) -> io::Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(Pid::from_child(child)), look)?.is_some())
}

/// Stops a child that leads a process group, and whom it has started, until [`continue_group`] (SIGSTOP).
pub fn stop_group(child: &Child) -> io::Result<()> {
    Ok(kill_process_group(Pid::from_child(child), Signal::STOP)?)
}

/// Has a child that leads a process group go on, and whom it has started (SIGCONT).
pub fn continue_group(child: &Child) -> io::Result<()> {
    Ok(kill_process_group(Pid::from_child(child), Signal::CONT)?)
}

/// Calls back, in a thread of its own, when the process is asked to end (SIGTERM, SIGINT, SIGQUIT, and SIGHUP unless that is ignored, as under nohup). Asked again,
/// it ends at once.
pub fn on_termination(call: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(TERM_SIGNALS)?;
    if !is_ignored(SIGHUP, &fs::read_to_string("/proc/self/status")?) {
        signals.add_signal(SIGHUP)?;
    }
    thread::spawn(move || {
        let mut arrivals = signals.forever();
        if arrivals.next().is_some() {
            call();
        }
        if let Some(signal) = arrivals.next() {
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Whether a process ignores a signal, by what the kernel tells of it.
fn is_ignored(signal: i32, status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_seen() {
        assert!(is_ignored(SIGHUP, "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"));
        assert!(!is_ignored(SIGHUP, "SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"));
        assert!(!is_ignored(SIGHUP, ""));
        let told = Command::new("/bin/sh").args(["-c", "trap '' HUP; cat /proc/self/status"]).output().unwrap();
        assert!(is_ignored(SIGHUP, &String::from_utf8_lossy(&told.stdout)));
    }
    use std::{
        io::Read,
        os::unix::process::{CommandExt, ExitStatusExt},
        process::{Command, Stdio},
    };

    #[test]
    fn a_group_ends_with_whom_it_has_started() {
        // Who is left would hold the pipe open; the second asks for no mercy and gets none.
        for script in ["sleep 600 & sleep 600; true", "trap '' TERM; sleep 600 & wait; sleep 600; true"] {
            let mut command = Command::new("/bin/sh");
            let mut child = command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
            thread::sleep(Duration::from_millis(100));
            let status = end_group(&mut child).unwrap();
            assert!(status.signal().is_some(), "{script}: {status}");
            assert_eq!(child.stdout.take().unwrap().read(&mut [0]).unwrap(), 0);
        }
    }
}
