//! Requests and answers as plain values. What `--json` prints is exactly these.
//!
//! Fields are added, never renamed or removed; units are in the names.

mod backups;
mod events;
mod outside;
mod pruned;
mod remote_pruned;
mod swapped;
mod trials;

pub use backups::{BackedUp, BackupEntry, BackupStanding};
pub use events::Events;
pub use fermata_experiment::{FileChange, FileDiffers, FileKind, FilesDiffer, LinkDiffers, LinkState};
use fermata_experiment::{
    net::{Change, Counters, InterfaceId, Mac, Shape, Topology},
    spec::Port,
};
pub use fermata_store::{
    CollectOptions, Collected, Damage, MovedBranch, Remedy, Removed, RemovedCheckpoint, RemovedTag, Report as Verified, Stats, Touched,
    VerifyOptions,
};
use fermata_types::{BlobName, CheckpointId, Composition, ImageId, MachineId, PageCounts, PartKind, Perturbation, Root};
pub use outside::*;
pub use pruned::{Pruned, PrunedCheckpoint, Stays};
pub use remote_pruned::{RemotePruned, RemovedThere};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddrV4, path::PathBuf};
pub use swapped::*;
pub use trials::{BisectStep, Bisected, Cpus, CpusRequest, Outcome, Tried, TriedOnce};

/// A checkpoint: what `fermata checkpoint` prints, and `fermata log` prints many of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its id.
    pub id: CheckpointId,
    /// The checkpoint that it grew from.
    pub parent: Option<CheckpointId>,
    /// The experiment.
    pub experiment: String,
    /// The branch that it grew on: the name of the run.
    pub branch: String,
    /// Branches whose newest checkpoint it is.
    pub heads: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// What the user had to say; none for one that was taken by the clock.
    pub message: Option<String>,
    /// Wall clock of the host, nanoseconds since 1970.
    pub created_ns: u64,
    /// The same for people: RFC 3339, UTC.
    pub created: String,
    /// Virtual time at the instant.
    pub time_virtual_ns: u64,
    /// How long the guests stood still.
    pub pause_ms: f64,
    /// How far apart the machines were in the pause; none where there was one, or where nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew: Option<Skew>,
    /// What the pause was spent on, by part and step.
    pub steps_ms: BTreeMap<String, f64>,
    /// How long it took, behind the guests, to store.
    pub save_ms: f64,
    /// Bytes that it added to the store.
    pub stored_bytes: u64,
    /// Of them those of each part by name. Empty for checkpoints of before it was told.
    #[serde(default)]
    pub stored_by_part: BTreeMap<String, u64>,
    /// How its pages fell through the sieve.
    pub pages: PageCounts,
    /// The same for each part by name: pages of RAM and blocks of disks apart.
    #[serde(default)]
    pub pages_by_part: BTreeMap<String, PageCounts>,
    /// Bytes of the pages of each class, as they were before compression.
    #[serde(default)]
    pub bytes_by_class: BTreeMap<String, u64>,
    /// What telling the pages of each class took, by class, the storing of new ones with it. Empty for checkpoints of before it was told.
    #[serde(default)]
    pub sieve_ms: BTreeMap<String, f64>,
    /// What the work before and behind the pause was spent on while the guests ran, by part and step.
    #[serde(default)]
    pub background_ms: BTreeMap<String, f64>,
    /// What the pages of each machine were for, by name; nothing in checkpoints that did not tell.
    #[serde(default)]
    pub composition: BTreeMap<String, Composition>,
    /// Bytes of written pages that did not have to be stored, and why.
    #[serde(default)]
    pub saved_bytes: SavedBytes,
    /// What it consists of.
    pub parts: Vec<Part>,
    /// Golden images that it stands on.
    pub images: Vec<ImageId>,
    /// What was to happen by itself; nothing where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Events>,
    /// What connects its machines, with links as they were at that instant, where one checkpoint is shown; nothing where nothing does, and in lists of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Topology>,
    /// Interfaces of it that were down at that instant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<InterfaceId>,
    /// What went over its links until then, where one checkpoint is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkEnd>,
    /// What the links did otherwise than they would have, in the replay that it grew in; nothing where all was as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
    /// Runs that live and stand on it: that it is the newest checkpoint of. Only in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunAt>,
}

