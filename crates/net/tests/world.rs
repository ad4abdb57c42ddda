//! What single links and switches do.

mod common;

use common::*;
use fermata_net::{Chance, Change, Discipline, Handover, InterfaceId, Mac, Reshape, Shape, World};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const A: InterfaceId = InterfaceId(0);
const B: InterfaceId = InterfaceId(1);

fn percent(percent: u32) -> Chance {
    Chance { per_billion: percent * 10_000_000 }
}

fn one_way(shape: Shape) -> World {
    World::new(&pair(shape, Shape::default()), 1).unwrap()
}

fn send(world: &mut World, now: u64, number: u64, bytes: usize) {
    world.send(at(now), A, &frame(mac(1), mac(0), number, bytes));
}

#[test]
fn an_ideal_cable_takes_no_time() {
    let mut world = one_way(Shape::default());
    assert_eq!(world.next_due(), None);
    send(&mut world, 5, 1, 60);
    send(&mut world, 5, 2, 1514);
    assert_eq!(world.next_due(), Some(at(5)));
    let came = run(&mut world, 5);
    assert_eq!(
        came.iter().map(|(time, to, frame)| (*time, *to, number(frame), frame.len())).collect::<Vec<_>>(),
        [(5, B, 1, 60), (5, B, 2, 1514)]
    );
    assert_eq!(world.next_due(), None);
    let [sent, received] = world.counters(A).unwrap();
    assert_eq!((sent.sent.frames, sent.arrived.bytes, received.sent.frames), (2, 1574, 0));
    assert_eq!(world.counters(B).unwrap(), [received, sent]);
}

#[test]
fn rate_and_delay_add_up() {
    let mut world = one_way(Shape { rate: Some(8_000_000), delay_ns: 10 * MS, ..Shape::default() });
    send(&mut world, 0, 1, 1000);
    send(&mut world, 0, 2, 500);
    send(&mut world, 4 * MS, 3, 1000);
    let came: Vec<_> = run(&mut world, S).iter().map(|(time, ..)| *time).collect();
    assert_eq!(came, [11 * MS, 11 * MS + MS / 2, 15 * MS]);
}

/// A link that stood delivers no train of frames: none before it was due, each an eighth closer to the one before it at most, and after a while as if it had not stood.
#[test]
fn what_was_due_while_a_link_stood_comes_one_after_the_other() {
    const BETWEEN: u64 = MS / 2;
    // What is transmitted already makes the time good; what waits for the transmitter comes at its rate.
    for (delay_ns, made_good) in [(30 * MS, true), (0, false)] {
        let mut world = one_way(Shape { rate: Some(16_000_000), delay_ns, ..Shape::default() });
        let frames = 50;
        (0..frames).for_each(|number| send(&mut world, number * if made_good { BETWEEN } else { 0 }, number, 1000));
        let due = |number: u64| delay_ns + (number + 1) * BETWEEN;
        let stood = due(10) - BETWEEN / 2;
        let mut came: Vec<_> = run(&mut world, stood).iter().map(|(time, ..)| *time).collect();
        assert_eq!(came, (0..10).map(due).collect::<Vec<_>>());
        let late = 2 * MS;
        let on = due(10) + late;
        world.go_on(at(on));
        assert_eq!(world.next_due(), Some(at(on)));
        came.extend(run(&mut world, S).iter().map(|(time, ..)| *time));
        assert_eq!(came.len() as u64, frames);
        for (number, pair) in (11..).zip(came[10..].windows(2)) {
            assert!((due(number)..=due(number) + late).contains(&pair[1]), "{number}: {} instead of {}", pair[1], due(number));
            let apart = pair[1] - pair[0];
            assert!((BETWEEN - BETWEEN / 8 - 1..=BETWEEN + 1).contains(&apart), "{number} comes {apart} ns after the one before it");
        }
        assert_eq!(came[49] == due(49), made_good);
    }
}

/// Where nothing was to arrive meanwhile, nothing is late.
#[test]
fn a_link_is_late_by_itself() {
    let delayed = |delay_ns| Shape { delay_ns, ..Shape::default() };
    let mut world = World::new(&pair(delayed(MS), delayed(5 * MS)), 1).unwrap();
    send(&mut world, 0, 1, 60);
    world.send(at(0), B, &frame(mac(0), mac(1), 2, 60));
    world.go_on(at(3 * MS));
    let came: Vec<_> = run(&mut world, S).iter().map(|(time, to, _)| (*time, *to)).collect();
    assert_eq!(came, [(3 * MS, B), (5 * MS, A)]);
}

