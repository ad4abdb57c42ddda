//! Server and client over a real socket, with a keeper that only pretends.

use fermata_api::{
    Client, EXEC_INPUT_BYTES_MAX, Server, Service,
    types::{CheckpointId, PageCounts},
    values::*,
};
use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

/// Answers with what it was asked.
struct Pretender {
    ending: Mutex<mpsc::Sender<()>>,
    busy: AtomicBool,
    /// Pieces that were taken of each capture that has ended.
    captured: Mutex<Vec<u64>>,
}

impl Pretender {
    fn new(ending: mpsc::Sender<()>) -> Self {
        Self { ending: Mutex::new(ending), busy: AtomicBool::new(false), captured: Mutex::default() }
    }
}

fn resumed(run: Option<String>, branch: String) -> Resumed {
    Resumed {
        run: run.unwrap_or("main".into()),
        checkpoint: CheckpointId([1; 32]),
        resume_ms: 1.5,
        warm: true,
        time_virtual_ns: 7,
        branch,
        reached: None,
        perturbation: None,
    }
}

impl Service for Pretender {
    fn status(&self) -> Result<Experiment, Problem> {
        Ok(Experiment {
            name: "tryout".into(),
            state: ExperimentState::Running,
            keeper_pid: 1,
            store: "/store".into(),
            every_ms: Some(2000),
            runs: vec![],
            spare_ready: true,
            trouble: None,
            loading: None,
            swapped: None,
        })
    }

    fn checkpoint(&self, request: CheckpointRequest, _: &dyn Fn() -> bool) -> Result<Checkpoint, Problem> {
        Ok(Checkpoint {
            id: CheckpointId([2; 32]),
            parent: None,
            experiment: "tryout".into(),
            branch: request.run.unwrap_or("main".into()),
            heads: vec![],
            tags: vec![],
            message: request.message,
            created_ns: 0,
            created: "1970-01-01T00:00:00Z".into(),
            time_virtual_ns: 0,
            pause_ms: 4.25,
            skew: None,
            steps_ms: Default::default(),
            save_ms: 0.0,
            stored_bytes: 0,
            stored_by_part: Default::default(),
            pages: PageCounts::default(),
            pages_by_part: Default::default(),
            bytes_by_class: Default::default(),
            sieve_ms: Default::default(),
            background_ms: Default::default(),
            composition: Default::default(),
            saved_bytes: Default::default(),
            parts: vec![],
            images: vec![],
            events: None,
            network: None,
            down: vec![],
            links: vec![],
            perturbation: None,
            runs: vec![],
        })
    }

