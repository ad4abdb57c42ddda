//! A machine whose checkpoints are in an encrypted store. About half a minute.

use fermata_testkit::{Cli, cli::array, guests};
use std::fs;

const WORDS: &str = "correct horse battery staple";

/// The environments of its QEMUs.
fn environments(cli: &Cli) -> Vec<Vec<u8>> {
    let of = |pid: u64, file: &str| fs::read(format!("/proc/{pid}/{file}")).ok();
    let is_qemu = |pid: &u64| of(*pid, "comm").is_some_and(|name| name.starts_with(b"qemu-system"));
    cli.processes().into_iter().filter(is_qemu).filter_map(|pid| of(pid, "environ")).collect()
}

#[test]
fn a_machine_goes_back_in_an_encrypted_store() {
    let mut cli = Cli::new();
    cli.set("FERMATA_STORE_PASSPHRASE", WORDS);
    cli.write("machine.yaml", &guests::tiny("sealed", "fermata.run=tick fermata.disk=rw", ""));
    cli.fails(&["up", "machine.yaml"], 1, &["fermata init"]);
    cli.ok(&["init", "--passphrase"]);
    cli.ok(&["up", "machine.yaml"]);
    cli.shell("m1", "echo before > /tmp/word; echo before > /disk/word; sync");
    let id = cli.checkpoint("before");
    cli.shell("m1", "echo after > /tmp/word; echo after > /disk/word; sync");
    cli.checkpoint("after");
    cli.ok(&["goto", &id]);
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "before\nbefore");
    let environments = environments(&cli);
    assert!(!environments.is_empty(), "it runs under QEMU");
    let is_told = |environment: &Vec<u8>| environment.windows(WORDS.len()).any(|window| window == WORDS.as_bytes());
    assert!(!environments.iter().any(is_told), "QEMU was told the passphrase");
    cli.ok(&["down"]);
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
    cli.unset("FERMATA_STORE_PASSPHRASE");
    cli.fails(&["goto", &id, "-e", "sealed"], 1, &["FERMATA_STORE_PASSPHRASE"]);
    cli.set("FERMATA_STORE_PASSPHRASE", "wrong horse");
    cli.fails(&["goto", &id, "-e", "sealed"], 1, &["this is not the passphrase"]);
    cli.set("FERMATA_STORE_PASSPHRASE", WORDS);
    cli.ok(&["goto", &id, "-e", "sealed"]);
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "before\nbefore");
    cli.ok(&["down"]);
}
