//! Areas as programs use them.

mod commits;
mod common;
mod crash;
mod hostile;
mod oracle;
mod replica;
mod uring;
