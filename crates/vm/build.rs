//! Builds the libraries that are preloaded into QEMU, to be carried inside our binary.

use std::{env, path::PathBuf, process::Command};

const LIBRARIES: [(&str, &[&str]); 2] =
    [("shim.so", &["shim/shim.c", "shim/punches.c"]), ("shim-notes.so", &["shim/shim.c", "shim/punches.c", "shim/notes.c"])];

fn main() {
    println!("cargo::rerun-if-changed=shim");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    for (name, sources) in LIBRARIES {
        let library = PathBuf::from(env::var_os("OUT_DIR").expect("set by Cargo")).join(name);
        let status = Command::new(&compiler)
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"])
            .arg(&library)
            .args(sources)
            .status()
            .unwrap_or_else(|error| panic!("no C compiler ({}): {error}; install gcc, or set CC", compiler.display()));
        assert!(status.success(), "the C compiler failed on {}", sources.join(" and "));
    }
}
