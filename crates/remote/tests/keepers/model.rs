//! What must exist, by what everybody promised.

use crate::{
    EXPERIMENTS, HOSTS, promises, remote_in,
    roles::{Content, content_of, page},
    store_of,
};
use fermata_store::{
    CollectOptions, Store, VerifyOptions,
    remote::{PullOptions, Remote},
};
use fermata_types::{CheckpointId, PageName};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::Path,
};

type Ids = BTreeSet<CheckpointId>;

/// What was given to a store or to the remote, and what somebody began to take away; who was killed may have done it, or not.
#[derive(Default)]
struct Promises {
    given: Ids,
    maybe_gone: Ids,
    /// Of them those of which somebody said that they are gone.
    gone: Ids,
    times: BTreeMap<&'static str, u64>,
}

impl Promises {
    fn must(&self) -> impl Iterator<Item = &CheckpointId> {
        self.given.difference(&self.maybe_gone)
    }

    fn count(&mut self, what: &'static str) {
        *self.times.entry(what).or_default() += 1;
    }
}

#[derive(Default)]
pub struct Model {
    near: Promises,
    far: Promises,
    remote: Promises,
    /// Tags, each with its experiment, and the checkpoint that it is on.
    tags: BTreeMap<(String, String), CheckpointId>,
    names: Names,
}

/// What pages are called, by their seeds.
#[derive(Default)]
struct Names(HashMap<u64, PageName>);

impl Names {
    fn of(&mut self, seed: u64) -> PageName {
        *self.0.entry(seed).or_insert_with(|| PageName(*blake3::hash(&page(seed)).as_bytes()))
    }
}

