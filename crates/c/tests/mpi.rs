//! Programs of MPI, compiled as a user would, with each implementation that this host has: killed at random they come to the right answer, and what does not go with checkpoints is told.

mod common;

use fermata_process::ranks::{Error, Event, Mode, Options, Outcome, Transport, host};
use fermata_store::Store;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

/// Debian's names of an implementation's commands.
struct Mpi {
    name: &'static str,
    mpicc: &'static str,
    mpirun: &'static [&'static str],
}

const IMPLEMENTATIONS: [Mpi; 2] = [
    Mpi { name: "Open MPI", mpicc: "mpicc.openmpi", mpirun: &["mpirun.openmpi", "--oversubscribe"] },
    Mpi { name: "MPICH", mpicc: "mpicc.mpich", mpirun: &["mpirun.mpich"] },
];

/// Those that are here. For each other one it is told that it is not tried.
fn implementations() -> Vec<Mpi> {
    IMPLEMENTATIONS
        .into_iter()
        .filter(|mpi| {
            let is_here =
                |command: &str| Command::new(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
            let here = is_here(mpi.mpicc) && is_here(mpi.mpirun[0]);
            if !here {
                // Past what holds a test's output back.
                let _ = writeln!(
                    std::io::stderr(),
                    "skipped: programs of MPI with {}, for want of {} and {}",
                    mpi.name,
                    mpi.mpicc,
                    mpi.mpirun[0]
                );
            }
            here
        })
        .collect()
}

fn compile(mpi: &Mpi, source: &str, place: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = place.join(Path::new(source).file_stem().expect("a name"));
    let compiled = Command::new(mpi.mpicc)
        // The last: what MPICH's header says of a status that is to be ignored.
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-Wno-stringop-overflow"])
        .arg(here.join(source))
        .args(["", "_requests", "_collective", "_refused"].map(|part| here.join(format!("mpi/fermata_mpi{part}.c"))))
        .args(["-I".as_ref(), here.join("include").as_os_str(), "-I".as_ref(), here.join("mpi").as_os_str()])
        .arg("-o")
        .arg(&program)
        .args(common::linked())
        .status()
        .expect("mpicc runs");
    assert!(compiled.success(), "{source} with {}", mpi.name);
    program
}

fn options(mpi: &Mpi, program: &Path, args: &str) -> Options {
    let mut options = Options::new("mpi", 4, program);
    options.args = args.split(' ').map(str::to_owned).collect();
    options.transport = Transport::Mpi;
    options.mpirun = mpi.mpirun.iter().map(|word| (*word).to_owned()).collect();
    options.every = Some(Duration::from_millis(20));
    options.retries = 50;
    // Containers have no user but root.
    options.environment =
        ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].map(|name| (name.to_owned(), "1".to_owned())).to_vec();
    options
}

fn below(end: u64) -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()) / 1000) % end
}

/// Kills a rank now and then, so often in all.
struct Killer {
    pids: Mutex<Vec<u32>>,
    over: AtomicBool,
}

impl Killer {
    fn work(&self, program: &Path, times: usize) {
        let mut left = times;
        while left > 0 {
            thread::sleep(Duration::from_millis(100 + below(700)));
            let pids = self.pids.lock().expect("nobody panics with it");
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let Some(pid) = pids.get(below(pids.len().max(1) as u64) as usize) else { continue };
            left -= 1;
            // `mpirun` may have waited for it, and its number be another's.
            if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program) {
                let _ = kill_process(Pid::from_raw(*pid as i32).expect("a process"), Signal::KILL);
            }
        }
    }

    fn see(&self, event: &Event) {
        match event {
            Event::Started { pids, .. } => self.pids.lock().expect("nobody panics with it").clone_from(pids),
            Event::Back { .. } => self.pids.lock().expect("nobody panics with it").clear(),
            _ => {}
        }
    }
}

