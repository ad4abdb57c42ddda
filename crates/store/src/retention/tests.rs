use super::*;
use proptest::prelude::*;

const SECOND: u64 = NS_PER_SECOND;
/// Whole hours, so that stretches begin with it.
const START: u64 = 1_000_000 * 3600 * SECOND;

fn id(number: usize) -> CheckpointId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
    CheckpointId(bytes)
}

fn keep(text: &str) -> Keep {
    text.parse().unwrap()
}

/// A line of checkpoints, taken so many seconds after the start; the last one is its head.
fn line(seconds: &[u64]) -> Vec<Candidate> {
    let candidate = |(place, seconds): (usize, &u64)| Candidate {
        id: id(place),
        parent: place.checked_sub(1).map(id),
        branch: "main".into(),
        created_ns: START + seconds * SECOND,
        tagged: false,
        head: false,
        run: false,
    };
    let mut line: Vec<_> = seconds.iter().enumerate().map(candidate).collect();
    line.last_mut().unwrap().head = true;
    line
}

/// The places of those that stay.
fn stay(policy: &str, candidates: &[Candidate], now: u64) -> Vec<usize> {
    let verdicts = keep(policy).verdicts(candidates, START + now * SECOND);
    (0..candidates.len()).filter(|place| !verdicts[*place].is_empty()).collect()
}

#[test]
fn policies_are_read_and_written() {
    for (text, again) in [
        ("last 20, every 2s for 1m, every 1m for 1h, every 1h for 7d", "last 20, every 2s for 1m, every 1m for 1h, every 1h for 1w"),
        (" last  1 ", "last 1"),
        ("every 60s", "every 1m"),
        ("every 90s for 24h", "every 90s for 1d"),
    ] {
        assert_eq!(keep(text).to_string(), again);
        assert_eq!(keep(again), keep(text));
        assert_eq!(serde_json::from_value::<Keep>(serde_json::to_value(keep(text)).unwrap()).unwrap(), keep(text));
    }
    for wrong in [
        "",
        "last",
        "last 0",
        "last -1",
        "last +1",
        "last 1.5",
        "last 5000000000",
        "every",
        "every 0s",
        "every 2",
        "every 2ms",
        "every 2s for",
        "every 2s for 1s",
        "every 1h for 1m",
        "last 20,",
        "last 20 every 2s",
        "20",
        "every 600000w",
        "every s",
        "every 18446744073709551616s",
    ] {
        assert!(wrong.parse::<Keep>().is_err(), "{wrong}");
    }
    assert!(["last 1"; RULES_MAX].join(",").parse::<Keep>().is_ok());
    assert!(["last 1"; RULES_MAX + 1].join(",").parse::<Keep>().is_err());
    let said = "garbage".repeat(100).parse::<Keep>().unwrap_err().to_string();
    assert!(said.contains("last 20") && said.len() < 400, "{said}");
}

#[test]
fn the_newest_stay_and_the_older_are_thinned() {
    let seconds: Vec<_> = (0..=120).collect();
    let line = line(&seconds);
    assert_eq!(stay("last 3", &line, 120), [118, 119, 120]);
    assert_eq!(stay("every 10s for 30s", &line, 120), [100, 110, 120], "that of 90 is 30 seconds old");
    assert_eq!(stay("every 1m", &line, 120), [0, 60, 120]);
    assert_eq!(stay("last 2, every 10s for 30s, every 1m", &line, 120), [0, 60, 100, 110, 119, 120]);
}

