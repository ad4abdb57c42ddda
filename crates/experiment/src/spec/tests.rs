//! YAML in, JSON or the rendered error out.

use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::{fmt::Write, num::NonZeroU16};

pub(super) fn parse(yaml: &str) -> Result<Spec, SpecError> {
    Spec::from_yaml(yaml, Path::new("machine.yaml"), Path::new("/lab"))
}

#[track_caller]
pub(super) fn means(yaml: &str, expected: Value) {
    let spec = parse(yaml).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(serde_json::to_value(&spec).unwrap(), expected);
}

/// Expects each line of the error, without the name of the file. The schema may be milder than the parser, never stricter.
#[track_caller]
pub(super) fn refused(yaml: &str, expected: &str) {
    let error = parse(yaml).expect_err("it was accepted");
    let found = error.to_string().replace("machine.yaml:", "");
    assert_eq!(found.trim(), expected.trim(), "\nfor\n{yaml}");
}

/// The first machine, with `lines` in it.
fn m1(lines: &str) -> String {
    lines.lines().fold("name: a\nnodes:\n  m1:\n".to_owned(), |mut yaml, line| {
        writeln!(yaml, "    {line}").unwrap();
        yaml
    })
}

#[test]
fn a_whole_specification() {
    let yaml = r#"
name: replicas
every: 2s
defaults: {image: debian12.qcow2, memory: 512M}
nodes:
  m1:
    memory: 1GiB
    cpus: 2
    disks:
      - image: ./data/data.raw
      - size: 4G
      - {image: /tools.raw, read-only: true, format: raw}
  m2:
  m3:
    image: other.qcow2
    kernel: ../vmlinuz
    initrd: initrd.gz
    cmdline: "console=ttyS0"
    accel: tcg
    cpu: qemu64,-rdrand
"#;
    means(
        yaml,
        json!({
            "name": "replicas",
            "every": "2s",
            "nodes": {
                "m1": {
                    "image": "/lab/debian12.qcow2",
                    "memory": 1 << 30,
                    "cpus": 2,
                    "disks": [
                        {"image": "/lab/data/data.raw", "read-only": false},
                        {"size": 4_u64 << 30, "read-only": false},
                        {"image": "/tools.raw", "format": "raw", "read-only": true},
                    ],
                    "accel": "auto",
                    "deterministic": false,
                },
                "m2": {"image": "/lab/debian12.qcow2", "memory": 512 << 20, "cpus": 1, "accel": "auto", "deterministic": false},
                "m3": {
                    "image": "/lab/other.qcow2",
                    "memory": 512 << 20,
                    "cpus": 1,
                    "kernel": "/lab/../vmlinuz",
                    "initrd": "/lab/initrd.gz",
                    "cmdline": "console=ttyS0",
                    "accel": "tcg",
                    "cpu": "qemu64,-rdrand",
                    "deterministic": false,
                },
            },
        }),
    );
    let spec = parse(yaml).unwrap();
    let disks: Vec<_> = spec.nodes["m1"].all_disks().map(|disk| disk.image).collect();
    assert_eq!(disks[0].as_deref(), Some(Path::new("/lab/debian12.qcow2")));
    assert_eq!(disks.len(), 4);
}

#[test]
fn the_smallest_machines() {
    let machine = |rest: Value| {
        let mut node = json!({"memory": 1 << 30, "cpus": 1, "accel": "auto", "deterministic": false});
        node.as_object_mut().unwrap().append(&mut rest.as_object().unwrap().clone());
        json!({"name": "a", "nodes": {"m1": node}})
    };
    means("{name: a, nodes: {m1: {image: x}}}", machine(json!({"image": "/lab/x"})));
    means("{name: a, nodes: {m1: {kernel: x}}}", machine(json!({"kernel": "/lab/x"})));
    means("{name: a, nodes: {m1: {disks: [{size: 4K}]}}}", machine(json!({"disks": [{"size": 4096, "read-only": false}]})));
    means("{name: a, nodes: {m1: {image: x, agent: modern}}}", machine(json!({"image": "/lab/x"})));
    means("{name: a, nodes: {m1: {image: x, agent: legacy}}}", machine(json!({"image": "/lab/x", "agent": "legacy"})));
    means("{name: a, nodes: {m1: {kernel: k, deterministic: true}}}", machine(json!({"kernel": "/lab/k", "deterministic": true})));
}

