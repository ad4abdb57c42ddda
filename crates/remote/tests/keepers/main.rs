//! Two hosts and a remote. On one host two keepers grow their experiments in one store and travel in them, a policy removes, garbage is collected, and checkpoints are
//! pushed; the other one pulls, removes, collects and pushes back; and what is on the remote is pruned. All at once, each a process of its own, this test binary again
//! at [`child`], killed at any time and begun again. Each writes down what it promises, and from that a model says what must exist. Some seconds; an hour with
//! FERMATA_LONG. FERMATA_SEED repeats a run as far as the kernel's scheduling lets it.

mod model;
mod roles;

use fermata_linux::{clock::Stopwatch, random};
use fermata_remote::Address;
use fermata_store::{Store, remote::Remote};
use model::Model;
use std::{
    os::unix::process::parent_id,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

const PLACE: &str = "FERMATA_TEST_PLACE";
const ROLE: &str = "FERMATA_TEST_ROLE";
const HOST: &str = "FERMATA_TEST_HOST";
const LIFE: &str = "FERMATA_TEST_LIFE";
const SEED: &str = "FERMATA_TEST_SEED";
/// Is there when somebody failed.
const FAILED: &str = "failed";
const EXPERIMENTS: [&str; 2] = ["left", "right"];
/// The host of the keepers, and the one that pulls.
const HOSTS: [&str; 2] = ["near", "far"];
/// Who there is: what each does, and on which host.
const ROLES: [(&str, &str); 11] = [
    ("left", "near"),
    ("right", "near"),
    ("remove", "near"),
    ("collect", "near"),
    ("collect", "near"),
    ("push", "near"),
    ("pull", "far"),
    ("remove", "far"),
    ("collect", "far"),
    ("push", "far"),
    ("prune", "far"),
];
const LONG: Duration = Duration::from_secs(3600);
/// Between two looks at what exists: nobody does anything then.
const EPOCH: Duration = Duration::from_secs(3);
const EPOCH_LONG: Duration = Duration::from_secs(20);
/// Epochs at least, and at most until everything has happened, in the short form.
const EPOCHS: u32 = 2;
const EPOCHS_MAX: u32 = 40;
/// A child lives this long at most before it is killed, ms; and one of ten much longer.
const LIFE_MAX: u64 = 700;
const LIFE_LONG: u64 = 5000;

/// Numbers as a seed gives them.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn is_long() -> bool {
    std::env::var_os("FERMATA_LONG").is_some()
}

fn store_of(place: &Path, host: &str) -> Store {
    Store::open(&place.join(host)).unwrap()
}

fn remote_in(place: &Path) -> Box<dyn Remote> {
    fermata_remote::open(&Address::Directory(place.join("remote")), None).unwrap()
}

/// Where the promises of all who lived lie.
fn promises(place: &Path) -> PathBuf {
    place.join("promises")
}

fn spawn(place: &Path, (role, host): (&str, &str), life: u64, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(PLACE, place)
        .env(ROLE, role)
        .env(HOST, host)
        .env(LIFE, life.to_string())
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// What a child does until it is killed.
#[test]
fn child() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let [role, host, life, seed] = [ROLE, HOST, LIFE, SEED].map(|name| std::env::var(name).unwrap());
    let mut actor = roles::Actor::new(&place, &role, &host, life.parse().unwrap(), Random(seed.parse().unwrap()));
    // Whoever dies by itself is not taken for one that was killed just then.
    let (told, failed) = (std::panic::take_hook(), place.join(FAILED));
    std::panic::set_hook(Box::new(move |why| {
        // Before it tells why, which takes a while.
        std::fs::write(&failed, "").unwrap();
        told(why);
    }));
    let parent = parent_id();
    // Nobody kills one whose parent was killed.
    while parent_id() == parent {
        actor.act();
    }
}

/// Lets all roles live and die for a while.
struct Epoch<'a> {
    place: &'a Path,
    over: AtomicBool,
    lives: &'a AtomicU64,
}

impl Epoch<'_> {
    /// Has a child do its work, kills it, and again.
    fn drive(&self, role: (&str, &str), mut random: Random) {
        while !self.over.load(Ordering::Relaxed) {
            let mut child = spawn(self.place, role, self.lives.fetch_add(1, Ordering::Relaxed), random.below(1 << 40));
            let life = if random.below(10) == 0 { LIFE_LONG } else { LIFE_MAX };
            let (watch, life) = (Stopwatch::start(), Duration::from_millis(random.below(life)));
            while watch.elapsed() < life && !self.over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            let ended = child.try_wait().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(ended.map(|status| status.code()), None, "{role:?} failed: it says why above");
        }
    }
}

/// All end when one fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn live(place: &Path, lives: &AtomicU64, seed: u64, time: Duration) {
    let epoch = Epoch { place, over: AtomicBool::new(false), lives };
    thread::scope(|scope| {
        for (role, number) in ROLES.into_iter().zip(1..) {
            let epoch = &epoch;
            scope.spawn(move || {
                let _all_end = Ended(&epoch.over);
                epoch.drive(role, Random(seed ^ number));
            });
        }
        let watch = Stopwatch::start();
        while watch.elapsed() < time && !epoch.over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        epoch.over.store(true, Ordering::Relaxed);
    });
    assert!(!place.join(FAILED).exists(), "somebody failed: it says why above");
}

#[test]
fn what_must_exist_exists() {
    let given = std::env::var("FERMATA_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = Random(given.unwrap_or_else(|| u64::from_le_bytes(random::bytes().unwrap())));
    println!("FERMATA_SEED={}", random.0);
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let place = directory.path();
    std::fs::create_dir(promises(place)).unwrap();
    // Not while others open them for the first time: where there is nothing yet each would make it.
    HOSTS.iter().for_each(|host| drop(store_of(place, host)));
    let (watch, lives, mut model) = (Stopwatch::start(), AtomicU64::new(0), Model::default());
    for epoch in 1.. {
        live(place, &lives, random.below(1 << 40), if is_long() { EPOCH_LONG } else { EPOCH });
        model.learn(place);
        model.check(place, random.below(4) == 0);
        println!("{epoch} epochs, {:.0} s, {} lives: {}", watch.elapsed().as_secs_f64(), lives.load(Ordering::Relaxed), model.told());
        let is_over = if is_long() { watch.elapsed() >= LONG } else { epoch >= EPOCHS && model.has_seen_all() || epoch == EPOCHS_MAX };
        if is_over {
            break;
        }
    }
    assert!(model.has_seen_all(), "{}", model.told());
    model.check(place, true);
}
