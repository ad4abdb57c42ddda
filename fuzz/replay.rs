//! A fuzz target without a fuzzer: what `cargo test` runs of it. Included by the rooms that have targets.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

const BYTES_MAX: usize = 4096;
/// Values at which things break.
const EDGES: [u64; 12] = [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Feeds a target with its corpus, and then with so many mutations of it: the same ones every time. An input that it does not survive is kept in a file, named
/// on stderr; it belongs into the corpus.
pub fn replay(name: &str, mutations: u32, target: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut paths: Vec<_> =
        fs::read_dir(&directory).expect("the target has a corpus").map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let corpus: Vec<_> = paths.iter().map(|path| fs::read(path).expect("a file of the corpus")).collect();
    assert!(!corpus.is_empty(), "{} is empty", directory.display());
    let run = |input: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
            let kept = std::env::temp_dir().join(format!("fermata-fuzz-{name}"));
            fs::write(&kept, input).expect("the temporary directory takes a small file");
            eprintln!("the target {name} did not survive the input in {}", kept.display());
            resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|input| run(input));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..mutations {
        let mut input = random.among(&corpus).clone();
        for _ in 0..=random.below(6) {
            mutate(&mut input, &mut random, &corpus);
        }
        run(&input);
    }
}

fn mutate(input: &mut Vec<u8>, random: &mut Random, corpus: &[Vec<u8>]) {
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(16)).min(input.len());
    match random.below(7) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = random.next() as u8,
        2 => drop(input.splice(at..at, (0..random.below(8)).map(|_| 0).collect::<Vec<_>>())),
        3 => drop(input.drain(at..end)),
        4 => {
            let again = input[at..end].to_vec();
            input.splice(at..at, again);
        }
        5 => {
            let width = 1 << random.below(4);
            let edge = random.among(&EDGES).to_le_bytes();
            let end = (at + width).min(input.len());
            input[at..end].copy_from_slice(&edge[..end - at]);
        }
        _ => {
            let other = random.among(corpus);
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
    input.truncate(BYTES_MAX);
}

/// Xorshift: no more than this is needed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn among<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
