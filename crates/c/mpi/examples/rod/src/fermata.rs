//! The two calls of `fermata_mpi.h`, for a program in Rust to take along.

use mpi::traits::Equivalence;
use std::{
    ffi::c_void,
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};

unsafe extern "C" {
    fn fermata_mpi_take(bytes: usize) -> *mut c_void;
    fn fermata_mpi_checkpoint();
}

/// Pieces that were taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Memory that checkpoints have: numbers of MPI's.
pub struct Piece<T> {
    start: *mut T,
    count: usize,
}

impl<T: Equivalence + Copy + Default> Piece<T> {
    /// Between `mpi::initialize` and the first checkpoint, and always the same ones in the same order.
    pub fn take(count: usize) -> Self {
        // SAFETY: it may be called at any time, and ends the program where it does not belong.
        let start: *mut T = unsafe { fermata_mpi_take(count * size_of::<T>()) }.cast();
        // SAFETY: so much memory lies there, aligned to 64 bytes, which is nobody else's until the process ends.
        (0..count).for_each(|at| unsafe { start.add(at).write(T::default()) });
        TAKEN.fetch_add(1, Ordering::Relaxed);
        Self { start, count }
    }

    /// What is in it.
    pub fn get(&mut self) -> &mut [T] {
        // SAFETY: `take` has put so many numbers there, and what brings them back borrows this piece, as this slice does.
        unsafe { slice::from_raw_parts_mut(self.start, self.count) }
    }
}

/// Any piece.
pub trait Taken {}

impl<T> Taken for Piece<T> {}

/// Here the rank can be captured, and the memory may become what a checkpoint has. It needs all pieces, so that nobody looks at one meanwhile.
pub fn checkpoint<const N: usize>(_pieces: [&mut dyn Taken; N]) {
    assert!(N == TAKEN.load(Ordering::Relaxed), "a checkpoint needs all pieces");
    // SAFETY: it writes to no memory but that of the pieces, which nothing else refers to.
    unsafe { fermata_mpi_checkpoint() };
}
