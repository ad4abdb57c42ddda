//! Builds the library that is preloaded into QEMU, to be carried inside our binary.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=shim/shim.c");
    let library = PathBuf::from(env::var_os("OUT_DIR").expect("set by Cargo")).join("shim.so");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg("shim/shim.c")
        .status()
        .unwrap_or_else(|error| panic!("no C compiler ({}): {error}; install gcc, or set CC", compiler.display()));
    assert!(status.success(), "the C compiler failed on shim/shim.c");
}
