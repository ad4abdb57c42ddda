//! A checkpoint as a directory of files that nobody writes to, by FUSE: disks, memories as core files, and the record.
//!
//! The process that answers the kernel holds the checkpoint: nobody's collection takes anything of it while it is mounted. It ends when the directory is
//! unmounted, by whomever.

use crate::{
    convert::problem,
    exports, local, secrets,
    values::{Activity, Mounted, Problem, Unmounted},
};
use fermata_experiment::Stills;
use fermata_linux::mounts::{mounts, unmount as take_away};
use fermata_store::{Contents, EachPiece, Result as StoreResult};
use fermata_types::{CheckpointId, PartKind};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, ReplyOpen, Request, Session,
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read, Seek},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How the source of our mounts begins, before the checkpoint's id.
const SOURCE: &str = "fermata:";
/// The kernel may keep what it knows for so long: nothing changes.
const KEPT: Duration = Duration::from_secs(1 << 20);
/// Threads that answer the kernel, at most: each may wait for a disk.
const HANDS_MAX: usize = 8;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Only the owner may read what was in a guest's memory.
const FILE_MODE: u16 = 0o400;
const DIRECTORY_MODE: u16 = 0o500;

/// What to show, and where.
#[derive(Debug, Clone)]
pub struct MountRequest {
    /// The checkpoint: id, unique beginning of one, tag or branch, each with `~N`.
    pub checkpoint: String,
    /// An empty directory.
    pub directory: PathBuf,
}

/// How the beginning of a process that serves a directory went.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Birth {
    Ready(Mounted),
    Problem(Problem),
}

/// Shows a checkpoint in a directory, served by a process in the background. Returns when it can be read.
pub fn mount(store: &Path, experiment: Option<&str>, request: &MountRequest, busy: &mut dyn FnMut(Activity)) -> Result<Mounted, Problem> {
    let failed = |error: io::Error| Problem::new(format!("cannot start a process that serves {}: {error}", request.directory.display()));
    let mut complaints = tempfile::tempfile().map_err(failed)?;
    let mut server = Command::new(env::current_exe().map_err(failed)?);
    server.arg("--store").arg(store).args(experiment.map(|name| format!("--experiment={name}")));
    server.args(["mount", "--foreground", "--detached", "--"]).arg(&request.checkpoint).arg(&request.directory);
    server.envs(secrets::handed_on(store)?);
    server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(complaints.try_clone().map_err(failed)?);
    let mut server = server.spawn().map_err(failed)?;
    let output = server.stdout.take().expect("it was asked for");
    let (sender, birth) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        let _ = sender.send(read.map(|_| line));
    });
    let line = loop {
        match birth.recv_timeout(BETWEEN_LOOKS) {
            Ok(line) => break line.map_err(failed)?,
            Err(mpsc::RecvTimeoutError::Timeout) => busy(Activity::default()),
            Err(mpsc::RecvTimeoutError::Disconnected) => break String::new(),
        }
    };
    match serde_json::from_str(&line) {
        Ok(Birth::Ready(mounted)) => Ok(mounted),
        Ok(Birth::Problem(problem)) => {
            let _ = server.wait();
            Err(problem)
        }
        Err(_) => {
            let _ = server.kill();
            let _ = server.wait();
            let mut said = String::new();
            let _ = complaints.rewind().and_then(|()| complaints.read_to_string(&mut said));
            let last = said.lines().last().unwrap_or("nothing");
            Err(Problem::new(format!("the process that was to serve {} ended; it said: {last}", request.directory.display())))
        }
    }
}

/// The same, served by this process until the directory is unmounted.
pub fn mount_in_foreground(
    store: &Path,
    experiment: Option<&str>,
    request: &MountRequest,
    ready: &mut dyn FnMut(&Mounted),
) -> Result<(), Problem> {
    local::log_to_stderr();
    let (session, mounted) = begin(store, experiment, request)?;
    let directory = mounted.directory.clone();
    fermata_linux::signals::on_termination(move || {
        if let Err(error) = take_away(&directory, true) {
            tracing::error!("cannot unmount {}: {error}", directory.display());
        }
    })
    .map_err(|error| Problem::new(format!("cannot watch for signals: {error}")))?;
    ready(&mounted);
    session.run().map_err(|error| Problem::new(format!("{} is served no more: {error}", mounted.directory.display())))
}

/// The same as a process that somebody has started and waits for: it leaves the terminal, and says in a line when it is ready, or why it is not.
pub fn mount_detached(store: &Path, experiment: Option<&str>, request: &MountRequest) -> Result<(), Problem> {
    let _ = fermata_linux::leave_terminal();
    let tell = |birth: &Birth| {
        use std::io::Write as _;
        let line = serde_json::to_string(birth).unwrap_or_default();
        let mut output = io::stdout();
        let _ = writeln!(output, "{line}").and_then(|()| output.flush());
    };
    let mut began = false;
    let served = mount_in_foreground(store, experiment, request, &mut |mounted| {
        began = true;
        tell(&Birth::Ready(mounted.clone()));
    });
    if let (Err(problem), false) = (&served, began) {
        tell(&Birth::Problem(problem.clone()));
    }
    served
}

