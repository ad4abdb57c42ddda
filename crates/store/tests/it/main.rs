//! The store as those who use it see it: one program, since linking one for each file takes longer than the tests.

mod common;

mod bound;
mod checkpoints;
mod collect;
mod damage;
mod encrypted;
mod housekeeping;
mod images;
mod index_damage;
mod model;
mod order;
mod processes;
mod read_only;
mod refs;
mod remove;
mod stats;
mod still;
mod sweep;
mod tables;
mod verify;
