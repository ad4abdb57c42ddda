//! A model of what a disk keeps in a crash: everything that was synced, and of the rest any part, torn anywhere.

use super::*;
use std::collections::{BTreeMap, HashMap, HashSet};

const SECTOR: usize = 512;

/// One change, as the store asked for it. Paths are below the store.
enum Op {
    Create(PathBuf, u64),
    MakeDirectory(PathBuf),
    Write(u64, u64, Vec<u8>),
    Sync(u64),
    /// With the file, if it is one.
    Rename(PathBuf, PathBuf, Option<u64>),
    SyncDirectory(PathBuf),
    Remove(PathBuf),
    RemoveTree(PathBuf),
    /// A commit of LMDB: the whole file as it then was, durable. Its place in its directory is not, when it is new.
    Commit(PathBuf, u64, Vec<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Entry {
    Directory,
    File(u64),
}

/// What lies on a disk: every path with the content of files.
pub type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Does what is asked, and remembers it.
pub struct Recorder {
    root: PathBuf,
    base: Tree,
    log: Mutex<Log>,
    /// From this operation on none is done: the process is dead.
    dead_from: Mutex<Option<usize>>,
}

#[derive(Default)]
struct Log {
    ops: Vec<Op>,
    files: HashMap<PathBuf, u64>,
    by_inode: HashMap<u64, u64>,
    indexes: HashMap<u64, Vec<u8>>,
    next: u64,
}

impl Recorder {
    /// All that lies below `root` is durable.
    pub fn new(root: &Path) -> Arc<Self> {
        let base = tree(root);
        let mut log = Log::default();
        for (path, content) in base.iter().filter(|(_, content)| content.is_some()) {
            let file = log.number(path);
            if path.ends_with("data.mdb") {
                log.indexes.insert(file, content.clone().unwrap());
            }
        }
        Arc::new(Self { root: root.to_owned(), base, log: Mutex::new(log), dead_from: Mutex::new(None) })
    }

    /// Kills the process before this operation; None: a new one begins.
    pub fn die_at(&self, operation: Option<usize>) {
        *self.dead_from.lock().unwrap() = operation;
    }

    fn alive(&self) -> io::Result<()> {
        let count = self.count();
        match *self.dead_from.lock().unwrap() {
            Some(from) if from <= count => Err(io::ErrorKind::Interrupted.into()),
            _ => Ok(()),
        }
    }

    /// How many operations there were.
    pub fn count(&self) -> usize {
        self.look().ops.len()
    }

    fn below(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap().to_owned()
    }

    /// Notes what LMDB has committed by itself since the last look.
    fn look(&self) -> std::sync::MutexGuard<'_, Log> {
        let mut log = self.log.lock().unwrap();
        for directory in ["index", "index.new", "index.old"] {
            let path = Path::new(directory).join("data.mdb");
            let Ok(bytes) = std::fs::read(self.root.join(&path)) else { continue };
            let file = log.number(&path);
            if !bytes.is_empty() && log.indexes.get(&file) != Some(&bytes) {
                log.indexes.insert(file, bytes.clone());
                log.ops.push(Op::Commit(path, file, bytes));
            }
        }
        log
    }

    fn around(&self, op: Op, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.alive()?;
        operation()?;
        let mut log = self.log.lock().unwrap();
        log.follow(&op);
        log.ops.push(op);
        Ok(())
    }

    fn file(&self, file: &File) -> u64 {
        self.log.lock().unwrap().by_inode[&inode(file)]
    }

    /// States that a crash before operation `until` can leave. All of them when few things were not synced, else a sample.
    pub fn crashes(&self, until: usize, random: &mut Random, most: usize) -> Vec<Tree> {
        let log = self.look();
        let ops = &log.ops[..until];
        let pending = pending(ops);
        let all: HashSet<usize> = pending.iter().copied().collect();
        let mut choices: Vec<HashSet<usize>> = vec![HashSet::new(), all.clone()];
        if 1 << pending.len().min(20) <= most {
            choices = (0..1usize << pending.len()).map(|bits| subset(&pending, |at| bits >> at & 1 == 1)).collect();
        } else {
            choices.extend(pending.iter().map(|one| all.iter().copied().filter(|other| other != one).collect()));
            choices.extend(pending.iter().map(|one| HashSet::from([*one])));
            while choices.len() < most {
                let bits = random.next();
                choices.push(subset(&pending, |at| bits >> (at % 64) & 1 == 1));
            }
            choices.truncate(most);
        }
        let mut states: Vec<Tree> = choices.iter().map(|kept| self.state(ops, &all, kept, None)).collect();
        let writes: Vec<usize> = pending.iter().copied().filter(|at| matches!(ops[*at], Op::Write(..))).collect();
        if let Some(last) = writes.last() {
            // The last one always, and any of them.
            let any = [(); 4].map(|()| writes[random.next() as usize % writes.len()]);
            let torn = [*last].into_iter().chain(any).map(|write| (write, random.next()));
            states.extend(torn.map(|torn| self.state(ops, &all, &all, Some(torn))));
        }
        states
    }

    /// The state with these of the pending operations done, and of one write only some sectors.
    fn state(&self, ops: &[Op], pending: &HashSet<usize>, kept: &HashSet<usize>, torn: Option<(usize, u64)>) -> Tree {
        let mut names = BTreeMap::new();
        let mut contents: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut indexes = HashSet::new();
        for (path, content) in &self.base {
            names.insert(path.clone(), content.as_ref().map_or(Entry::Directory, |_| Entry::File(base_number(&self.base, path))));
            contents.extend(content.as_ref().map(|content| (base_number(&self.base, path), content.clone())));
        }
        for (at, op) in ops.iter().enumerate() {
            let done = !pending.contains(&at) || kept.contains(&at);
            match op {
                Op::Commit(path, file, bytes) => {
                    contents.insert(*file, bytes.clone());
                    let first = indexes.insert(*file) && !names.values().any(|entry| *entry == Entry::File(*file));
                    if first && done && has_parent(&names, path) {
                        names.insert(path.clone(), Entry::File(*file));
                    }
                }
                _ if !done => {}
                Op::Create(path, file) if has_parent(&names, path) => _ = names.insert(path.clone(), Entry::File(*file)),
                Op::MakeDirectory(path) if has_parent(&names, path) => _ = names.insert(path.clone(), Entry::Directory),
                Op::Write(file, offset, bytes) => {
                    let sectors = torn.filter(|(write, _)| *write == at).map_or(u64::MAX, |(_, sectors)| sectors);
                    write(contents.entry(*file).or_default(), *offset as usize, bytes, sectors);
                }
                Op::Rename(from, to, file) if has_parent(&names, to) => match file {
                    Some(file) => {
                        names.remove(from);
                        names.insert(to.clone(), Entry::File(*file));
                    }
                    None if names.contains_key(from) => {
                        names.retain(|path, _| !path.starts_with(to));
                        names = names.into_iter().map(|(path, entry)| (moved(&path, from, to), entry)).collect();
                    }
                    None => {}
                },
                Op::Remove(path) => _ = names.remove(path),
                Op::RemoveTree(path) => names.retain(|other, _| !other.starts_with(path)),
                _ => {}
            }
        }
        let content = |entry| match entry {
            Entry::Directory => None,
            Entry::File(file) => Some(contents.get(&file).cloned().unwrap_or_default()),
        };
        names.into_iter().map(|(path, entry)| (path, content(entry))).collect()
    }
}

impl Log {
    /// The number of the file at a path, a new one if there is none.
    fn number(&mut self, path: &Path) -> u64 {
        if let Some(file) = self.files.get(path) {
            return *file;
        }
        self.next += 1;
        self.files.insert(path.to_owned(), self.next);
        self.next
    }