/// What came out, and how often all went back to a checkpoint, and not to the beginning.
fn run_killed(options: &Options, kills: usize) -> (Outcome, u64) {
    let mut resumed = 0;
    loop {
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::open(&place.path().join("store")).expect("a store");
        let killer = Killer { pids: Mutex::default(), over: AtomicBool::new(false) };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| killer.work(&options.program, kills));
            let outcome = host::run(&store, options, &mut |event| {
                resumed += u64::from(matches!(event, Event::Started { ccn, .. } if ccn > 0));
                killer.see(&event);
            });
            killer.over.store(true, Ordering::SeqCst);
            outcome
        });
        match outcome {
            Ok(outcome) => return (outcome, resumed),
            // Killed behind MPI_Finalize, where nobody goes back any more: as either mpirun says it.
            Err(Error::Ended(why)) if why.ends_with("exit status: 137") || why.ends_with("exit status: 9") => {}
            // What is not right says so by its exit status.
            Err(error) => panic!("{:?} {:?}: {error}", options.program, options.args),
        }
    }
}

fn is_long() -> bool {
    env::var_os("FERMATA_LONG").is_some()
}

/// Of several runs of a program.
#[derive(Debug, Default)]
struct Seen {
    resumed: u64,
    permanent: usize,
    late: u64,
    held: u64,
}

fn killed_at_random(source: &str, args: &str) {
    for mpi in implementations() {
        let place = tempfile::tempdir().expect("a directory");
        let program = compile(&mpi, source, place.path());
        let mut seen = Seen::default();
        let (least, most) = if is_long() { (30, 60) } else { (1, 10) };
        let is_skewed = source.ends_with("skew.c");
        for run in 0..most {
            if run >= least && seen.resumed >= 2 && seen.permanent > 0 && (!is_skewed || seen.late.min(seen.held) > 0) {
                break;
            }
            let (outcome, resumed) = run_killed(&options(&mpi, &program, args), 4);
            seen.resumed += resumed;
            seen.permanent += outcome.checkpoints.len();
            seen.late += outcome.checkpoints.iter().map(|taken| taken.late_messages).sum::<u64>();
            seen.held += outcome.checkpoints.iter().map(|taken| taken.held_messages).sum::<u64>();
        }
        println!("{source} with {}: {seen:?}", mpi.name);
        assert!(seen.resumed > 0 && seen.permanent > 0, "{source} with {}: {seen:?}", mpi.name);
        if is_skewed {
            assert!(seen.late > 0 && seen.held > 0, "{source} with {}: {seen:?}", mpi.name);
        }
    }
}

#[test]
fn a_divided_plate_survives() {
    killed_at_random("mpi/examples/jacobi.c", "240 6000");
}

#[test]
fn a_queue_of_work_survives() {
    killed_at_random("mpi/examples/queue.c", "3000");
}

/// Every kind of call, with delays: messages are sent before a checkpoint and received behind it, and the other way round.
#[test]
fn ranks_that_dawdle_survive() {
    killed_at_random("tests/skew.c", "1500 800");
}

#[test]
fn what_is_amiss_is_told() {
    for mpi in implementations() {
        let place = tempfile::tempdir().expect("a directory");
        let program = compile(&mpi, "tests/amiss.c", place.path());
        let store = Store::open(&place.path().join("store")).expect("a store");
        let told = |what: &str| {
            let options = Options { ranks: 2, ..options(&mpi, &program, what) };
            host::run(&store, &options, &mut |_| {})
        };
        assert!(told("nothing").is_ok());
        for (what, part) in [
            ("refused", "MPI_Mprobe"),
            ("open", "1 requests are open"),
            ("before", "sent before the first call"),
            ("never", "has not called fermata_mpi_checkpoint"),
            ("communicator", "MPI_Comm_dup after the first call"),
            ("memory", "before the first call"),
            ("abort", "MPI_Abort with 7"),
        ] {
            match told(what) {
                Err(Error::Program { why, .. }) => assert!(why.contains(part), "{what}: {why}"),
                other => panic!("{what} with {}: {other:?}", mpi.name),
            }
        }
        assert!(matches!(told("status"), Err(Error::Ended(_))));
        let waiting = Options { mode: Mode::Blocking, ..options(&mpi, &program, "nothing") };
        assert!(matches!(host::run(&store, &waiting, &mut |_| {}), Err(Error::Refused(_))));
    }
}
