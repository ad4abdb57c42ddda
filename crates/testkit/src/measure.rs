//! What benches share: how long they run, checkpoints at a steady beat, and what a guest counts on its console.

use fermata_linux::clock::{Stopwatch, monotonic};
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Between two looks at a console.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);
/// Guests print at least once in this time, once they are up.
const PATIENCE: Duration = Duration::from_secs(300);
/// The end of a console that is read for its last line.
const TAIL: u64 = 4096;

/// The first value; with `--short` among the arguments, for a quick look, the second.
pub fn pick<T>(full: T, short: T) -> T {
    if std::env::args().any(|argument| argument == "--short") { short } else { full }
}

/// Does something so many times, once in each interval, as the keeper's clock does.
pub fn at_every<T>(interval: Duration, times: usize, mut work: impl FnMut() -> T) -> Vec<T> {
    let mut next = monotonic();
    let beat = |_| {
        next += interval;
        thread::sleep(next.saturating_sub(monotonic()));
        work()
    };
    (0..times).map(beat).collect()
}

/// `USER_HZ`, which is 100 on all processors that Linux knows but two of the past.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long processors have worked for a process of ours, which may have ended if nobody has waited for it yet, and for those of its children that have ended, to a hundredth of
/// a second (proc(5), `/proc/pid/stat`). On a host that others use, too, this says more of what something costs than a clock does.
pub fn processor_seconds(pid: u32) -> f64 {
    // Its own time as a user and in the kernel, and its children's.
    times_of(&format!("/proc/{pid}/stat"), 4)
}

/// How long a processor has worked for this thread outside of the kernel.
pub fn own_seconds() -> f64 {
    times_of("/proc/thread-self/stat", 1)
}

/// The sum of so many fields from the fourteenth on, which are times.
fn times_of(stat: &str, count: usize) -> f64 {
    let stat = fs::read_to_string(stat).expect("proc is mounted");
    // The second field is a name in parentheses, which may have blanks.
    let fields = stat.rsplit_once(") ").expect("a name").1.split(' ').skip(11).take(count);
    fields.map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / TICKS_PER_SECOND
}

/// Has the kernel forget what files held, so that they are read from the disk again. False where we may not.
pub fn drop_page_cache() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// A number that a guest counts up on its console.
#[derive(Debug, Clone)]
pub struct Counter {
    console: PathBuf,
    word: &'static str,
}

/// A number of a guest, and when we saw it.
#[derive(Debug, Clone, Copy)]
pub struct Sight {
    /// The number.
    pub count: f64,
    /// By the host's monotonic clock.
    pub at: Duration,
}

impl Counter {
    /// The number that follows `word` in lines of this console.
    pub fn new(console: &Path, word: &'static str) -> Self {
        Self { console: console.to_owned(), word }
    }

    /// The last number in a whole line; none yet, or no console yet.
    pub fn last(&self) -> Option<f64> {
        let text = tail(&self.console).unwrap_or_default();
        let whole = &text[..text.rfind('\n')?];
        whole.lines().rev().find_map(|line| number_after(line, self.word))
    }

    /// Waits for another number than this one, or for any. Panics if the guest says nothing.
    #[track_caller]
    pub fn after(&self, before: Option<f64>) -> Sight {
        let watch = Stopwatch::start();
        loop {
            match self.last() {
                Some(count) if Some(count) != before => return Sight { count, at: monotonic() },
                _ => assert!(
                    watch.elapsed() < PATIENCE,
                    "no \"{}\" within {PATIENCE:?} in {}: {}",
                    self.word,
                    self.console.display(),
                    tail(&self.console).unwrap_or_default()
                ),
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// What the guest counted in a second, while this was done. From the first line after its begin to the first after its end.
    #[track_caller]
    pub fn rate_during(&self, work: impl FnOnce()) -> f64 {
        let begin = self.after(self.last());
        work();
        let end = self.after(self.last());
        (end.count - begin.count) / (end.at - begin.at).as_secs_f64()
    }
}

/// The number that follows a word in a line.
pub fn number_after(line: &str, word: &str) -> Option<f64> {
    line.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let counter = Counter::new(file.path(), "steps ");
        assert_eq!(counter.last(), None);
        fs::write(file.path(), "steps filled 3\nsteps 17 at_us 5\r\nother\nsteps 2").expect("a file");
        assert_eq!(counter.last(), Some(17.0));
    }
}
