//! Controlled delay: the queue discipline of RFC 8289, section 5. Where several send into the queue, whoever has most in it loses the frame that is to be
//! dropped, as when it is full: the RFC drops the first of the queue, whosever it is, and a flood would take the others with it.

use crate::{
    direction::Frame,
    queue::{Queue, Waiting},
};

/// The wait that is acceptable all the time.
const TARGET_NS: u64 = 5_000_000;
/// How long all may wait for more than that before one is dropped.
const INTERVAL_NS: u64 = 100_000_000;

/// The state of one queue. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Codel {
    pub dropping: bool,
    /// When the wait will have been too long for an interval; 0 while it is not too long.
    pub first_above: u64,
    pub drop_next: u64,
    /// Frames dropped since dropping began, which sets the pace.
    pub count: u32,
    pub last_count: u32,
}

impl Codel {
    /// Takes the next frame to transmit from the queue, and before it those that are to be dropped. `full` are the bytes of the longest
    /// frame: a queue that holds no more is never too long.
    pub fn dequeue(&mut self, now: u64, queue: &mut Queue, full: usize, mut dropped: impl FnMut(&Frame)) -> Option<Waiting> {
        let (mut first, mut too_long) = self.take(now, queue, full);
        if self.dropping {
            self.dropping = too_long;
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                (first, too_long) = self.drop_for(first, now, queue, full, &mut dropped);
                if too_long {
                    self.drop_next = after(self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if too_long {
            (first, _) = self.drop_for(first, now, queue, full, &mut dropped);
            self.dropping = true;
            // When dropping was needed a short while ago, it goes on at about the pace that helped then.
            let before = self.count.saturating_sub(self.last_count);
            let recent = now.saturating_sub(self.drop_next) < 16 * INTERVAL_NS;
            self.count = if before > 1 && recent { before } else { 1 };
            self.last_count = self.count;
            self.drop_next = after(now, self.count);
        }
        first
    }

    /// Drops a frame for the first of the queue, or that one. What is first then, and whether all have waited too long for an interval.
    fn drop_for(
        &mut self,
        first: Option<Waiting>,
        now: u64,
        queue: &mut Queue,
        full: usize,
        dropped: &mut impl FnMut(&Frame),
    ) -> (Option<Waiting>, bool) {
        if let Some(first) = &first
            && let Some(other) = queue.evict_instead_of(first.from)
        {
            dropped(&other.frame);
            let too_long = self.is_too_long(first, now, queue, full);
            return (Some(first.clone()), too_long);
        }
        first.iter().for_each(|waiting| dropped(&waiting.frame));
        self.take(now, queue, full)
    }

    /// Moves all its times.
    pub fn shift(&mut self, moved: impl Fn(u64) -> u64) {
        if self.first_above != 0 {
            self.first_above = moved(self.first_above).max(1);
        }
        self.drop_next = moved(self.drop_next);
    }

    /// The first of the queue, and whether all have waited too long for an interval.
    fn take(&mut self, now: u64, queue: &mut Queue, full: usize) -> (Option<Waiting>, bool) {
        let Some(waiting) = queue.pop() else {
            self.first_above = 0;
            return (None, false);
        };
        let too_long = self.is_too_long(&waiting, now, queue, full);
        (Some(waiting), too_long)
    }

    fn is_too_long(&mut self, first: &Waiting, now: u64, queue: &Queue, full: usize) -> bool {
        if now.saturating_sub(first.since) < TARGET_NS || queue.bytes() <= full {
            self.first_above = 0;
        } else if self.first_above == 0 {
            self.first_above = now.saturating_add(INTERVAL_NS);
        } else {
            return now >= self.first_above;
        }
        false
    }
}

/// The interval over the root of the count, later.
fn after(time: u64, count: u32) -> u64 {
    time.saturating_add((INTERVAL_NS * INTERVAL_NS / u64::from(count.max(1))).isqrt())
}
