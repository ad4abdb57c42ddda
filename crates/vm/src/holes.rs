//! Holes in a guest's memory: pages that the guest has given back, by reporting them free through its balloon.
//!
//! A hole changes a page without a write. A page that was protected leaves nothing behind by which a tracker would name it, and what is not there is taken for
//! a page that is yet to be restored. So QEMU does not punch holes. The library preloaded into it (`shim/punches.c`) asks us to, and QEMU, and with it the guest
//! that waits for its report, goes on when we have answered:
//!
//! ```text
//!   guest ──report──> QEMU ──fallocate──> shim ──offset, bytes──> a checkpoint under way copies what it still waits for
//!                                           <──errno or 0──────── then, while nobody installs a page: the hole; it is zero; it counts as written
//! ```
//!
//! Why no page of the store comes back: a page is installed with the lock held for reading, which is asked whether the page was ever a hole. If it is installed
//! before the hole is punched, it goes with what was there; if after, it is zeros. A page that was once a hole is zero whenever it is not there, for as long as
//! the process lives: only a write or another page of zeros can fill it.
//!
//! Why no checkpoint has what was there before: the hole counts as written after it was made, so who is told of it and reads the page afterwards reads zeros,
//! or what was written since. Nothing is under way in a pause, since QEMU stops with the thread that waits for our answer. Pages that equal blocks of disks lose
//! their entries like all that are written.

use crate::{MachineConfig, faults::Memory};
use fermata_linux::{Child, MemoryFile, priority};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, RwLock, RwLockReadGuard},
    thread::JoinHandle,
    time::Duration,
};

/// Pages punched at a time: who waits for a lock meanwhile waits for some hundred microseconds.
const PAGES_AT_ONCE: usize = 512;

/// `EINVAL` and `EIO`.
const INVALID: i32 = 22;
const FAILED: i32 = 5;

/// The holes of one machine.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    state: RwLock<State>,
    /// Became holes since this was last asked. A pause asks, and must not wait for the other lock: who holds that may be a thread that goes last.
    written: Mutex<PageSet>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Were holes once.
    ever: PageSet,
}

impl Holes {
    /// As long as this is held, no hole is punched.
    pub fn shut(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("nobody panics with the lock")
    }

    /// Pages that were punched since the last call.
    pub fn take_written(&self) -> PageSet {
        std::mem::take(&mut self.written.lock().expect("nobody panics with the lock"))
    }

    fn punch(&self, ram: &MemoryFile, pages: Range<PageNumber>) -> io::Result<()> {
        let mut state = self.state.write().expect("nobody panics with the lock");
        let bytes = |page: PageNumber| u64::from(page) * PAGE_SIZE as u64;
        let punched = ram.punch(bytes(pages.start)..bytes(pages.end));
        // It may have failed half way.
        state.ever.insert_range(pages.clone());
        self.written.lock().expect("nobody panics with the lock").insert_range(pages);
        punched
    }
}

impl State {
    /// Whether a page is zero if it is not there, whatever it was in the checkpoint that is being restored.
    pub fn contains(&self, page: PageNumber) -> bool {
        self.ever.contains(page)
    }
}

impl Memory {
    /// The guest has given back this stretch of its memory.
    ///
    /// # Errors
    /// The stretch is not one of whole pages of the memory, or the kernel refuses. The pages may be zero all the same, and count as written.
    pub fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.ram.bytes());
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE_SIZE as u64).then(|| (bytes / PAGE_SIZE as u64) as PageNumber);
        let (Some(start), Some(end)) = (whole(offset), end.and_then(whole)) else { return Err(io::Error::from_raw_os_error(INVALID)) };
        for first in (start..end).step_by(PAGES_AT_ONCE) {
            let pages = first..end.min(first.saturating_add(PAGES_AT_ONCE as PageNumber));
            // As for a write that waits for us: held from the copy of a page to the note.
            let _one_after_the_other = self.let_through();
            self.held.preserve(first, pages.end - first);
            self.holes.punch(&self.ram, pages)?;
        }
        Ok(())
    }
}

/// The socket by which the library asks, if the machine has a balloon. It is sent after KVM's notes and before the userfaultfd.
pub(crate) fn receive(config: &MachineConfig, child: &Child, patience: Duration) -> io::Result<Option<UnixStream>> {
    config.balloon.then(|| Ok(UnixStream::from(child.receive_descriptor::<1>(patience)?.1))).transpose()
}

/// The thread that answers. It ends when QEMU has ended.
#[derive(Debug)]
pub(crate) struct Puncher(Option<JoinHandle<()>>);

impl Puncher {
    pub fn start(socket: UnixStream, memory: Arc<Memory>) -> Self {
        Self(Some(std::thread::spawn(move || {
            priority::answer_soon();
            while answer(&socket, &memory).is_ok() {}
        })))
    }
}

/// Answers one request: two numbers of 64 bits, where and how many bytes, and back one of 32, an errno or 0; all in this host's byte order.
fn answer(mut socket: &UnixStream, memory: &Memory) -> io::Result<()> {
    let mut request = [0; 16];
    socket.read_exact(&mut request)?;
    let number = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().expect("eight bytes of the request"));
    let punched = memory.punch(number(0), number(8));
    let error = punched.map_or_else(|error| error.raw_os_error().unwrap_or(FAILED), |()| 0);
    socket.write_all(&error.to_ne_bytes())
}

impl Drop for Puncher {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
