//! What the fuzz targets of all back ends share: an input as a short program, guest RAM, and a QEMU that says anything,
//! or all right.
//!
//! Bytes become what the guest, or QEMU, does next. So a fuzzer that flips a bit changes one step, and most steps mean something.

mod connection;
mod memory;
mod session;

pub use connection::Connection;
pub use memory::{Memory, descriptor};
pub use session::Session;

/// Guest RAM: so much at address 0, and half of it at [`HIGH`].
pub const LOW: u64 = 64 << 10;
/// Where the second stretch of guest RAM begins.
pub const HIGH: u64 = 4 << 30;
/// Where QEMU would have it.
pub const QEMU: u64 = 0x7000_0000_0000;

/// The bytes that are left of an input. Behind their end there are zeros.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, at most so many.
    pub fn some(&mut self, count: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// The next bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let some = self.some(N);
        array[..some.len()].copy_from_slice(some);
        array
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// The next two bytes as a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A guest address: mostly one in RAM, often at an edge of it.
    pub fn address(&mut self) -> u64 {
        match self.byte() % 8 {
            0..=3 => self.u16().into(),
            4 => HIGH + u64::from(self.u16()) % (LOW / 2),
            5 => LOW - u64::from(self.byte()),
            6 => HIGH + LOW / 2 - u64::from(self.byte()),
            _ => self.u64(),
        }
    }
}
