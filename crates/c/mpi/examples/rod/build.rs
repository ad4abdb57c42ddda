//! Compiles Fermata's sources for programs of MPI with the MPI's own compiler, and links them ahead of the MPI, so that the program's calls come to them first.

use std::{fs, path::PathBuf};

fn main() {
    let fermata = pkg_config::Config::new().probe("fermata").expect("put it where pkg-config looks: crates/c/install PREFIX");
    let prefix = pkg_config::get_variable("fermata", "prefix").expect("fermata.pc says where it is");
    let sources = fs::read_dir(PathBuf::from(prefix).join("share/fermata")).expect("crates/c/install has put them there");
    let sources = sources.map(|source| source.expect("it is there").path()).filter(|source| source.extension().is_some_and(|c| c == "c"));
    cc::Build::new()
        .compiler("mpicc")
        .files(sources)
        .includes(&fermata.include_paths)
        // All of it: nothing in the program names these functions before the MPI is linked, which has the same.
        .link_lib_modifier("+whole-archive")
        .compile("fermata_mpi");
}
