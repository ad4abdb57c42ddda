//! Runs a program of ranks: starts a process for each, coordinates their checkpoints, and when one dies takes all of them back to the last permanent one.
//!
//! Going back means that all processes end, the living too, and others begin with what the checkpoint has. Nothing of an earlier life can be left over then: neither in a process nor on a
//! socket.

use super::{
    apart::Apart,
    hosts::{Host, Hosts},
    life::{Beginning, Life},
    mode::{Mode, Transport},
    together::Together,
    wire::{RANKS_MAX, Restored},
};
use fermata_checkpoint::consistent::{Ccn, Rank};
use fermata_linux::{clock::Stopwatch, lock::FileLock};
use fermata_store::Store;
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::{fmt, io, net::IpAddr, path::PathBuf, time::Duration};

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many ranks.
    pub ranks: usize,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// More environment for it.
    pub environment: Vec<(String, String)>,
    /// What the run is called in the store.
    pub name: String,
    /// Time between the beginnings of two checkpoints, of each rank where each takes its own; none: no checkpoints.
    pub every: Option<Duration>,
    /// How checkpoints are taken.
    pub mode: Mode,
    /// How messages travel.
    pub transport: Transport,
    /// What starts a program of MPI, and its options, but for the number of ranks.
    pub mpirun: Vec<String>,
    /// Hosts to run on, over TCP or MPI; none: this one, or those that `mpirun` knows of. The program is there under the same name.
    pub hosts: Vec<Host>,
    /// The address of this host at which they find it; none: that by which it reaches the first of them, or this host only.
    pub listen: Option<IpAddr>,
    /// Go on from the last permanent checkpoint of the last run of this name, if there is one.
    pub resume: bool,
    /// Keep the checkpoints that were replaced by later ones.
    pub keep: bool,
    /// Seconds after which a checkpoint that is not whole is given up.
    pub patience: u32,
    /// How often all may go back without a new permanent checkpoint in between.
    pub retries: u32,
}

impl Options {
    /// A program with so many ranks, and the defaults.
    pub fn new(name: &str, ranks: usize, program: impl Into<PathBuf>) -> Self {
        Self {
            ranks,
            program: program.into(),
            args: Vec::new(),
            environment: Vec::new(),
            name: name.to_owned(),
            every: Some(Duration::from_secs(10)),
            mode: Mode::default(),
            transport: Transport::default(),
            mpirun: vec!["mpirun".to_owned()],
            hosts: Vec::new(),
            listen: None,
            resume: false,
            keep: false,
            patience: 600,
            retries: 10,
        }
    }

    /// Ranks may be on other hosts.
    pub(super) fn is_far(&self) -> bool {
        !self.hosts.is_empty() || self.listen.is_some()
    }
}

/// What happens in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// All ranks were started: their process ids, each on its host. The number of the checkpoint that they begin from is 0 for the beginning; where each has its own it is the lowest.
    Started {
        /// By rank.
        pids: Vec<u32>,
        /// Where they go on.
        ccn: Ccn,
    },
    /// A checkpoint was begun.
    Began(Ccn),
    /// A checkpoint is permanent, and every rank knows.
    Permanent(Taken),
    /// A checkpoint was given up, or could not be begun; the one before stays.
    Aborted(Aborted),
    /// Ranks died, and all go back.
    Back {
        /// What was seen.
        why: String,
        /// Where to, if each rank has checkpoints of its own.
        line: Option<Line>,
    },
}

/// A checkpoint that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aborted {
    /// Its number.
    pub ccn: Ccn,
    /// Whose it is, if each rank takes its own.
    pub rank: Option<Rank>,
    /// Why.
    pub why: String,
}

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ccn, rank, why } = self;
        match rank {
            None => write!(f, "checkpoint {ccn}: {why}"),
            Some(rank) => write!(f, "checkpoint {ccn} of rank {rank}: {why}"),
        }
    }
}

/// Where all went back to, of checkpoints that each rank took by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The checkpoint of each rank, by rank; 0: its beginning.
    pub checkpoints: Vec<Ccn>,
    /// How many later checkpoints each rank had, by rank. They did not fit to what others had: all zeros where no domino fell.
    pub dropped: Vec<u64>,
}

