//! YAML in, JSON, a topology or the error out.

use super::{
    super::{
        Spec,
        tests::{means, parse, refused, schema, schema_accepts},
    },
    *,
};
use crate::topology::topology;
use fermata_net::{Chance, Discipline, InterfaceId, topology::MTU_MAX};
use proptest::prelude::*;
use std::{collections::BTreeMap, fmt::Debug, net::Ipv4Addr, ops::RangeInclusive};

/// Machines `a`, `b` and `c`, and what follows.
fn with(rest: &str) -> String {
    format!("name: x\ndefaults: {{image: i}}\nnodes: {{a: , b: , c: }}\n{rest}")
}

fn linked(keys: &str) -> String {
    with(&format!("links:\n- {{endpoints: [\"a:eth1\", \"b:eth1\"]{keys}}}"))
}

const BOTH: &str = r#"
name: replicas
defaults: {image: debian12.qcow2}
nodes:
  a: {clock: +2h}
  b: {clock: -1500ms, interfaces: {eth1: {mac: "02:00:00:00:00:0B", ipv4: 10.0.0.2/24}}}
  c: {interfaces: {eth1: {}}}
links:
  - endpoints: ["a:eth1", "b:eth1"]
    rate: 100Mbit
    delay: 10ms
    jitter: 1000us
    loss: 0.1%
    queue: 100
    discipline: codel
    back: {delay: 50ms, rate: none, loss: 0%}
  - lan: backbone
    endpoints: ["a:eth2", "b:eth2", "c:eth1"]
    rate: 1000Mbit
    mtu: 9000
events:
  - {at: 90s, link: "a:eth1", down: true}
  - {at: 1500ms, link: "b:eth2", delay: 5ms, back: {reorder: 1.25%}}
  - {at: 60s, exec: c, run: "systemctl restart app"}
"#;

#[test]
fn a_whole_network() {
    let node = |extra: Value| {
        let mut node = json!({"image": "/lab/debian12.qcow2", "memory": 1 << 30, "cpus": 1, "accel": "auto", "deterministic": false});
        node.as_object_mut().unwrap().append(&mut extra.as_object().unwrap().clone());
        node
    };
    means(
        BOTH,
        json!({
            "name": "replicas",
            "nodes": {
                "a": node(json!({"clock": "+2h"})),
                "b": node(json!({"clock": "-1500ms", "interfaces": {"eth1": {"mac": "02:00:00:00:00:0b", "ipv4": "10.0.0.2/24"}}})),
                "c": node(json!({"interfaces": {"eth1": {}}})),
            },
            "links": [
                {
                    "endpoints": ["a:eth1", "b:eth1"],
                    "rate": "100Mbit",
                    "delay": "10ms",
                    "jitter": "1ms",
                    "loss": "0.1%",
                    "queue": 100,
                    "discipline": "codel",
                    "back": {"rate": "none", "delay": "50ms", "loss": "0%"},
                },
                {"lan": "backbone", "endpoints": ["a:eth2", "b:eth2", "c:eth1"], "mtu": 9000, "rate": "1Gbit"},
            ],
            "events": [
                {"at": "90s", "link": "a:eth1", "down": true},
                {"at": "1500ms", "link": "b:eth2", "delay": "5ms", "back": {"reorder": "1.25%"}},
                {"at": "1m", "exec": "c", "run": "systemctl restart app"},
            ],
        }),
    );
    let json = serde_json::to_string(&parse(BOTH).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&json).unwrap(), parse(BOTH).unwrap());
    assert_eq!(parse(&json).unwrap(), parse(BOTH).unwrap());
    assert_eq!(schema_accepts(&schema(), BOTH), Some(true));
    assert_eq!(schema_accepts(&schema(), &json), Some(true));
}

