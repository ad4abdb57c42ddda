//! Scattered memory as one run of bytes, read from or written to files without a copy in between.
//!
//! The memory may be a guest's: another process writes to it while we do. So it is never borrowed as a Rust slice; bytes are moved by system calls and
//! by raw copies, for which torn values are only the guest's own concern. This is the one module of the room with `unsafe` code.

#![allow(unsafe_code, reason = "guest memory is no Rust memory")]

use crate::GuestRam;
use std::{fs::File, io, marker::PhantomData, os::fd::AsRawFd};
use vm_memory::GuestMemoryResult;

/// Pieces handed to one system call. The kernel takes 1024; 64 keeps the array on the stack small.
const PIECES_MAX: usize = 64;

/// A piece of memory: address and length.
type Piece = libc::iovec;

/// Reusable room for the list of pieces, so that a request needs no allocation.
#[derive(Default)]
pub struct Pieces(Vec<Piece>);

// SAFETY: the addresses are only used through a `Cursor`, whose maker vouches for them; the list is emptied before it is filled for the next one.
unsafe impl Send for Pieces {}

/// A place in scattered memory that moves forward.
struct Cursor<'a> {
    pieces: &'a [Piece],
    /// Bytes of the first piece that are done.
    done: usize,
    len: usize,
}

impl Cursor<'_> {
    fn advance(&mut self, mut bytes: usize) {
        self.len -= bytes;
        while let Some(piece) = self.pieces.first() {
            let left = piece.iov_len - self.done;
            if bytes < left {
                self.done += bytes;
                return;
            }
            bytes -= left;
            self.done = 0;
            self.pieces = &self.pieces[1..];
        }
    }

    /// The next pieces, at most `len` bytes in all.
    fn window(&self, mut len: usize) -> ([Piece; PIECES_MAX], usize) {
        const NONE: Piece = Piece { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut window = [NONE; PIECES_MAX];
        let mut count = 0;
        let mut skip = self.done;
        for piece in self.pieces {
            if len == 0 || count == PIECES_MAX {
                break;
            }
            let take = (piece.iov_len - skip).min(len);
            // An empty piece would end a transfer early.
            if take > 0 {
                window[count] = Piece { iov_base: piece.iov_base.cast::<u8>().wrapping_add(skip).cast(), iov_len: take };
                count += 1;
                len -= take;
            }
            skip = 0;
        }
        (window, count)
    }

    fn check(&self, len: usize) -> io::Result<()> {
        if len > self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more bytes than the buffers hold"));
        }
        Ok(())
    }

    fn each(&mut self, mut len: usize, mut with: impl FnMut(*mut u8, usize)) {
        while len > 0 {
            let (window, count) = self.window(len);
            let mut moved = 0;
            for piece in &window[..count] {
                with(piece.iov_base.cast(), piece.iov_len);
                moved += piece.iov_len;
            }
            self.advance(moved);
            len -= moved;
        }
    }
}

/// Scattered memory to be filled, from front to back.
pub struct Output<'a> {
    cursor: Cursor<'a>,
    _memory: PhantomData<&'a mut [u8]>,
}

/// Scattered memory to take bytes from, from front to back.
pub struct Input<'a> {
    cursor: Cursor<'a>,
    _memory: PhantomData<&'a [u8]>,
}

impl Pieces {
    /// No pieces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, address: *mut u8, len: usize) {
        self.0.push(Piece { iov_base: address.cast(), iov_len: len });
    }

    fn cursor(&self) -> Cursor<'_> {
        Cursor { pieces: &self.0, done: 0, len: self.0.iter().map(|piece| piece.iov_len).sum() }
    }
}

// What is gathered here lies in guest RAM, which stays mapped and is borrowed for as long as an `Input` or an `Output` of it lives; and no Rust reference ever
// points into guest RAM. That is what these two have to vouch for.
impl GuestRam {
    /// Buffers, as guest addresses and lengths, as memory to take bytes from. They are brought in, and checked to lie in guest RAM.
    pub fn input<'a>(&'a self, buffers: &[(u64, u32)], room: &'a mut Pieces) -> GuestMemoryResult<Input<'a>> {
        self.gather(buffers, room)?;
        Ok(Input { cursor: room.cursor(), _memory: PhantomData })
    }

