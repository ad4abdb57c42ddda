//! Several processes with three experiments grow, tag, remove, collect and verify in one store at once, each against a model of what must be there of its own. The
//! children are this test binary again, at [`child`]. Some seconds; a minute and more with FERMATA_LONG.

use crate::common::*;
use fermata_store::{BranchName, CollectOptions, Error, Record, Removal, Store, VerifyOptions};
use fermata_types::*;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
};

const STORE: &str = "FERMATA_TEST_STORE";
const SEED: &str = "FERMATA_TEST_SEED";
const STEPS: &str = "FERMATA_TEST_STEPS";

/// Numbers as a seed gives them.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What one process knows must be there: its checkpoints with all their pages.
struct Model {
    experiment: String,
    branch: String,
    random: Random,
    checkpoints: BTreeMap<CheckpointId, BTreeMap<PageNumber, u64>>,
    heads: Vec<CheckpointId>,
    tags: BTreeMap<String, CheckpointId>,
    steps: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            experiment: experiment(seed),
            branch: format!("b{seed}"),
            random: Random(seed),
            checkpoints: BTreeMap::new(),
            heads: Vec::new(),
            tags: BTreeMap::new(),
            steps: 0,
        }
    }

    fn step(&mut self, store: &Store) {
        match self.random.below(14) {
            0 if !self.heads.is_empty() => self.remove(store),
            1 => collect(store, self.random.below(2) == 0),
            2 => self.read(store),
            3 => assert_eq!(store.verify(&VerifyOptions { quick: self.random.below(2) == 0 }, &mut |_, _| {}).unwrap().damage, []),
            4 if !self.heads.is_empty() => self.tag(store),
            _ => self.grow(store),
        }
    }

    /// Pages that all processes write, and so find and lose to each other, and some of its own.
    fn grow(&mut self, store: &Store) {
        let parent = self.heads.last().copied();
        let mut pages = parent.map_or_else(BTreeMap::new, |parent| self.checkpoints[&parent].clone());
        let root = parent.map_or(Root::empty(2000), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
        let own = 1_000_000 * (1 + self.branch.as_bytes()[1] as u64);
        let changes: BTreeMap<PageNumber, u64> = (0..20)
            .map(|i| {
                (self.random.below(2000) as PageNumber, if i % 2 == 0 { self.random.below(60) } else { own + self.random.below(1000) })
            })
            .collect();
        self.steps += 1;
        let mut writer = store.writer().unwrap();
        let ram = put(&mut writer, &root, &changes.iter().map(|(page, seed)| (*page, *seed)).collect::<Vec<_>>());
        let record = Record { experiment: self.experiment.clone(), ..record_of(parent, &self.branch, &self.steps.to_string(), ram) };
        let id = writer.commit(&record).unwrap();
        pages.extend(changes);
        self.checkpoints.insert(id, pages);
        self.heads.push(id);
    }

    /// Tags one of its own checkpoints.
    fn tag(&mut self, store: &Store) {
        let id = self.heads[self.random.below(self.heads.len() as u64) as usize];
        let tag = format!("{}-{}", self.branch, self.steps);
        let given = self.tags.get(&tag);
        match store.tag(&self.experiment, &tag, &id) {
            Ok(()) => assert!(given.is_none_or(|before| *before == id)),
            Err(error) => assert!(matches!(error, Error::Refused { .. }) && given.is_some_and(|before| *before != id), "{error}"),
        }
        self.tags.entry(tag).or_insert(id);
    }

    /// Removes one of its own checkpoints with its tags: the head among them, and then the branch goes back.
    fn remove(&mut self, store: &Store) {
        let at = self.random.below(self.heads.len() as u64) as usize;
        let id = self.heads.remove(at);
        store.remove(&Removal { checkpoints: vec![id], force: true, ..Removal::default() }).unwrap();
        self.checkpoints.remove(&id);
        self.tags.retain(|_, tagged| *tagged != id);
    }

    fn read(&mut self, store: &Store) {
        assert_eq!(store.branch(&self.experiment, &self.branch).unwrap(), self.heads.last().copied());
        let mut tags = store.tags(&self.experiment).unwrap();
        tags.retain(|tag, _| tag.split_once('-').is_some_and(|(branch, _)| branch == self.branch));
        assert_eq!(tags, self.tags);
        for (id, pages) in &self.checkpoints {
            let root = store.record(id).unwrap().parts[0].tables["ram"];
            let mut found = BTreeMap::new();
            let each = &mut |number, name| {
                found.insert(number, name);
                Ok(())
            };
            store.for_each_page(&root, each).unwrap();
            assert_eq!(found.len(), pages.len());
            // Some of them: the store is busy.
            for (number, name) in found.iter().skip(self.random.below(5) as usize).step_by(5) {
                assert_eq!(read(store, name).unwrap(), page(pages[number]), "page {number} of {id}");
            }
        }
    }
}

