//! A checkpoint that is read from a remote before it is here.

use super::*;
use crate::remote::Away;
use fermata_types::{ImageId, NodeName, PageBuf, PageNumber};
use std::{sync::mpsc::RecvTimeoutError, time::Duration};

/// For what must not happen however long one waits, and for what happens at once.
const A_WHILE: Duration = Duration::from_millis(600);
const SOON: Duration = Duration::from_secs(60);

/// Nobody reads an image from there, or none comes that may be read here.
pub(super) fn no_image(id: &ImageId, _: &Path) -> Result<()> {
    panic!("image {id} came")
}

/// What a checkpoint has in its memory can be read here, and is what it is there.
pub(super) fn assert_same_pages(here: &Store, there: &Store, id: &CheckpointId) {
    let expected = pages(there, id);
    assert_eq!(pages(here, id), expected);
    let (mut ours, mut theirs) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    for (_, name) in expected {
        there.read_page(&PageName(name), &mut theirs).unwrap();
        here.read_page(&PageName(name), &mut ours).unwrap();
        assert_eq!(ours, theirs);
    }
}

/// Fetches from a place that is cut off after so many steps, and ends all then: whether everything came before.
pub(super) fn fetch_so_far(
    away: &Away,
    place: &Arc<Place>,
    steps: u32,
    came: &mut (dyn FnMut(&ImageId, &Path) -> Result<()> + Send),
) -> bool {
    place.fail_after(Some(steps));
    let done = thread::scope(|scope| {
        let fetch = scope.spawn(|| away.fetch(place, came, &mut || Ok(())).is_some());
        while !fetch.is_finished() && away.state().trouble.is_none() {
            thread::yield_now();
        }
        if !fetch.is_finished() {
            away.end();
        }
        fetch.join().unwrap()
    });
    place.fail_after(None);
    done
}

/// A store with a history that is on a remote, too.
struct Scene {
    here: tempfile::TempDir,
    _there: tempfile::TempDir,
    from: Store,
    to: Store,
    place: Arc<Place>,
    ids: Vec<CheckpointId>,
}

impl Scene {
    fn new() -> Self {
        let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(Place::new()));
        let (from, to) = (store(there.path()), store(here.path()));
        let ids = history(&from, 4);
        push(&from, &place, &ids).unwrap();
        Self { here, _there: there, from, to, place, ids }
    }

    fn last(&self) -> CheckpointId {
        *self.ids.last().unwrap()
    }

    fn begin(&self) -> Arc<Away> {
        self.begin_by(|| Duration::ZERO)
    }

    /// By this clock.
    fn begin_by(&self, clock: fn() -> Duration) -> Arc<Away> {
        self.to.begin_away(Box::new(self.place.clone()), "lab", &self.last(), clock, &mut |_, _| {}).unwrap()
    }

    /// A page of the last checkpoint, and what it holds.
    fn some_page(&self) -> (PageName, [u8; PAGE_SIZE]) {
        let name = pages(&self.from, &self.last()).into_iter().map(|(_, name)| PageName(name)).find(|name| *name != ZERO_PAGE).unwrap();
        let mut content = [0; PAGE_SIZE];
        self.from.read_page(&name, &mut content).unwrap();
        (name, content)
    }

    /// Everything that the last checkpoint has can be read, and is what it was.
    fn assert_same(&self) {
        assert_same_pages(&self.to, &self.from, &self.last());
        let expected = pages(&self.from, &self.last());
        let seen = Mutex::new(0);
        let wanted = expected.iter().map(|(page, name)| (*page, PageName(*name))).collect();
        self.to
            .read_pages(wanted, &|_, _| {
                *seen.lock().unwrap() += 1;
                true
            })
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), expected.len());
        let record = self.from.record(&self.last()).unwrap();
        for blob in record.parts.iter().flat_map(|part| part.blobs.values()) {
            assert_eq!(self.to.read_blob(blob).unwrap(), self.from.read_blob(blob).unwrap());
        }
    }
}

