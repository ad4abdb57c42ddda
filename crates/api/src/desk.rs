//! The keeper's desk: where requests are turned into calls.

use crate::{
    captures,
    convert::{self, problem},
    links, metrics, paths,
    service::Service,
    swapping,
    values::{
        self, Activity, CaptureRequest, Checkpoint, CheckpointRequest, Cpus, CpusRequest, DownRequest, Ended, ExecRequest, Executed,
        Experiment, ExperimentState, ForkRequest, ForwardOf, ForwardRequest, GotoRequest, LinkEnd, LinkRequest, Loading, Metric, Problem,
        Resumed, RunRequest,
    },
};
use fermata_experiment::{Asked, Body, Journey, Machine, MachineBody, Run, Status};
use fermata_timeline::{Fork, Instant, Keeper, history};
use std::{
    fs,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Serves one keeper.
pub(crate) struct Desk {
    keeper: Arc<Keeper>,
    /// Told when the last run has ended.
    over: mpsc::Sender<()>,
}

impl Desk {
    pub fn new(keeper: Arc<Keeper>, over: mpsc::Sender<()>) -> Self {
        Self { keeper, over }
    }

    /// What the experiment does; `quietly`: without asking its machines.
    pub fn experiment(&self, quietly: bool) -> Experiment {
        let keeper = &self.keeper;
        Experiment {
            name: keeper.spec().name.clone(),
            state: ExperimentState::Running,
            keeper_pid: std::process::id(),
            store: keeper.host().store().path().to_owned(),
            every_ms: keeper.spec().every.map(|every| every.as_millis() as u64),
            runs: keeper.runs().iter().map(|run| convert::run(run, quietly)).collect(),
            spare_ready: keeper.spare_ready(),
            trouble: keeper.trouble(),
            loading: self.loading(),
            swapped: None,
        }
    }

    fn loading(&self) -> Option<Loading> {
        let (remote, state) = self.keeper.loading()?;
        Some(Loading {
            remote,
            total_bytes: state.total,
            away_bytes: state.total.saturating_sub(state.fetched),
            asked: state.asked,
            for_good: state.lie.is_some(),
            waiting: state.trouble.clone().filter(|_| state.waited_for),
            trouble: state.trouble.filter(|_| !state.waited_for),
        })
    }

    /// The run and the name of the machine that `[RUN:]MACHINE` means, and what the run lives in now.
    fn machine(&self, text: &str) -> Result<(Arc<Run>, Arc<Body>, String), Problem> {
        let (run, machine) = match text.split_once(':') {
            Some((run, machine)) => (Some(run), machine),
            None => (None, text),
        };
        let run = self.keeper.run(run.filter(|run| !run.is_empty())).map_err(problem)?;
        let body = run.body();
        let name = which(&run, &body, machine)?;
        Ok((run, body, name))
    }

    /// The machine that `[RUN:]MACHINE` means, whose agent answers, and its whole name.
    fn reach(&self, text: &str, wait: Duration, wanted: &dyn Fn() -> bool) -> Result<(Arc<Machine>, String), Problem> {
        let (run, mut body, name) = self.machine(text)?;
        let of = |body: &Body| body.machines().iter().find(|of| of.name() == name).map(|of| of.machine().clone());
        let gone = || Problem::new(format!("run {} has no machine {name} any more", run.name()));
        let mut machine = of(&body).ok_or_else(gone)?;
        if machine.config().deterministic {
            return Err(Problem::new(format!("{name} is deterministic: nothing comes into it from outside, so it has no guest agent")));
        }
        if machine.glance() == Status::Paused {
            return Err(Problem::new(format!("{name} is paused, and would never answer: `fermata resume {}` lets it go on", run.name())));
        }
        // Who waits for a machine that is taken to another checkpoint meanwhile goes with it.
        while let Err(error) = machine.agent().reach(wait, wanted) {
            let now = run.body();
            if Arc::ptr_eq(&now, &body) {
                return Err(problem(error));
            }
            machine = of(&now).ok_or_else(gone)?;
            body = now;
        }
        Ok((machine, format!("{}:{name}", run.name())))
    }

    /// Leaves a note for whoever finds the run directory when we are gone. Without it `ls` knows less, and no more is lost.
    pub fn leave_note(&self) {
        let note = serde_json::to_vec(&self.experiment(true)).unwrap_or_default();
        if let Err(error) = fs::write(paths::last_known(self.keeper.host().run_dir()), note) {
            tracing::warn!("cannot note what runs: {error}");
        }
    }

    /// Somebody has it go on. Whoever was killed after he had recorded that it is swapped out, and before it was, recorded what is not so.
    fn is_not_out(&self) {
        if self.keeper.loading().is_none() {
            swapping::forget(self.keeper.host().store().path(), &self.keeper.spec().name);
        }
    }
}

impl Service for Desk {
    fn status(&self) -> Result<Experiment, Problem> {
        Ok(self.experiment(false))
    }

    fn checkpoint(&self, request: CheckpointRequest, wanted: &dyn Fn() -> bool) -> Result<Checkpoint, Problem> {
        let when = request.when.map(convert::when);
        let asked = Asked { message: request.message, paranoid: request.paranoid, gentle: request.gentle, when, in_turn: false };
        let (id, _) = self.keeper.checkpoint_as(request.run.as_deref(), asked, wanted).map_err(problem)?;
        Ok(convert::checkpoint(history::entry(self.keeper.host().store(), id).map_err(problem)?))
    }

    fn goto(&self, request: GotoRequest, wanted: &dyn Fn() -> bool) -> Result<Resumed, Problem> {
        let GotoRequest { to, run, eager, paused, when, go_on, perturbation } = request;
        let went = match when {
            None => {
                let how = Journey { eager, paused, perturbation, ..Journey::default() };
                self.keeper.goto(&to, run.as_deref(), how).map(convert::resumed)
            }
            Some(when) => {
                let instant = Instant { when: convert::when(when), line: Some(to).filter(|to| !to.is_empty()), go_on, perturbation };
                let went = self.keeper.goto_instant(&instant, run.as_deref(), eager, wanted);
                went.map(|(resumed, reached)| Resumed { reached: Some(convert::reached(reached)), ..convert::resumed(resumed) })
            }
        };
        self.leave_note();
        if went.is_ok() {
            self.is_not_out();
        }
        went.map_err(problem)
    }

    fn fork(&self, request: ForkRequest) -> Result<Resumed, Problem> {
        let ForkRequest { from, name, run, same_randomness, eager, paused, perturbation } = request;
        let fork = Fork { name, same_randomness, eager, paused, perturbation };
        let resumed = self.keeper.fork(from.as_deref(), run.as_deref(), fork).map_err(problem)?;
        self.leave_note();
        Ok(convert::resumed(resumed))
    }

    fn pause(&self, request: RunRequest) -> Result<values::Run, Problem> {
        let run = self.keeper.pause(request.run.as_deref()).map_err(problem)?;
        Ok(convert::run(&run, false))
    }

    fn resume(&self, request: RunRequest) -> Result<values::Run, Problem> {
        let RunRequest { run, asleep } = request;
        let went = if asleep { self.keeper.take_back_pause(run.as_deref()) } else { self.keeper.resume(run.as_deref()) };
        let run = went.map_err(problem)?;
        self.is_not_out();
        Ok(convert::run(&run, false))
    }

    fn link(&self, request: LinkRequest) -> Result<Vec<LinkEnd>, Problem> {
        let run = self.keeper.run(request.run.as_deref()).map_err(problem)?;
        links::tell(&run, request.interface.as_deref(), request.change.as_ref())
    }

    fn forward(&self, request: ForwardRequest) -> Result<ForwardOf, Problem> {
        let (run, _, name) = self.machine(&request.machine)?;
        let forward = run.forward(&name, request.port).map_err(problem)?;
        Ok(ForwardOf { machine: format!("{}:{name}", run.name()), forward: convert::forward(&forward) })
    }

    fn capture(&self, request: CaptureRequest, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Problem> {
        captures::capture(&self.keeper, &request, take)
    }

    fn exec(&self, request: ExecRequest, wanted: &dyn Fn() -> bool) -> Result<Executed, Problem> {
        let wait = Duration::from_millis(request.wait_ms);
        let (machine, name) = self.reach(&request.machine, wait, wanted)?;
        let done = machine.agent().execute_while(&request.command, request.input.as_deref(), wait, wanted).map_err(problem)?;
        Ok(Executed::new(name, done.status, done.stdout, done.stderr, done.truncated))
    }

    fn cpus(&self, request: CpusRequest, wanted: &dyn Fn() -> bool) -> Result<Cpus, Problem> {
        let wait = Duration::from_millis(request.wait_ms);
        let (machine, name) = self.reach(&request.machine, wait, wanted)?;
        let cpus = machine.agent().visit(wait, wanted).and_then(|visit| visit.set_cpus(request.online)).map_err(problem)?;
        Ok(Cpus { machine: name, online: request.online, cpus })
    }

    fn down(&self, request: DownRequest) -> Result<Ended, Problem> {
        let runs = self.keeper.down(request.run.as_deref()).map_err(problem)?;
        if self.keeper.is_empty() {
            let _ = self.over.send(());
        } else {
            self.leave_note();
        }
        Ok(Ended { experiment: self.keeper.spec().name.clone(), runs })
    }

    fn activity(&self) -> Activity {
        let activity = self.keeper.activity();
        Activity { what: activity.what, done: activity.progress.done, total: activity.progress.total, unit: "pages".to_owned() }
    }

    fn metrics(&self) -> Result<Vec<Metric>, Problem> {
        Ok(metrics::of(&self.experiment(false), &self.keeper))
    }
}

/// The name of the machine that is meant: the one named, or the only one.
fn which(run: &Run, body: &Body, machine: &str) -> Result<String, Problem> {
    let names: Vec<_> = body.machines().iter().map(MachineBody::name).collect();
    match (names.as_slice(), machine) {
        ([only], "") => Ok((*only).to_owned()),
        (several, "") => Err(Problem::new(format!("run {} has several machines: say which of {}", run.name(), several.join(", ")))),
        (names, machine) if names.contains(&machine) => Ok(machine.to_owned()),
        (names, machine) => Err(Problem::new(format!("run {} has no machine \"{machine}\"; it has {}", run.name(), names.join(", ")))),
    }
}
