//! Keepers: starting one, finding one, being one.
//!
//! A keeper is a process of its own. Whoever starts it waits for one line on its standard output, [`Birth`] as JSON, and then goes; the keeper has left
//! the terminal and stays. As long as it lives it holds a lock in its run directory, which is how anybody knows that it does.

use crate::{
    backups,
    client::Client,
    convert::{self, problem},
    desk::Desk,
    local, paths, secrets,
    server::Server,
    service::Service as _,
    spec::{CaptureMode, CaptureOptions, FreePages, Keep, Spec, TrackerChoice},
    swapping,
    values::{Activity, DownRequest, Ended, Experiment, ExperimentState, GotoRequest, Problem, Reached, Resumed, When},
};
use fermata_experiment::{Host, Journey};
use fermata_linux::{clock::Stopwatch, lock::FileLock};
use fermata_store::Store;
use fermata_timeline::{Keeper, SwapIn, history};
use fermata_types::{CheckpointId, PageNumber, VirtualTime};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    time::Duration,
};

/// What a keeper begins with.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Will {
    spec: Spec,
    store: PathBuf,
    /// Go to this checkpoint instead of booting.
    goto: Option<GotoRequest>,
    /// Come to it from a remote instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    coming: Option<Coming>,
    /// What that is encrypted with: nothing to write down.
    #[serde(skip)]
    passphrase: Option<String>,
    /// Serve metrics there too.
    #[serde(default)]
    metrics: Option<SocketAddr>,
    /// Boot though it is swapped out.
    #[serde(default)]
    force: bool,
}

/// A checkpoint that is still on a remote, and is to be gone to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Coming {
    pub checkpoint: CheckpointId,
    pub branch: String,
    pub line: Vec<CheckpointId>,
    pub working_sets: BTreeMap<String, Vec<PageNumber>>,
    pub remote: Option<String>,
    pub limit_bytes: Option<u64>,
    pub key_file: Option<PathBuf>,
    pub eager: bool,
    pub paused: bool,
}

/// How long somebody may take to start a keeper.
const STARTING_MAX: Duration = Duration::from_secs(10);

/// Whoever looks whether we live holds our lock for an instant: shorter than this.
const LOOKING_MAX: Duration = Duration::from_secs(1);

/// How long a keeper that does not answer may hold its lock until it is taken for one that lives.
const LEAVING_MAX: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// A keeper that was told to end needs this long at most to clear its things away.
const ENDING_MAX: Duration = Duration::from_secs(15);

/// How a keeper's beginning went.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Birth {
    /// It keeps.
    Ready { experiment: Box<Experiment>, resumed: Option<Resumed> },
    /// It could not, and is gone.
    Problem(Problem),
}

/// What `fermata up` starts.
#[derive(Debug, Clone)]
pub struct UpRequest {
    /// What the experiment is.
    pub spec: Spec,
    /// Milliseconds between checkpoints by the clock; none: as the specification says.
    pub every_ms: Option<u64>,
    /// When a checkpoint copies memory; none: as the specification says.
    pub capture: Option<CaptureMode>,
    /// Who tells which pages were written; none: as the specification says.
    pub tracker: Option<TrackerChoice>,
    /// Which checkpoints are kept; none: as the specification says.
    pub keep: Option<Keep>,
    /// Keep pages that are free in the guest, too; else as the specification says.
    pub exact: bool,
    /// The store.
    pub store: PathBuf,
    /// A TCP port of this host for metrics, beside the keeper's socket.
    pub metrics: Option<SocketAddr>,
    /// Boot though an experiment of this name is swapped out, and forget that it is.
    pub force: bool,
}

impl UpRequest {
    fn will(self) -> Will {
        let every = self.every_ms.map(Duration::from_millis).or(self.spec.every);
        let said = self.spec.capture;
        let capture = CaptureOptions {
            mode: self.capture.unwrap_or(said.mode),
            tracker: self.tracker.unwrap_or(said.tracker),
            free: if self.exact { FreePages::Keep } else { said.free },
            ..said
        };
        let keep = self.keep.or_else(|| self.spec.keep.clone());
        Will {
            spec: Spec { every, keep, capture, ..self.spec },
            store: self.store,
            goto: None,
            coming: None,
            passphrase: None,
            metrics: self.metrics,
            force: self.force,
        }
    }
}