    fn capture(&self, request: CaptureRequest, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Problem> {
        if request.interfaces.is_empty() {
            return Err(Problem::new("of no interface"));
        }
        let mut pieces = 0;
        while take(if pieces < request.count.unwrap_or(u64::MAX) { &[7; 1000] } else { &[] }) && Some(pieces) != request.count {
            pieces += 1;
        }
        self.captured.lock().unwrap().push(pieces);
        Ok(())
    }

    fn goto(&self, request: GotoRequest, _: &dyn Fn() -> bool) -> Result<Resumed, Problem> {
        if request.to == "nowhere" {
            return Err(Problem::new("no checkpoint \"nowhere\"; `fermata log` lists them"));
        }
        Ok(resumed(request.run, request.to))
    }

    fn fork(&self, request: ForkRequest) -> Result<Resumed, Problem> {
        assert!(request.name.as_deref() != Some("panic"), "asked to");
        Ok(resumed(request.name.clone(), request.name.unwrap_or_default()))
    }

    fn pause(&self, request: RunRequest) -> Result<Run, Problem> {
        Err(Problem::new(format!("no run {:?} to pause", request.run)))
    }

    fn resume(&self, request: RunRequest) -> Result<Run, Problem> {
        Err(Problem::new(format!("no run {:?} to resume", request.run)))
    }

    fn forward(&self, request: ForwardRequest) -> Result<ForwardOf, Problem> {
        let host = request.port.host.map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.get()));
        Ok(ForwardOf { machine: request.machine, forward: Forward { guest_port: request.port.guest.get(), host } })
    }

    fn link(&self, request: LinkRequest) -> Result<Vec<LinkEnd>, Problem> {
        Err(Problem::new(format!("no network with {}", request.interface.unwrap_or_default())))
    }

    fn cpus(&self, request: CpusRequest, _: &dyn Fn() -> bool) -> Result<Cpus, Problem> {
        Ok(Cpus { machine: request.machine, online: request.online, cpus: 4 })
    }

    fn exec(&self, request: ExecRequest, wanted: &dyn Fn() -> bool) -> Result<Executed, Problem> {
        self.busy.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while wanted() && begun.elapsed() < Duration::from_millis(request.wait_ms) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.busy.store(false, Ordering::SeqCst);
        let input = request.input.unwrap_or_default();
        let (stdout, stderr) = (input.len().to_string(), request.command.join(" "));
        Ok(Executed::new(request.machine, 3, stdout.into_bytes(), stderr.into_bytes(), false))
    }

    fn down(&self, _: DownRequest) -> Result<Ended, Problem> {
        self.ending.lock().unwrap().send(()).unwrap();
        // The process is told to end before the answer is written.
        std::thread::sleep(Duration::from_millis(200));
        Ok(Ended { experiment: "tryout".into(), runs: vec!["main".into()] })
    }

    fn activity(&self) -> Activity {
        let what = if self.busy.load(Ordering::SeqCst) { "working" } else { "" };
        Activity { what: what.into(), done: 1, total: 2, unit: "bytes".into() }
    }

    fn metrics(&self) -> Result<Vec<Metric>, Problem> {
        let labels = BTreeMap::from([("experiment".to_owned(), "tryout".to_owned())]);
        let sample = Sample { name: "fermata_runs".into(), labels, value: 1.0 };
        Ok(vec![Metric { name: "fermata_runs".into(), kind: MetricKind::Gauge, help: "Runs.".into(), samples: vec![sample] }])
    }
}

