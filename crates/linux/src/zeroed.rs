//! Tables that a signal handler may use: made before, and never moved.

// Only traps have any.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use std::{cell::UnsafeCell, sync::atomic::AtomicU64};

/// Numbers that begin as 0 and take memory when they are touched.
pub(crate) struct Zeroed(UnsafeCell<Vec<u64>>);

// SAFETY: what the vector holds is only touched as atomics, and the vector itself never changes.
unsafe impl Send for Zeroed {}
// SAFETY: as above.
unsafe impl Sync for Zeroed {}

impl Zeroed {
    pub fn new(count: u64) -> Self {
        Self(UnsafeCell::new(vec![0; count as usize]))
    }

    pub fn len(&self) -> usize {
        // SAFETY: the vector itself never changes, only what it holds, which is only touched as atomics.
        unsafe { (&*self.0.get()).len() }
    }

    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len());
        // SAFETY: within the vector, which is never touched otherwise than through these atomics.
        unsafe { AtomicU64::from_ptr((&mut *self.0.get()).as_mut_ptr().add(index)) }
    }
}
