//! What tests share: guests, places to run them in, and an oracle that looks at a machine without asking the checkpoint engine.
//!
//! - [`guests`]: the guests that `guests/build` made
//! - [`bench`](mod@bench): an experiment in a scratch store, driven from inside the process
//! - [`cli`]: the real program in a scratch store, as a user drives it
//! - [`report`]: what benches print; [`measure`]: what else they share; [`rival`]: stock QEMU beside us
//! - [`turns`]: programs by turns on one host
//! - [`statistics`]: whether two samples are of one distribution
//! - [`beats`]: what the guests' `beat` writes down
//! - [`random`]: numbers that can be repeated
//! - [`oracle`]: all of a machine at one instant, copied the plain way
//!
//! The system tests are in `tests/`, behind the feature `system`.

pub mod beats;
pub mod bench;
pub mod cli;
pub mod guests;
pub mod measure;
pub mod oracle;
pub mod random;
pub mod report;
pub mod rival;
pub mod statistics;
pub mod turns;

/// Says what is not tried on this host, past what holds a test's output back: `./test` repeats it at its end.
#[macro_export]
macro_rules! skipped {
    ($($why:tt)*) => {{
        use std::io::Write as _;
        // Nobody needs to hear it.
        let _ = writeln!(std::io::stderr(), "skipped: {}", format_args!($($why)*));
    }};
}

/// Whether tests are to do all that they can, however long it takes: `FERMATA_LONG=1`.
pub fn is_long() -> bool {
    std::env::var_os("FERMATA_LONG").is_some()
}

pub use bench::Bench;
pub use cli::Cli;
pub use oracle::Snapshot;
pub use random::Random;