/// A checkpoint that was taken, and what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Whose it is, if each rank takes its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Its number.
    pub ccn: Ccn,
    /// Its id in the store.
    pub id: CheckpointId,
    /// From its beginning until all ranks knew that it is permanent, ns.
    pub elapsed_ns: u64,
    /// Bytes that all ranks wrote.
    pub written_bytes: u64,
    /// Bytes that the store grew by.
    pub stored_bytes: u64,
    /// Pages copied because a rank was about to write to them, of all ranks.
    pub copied_pages: u64,
    /// How long ranks stood still, on average, ns.
    pub blocked_ns: u64,
    /// How long the one stood still that stood longest, ns.
    pub blocked_most_ns: u64,
    /// Messages that were on their way: they are part of it.
    pub late_messages: u64,
    /// Messages that arrived before the receiver was captured, and had been sent after their sender was: they were held until then.
    pub held_messages: u64,
}

/// What came out of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What each rank had to say, by rank.
    pub answers: Vec<String>,
    /// How long it took, ns.
    pub elapsed_ns: u64,
    /// The branch in the store; where each rank has its own, what their names begin with.
    pub branch: String,
    /// The checkpoints that became permanent.
    pub checkpoints: Vec<Taken>,
    /// How many were given up.
    pub aborted: u64,
    /// Which and why, each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aborted_reasons: Vec<String>,
    /// How often all went back.
    pub rollbacks: u64,
    /// Why, each time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Where to each time, if each rank took checkpoints by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<Line>,
    /// What became of the checkpoints, if each rank took them by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub garbage: Option<Garbage>,
}

/// How many checkpoints there were of all ranks, where each took its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Garbage {
    /// So many were removed because the line to go back to had passed them.
    pub collected: u64,
    /// So many were in the store at once, at most.
    pub most: u64,
}

/// Why a program of ranks did not come to its end. What was permanent stays so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be run as it was asked for.
    #[error("{0}")]
    Refused(String),
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
    /// The program says that it cannot go on.
    #[error("rank {rank} says: {why}")]
    Program {
        /// Which rank.
        rank: usize,
        /// What it says.
        why: String,
    },
    /// A program of MPI came to its end, and says by its exit status that something is wrong.
    #[error("all ranks came to MPI_Finalize, and then {0}; what the program printed says why")]
    Ended(String),
    /// It dies again and again.
    #[error(
        "the ranks went back {times} times without a new checkpoint in between; the last time because {why}. See what the program prints; a shorter --every may help, and --resume goes on from the last checkpoint"
    )]
    Hopeless {
        /// How often.
        times: u32,
        /// What was seen last.
        why: String,
    },
}

pub(super) fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let action = action.into();
    move |source| Error::Io { action, source }
}

/// What is being started has the descriptors of this process, and with them a lock that it had, until it is another program.
const LETTING_GO: Duration = Duration::from_secs(1);

/// One coordinator at a time: two would grow one line.
fn lock(store: &Store, name: &str) -> Result<FileLock, Error> {
    // Names that no experiment can have are refused here: they must not become those of files.
    store.branches_to_grow(name)?;
    let path = store.live_dir().join(format!("ranks-{name}.lock"));
    let lock = FileLock::take_within(&path, LETTING_GO).map_err(failed(format!("lock {}", path.display())))?;
    let why = || format!("a run called {name} is under way in this store; wait for its end, or give this one another name (--name)");
    lock.ok_or_else(|| Error::Refused(why()))
}

