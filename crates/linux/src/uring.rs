//! io_uring (io_uring(7)), for tests: reads that the kernel does behind the program, into memory that is named by its address, or through buffers that were
//! registered before.
//!
//! A registered buffer is pinned: the kernel looks up its pages once, and from then on writes to the pages themselves. It passes no page table of the program, and so
//! nobody who watches or closes pages there.

use io_uring::{IoUring, opcode, squeue::Flags, types::Fd};
use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// From where a file or a socket is at.
const NO_OFFSET: u64 = u64::MAX;

/// How a request names the memory that it writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// By its address. The kernel writes at once if it can.
    Plain,
    /// By its address. A thread of the kernel's writes.
    PlainByThread,
    /// As part of what was registered.
    Registered,
}

/// A ring with one request at a time. A registered buffer stays so, and pinned, until it is dropped.
pub struct Ring(Option<IoUring>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl Ring {
    /// An error where the kernel has no io_uring, or none for us.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Some(IoUring::new(4)?)))
    }

    /// Registers memory, once. `EFAULT` if it cannot be written to.
    pub fn register(&mut self, memory: &mut [u8]) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the kernel holds the pages, and writes there only when `read` asks for it. Should the memory go before, the pages are nobody else's.
        unsafe { self.ring()?.submitter().register_buffers(&[buffer]) }
    }

    /// Reads from a file or a socket, waits until that is done, and says how many bytes came.
    pub fn read(&mut self, from: impl AsFd, into: &mut [u8], buffer: Buffer) -> io::Result<usize> {
        let (file, at, length) = (Fd(from.as_fd().as_raw_fd()), into.as_mut_ptr(), into.len() as u32);
        let plain = || opcode::Read::new(file, at, length).offset(NO_OFFSET).build();
        let request = match buffer {
            Buffer::Plain => plain(),
            Buffer::PlainByThread => plain().flags(Flags::ASYNC),
            Buffer::Registered => opcode::ReadFixed::new(file, at, length, 0).offset(NO_OFFSET).build(),
        };
        let ring = self.ring()?;
        // SAFETY: `from` and `into` are borrowed until the request is done: no other way leads out of this function, but for a ring that is dropped with the request in it.
        unsafe { ring.submission().push(&request) }.map_err(io::Error::other)?;
        loop {
            match ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.0 = None;
                    return Err(error);
                }
                Ok(_) => {}
            }
            let done = ring.completion().next();
            if let Some(done) = done {
                let count = done.result();
                return if count < 0 { Err(io::Error::from_raw_os_error(-count)) } else { Ok(count as usize) };
            }
        }
    }

    fn ring(&mut self) -> io::Result<&mut IoUring> {
        self.0.as_mut().ok_or_else(|| io::Error::other("the ring has failed before"))
    }
}
