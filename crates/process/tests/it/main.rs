//! Areas as programs use them.

mod common;
mod commits;
mod crash;
mod hostile;
mod oracle;
mod replica;