    /// Follows files to their new names.
    fn follow(&mut self, op: &Op) {
        match op {
            Op::Rename(from, to, _) => {
                self.files.retain(|path, _| !path.starts_with(to));
                self.files = self.files.drain().map(|(path, file)| (moved(&path, from, to), file)).collect();
            }
            Op::Remove(gone) | Op::RemoveTree(gone) => self.files.retain(|path, _| !path.starts_with(gone)),
            _ => {}
        }
    }
}

impl Medium for Recorder {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.alive()?;
        let file = crate::files::FileSystem.create(path)?;
        let mut log = self.log.lock().unwrap();
        let below = self.below(path);
        log.files.remove(&below);
        let number = log.number(&below);
        log.by_inode.insert(inode(&file), number);
        log.ops.push(Op::Create(below, number));
        Ok(file)
    }
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.around(Op::MakeDirectory(self.below(path)), || crate::files::FileSystem.make_directory(path))
    }
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.around(Op::Write(self.file(file), offset, bytes.to_vec()), || file.write_all_at(bytes, offset))
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.around(Op::Sync(self.file(file)), || Ok(()))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (below, file) = (self.below(from), from.is_file());
        let file = file.then(|| self.log.lock().unwrap().number(&below));
        self.around(Op::Rename(below, self.below(to), file), || std::fs::rename(from, to))
    }
    fn rename_new(&self, from: tempfile::TempPath, to: &Path) -> io::Result<()> {
        let below = self.below(&from);
        let file = self.log.lock().unwrap().number(&below);
        self.around(Op::Rename(below, self.below(to), Some(file)), || crate::files::FileSystem.rename_new(from, to))
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        match directory.strip_prefix(&self.root) {
            Ok(below) => self.around(Op::SyncDirectory(below.to_owned()), || Ok(())),
            Err(_) => Ok(()),
        }
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.around(Op::Remove(self.below(path)), || std::fs::remove_file(path))
    }
    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.around(Op::RemoveTree(self.below(path)), || std::fs::remove_dir_all(path))
    }
    fn commit(&self, transaction: heed::RwTxn<'_>) -> heed::Result<()> {
        self.alive()?;
        transaction.commit()?;
        drop(self.look());
        Ok(())
    }
}

