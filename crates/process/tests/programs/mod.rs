//! The eight programs, for tests whose own binary is the program of every rank: it starts itself again as such.

use fermata_process::ranks::Options;
use std::{env, process::ExitCode, time::Duration};

mod astray;
#[path = "../../examples/fft.rs"]
mod fft;
#[path = "../../examples/gauss.rs"]
mod gauss;
#[path = "../../examples/grid.rs"]
mod grid;
#[path = "../../examples/matmult.rs"]
mod matmult;
#[path = "../../examples/nqueens.rs"]
mod nqueens;
#[path = "../../examples/prime.rs"]
mod prime;
#[path = "../../examples/sparse.rs"]
mod sparse;
#[path = "../../examples/tsp.rs"]
mod tsp;

/// Which program a rank runs, with its arguments.
pub const PROGRAM: &str = "RANKS_TEST_PROGRAM";

/// A program that is done before what was to happen to it is begun again, so often at most.
pub const TRIES: usize = 10;

/// The programs, with arguments for some seconds of work in all, and what the answer says.
// Not all tests run all of them.
#[allow(dead_code)]
pub const PROGRAMS: [(&str, &str, &str); 8] = [
    ("fft", "16384 100", "200 transforms"),
    ("gauss", "800 3", "800 equations solved"),
    ("grid", "512 1500", "1500 iterations"),
    ("matmult", "1000", "is right"),
    ("nqueens", "14", "365596 ways"),
    ("prime", "34", " * "),
    ("sparse", "6000 1000", "6000 unknowns"),
    ("tsp", "15", "the shortest way"),
];

/// What a rank runs; nothing where this process is to be none.
pub fn be_a_rank() {
    let Ok(words) = env::var(PROGRAM) else { return };
    let mut words = words.split(' ');
    let name = words.next().unwrap();
    let args: Vec<usize> = words.map(|word| word.parse().unwrap()).collect();
    let program = match name {
        "astray" => astray::program,
        "fft" => fft::program,
        "gauss" => gauss::program,
        "grid" => grid::program,
        "matmult" => matmult::program,
        "nqueens" => nqueens::program,
        "prime" => prime::program,
        "sparse" => sparse::program,
        "tsp" => tsp::program,
        _ => panic!("{name}"),
    };
    assert_eq!(format!("{:?}", program(&args)), format!("{:?}", ExitCode::SUCCESS));
}

/// The command of a rank whose test is called `a_rank`. What the harness prints about it would be taken for results of tests.
pub fn command_of_a_rank() -> [String; 6] {
    let this = env::current_exe().unwrap().into_os_string().into_string().unwrap();
    ["-c", r#"exec "$0" "$@" > /dev/null"#, &this, "--exact", "a_rank", "--nocapture"].map(str::to_owned)
}

/// How tests run a program, given with its arguments: with many checkpoints.
// Not those of the command line.
#[allow(dead_code)]
pub fn options(program: &str) -> Options {
    let mut options = Options::new(program.split(' ').next().unwrap(), 4, "/bin/sh");
    options.args = command_of_a_rank().to_vec();
    options.environment = vec![(PROGRAM.to_owned(), program.to_owned())];
    options.every = Some(Duration::from_millis(10));
    options.retries = 200;
    options
}