#[test]
fn yaml_as_people_write_it() {
    let plain = parse("{name: a, nodes: {m1: {kernel: k, cmdline: a b}}}").unwrap();
    for yaml in [
        "\u{feff}name: a\r\nnodes:\r\n  m1:\r\n    kernel: k\r\n    cmdline: a b\r\n",
        &format!(
            "{}---\nname: a # the name\nnodes:\n  # the machine\n  m1:\n    kernel: k\n    cmdline: a b # not this\n",
            "# comment\n".repeat(200)
        ),
        "---\nname: 'a'\nnodes:\n  \"m1\":\n    kernel: \"k\"\n    cmdline: |\n      a b\n",
        "name: a\nnodes:\n  m1:\n    kernel: k\n    cmdline: >-\n      a\n      b\n...\n",
        "name: a\nnodes:\n  m1: &m\n    kernel: &k k\n    cmdline: a b\n",
        "{\"name\": \"a\", \"nodes\": {\"m1\": {\"kernel\": \"k\", \"cmdline\": \"a b\"}}}",
        "name: a\ndefaults: &d {kernel: k, cmdline: a b}\nnodes: {m1: *d}\n",
    ] {
        assert_eq!(parse(yaml).unwrap_or_else(|error| panic!("{error}\nfor\n{yaml}")), plain, "{yaml}");
    }
}

