//! The real program in a place of its own: a scratch store, a scratch run directory, and nothing left behind, even after a panic.

use fermata_linux::clock::Stopwatch;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read, Seek},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

/// No command takes longer. One that does hangs.
const PATIENCE: Duration = Duration::from_secs(100);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// How long is waited after a look that took as long as one that starts a program may.
const BETWEEN_LOOKS_MAX: Duration = Duration::from_millis(100);

/// The command line, as a user has it.
pub struct Cli {
    directory: tempfile::TempDir,
    run_root: PathBuf,
    variables: BTreeMap<String, PathBuf>,
    mounts: Vec<PathBuf>,
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Said {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Cli {
    /// A place for experiments. The store is in `store` below [`path`](Self::path).
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().expect("a directory");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let run_root = PathBuf::from(format!("/dev/shm/fermata-cli-{}-{number}", std::process::id()));
        let variables = [("FERMATA_STORE", directory.path().join("store")), ("FERMATA_RUN_DIR", run_root.clone())];
        Self { variables: variables.map(|(name, value)| (name.to_owned(), value)).into(), directory, run_root, mounts: Vec::new() }
    }

    /// Where commands run.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The store.
    pub fn store(&self) -> &Path {
        &self.variables["FERMATA_STORE"]
    }

    /// The directory of all run directories.
    pub fn run_root(&self) -> &Path {
        &self.run_root
    }

    /// Sets a variable of the environment of all commands from now on. A keeper has those that it was started with.
    pub fn set(&mut self, name: &str, value: impl Into<PathBuf>) {
        self.variables.insert(name.to_owned(), value.into());
    }

    /// Takes such a variable away.
    pub fn unset(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Writes a file, and gives its path.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// A copy of the tiny guest's disk, to be changed at will.
    pub fn disk(&self) -> PathBuf {
        let path = self.path().join("disk.raw");
        let copied = Command::new("cp").arg("--sparse=always").arg(crate::guests::file("tiny-disk.raw")).arg(&path).status();
        assert!(copied.expect("cp runs").success());
        path
    }

    /// A small tmpfs, gone with this; none where we may not mount.
    pub fn mount(&mut self, name: &str, size: &str) -> Option<PathBuf> {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        let options = format!("mode=0700,size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "fermata-test"]).arg(&path).stderr(Stdio::null()).status();
        let done = mounted.is_ok_and(|status| status.success()).then(|| path.clone());
        self.mounts.extend(done.clone());
        done
    }

    /// Makes a directory read-only for all who come through its path; false where we may not.
    pub fn protect(&mut self, directory: &Path) -> bool {
        let mount = |options: &[&str]| {
            let done = Command::new("mount").args(options).arg(directory).arg(directory).stderr(Stdio::null()).status();
            done.is_ok_and(|status| status.success())
        };
        let done = mount(&["--bind"]) && mount(&["-o", "remount,bind,ro"]);
        self.mounts.push(directory.to_owned());
        done
    }

    /// Takes that back.
    pub fn unprotect(&mut self, directory: &Path) {
        let done = Command::new("umount").arg("-l").arg(directory).status();
        assert!(done.is_ok_and(|status| status.success()), "{} stays read-only", directory.display());
        self.mounts.retain(|mount| mount != directory);
    }

    /// The program with arguments, not yet started.
    pub fn command<A: AsRef<str>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(program());
        command.args(arguments.iter().map(AsRef::as_ref)).current_dir(self.path()).stdin(Stdio::null());
        command.env_remove("FERMATA_EXPERIMENT").env_remove("FERMATA_QEMU").envs(&self.variables);
        command
    }

    /// Runs a command to its end. Panics if it hangs.
    #[track_caller]
    pub fn run<A: AsRef<str>>(&self, arguments: &[A]) -> Said {
        let shown = || arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ");
        let [mut stdout, mut stderr] = std::array::from_fn(|_| tempfile::tempfile().expect("a file"));
        let mut command = self.command(arguments);
        command.stdout(stdout.try_clone().expect("a descriptor")).stderr(stderr.try_clone().expect("a descriptor"));
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program().display()));
        let status = end(&mut child, PATIENCE).unwrap_or_else(|| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("fermata {} does not end; it said {} {}", shown(), text(&mut stdout), text(&mut stderr))
        });
        Said { status, stdout: text(&mut stdout), stderr: text(&mut stderr) }
    }

    /// What a command prints that succeeds.
    #[track_caller]
    pub fn ok<A: AsRef<str>>(&self, arguments: &[A]) -> String {
        let said = self.run(arguments);
        let shown: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        assert_eq!(said.status.code(), Some(0), "fermata {}: {said:?}", shown.join(" "));
        said.stdout
    }

    /// The one JSON value that a command prints that succeeds.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.ok(&[&["--json"], arguments].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("fermata {}: {error} in {said}", arguments.join(" ")))
    }

    /// What a command says that fails, with this status and all of these words.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str], status: i32, words: &[&str]) -> String {
        let said = self.run(arguments);
        let shown = arguments.join(" ");
        assert_eq!(said.status.code(), Some(status), "fermata {shown}: {said:?}");
        let message = said.stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        let missing: Vec<_> = words.iter().filter(|word| !message.contains(**word)).collect();
        assert!(missing.is_empty(), "fermata {shown} does not say {missing:?}:\n{}", said.stderr);
        assert!(said.stdout.is_empty(), "fermata {shown}: {said:?}");
        message
    }

    /// What a shell in a guest prints.
    #[track_caller]
    pub fn shell(&self, machine: &str, script: &str) -> String {
        self.ok(&["exec", machine, "--", "sh", "-c", script]).trim().to_owned()
    }

    /// Seconds since a guest booted, as it sees them.
    #[track_caller]
    pub fn uptime(&self, machine: &str) -> f64 {
        let text = self.shell(machine, "cut -d' ' -f1 /proc/uptime");
        text.parse().unwrap_or_else(|_| panic!("no uptime: {text}"))
    }

    /// The id of a new checkpoint.
    #[track_caller]
    pub fn checkpoint(&self, message: &str) -> String {
        string(&self.json(&["checkpoint", "-m", message])["id"]).to_owned()
    }

    /// A machine as `ls` shows it.
    #[track_caller]
    pub fn machine(&self, run: &str) -> Value {
        // On a busy host QEMU may have no time to answer for a while.
        let watch = Stopwatch::start();
        loop {
            let machine = self.glance(run);
            if machine["state"] != "silent" || watch.elapsed() > PATIENCE {
                return machine;
            }
        }
    }

    /// The same, also of one that does not answer.
    #[track_caller]
    fn glance(&self, run: &str) -> Value {
        let all = self.json(&["ls"]);
        let runs = all.as_array().into_iter().flatten().flat_map(|experiment| experiment["runs"].as_array().into_iter().flatten());
        let found = runs.into_iter().find(|candidate| candidate["name"] == run).unwrap_or_else(|| panic!("no run {run}: {all}"));
        found["machines"][0].clone()
    }

    /// What the console of a run's machine printed since its QEMU began.
    #[track_caller]
    pub fn console(&self, run: &str) -> String {
        let line = command_line(count(&self.machine(run)["pid"]));
        let line = String::from_utf8_lossy(&line).into_owned();
        let path = line.split(',').find_map(|option| option.strip_prefix("logfile=")).unwrap_or_default();
        fs::read_to_string(path).unwrap_or_default()
    }

    /// Processes that have our run directories on their command lines: keepers and their QEMUs. A corpse has no command line.
    pub fn processes(&self) -> Vec<u64> {
        let roots = [self.run_root.as_path(), self.path()].map(|root| root.as_os_str().as_bytes());
        let ours = |pid: &u64| {
            let line = command_line(*pid);
            roots.iter().any(|root| line.windows(root.len()).any(|window| window == *root))
        };
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours).collect()
    }
}

