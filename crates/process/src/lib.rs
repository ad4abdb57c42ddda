//! Checkpoints of programs on the host.
//!
//! - [`ranks`]: programs of several ranks that send each other messages, and consistent checkpoints of them
//!
//! This room knows no machine and no disk.

pub mod ranks;
