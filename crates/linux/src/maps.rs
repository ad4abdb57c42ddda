//! Where a file is mapped in another process, from `/proc/PID/maps` (proc_pid_maps(5)).

use rustix::fs::{major, minor};
use std::{fs, io, os::linux::fs::MetadataExt, path::Path};

/// The address at which process `pid` has mapped all `bytes` of `file` from its start, in one piece; a mapping that begins at `besides` is not meant.
pub fn address_of(pid: u32, file: &Path, bytes: u64, besides: Option<u64>) -> io::Result<Option<u64>> {
    let metadata = fs::metadata(file)?;
    let device = format!("{:02x}:{:02x}", major(metadata.st_dev()), minor(metadata.st_dev()));
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok(find(&maps, &device, metadata.st_ino(), bytes, besides))
}

/// One mapping may show as several neighbouring lines, since the kernel splits mappings by their flags.
fn find(maps: &str, device: &str, inode: u64, bytes: u64, besides: Option<u64>) -> Option<u64> {
    let mut start = None;
    let mut reached = 0;
    for (from, to, offset) in maps.lines().filter_map(|line| parse(line, device, inode)) {
        match start {
            Some(start) if from == reached && offset == from - start => {}
            _ if offset == 0 && Some(from) != besides => start = Some(from),
            _ => {
                start = None;
                continue;
            }
        }
        reached = to;
        if reached - start? >= bytes {
            return start;
        }
    }
    None
}

fn parse(line: &str, device: &str, inode: u64) -> Option<(u64, u64, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    // Inodes of a tmpfs are small numbers, which other file systems have too.
    if fields.next()? != device || fields.next()?.parse() != Ok(inode) {
        return None;
    }
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, offset))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_mapping_in_two_lines_is_one() {
        let maps = "7f00-7f10 r--p 00000000 00:01 9 /lib\n1000-3000 rw-s 00000000 00:19 42 /ram\n3000-5000 rw-s 00002000 00:19 42 /ram\n";
        assert_eq!(find(maps, "00:19", 42, 0x4000, None), Some(0x1000));
        assert_eq!(find(maps, "00:19", 42, 0x5000, None), None);
        assert_eq!(find(maps, "00:19", 43, 0x1000, None), None);
        assert_eq!(find(maps, "00:1a", 42, 0x4000, None), None);
    }

    #[test]
    fn a_piece_from_the_middle_is_not_the_start() {
        let maps = "1000-3000 rw-s 00002000 00:19 42 /ram\n8000-c000 rw-s 00000000 00:19 42 /ram\n";
        assert_eq!(find(maps, "00:19", 42, 0x4000, None), Some(0x8000));
    }

    #[test]
    fn a_second_mapping_is_told_apart() {
        let maps = "1000-5000 rw-s 00000000 00:19 42 /ram\n5000-7000 rw-s 00000000 00:19 42 /ram\n7000-9000 rw-s 00002000 00:19 42 /ram\n";
        assert_eq!(find(maps, "00:19", 42, 0x4000, Some(0x1000)), Some(0x5000));
        assert_eq!(find(maps, "00:19", 42, 0x4000, Some(0x5000)), Some(0x1000));
    }
}