#[test]
fn it_is_read_before_it_is_here_and_then_it_is() {
    let scene = Scene::new();
    assert!(scene.to.record(&scene.last()).is_err());
    let away = scene.begin();
    scene.assert_same();
    let _hold = scene.to.hold(&scene.last()).unwrap();
    assert!(away.state().asked > 0);
    // Nothing of it is in the index.
    assert_eq!(scene.to.records().unwrap().len(), 0);
    // Whoever collects meanwhile takes nothing away.
    let options = CollectOptions { wait: false, ..CollectOptions::default() };
    scene.to.collect(&options, &mut |_, _| {}).unwrap();
    let mut entered = false;
    away.fetch(&scene.place, &mut no_image, &mut || {
        entered = true;
        assert!(scene.to.away().is_some(), "nobody may build upon it yet");
        Ok(())
    })
    .unwrap();
    assert!(entered && scene.to.away().is_none() && scene.to.await_away(&|| panic!("nobody waits")));
    assert_eq!(scene.to.records().unwrap().len(), 1);
    // It does not need the remote any more.
    scene.place.fail_after(Some(0));
    scene.assert_same();
    assert_whole(&scene.to);
    // What goes on from there is as any other.
    scene.to.set_branch("lab", "main", &scene.last()).unwrap();
    grow(&scene.to, Some(scene.last()), 9).unwrap();
    assert_whole(&scene.to);
}

#[test]
fn whoever_needs_a_remote_that_is_lost_waits_for_it() {
    let scene = Scene::new();
    let away = scene.begin();
    let (name, content) = scene.some_page();
    scene.place.fail_after(Some(0));
    let (sender, receiver) = mpsc::channel();
    let reader = thread::spawn({
        let to = scene.to.clone();
        move || {
            let mut page = [0; PAGE_SIZE];
            sender.send(to.read_page(&name, &mut page).map(|()| page)).unwrap();
        }
    });
    assert!(matches!(receiver.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout)));
    let state = away.state();
    assert!(state.waited_for && state.trouble.unwrap().contains("the line is cut"));
    scene.place.fail_after(None);
    assert_eq!(receiver.recv_timeout(SOON).unwrap().unwrap(), content);
    reader.join().unwrap();
    assert_eq!((away.state().waited_for, away.state().trouble), (false, None));
}

#[test]
fn a_remote_that_says_nothing_fails_after_some_seconds() {
    static SECONDS: AtomicUsize = AtomicUsize::new(100);
    let scene = Scene::new();
    let away = scene.begin_by(|| Duration::from_secs(SECONDS.load(Ordering::Relaxed) as u64));
    let (name, content) = scene.some_page();
    let ((answer, silent), (sender, receiver)) = (mpsc::channel::<()>(), mpsc::channel());
    scene.place.after(0, move || {
        // It ends when nobody can answer any more.
        let _ = silent.recv();
    });
    let to = scene.to.clone();
    thread::spawn(move || {
        let mut page = [0; PAGE_SIZE];
        let _ = sender.send(to.read_page(&name, &mut page).map(|()| page));
    });
    assert!(matches!(receiver.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout)));
    for (seconds, expected) in [(0, None), (4, None), (5, Some("it has not answered for 5 s")), (9, Some("it has not answered for 9 s"))] {
        SECONDS.store(100 + seconds, Ordering::Relaxed);
        let state = away.state();
        assert_eq!((state.waited_for, state.trouble.as_deref()), (expected.is_some(), expected), "{seconds} s");
    }
    // Who fetches over another line does not wait for it.
    away.fetch(&scene.place, &mut no_image, &mut || Ok(())).unwrap();
    drop(answer);
    assert_eq!(receiver.recv_timeout(SOON).unwrap().unwrap(), content);
    assert_eq!((away.state().waited_for, away.state().trouble), (false, None));
}

