//! A guest that takes its disk and its network interface away from its kernel and drives both with nonsense: QEMU, the servers and checkpoints live on, each device
//! serves after each reset, and the guests beside it, at the same switch, notice nothing.

use fermata_experiment::{Body, Journey, Status};
use fermata_net::{Block, Capture, Mac, Packet, Recorded, Way, World, pcapng};
use fermata_testkit::{
    Bench,
    bench::{await_console_of, console_of, shell},
    guests,
};
use std::{
    collections::BTreeSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

const BOOT: Duration = Duration::from_secs(120);
const CHECKPOINTS: usize = 12;
const JOURNEYS: usize = 2;
/// Datagrams that are looked after, of a hundred a second.
const DATAGRAMS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(120);
/// Where IPv4 begins in a frame, and UDP behind it, and what `guests/src/wire.c` says.
const IP: usize = 14;
const UDP: usize = IP + 20;
const WORDS: usize = UDP + 8;
const PORT: [u8; 2] = 7777u16.to_be_bytes();
/// What the consoles of the machines keep saying while all is well.
const WELL: [&[&str]; 3] = [&["hostile disk round", "hostile net round"], &["wire heard", "selfcheck round"], &["wire sent"]];

/// One that means harm, and at the same switch one that knows what it must hear from a third.
fn three() -> String {
    let disk = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    let nodes = guests::several(
        "hostile",
        128,
        &[
            ("a", "fermata.run=hostile:disk,hostile:net fermata.disk=none", &disk),
            ("b", "fermata.run=wire:listen,selfcheck:8:2 fermata.ip=eth1:10.0.0.1/24", &disk),
            ("c", "fermata.run=wire:send:10.0.0.1 fermata.ip=eth1:10.0.0.2/24", ""),
        ],
    );
    format!("{nodes}links:\n  - {{lan: all, endpoints: [\"a:eth1\", \"b:eth1\", \"c:eth1\"], rate: 10Mbit}}\n")
}

/// Has `b` and `c` send what they send each other to everybody. The one that means harm sends again what it has received, and a switch believes it
/// whose address is where, as any switch does: what goes to one station only may then go to the wrong one.
fn send_to_everybody(body: &Body) {
    for (machine, other) in [(1, 2), (2, 1)] {
        shell(body.machines()[machine].machine(), PATIENCE, &format!("arp -i eth1 -s 10.0.0.{other} ff:ff:ff:ff:ff:ff"));
    }
}

/// Waits until every machine has said each of its lines twice more: once may have been under way.
fn await_well(body: &Body) {
    for (machine, lines) in body.machines().iter().zip(WELL) {
        for line in lines {
            let before = console_of(machine.machine()).matches(line).count();
            await_console_of(machine.machine(), BOOT, |text| {
                // To `wire` a datagram that is sent again by somebody else looks like one that came twice. Whether one is missing is told by the captures.
                let fails = |line: &&str| line.contains("FAIL") && !line.contains("FAIL wire heard") && !line.contains("FAIL wire back");
                // The last line may be only half there.
                let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
                assert_eq!(whole.lines().find(fails), None, "{}: {text}", machine.name());
                (text.matches(line).count() > before + 1).then_some(())
            });
        }
    }
}

/// The numbers of datagrams at both ends: those to `b`, sent and received, and those back to `c`.
#[derive(Default)]
struct Heard {
    there: [BTreeSet<u64>; 2],
    back: [BTreeSet<u64>; 2],
    /// Frames from nobody of the two.
    foreign: u64,
}

impl Heard {
    /// A frame at the interface of `b`, which is 0, or of `c`, which is 1.
    fn note(&mut self, packet: &Packet<'_>, macs: [Mac; 2]) {
        let frame = packet.frame;
        let from = macs.iter().position(|mac| frame.get(6..12) == Some(&mac.0[..]));
        let Some(from) = from else { return self.foreign += 1 };
        let number = frame.get(WORDS..WORDS + 8).filter(|_| frame[12..14] == [8, 0] && frame[IP + 9] == 17);
        let Some(number) = number.map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes"))) else { return };
        let way = usize::from(packet.way == Way::Received);
        // What was sent is noted where its sender is, and what was received where it is not.
        if (from as u32 == packet.interface) != (way == 0) {
            return;
        }
        match from {
            0 if frame[UDP..UDP + 2] == PORT => self.back[way].insert(number),
            1 if frame[UDP + 2..UDP + 4] == PORT => self.there[way].insert(number),
            _ => return,
        };
    }

    /// The first ones of those that were sent and did not arrive. None: not so many were sent yet.
    fn missing(&self) -> Option<Vec<u64>> {
        let there: Vec<_> = self.there[0].iter().filter(|number| **number > 0).take(DATAGRAMS).copied().collect();
        let all_of = |arrived: &BTreeSet<u64>| there.iter().filter(|number| !arrived.contains(number)).copied().collect::<Vec<_>>();
        (there.len() == DATAGRAMS).then(|| [&self.there[1], &self.back[0], &self.back[1]].map(all_of).concat())
    }
}

/// Every datagram that `c` numbers from now on comes to `b`, and its answer back, whatever comes beside.
fn every_datagram_arrives(body: &Body) {
    let fabric = body.fabric().expect("there is a network");
    let topology = fabric.look(World::topology);
    let ends = ["b", "c"].map(|machine| topology.interfaces[topology.find(machine, "eth1").expect("an interface").index()].clone());
    let macs = ends.each_ref().map(|end| end.mac);
    let capture = Arc::new(Capture::new(ends.to_vec(), None));
    assert!(fabric.capture(&capture, None));
    let (end, mut heard) = (Instant::now() + PATIENCE, Heard::default());
    while heard.missing().is_none_or(|missing| !missing.is_empty()) {
        assert!(Instant::now() < end, "{} datagrams; missing: {:?}", heard.there[0].len(), heard.missing());
        let bytes = capture.read(Duration::from_millis(100));
        let mut rest = &bytes[..];
        while let Some((block, length)) = pcapng::read(rest).expect("blocks") {
            match block {
                Block::Packet(packet) => heard.note(&packet, macs),
                Block::Statistics(_, _, Recorded { missed, .. }) => assert_eq!(missed, 0, "the capture has not all"),
                _ => {}
            }
            rest = &rest[length..];
        }
    }
    assert!(heard.foreign > 0, "the one that means harm has sent nothing");
}

#[test]
fn a_guest_that_drives_its_devices_with_nonsense_harms_nobody() {
    let bench = Bench::new(&three());
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_well(&run.body());
    send_to_everybody(&run.body());
    let mut ids = Vec::new();
    for journey in 1..=JOURNEYS {
        thread::scope(|scope| {
            let body = run.body();
            let listener = scope.spawn(move || every_datagram_arrives(&body));
            for number in 0..CHECKPOINTS / JOURNEYS {
                thread::sleep(Duration::from_millis(200));
                let (id, _) = keeper.checkpoint(None, None).unwrap_or_else(|error| {
                    panic!("checkpoint {number}: {error}\n{}", console_of(run.body().machine()));
                });
                ids.push(id);
            }
            listener.join().expect("nothing is missing");
        });
        keeper
            .goto(&ids[ids.len() / 2 - 1].to_string(), None, Journey::default())
            .unwrap_or_else(|error| panic!("journey {journey}: {error}"));
        await_well(&run.body());
    }
    assert!(run.body().machines().iter().all(|machine| machine.machine().status() == Status::Running));
    keeper.down(None).expect("it ends");
}
