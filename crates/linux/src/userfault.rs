//! userfaultfd (Documentation/admin-guide/mm/userfaultfd.rst): who wrote to a page, and pages that come when they are touched.
//!
//! A userfaultfd serves the memory of the process that made it. Ours come from QEMU, handed over by the preloaded shim; all requests on them
//! are made from here and act on QEMU's memory.

use rustix::event::{PollFd, PollFlags, poll};
use std::{
    fs::File,
    io::{self, Read},
    ops::Range,
    os::fd::{AsRawFd, OwnedFd},
    sync::OnceLock,
    time::Duration,
};

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct Span {
    start: u64,
    len: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const READ: u64 = 2;
const READ_WRITE: u64 = 3;

const fn request<T>(direction: u64, number: u64) -> u64 {
    (direction << 30) | ((size_of::<T>() as u64) << 16) | (0xAA << 8) | number
}

const UFFDIO_REGISTER: u64 = request::<Register>(READ_WRITE, 0);
const UFFDIO_WAKE: u64 = request::<Span>(READ, 2);
const UFFDIO_COPY: u64 = request::<Copy>(READ_WRITE, 3);
const UFFDIO_WRITEPROTECT: u64 = request::<WriteProtect>(READ_WRITE, 6);
const UFFDIO_API: u64 = request::<Api>(READ_WRITE, 0x3F);
const API_VERSION: u64 = 0xAA;

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const COPY_MODE_WP: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const PAGEFAULT_FLAG_WP: u64 = 2;
const MESSAGE: usize = 32;

const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;

/// What happens when somebody writes to a page that is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// The kernel takes note and lets the writer go on; [`crate::Pagemap`] tells which pages it was (Linux 6.7).
    Async,
    /// The writer waits until [`Userfault::unprotect`] lets it through (Linux 5.19 for shared memory).
    Sync,
    /// Nobody looks at writes: nothing can be protected, and only touches of missing pages are served.
    Unwatched,
}

/// Why somebody waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The page is not there yet: [`Userfault::install`] it.
    Missing,
    /// It is there, and write-protected: [`Userfault::unprotect`] it.
    Write,
}

/// A page that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The address touched; the kernel gives the start of its page.
    pub address: u64,
    /// Why.
    pub kind: FaultKind,
}

/// What became of a page that was to be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    /// It is there now, write-protected if writes are watched.
    New,
    /// Somebody was faster; theirs stays.
    Already,
}

/// A userfaultfd for shared memory.
#[derive(Debug)]
pub struct Userfault {
    file: File,
    writes: Writes,
    alias: OnceLock<Alias>,
}

/// A second mapping of the same memory.
#[derive(Debug)]
struct Alias {
    range: Range<u64>,
    /// Where the first mapping begins.
    of: u64,
}

impl Userfault {
    /// Takes over a fresh userfaultfd and agrees with the kernel on what we need of it. `InvalidInput` if this kernel does not have it.
    pub fn new(fd: OwnedFd, writes: Writes) -> io::Result<Self> {
        let userfault = Self { file: File::from(fd), writes, alias: OnceLock::new() };
        let watched = FEATURE_MISSING_SHMEM | FEATURE_WP_HUGETLBFS_SHMEM;
        let features = match writes {
            Writes::Async => watched | FEATURE_WP_UNPOPULATED | FEATURE_WP_ASYNC,
            // Pages of a file that are not there can be protected without WP_UNPOPULATED, which is about anonymous memory and newer.
            Writes::Sync => watched,
            Writes::Unwatched => FEATURE_MISSING_SHMEM,
        };
        userfault.ioctl(UFFDIO_API, &mut Api { api: API_VERSION, features, ioctls: 0 })?;
        Ok(userfault)
    }

    /// Watches a range of the process's memory for writes, if they are watched at all, and, if `missing`, for touches of pages that are not there.
    pub fn register(&self, range: Range<u64>, missing: bool) -> io::Result<()> {
        let mode = if missing { MODE_MISSING } else { 0 } | self.unless_unwatched(MODE_WP);
        if mode == 0 {
            return Ok(());
        }
        self.ioctl(UFFDIO_REGISTER, &mut Register { start: range.start, len: range.end - range.start, mode, ioctls: 0 })
    }