/// A run that lives, seen from the checkpoint that it stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAt {
    /// Its name.
    pub name: String,
    /// What its machines do: the state of the first that does not run, else `running`.
    pub state: MachineState,
    /// Its virtual time now, as far as one can tell from outside.
    pub time_virtual_ns: Option<u64>,
}

/// How far apart machines were that should do the same at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Skew {
    /// From the first machine's stop to the last one's.
    pub stop_ms: f64,
    /// From the first machine's going on to the last one's. Who is ahead in virtual time goes on later by as much.
    pub resume_ms: f64,
    /// Between the virtual times at which machines stand in the checkpoint.
    pub time_ms: f64,
}

/// Bytes of written pages that each sieve kept out of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedBytes {
    /// Zero throughout.
    pub zero: u64,
    /// Free in the guest.
    pub free: u64,
    /// Equal to a block of a disk, known without looking.
    pub mapped: u64,
    /// Equal to a block of a golden image.
    pub on_disk: u64,
    /// Put before in the same checkpoint.
    pub within: u64,
    /// Stored by an earlier checkpoint.
    pub across: u64,
    /// New, and compressed. What else the checkpoint stored (device state, nodes of page tables) is taken off.
    pub compression: u64,
}

impl SavedBytes {
    /// The sieves by the names that they have in JSON.
    pub fn sieves(&self) -> [(&'static str, u64); 7] {
        let Self { zero, free, mapped, on_disk, within, across, compression } = *self;
        [
            ("zero", zero),
            ("free", free),
            ("mapped", mapped),
            ("on_disk", on_disk),
            ("within", within),
            ("across", across),
            ("compression", compression),
        ]
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.sieves().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// One part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name: `m1`, `m1/disk0`.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Its page tables: `ram`, `blocks`. Equal roots are equal contents, byte for byte.
    pub tables: BTreeMap<String, Root>,
    /// Its other contents: `devices`.
    pub blobs: BTreeMap<String, BlobName>,
    /// What was known of free blocks at the checkpoint, for each ext4 file system found on a disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_space: Vec<FreeSpace>,
}

/// Blocks of a disk that the guest's file system has freed. A checkpoint does not keep them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// The byte of the disk where the file system begins.
    pub start: u64,
    /// Blocks of 4 KiB that are known to be free, whether or not anything was ever written to them.
    pub blocks: u64,
    /// Why nothing is known, when nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<String>,
}

/// Asks for a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRequest {
    /// Of which run; needed only if there are several.
    pub run: Option<String>,
    /// A word about why.
    pub message: Option<String>,
    /// Look at the content of each page that would be taken as known, and fail if one is not what it was taken for.
    #[serde(default)]
    pub paranoid: bool,
    /// Store it without hurry: what the guests do comes first, for as long as they keep the processors busy.
    #[serde(default)]
    pub gentle: bool,
    /// The instant of virtual time; none: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
}

/// An instant of a run's virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// So many nanoseconds after the request.
    AfterNs(u64),
    /// When it is that time.
    AtNs(u64),
}

/// Asks for the ends of the links of a run, and changes one if it is told how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRequest {
    /// Of which run; needed only if there are several.
    pub run: Option<String>,
    /// Only this interface: `a:eth1`; none: all of them.
    pub interface: Option<String>,
    /// What is to become different there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// Asks for what goes through some interfaces of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// Of which run; needed only if there are several.
    #[serde(default)]
    pub run: Option<String>,
    /// Which: `a:eth1`.
    pub interfaces: Vec<String>,
    /// End after so many frames.
    #[serde(default)]
    pub count: Option<u64>,
    /// End when so much virtual time has passed.
    #[serde(default)]
    pub time_ns: Option<u64>,
}

/// What a capture has brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The file.
    pub file: PathBuf,
    /// What it has of each interface.
    pub interfaces: Vec<CapturedEnd>,
}

