//! The same against each kind of place; S3 is a real server of it, over HTTP on this host, and other hosts are threads.

use super::*;
use fermata_store::{
    Cost, Record, Secret, Store, VerifyOptions,
    remote::{PruneOptions, PullOptions, PushOptions, RefName, RefSet, check_identity, identity, make_remote},
};
use fermata_types::{CheckpointId, PAGE_SIZE, PageBuf, PartKind, PartState, Root};
use s3::SECRET;
use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Instant,
};

#[path = "../tests/fixtures/s3.rs"]
mod s3;

/// A server of S3 and its objects, until it is dropped.
struct ObjectStorage {
    server: s3::Server,
    _files: tempfile::TempDir,
}

/// What answers there, as S3.
fn s3_at(at: SocketAddr, secret: &str, limit: Option<u64>, patience: Patience) -> Connection {
    let builder = AmazonS3Builder::new()
        .with_endpoint(format!("http://{at}"))
        .with_region(s3::REGION)
        .with_access_key_id(s3::KEY)
        .with_secret_access_key(secret);
    Connection::s3_of(builder, s3::BUCKET, "a/b", limit.map(Limit::new), patience).unwrap()
}

impl ObjectStorage {
    fn begin() -> Self {
        let files = tempfile::tempdir().unwrap();
        Self { server: s3::Server::begin(files.path(), 0), _files: files }
    }

    fn connect(&self, secret: &str, limit: Option<u64>) -> Connection {
        s3_at(self.server.at(), secret, limit, Patience { retries: 1, stalled: Duration::from_secs(30) })
    }
}

fn on_each_kind(test: impl Fn(&dyn Remote)) {
    let [one, other, third] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    test(&Connection::directory(&one.path().join("new/one"), None).unwrap());
    test(&Peer::of_thread(&other.path().join("new/one"), None));
    test(&Peer::of_listener(&third.path().join("new/one"), None));
    let server = ObjectStorage::begin();
    test(&server.connect(SECRET, None));
}

#[test]
fn objects_are_put_and_got() {
    on_each_kind(|place| {
        assert_eq!(place.get("packs/ab/one", 100).unwrap(), None);
        assert_eq!(place.list("packs/").unwrap(), []);
        place.put("packs/ab/one", b"0123456789".to_vec()).unwrap();
        place.put("packs/ab/one", b"0123456789".to_vec()).unwrap();
        place.put("packs/cd/two", vec![7; 6 << 20]).unwrap();
        place.put("packsaddle", vec![]).unwrap();
        assert_eq!(place.get("packs/ab/one", 10).unwrap().unwrap(), b"0123456789");
        assert_eq!(place.get("packs/cd/two", 6 << 20).unwrap().unwrap(), vec![7; 6 << 20]);
        assert!(place.get("packs/ab/one", 9).is_err());
        assert_eq!(place.tail("packs/ab/one", 3).unwrap().unwrap(), b"789");
        assert_eq!(place.tail("packs/ab/one", 300).unwrap().unwrap(), b"0123456789");
        assert_eq!(place.tail("packs/ab/none", 3).unwrap(), None);
        let mut listed = place.list("packs/").unwrap();
        listed.sort();
        assert_eq!(listed, [("packs/ab/one".to_owned(), 10), ("packs/cd/two".to_owned(), 6 << 20)]);
        place.remove("packs/ab/one").unwrap();
        place.remove("packs/ab/one").unwrap();
        assert_eq!(place.get("packs/ab/one", 10).unwrap(), None);
        assert_eq!(place.list("packs/").unwrap().len(), 1);
        assert_ne!(place.unique().unwrap(), place.unique().unwrap());
    });
}

/// Whoever only looks leaves no directory behind, in which something else might have to be mounted.
#[test]
fn who_looks_makes_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("not/there");
    let places: [&dyn Remote; 3] =
        [&Connection::directory(&path, None).unwrap(), &Peer::of_thread(&path, None), &Peer::of_listener(&path, None)];
    for place in places {
        assert_eq!(place.get("format", 10).unwrap(), None);
        assert_eq!(place.tail("packs/a", 10).unwrap(), None);
        assert_eq!(place.range("packs/a", 0, 10).unwrap(), None);
        assert_eq!(place.list("packs/").unwrap(), []);
        place.remove("packs/a").unwrap();
        assert!(!directory.path().join("not").exists(), "{place}");
    }
    places[1].put("packs/a", vec![1]).unwrap();
    places.iter().for_each(|place| assert_eq!(place.get("packs/a", 10).unwrap(), Some(vec![1])));
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(Connection::directory(&file, None).unwrap().get("format", 10).unwrap_err().to_string().contains("directory"));
}

