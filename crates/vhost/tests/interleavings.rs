//! Pieces without locks, in every order in which their steps can happen, by the memory model of the language and not by that of this processor.

/// What `dirty.rs` finds in the crate as `std::sync`.
mod sync {
    pub use loom::sync::*;
}
// `DirtyPages` itself, whose lock is for growing only, has no part in this.
#[allow(dead_code)]
#[path = "../src/dirty.rs"]
mod dirty;

use dirty::Words;
use loom::{
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    thread,
};

const PAGE: u64 = 70;

struct Guest {
    marks: Words,
    /// Content of the page. It is plain memory, so it has the weakest ordering that there is.
    page: AtomicU8,
}

fn guest() -> Arc<Guest> {
    let mut marks = Words::default();
    marks.grow(PAGE + 1);
    Arc::new(Guest { marks, page: AtomicU8::new(0) })
}

impl Guest {
    fn write(&self, value: u8) {
        self.page.store(value, Ordering::Relaxed);
        self.marks.mark(PAGE, PAGE);
    }

    /// What a checkpoint does ahead of the pause.
    fn copy(&self, copied: &mut u8) {
        if self.marks.take().contains(PAGE as u32) {
            *copied = self.page.load(Ordering::Relaxed);
        }
    }
}

#[test]
fn what_was_written_is_copied_or_marked_again() {
    loom::model(|| {
        let guest = guest();
        // The page is marked already: this is where a writer may take the short way.
        guest.write(1);
        let writer = {
            let guest = guest.clone();
            thread::spawn(move || guest.write(2))
        };
        let mut copied = 0;
        guest.copy(&mut copied);
        // The pause: the rings have stopped.
        writer.join().unwrap();
        guest.copy(&mut copied);
        assert_eq!(copied, 2, "the last write was neither copied nor marked");
    });
}

#[test]
fn two_who_mark_one_word_lose_neither_page() {
    loom::model(|| {
        let guest = guest();
        let other = {
            let guest = guest.clone();
            thread::spawn(move || guest.marks.mark(PAGE + 1, PAGE + 1))
        };
        guest.marks.mark(PAGE, PAGE);
        let mut taken = guest.marks.take();
        other.join().unwrap();
        taken |= guest.marks.take();
        assert_eq!(taken.iter().collect::<Vec<_>>(), [PAGE as u32, PAGE as u32 + 1]);
    });
}