/// Two or one in each of three experiments.
fn experiment(seed: u64) -> String {
    format!("lab{}", seed % 3)
}

fn collect(store: &Store, wait: bool) {
    let options = CollectOptions { rewrite_below: 70, wait, ..CollectOptions::default() };
    match store.collect(&options, &mut |_, _| {}) {
        Ok(told) => assert!(told.damaged.is_empty(), "{told:?}"),
        // Somebody else collects.
        Err(Error::Refused { .. }) if !wait => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let mut model = Model::new(number(SEED));
    let mut store = open(Path::new(&path)).unwrap();
    for step in 0..number(STEPS) {
        model.step(&store);
        if step % 40 == 39 {
            drop(store);
            store = open(Path::new(&path)).unwrap();
        }
    }
    model.read(&store);
    println!("\n={}", model.checkpoints.len());
}

fn spawn(store: &Path, seed: u64, steps: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "model::child", "--nocapture"])
        .env(STORE, store)
        .env(SEED, seed.to_string())
        .env(STEPS, steps.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_remove_and_collect_lose_nothing_of_each_other() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let steps = if std::env::var_os("FERMATA_LONG").is_some() { 300 } else { 40 };
    let children = [1, 2, 3].map(|seed| spawn(&path, seed, steps));
    // And two threads of one process beside them.
    let store = open(&path).unwrap();
    let run = |seed| {
        let mut model = Model::new(seed);
        (0..steps / 2).for_each(|_| model.step(&store));
        model.read(&store);
        model.checkpoints.len()
    };
    let mut expected = std::thread::scope(|scope| {
        let threads = [4, 5].map(|seed| scope.spawn(move || run(seed)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        expected += said.lines().find_map(|line| line.strip_prefix('=')?.parse::<usize>().ok()).unwrap();
    }
    let whole = |count: usize| {
        assert_eq!(store.records().unwrap().len(), count);
        let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    };
    whole(expected);
    collect(&store, true);
    whole(expected);
    // With an experiment goes nothing of another, and with the last branch the last pack.
    let of = |name: &str| store.records().unwrap().iter().filter(|(_, record)| record.experiment == name).count();
    let (first, others) = (experiment(0), [experiment(1), experiment(2)]);
    let left = of(&others[0]) + of(&others[1]);
    assert!(of(&first) > 0 && left > 0);
    store.remove(&Removal { experiments: vec![first], force: true, ..Removal::default() }).unwrap();
    collect(&store, true);
    whole(left);
    let branches = |experiment: String| {
        let names = store.branches(&experiment).unwrap().into_keys();
        names.map(move |branch| BranchName { experiment: experiment.clone(), branch }).collect::<Vec<_>>()
    };
    let branches = others.into_iter().flat_map(branches).collect();
    store.remove(&Removal { branches, force: true, ..Removal::default() }).unwrap();
    collect(&store, true);
    whole(0);
    assert!(packs(&path).is_empty() && files(&path.join("tmp")).is_empty());
}
