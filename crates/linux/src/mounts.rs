//! What is mounted where (proc_pid_mountinfo(5)), and taking it away (umount(2)).

use std::{
    ffi::{CString, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What unmounts for those who are not root.
const HELPER: &str = "fusermount3";

/// A file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted, as whoever mounted it named it.
    pub source: OsString,
    /// Where.
    pub directory: PathBuf,
}

/// Everything that this process sees mounted. Of several on one directory the last one is seen there.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(mount).collect())
}

/// A line: the directory is its fifth word. Behind a lone hyphen come the kind of file system and its source.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let directory = words.nth(4)?;
    let source = words.skip_while(|word| *word != b"-").nth(2)?;
    Some(Mount { source: plain(source), directory: plain(directory).into() })
}

/// A word as it was before blanks and the like became three octal digits.
fn plain(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits {
            Some(digits) => {
                bytes.push(digits.iter().fold(0, |byte: u8, digit| byte.wrapping_mul(8) | (digit - b'0')));
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Takes away what is mounted on a directory. `lazily`: at once for those who come, and when they are done for those who use it.
pub fn unmount(directory: &Path, lazily: bool) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path ends with a zero byte and lives until the call returns.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let mut helper = Command::new(HELPER);
    helper.arg("-u").args(lazily.then_some("-z")).arg("--").arg(directory).stdin(Stdio::null()).stdout(Stdio::null());
    let done = helper.output().map_err(|error| io::Error::new(error.kind(), format!("cannot start {HELPER} (Debian: fuse3): {error}")))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read() {
        let line =
            br"36 35 98:0 /mnt1 /mnt/with\040blank\134 rw,noatime master:1 shared:2 - fuse.fermata fermata:\01112 rw,errors=continue";
        let expected = Mount { source: "fermata:\t12".into(), directory: "/mnt/with blank\\".into() };
        assert_eq!(mount(line), Some(expected));
        assert_eq!(mount(br"22 1 0:20 / / rw - tmpfs none rw").map(|mount| mount.directory), Some("/".into()));
        for cut in [&b""[..], b"36 35", b"36 35 98:0 / /mnt rw", b"36 35 98:0 / /mnt rw -", b"36 35 98:0 / /mnt rw - fuse"] {
            assert_eq!(mount(cut), None);
        }
        assert_eq!(plain(br"a\04"), r"a\04");
        assert!(mounts().unwrap().iter().any(|mount| mount.directory == Path::new("/proc")));
    }

    #[test]
    fn nothing_can_be_taken_away_where_nothing_is() {
        let place = tempfile::tempdir().unwrap();
        assert!(unmount(place.path(), false).is_err());
    }
}
