//! What each process does, and what it promises: a line of its own file for each thing, before what takes something away and behind what gives something.

use crate::{EXPERIMENTS, Random, promises, remote_in, store_of};
use fermata_linux::clock::wall_ns;
use fermata_store::{
    BranchName, Candidate, CollectOptions, Cost, Error, Hold, Keep, Record, Removal, Store,
    remote::{PruneOptions, PullOptions, PushOptions, Remote},
};
use fermata_types::{CheckpointId, PAGE_SIZE, PageBuf, PageNumber, PartKind, PartState, Root};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Half of all checkpoints stay on the remote for good: were each pruned sooner or later, there would be nothing that must be there.
pub fn stays_on_the_remote(id: &CheckpointId) -> bool {
    id.0[0] < 128
}

/// Pages of a machine.
const PAGES: u64 = 1500;
const NS_IN_HOUR: u64 = 3_600_000_000_000;
/// Branches that nobody grows are removed when an experiment has more.
const BRANCHES_MAX: usize = 8;
const TAGS_MAX: usize = 4;

/// Pages of a checkpoint, and the seeds of what they hold. It is in the record of each, in place of a specification.
pub type Content = BTreeMap<PageNumber, u64>;

pub fn page(seed: u64) -> PageBuf {
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

pub fn content_of(record: &Record) -> Content {
    serde_json::from_value(record.spec.clone()).unwrap()
}

fn record(parent: Option<CheckpointId>, experiment: &str, branch: &str, created_ns: u64, ram: Root, content: &Content) -> Record {
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
        created_ns,
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::to_value(content).unwrap(),
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// Where a keeper stands.
struct Standing {
    hold: Hold,
    root: Root,
    content: Content,
}

pub struct Actor {
    place: PathBuf,
    role: String,
    life: u64,
    random: Random,
    store: Store,
    remote: Box<dyn Remote>,
    promises: File,
    /// The clock of a host may have been set wrong.
    clock_ahead_ns: u64,
    standing: Option<Standing>,
    branches: u64,
    is_new: bool,
}

/// Whether it is told that something was removed from the remote just then.
fn is_pruned(why: &str) -> bool {
    ["has no checkpoint", "is in no pack at", "it is gone, or of another length"].iter().any(|told| why.contains(told))
}

impl Actor {
    pub fn new(place: &Path, role: &str, host: &str, life: u64, mut random: Random) -> Self {
        let promises = File::create_new(promises(place).join(format!("{life}-{host}-{role}"))).unwrap();
        Self {
            place: place.to_owned(),
            role: role.to_owned(),
            life,
            store: store_of(place, host),
            remote: remote_in(place),
            promises,
            clock_ahead_ns: random.below(3) * NS_IN_HOUR,
            standing: None,
            branches: 0,
            is_new: true,
            random,
        }
    }

    pub fn act(&mut self) {
        match self.role.clone().as_str() {
            "remove" => self.remove(),
            "collect" => self.collect(),
            "push" => self.push(),
            "pull" => self.pull(),
            "prune" => self.prune(),
            experiment => self.keep(experiment),
        }
    }

    fn say(&mut self, what: &str, ids: &[CheckpointId]) {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        self.say_text(what, &ids.join(" "));
    }

    /// In one write, so that whoever is killed has said it or has not.
    fn say_text(&mut self, what: &str, text: &str) {
        self.promises.write_all(format!("{what} {text}\n").as_bytes()).unwrap();
    }

    fn rest(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_millis(self.random.below(most_ms)));
    }

    fn some(&mut self, ids: impl IntoIterator<Item = CheckpointId>, of: u64, most: usize) -> Vec<CheckpointId> {
        ids.into_iter().filter(|_| self.random.below(of) == 0).take(most).collect()
    }

    fn keep(&mut self, experiment: &str) {
        let is_new = std::mem::take(&mut self.is_new);
        match self.random.below(10) {
            0 | 1 => self.go(experiment),
            _ if is_new => self.go(experiment),
            2 => self.tag(experiment),
            _ => self.grow(experiment),
        }
    }

    /// Goes to any checkpoint, and begins a branch there.
    fn go(&mut self, experiment: &str) {
        let own: Vec<_> = self.store.records().unwrap().into_iter().filter(|(_, record)| record.experiment == experiment).collect();
        if own.is_empty() {
            return;
        }
        let (id, record) = &own[self.random.below(own.len() as u64) as usize];
        match self.store.hold(id) {
            Ok(hold) => {
                let standing = Standing { hold, root: record.parts[0].tables["ram"], content: content_of(record) };
                // All that it stands on is there, whoever removes it.
                self.store.for_each_page(&standing.root, &mut |_, _| Ok(())).unwrap();
                self.standing = Some(standing);
                self.branches += 1;
            }
            // Somebody has just removed it.
            Err(Error::Missing { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes a checkpoint. Both experiments write some of the same pages, and the same again, which collections have just taken away or are about to.
    fn grow(&mut self, experiment: &str) {
        let (parent, base, mut content) = match &self.standing {
            Some(standing) => (Some(standing.hold.id()), standing.root, standing.content.clone()),
            None => (None, Root::empty(PAGES), Content::new()),
        };
        let own = if experiment == EXPERIMENTS[0] { 1_000_000 } else { 2_000_000 };
        let mut changed = Content::new();
        for _ in 0..25 {
            let seed = if self.random.below(2) == 0 { self.random.below(80) } else { own + self.random.below(5000) };
            changed.insert(self.random.below(PAGES) as PageNumber, seed);
        }
        content.extend(&changed);
        let mut writer = self.store.writer().unwrap();
        // Upon what it stands on; or all of it anew, as after a journey.
        let (base, written) = if self.random.below(2) == 0 { (base, &changed) } else { (Root::empty(PAGES), &content) };
        let changes: Vec<_> = written.iter().map(|(number, seed)| (*number, Some(writer.put_page(&page(*seed)).unwrap().0))).collect();
        let root = writer.update_table(&base, &changes).unwrap();
        let branch = format!("{}.{}", self.life, self.branches);
        let record = self.store.in_line(record(parent, experiment, &branch, wall_ns() + self.clock_ahead_ns, root, &content));
        let hold = writer.commit_held(&record).unwrap();
        self.say("committed", &[hold.id()]);
        self.standing = Some(Standing { hold, root, content });
    }

    fn tag(&mut self, experiment: &str) {
        let tags = self.store.tags(experiment).unwrap();
        if tags.len() >= TAGS_MAX {
            let tag = tags.keys().nth(self.random.below(tags.len() as u64) as usize).unwrap();
            self.say_text("untags", &format!("{experiment} {tag}"));
            self.store.untag(experiment, tag).unwrap();
        }
        let Some(id) = self.standing.as_ref().map(|standing| standing.hold.id()) else { return };
        let tag = format!("{}.{}", self.life, self.branches);
        match self.store.tag(experiment, &tag, &id) {
            Ok(()) => self.say_text("tagged", &format!("{experiment} {tag} {id}")),
            // It was removed, or this very name was given before.
            Err(Error::Missing { .. } | Error::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Removes what a policy does not keep, as a keeper or `fermata prune` does; now and then the newest of a branch, as `fermata rm`; and branches that nobody grows any
    /// more.
    fn remove(&mut self) {
        self.rest(60);
        let experiment = EXPERIMENTS[self.random.below(2) as usize];
        let mut goes: BTreeSet<_> = self.not_kept(experiment).into_iter().collect();
        let branches = self.store.branches(experiment).unwrap();
        if self.random.below(4) == 0 {
            goes.extend(self.some(branches.values().copied(), 4, 1));
        }
        self.take_away(&Removal { checkpoints: goes.into_iter().collect(), ..Removal::default() });
        let newest = self.newest_life(experiment);
        let is_dead = |branch: &&String| branch.split('.').next().unwrap().parse::<u64>().unwrap() < newest;
        for branch in branches.keys().filter(is_dead).take(branches.len().saturating_sub(BRANCHES_MAX)) {
            let branches = vec![BranchName { experiment: experiment.into(), branch: branch.clone() }];
            self.take_away(&Removal { branches, ..Removal::default() });
        }
    }

    fn take_away(&mut self, removal: &Removal) {
        let would = self.store.remove(&Removal { dry_run: true, ..removal.clone() });
        match would.and_then(|would| {
            self.say("removes", &would.checkpoints.iter().map(|gone| gone.id).collect::<Vec<_>>());
            self.store.remove(removal)
        }) {
            Ok(removed) if removed.checkpoints.is_empty() => {}
            Ok(removed) => self.say("removed", &removed.checkpoints.iter().map(|gone| gone.id).collect::<Vec<_>>()),
            // One is tagged; or a branch went with what was removed before.
            Err(Error::Refused { .. } | Error::Missing { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Branches of lives before this one are grown by nobody.
    fn newest_life(&self, experiment: &str) -> u64 {
        let names = fs::read_dir(promises(&self.place)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let lives = names.filter_map(|name| name.strip_suffix(&format!("-near-{experiment}"))?.parse().ok());
        lives.max().unwrap_or(0)
    }

    fn not_kept(&mut self, experiment: &str) -> Vec<CheckpointId> {
        let keep: Keep = ["last 2", "last 8", "every 1s for 10s, last 3"][self.random.below(3) as usize].parse().unwrap();
        let heads: BTreeSet<_> = self.store.branches(experiment).unwrap().into_values().collect();
        let tagged: BTreeSet<_> = self.store.tags(experiment).unwrap().into_values().collect();
        let of = self.store.records().unwrap().into_iter().filter(|(_, record)| record.experiment == experiment);
        let candidates: Vec<_> = of
            .map(|(id, record)| Candidate {
                id,
                parent: record.parent,
                branch: record.branch,
                created_ns: record.created_ns,
                tagged: tagged.contains(&id),
                head: heads.contains(&id),
                run: false,
            })
            .collect();
        let verdicts = keep.verdicts(&candidates, wall_ns());
        candidates.iter().zip(verdicts).filter(|(_, why)| why.is_empty()).map(|(candidate, _)| candidate.id).collect()
    }

    fn collect(&mut self) {
        let (rewrite_below, wait) = ([0, 50, 100][self.random.below(3) as usize], self.random.below(3) > 0);
        match self.store.collect(&CollectOptions { rewrite_below, wait, dry_run: false }, &mut |_, _| {}) {
            Ok(told) => assert!(told.damaged.is_empty(), "{told:?}"),
            Err(Error::Refused { .. }) if !wait => {}
            Err(error) => panic!("{error}"),
        }
        self.say_text("collected", "");
        self.rest(30);
    }

    fn push(&mut self) {
        let all: Vec<_> = self.store.records().unwrap().into_iter().map(|(id, _)| id).collect();
        let some = self.some(all, 4, 12);
        if some.is_empty() {
            return self.rest(20);
        }
        let alive = self.pushing();
        alive.lock_shared().unwrap();
        let pushed =
            self.store.push(&*self.remote, &some, &PushOptions::default(), &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        // Some were removed before they could be held.
        self.say("pushed", &some.into_iter().filter(|id| !pushed.gone.contains(id)).collect::<Vec<_>>());
        drop(alive);
        self.rest(100);
    }

    /// Who pushes has this locked, so that somebody who has it alone knows that all pushes that have left a sign are dead.
    fn pushing(&self) -> File {
        File::create(self.place.join("pushing")).unwrap()
    }

    /// What the remote has of one of the experiments.
    fn shown(&mut self) -> Option<(&'static str, Vec<CheckpointId>)> {
        let experiment = EXPERIMENTS[self.random.below(2) as usize];
        if self.store.is_empty_remote(&*self.remote).unwrap() {
            return None;
        }
        let shown = self.store.remote_checkpoints(&*self.remote, experiment).unwrap();
        (!shown.is_empty()).then_some((experiment, shown))
    }

    fn pull(&mut self) {
        let Some((experiment, shown)) = self.shown() else { return self.rest(50) };
        let some = self.some(shown, 3, 12);
        match self.store.pull(&*self.remote, experiment, &some, &PullOptions::default(), &mut |_, _| {}) {
            Ok(pulled) => {
                // Somebody prunes meanwhile, and it is tried again.
                for (_, why) in &pulled.left_out {
                    assert!(is_pruned(why), "{why}");
                }
                let came: Vec<_> = some.into_iter().filter(|id| pulled.left_out.iter().all(|(out, _)| out != id)).collect();
                self.say("pulled", &came);
            }
            Err(error) => assert!(is_pruned(&error.to_string()), "{error}"),
        }
        self.rest(60);
    }

    fn prune(&mut self) {
        self.rest(200);
        let Some((experiment, shown)) = self.shown() else { return };
        let some = self.some(shown.into_iter().filter(|id| !stays_on_the_remote(id)), 3, usize::MAX);
        self.say("unremotes", &some);
        // Whoever was killed leaves the sign of a push, which is waited for, here without end; until somebody who knows that it is dead says so.
        let alone = self.pushing();
        let looks = match self.random.below(2) {
            0 => {
                alone.lock().unwrap();
                0
            }
            _ => u32::MAX,
        };
        let checkpoints = [(experiment.to_owned(), some.iter().copied().collect())].into();
        let options = PruneOptions { checkpoints, looks, look_every: Duration::from_millis(5), ..PruneOptions::default() };
        self.store.prune_remote(&*self.remote, &options, &mut |_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        self.say("unremoted", &some);
    }
}