#[test]
fn packs_that_are_rewritten_meanwhile_are_found_where_they_are_now() {
    let scene = Scene::new();
    let away = scene.begin();
    let before = scene.place.objects("packs/");
    let gone = [("lab".to_owned(), scene.ids[..3].iter().copied().collect())].into();
    let options = PruneOptions { checkpoints: gone, looks: 0, ..PruneOptions::default() };
    scene.from.prune_remote(&*scene.place, &options, &mut |_, _| {}).unwrap();
    assert!(before.iter().any(|pack| !pack.exists()), "nothing was rewritten");
    thread::scope(|scope| {
        let reads = scope.spawn(|| scene.assert_same());
        for _ in 0..SOON.as_millis() / 100 {
            if reads.is_finished() || away.state().waited_for {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        let state = away.state();
        if !reads.is_finished() {
            away.end();
        }
        assert!(reads.join().is_ok() && !state.waited_for, "{state:?}");
    });
}

#[test]
fn what_is_wrong_is_waited_for_and_never_handed_out() {
    let scene = Scene::new();
    let (name, content) = scene.some_page();
    let away = scene.begin();
    let packs: Vec<_> = scene.place.objects("packs/").into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    for (bytes, path) in &packs {
        // The tables of contents, at the end, were read before.
        let middle = bytes.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>();
        fs::write(path, middle).unwrap();
    }
    let (sender, receiver) = mpsc::channel();
    let to = scene.to.clone();
    thread::spawn(move || {
        let mut page = [0; PAGE_SIZE];
        let _ = sender.send(to.read_page(&name, &mut page).map(|()| page));
    });
    assert!(matches!(receiver.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout)));
    assert!(away.state().waited_for);
    for (bytes, path) in &packs {
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(receiver.recv_timeout(SOON).unwrap().unwrap(), content);
}

/// The pages that the checkpoints of a scene have in their memory, one after the other, as processors read them.
fn one_by_one(store: &Store, root: &Root) -> Result<Vec<PageBuf>> {
    let read = |page| {
        let (name, mut content) = (store.lookup(root, page)?, [0; PAGE_SIZE]);
        store.read_page(&name.expect("it has a name"), &mut content)?;
        Ok(content)
    };
    (0..40).map(|nth| read(nth * 97)).collect()
}

/// The same at once, as a disk or a working set is read.
fn at_once(store: &Store, root: &Root) -> Result<Vec<PageBuf>> {
    let name = |page: PageNumber| Ok((page, store.lookup(root, page)?.expect("it has a name")));
    let wanted = (0..40).map(|nth| name(nth * 97)).collect::<Result<Vec<_>>>()?;
    let read = Mutex::new(BTreeMap::new());
    store.read_pages(wanted, &|page, content| {
        read.lock().unwrap().insert(page, *content);
        true
    })?;
    Ok(read.into_inner().unwrap().into_values().collect())
}

/// Whatever pack is gone before it begins. A machine that was told that nobody has a page would be gone.
#[test]
fn what_a_remote_has_lost_is_waited_for_once_machines_run() {
    let scene = Scene::new();
    let root = scene.from.record(&scene.last()).unwrap().parts[0].tables["ram"];
    let expected = one_by_one(&scene.from, &root).unwrap();
    let mut waits = 0;
    for pack in scene.place.objects("packs/") {
        let here = tempfile::tempdir().unwrap();
        let (to, lost) = (store(here.path()), scene.place.path("lost"));
        fs::rename(&pack, &lost).unwrap();
        let away = to.begin_away(Box::new(scene.place.clone()), "lab", &scene.last(), || Duration::ZERO, &mut |_, _| {}).unwrap();
        let before = [one_by_one(&to, &root), at_once(&to, &root)];
        away.machines_begin();
        let (state, after) = thread::scope(|scope| {
            let reads = [scope.spawn(|| one_by_one(&to, &root)), scope.spawn(|| at_once(&to, &root))];
            while !away.state().waited_for && !reads.iter().all(|read| read.is_finished()) {
                thread::yield_now();
            }
            let state = away.state();
            fs::rename(&lost, &pack).unwrap();
            (state, reads.map(|read| read.join().unwrap().unwrap()))
        });
        assert!(after.iter().all(|pages| *pages == expected), "they are the same pages");
        assert_eq!((away.state().waited_for, away.state().trouble), (false, None));
        for read in before {
            assert_eq!(read.is_err(), state.waited_for);
            let Err(error) = read else { continue };
            assert!(matches!(error, Error::Missing { .. }) && error.to_string().contains("verify --repair"), "{error}");
        }
        if state.waited_for {
            let trouble = state.trouble.unwrap();
            assert!(trouble.contains("is in no pack there") && trouble.contains("verify --repair"), "{trouble}");
            waits += 1;
        }
        away.fetch(&scene.place, &mut no_image, &mut || Ok(())).unwrap();
        assert_same_pages(&to, &scene.from, &scene.last());
        assert_whole(&to);
    }
    // That of the pages, and that of the nodes.
    assert!(waits >= 2, "only {waits} of the packs were waited for");
}

#[test]
fn nobody_waits_for_what_is_not_of_the_checkpoint() {
    let scene = Scene::new();
    let away = scene.begin();
    away.machines_begin();
    let nowhere = |read: Result<()>| assert!(matches!(read, Err(Error::Missing { .. })), "{read:?}");
    let (page, other) = (PageName([7; 32]), Root { pages: 4000, node: Some(NodeName([7; 32])) });
    nowhere(scene.to.read_page(&page, &mut [0; PAGE_SIZE]));
    nowhere(scene.to.read_pages(vec![(0, page)], &|_, _| true));
    nowhere(scene.to.lookup(&other, 0).map(drop));
    assert_eq!(away.state().asked, 0);
}

#[test]
fn when_all_ends_nobody_waits_any_longer() {
    let scene = Scene::new();
    let away = scene.begin();
    let (name, _) = scene.some_page();
    scene.place.fail_after(Some(0));
    thread::scope(|scope| {
        let reads = scope.spawn(|| scene.to.read_page(&name, &mut [0; PAGE_SIZE]));
        let waits = scope.spawn(|| scene.to.await_away(&|| true));
        let fetches = scope.spawn(|| away.fetch(&scene.place, &mut no_image, &mut || Ok(())));
        while !away.state().waited_for {
            thread::yield_now();
        }
        away.end();
        assert!(reads.join().unwrap().is_err());
        // Whatever it says, which hangs on whether it came before the end.
        waits.join().unwrap();
        assert_eq!(fetches.join().unwrap(), None);
    });
    // And the next one begins anew.
    scene.place.fail_after(None);
    let away = scene.begin();
    away.fetch(&scene.place, &mut no_image, &mut || Ok(())).unwrap();
    scene.assert_same();
    assert!(scene.here.path().join("packs").exists());
}

#[test]
fn what_was_fetched_before_an_end_is_not_fetched_again() {
    let scene = Scene::new();
    for steps in 0.. {
        let away = scene.begin();
        let done = fetch_so_far(&away, &scene.place, steps, &mut no_image);
        assert_whole(&scene.to);
        if done {
            break;
        }
    }
    scene.assert_same();
}

#[test]
fn all_is_there_or_it_is_told() {
    let scene = Scene::new();
    scene.from.check_remote(&scene.place, "lab", &scene.ids, true, &mut |_| {}).unwrap();
    let packs = scene.place.objects("packs/");
    for path in packs {
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = scene.from.check_remote(&scene.place, "lab", &scene.ids, true, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("is in no pack"), "{error}");
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        scene.from.check_remote(&scene.place, "lab", &scene.ids, true, &mut |_| {}).unwrap_err();
        fs::write(&path, bytes).unwrap();
    }
    scene.from.check_remote(&scene.place, "lab", &scene.ids, true, &mut |_| {}).unwrap();
}

#[test]
fn a_remote_remembers_who_is_out() {
    let scene = Scene::new();
    let swap = |before: Option<&[u8]>, text: &str| scene.from.set_remote_swapped(&scene.place, "a lab", before, text.into()).unwrap();
    assert_eq!(scene.to.remote_swapped(&scene.place, "a lab").unwrap(), None);
    assert!(swap(None, "one"));
    assert!(!swap(None, "two"));
    assert!(swap(Some(b"one"), "two"));
    assert_eq!(scene.to.remote_swapped(&scene.place, "a lab").unwrap().unwrap(), b"two");
    assert_eq!(scene.to.remote_swapped_experiments(&scene.place).unwrap(), ["a lab"]);
}
