//! Scattered memory as one run of bytes, read from or written to files without a copy in between.
//!
//! The memory may be a guest's: another process writes to it while we do. So it is never borrowed as a Rust slice; bytes are moved by system calls and
//! by raw copies, for which torn values are only the guest's own concern. This is the one module of the room with `unsafe` code for guest memory.

#![allow(unsafe_code, reason = "guest memory is no Rust memory")]

use std::{fs::File, io, marker::PhantomData, os::fd::AsRawFd};

/// Pieces handed to one system call. The kernel takes 1024; 64 keeps the array on the stack small.
const PIECES_MAX: usize = 64;

/// A piece of memory: address and length.
pub type Piece = libc::iovec;

/// Reusable room for pieces, so that a request needs no allocation.
#[derive(Default)]
pub struct Pieces(Vec<Piece>);

// SAFETY: the addresses are only used through a `Cursor`, whose maker vouches for them; the list itself is emptied before it is kept.
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

/// Memory that a read of the disk fills, from front to back.
pub struct Output<'a> {
    cursor: Cursor<'a>,
    _memory: PhantomData<&'a mut [u8]>,
}

/// Memory that a write to the disk takes its bytes from, from front to back.
pub struct Input<'a> {
    cursor: Cursor<'a>,
    _memory: PhantomData<&'a [u8]>,
}

impl Pieces {
    /// No pieces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all pieces, keeps the room.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a piece.
    pub fn push(&mut self, address: *mut u8, len: usize) {
        self.0.push(Piece { iov_base: address.cast(), iov_len: len });
    }

    /// Replaces all pieces by one, the given memory.
    pub fn set(&mut self, memory: &mut [u8]) {
        self.clear();
        self.push(memory.as_mut_ptr(), memory.len());
    }

    /// Bytes in all pieces.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|piece| piece.iov_len).sum()
    }

    fn cursor(&self) -> Cursor<'_> {
        Cursor { pieces: &self.0, done: 0, len: self.bytes() }
    }

    /// The pieces as memory to fill.
    ///
    /// # Safety
    /// Every piece is mapped and writable for as long as the result lives, and no Rust reference points into it.
    pub unsafe fn output(&self) -> Output<'_> {
        Output { cursor: self.cursor(), _memory: PhantomData }
    }

    /// The pieces as memory to take bytes from.
    ///
    /// # Safety
    /// Every piece is mapped and readable for as long as the result lives, and no exclusive Rust reference points into it.
    pub unsafe fn input(&self) -> Input<'_> {
        Input { cursor: self.cursor(), _memory: PhantomData }
    }
}

/// Reads a range of a disk into plain memory.
pub(crate) fn with_output<R>(memory: &mut [u8], with: impl FnOnce(&mut Output<'_>) -> R) -> R {
    let piece = [Piece { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }];
    let cursor = Cursor { pieces: &piece, done: 0, len: memory.len() };
    with(&mut Output { cursor, _memory: PhantomData })
}

/// Writes plain memory to a range of a disk.
pub(crate) fn with_input<R>(memory: &[u8], with: impl FnOnce(&mut Input<'_>) -> R) -> R {
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
