//! `fermata backup`, `clone` and `remote verify` on the real program, where something is damaged here or there. The experiments are areas of this program.

use fermata_process::{CriticalArea, Options};
use fermata_store::Store;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The exit status, and what is said as JSON.
fn fermata(place: &Path, store: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.arg("--json").args(arguments).current_dir(place).stdin(Stdio::null());
    command.env("FERMATA_STORE", place.join(store)).env("FERMATA_RUN_DIR", place.join("run"));
    let output = command.env_remove("FERMATA_EXPERIMENT").output().expect("it runs");
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {output:?}"));
    (output.status.code(), told)
}

/// Makes an experiment.
fn grow(store: &Path, name: &str, value: u8) {
    let store = Store::open(store).expect("a store");
    let mut area = CriticalArea::open(&store, name, 1 << 20, Options::default().anywhere()).expect("an area");
    let mut cycle = area.begin().expect("a cycle");
    cycle[..8].fill(value);
    cycle.commit().expect("a checkpoint");
}

fn packs(place: &Path) -> BTreeSet<PathBuf> {
    let below = |path: PathBuf| fs::read_dir(path).expect("a directory").map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>();
    below(place.join("packs")).into_iter().flat_map(below).collect()
}

#[test]
fn what_is_damaged_keeps_nothing_else_from_being_copied() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path();
    let (store, nas) = (place.join("store"), place.join("nas"));
    let address = nas.to_str().expect("a name in UTF-8");
    grow(&store, "first", 1);
    let before = packs(&store);
    grow(&store, "second", 2);
    let of_second: Vec<_> = packs(&store).difference(&before).cloned().collect();
    assert_eq!(fermata(place, "store", &["remote", "add", "nas", address, "--plain"]).0, Some(0));
    let aside = |pack: &PathBuf| place.join(pack.file_name().expect("it has a name"));
    of_second.iter().for_each(|pack| fs::rename(pack, aside(pack)).expect("it goes aside"));

    let (status, told) = fermata(place, "store", &["backup", "nas", "--keep-up", "--limit", "50M"]);
    assert_eq!(status, Some(1), "{told}");
    let [first, second] = told["copied"].as_array().expect("both").as_slice() else { panic!("{told}") };
    assert!(first["checkpoints"].as_u64() > Some(0) && first["trouble"].is_null(), "{told}");
    assert!(second["experiment"] == "second" && second["trouble"].is_string(), "{told}");
    assert!(told["kept"][0]["limit_bytes"].as_u64() > Some(0), "{told}");
    of_second.iter().for_each(|pack| fs::rename(aside(pack), pack).expect("it comes back"));
    let (status, told) = fermata(place, "store", &["backup", "nas"]);
    assert_eq!(status, Some(0), "{told}");

    assert_eq!(fermata(place, "store", &["remote", "verify", "nas"]).0, Some(0));
    fs::remove_file(packs(&nas).first().expect("a pack")).expect("it is lost");
    let (status, told) = fermata(place, "store", &["remote", "verify", "nas"]);
    let broken = |told: &Value| {
        let experiments = told["experiments"].as_array().expect("they are told").iter();
        experiments.map(|experiment| experiment["broken"].as_array().expect("a list").len()).sum::<usize>()
    };
    assert!(status == Some(1) && broken(&told) > 0, "{told}");
    // What is whole comes, and is not lost again for what is not.
    let (status, told) = fermata(place, "other", &["clone", address]);
    let all = told.as_array().expect("both");
    assert!(status == Some(1) && all.len() == 2 && all.iter().any(|copied| copied["left_out"].is_array()), "{told}");
    let (status, told) = fermata(place, "store", &["remote", "verify", "nas", "--repair"]);
    assert!(status == Some(0) && broken(&told) == 0 && told["repaired"]["packs"].as_u64() > Some(0), "{told}");
    let (status, told) = fermata(place, "other", &["clone", address]);
    assert!(status == Some(0), "{told}");
    let (status, told) = fermata(place, "other", &["clone", address, "-e", "third"]);
    let said = told["error"]["message"].as_str().expect("a message");
    assert!(status == Some(1) && said.contains("third") && said.contains("first, second"), "{told}");
}