struct Setting {
    server: Option<Server>,
    client: Client,
    keeper: Arc<Pretender>,
    ending: mpsc::Receiver<()>,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

fn setting() -> Setting {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/keeper.sock");
    let (sender, ending) = mpsc::channel();
    let keeper = Arc::new(Pretender::new(sender));
    let server = Server::start(&socket, keeper.clone()).unwrap();
    let client = Client::connect(&socket).unwrap();
    Setting { server: Some(server), client, keeper, ending, socket, _directory: directory }
}

/// A raw request; the status line's number and the body.
fn raw(socket: &PathBuf, request: &[u8]) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // A server that has seen enough does not read the rest.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap_or("0").parse().unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

fn post(socket: &PathBuf, path: &str, body: &str) -> (u16, String) {
    raw(socket, format!("POST {path} HTTP/1.1\r\nHost: k\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

#[test]
fn every_request_reaches_the_keeper_and_every_answer_the_client() {
    let Setting { client, .. } = &setting();
    assert_eq!(client.status().unwrap().name, "tryout");
    let taken = client.checkpoint(CheckpointRequest { message: Some("before".into()), ..Default::default() }, &|| true).unwrap();
    assert_eq!((taken.message.as_deref(), taken.pause_ms), (Some("before"), 4.25));
    assert_eq!(client.goto(GotoRequest { to: "main~3".into(), ..Default::default() }, &|| true).unwrap().branch, "main~3");
    assert_eq!(client.fork(ForkRequest { name: Some("what-if".into()), ..Default::default() }).unwrap().run, "what-if");
    let input = Some(vec![255; EXEC_INPUT_BYTES_MAX]);
    let executed = client.exec(ExecRequest { command: vec!["wc".into(), "-c".into()], input, ..Default::default() }, &|| true).unwrap();
    assert_eq!((executed.status, executed.stdout.as_str(), executed.stderr.as_str()), (3, "8388608", "wc -c"));
    let forward = client.forward(ForwardRequest { machine: "m1".into(), port: "8080:80".parse().unwrap() }).unwrap();
    assert_eq!((forward.machine.as_str(), forward.forward.guest_port), ("m1", 80));
    assert_eq!(forward.forward.host, "127.0.0.1:8080".parse().ok());
    assert_eq!(client.activity().total, 2);
}

#[test]
fn only_its_user_may_open_the_socket() {
    let setting = setting();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&setting.socket), 0o600);
    assert_eq!(mode(setting.socket.parent().unwrap()), 0o700);
}

#[test]
fn problems_arrive_as_they_were_told() {
    let Setting { client, .. } = &setting();
    let goto = |to: &str| client.goto(GotoRequest { to: to.into(), ..Default::default() }, &|| true);
    assert!(goto(&"x".repeat(70_000)).unwrap_err().message.contains("too long"));
    let problem = goto("nowhere").unwrap_err();
    assert_eq!(problem.message, "no checkpoint \"nowhere\"; `fermata log` lists them");
}

#[test]
fn a_keeper_that_panics_answers_and_goes_on() {
    let Setting { client, .. } = &setting();
    assert!(client.fork(ForkRequest { name: Some("panic".into()), ..Default::default() }).unwrap_err().message.contains("log"));
    assert!(client.status().is_ok());
}

#[test]
fn what_is_no_request_is_refused() {
    let Setting { socket, client, .. } = &setting();
    let check = |answer: (u16, String), status: u16| {
        assert_eq!(answer.0, status, "{}", answer.1);
        assert!(!serde_json::from_str::<Problem>(&answer.1).unwrap().message.is_empty());
    };
    check(post(socket, "/v1/goto", "{"), 400);
    check(post(socket, "/v1/goto", "{\"to\": 7}"), 400);
    check(post(socket, "/v1/nothing", "{}"), 404);
    check(raw(socket, b"GET /v1/goto HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n"), 405);
    check(post(socket, "/v1/goto", &format!("{{\"to\": \"{}\"}}", "x".repeat(70_000))), 413);
    assert_eq!(raw(socket, b"\x16\x03\x01 nonsense\r\n\r\n").0, 400);
    assert!(client.status().is_ok());
}

#[test]
fn it_answers_while_it_works() {
    let Setting { client, .. } = &setting();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| client.exec(ExecRequest { wait_ms: 700, ..Default::default() }, &|| true));
        let begun = Instant::now();
        while client.activity().what != "working" {
            assert!(begun.elapsed() < Duration::from_secs(5));
        }
        assert!(work.join().unwrap().is_ok());
    });
}

#[test]
fn nobody_works_for_a_client_that_left() {
    let Setting { client, socket, .. } = &setting();
    let mut leaving = UnixStream::connect(socket).unwrap();
    let body = serde_json::to_string(&ExecRequest { wait_ms: 600_000, ..Default::default() }).unwrap();
    write!(leaving, "POST /v1/exec HTTP/1.1\r\nHost: k\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let await_that = |what: &str| {
        let begun = Instant::now();
        while client.activity().what != what {
            assert!(begun.elapsed() < Duration::from_secs(10), "waited for {what:?}");
        }
    };
    await_that("working");
    drop(leaving);
    await_that("");
}