/// Nobody waits longer for what was overdue by seconds.
#[test]
fn a_link_that_stood_for_long_makes_no_more_good_than_it_can() {
    let mut world = one_way(Shape { delay_ns: 200 * MS, ..Shape::default() });
    (0..100).for_each(|number| send(&mut world, number * MS, number, 60));
    assert_eq!(run(&mut world, 0).len(), 0);
    world.go_on(at(S));
    assert_eq!(run(&mut world, S).len(), 100, "all of it is overdue by more than is made good");
    send(&mut world, S, 100, 60);
    assert_eq!(run(&mut world, 2 * S)[0].0, S + 200 * MS);
}

/// Within one part in a hundred over a second, or over as many frames as are enough for fast links. It is exact to a frame and a nanosecond.
#[test]
fn rates_are_exact_for_frames_of_any_size() {
    for (rate, bytes) in [1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000_u64, 7_777_777, 999_999_937]
        .iter()
        .flat_map(|rate| [22_usize, 60, 61, 590, 1514, 9018].map(|bytes| (*rate, bytes)))
    {
        let frames = (rate / (8 * bytes as u64)).clamp(20, 10_000);
        let mut world = one_way(Shape { rate: Some(rate), queue: 100_000, ..Shape::default() });
        (0..=frames).for_each(|number| send(&mut world, 0, number, bytes));
        let came = run(&mut world, u64::MAX);
        assert_eq!(came.len() as u64, frames + 1);
        let took = came[frames as usize].0 - came[0].0;
        let ideal = u128::from(frames * bytes as u64 * 8) * u128::from(S) / u128::from(rate);
        assert!(u128::from(took).abs_diff(ideal) <= 1, "{rate} bit/s, {bytes} bytes: {took} ns, and {ideal} ns would be right");
    }
}

#[test]
fn a_full_queue_drops_what_comes() {
    let mut world = one_way(Shape { rate: Some(8_000_000), queue: 3, ..Shape::default() });
    (0..10).for_each(|number| send(&mut world, 0, number, 1000));
    // One is being transmitted and three wait.
    let came: Vec<_> = run(&mut world, S).iter().map(|(_, _, frame)| number(frame)).collect();
    assert_eq!(came, [0, 1, 2, 3]);
    assert_eq!(world.counters(A).unwrap()[0].dropped.queue, 6);
    send(&mut world, S, 10, 1000);
    assert_eq!(run(&mut world, 2 * S).len(), 1);
}

#[test]
fn chances_come_true_as_often_as_they_should() {
    const FRAMES: u64 = 100_000;
    // Five standard deviations, and the seed is fixed.
    let close = |found: u64, percent: u32| {
        let chance = f64::from(percent) / 100.0;
        let deviation = (FRAMES as f64 * chance * (1.0 - chance)).sqrt();
        (found as f64 - FRAMES as f64 * chance).abs() < 5.0 * deviation
    };
    for share in [1, 10, 50] {
        let shape =
            Shape { loss: percent(share), duplicate: percent(share), reorder: percent(share), delay_ns: 10 * MS, ..Shape::default() };
        for (only, shape) in [
            ("loss", Shape { duplicate: Chance::NEVER, reorder: Chance::NEVER, ..shape.clone() }),
            ("duplicate", Shape { loss: Chance::NEVER, reorder: Chance::NEVER, ..shape.clone() }),
            ("reorder", Shape { loss: Chance::NEVER, duplicate: Chance::NEVER, ..shape.clone() }),
        ] {
            let mut world = one_way(shape);
            let mut came = 0;
            for number in 0..FRAMES {
                send(&mut world, number * 1000, number, 60);
                came += run(&mut world, number * 1000).len() as u64;
            }
            came += run(&mut world, u64::MAX).len() as u64;
            let counters = world.counters(A).unwrap()[0];
            let (found, difference) = match only {
                "loss" => (counters.dropped.loss, FRAMES.wrapping_sub(came)),
                "duplicate" => (counters.duplicated, came.wrapping_sub(FRAMES)),
                _ => (counters.reordered, counters.reordered + FRAMES - came),
            };
            assert_eq!(found, difference, "{only}");
            // The first frames have nobody to overtake.
            assert!(close(found, share), "{only} {share} %: {found}");
        }
    }
    let mut world = one_way(Shape { loss: Chance::ALWAYS, ..Shape::default() });
    (0..1000).for_each(|number| send(&mut world, number, number, 60));
    assert!(run(&mut world, S).is_empty());
}

