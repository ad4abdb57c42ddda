//! Areas as programs use them.

mod commits;
mod common;
mod crash;
mod hostile;
mod huge;
mod oracle;
mod replica;
mod uring;
