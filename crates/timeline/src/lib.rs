//! Checkpoints as a tree: log, go to, fork, compare.