/// Starts a keeper for the experiment, and waits until its machines run. `busy` is told what takes long.
pub fn up(request: UpRequest, busy: &mut dyn FnMut(Activity)) -> Result<Experiment, Problem> {
    Ok(*start(&request.will(), busy)?.0)
}

/// Keeps the experiment in this process until it is told to end.
pub fn up_in_foreground(request: UpRequest, ready: &mut dyn FnMut(&Experiment)) -> Result<(), Problem> {
    let will = request.will();
    let run_dir = paths::run_dir(&will.spec.name);
    let starting = starting(&run_dir)?;
    settle(&will, &run_dir)?;
    let kept = live(&run_dir, Some(starting), &mut |birth| {
        if let Birth::Ready { experiment, .. } = birth {
            ready(&experiment);
        }
    });
    if kept.is_err() {
        // Nobody else clears it away.
        clear_after(&run_dir, None);
    }
    kept
}

/// Starts a keeper for an experiment that has none, and goes to a checkpoint or an instant of it. `~N` alone, and an instant without a line, are counted on
/// the line of the branch `main`, or on that of the latest checkpoint where there is no such branch.
pub fn revive(store: &Path, experiment: &str, request: &GotoRequest, busy: &mut dyn FnMut(Activity)) -> Result<Resumed, Problem> {
    let opened = local::open(store)?;
    let newest = || Ok::<_, Problem>(local::newest_in(&opened, experiment)?.id);
    let line = match request.to.as_str() {
        "" => newest()?,
        steps if steps.starts_with('~') => opened.resolve(&format!("{}{steps}", newest()?), Some(experiment)).map_err(problem)?,
        name => opened.resolve(name, Some(experiment)).map_err(problem)?,
    };
    match request.when {
        None => awaken(&opened, line, request, busy),
        Some(when) => {
            let newest = opened.record(&line).map_err(problem)?.time_virtual_ns;
            let at_ns = match when {
                When::AtNs(ns) => ns,
                When::AfterNs(ns) => newest.saturating_add(ns),
            };
            let (id, _) = history::at_or_before(&opened, line, VirtualTime::from_ns(at_ns)).map_err(problem)?;
            let resumed = awaken(&opened, id, &GotoRequest { paused: true, ..request.clone() }, busy)?;
            let on = GotoRequest { when: Some(When::AtNs(at_ns)), go_on: request.go_on, ..GotoRequest::default() };
            let reached = client(experiment)?.goto(on, &|| true)?.reached;
            Ok(Resumed { reached: reached.map(|reached| Reached { went: true, ..reached }), ..resumed })
        }
    }
}

/// Starts a keeper and goes to a checkpoint.
fn awaken(opened: &Store, id: CheckpointId, request: &GotoRequest, busy: &mut dyn FnMut(Activity)) -> Result<Resumed, Problem> {
    let record = opened.record(&id).map_err(problem)?;
    let spec = serde_json::from_value(record.spec)
        .map_err(|error| Problem::new(format!("checkpoint {} has a specification that cannot be read: {error}", id.short())))?;
    let goto = GotoRequest { to: id.to_string(), when: None, ..request.clone() };
    // Whoever watched it before watches on.
    let metrics = left_will(&record.experiment).and_then(|will| will.metrics);
    let store = opened.path().to_owned();
    let (_, resumed) = start(&Will { spec, store, goto: Some(goto), coming: None, passphrase: None, metrics, force: false }, busy)?;
    resumed.ok_or_else(|| Problem::new("the keeper started and went nowhere; `fermata ls` shows what it does"))
}