#[test]
fn jitter_is_spread_around_the_delay() {
    let mut world = one_way(Shape { delay_ns: 10 * MS, jitter_ns: 2 * MS, ..Shape::default() });
    let mut delays = Vec::new();
    for number in 0..10_000 {
        // So far apart that none waits for the one before it.
        let now = number * 20 * MS;
        send(&mut world, now, number, 60);
        delays.extend(run(&mut world, now + 20 * MS - 1).iter().map(|(time, ..)| time - now));
    }
    assert!(delays.iter().all(|delay| (8 * MS..=12 * MS).contains(delay)));
    let mean = delays.iter().sum::<u64>() / delays.len() as u64;
    assert!(mean.abs_diff(10 * MS) < 60_000, "{mean}");
    for quarter in 0..4 {
        let inside = delays.iter().filter(|delay| (*delay - 8 * MS).min(4 * MS - 1) / MS == quarter).count();
        assert!(inside.abs_diff(2500) < 220, "{inside}");
    }
}

#[test]
fn one_links_traffic_does_not_change_anothers_luck() {
    let lossy = || Shape { loss: percent(50), delay_ns: 5, jitter_ns: 5, ..Shape::default() };
    let topology = both([lossy(), lossy()], &[lossy(), lossy()]);
    let lost = |others: bool| {
        let mut world = World::new(&topology, 9).unwrap();
        let mut came = Vec::new();
        for number in 0..200 {
            world.send(at(number * 100), A, &frame(mac(1), mac(0), number, 60));
            if others {
                world.send(at(number * 100), B, &frame(mac(0), mac(1), number, 60));
                world.send(at(number * 100), InterfaceId(2), &frame(BROADCAST, mac(2), number, 60));
            }
            came.extend(run(&mut world, number * 100 + 99).into_iter().filter(|(_, to, _)| *to == B));
        }
        came
    };
    assert_eq!(lost(false), lost(true));
    assert!((60..140).contains(&lost(false).len()));
}

#[test]
fn controlled_delay_keeps_the_queue_short() {
    // A fifth more than the link carries, for half a minute.
    let overload = |discipline, gap| {
        let mut world = one_way(Shape { rate: Some(8_000_000), queue: 1000, discipline, ..Shape::default() });
        let mut waits = Vec::new();
        for number in 0..30 * S / gap {
            send(&mut world, number * gap, number, 1000);
            waits.extend(run(&mut world, number * gap).iter().map(|(time, _, frame)| time - common::number(frame) * gap));
        }
        (waits.split_off(waits.len() - 1000), world.counters(A).unwrap()[0].dropped)
    };
    let (waits, dropped) = overload(Discipline::DropTail, 833_333);
    assert!(waits.iter().all(|wait| *wait > 900 * MS));
    assert_eq!(dropped.discipline, 0);
    assert!(dropped.queue > 1000);
    let (waits, dropped) = overload(Discipline::Codel, 833_333);
    assert!(waits.iter().all(|wait| *wait < 250 * MS), "{:?}", waits.iter().max());
    assert_eq!(dropped.queue, 0);
    assert!(dropped.discipline > 1000, "{dropped:?}");
    let (_, dropped) = overload(Discipline::Codel, 1_000_001);
    assert_eq!(dropped.total(), 0, "nothing waits, and nothing is dropped");
}

#[test]
fn frames_of_impossible_sizes_are_dropped() {
    let mut topology = pair(Shape::default(), Shape::default());
    topology.interfaces[1].mtu = 1500;
    let mut world = World::new(&topology, 1).unwrap();
    for bytes in [0, 1, 13, 14, 1518, 1519, 9018, 65_536] {
        world.send(at(0), A, &vec![0; bytes]);
    }
    assert_eq!(run(&mut world, S).iter().map(|(_, _, frame)| frame.len()).collect::<Vec<_>>(), [14, 1518]);
    let dropped = world.counters(A).unwrap()[0].dropped;
    assert_eq!((dropped.runt, dropped.giant), (3, 3));
}

