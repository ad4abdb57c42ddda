//! The run directory and the store.

use super::{bad, good, limited};
use crate::values::Finding;
use fermata_linux::memory_file::room;
use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

const MIB: u64 = 1 << 20;
/// Less than this holds no guest worth the name.
const RUN_BYTES_MIN: u64 = 64 * MIB;
const STORE_BYTES_MIN: u64 = 64 * MIB;
const STORE_BYTES_LOW: u64 = 2048 * MIB;
/// File systems on which LMDB's locks and shared mappings are not to be trusted (LMDB's documentation, "Caveats").
const REMOTE: [&str; 10] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.s3fs", "virtiofs"];

pub(super) fn run_directory(path: &Path) -> Finding {
    const WHAT: &str = "run directory";
    let there = existing(path);
    let elsewhere = "set FERMATA_RUN_DIR to a directory on a tmpfs of your own";
    let (free, tmpfs) = match room(&there) {
        Ok(found) => found,
        Err(error) => return bad(WHAT, format!("{}: {error}", there.display()), elsewhere),
    };
    let found = format!("{}: {} free, {} of memory available", path.display(), mib(free), mib(memory_available()));
    if !tmpfs {
        return bad(WHAT, format!("{} is not on a tmpfs", path.display()), elsewhere);
    }
    if let Err(error) = try_writing(&there) {
        return bad(WHAT, format!("{} cannot be written: {error}", there.display()), elsewhere);
    }
    let mount = mount_of(&there);
    let at = mount.as_ref().map_or("/dev/shm", |mount| mount.at.as_str());
    if mount.as_ref().is_some_and(|mount| mount.noexec) {
        return bad(
            WHAT,
            format!("{at} is mounted noexec: the library that is preloaded into QEMU cannot be loaded from there"),
            format!("run `mount -o remount,exec {at}`, or {elsewhere}"),
        );
    }
    let more = format!("run `mount -o remount,size=75% {at}`, give a container more (--shm-size), or {elsewhere}. Guest memory lies there");
    match free {
        ..RUN_BYTES_MIN => bad(WHAT, found, more),
        _ if free < memory_available() / 4 => limited(WHAT, found, more),
        _ => good(WHAT, found),
    }
}

pub(super) fn store(path: &Path) -> Finding {
    const WHAT: &str = "store";
    let there = existing(path);
    let elsewhere = "use --store DIR or set FERMATA_STORE";
    let (free, tmpfs) = match room(&there) {
        Ok(found) => found,
        Err(error) => return bad(WHAT, format!("{}: {error}", there.display()), elsewhere),
    };
    if let Err(error) = try_writing(&there) {
        return bad(WHAT, format!("{} cannot be written: {error}", there.display()), format!("mend its mode, or {elsewhere}"));
    }
    let kind = mount_of(&there).map_or_else(|| "an unknown file system".to_owned(), |mount| mount.kind);
    let found = format!("{} on {kind}: {} free", path.display(), mib(free));
    if tmpfs {
        return limited(WHAT, format!("{found}; what is there is gone after a restart"), elsewhere);
    }
    if REMOTE.contains(&kind.as_str()) {
        return bad(
            WHAT,
            format!("{found}; the index is not safe on a remote file system"),
            format!("{elsewhere}, to a directory on a local disk"),
        );
    }
    match free {
        ..STORE_BYTES_MIN => bad(WHAT, found, format!("make room, or {elsewhere}")),
        STORE_BYTES_MIN..STORE_BYTES_LOW => limited(WHAT, found, format!("make room, or {elsewhere}")),
        _ => good(WHAT, found),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

/// The directory itself, or the closest one above it that is there.
fn existing(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.ancestors().find(|ancestor| ancestor.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn try_writing(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!(".fermata-doctor-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes; 0 if it is not told.
fn memory_available() -> u64 {
    let table = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[derive(Debug, PartialEq)]
struct Mount {
    at: String,
    kind: String,
    noexec: bool,
}

fn mount_of(path: &Path) -> Option<Mount> {
    let path = fs::canonicalize(path).ok()?;
    find_mount(&fs::read_to_string("/proc/self/mounts").ok()?, &path)
}

/// The mount that a path is on: the longest mount point above it, of several at one place the last (proc_pid_mounts(5)).
fn find_mount(table: &str, path: &Path) -> Option<Mount> {
    let mounts = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let at = unescape(fields.next()?);
        let kind = fields.next()?.to_owned();
        let noexec = fields.next()?.split(',').any(|option| option == "noexec");
        Some(Mount { at, kind, noexec })
    });
    mounts.filter(|mount| path.starts_with(&mount.at)).max_by_key(|mount| Path::new(&mount.at).as_os_str().as_bytes().len())
}

/// Mount points have spaces and the like written as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "/dev/vda / ext4 rw,relatime 0 0\n\
                          tmpfs /dev/shm tmpfs rw,nosuid,nodev,noexec 0 0\n\
                          host:/x /mnt/with\\040space nfs4 rw 0 0\n\
                          /dev/vdb /mnt ext4 rw 0 0\n\
                          tmpfs /mnt tmpfs rw 0 0\n";

    #[test]
    fn the_mount_of_a_path_is_the_innermost() {
        let kind = |path: &str| find_mount(MOUNTS, Path::new(path)).unwrap().kind;
        assert_eq!(kind("/home/me"), "ext4");
        assert_eq!(kind("/dev/shm/fermata-0"), "tmpfs");
        assert_eq!(kind("/dev/shmother"), "ext4");
        assert_eq!(kind("/mnt/with space/x"), "nfs4");
        assert_eq!(kind("/mnt/x"), "tmpfs", "the later mount hides the earlier");
        assert!(find_mount(MOUNTS, Path::new("/dev/shm")).unwrap().noexec);
        assert_eq!(find_mount("", Path::new("/")), None);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_judged_by_the_one_above() {
        assert_eq!(existing(Path::new("/dev/shm/none/none")), Path::new("/dev/shm"));
        assert_eq!(run_directory(Path::new("/proc/none")).verdict, crate::values::Verdict::Bad);
    }
}
