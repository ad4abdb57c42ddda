//! What differs between two checkpoints, by the command line: files, memory by its use, links.

use fermata_testkit::{
    Cli,
    cli::{array, count, string},
    guests,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// What became of each file of a disk's only file system, and how long it is then.
fn files(difference: &Value, disk: &str) -> BTreeMap<String, (String, Option<u64>)> {
    let disks = array(&difference["disks"]);
    let found = disks.iter().find(|found| found["name"] == disk).unwrap_or_else(|| panic!("no {disk}: {difference}"));
    let system = &array(&found["file_systems"])[0];
    assert_eq!((array(&found["file_systems"]).len(), count(&system["unread"])), (1, 0), "{found}");
    assert!(system.get("unclear").is_none(), "{found}");
    let file = |file: &Value| (string(&file["path"]).to_owned(), (string(&file["change"]).to_owned(), file["size_b"].as_u64()));
    array(&system["files"]).iter().map(file).collect()
}

#[test]
fn files_memory_and_links_that_differ_are_named() {
    let cli = Cli::new();
    let disk = cli.disk();
    let (a, b) = (format!("    image: {}\n    interfaces: {{eth1: {{}}}}\n", disk.display()), "    interfaces: {eth1: {}}\n");
    let nodes = guests::several("differ", 128, &[("a", "fermata.run=none fermata.disk=rw", &a), ("b", "fermata.run=none", b)]);
    cli.write("differ.yaml", &format!("{nodes}links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n"));
    cli.ok(&["up", "differ.yaml"]);
    cli.shell("a", "cd /disk; mkdir logs; echo one >kept; echo two >changed; echo three >removed; sync");
    cli.checkpoint("before");
    cli.shell("a", "cd /disk; echo longer than two >changed; rm removed; seq 10000 >logs/new; sync");
    // Memory of programs: a file system in memory counts as theirs.
    cli.shell("a", "dd if=/dev/urandom of=/run/blob bs=1M count=16 2>/dev/null");
    cli.ok(&["link", "a:eth1", "--delay", "30ms"]);
    cli.checkpoint("after");
    let difference = cli.json(&["diff", "main~1", "main"]);
    let found = files(&difference, "a/disk0");
    let expected = [("/changed", ("changed", Some(16))), ("/logs/new", ("added", Some(48_894))), ("/removed", ("removed", None))];
    let expected: BTreeMap<_, _> = expected.map(|(path, (change, size))| (path.to_owned(), (change.to_owned(), size))).into();
    assert_eq!(found, expected, "{difference}");
    let back = files(&cli.json(&["diff", "main", "main~1"]), "a/disk0");
    assert_eq!((back["/removed"].0.as_str(), back["/logs/new"].0.as_str()), ("added", "removed"));
    // Every page that differs is for something.
    let ram = array(&difference["parts"]).iter().find(|part| part["name"] == "a" && part["of"] == "ram").expect("its memory");
    let memory = difference["memory"]["a"]["pages"].as_object().unwrap_or_else(|| panic!("no uses: {difference}"));
    assert_eq!(memory.values().map(count).sum::<u64>(), count(&ram["pages_differing"]));
    assert!(count(&memory["anonymous"]) >= 16 << 8 && memory.len() > 3, "{memory:?}");
    let links = array(&difference["links"]);
    let delays = |link: &Value| [&link["a"], &link["b"]].map(|end| count(&end["sent"]["delay_ns"]) + count(&end["received"]["delay_ns"]));
    let names: Vec<_> = links.iter().map(|link| string(&link["interface"])).collect();
    assert_eq!(names, ["a:eth1", "b:eth1"], "{difference}");
    assert!(links.iter().all(|link| delays(link)[0] < delays(link)[1]), "{links:?}");
    in_words(&cli);
    // By pages alone nobody needs the image.
    let quick = cli.json(&["diff", "main~1", "main", "--quick"]);
    assert_eq!((&quick["parts"], array(&quick["disks"]).len(), array(&quick["links"]).len()), (&difference["parts"], 0, 0));
    cli.ok(&["down"]);
    std::fs::remove_file(&disk).expect("the image");
    let without = cli.json(&["diff", "main~1", "main"]);
    let why = string(&array(&without["disks"])[0]["file_systems"][0]["unclear"]).to_owned();
    assert!(why.contains("disk.raw") && without["memory"]["a"]["unknown"].is_string(), "{without}");
    assert_eq!(without["links"], difference["links"]);
}

fn in_words(cli: &Cli) {
    let said = cli.ok(&["diff", "main~1", "main"]);
    let expected = [
        "files of a/disk0: 1 changed, 1 added, 1 removed",
        "~ /changed  4 B -> 16 B",
        "+ /logs/new  47.7 KiB",
        "- /removed  6 B",
        "memory of a: ",
        "a:eth1",
        "30ms",
    ];
    let missing: Vec<_> = expected.iter().filter(|words| !said.contains(**words)).collect();
    assert!(missing.is_empty(), "no {missing:?}: {said}");
}
