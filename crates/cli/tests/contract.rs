//! The contract of the command line, on the real program: exit status, streams, JSON. No experiment runs here.

use std::{
    io::Write,
    path::Path,
    process::{Command, Output, Stdio},
};

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env("FERMATA_RUN_DIR", self.path().join("run"))
            .env("FERMATA_STORE", self.path().join("store"));
        command.env_remove("FERMATA_EXPERIMENT").env_remove("FERMATA_QEMU").stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Status and both streams of a call that fails.
    #[track_caller]
    fn fails(&self, arguments: &[&str], status: i32, message: &str) {
        let text = self.run(arguments);
        let said = String::from_utf8_lossy(&text.stderr).into_owned();
        assert_eq!(text.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?} said {said:?}");
        assert!(text.stdout.is_empty(), "{arguments:?}");
        let json = self.run(&[&["--json"], arguments].concat());
        assert_eq!(json.status.code(), Some(status), "{arguments:?}");
        let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert!(value["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{value}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let place = Place::new();
    let help = String::from_utf8(place.run(&["--help"]).stdout).unwrap();
    let commands = [
        "up",
        "exec",
        "console",
        "ssh",
        "ports",
        "forward",
        "checkpoint",
        "log",
        "show",
        "diff",
        "export",
        "mount",
        "umount",
        "plot",
        "goto",
        "fork",
        "try",
        "backup",
        "bisect",
        "prune",
        "rm",
        "gc",
        "verify",
        "stats",
        "metrics",
        "pause",
        "resume",
        "remote",
        "push",
        "pull",
        "clone",
        "swapout",
        "swapin",
        "rebuild",
        "init",
        "rekey",
        "run-ranks",
        "receive",
        "peer",
        "link",
        "capture",
        "tag",
        "ls",
        "down",
        "schema",
        "doctor",
        "completions",
    ];
    for command in commands {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not listed");
        let output = place.run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(String::from_utf8_lossy(&output.stdout).contains("Example"), "{command}");
    }
    assert!(!help.contains("keeper --"), "not for people");
    assert_eq!(place.run(&["--version"]).status.code(), Some(0));
}

#[test]
fn misuse_is_two() {
    let place = Place::new();
    place.fails(&[], 2, "Usage");
    place.fails(&["nonsense"], 2, "nonsense");
    place.fails(&["goto"], 2, "ID");
    place.fails(&["exec", "m1"], 2, "COMMAND");
    place.fails(&["tag", "main"], 2, "NAME");
    place.fails(&["plot", "--what", "nonsense"], 2, "duplicates");
    place.fails(&["export", "main", "-o", "file"], 2, "--core");
    place.fails(&["mount", "main"], 2, "DIR");
    place.fails(&["umount", "."], 1, "no checkpoint is mounted on .");
    place.fails(&["run-ranks", "-n", "2"], 2, "PROGRAM");
    place.fails(&["run-ranks", "-n", "2", "--mode", "nonsense", "true"], 2, "blocking");
    place.fails(&["up"], 2, "what shall run?");
    place.fails(&["up", "x.qcow2", "--memory", "lots"], 2, "512M");
    place.fails(&["up", "x.qcow2", "--every", "soon"], 2, "soon");
}

#[test]
fn an_encrypted_store_opens_for_who_has_the_secret() {
    let place = Place::new();
    let key = place.path().join("key");
    std::fs::write(&key, [1; 32]).unwrap();
    let said = |arguments: &[&str], variables: &[(&str, &str)], status: i32| {
        let output = place.command(arguments).envs(variables.iter().copied()).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        said
    };
    // A key that is set, and a store that would not heed it.
    let add = ["remote", "add", "nas", "/nowhere", "--plain"];
    assert!(said(&add, &[("FERMATA_STORE_KEY_FILE", "key")], 1).contains("fermata init"));
    assert!(!place.path().join("store/format").exists());
    place.fails(&["init", "--key-file", "absent"], 1, "absent");
    place.fails(&["init", "--key-file", "key", "--passphrase"], 2, "cannot be used with");
    let made: serde_json::Value = serde_json::from_str(&said(&["init", "--key-file", "key", "--json"], &[], 0)).unwrap();
    assert_eq!(made["encryption"]["key_file"], key.canonicalize().unwrap().to_str().unwrap());
    place.fails(&["init"], 1, "already");
    said(&add, &[], 0);
    said(&["verify"], &[], 0);
    std::fs::write(&key, [2; 32]).unwrap();
    place.fails(&["verify"], 1, "this is not the key file");
    place.fails(&["rebuild"], 1, "this is not the key file");
    std::fs::rename(&key, place.path().join("other")).unwrap();
    place.fails(&["verify"], 1, "FERMATA_STORE_KEY_FILE");
    std::fs::write(place.path().join("other"), [1; 32]).unwrap();
    let found = [("FERMATA_STORE_KEY_FILE", "other")];
    said(&["verify"], &found, 0);
    place.fails(&["rekey"], 2, "--key-file");
    assert!(said(&["rekey", "--passphrase"], &found, 1).contains("FERMATA_STORE_NEW_PASSPHRASE"));
    said(&["rekey", "--passphrase"], &[found[0], ("FERMATA_STORE_NEW_PASSPHRASE", "correct horse")], 0);
    place.fails(&["verify"], 1, "FERMATA_STORE_PASSPHRASE");
    assert!(said(&["verify"], &[("FERMATA_STORE_PASSPHRASE", "wrong horse")], 1).contains("this is not the passphrase"));
    assert!(said(&["verify"], &[("FERMATA_STORE_PASSPHRASE", "correct horse")], 0).contains("whole"));
    let plain = place.path().join("plain");
    said(&["init", "--store", plain.to_str().unwrap()], &[], 0);
    assert!(said(&["rekey", "--key-file", "other", "--store", plain.to_str().unwrap()], &[], 1).contains("not encrypted"));
}

#[test]
fn a_wrong_specification_is_shown_at_its_place() {
    let place = Place::new();
    std::fs::write(place.path().join("machine.yaml"), "name: one\nnodes:\n  m1:\n    disks: [{size: 4M}]\n    memroy: 1G\n").unwrap();
    place.fails(&["up", "machine.yaml"], 2, "machine.yaml:5:5");
    std::fs::write(place.path().join("machine.yaml"), "name: one\nnodes: {m1: {image: none.qcow2}}\n").unwrap();
    place.fails(&["up", "machine.yaml"], 1, "none.qcow2");
    place.fails(&["up", "absent.yaml"], 1, "absent.yaml");
    place.fails(&["up", "absent.qcow2"], 1, "absent.qcow2");
}

#[test]
fn without_an_experiment_it_says_how_to_get_one() {
    let place = Place::new();
    for arguments in [&["checkpoint"][..], &["fork"], &["console"], &["down"]] {
        place.fails(arguments, 1, "fermata up");
    }
    place.fails(&["exec", "m1", "--", "true"], 255, "fermata up");
    for arguments in [&["log"][..], &["show", "main"], &["diff", "a", "b"], &["plot"], &["tag"], &["goto", "main"], &["mount", "main", "."]]
    {
        place.fails(arguments, 1, "store");
    }
    assert!(!place.path().join("store").exists(), "looking at a store that is not there must not make one");
    let ls = place.run(&["ls", "--json"]);
    assert_eq!((ls.status.code(), ls.stdout.as_slice()), (Some(0), b"[]\n".as_slice()));
}

#[test]
fn schema_and_completions() {
    let place = Place::new();
    let schema: serde_json::Value = serde_json::from_slice(&place.run(&["schema"]).stdout).unwrap();
    assert!(schema["properties"]["nodes"].is_object());
    let again: serde_json::Value = serde_json::from_slice(&place.run(&["schema", "--json"]).stdout).unwrap();
    assert_eq!(schema, again);
    assert!(String::from_utf8_lossy(&place.run(&["completions", "bash"]).stdout).contains("complete"));
}

/// With the script, as bash divides lines. Without store and keeper there are no names, and no errors.
#[test]
fn the_tab_key_in_bash() {
    let place = Place::new();
    let program = Path::new(env!("CARGO_BIN_EXE_fermata"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script =
        "source <(fermata completions bash); COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _fermata; printf '%s\\n' \"${COMPREPLY[@]}\"";
    for (line, expected) in [
        ("fermata chec", "checkpoint"),
        ("fermata log --gr", "--graph"),
        ("fermata link --discipline co", "codel"),
        ("fermata link --discipline = co", "codel"),
        ("fermata link a : e", ""),
        ("fermata show --store /nowhere m", ""),
        ("fermata nonsense --nonsense n", ""),
    ] {
        let mut command = Command::new("bash");
        command.args(["--norc", "-c", script, "bash"]).args(line.split(' ')).env("PATH", &path);
        command.env("FERMATA_RUN_DIR", place.path().join("run")).env("FERMATA_STORE", place.path().join("store"));
        let output = command.env_remove("FERMATA_EXPERIMENT").stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!([said[0].trim(), said[1].as_str()], [expected, ""], "{line}");
    }
}

#[test]
fn the_doctor_examines() {
    let place = Place::new();
    let output = place.run(&["doctor", "--json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let bad = findings.iter().any(|finding| finding["verdict"] == "bad");
    assert_eq!(output.status.code(), Some(i32::from(bad)));
    // The run directory of this test is not on a tmpfs, or is on one: told either way.
    for what in ["run directory", "mounts"] {
        assert!(findings.iter().any(|finding| finding["what"] == what), "nothing is said of {what}");
    }
    the_tracker_that_is_taken(&findings);
    let text = place.command(&["doctor"]).env("FERMATA_QEMU", "/nonexistent/qemu").output().unwrap();
    assert_eq!(text.status.code(), Some(1));
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("FERMATA_QEMU"));
    assert!(text.lines().any(|line| line.contains("  tracker ") && line.contains("  taken by default: ")), "{text}");
    assert!(!text.contains('\x1b'), "no colours where there is no terminal");
}

/// One is taken: the first that this host can do, in the order in which they are told; of those before it stands what is missing.
fn the_tracker_that_is_taken(findings: &[serde_json::Value]) {
    let trackers: Vec<_> =
        findings.iter().filter(|finding| finding["what"].as_str().is_some_and(|what| what.starts_with("tracker "))).collect();
    let why =
        |finding: &serde_json::Value| finding["found"].as_str().and_then(|found| found.strip_prefix("taken by default: ")).map(str::len);
    let taken: Vec<_> = trackers.iter().filter_map(|finding| why(finding)).collect();
    assert!(taken.len() == 1 && taken[0] > 10, "one is taken, and it is told why: {trackers:?}");
    for finding in trackers.iter().take_while(|finding| why(finding).is_none()) {
        assert!(finding["verdict"] == "limited" && finding["mend"].is_string(), "it would have been taken: {finding}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_it_silently() {
    let place = Place::new();
    // Gone before the program begins, or a fast one would have written all into the pipe.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.command(&["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(141), ""));
}

#[test]
fn a_full_disk_is_not_success() {
    let Ok(mut full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    assert!(full.write_all(b"x").is_err());
    let place = Place::new();
    let output = place.command(&["schema"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}
