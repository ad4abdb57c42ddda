//! Safe wrappers of the kernel interfaces that Fermata stands on.