impl Default for Cli {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Cli {
    fn drop(&mut self) {
        // The keepers first, whose end is their QEMUs'; then whatever would have stayed.
        for _ in 0..2 {
            self.processes().into_iter().for_each(kill);
            let watch = Stopwatch::start();
            while !self.processes().is_empty() && watch.elapsed() < Duration::from_secs(5) {
                thread::sleep(BETWEEN_LOOKS);
            }
        }
        let _ = fs::remove_dir_all(&self.run_root);
        for mount in &self.mounts {
            let _ = Command::new("umount").arg("-l").arg(mount).status();
        }
    }
}

/// `$FERMATA_BIN`, else the program that was built beside this test.
pub fn program() -> PathBuf {
    let beside = || Some(env::current_exe().ok()?.parent()?.parent()?.join("fermata"));
    let path = env::var_os("FERMATA_BIN").map(PathBuf::from).or_else(beside).expect("the test has a path");
    assert!(path.exists(), "{} is missing: build fermata-cli, or set FERMATA_BIN", path.display());
    path
}

/// The words of a process, each with a NUL behind it; none of one that is gone.
pub fn command_line(pid: u64) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

/// Kills a process, as the kernel does when memory is short.
pub fn kill(pid: u64) {
    let _ = Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).stderr(Stdio::null()).status();
}

/// How a process ends, if it does within this time.
pub fn end(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let watch = Stopwatch::start();
    loop {
        match child.try_wait().expect("it is our child") {
            Some(status) => return Some(status),
            None if watch.elapsed() > time => return None,
            None => thread::sleep(BETWEEN_LOOKS),
        }
    }
}

/// Waits until something is so. Panics after this time.
#[track_caller]
pub fn await_that(what: &str, time: Duration, so: impl Fn() -> bool) {
    let watch = Stopwatch::start();
    loop {
        let look = Stopwatch::start();
        if so() {
            return;
        }
        assert!(watch.elapsed() < time, "waited {time:?}, and still not: {what}");
        // Most looks start a program. One right after the other they would keep a processor busy, which the guests need that are waited for.
        thread::sleep((look.elapsed() * 4).clamp(BETWEEN_LOOKS, BETWEEN_LOOKS_MAX));
    }
}

/// A JSON string.
#[track_caller]
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no string: {value}"))
}

/// A JSON number that counts something.
#[track_caller]
pub fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

/// A JSON array.
#[track_caller]
pub fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no array: {value}"))
}

fn text(file: &mut fs::File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a file that can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}