/// Takes a checkpoint's directory away again.
pub fn unmount(directory: &Path) -> Result<Unmounted, Problem> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::ResourceBusy => Problem::new(format!(
            "{0} is in use: end what uses it (`fuser -vm {0}` of Debian's psmisc says who does) and try again",
            directory.display()
        )),
        _ => Problem::new(format!("cannot unmount {}: {error}", directory.display())),
    };
    // Of a directory whose server has died nothing can be found out but its name.
    let absolute = directory.canonicalize().or_else(|_| std::path::absolute(directory)).map_err(failed)?;
    let here = mounts().map_err(failed)?.into_iter().rfind(|mount| mount.directory == absolute);
    let checkpoint = here.as_ref().and_then(|mount| checkpoint_of(&mount.source));
    let Some(checkpoint) = checkpoint else {
        return Err(Problem::new(format!("no checkpoint is mounted on {}", directory.display())));
    };
    take_away(&absolute, false).map_err(failed)?;
    Ok(Unmounted { directory: absolute, checkpoint })
}

/// Directories in which checkpoints are shown.
pub fn mounted() -> Vec<PathBuf> {
    let ours = mounts().unwrap_or_default().into_iter().filter(|mount| checkpoint_of(&mount.source).is_some());
    ours.map(|mount| mount.directory).collect()
}

fn checkpoint_of(source: &OsStr) -> Option<CheckpointId> {
    source.to_str()?.strip_prefix(SOURCE)?.parse().ok()
}

fn begin(store: &Path, experiment: Option<&str>, request: &MountRequest) -> Result<(Session<Tree>, Mounted), Problem> {
    let MountRequest { checkpoint, directory } = request;
    let failed = |error: io::Error| Problem::new(format!("cannot mount on {}: {error}", directory.display()));
    let directory = directory.canonicalize().map_err(failed)?;
    if directory.read_dir().map_err(failed)?.next().is_some() {
        return Err(Problem::new(format!("{} is not empty: name an empty directory", directory.display())));
    }
    let stills = exports::open(store, experiment, checkpoint, &mut |_| true)?;
    let id = stills.id();
    let experiment = stills.record().experiment.clone();
    let tree = Tree::new(stills)?;
    let files = tree.files();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        MountOption::DefaultPermissions,
        MountOption::FSName(format!("{SOURCE}{id}")),
        MountOption::Subtype("fermata".to_owned()),
    ];
    config.n_threads = Some(thread::available_parallelism().map_or(1, usize::from).min(HANDS_MAX));
    let session = Session::new(tree, &directory, &config).map_err(|error| {
        Problem::new(format!(
            "cannot mount on {}: {}. That needs /dev/fuse (`modprobe fuse`) and, for who is not root, {} (Debian: fuse3)",
            directory.display(),
            error.to_string().trim(),
            "fusermount3"
        ))
    })?;
    Ok((session, Mounted { directory, checkpoint: id, experiment, files, pid: std::process::id() }))
}

/// The files of a checkpoint.
struct Tree {
    /// The first is the root; the number of each is one less than the kernel's.
    nodes: Vec<Node>,
    time: SystemTime,
    owner: (u32, u32),
    /// Held as long as somebody may read.
    _stills: Stills,
}

struct Node {
    name: String,
    parent: usize,
    content: Content,
}

enum Content {
    Directory(Vec<usize>),
    File(Box<dyn Contents>),
}

/// A file that is small enough to be in memory.
struct Text(Vec<u8>);

impl Contents for Text {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> StoreResult<()> {
        let from = &self.0[self.0.len().min(offset as usize)..];
        let (filled, rest) = into.split_at_mut(into.len().min(from.len()));
        filled.copy_from_slice(&from[..filled.len()]);
        rest.fill(0);
        Ok(())
    }

    fn for_each_piece(&self, each: EachPiece<'_>) -> StoreResult<()> {
        each(0, &self.0)
    }
}

impl Tree {
    fn new(stills: Stills) -> Result<Self, Problem> {
        let mut nodes = vec![Node { name: String::new(), parent: 0, content: Content::Directory(Vec::new()) }];
        let mut record = serde_json::to_vec_pretty(stills.record()).map_err(problem)?;
        record.push(b'\n');
        add(&mut nodes, 0, "record.json", Content::File(Box::new(Text(record))));
        for machine in stills.parts(PartKind::Machine) {
            let directory = add(&mut nodes, 0, machine, Content::Directory(Vec::new()));
            // A machine of a kind whose memory nobody can lay out has disks all the same.
            match stills.core(machine) {
                Ok(core) => _ = add(&mut nodes, directory, "memory.core", Content::File(Box::new(core))),
                Err(error) => tracing::warn!("{machine} is shown without its memory: {error}"),
            }
            for name in stills.parts(PartKind::Disk) {
                if let Some(disk) = name.strip_prefix(machine).and_then(|rest| rest.strip_prefix('/')) {
                    let content = stills.disk(name).map_err(problem)?;
                    add(&mut nodes, directory, &format!("{disk}.raw"), Content::File(Box::new(content)));
                }
            }
        }
        let time = UNIX_EPOCH + Duration::from_nanos(stills.record().created_ns);
        Ok(Self { nodes, time, owner: (fermata_linux::user_id(), fermata_linux::group_id()), _stills: stills })
    }

