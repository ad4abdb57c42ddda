//! Ctrl-C for commands that have something to clear away before they end.

use fermata_api::{on_termination, values::Problem};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// From now on the first Ctrl-C only sets this flag; the second ends the program.
pub fn watch() -> Result<Arc<AtomicBool>, Problem> {
    let interrupted: Arc<AtomicBool> = Arc::default();
    let set = interrupted.clone();
    on_termination(move || set.store(true, Ordering::Relaxed))
        .map_err(|error| Problem::new(format!("cannot watch for signals: {error}")))?;
    Ok(interrupted)
}