/// Whoever removes from a remote would take it for gone, and remove what it needs.
#[test]
fn what_cannot_be_looked_at_is_not_left_out_of_a_list() {
    let directory = tempfile::tempdir().unwrap();
    let places: [&dyn Remote; 2] = [&Connection::directory(directory.path(), None).unwrap(), &Peer::of_thread(directory.path(), None)];
    places[0].put("records/lab/one", b"1".to_vec()).unwrap();
    let records = directory.path().join("records/lab");
    // What somebody left who died while he wrote, and what is not there any more.
    fs::write(records.join("two#1"), b"2").unwrap();
    std::os::unix::fs::symlink("none", records.join("three")).unwrap();
    for place in places {
        assert_eq!(place.list("records/").unwrap(), [("records/lab/one".to_owned(), 1)], "{place}");
        assert_eq!(place.list("packs/").unwrap(), [], "{place}");
    }
    std::os::unix::fs::symlink("four", records.join("four")).unwrap();
    for place in places {
        let error = place.list("records/").unwrap_err().to_string();
        assert!(error.contains("four"), "{place}: {error}");
    }
}

#[test]
fn a_remote_is_known_again() {
    on_each_kind(|place| {
        assert_eq!(identity(place).unwrap(), None);
        let made = make_remote(place).unwrap();
        assert_eq!(make_remote(place).unwrap(), made);
        check_identity(place, &made).unwrap();
        assert!(check_identity(place, &"0".repeat(32)).unwrap_err().to_string().contains(&made[..12]));
    });
    let directory = tempfile::tempdir().unwrap();
    let sealed = |words: &str| {
        let place = Connection::directory(&directory.path().join(words), None).unwrap();
        Sealed::open(place, &Secret::Passphrase(words.into())).unwrap()
    };
    let [one, other] = ["one", "other"].map(|words| (make_remote(&sealed(words)).unwrap(), words));
    for (identity, words) in [&one, &other] {
        check_identity(&sealed(words), identity).unwrap();
        assert!(!directory.path().join(words).join("identity").exists());
    }
    check_identity(&sealed(one.1), &other.0).unwrap_err();
}

#[test]
fn of_two_who_change_an_object_one_is_told() {
    on_each_kind(|place| {
        assert!(!place.swap("refs/a", Some(b"x"), b"1".to_vec()).unwrap());
        assert!(place.swap("refs/a", None, b"1".to_vec()).unwrap());
        assert!(!place.swap("refs/a", None, b"2".to_vec()).unwrap());
        assert!(!place.swap("refs/a", Some(b"2"), b"3".to_vec()).unwrap());
        assert!(place.swap("refs/a", Some(b"1"), b"2".to_vec()).unwrap());
        assert_eq!(place.get("refs/a", 10).unwrap().unwrap(), b"2");
        if place.to_string().starts_with("s3://") {
            // The server of these tests looks first and writes then, so that of two at once both may be told yes. S3's own does not.
            return;
        }
        // Many at once: each takes the number that it finds one further.
        let number = || String::from_utf8(place.get("refs/n", 10).unwrap().unwrap()).unwrap();
        place.put("refs/n", b"0".to_vec()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        loop {
                            let now = number();
                            let next = (now.parse::<u32>().unwrap() + 1).to_string();
                            if place.swap("refs/n", Some(now.as_bytes()), next.into_bytes()).unwrap() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(number(), "20");
    });
}

#[test]
fn what_is_longer_than_it_was_is_something_else() {
    fn check(place: &dyn Remote) {
        let long = vec![7; 200_000];
        place.put("refs/long", long.clone()).unwrap();
        for before in [None, Some(&long[..0]), Some(&long[..1]), Some(&long[..199_999])] {
            assert!(!place.swap("refs/long", before, b"8".to_vec()).unwrap(), "{place}");
        }
        assert!(place.swap("refs/long", Some(&long[..]), b"8".to_vec()).unwrap(), "{place}");
        assert_eq!(place.get("refs/long", 1).unwrap().unwrap(), b"8", "{place}");
    }
    on_each_kind(|place| {
        check(place);
        check(&Sealed::open(place, &Secret::KeyFile(vec![9; 32])).unwrap());
    });
}

/// Who says of every object, as S3, that it has so many bytes, and sends three of them.
fn one_who_boasts(length: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut request = io::BufRead::lines(io::BufReader::new(&stream));
            // It ends with an empty line.
            while request.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = write!(&stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nabc");
        }
    });
    at
}