/// Starts a keeper and goes to a checkpoint that is still on a remote.
pub(crate) fn swap_in(
    store: &Path,
    spec: serde_json::Value,
    coming: Coming,
    passphrase: Option<String>,
    busy: &mut dyn FnMut(Activity),
) -> Result<Resumed, Problem> {
    let short = coming.checkpoint.short();
    let spec: Spec = serde_json::from_value(spec)
        .map_err(|error| Problem::new(format!("checkpoint {short} has a specification that cannot be read: {error}")))?;
    let metrics = left_will(&spec.name).and_then(|will| will.metrics);
    let will = Will { spec, store: store.to_owned(), goto: None, coming: Some(coming), passphrase, metrics, force: false };
    let (_, resumed) = start(&will, busy)?;
    resumed.ok_or_else(|| Problem::new("the keeper started and went nowhere; `fermata ls` shows what it does"))
}

/// What the keeper was started with that an experiment had last, if it died.
fn left_will(experiment: &str) -> Option<Will> {
    serde_json::from_slice(&fs::read(paths::will(&paths::run_dir(experiment))).ok()?).ok()
}

/// Held while somebody's keeper is being started, until that holds a lock of its own; and by whoever clears a run directory away, which would else be that of somebody who has just begun.
/// Whoever holds it must not ask for it again: he would wait for himself.
fn starting(run_dir: &Path) -> Result<FileLock, Problem> {
    let root = run_dir.parent().expect("it lies among others");
    let failed = |error: io::Error| Problem::new(format!("cannot use {}, where experiments live: {error}", root.display()));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
    let lock = FileLock::of_directory(root, STARTING_MAX).map_err(failed)?;
    lock.ok_or_else(|| {
        Problem::new(format!("somebody has been starting an experiment in {} for long: is that process stuck?", root.display()))
    })
}

/// Fails if somebody keeps an experiment of this name.
pub(crate) fn check_free(name: &str) -> Result<(), Problem> {
    if is_alive(&paths::run_dir(name)) {
        return Err(Problem::new(format!(
            "an experiment {name} is running already: `fermata ls` shows it, `fermata down -e {name}` ends it, and another `name` makes another experiment"
        )));
    }
    Ok(())
}

/// Makes the run directory, unless somebody lives there, or has a claim to the name.
fn settle(will: &Will, run_dir: &Path) -> Result<(), Problem> {
    let name = &will.spec.name;
    check_free(name)?;
    let boots = will.goto.is_none() && will.coming.is_none();
    if boots && !will.force && swapping::is_out(&will.store, name) {
        return Err(Problem::new(format!(
            "{name} is swapped out: `fermata swapin {name}` brings it back. --name gives this one another name, and --force has it take the place of the other"
        )));
    }
    let failed = |what: &str, error: io::Error| Problem::new(format!("{what} {}: {error}", run_dir.display()));
    clear(run_dir).map_err(|error| failed("cannot clear away what a dead keeper left in", error))?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(run_dir).map_err(|error| failed("cannot make the run directory", error))?;
    let json = serde_json::to_vec(will).map_err(problem)?;
    fs::write(paths::will(run_dir), json).map_err(|error| failed("cannot write to the run directory", error))
}

fn start(will: &Will, busy: &mut dyn FnMut(Activity)) -> Result<(Box<Experiment>, Option<Resumed>), Problem> {
    let run_dir = paths::run_dir(&will.spec.name);
    // Two who start the same experiment at once would clear away each other's directory.
    let mut starting = Some(starting(&run_dir)?);
    settle(will, &run_dir)?;
    let failed = |error: io::Error| Problem::new(format!("cannot start a keeper: {error}"));
    let log = fs::File::create(paths::keeper_log(&run_dir)).map_err(failed)?;
    let mut keeper = Command::new(env::current_exe().map_err(failed)?)
        .args(["keeper", "--run-dir"])
        .arg(&run_dir)
        .envs(will.passphrase.as_ref().map(|words| ("FERMATA_PASSPHRASE", words)))
        .envs(secrets::handed_on(&will.store)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(failed)?;
    let output = keeper.stdout.take().expect("it was asked for");
    let (sender, birth) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let line = loop {
        match birth.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => break line.map_err(failed)?,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if is_alive(&run_dir) {
                    starting.take();
                }
                busy(client_at(&run_dir).map(|client| client.activity()).unwrap_or_default());
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break String::new(),
        }
    };
    match serde_json::from_str(&line) {
        Ok(Birth::Ready { experiment, resumed }) => Ok((experiment, resumed)),
        Ok(Birth::Problem(problem)) => {
            let _ = keeper.wait();
            clear_after(&run_dir, starting);
            Err(problem)
        }
        Err(_) => {
            let _ = keeper.kill();
            let _ = keeper.wait();
            let log = fs::read_to_string(paths::keeper_log(&run_dir)).unwrap_or_default();
            // Its memory files would take room for nothing.
            clear_after(&run_dir, starting);
            Err(Problem::new(format!("the keeper ended before it was ready; it said: {}", log.lines().last().unwrap_or("nothing"))))
        }
    }
}