#[test]
fn the_topology_of_it() {
    let spec = parse(BOTH).unwrap();
    let topology = topology(&spec);
    topology.check().unwrap();
    let names: Vec<_> = topology.interfaces.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a:eth1", "a:eth2", "b:eth1", "b:eth2", "c:eth1"]);
    assert_eq!(topology.interfaces.iter().map(|interface| interface.mtu).collect::<Vec<_>>(), [1500, 9000, 1500, 9000, 9000]);
    assert_eq!(topology.interfaces[2].mac, Mac([2, 0, 0, 0, 0, 0xb]));
    let [there, back] = &topology.links[0].shapes;
    assert_eq!((there.rate, there.delay_ns, there.jitter_ns), (Some(100_000_000), 10_000_000, 1_000_000));
    assert_eq!((there.loss, there.queue, there.discipline), (Chance { per_billion: 1_000_000 }, 100, Discipline::Codel));
    assert_eq!(*back, Shape { rate: None, delay_ns: 50_000_000, loss: Chance::NEVER, ..there.clone() });
    assert_eq!(topology.links[0].ends, [InterfaceId(0), InterfaceId(2)]);
    let lan = &topology.lans[0];
    assert_eq!((lan.name.as_str(), lan.ports.iter().map(|port| port.interface.0).collect::<Vec<_>>()), ("backbone", vec![1, 3, 4]));
    assert!(lan.ports.iter().all(|port| port.to_switch.rate == Some(1_000_000_000) && port.from_switch == port.to_switch));

    let reverse = parse(&BOTH.replace(r#"["a:eth1", "b:eth1"]"#, r#"["b:eth1", "a:eth1"]"#)).unwrap();
    assert_eq!(crate::topology::topology(&reverse).links[0].ends, [InterfaceId(2), InterfaceId(0)]);
    let Action::Link { change, .. } = &spec.events[1].action else { panic!() };
    assert_eq!((change.sent.reorder, change.received.reorder), (None, Some(Chance { per_billion: 12_500_000 })));
    assert_eq!((change.sent.delay_ns, change.received.delay_ns), (Some(5_000_000), Some(5_000_000)));
}

#[test]
fn addresses_depend_on_names_alone() {
    let macs = |yaml: &str| topology(&parse(yaml).unwrap()).interfaces.iter().map(|interface| interface.mac).collect::<Vec<_>>();
    let base = linked("");
    assert_eq!(macs(&base), macs(&base.replace("image: i", "image: j")));
    assert_eq!(macs(&base)[0].to_string(), "c6:23:7c:94:d4:c3");
    let other = macs(&base.replace("name: x", "name: y"));
    assert!(macs(&base).iter().all(|mac| !other.contains(mac) && mac.0[0] & 3 == 2));
}

#[test]
fn endpoints_that_cannot_be() {
    refused(
        &with("links: [{endpoints: [\"a:eth1\", \"d:eth1\"]}]"),
        "4:32: there is no machine `d`; add it under `nodes`, or name one that is there",
    );
    refused(
        "name: x\ndefaults: {image: i}\nnodes: {server: , client: }\nlinks: [{endpoints: [\"server:eth1\", \"clinet:eth1\"]}]",
        "4:37: there is no machine `clinet`; did you mean `client`?",
    );
    refused(
        &with("links:\n- {endpoints: [\"a:eth1\", \"b:eth1\"]}\n- {lan: l, endpoints: [\"c:eth1\", \"b:eth1\", \"a:eth1\"]}"),
        "6:34: `b:eth1` is connected already; an interface has one cable: take another interface
6:44: `a:eth1` is connected already; an interface has one cable: take another interface",
    );
    refused(
        &with("links: [{endpoints: [\"a:eth1\", \"a:eth1\"]}]"),
        "4:32: `a:eth1` is connected already; an interface has one cable: take another interface",
    );
    refused(
        &with("links: [{endpoints: [\"a:eth1\", \"a:eth2\"]}]"),
        "4:22: a link from `a` to itself; connect it with another machine, or name a `lan`",
    );
    for name in ["a", "a:", "a:eth", "a:eth15", "a:eth01", "a:eth+1", "a:ens3", ":eth1:"] {
        let found = format!("4:32: expected a machine and its interface, eth0 to eth14, such as a:eth1, found \"{name}\"");
        refused(&with(&format!("links: [{{endpoints: [\"b:eth1\", \"{name}\"]}}]")), &found);
    }
    refused(
        &with("links: [{endpoints: [a: eth1, b: eth1]}]"),
        "4:22: expected an interface such as \"a:eth1\", found a mapping\n4:31: expected an interface such as \"a:eth1\", found a mapping",
    );
    refused(&with("links: [{endpoints: a}]"), "4:21: expected a list of interfaces such as [\"a:eth1\", \"b:eth1\"], found \"a\"");
    refused(&with("links: [{endpoints: [\"a:eth1\"]}]"), "4:10: a link has two endpoints, found 1; add the missing ones");
    refused(
        &with("links: [{endpoints: [\"a:eth1\", \"b:eth1\", \"c:eth1\"]}]"),
        "4:10: a link has two endpoints, found 3; name it, as in `lan: backbone`, to make it a switch",
    );
    refused(&with("links: [{lan: l, endpoints: [\"a:eth1\"]}]"), "4:18: a LAN has at least two endpoints, found 1; add some");
    refused(&with("links: [{lan: l}]"), "4:9: a link needs the key `endpoints`, such as `endpoints: [\"a:eth1\", \"b:eth1\"]`");
    refused(
        &with("links:\n- {lan: l, endpoints: [\"a:eth1\", \"b:eth1\"]}\n- {lan: l, endpoints: [\"a:eth2\", \"b:eth2\"]}"),
        "6:9: there is a LAN `l` already; give this one another name, or put all its endpoints into one list",
    );
    refused(
        "name: x\nnodes:\n  a: {image: i}\n  b: {kernel: k, deterministic: true}\nlinks: [{endpoints: [\"a:eth1\", \"b:eth1\"]}]",
        "5:32: `b` is deterministic and cannot be at a link: frames come when the host brings them; remove it here",
    );
    let lans: String = (0..9).map(|i| format!("- {{lan: l{i}, endpoints: [\"a:eth{i}\", \"b:eth{i}\"]}}\n")).collect();
    refused(
        &with(&format!("links:\n{lans}")),
        "13:25: `a` has more than 8 interfaces; connect fewer\n13:35: `b` has more than 8 interfaces; connect fewer",
    );
}

#[test]
fn shapes_that_cannot_be() {
    for (keys, place, message) in [
        ("rate: 0Mbit", 43, "expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found \"0Mbit\""),
        ("rate: 100", 43, "expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found the number 100"),
        ("rate: 2Tbit", 43, "expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found \"2Tbit\""),
        ("rate: 1Mb", 43, "expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found \"1Mb\""),
        ("delay: 10", 44, "expected a time such as 500us, 10ms or 30s, found the number 10"),
        ("delay: 2h", 44, "`delay`: expected at most 1h, found 2h"),
        ("jitter: 1ms", 45, "`jitter` is 1ms and `delay` is 0s: a frame cannot arrive before it is sent"),
        ("delay: 5ms, jitter: 3ms, back: {delay: 1ms}", 76, "`jitter` is 3ms and `delay` is 1ms: a frame cannot arrive before it is sent"),
        ("reorder: 1%", 46, "`reorder` lets frames skip the delay, and there is none; add a `delay`"),
        (
            "rate: 10Gbit, delay: 200ms",
            43,
            "at 10Gbit frames that take up to 200ms are up to 239 MiB on their way, and one direction holds 128 MiB; lower `rate` or `delay`",
        ),
        (
            "rate: 1Gbit, delay: 1s, jitter: 100ms",
            43,
            "at 1Gbit frames that take up to 1100ms are up to 132 MiB on their way, and one direction holds 128 MiB; lower `rate` or `delay`",
        ),
        (
            "rate: 10Gbit, back: {delay: 200ms}",
            65,
            "at 10Gbit frames that take up to 200ms are up to 239 MiB on their way, and one direction holds 128 MiB; lower `rate` or `delay`",
        ),
        ("queue: 0", 44, "`queue`: expected 1 to 100000 frames, found 0"),
        ("queue: -1", 44, "expected a number of frames from 1 to 100000, found the number -1"),
        ("mtu: 20", 42, "`mtu`: expected 68 to 9216 bytes, found 20"),
        ("mtu: 70000", 42, "`mtu`: expected 68 to 9216 bytes, found 70000"),
        ("discipline: code", 49, "expected drop-tail or codel, found \"code\"; did you mean codel?"),
        ("dely: 1ms", 37, "unknown key `dely`; did you mean `delay`?"),
        (
            "back: {mtu: 100}",
            44,
            "unknown key `mtu`; the way back has the keys rate, delay, jitter, loss, duplicate, reorder, queue, discipline",
        ),
    ] {
        refused(&linked(&format!(", {keys}")), &format!("5:{place}: {message}"));
    }
    assert!(parse(&linked(", rate: 1Gbit, delay: 1s")).is_ok());
    for loss in ["1", "0.1", "101%", "-1%", "1.12345678%", ".5%", "5.%", "1e1%"] {
        let error = parse(&linked(&format!(", loss: {loss}"))).expect_err(loss).to_string();
        assert!(error.contains("5:43: expected a chance from 0% to 100% such as 0.1%"), "{loss}: {error}");
    }
}

#[test]
fn interfaces_that_cannot_be() {
    let nodes = |a: &str, b: &str| {
        format!(
            "name: x\ndefaults: {{image: i}}\nnodes:\n  a: {{interfaces: {{{a}}}}}\n  b: {{interfaces: {{{b}}}}}\nlinks: [{{endpoints: [\"a:eth1\", \"b:eth1\"]}}]"
        )
    };
    assert!(parse(&nodes("eth1: {ipv4: 10.0.0.1/8}", "eth1: {ipv4: 10.0.0.2/8}")).is_ok());
    refused(&nodes("eth2: {}", ""), "4:20: `a:eth2` is at no link; connect it under `links` or remove it");
    refused(&nodes("eth15: {}", ""), "4:20: expected the name of an interface, eth0 to eth14, found \"eth15\"");
    refused(&nodes("ens3: {}", ""), "4:20: expected the name of an interface, eth0 to eth14, found \"ens3\"");
    refused(&nodes("eth1: x", ""), "4:26: expected an interface (a mapping of keys to values), found \"x\"");
    refused(
        &nodes("eth1: {mac: \"01:00:00:00:00:01\"}", ""),
        "4:32: `mac`: 01:00:00:00:00:01 is not an address of one station; its first byte must be even, and some byte not 0",
    );
    refused(&nodes("eth1: {mac: x}", ""), "4:32: expected an Ethernet address such as 02:5f:00:00:00:01, found \"x\"");
    for ipv4 in ["10.0.0.1", "10.0.0.1/0", "10.0.0.1/33", "10.0.0.1/+8", "10.0.0/8", "fe80::1/64"] {
        let expected = "expected an IPv4 address with the length of its network such as 10.0.0.1/24, found";
        refused(&nodes(&format!("eth1: {{ipv4: \"{ipv4}\"}}"), ""), &format!("4:33: {expected} \"{ipv4}\""));
    }
    refused(
        &nodes("eth1: {mac: \"02:00:00:00:00:01\", ipv4: 10.0.0.1/8}", "eth1: {mac: \"02:00:00:00:00:01\", ipv4: 10.0.0.1/24}"),
        "5:32: `b:eth1` has the address 02:00:00:00:00:01, and so has `a:eth1`; change or remove one `mac`
5:59: `b:eth1` has the address 10.0.0.1, and so has `a:eth1` at the same link; change one",
    );
    refused(
        &with("").replace("a: ,", "a: {clock: 2},"),
        "3:20: expected virtual or real, or a time ahead or behind such as +2h, -1500ms or real +2h, at most 87600h, found the number 2",
    );
    refused(
        &with("").replace("a: ,", "a: {clock: 1us},"),
        "3:20: expected virtual or real, or a time ahead or behind such as +2h, -1500ms or real +2h, at most 87600h, found \"1us\"",
    );
    for wrong in ["real virtual", "real+2h", "real  +2h", "unreal", "\"\"", "real 1us", "virtual real +1s"] {
        let error = parse(&with("").replace("a: ,", &format!("a: {{clock: {wrong}}},"))).expect_err(wrong).to_string();
        assert!(error.contains("3:20: expected virtual or real"), "{error}");
    }
}

#[test]
fn clocks_as_people_write_them() {
    let clocks = ["real", "virtual", "+2h", "2h", "-1500ms", "real +2h", "virtual -1s", "real -0s", "+0s"];
    let means = [
        (true, 0),
        (false, 0),
        (false, 7_200_000),
        (false, 7_200_000),
        (false, -1500),
        (true, 7_200_000),
        (false, -1000),
        (true, 0),
        (false, 0),
    ];
    let written = ["real", "virtual", "+2h", "+2h", "-1500ms", "real +2h", "-1s", "real", "virtual"];
    for ((text, (real, ahead_ms)), written) in clocks.into_iter().zip(means).zip(written) {
        let clock: Clock = text.parse().unwrap();
        assert_eq!(clock, Clock { real, ahead_ms }, "{text}");
        assert_eq!(clock.to_string(), written, "{text}");
        assert_eq!(schema_accepts(&schema(), &with("").replace("a: ,", &format!("a: {{clock: {text}}},"))), Some(true), "{text}");
    }
}

#[test]
fn events_that_cannot_be() {
    let event = |event: &str| format!("{}\nevents:\n- {event}", linked(", delay: 10ms"));
    let either =
        "7:3: an event changes a link or runs a command: `{at: 30s, link: \"a:eth1\", down: true}` or `{at: 60s, exec: a, run: \"...\"}`";
    for neither in
        ["{at: 1s}", "{at: 1s, down: true}", "{at: 1s, exec: a}", "{at: 1s, link: \"a:eth1\", exec: a, run: x}", "{at: 1s, run: x}"]
    {
        refused(&event(neither), either);
    }
    refused(&event("{link: \"a:eth1\", down: true}"), "7:3: an event needs the key `at`, such as `at: 30s`");
    refused(&event("{at: 30, link: \"a:eth1\", down: true}"), "7:8: expected a time such as 500us, 10ms or 30s, found the number 30");
    refused(
        &event("{at: 1s, link: \"a:eth1\"}"),
        "7:3: the event changes nothing; say what becomes different, such as `down: true` or `delay: 50ms`",
    );
    refused(
        &event("{at: 1s, link: \"a:eth2\", down: true}"),
        "7:18: `a:eth2` is at no link; connect it under `links`, or name one that is there: a:eth1",
    );
    refused(&event("{at: 1s, link: \"c:eth1\", down: true}"), "7:18: `c:eth1` is at no link; connect it under `links`");
    refused(
        &event("{at: 1s, link: \"d:eth1\", down: true}"),
        "7:18: there is no machine `d`; add it under `nodes`, or name one that is there",
    );
    refused(&event("{at: 1s, exec: d, run: x}"), "7:18: there is no machine `d`; add it under `nodes`, or name one that is there");
    refused(&event("{at: 1s, exec: a, run: ''}"), "7:26: `run`: expected a command of 1 to 4096 bytes without a zero byte, found 0 bytes");
    refused(
        &event("{at: 1s, exec: a, run: x, delay: 1ms}"),
        "7:18: an event that runs a command cannot change a link as well; write two events",
    );
    // Whether a jitter can be depends on the delay at that time.
    let jitter = "\n- {at: 2s, link: \"a:eth1\", jitter: 8ms}";
    assert!(parse(&(event("{at: 1s, link: \"b:eth1\", delay: 8ms}") + jitter)).is_ok());
    refused(
        &(event("{at: 1s, link: \"b:eth1\", delay: 7ms}") + jitter),
        "8:3: the event cannot be at that time: a jitter of 8000000 ns is more than the delay of 7000000 ns",
    );
    assert!(parse(&(event("{at: 3s, link: \"b:eth1\", delay: 8ms}") + jitter)).is_ok());
    refused(&event("{at: 1s, link: \"a:eth1\", queue: 0}"), "7:35: `queue`: expected 1 to 100000 frames, found 0");
}

#[test]
fn all_faults_of_a_network_at_once() {
    refused(
        &with(
            "links:\n- {endpoints: [\"a:eth1\", \"x:eth1\"], delay: 2h}\n- {lan: L, endpoints: [\"b:eth1\"]}\nevents:\n- {at: 1s, exec: x, run: x}",
        ),
        "5:26: there is no machine `x`; add it under `nodes`, or name one that is there
5:44: `delay`: expected at most 1h, found 2h
6:9: expected a name (small letters, digits and hyphens, beginning with a letter or digit, 32 characters at most), found \"L\"
6:12: a LAN has at least two endpoints, found 1; add some
8:18: there is no machine `x`; add it under `nodes`, or name one that is there",
    );
}

/// What could not be read keeps nothing else from being looked at, and nobody is blamed for it.
#[test]
fn faults_of_every_sort_at_once() {
    refused(
        &with(
            "links:\n- {endpoints: [\"a:eth1\", \"d:eth1\"], rate: 0Mbit, delay: 5, jitter: 1ms}\n- {endpoints: [\"a:eth1\", \"b:eth1\"], back: {rate: 2Tbit}}",
        ),
        "5:26: there is no machine `d`; add it under `nodes`, or name one that is there
5:43: expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found \"0Mbit\"
5:57: expected a time such as 500us, 10ms or 30s, found the number 5
6:16: `a:eth1` is connected already; an interface has one cable: take another interface
6:50: expected a rate up to 1Tbit such as 100Mbit, or none for no limit, found \"2Tbit\"",
    );
    // Which interface has no link, and whether a link has two ends, is known only if all ends are.
    let interface = "name: x\ndefaults: {image: /i}\nnodes: {a: {interfaces: {eth1: {}}}, b: {memory: 3}}\nlinks:\n";
    refused(
        &format!(
            "{interface}- {{endpoints: [\"a:eth1\", 7]}}\n- {{endpoint: [\"a:eth2\"]}}\nevents: [{{at: 1s, link: \"b:eth1\", dawn: true}}]"
        ),
        "3:50: `memory`: expected 16M to 4T, found 3
5:26: expected an interface such as \"a:eth1\", found the number 7; put it in quotes if text is meant
6:3: a link needs the key `endpoints`, such as `endpoints: [\"a:eth1\", \"b:eth1\"]`
6:4: unknown key `endpoint`; did you mean `endpoints`?
7:35: unknown key `dawn`; did you mean `down`?",
    );
}

#[test]
fn a_record_is_checked() {
    let read = |rest: Value| {
        let mut spec = json!({"name": "x", "nodes": {"a": {"image": "/i"}, "b": {"image": "/i"}}});
        spec.as_object_mut().unwrap().append(&mut rest.as_object().unwrap().clone());
        serde_json::from_value::<Spec>(spec).map_err(|error| error.to_string())
    };
    assert!(read(json!({})).unwrap().links.is_empty());
    assert!(read(json!({"links": [{"endpoints": ["a:eth1", "b:eth1"], "rate": "1Mbit", "back": {"rate": "none"}}]})).is_ok());
    // A checkpoint has what was once taken.
    assert!(read(json!({"links": [{"endpoints": ["a:eth1", "b:eth1"], "rate": "10Gbit", "delay": "200ms"}]})).is_ok());
    assert!(read(json!({"links": [{"endpoints": ["a:eth1"]}]})).unwrap_err().contains("two endpoints"));
    for bad in [
        json!({"links": [{"endpoints": ["a:eth1", "b:eth1"], "rat": "1Mbit"}]}),
        json!({"links": [{"endpoints": ["a:eth1", "b:eth1"], "back": {"mtu": 100}}]}),
        json!({"links": [{"endpoints": ["a:eth1", "b:eth1"], "rate": 5}]}),
        json!({"events": [{"at": "1s", "exec": "a", "run": "x", "when": 1}]}),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad}");
        let yaml = json!({"name": "x", "nodes": {"a": {"image": "/i"}, "b": {"image": "/i"}}});
        let mut yaml = yaml.as_object().unwrap().clone();
        yaml.append(&mut bad.as_object().unwrap().clone());
        assert_eq!(schema_accepts(&schema(), &Value::Object(yaml).to_string()), Some(false), "{bad}");
    }
}

fn quantity<T: FromStr + fmt::Display + PartialEq + Debug>(good: &[(&str, T)], bad: &[&str])
where
    T::Err: Debug,
{
    for (text, value) in good {
        assert_eq!(text.parse::<T>().as_ref().unwrap(), value, "{text}");
        assert_eq!(&value.to_string().parse::<T>().unwrap(), value, "{text}");
    }
    for text in bad {
        assert!(text.parse::<T>().is_err(), "{text}");
    }
}

#[test]
fn quantities() {
    quantity(
        &[("100Mbit", Rate(100_000_000)), ("1bit", Rate(1)), ("9kbit", Rate(9000)), ("1Tbit", Rate(1_000_000_000_000)), ("none", Rate(0))],
        &["", "0bit", "1", "1Kbit", "1.5Mbit", "-1bit", "1 Mbit", "99999999999999999999bit", "1001Gbit", "None"],
    );
    quantity(
        &[("0ms", Time(0)), ("1ns", Time(1)), ("1500us", Time(1_500_000)), ("2m", Time(120_000_000_000)), ("1h", Time(3_600_000_000_000))],
        &["", "1", "1.5s", "-1s", "1d", "s", "99999999999999999999ns", "18446744073709551615h"],
    );
    quantity(
        &[
            ("0%", Percent(Chance::NEVER)),
            ("100%", Percent(Chance::ALWAYS)),
            ("0.0000001%", Percent(Chance { per_billion: 1 })),
            ("12.50%", Percent(Chance { per_billion: 125_000_000 })),
        ],
        &["", "1", "100.0000001%", "99999999999%", "1,5%", "+1%", " 1%"],
    );
    let clock = |ahead_ms| Clock { real: false, ahead_ms };
    quantity(
        &[("+2h", clock(7_200_000)), ("-1500ms", clock(-1500)), ("90s", clock(90_000)), ("-0s", clock(0))],
        &["", "+", "--1s", "1us", "87601h", "2", "+-2h"],
    );
    quantity(&[("10.0.0.1/24", Ipv4 { address: Ipv4Addr::new(10, 0, 0, 1), prefix: 24 })], &["", "10.0.0.1", "10.0.0.256/8", "1/8"]);
}

fn shape(other: bool) -> impl Strategy<Value = Shape> {
    let chance = |_| (0..=1_000_000_000_u32).prop_map(|per_billion| Chance { per_billion });
    let discipline = prop_oneof![Just(Discipline::DropTail), Just(Discipline::Codel)];
    let rate = prop::option::of(1..=Shape::RATE_MAX);
    let delay: RangeInclusive<u64> = if other { 0..=Shape::DELAY_MAX_NS } else { 1..=Shape::DELAY_MAX_NS };
    (rate, delay, 0..=100_u64, chance(0), chance(1), chance(2), 1..=Shape::QUEUE_MAX, discipline).prop_map(
        |(rate, delay_ns, jitter, loss, duplicate, reorder, queue, discipline)| {
            let reorder = if delay_ns == 0 { Chance::NEVER } else { reorder };
            let shape = Shape { rate, delay_ns, jitter_ns: delay_ns / 100 * jitter, loss, duplicate, reorder, queue, discipline };
            let fits = shape.on_its_way().is_none_or(|bytes| bytes <= Shape::HELD_MAX);
            // What does not is as slow as can be: what goes with it is on its way for two hours at most.
            Shape { rate: shape.rate.map(|rate| if fits { rate } else { rate % 100_000 + 1 }), ..shape }
        },
    )
}

fn networked() -> impl Strategy<Value = Spec> {
    let shapes = prop::collection::vec((shape(true), shape(true), 68..=MTU_MAX), 3);
    let events = prop::collection::vec((any::<u64>(), 0..4_u8, shape(false), any::<bool>(), "[ -~é]{1,40}"), 0..6);
    let interface = (any::<u32>(), prop::option::of((any::<u32>(), 1..=32_u8)));
    (shapes, events, interface, any::<i32>()).prop_map(|(shapes, events, (mac, ipv4), clock)| {
        let mut spec = parse(&with("")).unwrap();
        let endpoint = |(machine, number): (&str, u8)| Endpoint { machine: machine.into(), number };
        let places =
            [(None, vec![("a", 1), ("b", 14)]), (Some("l1"), vec![("a", 0), ("b", 2), ("c", 9)]), (Some("l2"), vec![("c", 10), ("b", 10)])];
        for ((lan, ends), (forward, back, mtu)) in places.into_iter().zip(shapes) {
            let endpoints = ends.into_iter().map(endpoint).collect();
            spec.links.push(Link { lan: lan.map(str::to_owned), endpoints, forward, back, mtu });
        }
        for (at, kind, shape, up, run) in events {
            let all = Reshape { discipline: None, ..whole(&shape) };
            let (sent, received) = match kind {
                0 => (all.clone(), all),
                1 => (Reshape::default(), all),
                2 => (all.clone(), Reshape { loss: Some(Chance::NEVER), ..all }),
                _ => (Reshape::default(), Reshape::default()),
            };
            let change = Change { up: Some(up), sent, received };
            let action = match up {
                true => Action::Link { interface: endpoint(("c", 9)), change },
                false => Action::Exec { machine: "b".into(), run },
            };
            spec.events.push(Event { at: VirtualTime::from_ns(at), action });
        }
        let [a, b, c, d] = mac.to_be_bytes();
        let ipv4 = ipv4.map(|(address, prefix)| Ipv4 { address: address.into(), prefix });
        let interface = NodeInterface { mac: Some(Mac([2, 1, a, b, c, d])), ipv4 };
        let node = spec.nodes.get_mut("c").unwrap();
        node.clock = Some(Clock { real: clock % 2 == 0, ahead_ms: clock.into() });
        node.interfaces = BTreeMap::from([("eth9".to_owned(), interface)]);
        spec
    })
}

fn whole(shape: &Shape) -> Reshape {
    Reshape {
        rate: Some(shape.rate.unwrap_or(0)),
        delay_ns: Some(shape.delay_ns),
        jitter_ns: Some(shape.jitter_ns),
        loss: Some(shape.loss),
        duplicate: Some(shape.duplicate),
        reorder: Some(shape.reorder),
        queue: Some(shape.queue),
        discipline: Some(shape.discipline),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_and_back_is_the_same(spec in networked()) {
        let json = serde_json::to_string(&spec).unwrap();
        let again = serde_json::from_str::<Spec>(&json).map_err(|error| TestCaseError::fail(format!("{error}\n{json}")))?;
        prop_assert_eq!(&again, &spec, "{}", json);
        let again = parse(&json).map_err(|error| TestCaseError::fail(format!("{error}\n{json}")))?;
        prop_assert_eq!(&again, &spec);
        prop_assert_eq!(serde_json::to_string(&again).unwrap(), json);
        prop_assert!(topology(&spec).check().is_ok());
    }
}
