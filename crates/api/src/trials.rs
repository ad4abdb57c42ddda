//! One checkpoint lived through again and again: a fork of it, what is changed there, some virtual time, a script, and the fork's end.
//!
//! It asks a keeper for what any client could, and knows nothing that others do not.

use crate::{
    client::Client,
    convert::problem,
    housekeeping::{self, RemoveRequest},
    local,
    net::Change,
    service::Service,
    values::{
        CpusRequest, DownRequest, ExecRequest, Experiment, ForkRequest, GotoRequest, LinkRequest, Outcome, Problem, Resumed, RunRequest,
        When,
    },
};
use fermata_linux::signals::end_group;
use fermata_store::Hold;
use fermata_timeline::retention;
use fermata_types::{CheckpointId, Perturbation};
use std::{
    collections::BTreeSet,
    io::{self, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// Between two looks at whether somebody wants an end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How long a command waits for a guest's agent, milliseconds.
const AGENT_WAIT_MS: u64 = 60_000;
/// Of what a script prints.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// What is done in a fork.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The checkpoint that it begins at.
    pub from: CheckpointId,
    /// What links do otherwise than they did, if anything.
    pub perturbation: Option<Perturbation>,
    /// Links that change at once: an interface, and what becomes different there.
    pub changes: Vec<(String, Change)>,
    /// How many processors of each machine are online, from the beginning on; none: as many as were.
    pub cpus: Option<u32>,
    /// Commands that are run at once: the machine, and what its shell is given.
    pub before: Vec<(String, String)>,
    /// Variables of the environment of those commands and of the script.
    pub variables: Vec<(String, String)>,
    /// The script begins when so much virtual time has passed since the checkpoint.
    pub wait_ns: u64,
    /// What a shell is given then.
    pub script: String,
    /// The machine whose shell it is; none: that of this host.
    pub machine: Option<String>,
    /// The fork goes on afterwards.
    pub keep: bool,
}

impl Outcome {
    /// The last line that it printed; if it printed nothing, that it complained with.
    pub fn last_line(&self) -> &str {
        let lines = self.stdout.lines().rev().chain(self.stderr.lines().rev());
        lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
    }
}

/// Where trials are made: beside the runs of an experiment that lives.
#[derive(Debug)]
pub struct Lab {
    keeper: Client,
    experiment: String,
    store: PathBuf,
    interrupted: Arc<AtomicBool>,
}

/// A fork that ends when this does, with the checkpoints that it took.
struct Fork<'a> {
    lab: &'a Lab,
    resumed: Resumed,
    keep: bool,
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        // A keeper that does not answer any more has ended it, too.
        let _ = self.lab.keeper.down(DownRequest { run: Some(self.resumed.run.clone()) });
        let branches = vec![self.resumed.branch.clone()];
        // It took none, or somebody has tagged one and wants it.
        let _ = housekeeping::remove(
            &self.lab.store,
            &RemoveRequest { experiment: self.lab.experiment.clone(), branches, ..RemoveRequest::default() },
        );
    }
}

/// Checkpoints that stay as long as this lives, by tags: between two trials no fork stands on them, and a keeper whose specification says `keep` might remove them.
struct Kept<'a> {
    store: &'a Path,
    experiment: &'a str,
    /// With what tells that they are still wanted: the tags of one that was killed stay until somebody prunes.
    tags: Vec<(String, Hold)>,
}

impl<'a> Kept<'a> {
    /// One that nobody removes by himself, or that cannot be tagged, is left as it is.
    fn new(store: &'a Path, experiment: &'a str, checkpoints: BTreeSet<CheckpointId>) -> Self {
        let tag = |id: CheckpointId| {
            let opened = local::open(store).ok()?;
            opened.record(&id).ok()?.spec.get("keep")?;
            let hold = opened.hold(&id).ok()?;
            // Of others who try the same at the same time each has his own.
            let name = format!("{}{}-{}", retention::TRIAL, std::process::id(), id.short());
            let tag = local::tag(store, Some(experiment), &id.to_string(), &name).ok()?;
            Some((tag.tag, hold))
        };
        Self { store, experiment, tags: checkpoints.into_iter().filter_map(tag).collect() }
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        for (tag, _) in &self.tags {
            // Somebody may have taken it away.
            let _ = local::untag(self.store, Some(self.experiment), tag);
        }
    }
}

impl Lab {
    /// A lab in this experiment. When it is `interrupted`, trials end soon, and their forks with them.
    pub fn new(keeper: Client, experiment: &Experiment, interrupted: Arc<AtomicBool>) -> Self {
        Self { keeper, experiment: experiment.name.clone(), store: experiment.store.clone(), interrupted }
    }