/// What a capture has of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedEnd {
    /// `a:eth1`.
    pub interface: String,
    /// Frames in the file.
    pub frames: u64,
    /// Frames that are not in the file, since whoever reads it was too slow.
    pub missed: u64,
}

/// An interface, and the cable in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// `a:eth1`.
    pub interface: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// The interface at the other end, or the name of the LAN.
    pub to: String,
    /// Whether the cable is plugged in.
    pub up: bool,
    /// What the interface sends.
    pub sent: Direction,
    /// What it receives.
    pub received: Direction,
}

/// One direction of a cable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// What happens to frames.
    pub shape: Shape,
    /// What was counted since the experiment began.
    pub counters: Counters,
    /// Frames that are on their way.
    pub in_flight: u64,
}

/// Takes a run back (or forward) to a checkpoint, or to an instant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GotoRequest {
    /// The checkpoint: id, unique beginning of one, tag, branch, each with `~N`; `~N` alone counts from the one that the run stands on. With an instant: where
    /// the line leads that it lies on; empty for the run's own.
    pub to: String,
    /// Which run; needed only if there are several.
    pub run: Option<String>,
    /// Load everything before the guest runs, instead of when it is touched.
    pub eager: bool,
    /// Leave it paused. At an instant it is, unless it is to go on.
    pub paused: bool,
    /// The instant to go to: to the nearest checkpoint at or before it, from which the run then runs until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Go on from that instant, instead of standing still there.
    #[serde(default)]
    pub go_on: bool,
    /// Have the links do otherwise than they did, from the checkpoint on; none: as they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// Starts a second run from a checkpoint, beside the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForkRequest {
    /// The checkpoint; none: the newest of the run.
    pub from: Option<String>,
    /// The name of the new run and its branch; none: one is made up.
    pub name: Option<String>,
    /// Which run's newest checkpoint, when `from` is none.
    pub run: Option<String>,
    /// Do not tell the guest that it is a copy: it will draw the same random numbers.
    pub same_randomness: bool,
    /// Load everything before the guest runs.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Have the links do otherwise than they did; none: as they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// A run that was just brought to a checkpoint: the answer of `goto` and `fork`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// The name of the run.
    pub run: String,
    /// Where it is now.
    pub checkpoint: CheckpointId,
    /// From the request to the guest's first instruction.
    pub resume_ms: f64,
    /// Whether a spare process stood ready.
    pub warm: bool,
    /// Virtual time at which it goes on.
    pub time_virtual_ns: u64,
    /// The branch it grows from now on.
    pub branch: String,
    /// If an instant was asked for: how it came there from that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// What its links do otherwise than they did, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// How a run came to an instant of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The instant that was asked for.
    pub asked_ns: u64,
    /// Virtual time at which it is now, as far as one can tell from outside.
    pub time_virtual_ns: u64,
    /// How much later that is than what was asked for.
    pub late_ns: u64,
    /// How much virtual time passed in it on the way there.
    pub ran_ns: u64,
    /// It went to the checkpoint first. Else the instant was still to come, and it ran on from where it was.
    pub went: bool,
    /// It stands still there.
    pub paused: bool,
}

/// Runs a command in a guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// `m1`, or `run:m1`; empty if there is only one machine.
    pub machine: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it reads on its standard input.
    pub input: Option<Vec<u8>>,
    /// How long to wait for the guest agent, milliseconds.
    pub wait_ms: u64,
}

/// How a command in a guest ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Executed {
    /// The machine, as `run:machine`.
    pub machine: String,
    /// Its exit status; 128 and the signal when a signal ended it.
    pub status: i32,
    /// What it printed, with what is not UTF-8 replaced.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// The agent keeps 16 MiB of each; there was more.
    pub truncated: bool,
}