/// The body of a keeper's process.
pub fn keep(run_dir: &Path) -> Result<(), Problem> {
    // It fails only for a process group's leader, which is started by hand and then stays in its terminal.
    let _ = fermata_linux::leave_terminal();
    live(run_dir, None, &mut |birth| {
        let mut line = serde_json::to_string(&birth).unwrap_or_default();
        line.push('\n');
        let _ = io::stdout().write_all(line.as_bytes());
        let _ = io::stdout().flush();
    })
}

/// Keeps until it is told to end. Whoever is `starting` it in this process is, until it holds its own lock.
fn live(run_dir: &Path, starting_it: Option<FileLock>, born: &mut dyn FnMut(Birth)) -> Result<(), Problem> {
    local::log_to_stderr();
    let (over, ended) = mpsc::channel();
    let told = over.clone();
    fermata_linux::signals::on_termination(move || {
        let _ = told.send(());
    })
    .map_err(|error| Problem::new(format!("cannot watch for signals: {error}")))?;
    let result = begin(run_dir, starting_it, over);
    let (keeper, servers) = match result {
        Ok((lock, keeper, servers, birth)) => {
            born(birth);
            // Whoever waits for its end waits for that of the process.
            std::mem::forget(lock);
            (keeper, servers)
        }
        Err(problem) => {
            born(Birth::Problem(problem.clone()));
            return Err(problem);
        }
    };
    let _ = ended.recv();
    let _ = keeper.down(None);
    // The answer to the request that ended us still has to leave.
    servers.into_iter().for_each(Server::stop);
    drop(keeper);
    // The lock goes with the directory: from then on others may settle here, and not before all of it is gone.
    let _alone = starting(run_dir)?;
    clear(run_dir).map_err(|error| Problem::new(format!("cannot clear {}: {error}", run_dir.display())))
}

type Begun = (FileLock, Arc<Keeper>, Vec<Server>, Birth);

fn begin(run_dir: &Path, starting_it: Option<FileLock>, over: mpsc::Sender<()>) -> Result<Begun, Problem> {
    let read = |error: io::Error| Problem::new(format!("cannot keep {}: {error}", run_dir.display()));
    let lock = FileLock::take_within(&paths::lock(run_dir), LOOKING_MAX).map_err(read)?;
    let lock = lock.ok_or_else(|| Problem::new(format!("{} is kept already", run_dir.display())))?;
    // Others need not wait until the machines have booted.
    drop(starting_it);
    let will: Will = serde_json::from_slice(&fs::read(paths::will(run_dir)).map_err(read)?).map_err(problem)?;
    let opened = local::made(&will.store)?;
    let host = Host::new(opened, run_dir.to_owned()).map_err(problem)?.capturing(will.spec.capture);
    let keeper = Keeper::new(host, will.spec);
    let desk = Arc::new(Desk::new(keeper.clone(), over));
    let mut servers = vec![Server::start(&paths::socket(run_dir), desk.clone())?];
    if let Some(address) = will.metrics {
        servers.push(Server::metrics(address, desk.clone())?);
    }
    let (store, name) = (keeper.host().store().path().to_owned(), keeper.spec().name.clone());
    let resumed = match (&will.goto, will.coming) {
        (_, Some(coming)) => keeper.swap_in(from_afar(&store, &name, coming)?).map(Some),
        (None, None) => keeper.boot().map(|()| None),
        (Some(goto), None) => keeper
            .host()
            .store()
            .resolve(&goto.to, None)
            .map_err(Into::into)
            .and_then(|id| {
                let how = Journey { eager: goto.eager, paused: goto.paused, perturbation: goto.perturbation, ..Journey::default() };
                keeper.revive(id, how)
            })
            .map(Some),
    };
    let resumed = match resumed {
        Ok(resumed) => resumed.map(convert::resumed),
        Err(error) => {
            let _ = keeper.down(None);
            return Err(problem(error));
        }
    };
    backups::watch(&keeper);
    desk.leave_note();
    if keeper.loading().is_none() {
        // All of it is here, and runs: whatever was swapped out is out no longer.
        swapping::forget(&store, &name);
    }
    let birth = Birth::Ready { experiment: Box::new(desk.experiment(false)), resumed };
    Ok((lock, keeper, servers, birth))
}

