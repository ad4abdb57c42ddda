//! Areas as programs use them.

mod commits;
mod common;
mod crash;
mod hostile;
mod huge;
mod oracle;
mod pages;
mod receive;
mod replica;
mod uring;
