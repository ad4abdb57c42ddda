//! The same work for each of several, side by side.

use std::{
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Hands at work for each processor: most of the work here waits for other processes.
const HANDS_PER_PROCESSOR: usize = 2;

/// Does the work for each of the items, several at a time, and returns what came out in their order. A single item is done in place.
pub(crate) fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let hands = thread::available_parallelism().map_or(1, NonZero::get) * HANDS_PER_PROCESSOR;
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..hands.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, items.get(index)?)))
                {
                    let result = work(item);
                    done.lock().expect("nobody panics with the lock").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics with the lock");
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_out_is_in_order() {
        for count in [0, 1, 2, 100] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(side_by_side(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        }
    }
}