/// What comes from a remote. When all of it is here, nothing is swapped out any more.
fn from_afar(store: &Path, experiment: &str, coming: Coming) -> Result<SwapIn, Problem> {
    let [asked, behind] = swapping::lines(store, experiment, &coming)?;
    let Coming { checkpoint, branch, line, working_sets, eager, paused, .. } = coming;
    let (store, experiment) = (store.to_owned(), experiment.to_owned());
    let arrived = Box::new(move || swapping::forget(&store, &experiment));
    Ok(SwapIn { checkpoint, branch, line, asked, behind, working_sets, eager, paused, arrived })
}

/// Clears away what a dead keeper left in its run directory. Its checkpoints stay.
pub fn bury(experiment: &str) -> Result<Ended, Problem> {
    let run_dir = paths::run_dir(experiment);
    let _alone = starting(&run_dir)?;
    if is_alive(&run_dir) {
        return Err(Problem::new(format!("{experiment} is running: `fermata down -e {experiment}` ends it")));
    }
    let runs = last_known(&run_dir).map(|known| known.runs.into_iter().map(|run| run.name).collect()).unwrap_or_default();
    clear(&run_dir).map_err(|error| Problem::new(format!("cannot clear {}: {error}", run_dir.display())))?;
    Ok(Ended { experiment: experiment.to_owned(), runs })
}

/// Ends a run, or an experiment with all its runs. A keeper that ended with it is gone then, and has left its place to the next.
pub fn end(keeper: &Client, experiment: &str, run: Option<String>) -> Result<Ended, Problem> {
    // Opened before the keeper removes it.
    let lock = FileLock::watch(&paths::lock(&paths::run_dir(experiment)));
    let all = run.is_none();
    let ended = keeper.down(DownRequest { run })?;
    // A keeper that ends with its last run may still answer for a moment.
    if (all || keeper.status().map_or(true, |experiment| experiment.runs.is_empty())) && !lock.free_within(ENDING_MAX) {
        tracing::warn!("the keeper of {experiment} has ended its machines, and does not end itself; `fermata ls` shows what it does");
    }
    Ok(ended)
}

/// The keeper of a living experiment.
pub fn client(experiment: &str) -> Result<Client, Problem> {
    client_at(&paths::run_dir(experiment))
}

fn client_at(run_dir: &Path) -> Result<Client, Problem> {
    Client::connect(&paths::socket(run_dir))
}

