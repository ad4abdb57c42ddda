//! A host that dies while it changes remotes: from some change on, nothing of what it does comes there.
//!
//! A place has durably what it has said to have, and what it has removed is gone durably. So a process that is killed and a host that loses its power leave the same there.

use fermata_store::remote::Remote;
use std::{
    cell::RefCell,
    fmt, io,
    sync::{Arc, Mutex},
};

/// How many changes are left to a host.
type Left = Arc<Mutex<u32>>;

thread_local! {
    static LEFT: RefCell<Option<Left>> = const { RefCell::new(None) };
}

/// Does something as a host that dies when it has made, or tried to make, so many changes of remotes. It reaches them from this thread, and uses them from any.
pub fn live<T>(changes: u32, work: impl FnOnce() -> T) -> T {
    LEFT.set(Some(Arc::new(Mutex::new(changes))));
    let done = work();
    LEFT.set(None);
    done
}

/// A place as it is for who reaches it.
pub fn of_this_life(place: Box<dyn Remote>) -> Box<dyn Remote> {
    match LEFT.with_borrow(Option::clone) {
        Some(left) => Box::new(Mortal { place, left }),
        None => place,
    }
}

struct Mortal {
    place: Box<dyn Remote>,
    left: Left,
}

impl Mortal {
    fn change<T>(&self, change: impl FnOnce(&dyn Remote) -> io::Result<T>) -> io::Result<T> {
        // Held meanwhile: nothing comes after the last one.
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("this host is dead"))?;
        change(&*self.place)
    }
}

impl fmt::Display for Mortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.place, f)
    }
}

impl Remote for Mortal {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.place.get(name, most)
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.place.tail(name, most)
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        self.place.range(name, from, length)
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.change(|place| place.put(name, bytes))
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        self.change(|place| place.swap(name, before, bytes))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|place| place.remove(name))
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        self.place.unique()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.place.list(prefix)
    }
}