    /// The paths of all files.
    fn files(&self) -> Vec<PathBuf> {
        let path = |node: &Node| match node.parent {
            0 => PathBuf::from(&node.name),
            parent => Path::new(&self.nodes[parent].name).join(&node.name),
        };
        self.nodes.iter().filter(|node| matches!(node.content, Content::File(_))).map(path).collect()
    }

    fn node(&self, number: INodeNo) -> Option<&Node> {
        self.nodes.get(usize::try_from(u64::from(number)).ok()?.checked_sub(1)?)
    }

    fn children(&self, number: INodeNo) -> Result<&[usize], Errno> {
        match &self.node(number).ok_or(Errno::ENOENT)?.content {
            Content::Directory(children) => Ok(children),
            Content::File(_) => Err(Errno::ENOTDIR),
        }
    }

    fn attributes(&self, index: usize) -> FileAttr {
        let (kind, perm, size, nlink) = match &self.nodes[index].content {
            Content::Directory(_) => (FileType::Directory, DIRECTORY_MODE, 0, 2),
            Content::File(contents) => (FileType::RegularFile, FILE_MODE, contents.bytes(), 1),
        };
        FileAttr {
            ino: number(index),
            size,
            blocks: size.div_ceil(512),
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: self.time,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// What is in a file from an offset on; less where it ends.
    fn content(&self, node: INodeNo, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let node = self.node(node).ok_or(Errno::ENOENT)?;
        let Content::File(contents) = &node.content else { return Err(Errno::EISDIR) };
        let mut bytes = vec![0; contents.bytes().saturating_sub(offset).min(size.into()) as usize];
        contents.read_at(offset, &mut bytes).map_err(|error| {
            let of = &self.nodes[node.parent].name;
            tracing::error!("{size} bytes at {offset} of {of}/{} cannot be read: {error}", node.name);
            Errno::EIO
        })?;
        Ok(bytes)
    }
}

fn add(nodes: &mut Vec<Node>, parent: usize, name: &str, content: Content) -> usize {
    let index = nodes.len();
    nodes.push(Node { name: name.to_owned(), parent, content });
    if let Content::Directory(children) = &mut nodes[parent].content {
        children.push(index);
    }
    index
}

fn number(index: usize) -> INodeNo {
    INodeNo(index as u64 + 1)
}

impl Filesystem for Tree {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.children(parent).and_then(|children| {
            let mut named = children.iter().filter(|index| OsStr::new(&self.nodes[**index].name) == name);
            named.next().ok_or(Errno::ENOENT)
        });
        match found {
            Ok(index) => reply.entry(&KEPT, &self.attributes(*index), Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(node) {
            Some(_) => reply.attr(&KEPT, &self.attributes(u64::from(node) as usize - 1)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // What the kernel has of it stays right.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.content(node, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let children = match self.children(node) {
            Ok(children) => children,
            Err(error) => return reply.error(error),
        };
        let parent = self.node(node).map_or(0, |node| node.parent);
        let own = [(node, FileType::Directory, "."), (number(parent), FileType::Directory, "..")];
        let below = children.iter().map(|index| (number(*index), self.attributes(*index).kind, self.nodes[*index].name.as_str()));
        // The kernel goes on behind the entry that it had last.
        for (next, (node, kind, name)) in (1..).zip(own.into_iter().chain(below)).skip(offset as usize) {
            if reply.add(node, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_where_it_ends() {
        let text = Text(b"hello".to_vec());
        for (offset, expected) in [(0, b"hello\0\0"), (3, b"lo\0\0\0\0\0"), (5, &[0; 7]), (99, &[0; 7])] {
            let mut read = [9; 7];
            text.read_at(offset, &mut read).unwrap();
            assert_eq!(read, *expected);
        }
    }

    #[test]
    fn our_mounts_are_known_by_their_checkpoint() {
        let id = CheckpointId([0xab; 32]);
        assert_eq!(checkpoint_of(OsStr::new(&format!("fermata:{id}"))), Some(id));
        assert_eq!([checkpoint_of(OsStr::new("fermata:12")), checkpoint_of(OsStr::new("/dev/sda1"))], [None, None]);
        let place = tempfile::tempdir().unwrap();
        assert!(unmount(place.path()).unwrap_err().message.contains("no checkpoint is mounted on"));
    }
}