/// A process that asks for as much memory as that dies.
#[test]
fn who_announces_much_gets_no_memory_for_it() {
    let place = s3_at(one_who_boasts(1 << 60), SECRET, None, Patience { retries: 0, stalled: Duration::from_secs(30) });
    place.get("packs/a", u64::MAX).unwrap_err();
    let error = place.get("packs/a", 3).unwrap_err().to_string();
    assert!(error.contains("may have 3"), "{error}");
    for before in [None, Some(&b"abc"[..])] {
        assert!(!place.swap("refs/a", before, b"def".to_vec()).unwrap());
    }
}

#[test]
fn a_limit_is_kept() {
    let (server, directory) = (ObjectStorage::begin(), tempfile::tempdir().unwrap());
    let limit = || Some(Limit::new(8 << 20));
    let (piped, posted) = (Peer::of_thread(directory.path(), limit()), Peer::of_listener(directory.path(), limit()));
    let places: [&dyn Remote; 3] = [&server.connect(SECRET, Some(8 << 20)), &piped, &posted];
    for place in places {
        let (bytes, began) = (vec![1; 12 << 20], Instant::now());
        place.put("packs/large", bytes.clone()).unwrap();
        // However slow the host is, it cannot be faster.
        assert!(began.elapsed() >= Duration::from_millis(1400), "{place}: {:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(place.get("packs/large", 12 << 20).unwrap().unwrap(), bytes);
        assert!(began.elapsed() >= Duration::from_millis(1400), "{place}: {:?}", began.elapsed());
    }
}

#[test]
fn a_limit_is_kept_by_small_objects() {
    let (server, directory) = (ObjectStorage::begin(), tempfile::tempdir().unwrap());
    let limited = || Some(Limit::new(4 << 20));
    let other = directory.path().join("other");
    let places: [&dyn Remote; 3] = [
        &server.connect(SECRET, Some(4 << 20)),
        &Connection::directory(directory.path(), limited()).unwrap(),
        &Peer::of_thread(&other, limited()),
    ];
    for place in places {
        let began = Instant::now();
        for number in 0..12 {
            place.put(&format!("packs/{number}"), vec![1; 400 << 10]).unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(1100), "{place}: {:?}", began.elapsed());
        let began = Instant::now();
        for number in 0..12 {
            place.get(&format!("packs/{number}"), 400 << 10).unwrap().unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(1100), "{place}: {:?}", began.elapsed());
    }
}

/// A slow line to a server: so many bytes a second each way on each connection.
fn slow_line_to(server: SocketAddr, bytes_per_second: u64) -> SocketAddr {
    const PIECE: usize = 32 << 10;
    fn carry(mut from: TcpStream, mut to: TcpStream, bytes_per_second: u64) {
        let mut piece = [0; PIECE];
        while let Ok(read @ 1..) = from.read(&mut piece) {
            thread::sleep(Duration::from_secs_f64(read as f64 / bytes_per_second as f64));
            if to.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(server) else { return };
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || carry(near, far, bytes_per_second));
            thread::spawn(move || carry(back.0, back.1, bytes_per_second));
        }
    });
    at
}

/// Large objects take their time on a slow line; only one that stands still is given up.
#[test]
fn a_slow_line_is_waited_for() {
    let server = ObjectStorage::begin();
    let bytes: Vec<u8> = (0..12 << 20).map(|at: u32| (at % 251) as u8).collect();
    let stalled = Duration::from_secs(1);
    let place = s3_at(slow_line_to(server.server.at(), 3 << 20), SECRET, None, Patience { retries: 0, stalled });
    let began = Instant::now();
    place.put("packs/large", bytes.clone()).unwrap();
    place.put("packs/smaller", vec![7; 4 << 20]).unwrap();
    assert!(began.elapsed() > stalled * 2, "the line is not slow: {:?}", began.elapsed());
    let began = Instant::now();
    assert!(place.get("packs/large", 12 << 20).unwrap().unwrap() == bytes);
    assert!(began.elapsed() > stalled * 2, "the line is not slow: {:?}", began.elapsed());
}