#[test]
fn a_guest_without_buffers_keeps_its_place() {
    let mut world = one_way(Shape::default());
    (0..3).for_each(|number| send(&mut world, 0, number, 60));
    let mut tries = 0;
    world.deliver(at(0), &mut |_, _| {
        tries += 1;
        Handover::Waits
    });
    // It is not asked again, and nobody needs to wake up for it.
    assert_eq!((tries, world.next_due()), (1, None));
    (3..2000).for_each(|number| send(&mut world, 1, number, 60));
    world.deliver(at(2), &mut |_, _| panic!("it has not said that it has buffers"));
    world.retry(B);
    assert_eq!(world.next_due(), Some(at(2)));
    let came: Vec<_> = run(&mut world, 2).iter().map(|(_, _, frame)| number(frame)).collect();
    assert_eq!(came, (0..1024).collect::<Vec<_>>());
    assert_eq!(world.counters(A).unwrap()[0].dropped.receiver, 2000 - 1024);
}

#[test]
fn what_waits_for_a_driver_that_is_reset_is_lost_and_counted() {
    let mut world = one_way(Shape::default());
    (0..3).for_each(|number| send(&mut world, 0, number, 60));
    world.deliver(at(0), &mut |_, _| Handover::Waits);
    assert_eq!(world.reset(B), 3);
    assert_eq!((world.in_flight(B).unwrap()[1], world.next_due()), (0, None));
    assert_eq!(world.reset(B), 0, "there is nothing any more");
    // What comes afterwards is handed over at once.
    send(&mut world, 1, 3, 60);
    assert_eq!(run(&mut world, 1).iter().map(|(_, _, frame)| number(frame)).collect::<Vec<_>>(), [3]);
    let counters = world.counters(A).unwrap()[0];
    assert_eq!((counters.sent.frames, counters.arrived.frames, counters.dropped.door), (4, 1, 3));
    assert_eq!(World::from_bytes(&world.to_bytes()).unwrap().counters(A).unwrap()[0], counters, "the state keeps the count");
}

#[test]
fn a_frame_that_is_lost_at_the_door_has_not_arrived() {
    let mut world = one_way(Shape::default());
    (0..4).for_each(|number| send(&mut world, 0, number, 60));
    let mut came = Vec::new();
    world.deliver(at(0), &mut |_, frame| {
        came.push(number(frame));
        if number(frame).is_multiple_of(2) { Handover::Lost } else { Handover::Taken }
    });
    assert_eq!(came, [0, 1, 2, 3], "one that is lost holds up nobody");
    let counters = world.counters(A).unwrap()[0];
    assert_eq!((counters.arrived.frames, counters.arrived.bytes, counters.dropped.door, counters.dropped.total()), (2, 120, 2, 2));
}

#[test]
fn a_switch_learns_and_floods() {
    let mut world = World::new(&lan(&[(); 4].map(|()| Shape::default())), 1).unwrap();
    let mut hears = |from: u32, to: Mac| {
        world.send(at(0), InterfaceId(from), &frame(to, mac(from), 0, 60));
        run(&mut world, 0).iter().map(|(_, to, _)| to.0).collect::<Vec<_>>()
    };
    assert_eq!(hears(0, mac(1)), [1, 2, 3]);
    assert_eq!(hears(1, mac(0)), [0]);
    assert_eq!(hears(0, mac(1)), [1]);
    assert_eq!(hears(2, BROADCAST), [0, 1, 3]);
    assert_eq!(hears(0, mac(0)), [0_u32; 0]);
    assert_eq!(hears(0, Mac([1, 0, 0x5e, 0, 0, 1])), [1, 2, 3]);
}

#[test]
fn a_cable_can_be_pulled_out() {
    let mut world = one_way(Shape { rate: Some(8_000_000), delay_ns: 10 * MS, ..Shape::default() });
    (0..5).for_each(|number| send(&mut world, 0, number, 1000));
    let unplug = |up| Change { up: Some(up), ..Change::default() };
    assert_eq!(run(&mut world, 11 * MS).len(), 1);
    world.set(at(12 * MS), B, &unplug(false)).unwrap();
    // The second arrived with the change; the others are lost with what is sent now.
    send(&mut world, 13 * MS, 5, 1000);
    assert_eq!((world.is_up(A), world.is_up(B), world.is_up(InterfaceId(2))), (Some(false), Some(false), None));
    assert_eq!(run(&mut world, 14 * MS).len(), 1);
    world.set(at(15 * MS), A, &unplug(true)).unwrap();
    send(&mut world, 16 * MS, 6, 1000);
    let came = run(&mut world, S);
    assert_eq!(came.iter().map(|(time, _, frame)| (*time, number(frame))).collect::<Vec<_>>(), [(27 * MS, 6)]);
    assert_eq!(world.counters(A).unwrap()[0].dropped.down, 4);
    assert_eq!(world.in_flight(A), Some([0, 0]));
}