impl Model {
    /// Reads what was promised since it was read last.
    pub fn learn(&mut self, place: &Path) {
        let mut untagged = BTreeSet::new();
        for entry in fs::read_dir(promises(place)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_near = name.contains("-near-");
            let text = fs::read_to_string(&path).unwrap();
            // One that was killed while it said something has not said it.
            for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
                let (what, rest) = line.split_once(' ').unwrap();
                self.hear(is_near, what, rest, &mut untagged);
            }
            // The newest life of each is still looked for, by its name.
            fs::write(&path, "").unwrap();
        }
        self.tags.retain(|tag, _| !untagged.contains(tag));
    }

    fn hear(&mut self, is_near: bool, what: &str, rest: &str, untagged: &mut BTreeSet<(String, String)>) {
        let host = if is_near { &mut self.near } else { &mut self.far };
        let ids = || -> Vec<CheckpointId> { rest.split_whitespace().map(|id| id.parse().unwrap()).collect() };
        let named = || {
            let (experiment, tag) = rest.split_once(' ').unwrap();
            (experiment.to_owned(), tag.to_owned())
        };
        match what {
            "committed" | "pulled" => {
                host.given.extend(ids());
                host.count("given");
            }
            "removes" => host.maybe_gone.extend(ids()),
            "removed" => {
                host.gone.extend(ids());
                host.count("removed");
            }
            "collected" => host.count("collected"),
            "pushed" => {
                self.remote.given.extend(ids());
                self.remote.count("given");
            }
            "unremotes" => self.remote.maybe_gone.extend(ids()),
            "unremoted" => self.remote.count("removed"),
            "tagged" => {
                let (experiment, (tag, id)) =
                    (named().0, named().1.split_once(' ').map(|(tag, id)| (tag.to_owned(), id.to_owned())).unwrap());
                self.tags.insert((experiment, tag), id.parse().unwrap());
            }
            "untags" => _ = untagged.insert(named()),
            _ => panic!("{what}"),
        }
    }

    /// Nobody lives now.
    pub fn check(&mut self, place: &Path, collects: bool) {
        for host in HOSTS {
            let store = store_of(place, host);
            self.check_host(&store, host);
            if collects {
                let all = CollectOptions { rewrite_below: 100, ..CollectOptions::default() };
                let told = store.collect(&all, &mut |_, _| {}).unwrap();
                assert!(told.damaged.is_empty() && told.waiting_for == 0, "{told:?}");
                self.check_host(&store, host);
            }
        }
        self.check_remote(place);
    }

    fn check_host(&mut self, store: &Store, host: &str) {
        let there: Ids = store.records().unwrap().into_iter().map(|(id, _)| id).collect();
        let promised = if host == HOSTS[0] { &self.near } else { &self.far };
        let lost: Vec<_> = promised.must().filter(|id| !there.contains(id)).collect();
        assert!(lost.is_empty(), "{host} has lost {lost:?}");
        if host == HOSTS[0] {
            // What was removed there is brought back by nobody.
            let back: Vec<_> = there.intersection(&promised.gone).collect();
            assert!(back.is_empty(), "{back:?} are back");
            for experiment in EXPERIMENTS {
                let (tags, branches) = (store.tags(experiment).unwrap(), store.branches(experiment).unwrap());
                assert!(tags.values().chain(branches.values()).all(|id| there.contains(id)), "{tags:?} {branches:?}");
                let expected = self.tags.iter().filter(|((of, _), _)| of == experiment);
                expected.for_each(|((_, tag), id)| assert_eq!(tags.get(tag), Some(id), "{tag} of {experiment}"));
            }
        }
        self.check_whole(store, host);
    }

    /// All that is there is what its record says, and all of it can be read.
    fn check_whole(&mut self, store: &Store, what: &str) {
        let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{what}: {:?}", report.damage);
        for (id, record) in store.records().unwrap() {
            let expected: Content = content_of(&record);
            let mut found = Vec::with_capacity(expected.len());
            let each = &mut |number, name| {
                found.push((number, name));
                Ok(())
            };
            store.for_each_page(&record.parts[0].tables["ram"], each).unwrap_or_else(|error| panic!("{what}, {id}: {error}"));
            let expected: Vec<_> = expected.into_iter().map(|(number, seed)| (number, self.names.of(seed))).collect();
            assert!(found == expected, "{what}: {id} has other pages");
        }
    }

    /// All that can be seen on the remote can be had, and what was pushed is there.
    fn check_remote(&mut self, place: &Path) {
        let (remote, path): (Box<dyn Remote>, _) = (remote_in(place), place.join("fresh"));
        {
            let fresh = Store::open(&path).unwrap();
            if !fresh.is_empty_remote(&remote).unwrap() {
                for experiment in EXPERIMENTS {
                    let shown = fresh.remote_checkpoints(&remote, experiment).unwrap();
                    fresh.pull(&remote, experiment, &shown, &PullOptions::default(), &mut |_, _| {}).unwrap();
                    shown.iter().for_each(|id| _ = fresh.record(id).unwrap());
                }
            }
            let there: Ids = fresh.records().unwrap().into_iter().map(|(id, _)| id).collect();
            let lost: Vec<_> = self.remote.must().filter(|id| !there.contains(id)).collect();
            assert!(lost.is_empty(), "the remote has lost {lost:?}");
            self.check_whole(&fresh, "the remote");
        }
        fs::remove_dir_all(path).unwrap();
    }

    fn all(&self) -> [(&'static str, &Promises); 3] {
        [("near", &self.near), ("far", &self.far), ("the remote", &self.remote)]
    }

    /// Whether everything has happened that can.
    pub fn has_seen_all(&self) -> bool {
        let has = |promises: &Promises, what| promises.times.contains_key(what);
        self.all().iter().all(|(_, promises)| has(promises, "given") && has(promises, "removed") && promises.must().next().is_some())
            && has(&self.near, "collected")
            && has(&self.far, "collected")
    }

    pub fn told(&self) -> String {
        let told = |(name, promises): &(&str, &Promises)| {
            format!("{name} {} of {} must be there, {:?}", promises.must().count(), promises.given.len(), promises.times)
        };
        self.all().iter().map(told).collect::<Vec<_>>().join("; ")
    }
}
