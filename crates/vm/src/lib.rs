//! QEMU machines: launch, device state, RAM capture and lazy restore.