#[test]
fn sizes() {
    for (text, bytes) in [
        ("16M", 16 << 20),
        ("16MiB", 16 << 20),
        ("16777216", 16 << 20),
        ("\"16777216\"", 16 << 20),
        ("1T", 1_u64 << 40),
        ("32768K", 32 << 20),
    ] {
        assert_eq!(parse(&m1(&format!("image: x\nmemory: {text}"))).unwrap().nodes["m1"].memory, ByteSize(bytes), "{text}");
    }
    for text in ["1X", "1g", "1GB", "-1", "1.5G", "G", "1 G", "0x400", "99999999999999999999", "18014398509481985K", "1iB", "1.0"] {
        let error = parse(&m1(&format!("image: x\nmemory: {text}"))).expect_err(text).to_string();
        assert!(error.starts_with("machine.yaml:5:13: expected a size such as 512M or 1G, found "), "{text}: {error}");
    }
    refused(&m1("image: x\nmemory: 8M"), "5:13: `memory`: expected 16M to 4T, found 8M");
    refused(&m1("image: x\nmemory: 513M"), "5:13: `memory`: expected a multiple of 2M, found 513M; 512M would do");
    refused(&m1("disks:\n- size: 5000"), "5:13: `size`: expected a multiple of 4K, found 5000; 4K would do");
    refused(&m1("disks:\n- size: 0"), "5:13: `size`: expected 4K to 16T, found 0");
    for size in [0, 1, 1023, 1024, 1 << 30, 3 << 20, (1 << 40) + 1024, u64::MAX].map(ByteSize) {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
}

#[test]
fn intervals() {
    for (text, ms) in [("100ms", 100), ("2s", 2000), ("1500ms", 1500), ("1m", 60_000), ("24h", 86_400_000)] {
        let spec = parse(&format!("every: {text}\n{}", m1("image: x"))).unwrap();
        assert_eq!(spec.every, Some(Duration::from_millis(ms)));
        assert_eq!(serde_json::to_value(&spec).unwrap()["every"], text);
    }
    for text in ["2", "99ms", "25h", "2 s", "1.5s", "-2s", "s", "1d", "99999999999999999999s", "18446744073709551615h", "[2s]"] {
        let error = parse(&format!("every: {text}\n{}", m1("image: x"))).expect_err(text).to_string();
        assert!(
            error.starts_with("machine.yaml:1:8: expected an interval from 100ms to 24h, such as 500ms or 2s, found "),
            "{text}: {error}"
        );
    }
    assert!(Interval::new(Duration::from_nanos(1_000_000_001)).is_err());
}

#[test]
fn what_is_kept() {
    let spec = parse(&format!("keep: last 20, every 2s for 60s\n{}", m1("image: x"))).unwrap();
    assert_eq!(serde_json::to_value(&spec).unwrap()["keep"], "last 20, every 2s for 1m");
    for wrong in ["last", "20", "every 2s for 1s", "[last 20]"] {
        let error = parse(&format!("keep: {wrong}\n{}", m1("image: x"))).expect_err(wrong).to_string();
        assert!(error.contains("expected what is kept, such as `last 20,"), "{error}");
    }
}

#[test]
fn unknown_and_repeated_keys() {
    refused(&m1("image: x\nmemroy: 1G"), "5:5: unknown key `memroy`; did you mean `memory`?");
    refused(&m1("disks:\n- {image: x, read_only: true}"), "5:18: unknown key `read_only`; did you mean `read-only`?");
    refused(
        &m1("image: x\nzzz: 1"),
        "5:5: unknown key `zzz`; a machine has the keys image, memory, cpus, disks, kernel, initrd, cmdline, accel, cpu, deterministic, agent, clock, interfaces, ports, services",
    );
    refused(
        "name: a\nversion: 2\nnodes: {m1: {image: x}}",
        "2:1: unknown key `version`; an experiment has the keys name, every, keep, capture, tracker, full, free, defaults, nodes, links, events",
    );
    refused(&m1("image: x\nimage: y"), "5:5: the key `image` stands here a second time; remove one of the two");
    refused("name: a\nname: b\nnodes: {m1: {image: x}}", "2:1: the key `name` stands here a second time; remove one of the two");
}

#[test]
fn wrong_types() {
    refused(&m1("disks: data.raw"), "4:12: expected a list of disks, found \"data.raw\"");
    refused(&m1("disks: [data.raw]"), "4:13: expected a disk such as `image: data.raw` or `size: 4G`, found \"data.raw\"");
    refused(&m1("image: 5"), "4:12: expected a path, found the number 5; put it in quotes if text is meant");
    refused(&m1("image:"), "4:10: expected a path, found nothing");
    refused(&m1("image: [x]"), "4:12: expected a path, found a list");
    refused(&m1("image: x\ncpus: two"), "5:11: expected a number of processors from 1 to 64, found \"two\"");
    refused(&m1("image: x\ncpus: 65"), "5:11: `cpus`: expected 1 to 64 processors, found 65");
    refused(&m1("image: x\ncpus: -1"), "5:11: expected a number of processors from 1 to 64, found the number -1");
    refused(&m1("kernel: x\ndeterministic: yes"), "5:20: expected true or false, found \"yes\"");
    refused(&m1("image: x\naccel: kmv"), "5:12: expected auto or kvm or tcg, found \"kmv\"; did you mean kvm?");
    refused(&m1("disks: [{image: x, format: vmdk}]"), "4:32: expected raw or qcow2, found \"vmdk\"");
    refused("name: a\nnodes: [m1]", "2:8: expected a mapping of machine names to machines, found a list");
    refused("name: a\nnodes: {m1: x}", "2:13: expected a machine (a mapping of keys to values), found \"x\"");
    refused("- name: a", "1:1: expected an experiment (a mapping of keys to values), found a list");
    refused("name: 2026\nnodes: {m1: {image: x}}", "1:7: expected a name, found the number 2026; put it in quotes if text is meant");
    refused(&m1("image: x\ncpu: \"max; rm\""), "5:10: `cpu`: expected a QEMU CPU model such as max or qemu64,-rdrand, found \"max; rm\"");
    refused(
        &m1("image: \"a\\u0007b\""),
        "4:12: `image`: expected one line without control characters, found \"a\\u{7}b\"; long lines can be folded with `>-`",
    );
    refused(&m1("image: ''"), "4:12: `image`: expected 1 to 4095 bytes, found 0");
}

#[test]
fn names() {
    for name in ["", "-a", "A", "a_b", "a.b", "é", "a b", &"a".repeat(33)] {
        let error = parse(&format!("name: \"{name}\"\nnodes: {{m1: {{image: x}}}}")).expect_err(name).to_string();
        assert!(error.starts_with("machine.yaml:1:7: expected a name (small letters, digits and hyphens"), "{name}: {error}");
        let error = parse(&format!("name: a\nnodes:\n  \"{name}\": {{image: x}}")).expect_err(name).to_string();
        assert!(error.starts_with("machine.yaml:3:3: expected a name (small letters, digits and hyphens"), "{name}: {error}");
    }
    assert!(parse(&format!("name: {}\nnodes: {{1: {{image: x}}}}", "a".repeat(32))).is_ok());
}

#[test]
fn what_is_missing() {
    refused("", "1:1: the file is empty; an experiment needs the keys `name` and `nodes`");
    refused("# only words\n", "1:1: the file is empty; an experiment needs the keys `name` and `nodes`");
    refused("name: a", "1:1: an experiment needs the key `nodes`, such as `nodes: {m1: {image: disk.qcow2}}`");
    refused("nodes: {m1: {image: x}}", "1:1: an experiment needs the key `name`, such as `name: my-experiment`");
    refused("name: a\nnodes: {}", "2:8: expected at least one machine under `nodes`, such as `nodes: {m1: {image: disk.qcow2}}`");
    refused("name: a\nnodes:\n  m1: {memory: 1G}", "3:3: `m1` has nothing to run: a machine needs `image`, `disks` or `kernel`");
    refused("name: a\nnodes:\n  m1:", "3:3: `m1` has nothing to run: a machine needs `image`, `disks` or `kernel`");
    refused(&m1("image: x\ninitrd: y"), "5:13: `initrd` needs a `kernel`, and `m1` has none; add one or remove `initrd`");
    refused(&m1("disks: [{}]"), "4:13: a disk needs an image or a size, such as `image: data.raw` or `size: 4G`");
    refused(
        &m1("disks: [{image: x, size: 1G}]"),
        "4:30: a disk has an image or a size, not both: an image has its own size; remove one of the two",
    );
    refused(&m1("disks: [{size: 1G, format: raw}]"), "4:32: `format` is for a disk with an image; an empty disk has none; remove it");
    refused(
        &m1("disks: [{size: 1G, read-only: true}]"),
        "4:35: an empty disk that cannot be written is of no use; give it an image or remove `read-only`",
    );
}

#[test]
fn what_ends_determinism() {
    refused(
        &m1("image: x\nkernel: k\ncpus: 2\naccel: kvm\ndeterministic: true\ndisks:\n- size: 1G"),
        "4:12: `m1` is deterministic and cannot have its first disk: a disk answers when the host does; remove `image` and boot a `kernel` with an `initrd`
6:11: `m1` is deterministic and cannot have several processors: their order would be the host's; write `cpus: 1`
7:12: `m1` is deterministic and cannot have KVM: only QEMU's translator counts instructions; write `accel: tcg`
9:5: `m1` is deterministic and cannot have disks: a disk answers when the host does; remove them",
    );
    refused(
        "name: a\ndefaults: {image: x, deterministic: true}\nnodes:\n  m1: {kernel: k}\n  m2: {deterministic: false}",
        "2:19: `m1` is deterministic and cannot have its first disk: a disk answers when the host does; remove `image` and boot a `kernel` with an `initrd`",
    );
    assert!(parse("name: a\ndefaults: {cpus: 2, deterministic: true}\nnodes: {m1: {kernel: k, cpus: 1}}").is_ok());
}

#[test]
fn all_faults_at_once() {
    refused(
        "name: A\nevery: 2\ndefaults: {memory: 1X}\nnodes:\n  m1: {memroy: 1G}\n  m2: {cpus: 99, accel: hvf}\nlinks: {}",
        "1:7: expected a name (small letters, digits and hyphens, beginning with a letter or digit, 32 characters at most), found \"A\"
2:8: expected an interval from 100ms to 24h, such as 500ms or 2s, found the number 2
3:20: expected a size such as 512M or 1G, found \"1X\"
5:8: unknown key `memroy`; did you mean `memory`?
6:14: `cpus`: expected 1 to 64 processors, found 99
6:25: expected auto or kvm or tcg, found \"hvf\"
7:8: expected a list of links, found a mapping",
    );
    let many: String = (0..50_000).map(|i| format!("k{i}: 1\n")).collect();
    let error = parse(&many).unwrap_err();
    assert_eq!(error.faults().len(), 20);
    assert!(error.to_string().ends_with("\nand 49982 more"), "{error}");
}

#[test]
fn broken_yaml() {
    refused("name: [", "1:7: not valid YAML: unclosed bracket '['");
    let error = parse("name: a\nnodes:\n\tm1: x").unwrap_err();
    assert_eq!((error.faults()[0].kind(), error.faults()[0].place().map(|(line, _)| line)), (FaultKind::Syntax, Some(3)));
    refused("name: a\n---\nname: b", "2:1: expected one YAML document, found a second one; put each experiment in its own file");
    refused("name: !!str a", "1:13: YAML tags (`!...`) are not used here; write the value alone, in quotes where it must be text");
    refused("name: a\n<<: {}", "2:1: merge keys (`<<`) are not part of YAML 1.2; put shared values under `defaults`");
    refused("{[a]: b}", "1:2: expected a key, found a list; a key is one word");
    refused("name: &a [*a]", "1:11: an alias cannot stand inside what it names");
}

#[test]
fn limits() {
    refused(&" ".repeat((1 << 20) + 1), "1:1: expected at most 1 MiB of YAML, found 1048577 bytes");
    for deep in ["[".repeat(500_000), "{a: ".repeat(200_000), "- ".repeat(400_000), "? ".repeat(400_000)] {
        let error = parse(&deep).unwrap_err().to_string();
        assert!(error.contains("nested deeper than 32 levels"), "{error}");
    }
    let mut laughs = "a0: &a0 [lol, lol]\n".to_owned();
    for i in 1..40 {
        writeln!(laughs, "a{i}: &a{i} [{}]", format!("*a{},", i - 1).repeat(9)).unwrap();
    }
    assert!(parse(&laughs).unwrap_err().to_string().contains("after aliases are replaced"));
    let long = format!("a: &a {}\nb: [{}]", "x".repeat(500_000), "*a,".repeat(100_000));
    assert!(parse(&long).unwrap_err().to_string().contains("after aliases are replaced"));

    let nodes = |count: usize| (0..count).fold("name: a\nnodes:\n".to_owned(), |yaml, i| yaml + &format!("  m{i}: {{image: x}}\n"));
    assert_eq!(parse(&nodes(256)).unwrap().nodes.len(), 256);
    refused(&nodes(257), "3:3: at most 256 machines, found 257; split the experiment");
    let disks = |count: usize| m1(&format!("image: x\ndisks: [{}]", "{size: 1G},".repeat(count)));
    assert!(parse(&disks(15)).is_ok());
    refused(&disks(16), "5:5: `m1`: at most 16 disks, found 17; remove some");
    assert!(parse(&m1(&format!("kernel: x\ncmdline: {}", "x".repeat(2047)))).is_ok());
    refused(&m1(&format!("kernel: x\ncmdline: {}", "x".repeat(2048))), "5:14: `cmdline`: expected 0 to 2047 bytes, found 2048");
}

#[test]
fn an_error_shows_the_text() {
    let error = parse(&m1("image: x\nimage: y\nmemory: 1X")).unwrap_err();
    let mut shown = String::new();
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::unicode_nocolor());
    handler.render_report(&mut shown, &error).unwrap();
    for part in ["machine.yaml:5:5: the key `image`", "again here", "first here", "memory: 1X", "unexpected"] {
        assert!(shown.contains(part), "{part} not in\n{shown}");
    }
}

