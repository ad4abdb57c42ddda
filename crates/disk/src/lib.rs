//! The branching disk and its vhost-user-blk server.
