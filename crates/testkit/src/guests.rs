//! The guests that `guests/build` made.

use fermata_experiment::{Spec, spec::SpecFile};
use std::{
    env,
    path::{Path, PathBuf},
};

/// Where the guests are: `$FERMATA_GUESTS`, else `.guests` in the source tree.
pub fn directory() -> PathBuf {
    env::var_os("FERMATA_GUESTS").map_or_else(|| root().join(".guests"), PathBuf::from)
}

/// The source tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/testkit is two levels down").to_owned()
}

/// One of the files of a guest. Panics if it was not built.
pub fn file(name: &str) -> PathBuf {
    let path = directory().join(name);
    assert!(path.exists(), "{} is missing: run guests/build", path.display());
    path
}

/// The busybox guest: what it runs, and more lines for its node in the specification.
pub fn tiny(name: &str, run: &str, more: &str) -> String {
    busybox(name, "", run, more)
}

/// The same with Debian's generic kernel, which has a driver for the VM generation id.
pub fn generic(name: &str, run: &str, more: &str) -> String {
    busybox(name, "generic/", run, more)
}

fn busybox(name: &str, directory: &str, run: &str, more: &str) -> String {
    let (kernel, initrd) = (file(&format!("{directory}vmlinuz")), file(&format!("{directory}tiny.cpio.gz")));
    format!(
        "name: {name}\nnodes:\n  m1:\n    memory: 256M\n    kernel: {}\n    initrd: {}\n    cmdline: console=ttyS0 quiet panic=-1 {run}\n{more}",
        kernel.display(),
        initrd.display()
    )
}

/// The Debian guest, booted directly from its image.
pub fn debian(name: &str, image: &str, more: &str) -> String {
    let (kernel, initrd, image) = (file("vmlinuz"), file("debian-initrd"), file(image));
    format!(
        "name: {name}\nnodes:\n  m1:\n    image: {}\n    memory: 1G\n    kernel: {}\n    initrd: {}\n    cmdline: root=/dev/vda rw console=ttyS0 quiet\n{more}",
        image.display(),
        kernel.display(),
        initrd.display()
    )
}

/// A specification from its text. Panics if it is wrong.
pub fn spec(yaml: &str) -> Spec {
    SpecFile::parse(yaml, Path::new("test.yaml"), Path::new("/"))
        .and_then(|file| file.check_files().map(|()| file.into_spec()))
        .unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}