#[test]
fn files_are_looked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("machine.yaml");
    std::fs::write(directory.path().join("there.raw"), "x").unwrap();
    std::fs::write(&path, "name: a\nnodes:\n  m1:\n    image: there.raw\n    disks:\n    - {image: gone.raw}\n    kernel: .\n").unwrap();
    let base = directory.path().display();
    let shown = SpecFile::read(&path).unwrap_err().to_string();
    let expected = format!(
        "{0}:6:15: image {base}/gone.raw: no such file; correct the path or put the file there\n{0}:7:13: kernel {base}: not a regular file; name a file",
        path.display()
    );
    assert_eq!(shown, expected);
    let text = std::fs::read_to_string(&path).unwrap();
    let file = SpecFile::parse(&text, &path, directory.path()).unwrap();
    assert_eq!(file.check_files().unwrap_err().to_string(), expected);
    assert_eq!(
        file.spec().check_files().unwrap_err().to_string(),
        format!(
            "image {base}/gone.raw: no such file; correct the path or put the file there\nkernel {base}: not a regular file; name a file"
        )
    );
    std::fs::write(&path, "name: a\nnodes: {m1: {image: there.raw}}").unwrap();
    SpecFile::read(&path).unwrap();
    // With all other faults, and one for each value.
    std::fs::write(&path, "name: a\nnodes: {m1: {image: gone.raw, memory: 1X}, m2: {kernel: \"\"}}").unwrap();
    let shown = SpecFile::read(&path).unwrap_err().to_string();
    let expected = [
        format!("2:21: image {base}/gone.raw: no such file; correct the path or put the file there"),
        "2:39: expected a size such as 512M or 1G, found \"1X\"".to_owned(),
        "2:57: `kernel`: expected 1 to 4095 bytes, found 0".to_owned(),
    ];
    assert_eq!(shown, expected.map(|fault| format!("{}:{fault}", path.display())).join("\n"));

    assert!(matches!(SpecFile::read(directory.path()), Err(SpecError::Unreadable { .. })));
    assert!(matches!(SpecFile::read(&directory.path().join("none")), Err(SpecError::Unreadable { .. })));
    std::fs::write(&path, b"name: \xff").unwrap();
    assert!(matches!(SpecFile::read(&path), Err(SpecError::Unreadable { .. })));
    std::fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    assert!(SpecFile::read(&path).unwrap_err().to_string().contains("at most 1 MiB"));
}