    /// Makes trials, so many side by side, and tells of each when it is over. In the order in which they were given.
    pub fn all(
        &self,
        trials: &[Trial],
        side_by_side: usize,
        told: &(dyn Fn(usize, &Result<Outcome, Problem>) + Sync),
    ) -> Vec<Result<Outcome, Problem>> {
        let _kept = Kept::new(&self.store, &self.experiment, trials.iter().map(|trial| trial.from).collect());
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((number, trial)) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| Some((number, trials.get(number)?)))
            {
                let result = self.one(trial);
                told(number, &result);
                results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
            }
        };
        thread::scope(|scope| (0..side_by_side.clamp(1, trials.len().max(1))).for_each(|_| drop(scope.spawn(work))));
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.sort_by_key(|(number, _)| *number);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Makes one trial.
    pub fn one(&self, trial: &Trial) -> Result<Outcome, Problem> {
        self.check()?;
        // It stands still until all is as it is to be. That it draws the same random numbers is what makes trials comparable.
        let (from, perturbation) = (Some(trial.from.to_string()), trial.perturbation);
        let request = ForkRequest { from, perturbation, same_randomness: true, paused: true, ..ForkRequest::default() };
        let fork = Fork { lab: self, resumed: self.keeper.fork(request)?, keep: trial.keep };
        let run = fork.resumed.run.clone();
        for (interface, change) in &trial.changes {
            let request = LinkRequest { run: Some(run.clone()), interface: Some(interface.clone()), change: Some(change.clone()) };
            self.keeper.link(request)?;
        }
        let resumed = self.keeper.resume(RunRequest { run: Some(run.clone()), ..RunRequest::default() })?;
        if let Some(online) = trial.cpus {
            for machine in &resumed.machines {
                let request = CpusRequest { machine: format!("{run}:{}", machine.name), online, wait_ms: AGENT_WAIT_MS };
                self.patiently(move |keeper| keeper.cpus(request, &|| true))?;
            }
        }
        let variables = self.variables(trial, &run);
        for (machine, command) in &trial.before {
            let (status, _, stderr) = self.in_guest(&run, machine, command, &variables)?;
            if status != 0 {
                return Err(Problem::new(format!("`{command}` in {machine} ended with {status}: {}", stderr.trim())));
            }
        }
        let began_ns = self.wait(&run, fork.resumed.time_virtual_ns.saturating_add(trial.wait_ns))?;
        let (status, stdout, stderr) = match &trial.machine {
            Some(machine) => self.in_guest(&run, machine, &trial.script, &variables)?,
            None => self.on_host(&trial.script, &variables)?,
        };
        Ok(Outcome { status, stdout, stderr, began_ns, ended_ns: self.time(&run)?, run })
    }

    /// Whether a checkpoint is still there to be tried.
    pub fn is_there(&self, checkpoint: CheckpointId) -> bool {
        // Where the store cannot be read, the trial itself says why.
        let records = local::open(&self.store).and_then(|store| store.records().map_err(problem));
        records.map_or(true, |records| records.iter().any(|(id, _)| *id == checkpoint))
    }

    fn check(&self) -> Result<(), Problem> {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err(Problem::new("interrupted; the forks that it had made have ended")),
            false => Ok(()),
        }
    }

    /// Does what may take long, unless somebody wants an end meanwhile. Then the keeper hears of it when the fork ends.
    fn patiently<T: Send + 'static>(&self, work: impl FnOnce(&Client) -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
        let (sender, done) = mpsc::channel();
        let keeper = self.keeper.clone();
        thread::spawn(move || drop(sender.send(work(&keeper))));
        self.received(&done).ok_or_else(|| Problem::new("asking the keeper failed; this is a bug"))??
    }

    /// What comes, if anything does before somebody wants an end.
    fn received<T>(&self, from: &Receiver<T>) -> Option<Result<T, Problem>> {
        loop {
            match from.recv_timeout(BETWEEN_LOOKS) {
                Ok(value) => return Some(Ok(value)),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(problem) = self.check() {
                        return Some(Err(problem));
                    }
                }
            }
        }
    }

    /// Lets virtual time pass until then. Returns how late it is.
    fn wait(&self, run: &str, until_ns: u64) -> Result<u64, Problem> {
        let now = self.time(run)?;
        if now >= until_ns {
            return Ok(now);
        }
        let when = Some(When::AfterNs(until_ns - now));
        let request = GotoRequest { run: Some(run.to_owned()), when, go_on: true, ..GotoRequest::default() };
        let resumed = self.patiently(move |keeper| keeper.goto(request, &|| true))?;
        Ok(resumed.reached.map_or(until_ns, |reached| reached.time_virtual_ns))
    }

    fn time(&self, run: &str) -> Result<u64, Problem> {
        let runs = self.keeper.status()?.runs;
        let found = runs.into_iter().find(|candidate| candidate.name == run);
        found.and_then(|run| run.time_virtual_ns).ok_or_else(|| Problem::new(format!("run {run} has ended before its trial was over")))
    }

    fn variables(&self, trial: &Trial, run: &str) -> Vec<(String, String)> {
        let ours = [("FERMATA_EXPERIMENT", self.experiment.clone()), ("FERMATA_RUN", run.to_owned())];
        let ours = ours.map(|(name, value)| (name.to_owned(), value));
        let store = [("FERMATA_STORE".to_owned(), self.store.display().to_string())];
        ours.into_iter().chain(store.into_iter().filter(|_| trial.machine.is_none())).chain(trial.variables.iter().cloned()).collect()
    }

    fn in_guest(&self, run: &str, machine: &str, script: &str, variables: &[(String, String)]) -> Result<(i32, String, String), Problem> {
        let exports: String = variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect();
        let command = ["/bin/sh", "-c", &format!("{exports}{script}")].map(str::to_owned).to_vec();
        let request = ExecRequest { machine: format!("{run}:{machine}"), command, input: None, wait_ms: AGENT_WAIT_MS };
        let done = self.patiently(move |keeper| keeper.exec(request, &|| true))?;
        Ok((done.status, done.stdout, done.stderr))
    }

    fn on_host(&self, script: &str, variables: &[(String, String)]) -> Result<(i32, String, String), Problem> {
        let failed = |error: io::Error| Problem::new(format!("cannot run `{script}`: {error}"));
        let mut command = Command::new("/bin/sh");
        // Whoever interrupts us interrupts it through us, with all that it started.
        command.args(["-c", script]).process_group(0).envs(variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let status = match self.end(&mut child) {
            Ok(status) => status,
            Err(problem) => {
                let _ = end_group(&mut child);
                return Err(problem);
            }
        };
        // Somebody it started may still hold its output, which is waited for as for the script.
        let whole = |from: &Receiver<String>| self.received(from).unwrap_or_else(|| Ok(String::new()));
        let (stdout, stderr) = (whole(&stdout)?, whole(&stderr)?);
        Ok((status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)), stdout, stderr))
    }

    fn end(&self, child: &mut Child) -> Result<ExitStatus, Problem> {
        loop {
            let ended = child.try_wait().map_err(|error| Problem::new(format!("cannot wait for the script: {error}")))?;
            if let Some(status) = ended {
                return Ok(status);
            }
            self.check()?;
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// All that comes out of it, with what is not UTF-8 replaced.
fn reader(from: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
            // What is more is lost, and does not keep the script from ending.
            let _ = io::copy(&mut from, &mut io::sink());
        }
        drop(sender.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    text
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use fermata_store::{Record, Store};

    #[test]
    fn the_last_line_is_the_result() {
        let outcome = |stdout: &str, stderr: &str| Outcome {
            run: "fork-1".into(),
            status: 0,
            stdout: stdout.into(),
            stderr: stderr.into(),
            began_ns: 1,
            ended_ns: 2,
        };
        assert_eq!(outcome("one\n two \n\n", "err").last_line(), "two");
        assert_eq!(outcome(" \n", "a\nerr\n").last_line(), "err");
        assert_eq!(outcome("", "").last_line(), "");
    }

    #[test]
    fn values_survive_a_shell() {
        for text in ["plain", "two words", "it's", "$HOME `id` \"x\" \\ \n;"] {
            let said = Command::new("/bin/sh").args(["-c", &format!("printf %s {}", quoted(text))]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), text);
        }
    }

    #[test]
    fn what_is_tried_is_kept_from_a_keeper_that_removes() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let grow = |experiment: &str, spec: serde_json::Value| {
            let record = Record { spec, ..samples::record(experiment, 1) };
            store.writer().unwrap().commit(&record).unwrap()
        };
        let (goes, stays) = (grow("lab", serde_json::json!({"keep": "last 1"})), grow("other", serde_json::Value::Null));
        let tagged = |experiment: &str| store.tags(experiment).unwrap().into_values().collect::<Vec<_>>();
        let kept = [("lab", goes), ("other", stays)].map(|(experiment, id)| Kept::new(place.path(), experiment, [id].into()));
        assert_eq!((tagged("lab"), tagged("other")), (vec![goes], vec![]));
        drop(kept);
        assert!(tagged("lab").is_empty());
    }

    #[test]
    fn what_one_that_was_killed_has_left_goes_when_somebody_prunes() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let grow = |parent, created_ns| {
            let record = Record { parent, spec: serde_json::json!({"keep": "last 1"}), ..samples::record("lab", created_ns) };
            store.writer().unwrap().commit(&record).unwrap()
        };
        let first = grow(None, 1);
        let second = grow(Some(first), 2);
        grow(Some(second), 3);
        let prune = || {
            let verdicts = retention::verdicts(&store, "lab", &"last 1".parse().unwrap(), &[], 3).unwrap();
            let removed = retention::remove(&store, &verdicts).unwrap().checkpoints;
            removed.into_iter().map(|removed| removed.id).collect::<Vec<_>>()
        };
        // A tag, and nobody who holds what it is on; beside it somebody who lives.
        store.tag("lab", &format!("{}1-killed", retention::TRIAL), &first).unwrap();
        let kept = Kept::new(place.path(), "lab", [second].into());
        assert_eq!(prune(), [first]);
        assert_eq!(store.tags("lab").unwrap().into_values().collect::<Vec<_>>(), [second]);
        drop(kept);
        assert_eq!(prune(), [second]);
    }
}
