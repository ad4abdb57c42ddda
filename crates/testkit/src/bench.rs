//! An experiment in a scratch store, driven from inside the process.

use fermata_experiment::{Body, Host, Journey, Machine, Run, Spec, spare, spec::FreePages, travel};
use fermata_linux::clock::Stopwatch;
use fermata_store::{Record, Store};
use fermata_timeline::Keeper;
use fermata_types::CheckpointId;
use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// A store and a run directory of a test's own, gone with it.
pub struct Bench {
    /// What is run.
    pub spec: Spec,
    /// Where it is run.
    pub host: Arc<Host>,
    run_dir: PathBuf,
    _store: tempfile::TempDir,
}

impl Bench {
    /// A place for an experiment.
    pub fn new(yaml: &str) -> Self {
        Self::of(crate::guests::spec(yaml), |host| host)
    }

    /// The same for one whose memory is compared as a whole: pages that are free in the guest are kept, too.
    pub fn exact(yaml: &str) -> Self {
        let mut spec = crate::guests::spec(yaml);
        spec.capture.free = FreePages::Keep;
        Self::of(spec, |host| host)
    }

    /// The same as [`new`](Self::new), but nobody keeps book of pages that equal blocks of disks.
    pub fn without_page_map(yaml: &str) -> Self {
        Self::of(crate::guests::spec(yaml), Host::without_page_map)
    }

    fn of(spec: Spec, set: impl FnOnce(Host) -> Host) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let store = tempfile::tempdir().expect("a directory for the store");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let run_dir = PathBuf::from(format!("/dev/shm/fermata-test-{}-{number}", std::process::id()));
        let host =
            Host::new(Store::open(store.path()).expect("a store"), run_dir.join(&spec.name)).expect("a host").capturing(spec.capture);
        Self { spec, host: Arc::new(set(host)), run_dir, _store: store }
    }

    /// Boots it.
    pub fn boot(&self) -> Run {
        self.boot_as("main")
    }

    /// Boots it as a run of this name.
    pub fn boot_as(&self, name: &str) -> Run {
        Run::boot(self.host.clone(), &self.spec, name, &mut |_, _| {}).expect("it boots")
    }

    /// A keeper of it, without a run yet, in a run directory of its own.
    pub fn keeper(&self) -> Arc<Keeper> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory = self.host.run_dir().join(format!("kept-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let host = Host::new(self.host.store().clone(), directory).expect("a host").capturing(self.spec.capture);
        Keeper::new(host, self.spec.clone())
    }

    /// A second run at a checkpoint.
    pub fn arrive(&self, name: &str, id: &CheckpointId, record: &Record, how: Journey) -> Run {
        let body = spare(&self.host, id, record, &mut |_, _| {}).expect("a spare machine");
        let arrival = travel(&self.host, body, id, record, name, how).expect("a journey");
        Run::begin(self.host.clone(), &self.spec, name, arrival, true).expect("a run")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.run_dir);
    }
}

/// Stops a machine and checks the file system on its first disk: the journal replayed as a mount would, then nothing left to mend.
pub fn check_file_system(body: &Body) {
    body.machine().stop().expect("it stops");
    let disk = body.disks().next().expect("there is a disk");
    let mut content = vec![0; disk.size() as usize];
    disk.read_at(0, &mut content).expect("the disk can be read");
    let image = tempfile::NamedTempFile::new().expect("a file");
    fs::write(image.path(), content).expect("room for the image");
    let replay = Command::new("e2fsck").arg("-fp").arg(image.path()).output().expect("e2fsck runs");
    assert!(replay.status.code().is_some_and(|code| code <= 1), "{}", String::from_utf8_lossy(&replay.stdout));
    let check = Command::new("e2fsck").arg("-fn").arg(image.path()).output().expect("e2fsck runs");
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

/// What a shell in a guest prints, byte for byte. Panics if it fails, or if nothing comes back within `time`.
#[track_caller]
pub fn shell_output(machine: &Machine, time: Duration, script: &str) -> Vec<u8> {
    let command = ["sh", "-c", script].map(str::to_owned);
    let done = machine.agent().execute(&command, None, time).unwrap_or_else(|error| panic!("{script}: {error}"));
    assert_eq!(done.status, 0, "{script}: {}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    done.stdout
}

/// The same as text, without what is blank around it.
#[track_caller]
pub fn shell(machine: &Machine, time: Duration, script: &str) -> String {
    String::from_utf8_lossy(&shell_output(machine, time, script)).trim().to_owned()
}

/// What the console of the first machine printed.
pub fn console(body: &Body) -> String {
    console_of(body.machine())
}

/// What a machine's console printed.
pub fn console_of(machine: &Machine) -> String {
    String::from_utf8_lossy(&fs::read(machine.place().console_log()).unwrap_or_default()).into_owned()
}

/// Waits until the console of the first machine shows what `seen` looks for. Panics with what it shows after `time`.
pub fn await_console<T>(body: &Body, time: Duration, seen: impl Fn(&str) -> Option<T>) -> T {
    await_console_of(body.machine(), time, seen)
}

/// The same with any machine.
pub fn await_console_of<T>(machine: &Machine, time: Duration, seen: impl Fn(&str) -> Option<T>) -> T {
    let watch = Stopwatch::start();
    loop {
        let text = console_of(machine);
        if let Some(found) = seen(&text) {
            return found;
        }
        assert!(watch.elapsed() < time, "not seen in {time:?}; machine {:?}; console:\n{text}", machine.status());
        std::thread::sleep(Duration::from_millis(50));
    }
}
