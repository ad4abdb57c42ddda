//! The tests that boot guests: one program, for each program would be linked with all of Fermata.

mod balloon;
mod capture;
mod clocks;
mod contract;
mod damage_cli;
mod debian;
mod deterministic;
mod failures;
mod free_pages;
mod freed_blocks;
mod hostile;
mod housekeeping;
mod instants;
mod kills;
mod kvm;
mod links;
mod machines;
mod matrix;
mod metrics;
mod network;
mod page_map;
mod randomness;
mod replicated;
mod soak;
mod ways_in;
mod working_set;