#[test]
fn one_machine_from_the_command_line() {
    let options = SingleOptions { memory: Some(ByteSize::mib(512)), every: Some(Duration::from_secs(2)), ..SingleOptions::default() };
    let spec = Spec::single(Some(Path::new("/images/Debian_12 (cloud).qcow2")), options).unwrap();
    let node = json!({"image": "/images/Debian_12 (cloud).qcow2", "memory": 512 << 20, "cpus": 1, "accel": "auto", "deterministic": false});
    assert_eq!(serde_json::to_value(&spec).unwrap(), json!({"name": "debian-12-cloud", "every": "2s", "nodes": {"m1": node}}));

    let name = |image: &str| Spec::single(Some(Path::new(image)), SingleOptions::default()).unwrap().name;
    assert_eq!(name("/x/---.raw"), "machine");
    assert_eq!(name(&format!("/x/{}-b.raw", "a".repeat(31))), "a".repeat(31));
    let here = Spec::single(Some(Path::new("x.raw")), SingleOptions::default()).unwrap();
    assert_eq!(here.nodes["m1"].image, Some(std::env::current_dir().unwrap().join("x.raw")));

    let wrong = SingleOptions {
        cpus: Some(99),
        every: Some(Duration::from_millis(1)),
        cmdline: Some("quiet".into()),
        memory: Some(ByteSize(5)),
        ..SingleOptions::default()
    };
    assert_eq!(
        Spec::single(None, wrong).unwrap_err().to_string(),
        "`every`: expected an interval from 100ms to 24h, such as 500ms or 2s, found \"1ms\"
`memory`: expected 16M to 4T, found 5
`cpus`: expected 1 to 64 processors, found 99
`m1` has nothing to run: a machine needs `image`, `disks` or `kernel`
`cmdline` needs a `kernel`, and `m1` has none; add one or remove `cmdline`"
    );
    let error = Spec::single(None, SingleOptions::default()).unwrap_err().to_string();
    assert_eq!(error, "`m1` has nothing to run: a machine needs `image`, `disks` or `kernel`");
}