    /// Lets `with` fill buffers, as guest addresses and lengths, and notes all their pages as written: even one that failed may have filled some of them.
    /// The buffers are brought in before, and checked to lie in guest RAM.
    pub fn fill<R>(&self, buffers: &[(u64, u32)], room: &mut Pieces, with: impl FnOnce(&mut Output<'_>) -> R) -> GuestMemoryResult<R> {
        self.fill_and_mark(buffers, room, with, true)
    }

    /// The same, but the [`WriteWatch`](crate::WriteWatch) is not told: who calls this tells it what these pages hold.
    pub fn fill_known<R>(
        &self,
        buffers: &[(u64, u32)],
        room: &mut Pieces,
        with: impl FnOnce(&mut Output<'_>) -> R,
    ) -> GuestMemoryResult<R> {
        self.fill_and_mark(buffers, room, with, false)
    }

    fn fill_and_mark<R>(
        &self,
        buffers: &[(u64, u32)],
        room: &mut Pieces,
        with: impl FnOnce(&mut Output<'_>) -> R,
        tell: bool,
    ) -> GuestMemoryResult<R> {
        self.gather(buffers, room)?;
        let result = with(&mut Output { cursor: room.cursor(), _memory: PhantomData });
        buffers.iter().for_each(|(at, len)| self.mark(*at, *len as usize, tell));
        Ok(result)
    }

    fn gather(&self, buffers: &[(u64, u32)], room: &mut Pieces) -> GuestMemoryResult<()> {
        room.0.clear();
        buffers.iter().try_for_each(|(at, len)| self.pieces(*at, *len as usize, room))
    }
}

/// Plain memory as memory to fill.
pub fn with_output<R>(memory: &mut [u8], with: impl FnOnce(&mut Output<'_>) -> R) -> R {
    let piece = [Piece { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }];
    let cursor = Cursor { pieces: &piece, done: 0, len: memory.len() };
    with(&mut Output { cursor, _memory: PhantomData })
}

/// Plain memory as memory to take bytes from.
pub fn with_input<R>(memory: &[u8], with: impl FnOnce(&mut Input<'_>) -> R) -> R {
    // The memory is only read from: an `Input` has no way to write.
    let piece = [Piece { iov_base: memory.as_ptr().cast_mut().cast(), iov_len: memory.len() }];
    let cursor = Cursor { pieces: &piece, done: 0, len: memory.len() };
    with(&mut Input { cursor, _memory: PhantomData })
}

impl Output<'_> {
    /// Bytes still to fill.
    pub fn left(&self) -> usize {
        self.cursor.len
    }

    /// Fills the next `len` bytes from a file. What lies behind the end of the file is zero.
    pub fn read_at(&mut self, file: &File, mut offset: u64, mut len: usize) -> io::Result<()> {
        self.cursor.check(len)?;
        while len > 0 {
            let (window, count) = self.cursor.window(len);
            // SAFETY: the maker of this output vouches that the pieces are mapped and writable and that nothing borrows them.
            let got = unsafe { libc::preadv(file.as_raw_fd(), window.as_ptr(), count as i32, offset as libc::off_t) };
            match got {
                0 => return self.zero(len),
                1.. => {
                    self.cursor.advance(got as usize);
                    offset += got as u64;
                    len -= got as usize;
                }
                _ => interrupted(io::Error::last_os_error())?,
            }
        }
        Ok(())
    }

    /// Fills the next `len` bytes with zeros.
    pub fn zero(&mut self, len: usize) -> io::Result<()> {
        self.cursor.check(len)?;
        // SAFETY: the maker of this output vouches that the pieces are mapped and writable and that nothing borrows them.
        self.cursor.each(len, |address, len| unsafe { address.write_bytes(0, len) });
        Ok(())
    }

    /// Fills the next bytes with these.
    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.cursor.check(bytes.len())?;
        self.cursor.each(bytes.len(), |address, len| {
            // SAFETY: the maker of this output vouches for the pieces; `each` hands out at most `bytes.len()` bytes in all, and our own
            // memory does not overlap a guest's.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, len) };
            bytes = &bytes[len..];
        });
        Ok(())
    }
}

impl Input<'_> {
    /// Bytes not yet taken.
    pub fn left(&self) -> usize {
        self.cursor.len
    }

    /// Writes the next `len` bytes to a file.
    pub fn write_at(&mut self, file: &File, mut offset: u64, mut len: usize) -> io::Result<()> {
        self.cursor.check(len)?;
        while len > 0 {
            let (window, count) = self.cursor.window(len);
            // SAFETY: the maker of this input vouches that the pieces are mapped and readable.
            let put = unsafe { libc::pwritev(file.as_raw_fd(), window.as_ptr(), count as i32, offset as libc::off_t) };
            match put {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                1.. => {
                    self.cursor.advance(put as usize);
                    offset += put as u64;
                    len -= put as usize;
                }
                _ => interrupted(io::Error::last_os_error())?,
            }
        }
        Ok(())
    }

    /// Takes the next bytes.
    pub fn take(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        self.cursor.check(bytes.len())?;
        let len = bytes.len();
        self.cursor.each(len, |address, len| {
            let (now, rest) = std::mem::take(&mut bytes).split_at_mut(len);
            // SAFETY: the maker of this input vouches for the pieces, and our own memory does not overlap a guest's.
            unsafe { std::ptr::copy_nonoverlapping(address, now.as_mut_ptr(), len) };
            bytes = rest;
        });
        Ok(())
    }
}

fn interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