/// Numbers as a seed gives them.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }
}

/// Operations whose effect a crash may still undo.
fn pending(ops: &[Op]) -> Vec<usize> {
    let mut pending = Vec::new();
    let mut indexes = HashSet::new();
    for (at, op) in ops.iter().enumerate() {
        match op {
            Op::Sync(file) => pending.retain(|at| !matches!(&ops[*at], Op::Write(of, ..) if of == file)),
            Op::SyncDirectory(directory) => pending.retain(|at| match &ops[*at] {
                Op::Create(path, _) | Op::MakeDirectory(path) | Op::Rename(_, path, _) | Op::Commit(path, ..) => parent(path) != directory,
                Op::Remove(path) | Op::RemoveTree(path) => parent(path) != directory,
                _ => true,
            }),
            Op::Commit(_, file, _) if !indexes.insert(file) => {}
            _ => pending.push(at),
        }
    }
    pending
}

fn subset(pending: &[usize], take: impl Fn(usize) -> bool) -> HashSet<usize> {
    pending.iter().enumerate().filter(|(at, _)| take(*at)).map(|(_, op)| *op).collect()
}

fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8], sectors: u64) {
    if content.len() < offset + bytes.len() {
        content.resize(offset + bytes.len(), 0);
    }
    for (at, byte) in bytes.iter().enumerate() {
        if sectors >> ((offset + at) / SECTOR % 64) & 1 == 1 {
            content[offset + at] = *byte;
        }
    }
}

fn base_number(base: &Tree, path: &Path) -> u64 {
    1 + base.iter().filter(|(_, content)| content.is_some()).position(|(other, _)| other == path).unwrap() as u64
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn has_parent(names: &BTreeMap<PathBuf, Entry>, path: &Path) -> bool {
    let parent = parent(path);
    parent.as_os_str().is_empty() || names.get(parent) == Some(&Entry::Directory)
}

fn moved(path: &Path, from: &Path, to: &Path) -> PathBuf {
    match path.strip_prefix(from) {
        Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
        Ok(rest) => to.join(rest),
        Err(_) => path.to_owned(),
    }
}

fn inode(file: &File) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
}

/// What lies below a directory, without what means nothing after a crash.
pub fn tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                tree.insert(below, None);
                left.push(path);
            } else if !path.ends_with("lock.mdb") && !path.ends_with("checked") && !below.starts_with("holds") {
                tree.insert(below, Some(std::fs::read(&path).unwrap()));
            }
        }
    }
    tree
}

/// Puts a tree on the real disk.
pub fn lay(tree: &Tree, root: &Path) {
    std::fs::create_dir(root).unwrap();
    for (path, content) in tree {
        match content {
            None => std::fs::create_dir(root.join(path)).unwrap(),
            Some(content) => std::fs::write(root.join(path), content).unwrap(),
        }
    }
}

/// The same number for trees that the store cannot tell apart: what lies in `tmp` is swept unread.
pub fn fingerprint(tree: &Tree) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (path, content) in tree {
        hasher.update(path.as_os_str().as_encoded_bytes()).update(&[0, content.is_some().into()]);
        if let Some(content) = content.as_ref().filter(|_| !path.starts_with("tmp")) {
            hasher.update(blake3::hash(content).as_bytes());
        }
    }
    hasher.finalize()
}