/// Runs a program to its end. Refused while another run of this name is under way in the store.
pub fn run(store: &Store, options: &Options, watch: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
    if options.ranks == 0 || options.ranks > RANKS_MAX {
        return Err(Error::Refused(format!("{} ranks; there can be from 1 to {RANKS_MAX}", options.ranks)));
    }
    if options.transport == Transport::Mpi && !matches!(options.mode, Mode::Consistent | Mode::Full) {
        let why = "checkpoints of a program of MPI are consistent or full: in the other ways a rank stands still, or goes back by itself, where its messages would have to come";
        return Err(Error::Refused(why.into()));
    }
    if options.is_far() && options.transport == Transport::Unix {
        return Err(Error::Refused("ranks on several hosts send their messages over tcp, or by MPI".into()));
    }
    let _lock = lock(store, &options.name)?;
    let spec = serde_json::json!({"ranks": options.ranks, "program": options.program, "args": options.args});
    let mut way: Box<dyn Way> = match options.mode {
        Mode::Optimistic => Box::new(Apart::new(store, options, spec)?),
        _ => Box::new(Together::new(store, options, spec)?),
    };
    let clock = Stopwatch::start();
    let mut tally = Tally::default();
    let mut in_vain = 0;
    let mut hosts = Hosts::new(&options.hosts);
    loop {
        let before = way.progress();
        let why = match Life::begin(&*way, options, &mut hosts, watch) {
            Ok(mut life) => match way.live(&mut life, &mut tally, watch)? {
                End::Done(answers) => {
                    life.end()?;
                    return Ok(tally.outcome(answers, clock.elapsed(), way.branch()));
                }
                End::Died(why) => why,
            },
            Err(Beginning::Died(why)) => why,
            Err(Beginning::Failed(error)) => return Err(error),
        };
        let line = way.go_back()?;
        in_vain = if way.progress() > before { 1 } else { in_vain + 1 };
        if in_vain > options.retries || hosts.are_hopeless() {
            return Err(hosts.advice(&why).unwrap_or(Error::Hopeless { times: in_vain, why }));
        }
        tally.rollbacks += 1;
        tally.reasons.push(why.clone());
        tally.lines.extend(line.clone());
        watch(Event::Back { why, line });
    }
}

/// How checkpoints are taken and gone back to.
pub(super) trait Way {
    /// The number of the checkpoint where all go on, 0 for the beginning; of several the lowest.
    fn ccn(&self) -> Ccn;

    /// Grows when ranks that go back would go back to something later.
    fn progress(&self) -> u64;

    /// What a rank has where it goes on, and what is on its way to it, in pieces that frames have room for; its memory goes to `each`, in pieces.
    fn restore(&self, rank: Rank, each: Each<'_>) -> fermata_store::Result<(Option<Restored>, Vec<Vec<u8>>)>;

    /// Takes checkpoints of ranks that were started until one of them dies or all are done.
    fn live(&mut self, life: &mut Life<'_>, tally: &mut Tally, watch: &mut dyn FnMut(Event)) -> Result<End, Error>;

    /// All processes have ended, and will go on from what is permanent.
    fn go_back(&mut self) -> Result<Option<Line>, Error>;

    /// The branch in the store.
    fn branch(&self) -> String;
}

/// Takes pieces of memory.
pub(super) type Each<'a> = &'a mut dyn FnMut(u64, &[u8]) -> fermata_store::Result<()>;

/// What is counted over all lives.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub checkpoints: Vec<Taken>,
    pub aborted: u64,
    pub aborted_reasons: Vec<String>,
    pub rollbacks: u64,
    pub reasons: Vec<String>,
    pub lines: Vec<Line>,
    pub garbage: Option<Garbage>,
}

impl Tally {
    /// A checkpoint is permanent.
    pub fn permanent(&mut self, taken: Taken, watch: &mut dyn FnMut(Event)) {
        self.checkpoints.push(taken.clone());
        watch(Event::Permanent(taken));
    }

    /// A checkpoint came to nothing. Who watches is told, if there is somebody.
    pub fn aborted(&mut self, aborted: Aborted, watch: Option<&mut dyn FnMut(Event)>) {
        self.aborted += 1;
        self.aborted_reasons.push(aborted.to_string());
        if let Some(watch) = watch {
            watch(Event::Aborted(aborted));
        }
    }

    fn outcome(self, answers: Vec<String>, elapsed: Duration, branch: String) -> Outcome {
        let Self { checkpoints, aborted, aborted_reasons, rollbacks, reasons, lines, garbage } = self;
        let elapsed_ns = elapsed.as_nanos() as u64;
        Outcome { answers, elapsed_ns, branch, checkpoints, aborted, aborted_reasons, rollbacks, reasons, lines, garbage }
    }
}

/// How a life ended.
pub(super) enum End {
    Done(Vec<String>),
    Died(String),
}
