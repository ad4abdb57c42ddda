//! What tests of programs in C share.

use std::{
    env,
    path::{Path, PathBuf},
};

/// Where the library lies: beside this test, or one above.
fn library() -> PathBuf {
    let test = env::current_exe().expect("this test");
    let mut places = test.ancestors().skip(1).take(2).map(Path::to_owned);
    places.find(|place| place.join("libfermata.so").exists()).expect("libfermata.so was built with this test")
}

/// What a compiler is told last: the library that was built with this test, before what cargo sets in LD_LIBRARY_PATH, where an older one may lie.
pub fn linked() -> [String; 3] {
    let library = library().display().to_string();
    [format!("-L{library}"), format!("-Wl,--disable-new-dtags,-rpath,{library}"), "-lfermata".to_owned()]
}
