//! Which pages of a guest's memory were written.