#[test]
fn a_record_is_checked() {
    let read = |value: Value| serde_json::from_value::<Spec>(value).map_err(|error| error.to_string());
    assert!(read(json!({"name": "a", "nodes": {"m1": {"image": "/x"}}})).is_ok());
    assert_eq!(read(json!({"name": "a", "nodes": {"m1": {"image": "x"}}})).unwrap_err(), "`image`: expected an absolute path, found \"x\"");
    assert_eq!(
        read(json!({"name": "a", "nodes": {"m1": {"image": "/x", "cpus": 0}}})).unwrap_err(),
        "`cpus`: expected 1 to 64 processors, found 0"
    );
    assert!(read(json!({"name": "a", "nodes": {"m1": {"image": "/x", "imag": 0}}})).is_err());
}

/// The JSON that a YAML text means; none for numbers that JSON writes otherwise.
fn json_of(value: &yaml::Value) -> Option<Value> {
    Some(match &value.data {
        yaml::Data::Null => Value::Null,
        yaml::Data::Bool(flag) => json!(flag),
        yaml::Data::Number(text) => serde_json::from_str(text).ok()?,
        yaml::Data::Text(text) => json!(text),
        yaml::Data::List(values) => Value::Array(values.iter().map(json_of).collect::<Option<_>>()?),
        yaml::Data::Mapping(entries) => {
            Value::Object(entries.iter().map(|entry| Some((entry.key.clone(), json_of(&entry.value)?))).collect::<Option<_>>()?)
        }
    })
}

/// What the schema says; none when the text is no YAML or has repeated keys, which a schema cannot see.
pub(super) fn schema_accepts(schema: &jsonschema::Validator, yaml: &str) -> Option<bool> {
    let mut faults = Faults::default();
    let document = yaml::parse(yaml, &mut faults).ok()??;
    faults.is_empty().then(|| json_of(&document).map(|json| schema.is_valid(&json)))?
}

pub(super) fn schema() -> jsonschema::Validator {
    jsonschema::draft202012::new(&Spec::json_schema()).unwrap()
}

#[test]
fn the_examples_of_the_documentation_hold() {
    let text = include_str!("../../../../docs/spec.md");
    let blocks: Vec<_> = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 3);
    for block in blocks {
        parse(block).unwrap_or_else(|error| panic!("{error}\nin\n{block}"));
        assert_eq!(schema_accepts(&schema(), block), Some(true), "{block}");
    }
}

