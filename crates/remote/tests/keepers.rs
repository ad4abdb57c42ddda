//! Two keepers grow their experiments in one store and travel in them, a policy removes, a push copies to another place, and garbage is collected, all at once, against
//! a model of what must exist. Who pushes and who collects are processes of their own, this test binary again at [`child`], and are killed at any time. Some seconds; an
//! hour with FERMATA_LONG. FERMATA_SEED repeats a run as far as the order of threads lets it.

use fermata_linux::{
    clock::{Stopwatch, wall_ns},
    random,
};
use fermata_remote::Address;
use fermata_store::{
    Candidate, CollectOptions, Cost, Error, Hold, Keep, Record, Removal, Store, VerifyOptions,
    remote::{PullOptions, PushOptions, Remote},
};
use fermata_types::{CheckpointId, PAGE_SIZE, PageBuf, PageName, PageNumber, PartKind, PartState, Root};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

const PLACE: &str = "FERMATA_TEST_PLACE";
const ROLE: &str = "FERMATA_TEST_ROLE";
const SEED: &str = "FERMATA_TEST_SEED";
const EXPERIMENTS: [&str; 2] = ["left", "right"];
/// Pages of a machine.
const PAGES: u64 = 1500;
/// Steps of each keeper, in the short form.
const STEPS: u64 = 250;
const LONG: Duration = Duration::from_secs(3600);
/// A child lives this long at most before it is killed, ms.
const LIFE_MAX: u64 = 400;

/// Numbers as a seed gives them.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Pages of a checkpoint, and the seeds of what they hold.
type Content = Arc<BTreeMap<PageNumber, u64>>;

#[derive(Default)]
struct World {
    /// What must exist: what was committed and not removed.
    live: BTreeMap<CheckpointId, (&'static str, Content)>,
    /// All that ever existed: what was pushed stays where it was pushed to.
    ever: BTreeMap<CheckpointId, Content>,
    tagged: BTreeSet<CheckpointId>,
    /// Where the keepers stand.
    stands: BTreeMap<&'static str, CheckpointId>,
    pushed: BTreeSet<CheckpointId>,
    removed: u64,
}

struct Test {
    place: PathBuf,
    store: Store,
    world: Mutex<World>,
    watch: Stopwatch,
    over: AtomicBool,
    killed: AtomicU64,
}

fn page(seed: u64) -> PageBuf {
    let mut page = [0; PAGE_SIZE];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in page.chunks_exact_mut(8).step_by(3) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    page
}

fn record(parent: Option<CheckpointId>, experiment: &str, branch: &str, ram: Root) -> Record {
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: BTreeMap::new(),
        details: serde_json::Value::Null,
    };
    Record {
        parent,
        experiment: experiment.into(),
        branch: branch.into(),
        message: None,
        created_ns: wall_ns(),
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// A checkpoint holds what it should. One page in `step` is read.
fn check(store: &Store, id: &CheckpointId, content: &Content, step: usize) {
    let root = store.record(id).unwrap_or_else(|error| panic!("{id}: {error}")).parts[0].tables["ram"];
    let mut found: Vec<(PageNumber, PageName)> = Vec::new();
    let each = &mut |number, name| {
        found.push((number, name));
        Ok(())
    };
    store.for_each_page(&root, each).unwrap_or_else(|error| panic!("{id}: {error}"));
    assert!(found.iter().map(|(number, _)| number).eq(content.keys()), "{id} names other pages");
    for (number, name) in found.iter().step_by(step) {
        let mut bytes = [0; PAGE_SIZE];
        store.read_page(name, &mut bytes).unwrap_or_else(|error| panic!("page {number} of {id}: {error}"));
        assert!(bytes == page(content[number]), "page {number} of {id}");
    }
}

fn is_long() -> bool {
    std::env::var_os("FERMATA_LONG").is_some()
}

impl Test {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn goes_on(&self, steps: u64) -> bool {
        !self.over.load(Ordering::Relaxed) && if is_long() { self.watch.elapsed() < LONG } else { steps < STEPS }
    }

    fn keep(&self, experiment: &'static str, mut random: Random) {
        let mut standing: Option<(Hold, Content)> = None;
        let (mut branch, mut branches, mut steps) = ("main".to_owned(), 1, 0);
        while self.goes_on(steps) {
            steps += 1;
            match random.below(10) {
                0 | 1 => {
                    if let Some((hold, content)) = self.pick(experiment, &mut random) {
                        self.world().stands.insert(experiment, hold.id());
                        branches += 1;
                        branch = format!("b{branches}");
                        standing = Some((hold, content));
                    }
                }
                2 => {
                    if let Some((hold, content)) = self.pick(experiment, &mut random) {
                        check(&self.store, &hold.id(), &content, 7);
                    }
                }
                3 => self.tag(experiment, steps),
                _ => standing = Some(self.grow(experiment, &branch, standing, &mut random)),
            }
        }
    }

    /// Takes a checkpoint. Both experiments write some of the same pages, and the same again, which collections have just taken away or are about to.
    fn grow(&self, experiment: &'static str, branch: &str, standing: Option<(Hold, Content)>, random: &mut Random) -> (Hold, Content) {
        let parent = standing.as_ref().map(|(hold, _)| hold.id());
        // It may be removed by now: who stands on it knows its table all the same.
        let mut content = standing.as_ref().map_or_else(BTreeMap::new, |(_, content)| (**content).clone());
        let mut writer = self.store.writer().unwrap();
        let own = if experiment == EXPERIMENTS[0] { 1_000_000 } else { 2_000_000 };
        for _ in 0..25 {
            let seed = if random.below(2) == 0 { random.below(80) } else { own + random.below(5000) };
            content.insert(random.below(PAGES) as PageNumber, seed);
        }
        let changes: Vec<_> = content.iter().map(|(number, seed)| (*number, Some(writer.put_page(&page(*seed)).unwrap().0))).collect();
        let ram = writer.update_table(&Root::empty(PAGES), &changes).unwrap();
        let content = Arc::new(content);
        // Whoever prunes must not come between the commit and our knowing of it.
        let mut world = self.world();
        let id = writer.commit(&record(parent, experiment, branch, ram)).unwrap();
        world.live.insert(id, (experiment, content.clone()));
        world.ever.insert(id, content.clone());
        world.stands.insert(experiment, id);
        (self.store.hold(&id).unwrap(), content)
    }

    /// One of those that live, held.
    fn pick(&self, experiment: &str, random: &mut Random) -> Option<(Hold, Content)> {
        let world = self.world();
        let own: Vec<_> = world.live.iter().filter(|(_, (of, _))| *of == experiment).collect();
        let (id, (_, content)) = own.get(random.below(own.len().max(1) as u64) as usize)?;
        Some((self.store.hold(id).unwrap(), content.clone()))
    }

    fn tag(&self, experiment: &str, number: u64) {
        let mut world = self.world();
        if let Some(id) = world.stands.get(experiment).copied().filter(|id| world.live.contains_key(id)) {
            self.store.tag(experiment, &format!("t{number}"), &id).unwrap();
            world.tagged.insert(id);
            // So that not all stays for ever.
            if world.tagged.len() > 10 {
                world.tagged.clear();
                for experiment in EXPERIMENTS {
                    self.store.tags(experiment).unwrap().keys().for_each(|tag| self.store.untag(experiment, tag).unwrap());
                }
            }
        }
    }

    /// Removes what a policy does not keep, as a keeper or `fermata prune` does; and now and then the newest of a branch, as `fermata rm`.
    fn prune(&self, mut random: Random) {
        while !self.over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(random.below(60)));
            let experiment = EXPERIMENTS[random.below(2) as usize];
            let mut world = self.world();
            let mut goes = self.not_kept(&world, experiment, &mut random);
            if random.below(4) == 0 {
                let heads = self.store.branches(experiment).unwrap().into_values().filter(|id| !world.tagged.contains(id));
                goes.extend(heads.skip(random.below(3) as usize).take(1));
            }
            if goes.is_empty() {
                continue;
            }
            let removal = Removal { checkpoints: goes.iter().copied().collect(), ..Removal::default() };
            let removed = self.store.remove(&removal).unwrap();
            assert_eq!(removed.checkpoints.len(), goes.len());
            world.removed += goes.len() as u64;
            world.live.retain(|id, _| !goes.contains(id));
        }
    }