#[test]
fn a_cable_that_was_pulled_out_holds_nothing_up() {
    // Behind a frame that would have arrived in an hour, and behind one that would have been transmitted for an hour.
    for shape in [Shape { delay_ns: 3600 * S, ..Shape::default() }, Shape { rate: Some(8), ..Shape::default() }] {
        let mut world = one_way(shape);
        send(&mut world, 0, 0, 1000);
        for up in [false, true] {
            world.set(at(MS), A, &Change { up: Some(up), ..Change::default() }).unwrap();
        }
        let fast = Reshape { delay_ns: Some(MS), rate: Some(8_000_000), ..Reshape::default() };
        world.set(at(MS), A, &Change { sent: fast, ..Change::default() }).unwrap();
        send(&mut world, 2 * MS, 1, 1000);
        let came = run(&mut world, 10_000 * S);
        assert_eq!(came.iter().map(|(time, _, frame)| (*time, number(frame))).collect::<Vec<_>>(), [(4 * MS, 1)]);
    }
}

#[test]
fn a_live_link_changes() {
    let mut world = one_way(Shape::default());
    let slow = Reshape { delay_ns: Some(50 * MS), rate: Some(8_000_000), ..Reshape::default() };
    world.set(at(0), A, &Change { sent: slow.clone(), ..Change::default() }).unwrap();
    send(&mut world, 0, 1, 1000);
    send(&mut world, 0, 2, 1000);
    world
        .set(at(1), B, &Change { received: Reshape { rate: Some(0), delay_ns: Some(0), ..Reshape::default() }, ..Change::default() })
        .unwrap();
    // What is on the wire arrives when it was to; what waited goes without a limit when the transmitter is free, and keeps its order.
    let came: Vec<_> = run(&mut world, S).iter().map(|(time, ..)| *time).collect();
    assert_eq!(came, [51 * MS, 51 * MS]);
    let too_much =
        Change { sent: Reshape { jitter_ns: Some(1), ..slow }, received: Reshape { queue: Some(0), ..Reshape::default() }, up: None };
    let before = world.topology();
    assert!(world.set(at(2), A, &too_much).is_err());
    assert!(world.set(at(2), InterfaceId(2), &Change::default()).is_err());
    assert_eq!(world.topology(), before);
    assert_eq!(before.links[0].shapes[0], Shape::default());
}

/// What the machine A of a LAN, whose ports have 100 Mbit/s, brings to B in a second by sending `rate`, while another one sends ten times its port's rate `to`.
fn beside_a_flood(discipline: Discipline, rate: u64, to: Option<Mac>) -> Vec<(u64, u64)> {
    const PORT: u64 = 100_000_000;
    let port = || Shape { rate: Some(PORT), queue: 100, discipline, ..Shape::default() };
    let mut world = World::new(&lan(&[port(), port(), port(), port()]), 1).unwrap();
    // The switch learns where everybody is.
    (0..4).for_each(|from| world.send(at(0), InterfaceId(from), &frame(BROADCAST, mac(from), 0, 60)));
    run(&mut world, S);
    let every = |rate: u64| 1514 * 8 * S / rate;
    let (mut came, mut flooded) = (Vec::new(), 0);
    for number in 0..S / every(rate) {
        // No two frames of A's are equally far apart: nobody is in step with the flood.
        let now = S + number * every(rate) + (number * 7919) % (every(rate) / 4);
        if let Some(to) = to {
            while flooded * every(10 * PORT) < now - S {
                world.send(at(S + flooded * every(10 * PORT)), InterfaceId(2), &frame(to, mac(2), u64::MAX, 1514));
                flooded += 1;
            }
        }
        world.send(at(now), A, &frame(mac(1), mac(0), number, 1514));
        came.extend(run(&mut world, now));
    }
    came.extend(run(&mut world, 3 * S));
    let ours = came.iter().filter(|(_, to, frame)| *to == B && number(frame) != u64::MAX);
    ours.map(|(time, _, frame)| (*time, number(frame))).collect()
}