    /// Serves touches of missing pages in a second mapping of the memory that begins at `of`. They are told as touches of the first mapping, and installing
    /// a page there is enough. Writes through the second mapping are not watched.
    pub fn register_alias(&self, range: Range<u64>, of: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_REGISTER, &mut Register { start: range.start, len: range.end - range.start, mode: MODE_MISSING, ioctls: 0 })?;
        self.alias
            .set(Alias { range, of })
            .map_err(|_| io::Error::new(io::ErrorKind::AlreadyExists, "the memory has a second mapping already"))
    }

    fn unless_unwatched(&self, flag: u64) -> u64 {
        if self.writes == Writes::Unwatched { 0 } else { flag }
    }

    /// Write-protects a range, pages that are not there included. From now on whoever writes is noticed as [`Writes`] says.
    pub fn protect(&self, range: Range<u64>) -> io::Result<()> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { start: range.start, len: range.end - range.start, mode: 1 })
    }

    /// Ends the protection of a range and wakes who waits to write there.
    pub fn unprotect(&self, range: Range<u64>) -> io::Result<()> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut WriteProtect { start: range.start, len: range.end - range.start, mode: 0 })
    }

    /// Installs pages at `address`, write-protected if writes are watched, and wakes who waits for them. Stops at the first page that is already there.
    pub fn install(&self, address: u64, content: &[u8]) -> io::Result<Installed> {
        let mut installed = 0;
        loop {
            let mut copy = Copy {
                dst: address + installed as u64,
                src: content[installed..].as_ptr() as u64,
                len: (content.len() - installed) as u64,
                mode: self.unless_unwatched(COPY_MODE_WP),
                copied: 0,
            };
            let result = self.ioctl(UFFDIO_COPY, &mut copy);
            installed += copy.copied.max(0) as usize;
            match result {
                Ok(()) => {
                    self.wake_alias(address, content.len() as u64)?;
                    return Ok(Installed::New);
                }
                Err(_) if copy.copied > 0 => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EEXIST) => {
                        self.wake(address + installed as u64, (content.len() - installed) as u64)?;
                        self.wake_alias(address, content.len() as u64)?;
                        return Ok(Installed::Already);
                    }
                    // The address space is changing under us (a mapping is being made); the kernel asks to try again.
                    Some(libc::EAGAIN) => std::thread::yield_now(),
                    _ => return Err(error),
                },
            }
        }
    }

    fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_WAKE, &mut Span { start, len })
    }

    /// Who waits in the second mapping is not woken by what happens in the first.
    fn wake_alias(&self, start: u64, len: u64) -> io::Result<()> {
        self.alias.get().map_or(Ok(()), |alias| self.wake(start - alias.of + alias.range.start, len))
    }

    /// Waits for faults and appends them. Returns having found none when the time is up. `UnexpectedEof` when the process is gone.
    pub fn wait(&self, faults: &mut Vec<Fault>, time: Duration) -> io::Result<()> {
        let timeout = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        if polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut buffer = [0; MESSAGE * 64];
        let read = match (&self.file).read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        faults.extend(buffer[..read].chunks_exact(MESSAGE).filter(|message| message[0] == EVENT_PAGEFAULT).map(|message| {
            let number = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("eight bytes of a message"));
            // A write to a page that is not there has the flag for writing, but not this one.
            let kind = if number(8) & PAGEFAULT_FLAG_WP != 0 { FaultKind::Write } else { FaultKind::Missing };
            let address = match self.alias.get() {
                Some(alias) if alias.range.contains(&number(16)) => number(16) - alias.range.start + alias.of,
                _ => number(16),
            };
            Fault { address, kind }
        }));
        Ok(())
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        // SAFETY: every request is built from the size of its argument by `request::<T>`, and the argument lives through the call. What the kernel
        // changes beyond it is memory of the process that made the userfaultfd, within ranges that it registered for this.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request, argument) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