#[test]
fn a_capture_comes_piece_by_piece_until_somebody_has_enough() {
    let Setting { client, keeper, socket, .. } = &setting();
    let capture = |count, take: &mut dyn FnMut(&[u8]) -> bool| {
        client.capture(CaptureRequest { interfaces: vec!["a:eth1".into()], count, ..Default::default() }, take)
    };
    let problem = client.capture(CaptureRequest::default(), &mut |_| true).unwrap_err();
    assert_eq!(problem.message, "of no interface");
    assert_eq!(post(socket, "/v1/capture", "[]").0, 400);
    let await_captured = |count: usize| {
        let begun = Instant::now();
        while keeper.captured.lock().unwrap().len() < count {
            assert!(begun.elapsed() < Duration::from_secs(10), "it goes on");
            std::thread::yield_now();
        }
        keeper.captured.lock().unwrap()[count - 1]
    };
    let mut all: Vec<u8> = Vec::new();
    capture(Some(1000), &mut |piece| {
        all.extend(piece);
        true
    })
    .unwrap();
    assert_eq!(all, vec![7; 1_000_000]);
    assert_eq!(await_captured(1), 1000);
    let mut bytes = 0;
    capture(None, &mut |piece| {
        bytes += piece.len();
        bytes < 5000
    })
    .unwrap();
    await_captured(2);
    // One who asks and never reads stops it, and ends it by leaving.
    let mut leaving = UnixStream::connect(socket).unwrap();
    let body = "{\"interfaces\": [\"a:eth1\"]}";
    write!(leaving, "POST /v1/capture HTTP/1.1\r\nHost: k\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    leaving.read_exact(&mut [0; 9]).unwrap();
    drop(leaving);
    await_captured(3);
}

#[test]
fn metrics_are_text_for_prometheus_and_values_for_others() {
    let Setting { client, socket, .. } = &setting();
    assert_eq!(client.metrics().unwrap()[0].samples[0].value, 1.0);
    let (status, text) = raw(socket, b"GET /metrics HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 200);
    assert_eq!(text, "# HELP fermata_runs Runs.\n# TYPE fermata_runs gauge\nfermata_runs{experiment=\"tryout\"} 1\n");
}

#[test]
fn metrics_have_a_port_of_this_host_and_nothing_else_is_there() {
    let pretender = || Arc::new(Pretender::new(mpsc::channel().0));
    let problem = Server::metrics("0.0.0.0:0".parse().unwrap(), pretender()).unwrap_err();
    assert!(problem.message.contains("this host alone"), "{problem}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    assert!(Server::metrics(address, pretender()).unwrap_err().message.contains(&address.to_string()));
    drop(free);
    let _server = Server::metrics(address, pretender()).unwrap();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/metrics").contains("fermata_runs{experiment=\"tryout\"} 1\n"));
    assert!(get("/v1/status").starts_with("HTTP/1.1 404"));
}

#[test]
fn the_answer_to_down_arrives_though_the_process_ends() {
    let Setting { client, ending, server, socket, _directory, .. } = setting();
    std::thread::scope(|scope| {
        let down = scope.spawn(|| client.down(DownRequest::default()));
        ending.recv().unwrap();
        server.unwrap().stop();
        assert_eq!(down.join().unwrap().unwrap().runs, ["main"]);
    });
    assert!(!socket.exists());
    let problem = client.status().unwrap_err();
    assert!(problem.message.contains("fermata goto ID"), "{problem}");
    assert!(Client::connect(&socket).unwrap_err().message.contains("fermata goto ID"));
}

#[test]
fn a_request_that_never_ends_does_not_keep_the_server_for_ever() {
    let mut setting = setting();
    let client = setting.client.clone();
    let stuck = std::thread::spawn(move || client.exec(ExecRequest { wait_ms: 20_000, ..Default::default() }, &|| true));
    while setting.client.activity().what != "working" {}
    let begun = Instant::now();
    setting.server.take().unwrap().stop();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(stuck.join().unwrap().unwrap_err().message.contains("ended before it answered"));
}

#[test]
fn a_dead_server_s_socket_is_replaced_and_a_living_one_s_is_not() {
    let setting = setting();
    let pretender = || Arc::new(Pretender::new(mpsc::channel().0));
    assert!(Server::start(&setting.socket, pretender()).unwrap_err().message.contains("another keeper"));
    assert!(setting.client.status().is_ok());
    let left = setting.socket.with_file_name("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(Client::connect(&left).is_err());
    let server = Server::start(&left, pretender()).unwrap();
    assert!(Client::connect(&left).unwrap().status().is_ok());
    drop(server);
}