#[test]
fn one_that_accepts_and_says_nothing_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = s3_at(silent.local_addr().unwrap(), SECRET, None, Patience { retries: 1, stalled: Duration::from_millis(300) });
    let began = Instant::now();
    for error in [place.get("format", 10).unwrap_err(), place.put("packs/one", vec![1]).unwrap_err(), place.list("packs/").unwrap_err()] {
        assert!(error.to_string().contains("timed out"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_wrong_key_and_a_server_that_is_gone_are_told() {
    let server = ObjectStorage::begin();
    let error = server.connect("wrong", None).get("format", 10).unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch") || error.contains("403"), "{error}");
    let place = server.connect(SECRET, None);
    drop(server);
    let error = place.put("packs/one", vec![1]).unwrap_err().to_string();
    assert!(error.contains("onnect"), "{error}");
}

fn page(seed: u64) -> PageBuf {
    let mut page = [seed as u8; PAGE_SIZE];
    page[..8].copy_from_slice(&(seed + 1).to_le_bytes());
    page
}

fn grow(store: &Store, parent: Option<CheckpointId>, step: u64) -> CheckpointId {
    let base = parent.map_or(Root::empty(4000), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
    let mut writer = store.writer().unwrap();
    let changes: Vec<_> = (0..40).map(|i| (i as u32 * 97, Some(writer.put_page(&page(step * 100 + i)).unwrap().0))).collect();
    let ram = writer.update_table(&base, &changes).unwrap();
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: [("devices".to_owned(), writer.put_blob(&step.to_le_bytes()).unwrap())].into(),
        details: serde_json::Value::Null,
    };
    let record = Record {
        parent,
        experiment: "lab-ä".to_owned(),
        branch: "main".into(),
        message: None,
        created_ns: step,
        after_ns: None,
        time_virtual_ns: step,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    };
    writer.commit(&record).unwrap()
}

/// A host died while it pushed: whoever removes sees its lease rest, and goes on.
#[test]
fn a_push_that_died_does_not_hold_up_removals() {
    on_each_kind(|place| {
        let here = tempfile::tempdir().unwrap();
        let store = Store::open(here.path()).unwrap();
        let first = grow(&store, None, 0);
        let ids = [first, grow(&store, Some(first), 1)];
        store.push(place, &ids, &PushOptions::default(), &mut |_, _| {}).unwrap();
        let lease = format!("pushes/{}", "7".repeat(32));
        assert!(place.swap(&lease, None, b"3\n".to_vec()).unwrap());
        let experiment = store.record(&first).unwrap().experiment;
        let checkpoints = [(experiment, [first].into())].into();
        let options = PruneOptions { checkpoints, looks: 2, look_every: Duration::from_millis(1), ..PruneOptions::default() };
        let pruned = store.prune_remote(place, &options, &mut |_, _| {}).unwrap();
        assert_eq!((pruned.checkpoints, pruned.dead_pushes), (1, 1), "{place}");
        assert_eq!(place.get(&lease, 10).unwrap(), None, "{place}");
    });
}

#[test]
fn checkpoints_go_there_and_come_back() {
    on_each_kind(|place| {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, other) = (Store::open(here.path()).unwrap(), Store::open(there.path()).unwrap());
        let mut ids = Vec::new();
        for step in 0..4 {
            ids.push(grow(&store, ids.last().copied(), step));
        }
        let pushed = store.push(place, &ids, &PushOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!((pushed.checkpoints, pushed.pages), (4, 160));
        let experiments = other.remote_experiments(place).unwrap();
        let [experiment] = experiments.as_slice() else { panic!("{experiments:?}") };
        assert_eq!(experiment, &store.record(&ids[0]).unwrap().experiment);
        let branch = RefName::Branch("what-if".to_owned());
        assert_eq!(store.set_remote_ref(place, experiment, &branch, None, &ids[3]).unwrap(), RefSet::Done);
        assert_eq!(store.set_remote_ref(place, experiment, &branch, None, &ids[2]).unwrap(), RefSet::Elsewhere);
        assert_eq!(other.remote_refs(place, experiment).unwrap(), [(branch, ids[3])].into());
        let listed = other.remote_checkpoints(place, experiment).unwrap();
        let pulled = other.pull(place, experiment, &listed, &PullOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(pulled.checkpoints, 4);
        for id in &ids {
            assert_eq!(other.record(id).unwrap(), store.record(id).unwrap());
        }
        assert!(other.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage.is_empty());
        // And most of them go again.
        let checkpoints = [(experiment.clone(), ids[..3].iter().copied().collect())].into();
        let pruned = store.prune_remote(place, &PruneOptions { checkpoints, ..PruneOptions::default() }, &mut |_, _| {}).unwrap();
        assert_eq!(pruned.checkpoints, 3);
        let (there, listed) = (tempfile::tempdir().unwrap(), store.remote_checkpoints(place, experiment).unwrap());
        let other = Store::open(there.path()).unwrap();
        assert_eq!(other.pull(place, experiment, &listed, &PullOptions::default(), &mut |_, _| {}).unwrap().checkpoints, 1);
        assert!(other.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage.is_empty());
    });
}