/// What an experiment does: the answer of `up` and `ls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// `running`; `dead` when its keeper is gone without having been told to; `swapped` when it was swapped out.
    pub state: ExperimentState,
    /// Process id of the keeper.
    pub keeper_pid: u32,
    /// The store.
    pub store: PathBuf,
    /// Milliseconds between checkpoints by the clock; none: only on request.
    pub every_ms: Option<u64>,
    /// Its runs. The last that was known of them, if the keeper is dead.
    pub runs: Vec<Run>,
    /// Whether a spare process stands ready for the next `goto` or `fork`.
    pub spare_ready: bool,
    /// Why the last checkpoint by the clock failed, or removing what is not to be kept, if it did; or that the keeper lives and does not answer.
    pub trouble: Option<String>,
    /// How much of it is still on a remote, if it runs before all of it is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    /// Since when it is swapped out, and where to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped: Option<Box<SwappedOut>>,
}

/// Whether somebody keeps an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentState {
    /// Its keeper answers.
    Running,
    /// Its keeper is gone.
    Dead,
    /// It was swapped out, and nobody keeps it.
    Swapped,
}

/// A live execution that grows a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The branch that it grows.
    pub branch: String,
    /// The checkpoint that it stands on.
    pub head: Option<CheckpointId>,
    /// Its virtual time now, as far as one can tell from outside; none where nobody told.
    #[serde(default)]
    pub time_virtual_ns: Option<u64>,
    /// Its machines.
    pub machines: Vec<Machine>,
    /// What its links do otherwise than they did when it was lived through first, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// A machine of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Which one it is; a fork gets another.
    pub id: MachineId,
    /// `running`, `paused`, `off` (the guest powered off), `failed` (QEMU stopped the guest), `silent` (QEMU does not answer), `gone` (QEMU is).
    pub state: MachineState,
    /// Why it failed, is silent or is gone.
    pub reason: Option<String>,
    /// Its disks whose writes wait until the store's file system has space again.
    #[serde(default)]
    pub starved: Vec<String>,
    /// Process id of QEMU.
    pub pid: u32,
    /// RAM, bytes.
    pub memory_bytes: u64,
    /// Virtual processors.
    pub cpus: u32,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// QEMU's versioned machine type.
    pub machine_type: String,
    /// Where its console is: a Unix socket.
    pub console: PathBuf,
    /// What its console printed so far in this process.
    pub console_log: PathBuf,
    /// Pages still to be brought in after a lazy restore; none if all are in.
    pub pages_missing: Option<u64>,
    /// Its ports that are forwarded from this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Forward>,
}

/// A TCP port of a machine that is forwarded from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The machine's port.
    pub guest_port: u16,
    /// Where this host listens for it; none: at present nowhere.
    pub host: Option<SocketAddrV4>,
}

/// The same with its machine: what `fermata ports` prints many of, and `fermata forward` one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardOf {
    /// The machine, as `run:machine`.
    pub machine: String,
    /// The port.
    #[serde(flatten)]
    pub forward: Forward,
}

/// Forwards a port of a machine from this host, for as long as the run lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// `m1`, or `run:m1`; empty if there is only one machine.
    pub machine: String,
    /// Which port: the guest's as a number, or `host:guest`.
    pub port: Port,
}

/// What a machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// The guest runs.
    Running,
    /// The guest stands still.
    Paused,
    /// The guest powered off.
    Off,
    /// QEMU stopped the guest, since it cannot go on.
    Failed,
    /// QEMU does not answer.
    Silent,
    /// QEMU is gone.
    Gone,
}

/// Stops the machines of a run, or lets them go on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    /// Which run; needed only if there are several.
    pub run: Option<String>,
}

/// A store's index that was built again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The store.
    pub store: PathBuf,
    /// Packs found whole.
    pub packs: u64,
    /// Checkpoints found in them.
    pub checkpoints: u64,
    /// Packs that cannot be read, and why.
    pub damaged: Vec<String>,
}

/// Ends a run, or all of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DownRequest {
    /// Which run; none: the experiment with all its runs.
    pub run: Option<String>,
}

/// What is gone now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The experiment.
    pub experiment: String,
    /// Its runs that ended.
    pub runs: Vec<String>,
}

/// What a keeper is busy with, for a progress bar.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// In words; empty when it is not busy.
    pub what: String,
    /// How much is done.
    pub done: u64,
    /// Of how much; 0: unknown.
    pub total: u64,
    /// `bytes`, `pages`, `steps`.
    pub unit: String,
}

