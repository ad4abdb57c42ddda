//! A bounded cache in two generations: cheap to keep, and what is used stays.

use std::{borrow::Borrow, collections::HashMap, hash::Hash, sync::Mutex};

/// Keeps at least the `half` and at most twice `half` entries used last.
pub(crate) struct Cache<K, V> {
    half: usize,
    generations: Mutex<Generations<K, V>>,
}

struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    /// At most `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        let generations = Generations { young: HashMap::new(), old: HashMap::new() };
        Self { half: (capacity / 2).max(1), generations: Mutex::new(generations) }
    }

    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let mut generations = self.lock();
        if let Some(value) = generations.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = generations.old.remove_entry(key)?;
        self.add(&mut generations, key, value.clone());
        Some(value)
    }

    pub fn insert(&self, key: K, value: V) {
        self.add(&mut self.lock(), key, value);
    }

    /// Drops everything.
    pub fn clear(&self) {
        let mut generations = self.lock();
        generations.young.clear();
        generations.old.clear();
    }

    fn add(&self, generations: &mut Generations<K, V>, key: K, value: V) {
        if generations.young.len() >= self.half {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(key, value);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Generations<K, V>> {
        // A panic elsewhere cannot leave a cache half changed in a way that matters: values are checked before they get in.
        self.generations.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let cache = Cache::new(8);
        for i in 0..1000 {
            cache.insert(i, i);
            assert_eq!(cache.get(&0), Some(0));
            let generations = cache.lock();
            assert!(generations.young.len() + generations.old.len() <= 8);
        }
        assert_eq!(cache.get(&500), None);
        assert_eq!(cache.get(&999), Some(999));
    }
}