#[test]
fn a_flood_leaves_others_their_share_of_the_rate() {
    // Controlled delay drops of whoever is left, too, when that has waited too long.
    for (discipline, less) in [(Discipline::DropTail, 0), (Discipline::Codel, 1)] {
        let alone = beside_a_flood(discipline, 99_000_000, None);
        assert_eq!(alone.len(), 8173);
        assert_eq!(beside_a_flood(discipline, 99_000_000, Some(mac(3))), alone, "a flood to another port changes nothing");
        // Where a flood goes to everybody, a port that two want has half for each, and who wants less has all of that.
        for (rate, share) in [(99_000_000, 50), (50_000_000, 100), (20_000_000, 100)] {
            let alone = beside_a_flood(discipline, rate, None).len();
            let beside = beside_a_flood(discipline, rate, Some(BROADCAST)).len();
            assert!(beside * 100 >= alone * (share - less), "{discipline:?}, {rate} bit/s: {beside} of {alone}");
        }
    }
}

/// Microseconds of a flood: that many frames are taken while it lasts.
const STEPS: u64 = 8000;

/// Which frames of the machine A of a LAN without rates come to B, which takes one a microsecond, while another one sends it ten in each. A sends one in so many.
fn beside_a_flood_without_a_rate(every: u64) -> Vec<u64> {
    let mut world = World::new(&lan(&[(); 3].map(|()| Shape::default())), 1).unwrap();
    (0..3).for_each(|from| world.send(at(0), InterfaceId(from), &frame(BROADCAST, mac(from), 0, 60)));
    run(&mut world, S);
    let mut came = Vec::new();
    let mut take = |world: &mut World, now: u64, mut room: u64| {
        world.retry(B);
        world.deliver(at(now), &mut |to, frame| {
            assert_eq!(to, B);
            let Some(left) = room.checked_sub(1) else { return Handover::Waits };
            room = left;
            came.push(number(frame));
            Handover::Taken
        });
    };
    for step in 0..STEPS {
        let now = S + step * 1000;
        if step.is_multiple_of(every) {
            world.send(at(now), A, &frame(mac(1), mac(0), step, 60));
        }
        // The last of these finds the place of the one that is taken.
        (0..10).for_each(|_| world.send(at(now), InterfaceId(2), &frame(mac(1), mac(2), u64::MAX, 60)));
        if step == STEPS / 2 {
            world = World::from_bytes(&world.to_bytes()).unwrap();
        }
        take(&mut world, now, 1);
    }
    take(&mut world, 2 * S, u64::MAX);
    came.retain(|number| *number != u64::MAX);
    came
}

#[test]
fn a_flood_leaves_others_their_share_of_a_guest_where_there_is_no_rate() {
    // Who wants less than half of what the guest takes has all of that, in order; who wants all of it has half, once the flood that was first there is taken.
    assert_eq!(beside_a_flood_without_a_rate(4), (0..STEPS).step_by(4).collect::<Vec<_>>());
    let half = beside_a_flood_without_a_rate(1);
    assert!(half.is_sorted() && half.len() as u64 >= STEPS * 2 / 5, "{} of {STEPS}", half.len());
}

/// A pair and a LAN of two, on whose cables everything stays for an hour.
fn endless() -> World {
    let endless = || Shape { delay_ns: 3600 * S, ..Shape::default() };
    World::new(&both([endless(), endless()], &[endless(), endless()]), 1).unwrap()
}

fn big(from: InterfaceId) -> Vec<u8> {
    frame(mac(1), mac(from.0), 0, if from.0 < 2 { 9018 } else { 1514 })
}

/// A world in which this interface has flooded its cable, and then the others have sent a little.
fn flooded(flood: InterfaceId) -> World {
    let mut world = endless();
    let big = big(flood);
    while world.counters(flood).unwrap()[0].dropped.memory == 0 {
        world.send(at(0), flood, &big);
    }
    let held = world.in_flight(flood).unwrap()[0] * (big.len() as u64 + 64);
    assert!((127 << 20..256 << 20).contains(&held), "{held}");
    for from in (0..4).map(InterfaceId).filter(|from| *from != flood) {
        (0..1000).for_each(|number| world.send(at(1), from, &frame(mac(0), mac(from.0), number, 1514)));
        assert_eq!(world.counters(from).unwrap()[0].dropped.total(), 0);
    }
    world
}

#[test]
fn a_flood_leaves_others_their_room() {
    for flood in [A, B, InterfaceId(3)] {
        let world = flooded(flood);
        let bytes = world.to_bytes();
        let mut again = World::from_bytes(&bytes).unwrap_or_else(|error| panic!("a flood of {flood:?}: {error}"));
        assert_eq!(again.to_bytes(), bytes);
        // It still admits nothing more there.
        again.send(at(2), flood, &big(flood));
        assert_eq!(again.counters(flood).unwrap()[0].dropped.memory, 2);
    }
}