    fn not_kept(&self, world: &World, experiment: &str, random: &mut Random) -> BTreeSet<CheckpointId> {
        let keep: Keep = ["last 2", "last 8", "every 1s for 10s, last 3"][random.below(3) as usize].parse().unwrap();
        let heads: BTreeSet<_> = self.store.branches(experiment).unwrap().into_values().collect();
        let of = self.store.records().unwrap().into_iter().filter(|(_, record)| record.experiment == experiment);
        let candidates: Vec<_> = of
            .map(|(id, record)| Candidate {
                id,
                parent: record.parent,
                branch: record.branch,
                created_ns: record.created_ns,
                tagged: world.tagged.contains(&id),
                head: heads.contains(&id),
                run: world.stands.values().any(|stands| *stands == id),
            })
            .collect();
        let verdicts = keep.verdicts(&candidates, wall_ns());
        candidates.iter().zip(verdicts).filter(|(_, why)| why.is_empty()).map(|(candidate, _)| candidate.id).collect()
    }

    /// Has a child do its work, kills it, and again.
    fn drive(&self, role: &str, mut random: Random) {
        while !self.over.load(Ordering::Relaxed) {
            let mut child = spawn(&self.place, role, random.below(1 << 40));
            let output = child.stdout.take().unwrap();
            thread::scope(|scope| {
                // What it says it has done has been done, even if it was killed right behind.
                scope.spawn(move || {
                    for line in BufReader::new(output).lines().map_while(Result::ok) {
                        if let Some(ids) = line.strip_prefix("pushed ") {
                            self.world().pushed.extend(ids.split(' ').map(|id| id.parse::<CheckpointId>().unwrap()));
                        }
                    }
                });
                thread::sleep(Duration::from_millis(random.below(LIFE_MAX)));
                assert_eq!(child.try_wait().unwrap().and_then(|status| status.code()), None, "{role} failed: it says why above");
                child.kill().unwrap();
                child.wait().unwrap();
            });
            self.killed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The store has what must exist and nothing else, whole.
    fn assert_right(&self) {
        let world = self.world();
        let there: BTreeSet<_> = self.store.records().unwrap().into_iter().map(|(id, _)| id).collect();
        assert_eq!(there, world.live.keys().copied().collect());
        world.live.iter().for_each(|(id, (_, content))| check(&self.store, id, content, 1));
        let report = self.store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }
}

fn store_in(place: &Path) -> Store {
    Store::open(&place.join("store")).unwrap()
}

fn remote_in(place: &Path) -> Box<dyn Remote> {
    fermata_remote::open(&Address::Directory(place.join("remote")), None).unwrap()
}

fn spawn(place: &Path, role: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(PLACE, place)
        .env(ROLE, role)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a child does until it is killed.
#[test]
fn child() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let mut random = Random(std::env::var(SEED).unwrap().parse().unwrap());
    let store = store_in(&place);
    let push = std::env::var(ROLE).unwrap() == "push";
    let remote = push.then(|| remote_in(&place));
    loop {
        match &remote {
            Some(remote) => push_some(&store, &**remote, &mut random),
            None => collect_some(&store, &mut random),
        }
    }
}

fn push_some(store: &Store, remote: &dyn Remote, random: &mut Random) {
    let all = store.records().unwrap().into_iter();
    let some: Vec<_> = all.map(|(id, _)| id).filter(|_| random.below(4) == 0).take(12).collect();
    if some.is_empty() {
        return thread::sleep(Duration::from_millis(5));
    }
    match store.push(remote, &some, &PushOptions::default(), &mut |_, _| {}) {
        Ok(pushed) => {
            // Some were removed before they could be held.
            let sent: Vec<_> = some.iter().filter(|id| !pushed.gone.contains(id)).map(ToString::to_string).collect();
            if !sent.is_empty() {
                println!("\npushed {}", sent.join(" "));
            }
        }
        Err(error) => panic!("{error}"),
    }
}

fn collect_some(store: &Store, random: &mut Random) {
    let options = CollectOptions { rewrite_below: [0, 50, 100][random.below(3) as usize], wait: random.below(3) > 0, dry_run: false };
    match store.collect(&options, &mut |_, _| {}) {
        Ok(told) => assert!(told.damaged.is_empty(), "{told:?}"),
        Err(Error::Refused { .. }) if !options.wait => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_must_exist_exists() {
    let given = std::env::var("FERMATA_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from_le_bytes(random::bytes().unwrap()));
    println!("FERMATA_SEED={seed}");
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let test = Test {
        place: place.path().to_owned(),
        store: store_in(place.path()),
        world: Mutex::default(),
        watch: Stopwatch::start(),
        over: AtomicBool::new(false),
        killed: AtomicU64::new(0),
    };
    thread::scope(|scope| {
        let beside = ["push", "collect", "collect"].into_iter().zip(10..);
        for (role, number) in beside {
            let test = &test;
            scope.spawn(move || {
                let _all_end = Ended(test);
                test.drive(role, Random(seed ^ number));
            });
        }
        scope.spawn(|| {
            let _all_end = Ended(&test);
            test.prune(Random(seed ^ 20));
        });
        let keepers = EXPERIMENTS.map(|experiment| {
            let (test, random) = (&test, Random(seed ^ experiment.len() as u64));
            scope.spawn(move || test.keep(experiment, random))
        });
        let ended = keepers.map(|keeper| keeper.join());
        test.over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|keeper| keeper.unwrap());
    });
    test.assert_right();
    let all = CollectOptions { rewrite_below: 100, ..CollectOptions::default() };
    test.store.collect(&all, &mut |_, _| {}).unwrap();
    test.assert_right();
    let world = test.world();
    let killed = test.killed.load(Ordering::Relaxed);
    println!("{} checkpoints, {} removed, {} pushed, {killed} children killed", world.ever.len(), world.removed, world.pushed.len());
    assert!(world.removed > 0 && killed > 3);
    let (remote, copy) = (remote_in(place.path()), Store::open(&place.path().join("copy")).unwrap());
    for experiment in EXPERIMENTS {
        let Ok(there) = copy.remote_checkpoints(&remote, experiment) else { continue };
        copy.pull(&remote, experiment, &there, &PullOptions::default(), &mut |_, _| {}).unwrap();
    }
    world.pushed.iter().for_each(|id| check(&copy, id, &world.ever[id], 1));
    // What was being pushed by one who was killed is there as a whole, or is not there.
    copy.records().unwrap().iter().for_each(|(id, _)| check(&copy, id, &world.ever[id], 1));
}

/// All end when one fails.
struct Ended<'a>(&'a Test);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.over.store(true, Ordering::Relaxed);
        }
    }
}
