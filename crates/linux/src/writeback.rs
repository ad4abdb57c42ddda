//! Whether the kernel could keep what was written to a file.

use std::{fs::File, io, os::fd::AsRawFd};

/// Tells whether writing the file's cached pages to its medium has failed since this was last asked of this open file (sync_file_range(2)). Starts no writing
/// and waits for none. Each failure is told once.
pub fn check(file: &File) -> io::Result<()> {
    // Waiting for the pages of a range is what collects the error, whichever page it befell; the last byte that a file can have has no page.
    let nowhere = i64::MAX - 1;
    // SAFETY: the call reads and writes no memory of ours, and the descriptor is open for as long as `file` is borrowed.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), nowhere, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_that_is_well_is_well() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", 1 << 30).unwrap();
        super::check(&file).unwrap();
        assert!(super::check(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
