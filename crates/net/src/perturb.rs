//! What is different in a replay: frames that are later than they were, in another order, or with other luck.

use crate::{World, random::Random};
use fermata_types::Perturbation;

/// By how much the frames of one direction are late, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Later {
    random: Random,
    within: u64,
    /// A late frame holds up none of those behind it.
    pub order: bool,
}

impl Later {
    /// Of a direction, after so many 32-bit words were drawn.
    pub fn new(perturbation: &Perturbation, direction: usize, position: u64) -> Self {
        // From the other end than the streams of the links' own luck.
        let random = Random::new(perturbation.seed, u64::MAX - direction as u64, position);
        Self { random, within: perturbation.within_ns, order: perturbation.order }
    }

    /// By how much the next frame is late.
    pub fn draw(&mut self) -> u64 {
        self.random.up_to(self.within)
    }

    /// 32-bit words drawn so far.
    pub fn position(&self) -> u64 {
        self.random.position()
    }
}

impl World {
    /// Has all links do otherwise from now on, instead of as another perturbation said. Frames whose transmission has begun keep the time at which they are
    /// due. The same perturbation of the same network does the same to the same frames.
    pub fn perturb(&mut self, perturbation: Perturbation) {
        if perturbation.luck {
            self.seed = perturbation.seed;
        }
        for (index, direction) in self.directions.iter_mut().enumerate() {
            if perturbation.luck {
                direction.random = Random::new(perturbation.seed, index as u64, 0);
            }
            direction.later = perturbation.delays().then(|| Later::new(&perturbation, index, 0));
        }
        self.perturbation = Some(perturbation);
    }

    /// What makes it do otherwise than it would, if anything does.
    pub fn perturbation(&self) -> Option<Perturbation> {
        self.perturbation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handover, Interface, InterfaceId, Link, Mac, Shape, Topology};
    use fermata_types::VirtualTime;
    use proptest::prelude::*;

    const FRAMES: u8 = 40;
    /// Between two frames.
    const APART: u64 = 100_000;

    fn world(shape: &Shape) -> World {
        let interface = |name: &str| Interface { machine: name.into(), name: "eth1".into(), mac: Mac([2; 6]), mtu: 1500 };
        let link = Link { ends: [0, 1].map(InterfaceId), shapes: [shape.clone(), shape.clone()] };
        World::new(&Topology { interfaces: vec![interface("a"), interface("b")], links: vec![link], lans: vec![] }, 1).unwrap()
    }

    /// Hands over what comes until then, each frame at its time.
    fn deliver(world: &mut World, until: VirtualTime, came: &mut Vec<(u64, u8)>) {
        while let Some(due) = world.next_due().filter(|due| *due <= until) {
            world.deliver(due, &mut |to, frame| {
                if to == InterfaceId(1) {
                    came.push((due.ns, frame[0]));
                }
                Handover::Taken
            });
        }
    }

    /// Which frame came when. It goes through its bytes on the way.
    fn arrivals(mut world: World) -> Vec<(u64, u8)> {
        let mut came = Vec::new();
        for number in 0..FRAMES {
            let now = VirtualTime::from_ns(u64::from(number) * APART);
            deliver(&mut world, now, &mut came);
            world.send(now, InterfaceId(0), &[number; 60]);
            if number == FRAMES / 2 {
                world = World::from_bytes(&world.to_bytes()).unwrap();
            }
        }
        deliver(&mut world, VirtualTime::from_ns(u64::MAX), &mut came);
        came
    }

    fn perturbed(shape: &Shape, perturbation: Perturbation) -> Vec<(u64, u8)> {
        let mut world = world(shape);
        world.perturb(perturbation);
        assert_eq!(world.perturbation(), Some(perturbation));
        arrivals(world)
    }

    fn perturbation() -> impl Strategy<Value = Perturbation> {
        (any::<u64>(), any::<[bool; 3]>(), 1..=10 * APART).prop_map(|(seed, [timing, order, luck], within_ns)| Perturbation {
            seed,
            timing,
            order,
            luck: luck || !(timing || order),
            within_ns,
        })
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        (0..3 * APART, prop_oneof![Just(None), Just(Some(100_000_000))]).prop_map(|(delay_ns, rate)| Shape {
            delay_ns,
            rate,
            ..Shape::default()
        })
    }

    proptest! {
        #[test]
        fn no_frame_is_early_lost_or_later_than_is_said(shape in shapes(), perturbation in perturbation()) {
            let before = arrivals(world(&shape));
            let mut after = perturbed(&shape, perturbation);
            if !perturbation.order {
                prop_assert!(after.iter().map(|(_, number)| *number).eq(0..FRAMES), "their order stays");
            }
            after.sort_by_key(|(_, number)| *number);
            prop_assert_eq!(after.len(), before.len());
            let within = if perturbation.delays() { perturbation.within_ns } else { 0 };
            for ((was, number), (is, same)) in before.into_iter().zip(after) {
                prop_assert_eq!(number, same);
                prop_assert!((was..=was + within).contains(&is), "frame {} came at {} instead of {}", number, is, was);
            }
        }

        #[test]
        fn the_same_seed_is_the_same_variation(shape in shapes(), perturbation in perturbation()) {
            prop_assert_eq!(perturbed(&shape, perturbation), perturbed(&shape, perturbation));
        }

        #[test]
        fn it_goes_on_in_a_checkpoint(shape in shapes(), perturbation in perturbation()) {
            let mut world = world(&shape);
            world.perturb(perturbation);
            world.send(VirtualTime::default(), InterfaceId(1), &[0; 60]);
            let again = World::from_bytes(&world.to_bytes()).unwrap();
            prop_assert_eq!(again.perturbation(), Some(perturbation));
            prop_assert_eq!(arrivals(again), arrivals(world));
        }
    }

    #[test]
    fn another_seed_is_another_variation() {
        let shape = Shape { delay_ns: APART, ..Shape::default() };
        let with = |seed| perturbed(&shape, Perturbation { seed, timing: true, within_ns: APART, ..Perturbation::default() });
        assert_ne!(with(1), with(2));
        assert_ne!(with(1), arrivals(world(&shape)));
    }

    #[test]
    fn frames_overtake_only_where_their_order_is_varied() {
        let order = |came: Vec<(u64, u8)>| came.into_iter().map(|(_, number)| number).collect::<Vec<_>>();
        let varied = Perturbation { seed: 3, order: true, within_ns: 20 * APART, ..Perturbation::default() };
        assert_ne!(order(perturbed(&Shape::default(), varied)), (0..FRAMES).collect::<Vec<_>>());
    }

    #[test]
    fn luck_is_as_good_and_not_the_same() {
        let half = crate::Chance { per_billion: 500_000_000 };
        let shape = Shape { loss: half, ..Shape::default() };
        let with = |seed| perturbed(&shape, Perturbation { seed, luck: true, ..Perturbation::default() });
        assert_eq!(with(1).len(), arrivals(world(&shape)).len(), "the seed of the world above is 1");
        assert_ne!(with(2), with(3));
        assert_eq!(with(2), with(2));
    }
}
