//! A bar on standard error for what takes more than a second.

use crate::out::Out;
use fermata_api::values::Activity;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::Duration,
};

/// What is over sooner gets no bar.
const PATIENCE: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(150);

/// A bar that shows itself only when it is worth it. Gone when dropped.
pub struct Meter {
    bar: ProgressBar,
    allowed: bool,
    otherwise: &'static str,
}

impl Meter {
    /// A bar for work that began now; `otherwise` is shown while nothing better is known.
    pub fn new(out: &Out, otherwise: &'static str) -> Self {
        Self { bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()), allowed: out.progress, otherwise }
    }

    /// Whether the work has taken so long that a look at it is worth the while.
    fn is_due(&self) -> bool {
        self.allowed && self.bar.elapsed() >= PATIENCE
    }

    /// Shows how far the work is.
    pub fn show(&self, activity: &Activity) {
        if !self.is_due() {
            return;
        }
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(BETWEEN_LOOKS);
        }
        let template = match (activity.total, activity.unit.as_str()) {
            (0, _) => "{spinner} {msg} ({elapsed})",
            (_, "bytes") => "{spinner} {msg} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {eta} left",
            (..) => "{spinner} {msg} [{bar:30}] {human_pos} of {human_len}, {eta} left",
        };
        // The templates are ours: one that cannot be parsed shows the plain bar.
        self.bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        self.bar.set_message(if activity.what.is_empty() { self.otherwise.to_owned() } else { crate::text::harmless(&activity.what) });
        self.bar.set_length(activity.total);
        self.bar.set_position(activity.done.min(activity.total));
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Does the work, and meanwhile shows what is asked for from another thread.
pub fn during<T>(out: &Out, otherwise: &'static str, activity: impl Fn() -> Activity + Send, work: impl FnOnce() -> T) -> T {
    if !out.progress {
        return work();
    }
    thread::scope(|scope| {
        let (over, ended) = channel::<()>();
        scope.spawn(move || {
            let meter = Meter::new(out, otherwise);
            while ended.recv_timeout(BETWEEN_LOOKS) == Err(RecvTimeoutError::Timeout) {
                if meter.is_due() {
                    meter.show(&activity());
                }
            }
        });
        let result = work();
        drop(over);
        result
    })
}
