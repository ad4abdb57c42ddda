//! What `fermata mount` needs.

use super::{good, limited};
use crate::values::Finding;
use std::{env, fs::File};

const WHAT: &str = "mounts";

/// Whether this user can mount by FUSE: root by the device alone, everybody else through a program that may do what they may not (`fuse(8)`).
pub(super) fn examine() -> Finding {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return limited(
            WHAT,
            format!("`fermata mount` does not work: /dev/fuse does not open ({error})"),
            "`modprobe fuse`; in a container, pass the device through (docker: --device /dev/fuse --cap-add SYS_ADMIN). `fermata export` needs none of it",
        );
    }
    let helper =
        || env::split_paths(&env::var_os("PATH").unwrap_or_default()).map(|path| path.join("fusermount3")).find(|file| file.is_file());
    if fermata_linux::user_id() == 0 {
        return good(WHAT, "FUSE: /dev/fuse opens");
    }
    match helper() {
        Some(helper) => good(WHAT, format!("FUSE: /dev/fuse opens, and {} mounts for you", helper.display())),
        None => limited(WHAT, "`fermata mount` works for root only: there is no fusermount3", "install it (Debian: `apt install fuse3`)"),
    }
}