/// A figure for monitoring, as Prometheus has them: <https://prometheus.io/docs/concepts/data_model/>.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, which ends with its unit: `fermata_pause_seconds`.
    pub name: String,
    /// What it counts.
    pub kind: MetricKind,
    /// What it means.
    pub help: String,
    /// Its values.
    pub samples: Vec<Sample>,
}

/// What a metric counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricKind {
    /// Rises until the keeper ends.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by class, with a sum.
    Histogram,
    /// A count and a sum.
    Summary,
}

/// One value of a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The metric's name, for histograms and summaries with `_bucket`, `_sum` or `_count` behind it.
    pub name: String,
    /// What it is the value of.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// How two checkpoints differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The first.
    pub a: CheckpointId,
    /// The second.
    pub b: CheckpointId,
    /// Virtual time from the first to the second.
    pub time_virtual_ns: i64,
    /// Part by part.
    pub parts: Vec<PartDifference>,
    /// Files that differ, disk by disk.
    #[serde(default)]
    pub disks: Vec<DiskDifference>,
    /// Pages of memory that differ by what they are for in the second, machine by machine.
    #[serde(default)]
    pub memory: BTreeMap<String, Composition>,
    /// Ends of links that differ.
    #[serde(default)]
    pub links: Vec<LinkDiffers>,
}

/// How the files of a disk differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskDifference {
    /// The disk.
    pub name: String,
    /// Of each ext4 file system that was found on it.
    pub file_systems: Vec<FilesDiffer>,
}

/// How a part differs between two checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartDifference {
    /// The part.
    pub name: String,
    /// Which page table or blob of it: `ram`, `blocks`, `devices`.
    pub of: String,
    /// Pages that differ; for a blob 1 or 0.
    pub pages_differing: u64,
    /// Pages in all; for a blob 1.
    pub pages: u64,
    /// Pages only the first has, that are zero or golden in the second.
    pub only_a: u64,
    /// Pages only the second has.
    pub only_b: u64,
    /// Stretches of pages that differ, `[first, count]`, the longest first, at most 16.
    pub stretches: Vec<(u32, u32)>,
}

/// Figures over a line of checkpoints, from the oldest to the newest: what `fermata plot` prints and draws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plots {
    /// The experiment.
    pub experiment: String,
    /// The checkpoints; each series has one value for each of them.
    pub checkpoints: Vec<PlottedCheckpoint>,
    /// What there is to draw.
    pub plots: Vec<Plot>,
    /// Pictures that were written.
    pub files: Vec<PathBuf>,
}

/// A checkpoint on the axis of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlottedCheckpoint {
    /// Its id.
    pub id: CheckpointId,
    /// Virtual time at the instant.
    pub time_virtual_ns: u64,
}

/// Panels about one matter, one below the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// `memory`, `dirty`, `duplicates`, `pause`, `background`.
    pub name: String,
    /// Its panels.
    pub panels: Vec<Panel>,
}

/// Series of one unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// Unit of all values: `MiB`, `pages`, `blocks`, `ms`, `%`.
    pub unit: String,
    /// The series are parts of a whole, and add up to it. Else each stands for itself.
    pub stacked: bool,
    /// The series.
    pub series: Vec<Series>,
}

/// One value for each checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What was counted.
    pub name: String,
    /// The values; none where the checkpoint does not tell.
    pub values: Vec<Option<f64>>,
}

/// A tag and the checkpoint it stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tag {
    /// The experiment.
    pub experiment: String,
    /// The tag.
    pub tag: String,
    /// The checkpoint; none if the tag was taken away.
    pub checkpoint: Option<CheckpointId>,
}

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: `QEMU`, `userfaultfd`.
    pub what: String,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to mend it, if it is not.
    pub mend: Option<String>,
}

/// How a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, with less.
    Limited,
    /// Nothing works without it.
    Bad,
    /// Not there, and nothing needs it.
    Unneeded,
}

/// An error as it travels: what happened, to what, what to do next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The whole message.
    pub message: String,
}
