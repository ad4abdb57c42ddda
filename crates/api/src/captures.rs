//! Captures of what goes through the interfaces of a run. They go with the run where it is taken.

use crate::{
    convert::problem,
    links,
    values::{CaptureRequest, Problem},
};
use fermata_experiment::net::{CAPTURES_MAX, Capture, World};
use fermata_timeline::Keeper;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Between two looks at whether there is anybody who reads, and anything to come.
const LOOK: Duration = Duration::from_millis(100);

/// Captures until that is over, or `take` says that no more is wanted.
pub(crate) fn capture(keeper: &Keeper, request: &CaptureRequest, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Problem> {
    let run = keeper.run(request.run.as_deref()).map_err(problem)?;
    let capture = {
        let body = run.body();
        let fabric = links::fabric(&run, &body)?;
        let topology = fabric.look(World::topology);
        let chosen = request.interfaces.iter().map(|name| links::find(&topology, name)).collect::<Result<BTreeSet<_>, _>>()?;
        if chosen.is_empty() || request.count == Some(0) {
            return Err(Problem::new("a capture is of one interface at least, such as a:eth1, and of one frame at least"));
        }
        let interfaces = chosen.iter().filter_map(|id| topology.interfaces.get(id.index()).cloned()).collect();
        let capture = Arc::new(Capture::new(interfaces, request.count));
        if !fabric.capture(&capture, request.time_ns.map(Duration::from_nanos)) {
            return Err(Problem::new(format!("run {} has {CAPTURES_MAX} captures already: end one of them first", run.name())));
        }
        capture
    };
    let lives = || keeper.runs().iter().any(|living| Arc::ptr_eq(living, &run));
    let mut wanted = take(&capture.beginning());
    while wanted {
        // Asked before the last of what comes is read.
        let goes_on = !capture.is_full() && lives() && run.body().fabric().is_some_and(|fabric| fabric.feeds(&capture));
        let piece = capture.read(LOOK);
        if piece.is_empty() && !goes_on {
            take(&capture.end());
            return Ok(());
        }
        wanted = take(&piece);
    }
    Ok(())
}
