//! Where things are on this host when nobody says otherwise.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The run directories of all experiments of this user: `$FERMATA_RUN_DIR`, else one on `/dev/shm`, which is a tmpfs on every distribution.
pub fn run_root() -> PathBuf {
    match env::var_os("FERMATA_RUN_DIR").filter(|value| !value.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(format!("/dev/shm/fermata-{}", fermata_linux::user_id())),
    }
}

/// The run directory of an experiment.
pub fn run_dir(experiment: &str) -> PathBuf {
    run_root().join(experiment)
}

/// The socket at which a keeper answers.
pub fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("keeper.sock")
}

/// What a keeper has to say when nobody listens.
pub fn keeper_log(run_dir: &Path) -> PathBuf {
    run_dir.join("keeper.log")
}

/// Held by a keeper as long as it lives.
pub fn lock(run_dir: &Path) -> PathBuf {
    run_dir.join("lock")
}

/// What a keeper was started with.
pub fn will(run_dir: &Path) -> PathBuf {
    run_dir.join("keeper.json")
}

/// The last that was known of an experiment, for when its keeper is gone.
pub fn last_known(run_dir: &Path) -> PathBuf {
    run_dir.join("status.json")
}
