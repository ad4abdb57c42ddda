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

/// What the kernels of all guests are told. A host that is busy may give a guest so little time that the kernel, which tries its timer against the processor's
/// loops when it boots, takes it for broken and stops; it is told not to try. Nor does it try its ciphers and how it makes keys of keys, nor guard against faults of processors that an
/// emulated one has not: together a third of its boot. `guests/debian` tells the same to a guest that boots by itself.
pub const CMDLINE: &str = "console=ttyS0 quiet no_timer_check cryptomgr.notests initcall_blacklist=crypto_kdf108_init mitigations=off";

/// The busybox guest: what it runs, and more lines for its node in the specification.
pub fn tiny(name: &str, run: &str, more: &str) -> String {
    busybox(name, "", run, more)
}

/// Several of them: the name of each, what it runs, and more lines for its node.
pub fn several(name: &str, memory_mib: u32, machines: &[(&str, &str, &str)]) -> String {
    several_of("tiny.cpio", name, memory_mib, machines)
}

/// The initramfs of the busybox guest with services of Debian's.
pub const SERVICES: &str = "services.cpio";

/// The same from another initramfs that is made of the busybox guest.
pub fn several_of(initrd: &str, name: &str, memory_mib: u32, machines: &[(&str, &str, &str)]) -> String {
    let (kernel, initrd) = (file("vmlinuz"), file(initrd));
    let node = |(machine, run, more): &(&str, &str, &str)| format!("  {machine}:\n    cmdline: {CMDLINE} panic=-1 {run}\n{more}");
    format!(
        "name: {name}\ndefaults:\n  memory: {memory_mib}M\n  kernel: {}\n  initrd: {}\nnodes:\n{}",
        kernel.display(),
        initrd.display(),
        machines.iter().map(node).collect::<String>()
    )
}

/// The same with Debian's generic kernel, which has a driver for the VM generation id.
pub fn generic(name: &str, run: &str, more: &str) -> String {
    busybox(name, "generic/", run, more)
}

/// The same from a directory below the guests' own: another kernel's.
pub fn busybox(name: &str, directory: &str, run: &str, more: &str) -> String {
    let (kernel, initrd) = (file(&format!("{directory}vmlinuz")), file(&format!("{directory}tiny.cpio")));
    format!(
        "name: {name}\nnodes:\n  m1:\n    memory: 256M\n    kernel: {}\n    initrd: {}\n    cmdline: {CMDLINE} panic=-1 {run}\n{more}",
        kernel.display(),
        initrd.display()
    )
}

/// The command line of the Debian guest's kernel.
pub fn debian_cmdline() -> String {
    format!("root=/dev/vda rw {CMDLINE}")
}

/// The Debian guest, booted directly from its image.
pub fn debian(name: &str, image: &str, more: &str) -> String {
    let (kernel, initrd, image) = (file("vmlinuz"), file("debian-initrd"), file(image));
    format!(
        "name: {name}\nnodes:\n  m1:\n    image: {}\n    memory: 1G\n    kernel: {}\n    initrd: {}\n    cmdline: {}\n{more}",
        image.display(),
        kernel.display(),
        initrd.display(),
        debian_cmdline()
    )
}

/// How the Debian guest compiles all the time, from the moment when it is up: a command line for the kernel, so that nobody has to talk to the
/// guest. It has read its files before, as a machine that has been in use for a while, and then the console says [`BEGINS`].
pub fn compiling() -> String {
    debian_after("find /usr -xdev -type f -exec cat {} + >/dev/null", "while :; do make -C /src clean; make -C /src; done")
}

/// What the console of a guest says that [`debian_running`] is about to begin its work.
pub const BEGINS: &str = "fermata begins";

/// A command line for the kernel of the Debian guest that runs this script, which has no quotes, when it is up.
pub fn debian_running(script: &str) -> String {
    debian_after("true", script)
}

/// The same, and another script that runs before. On a host that is very busy the emulated timer may seem not to work, and the kernel would
/// give up.
fn debian_after(before: &str, script: &str) -> String {
    // What systemd would take for variables of its own.
    let escaped = |script: &str| script.replace('$', "$$").replace('%', "%%");
    format!(
        "{} systemd.run_success_action=none systemd.run_failure_action=none \
         systemd.run=\"/bin/sh -c '{}; echo {BEGINS} >/dev/console; {}'\"",
        debian_cmdline(),
        escaped(before),
        escaped(script)
    )
}

/// The Debian guest with another command line for its kernel.
pub fn debian_with(name: &str, memory: &str, cmdline: &str) -> String {
    debian(name, "debian12.raw", "").replace(&debian_cmdline(), &format!("{cmdline:?}")).replace("memory: 1G", &format!("memory: {memory}"))
}

/// The disk of the guest that has the workloads of `./bench space`.
pub const SPACE: &str = "space.raw";

/// That guest, running one of its workloads: a file of `guests/files/space`. The console says when it begins, and when it is done.
pub fn space(name: &str, workload: &str) -> String {
    let cmdline = debian_running(&format!("space {workload}"));
    debian(name, SPACE, "").replace(&debian_cmdline(), &format!("{cmdline:?}"))
}

/// The busybox guest with more or less memory.
pub fn tiny_with(name: &str, memory_mib: u32, run: &str) -> String {
    tiny(name, &format!("fermata.run={run}"), "").replace("memory: 256M", &format!("memory: {memory_mib}M"))
}

/// A specification from its text. Panics if it is wrong.
pub fn spec(yaml: &str) -> Spec {
    SpecFile::parse(yaml, Path::new("test.yaml"), Path::new("/"))
        .and_then(|file| file.check_files().map(|()| file.into_spec()))
        .unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}
