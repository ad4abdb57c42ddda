//! QEMU: the program, its version, what it was built with.

use super::{bad, good, limited};
use crate::values::Finding;
use fermata_experiment::{QemuVersion, qemu_program};
use fermata_linux::clock::Stopwatch;
use std::{
    io::{self, Read, Write},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

/// QEMU starts in a tenth of a second; one that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(15);
/// Fermata was tried with any 10, and with nothing newer.
const MAJOR_MAX: u32 = 10;
const INSTALL: &str = "install QEMU (Debian: `apt install qemu-system-x86`), or set FERMATA_QEMU to the path of a qemu-system-x86_64";

const PROGRAM: &str = "QEMU";
const DISKS: &str = "QEMU vhost-user";
const SANDBOX: &str = "QEMU sandbox";

pub(super) fn examine() -> Vec<Finding> {
    let program = qemu_program();
    let said = match run(&program, &["--version"], "") {
        Ok(said) if said.status.success() => said,
        Ok(said) => return absent(&format!("{program} --version failed: {}", last_line(&said.stderr))),
        Err(error) => return absent(&format!("cannot run {program}: {error}")),
    };
    vec![release(&program, &String::from_utf8_lossy(&said.stdout)), disks(&program), sandbox(&program)]
}

/// Findings about a QEMU that is not there. All of them, so that a list of findings always has the same lines.
fn absent(why: &str) -> Vec<Finding> {
    vec![bad(PROGRAM, why, INSTALL), bad(DISKS, "no QEMU", INSTALL), bad(SANDBOX, "no QEMU", INSTALL)]
}

fn release(program: &str, said: &str) -> Finding {
    let first = said.lines().next().unwrap_or_default();
    match QemuVersion::in_words(first) {
        Some(found) if found < QemuVersion::OLDEST => bad(PROGRAM, format!("{first} ({program}), needed is 7.2"), INSTALL),
        Some(QemuVersion(major, _)) if major <= MAJOR_MAX => good(PROGRAM, format!("{first} ({program})")),
        Some(_) => limited(
            PROGRAM,
            format!("{first} ({program}): newer than any that was tried"),
            "take a QEMU from 7.2 to 10.x if this one misbehaves",
        ),
        None => bad(PROGRAM, format!("{program} does not say a version: \"{first}\""), INSTALL),
    }
}

fn disks(program: &str) -> Finding {
    match run(program, &["-machine", "none", "-device", "help"], "") {
        Ok(said) if String::from_utf8_lossy(&said.stdout).contains("\"vhost-user-blk-pci\"") => good(DISKS, "vhost-user-blk-pci is there"),
        Ok(_) => bad(
            DISKS,
            format!("{program} has no device vhost-user-blk-pci"),
            "take a QEMU built with --enable-vhost-user, as distributions build it",
        ),
        Err(error) => bad(DISKS, format!("`{program} -device help`: {error}"), INSTALL),
    }
}

/// Starts QEMU in its sandbox and tells it to quit: options are parsed long before the filter is really loaded.
fn sandbox(program: &str) -> Finding {
    let filter = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
    let arguments = ["-nodefaults", "-no-user-config", "-display", "none", "-machine", "none", "-S", "-sandbox", filter, "-qmp", "stdio"];
    let quit = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n";
    let mend = "take a QEMU built with --enable-seccomp, as distributions build it, on a kernel with CONFIG_SECCOMP_FILTER";
    match run(program, &arguments, quit) {
        Ok(said) if said.status.success() => good(SANDBOX, "starts under its seccomp filter"),
        Ok(said) => bad(SANDBOX, format!("does not start under its seccomp filter: {}", last_line(&said.stderr)), mend),
        Err(error) => bad(SANDBOX, format!("does not start under its seccomp filter: {error}"), mend),
    }
}

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it said nothing").to_owned()
}

/// Runs a program to its end, but not for ever.
fn run(program: &str, arguments: &[&str], input: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ended before it read this tells why by its status.
        let _ = stdin.write_all(input.as_bytes());
    }
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait(&mut child)?;
    Ok(Output { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() })
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(1 << 20).read_to_end(&mut text);
        }
        text
    })
}

fn wait(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    let waited = Stopwatch::start();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if waited.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it did not end within {} s", PATIENCE.as_secs())));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Verdict;

    #[test]
    fn versions_are_judged() {
        for (said, verdict) in [
            ("QEMU emulator version 6.2.0", Verdict::Bad),
            ("QEMU emulator version 7.1.9", Verdict::Bad),
            ("QEMU emulator version 7.2.22 (Debian 1:7.2)", Verdict::Good),
            ("QEMU emulator version 10.2.0", Verdict::Good),
            ("QEMU emulator version 11.0.0", Verdict::Limited),
            ("BusyBox", Verdict::Bad),
        ] {
            assert_eq!(release("qemu", said).verdict, verdict, "{said}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        assert!(run("/nonexistent/qemu", &[], "").is_err());
        assert!(absent("x").iter().all(|finding| finding.mend.is_some()));
    }
}
