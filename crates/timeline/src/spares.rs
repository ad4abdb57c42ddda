//! A spare body kept warm, so that going back does not wait for a process to start; and the burial of bodies that were left.

use fermata_experiment::{Blueprint, Body, Host, spare_like};
use std::{
    sync::{Arc, Condvar, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

/// Longest wait for a spare that is being made.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for a machine to stop that was left. It was told to stop once before.
const LEFT_PATIENCE: Duration = Duration::from_millis(50);

enum Errand {
    /// Have a spare for a body like this.
    Make(Blueprint),
    /// Drop this, which waits for a process to die.
    Bury(Arc<Body>),
}

#[derive(Default)]
struct Shelf {
    ready: Option<Body>,
    making: u32,
}

/// At most one spare body, made in the background.
pub(crate) struct Spares {
    shelf: Arc<(Mutex<Shelf>, Condvar)>,
    errands: Mutex<Option<mpsc::Sender<Errand>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Spares {
    pub fn new(host: Arc<Host>) -> Arc<Self> {
        let shelf: Arc<(Mutex<Shelf>, Condvar)> = Arc::default();
        let (errands, orders) = mpsc::channel();
        let worker = std::thread::spawn({
            let shelf = shelf.clone();
            move || {
                for order in orders {
                    match order {
                        Errand::Make(like) => make(&host, &shelf, &like),
                        Errand::Bury(body) => body.kill(),
                    }
                }
            }
        });
        Arc::new(Self { shelf, errands: Mutex::new(Some(errands)), worker: Mutex::new(Some(worker)) })
    }

    /// Have a spare for bodies like this one, soon.
    pub fn want_like(&self, body: &Body) {
        match body.blueprint() {
            Ok(blueprint) => {
                self.shelf.0.lock().expect("nobody panics with the lock").making += 1;
                if !self.send(Errand::Make(blueprint)) {
                    self.shelf.0.lock().expect("nobody panics with the lock").making -= 1;
                }
            }
            Err(error) => tracing::warn!("no spare process: {error}"),
        }
    }

    /// Get rid of a body, without waiting.
    pub fn bury(&self, body: Arc<Body>) {
        // It may have work before it that takes long, and a guest that was left must not use the processor meanwhile.
        let _ = body.pause_within(LEFT_PATIENCE);
        self.send(Errand::Bury(body));
    }

    /// Whether there is still somebody to do it.
    fn send(&self, errand: Errand) -> bool {
        self.errands.lock().expect("nobody panics with the lock").as_ref().is_some_and(|errands| errands.send(errand).is_ok())
    }

    pub fn ready(&self) -> bool {
        self.shelf.0.lock().expect("nobody panics with the lock").ready.is_some()
    }

    /// The spare, if it fits; waits for one that is being made.
    pub fn take(&self, fits: impl FnOnce(&Body) -> bool) -> Option<Body> {
        let shelf = self.shelf.0.lock().expect("nobody panics with the lock");
        let (mut shelf, _) = self
            .shelf
            .1
            .wait_timeout_while(shelf, PATIENCE, |shelf| shelf.ready.is_none() && shelf.making > 0)
            .expect("nobody panics with the lock");
        let ready = shelf.ready.take();
        drop(shelf);
        // One that does not fit is dropped: it would keep the next from being made.
        ready.filter(fits)
    }

    /// Drops the spare and makes no more.
    pub fn end(&self) {
        self.errands.lock().expect("nobody panics with the lock").take();
        if let Some(worker) = self.worker.lock().expect("nobody panics with the lock").take() {
            let _ = worker.join();
        }
        self.shelf.0.lock().expect("nobody panics with the lock").ready.take();
    }
}

fn make(host: &Host, shelf: &(Mutex<Shelf>, Condvar), like: &Blueprint) {
    let wanted = shelf.0.lock().expect("nobody panics with the lock").ready.is_none();
    let made = wanted.then(|| spare_like(host, like));
    let mut shelf_now = shelf.0.lock().expect("nobody panics with the lock");
    shelf_now.making -= 1;
    match made {
        Some(Ok(body)) => shelf_now.ready = Some(body),
        // Without a spare a journey starts a process of its own; that is slower and no more.
        Some(Err(error)) => tracing::warn!("no spare process: {error}"),
        None => {}
    }
    shelf.1.notify_all();
}
