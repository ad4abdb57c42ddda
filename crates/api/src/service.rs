//! What a keeper offers. The keeper implements it, the server carries it over a socket, and the client implements it again on the other side.

use crate::values::{
    Activity, CaptureRequest, Checkpoint, CheckpointRequest, Cpus, CpusRequest, DownRequest, Ended, ExecRequest, Executed, Experiment,
    ForkRequest, ForwardOf, ForwardRequest, GotoRequest, LinkEnd, LinkRequest, Metric, Problem, Resumed, Run, RunRequest,
};

/// Bytes that a command in a guest may be given on its standard input. As JSON they are up to four times as many.
pub const EXEC_INPUT_BYTES_MAX: usize = 8 << 20;

/// Bytes of a request as JSON, unless it carries a guest's input.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Bytes of a request to run a command, whose command line may be long too.
pub(crate) const EXEC_BODY_BYTES_MAX: usize = 4 * EXEC_INPUT_BYTES_MAX + (4 << 20);

/// What a keeper does on request. Every method blocks until it is done, and may be called from any thread.
pub trait Service: Send + Sync {
    /// What the experiment does now.
    fn status(&self) -> Result<Experiment, Problem>;

    /// Takes a checkpoint and stores it. A failure leaves the guests running. One that is to come is waited for as long as it is `wanted`, which is asked
    /// now and then.
    fn checkpoint(&self, request: CheckpointRequest, wanted: &dyn Fn() -> bool) -> Result<Checkpoint, Problem>;

    /// Takes a run to a checkpoint. If that fails the run goes on where it was. An instant behind the checkpoint is waited for as long as it is `wanted`, which is
    /// asked now and then.
    fn goto(&self, request: GotoRequest, wanted: &dyn Fn() -> bool) -> Result<Resumed, Problem>;

    /// Starts another run from a checkpoint.
    fn fork(&self, request: ForkRequest) -> Result<Resumed, Problem>;

    /// Stops the machines of a run. Its guests see no time pass.
    fn pause(&self, request: RunRequest) -> Result<Run, Problem>;

    /// Lets the machines of a run go on.
    fn resume(&self, request: RunRequest) -> Result<Run, Problem>;

    /// Tells of the ends of a run's links, after it has changed one if that was asked for.
    fn link(&self, request: LinkRequest) -> Result<Vec<LinkEnd>, Problem>;

    /// Gives what goes through some interfaces to `take`, piece by piece a file in the format pcapng, until that is over or `take` says that no more is wanted.
    /// It is given an empty piece now and then, only to ask. If it is slow, frames are missing, and the file says how many.
    fn capture(&self, request: CaptureRequest, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Problem>;

    /// Forwards a port of a machine that has a control interface from this host.
    fn forward(&self, request: ForwardRequest) -> Result<ForwardOf, Problem>;

    /// Runs a command in a guest and waits for its end, as long as somebody does: `wanted` is asked now and then. A command that fails is no
    /// [`Problem`].
    fn exec(&self, request: ExecRequest, wanted: &dyn Fn() -> bool) -> Result<Executed, Problem>;

    /// Takes processors of a guest offline, or brings them back, as its agent does. `wanted` is asked now and then while the agent does not answer.
    fn cpus(&self, request: CpusRequest, wanted: &dyn Fn() -> bool) -> Result<Cpus, Problem>;

    /// Ends a run, or the experiment and with it the keeper.
    fn down(&self, request: DownRequest) -> Result<Ended, Problem>;

    /// What it is busy with, for a progress bar.
    fn activity(&self) -> Activity;

    /// Figures for monitoring.
    fn metrics(&self) -> Result<Vec<Metric>, Problem>;
}

impl Problem {
    /// A problem told to people: what happened, to what, and what to do next.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