#[test]
fn what_somebody_stands_on_stays() {
    let mut candidates = line(&[0, 1, 2, 3, 4, 5]);
    candidates[1].tagged = true;
    candidates[2].run = true;
    // Another line grows from the one of 3 seconds.
    candidates.push(Candidate { id: id(6), parent: Some(id(3)), branch: "what-if".into(), head: false, ..candidates[5].clone() });
    candidates.push(Candidate { id: id(7), parent: Some(id(6)), ..candidates[6].clone() });
    let verdicts = keep("every 1h for 1h").verdicts(&candidates, START + 7200 * SECOND);
    let rule = || Why::Rule("every 1h for 1h".into());
    let expected = [
        vec![rule()],
        vec![Why::Tagged],
        vec![Why::Run],
        vec![Why::Fork],
        vec![],
        vec![Why::Head, Why::End],
        // The first of its branch.
        vec![rule()],
        vec![Why::End],
    ];
    assert_eq!(verdicts, expected.map(|why| why.into_iter().collect::<BTreeSet<_>>()));
}

#[test]
fn clocks_may_jump() {
    // A month of rest makes nothing old: the newest one is what ages count from.
    let parked = line(&[0, 10, 20, 30]);
    assert_eq!(stay("every 10s for 1m", &parked, 30), stay("every 10s for 1m", &parked, 30 * 86_400));
    // One from the future stays, and does not make the others old.
    let mut future = line(&[0, 10, 20, 30]);
    future[3].created_ns += 86_400 * 365 * SECOND;
    assert_eq!(stay("every 10s for 1m", &future, 40), [0, 1, 2, 3]);
    // Now is before all of them.
    assert_eq!(keep("every 10s for 1m").verdicts(&parked, 0).iter().filter(|why| why.is_empty()).count(), 0);
    assert_eq!(stay("last 2", &future, 0), [2, 3]);
    assert!(keep("last 1").verdicts(&[], 0).is_empty());
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_older() {
    // One each second for a minute; then the clock is set back by an hour, and a minute more.
    let seconds: Vec<_> = (4000..4060).chain(460..520).collect();
    let stepped = line(&seconds);
    assert_eq!(stay("last 20", &stepped, 520), (100..120).collect::<Vec<_>>());
    assert_eq!(stay("last 20", &stepped, 4060), (100..120).collect::<Vec<_>>(), "when the clock is there again");
    let thinned = stay("every 10s for 1h", &stepped, 520);
    assert_eq!(thinned, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 119]);
    // By less than the policy thins: what is taken meanwhile is not what was there before.
    let seconds: Vec<_> = (4000..4060).chain(4020..4080).collect();
    assert_eq!(stay("every 10s", &line(&seconds), 4080), [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 119]);
    // A year ahead for a while, and right again: neither makes the others old, nor do the wrong ones stay for their number.
    let mut ahead: Vec<_> = (100..160).collect();
    ahead[20..25].iter_mut().for_each(|at| *at += 86_400 * 365);
    assert_eq!(stay("last 3, every 10s for 30s", &line(&ahead), 160), [20, 30, 40, 50, 57, 58, 59]);
    // In 1970 for a while.
    let mut wrong = line(&(100..160).collect::<Vec<_>>());
    wrong[40..50].iter_mut().for_each(|candidate| candidate.created_ns = 5 * SECOND);
    assert_eq!(stay("last 3, every 10s for 1m", &wrong, 160), [0, 10, 20, 30, 50, 57, 58, 59]);
}

