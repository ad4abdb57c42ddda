//! Signals that ask a process to end.

use signal_hook::{consts::TERM_SIGNALS, iterator::Signals};
use std::io;

/// Calls back, in a thread of its own, when the process is asked to end (SIGTERM, SIGINT, SIGQUIT). Asked again, it ends at once.
pub fn on_termination(call: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(TERM_SIGNALS)?;
    std::thread::spawn(move || {
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