#[test]
fn what_the_schema_refuses_the_parser_refuses() {
    let schema = schema();
    let meta = jsonschema::draft202012::meta::validate(&Spec::json_schema()).map_err(|error| error.to_string());
    assert_eq!(meta, Ok(()));
    for (yaml, accepted) in [
        (m1("image: x"), true),
        (m1("disks: [{image: x, read-only: true, format: qcow2}, {size: 4096}]"), true),
        ("name: a\nevery: 2s\ndefaults: {image: x}\nnodes: {m1: }".into(), true),
        (m1("image: null"), false),
        (m1("image: x\nmemory: 1X"), false),
        (m1("image: x\ncpus: 0"), false),
        (m1("image: x\naccel: hvf"), false),
        (m1("image: x\nimages: x"), false),
        (m1("disks: [{}]"), false),
        (m1("disks: [{image: x, size: 1G}]"), false),
        ("name: A\nnodes: {m1: {image: x}}".into(), false),
        ("name: a\nnodes: {M1: {image: x}}".into(), false),
        ("name: a\nnodes: {m1: {image: x}}\nlinks: []".into(), true),
        ("name: a\nnodes: {m1: {image: x}}\nlinks: {}".into(), false),
        ("name: a\nnodes: {}".into(), false),
        ("nodes: {m1: {image: x}}".into(), false),
        ("name: a\nevery: 2\nnodes: {m1: {image: x}}".into(), false),
    ] {
        assert_eq!(schema_accepts(&schema, &yaml), Some(accepted), "{yaml}");
        assert_eq!(parse(&yaml).is_ok(), accepted, "{yaml}");
    }
}

/// Text that is nearly a specification: words of one, thrown together.
fn nearly_yaml() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "name",
        "nodes",
        "m1",
        "image",
        "memory",
        "disks",
        "size",
        "every",
        "keep",
        "last 20, every 2s",
        "defaults",
        "cpus",
        "kernel",
        "cmdline",
        "deterministic",
        "accel",
        "read-only",
        "format",
        "links",
        "endpoints",
        "events",
        "m1:eth1",
        "10ms",
        ": ",
        ":\n",
        "\n",
        "\n  ",
        "\n    ",
        "- ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "1G",
        "2s",
        "x",
        "1",
        "true",
        "null",
        "~",
        "\"",
        "'",
        "&a ",
        "*a",
        "!t ",
        "|\n",
        ">-\n",
        "? ",
        "#",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "\t",
        "\r\n",
        "\u{feff}",
        "é",
        "\u{2028}",
        "\0",
        "\\",
        "<<: ",
        "kvm",
        "-",
        "0x1f",
        ".5",
    ];
    prop::collection::vec(prop::sample::select(WORDS), 0..60).prop_map(|words| words.concat())
}