/// Any tree, with times that may jump: each one's parent is an earlier one, or none.
fn trees() -> impl Strategy<Value = Vec<Candidate>> {
    let one = (
        any::<prop::sample::Index>(),
        0..12_u8,
        0..4_u8,
        prop_oneof![8 => 0..20_i64, 1 => 0..100_000_i64, 1 => -100_000..-10_i64, 1 => -30..0_i64],
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    prop::collection::vec(one, 1..60).prop_map(|items| {
        let mut at = 0_u64;
        let mut candidates: Vec<Candidate> = Vec::new();
        for (place, (parent, forks, branch, later, tagged, run)) in items.into_iter().enumerate() {
            at = u64::saturating_add_signed(at, later);
            let of = match forks {
                0 => place.checked_sub(1).map(|_| parent.index(place)),
                1 if place > 30 => None,
                _ => place.checked_sub(1),
            };
            candidates.push(Candidate {
                id: id(place),
                parent: of.map(id),
                branch: format!("branch-{}", if forks == 0 { branch } else { 0 }),
                created_ns: START + at * SECOND,
                tagged,
                head: false,
                run,
            });
        }
        let parents: BTreeSet<_> = candidates.iter().filter_map(|candidate| candidate.parent).collect();
        candidates.iter_mut().for_each(|candidate| candidate.head = !parents.contains(&candidate.id));
        candidates
    })
}

fn policies() -> impl Strategy<Value = Keep> {
    let last = (1..10_u32).prop_map(Rule::Last);
    let every = (1..200_u64, prop::option::of(0..100_000_u64))
        .prop_map(|(seconds, longer)| Rule::Every { seconds, age: longer.map(|longer| seconds + longer) });
    prop::collection::vec(prop_oneof![last, every], 1..5).prop_map(|rules| Keep { rules })
}

/// What is left. Who loses its parent has the nearest ancestor that stays.
fn pruned(policy: &Keep, candidates: &[Candidate], now: u64) -> Vec<Candidate> {
    let verdicts = policy.verdicts(candidates, now);
    let parents: HashMap<_, _> = candidates.iter().map(|candidate| (candidate.id, candidate.parent)).collect();
    let stays: BTreeSet<_> =
        candidates.iter().zip(&verdicts).filter(|(_, why)| !why.is_empty()).map(|(candidate, _)| candidate.id).collect();
    let remaining = |mut parent: Option<CheckpointId>| {
        while let Some(id) = parent.filter(|id| !stays.contains(id)) {
            parent = parents[&id];
        }
        parent
    };
    let staying = candidates.iter().filter(|candidate| stays.contains(&candidate.id));
    staying.map(|candidate| Candidate { parent: remaining(candidate.parent), ..candidate.clone() }).collect()
}

/// A checkpoint and its ancestors.
fn line_of(tree: &[Candidate], id: CheckpointId) -> impl Iterator<Item = &Candidate> {
    let find = |id: CheckpointId| tree.iter().find(|candidate| candidate.id == id);
    std::iter::successors(find(id), move |candidate| find(candidate.parent?))
}

/// What only one of them has, but for what another one stands for: an earlier one of its line and its stretch. Where a clock was set back, that one may have been of a stretch of its own
/// until what lay between them went.
fn lost(policy: &Keep, expected: &[Candidate], found: &[Candidate]) -> Vec<CheckpointId> {
    let stretches = policy.rules.iter().filter_map(|rule| match rule {
        Rule::Every { seconds, .. } => Some(seconds * SECOND),
        Rule::Last(_) => None,
    });
    let stretches: Vec<_> = stretches.collect();
    let there = ids(found);
    let stands_for = |other: &Candidate, one: &Candidate| {
        other.branch == one.branch && stretches.iter().any(|stretch| other.created_ns / stretch == one.created_ns / stretch)
    };
    let lost =
        expected.iter().filter(|one| !there.contains(&one.id) && !line_of(expected, one.id).skip(1).any(|other| stands_for(other, one)));
    lost.map(|one| one.id).collect()
}

fn ids(candidates: &[Candidate]) -> BTreeSet<CheckpointId> {
    candidates.iter().map(|candidate| candidate.id).collect()
}

proptest! {
    #[test]
    fn text_and_back_is_the_same(policy in policies()) {
        prop_assert_eq!(keep(&policy.to_string()), policy);
    }

    #[test]
    fn any_text_gives_an_answer(text: String) {
        let _ = text.parse::<Keep>();
    }

    #[test]
    fn nothing_that_somebody_stands_on_goes(policy in policies(), tree in trees(), now: u64) {
        let left = ids(&pruned(&policy, &tree, now));
        let mut children: HashMap<_, usize> = HashMap::new();
        tree.iter().filter_map(|candidate| candidate.parent).for_each(|parent| *children.entry(parent).or_default() += 1);
        for candidate in &tree {
            let stands = candidate.tagged || candidate.head || candidate.run || children.get(&candidate.id).is_some_and(|count| *count > 1);
            prop_assert!(!stands || left.contains(&candidate.id), "{candidate:?}");
        }
    }

    #[test]
    fn the_newest_of_every_branch_stay(count in 1..10_u32, tree in trees(), now: u64) {
        let left = ids(&pruned(&Keep { rules: vec![Rule::Last(count)] }, &tree, now));
        for branch in tree.iter().map(|candidate| &candidate.branch).collect::<BTreeSet<_>>() {
            let of: Vec<_> = tree.iter().filter(|candidate| candidate.branch == *branch).collect();
            for old in &of {
                let newer = of.iter().filter(|candidate| line_of(&tree, candidate.id).skip(1).any(|before| before.id == old.id)).count();
                prop_assert!(newer >= count as usize || left.contains(&old.id), "{branch}: {newer} grew from {old:?}");
            }
        }
    }

    #[test]
    fn twice_is_once(policy in policies(), tree in trees(), now in 0..START * 2) {
        let once = pruned(&policy, &tree, now);
        prop_assert_eq!(lost(&policy, &once, &pruned(&policy, &once, now)), []);
    }

    /// What would be wanted later is still there, however often somebody has pruned before. It may be more, as long as it stands for another.
    #[test]
    fn pruning_before_takes_nothing_that_is_wanted_after(policy in policies(), tree in trees(), before in 0..200_000_u64, later in 0..200_000_u64) {
        let (before, later) = (START + before * SECOND, START + (before + later) * SECOND);
        let first = pruned(&policy, &tree, before);
        let wanted = ids(&pruned(&policy, &tree, later));
        prop_assert!(ids(&first).is_superset(&wanted));
        let wanted: Vec<_> = first.iter().filter(|candidate| wanted.contains(&candidate.id)).cloned().collect();
        prop_assert_eq!(lost(&policy, &wanted, &pruned(&policy, &first, later)), []);
    }

    /// With clocks that are never set back, nothing stands for another.
    #[test]
    fn where_clocks_go_on_twice_is_once(policy in policies(), mut tree in trees(), now in 0..START * 2) {
        for place in 0..tree.len() {
            let parent = tree[place].parent.and_then(|parent| tree.iter().find(|candidate| candidate.id == parent));
            tree[place].created_ns = parent.map_or(0, |parent| parent.created_ns).max(tree[place].created_ns);
        }
        let once = pruned(&policy, &tree, now);
        prop_assert_eq!(ids(&pruned(&policy, &once, now)), ids(&once));
    }

    /// The rule of the house that records do not go because of what the clock shows: all that is young by its own branch's reckoning has somebody near.
    #[test]
    fn every_stretch_that_is_young_enough_is_there(seconds in 1..200_u64, longer in 0..10_000_u64, tree in trees(), now in 0..START * 2) {
        let age = seconds + longer;
        let left = pruned(&Keep { rules: vec![Rule::Every { seconds, age: Some(age) }] }, &tree, now);
        let newest = tree.iter().filter(|candidate| candidate.head).map(|candidate| candidate.created_ns).max().unwrap_or(0).min(now);
        let stretch = |candidate: &Candidate| (candidate.branch.clone(), candidate.created_ns / (seconds * SECOND));
        let there: BTreeSet<_> = left.iter().map(stretch).collect();
        for candidate in &tree {
            // Its stretch began at most so long before.
            let oldest = newest.saturating_sub(candidate.created_ns) + seconds * SECOND;
            prop_assert!(oldest >= age * SECOND || there.contains(&stretch(candidate)), "{candidate:?}");
        }
    }
}