/// Experiments of this user on this host, of one store or of all, living and dead.
pub fn experiments(store: Option<&Path>) -> Result<Vec<Experiment>, Problem> {
    let root = paths::run_root();
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Problem::new(format!("cannot list {}: {error}", root.display()))),
    };
    let mut found: Vec<_> = entries.flatten().filter_map(|entry| experiment_in(&entry.path())).collect();
    let wanted = store.and_then(|store| fs::canonicalize(store).ok());
    found.retain(|experiment| store.is_none() || fs::canonicalize(&experiment.store).ok() == wanted);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn experiment_in(run_dir: &Path) -> Option<Experiment> {
    let ask = || is_alive(run_dir).then(|| client_at(run_dir).and_then(|client| client.status()));
    let mut answer = ask();
    // The kernel closes a dying keeper's socket some time before its lock: not every one that does not answer lives.
    let watch = Stopwatch::start();
    while matches!(answer, Some(Err(_))) && watch.elapsed() < LEAVING_MAX {
        std::thread::sleep(BETWEEN_LOOKS);
        answer = ask();
    }
    match answer {
        Some(Ok(experiment)) => Some(experiment),
        Some(Err(problem)) => last_known(run_dir).map(|known| {
            let trouble =
                format!("its keeper lives and does not say what it does ({problem}); keeper.log in {} may tell more", run_dir.display());
            Experiment { state: ExperimentState::Running, spare_ready: false, trouble: Some(trouble), ..known }
        }),
        None => last_known(run_dir).map(|known| Experiment { state: ExperimentState::Dead, spare_ready: false, ..known }),
    }
}

fn last_known(run_dir: &Path) -> Option<Experiment> {
    let mut known: Experiment = serde_json::from_slice(&fs::read(paths::last_known(run_dir)).ok()?).ok()?;
    // What was noted is older than the last checkpoints; the store knows better.
    if let Ok(branches) = local::open(&known.store).and_then(|store| store.branches(&known.name).map_err(problem)) {
        for run in &mut known.runs {
            run.head = branches.get(&run.branch).copied().or(run.head);
        }
    }
    Some(known)
}

fn is_alive(run_dir: &Path) -> bool {
    FileLock::is_held(&paths::lock(run_dir))
}

fn clear(run_dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(run_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Clears away what a keeper left that has failed, unless somebody else has begun there since. Who is still starting it hands in the lock that he holds. What stays is cleared away by the next.
fn clear_after(run_dir: &Path, held: Option<FileLock>) {
    if let Ok(_alone) = held.map_or_else(|| starting(run_dir), Ok)
        && !is_alive(run_dir)
    {
        let _ = clear(run_dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_failed_clears_away_only_his_own() {
        let root = tempfile::tempdir().unwrap();
        let run_dir = root.path().join("lab");
        let begin = || {
            fs::create_dir_all(&run_dir).unwrap();
            FileLock::try_take(&paths::lock(&run_dir)).unwrap().expect("nobody lives there")
        };
        // Somebody else has begun since.
        let lives = begin();
        clear_after(&run_dir, None);
        clear_after(&run_dir, Some(starting(&run_dir).unwrap()));
        assert!(run_dir.exists(), "it is his now");
        drop(lives);
        // Whoever holds the lock does not wait for it, and it is free afterwards.
        clear_after(&run_dir, Some(starting(&run_dir).unwrap()));
        assert!(!run_dir.exists());
        drop(begin());
        clear_after(&run_dir, None);
        assert!(!run_dir.exists());
    }

    #[test]
    fn what_is_swapped_out_is_not_booted_over() {
        let place = tempfile::tempdir().unwrap();
        let store = place.path().join("store");
        fs::create_dir_all(store.join("swapped")).unwrap();
        // Nobody keeps one that is called like this.
        let name = format!("lab-{}", std::process::id());
        fs::write(store.join(format!("swapped/{name}.json")), b"{}").unwrap();
        let spec: Spec = serde_json::from_value(serde_json::json!({"name": name, "nodes": {"m1": {"disks": [{"size": "4M"}]}}})).unwrap();
        let will = |goto: Option<GotoRequest>, force| Will {
            spec: spec.clone(),
            store: store.clone(),
            goto,
            coming: None,
            passphrase: None,
            metrics: None,
            force,
        };
        let run_dir = place.path().join("run").join(&name);
        let refused = settle(&will(None, false), &run_dir).unwrap_err().message;
        assert!(refused.contains(&format!("`fermata swapin {name}`")) && refused.contains("--name"), "{refused}");
        assert!(!run_dir.exists());
        settle(&will(None, true), &run_dir).unwrap();
        settle(&will(Some(GotoRequest::default()), false), &run_dir).unwrap();
        assert!(run_dir.exists());
    }
}