/// A specification with one thing wrong or none.
fn mutated() -> impl Strategy<Value = String> {
    const LINES: &[&str] = &[
        "image: x",
        "image: ''",
        "image:",
        "memory: 1G",
        "memory: 3M",
        "memory: 1G1",
        "memory: 1048576",
        "cpus: 2",
        "cpus: 0",
        "cpus: 1.5",
        "disks: []",
        "disks: [{size: 1G}]",
        "disks: [{size: 1}]",
        "disks: [{image: x, format: raw}]",
        "disks: [{image: x, format: no}]",
        "disks: [x]",
        "disks: {}",
        "kernel: k",
        "initrd: i",
        "cmdline: a b",
        "cmdline: 5",
        "cmdline: |\n      a\n      b",
        "accel: kvm",
        "accel: KVM",
        "capture: cow",
        "cpu: max",
        "cpu: ' '",
        "deterministic: true",
        "deterministic: True",
        "deterministic: 'true'",
        "other: 1",
    ];
    let lines = prop::collection::vec(prop::sample::select(LINES), 0..6);
    (lines, prop::bool::ANY).prop_map(|(lines, defaults)| {
        let body = m1(&lines.join("\n"));
        if defaults { body.replace("nodes:\n  m1:", "nodes: {m1: }\ndefaults:\n    #") } else { body }
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let path = || "(/[a-z .é]{1,8}){1,3}x".prop_map(|path| PathBuf::from(path).components().collect::<PathBuf>());
    let image_disk = (path(), prop::option::of(prop_oneof![Just(Format::Raw), Just(Format::Qcow2)]), any::<bool>())
        .prop_map(|(path, format, read_only)| Disk { image: Some(path), size: None, format, read_only });
    let empty_disk =
        (1_u64..1 << 32).prop_map(|pages| Disk { image: None, size: Some(ByteSize(pages << 12)), format: None, read_only: false });
    let disks = prop::collection::vec(prop_oneof![image_disk, empty_disk], 0..4);
    let direct = prop::option::of((path(), prop::option::of(path()), prop::option::of("[ -~é]{0,40}")));
    let port = any::<NonZeroU16>().prop_map(|guest| Port { guest, host: None });
    let ports = prop::collection::vec(port, 0..4);
    let node = (prop::option::of(path()), 8_u64..1 << 21, 1_u32..=64, disks, direct, "[a-z]{0,5}", ports, any::<bool>());
    let node = node.prop_map(|(image, leaves, cpus, disks, direct, cpu, ports, deterministic)| {
        let (kernel, initrd, cmdline) = direct.map_or((None, None, None), |(kernel, initrd, cmdline)| (Some(kernel), initrd, cmdline));
        let (image, kernel, deterministic) = match (deterministic && kernel.is_some(), image, disks.is_empty(), kernel) {
            (true, _, _, kernel) => (None, kernel, true),
            (_, None, true, None) => (Some("/image".into()), None, false),
            (_, image, _, kernel) => (image, kernel, false),
        };
        Node {
            image,
            memory: ByteSize(leaves << 21),
            cpus: if deterministic { 1 } else { cpus },
            disks: if deterministic { Vec::new() } else { disks },
            kernel,
            initrd,
            cmdline,
            accel: if deterministic { Accel::Tcg } else { Accel::Kvm },
            cpu: Some(cpu).filter(|cpu| !cpu.is_empty()),
            deterministic,
            agent: if leaves % 2 == 0 { AgentPort::Legacy } else { AgentPort::Modern },
            clock: None,
            interfaces: BTreeMap::new(),
            services: if deterministic {
                BTreeSet::new()
            } else {
                ports.iter().map(|port| if port.guest.get() % 2 == 0 { Service::Ntp } else { Service::Dns }).collect()
            },
            ports: if deterministic { Vec::new() } else { ports },
        }
    });
    let every = prop::option::of((100_u64..86_400_000).prop_map(Duration::from_millis));
    let mode = prop::sample::select(vec![CaptureMode::Auto, CaptureMode::Stop, CaptureMode::Precopy, CaptureMode::Cow]);
    let tracker = prop::sample::select(vec![TrackerChoice::Auto, TrackerChoice::Scan, TrackerChoice::Userfault, TrackerChoice::KvmRing]);
    let free = prop::sample::select(vec![FreePages::Auto, FreePages::Keep, FreePages::Balloon]);
    let capture = (mode, tracker, any::<bool>(), free).prop_map(|(mode, tracker, full, free)| CaptureOptions { tracker, mode, full, free });
    let keep =
        prop::option::of(prop::sample::select(vec!["last 20", "every 2s for 1m, last 3, every 1h"]).prop_map(|text| text.parse().unwrap()));
    ("[a-z0-9][a-z0-9-]{0,31}", every, keep, capture, prop::collection::btree_map("[a-z0-9][a-z0-9-]{0,31}", node, 1..4))
        .prop_map(|(name, every, keep, capture, nodes)| Spec { name, every, keep, capture, nodes, links: Vec::new(), events: Vec::new() })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_an_answer(text in prop_oneof![any::<String>(), nearly_yaml(), mutated()]) {
        if let Err(error) = parse(&text) {
            let mut shown = String::new();
            miette::GraphicalReportHandler::new().render_report(&mut shown, &error).unwrap();
            prop_assert!(!error.faults().is_empty());
            prop_assert!(error.faults().iter().all(|fault| fault.place().is_some()));
        }
    }

    #[test]
    fn the_parser_is_no_milder_than_the_schema(text in prop_oneof![1 => nearly_yaml(), 4 => mutated()]) {
        thread_local!(static SCHEMA: jsonschema::Validator = schema());
        if SCHEMA.with(|schema| schema_accepts(schema, &text)) == Some(false) {
            prop_assert!(parse(&text).is_err());
        }
    }

    #[test]
    fn json_and_back_is_the_same(spec in spec()) {
        let json = serde_json::to_string(&spec).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Spec>(&json).unwrap(), &spec);
        // JSON is YAML, so a record can be turned into a specification to edit.
        let again = parse(&json).map_err(|error| TestCaseError::fail(format!("{error}\n{json}")))?;
        prop_assert_eq!(&again, &spec);
        prop_assert_eq!(serde_json::to_string(&again).unwrap(), json);
    }
}
