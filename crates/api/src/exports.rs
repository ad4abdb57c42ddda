//! Parts of checkpoints as files for other programs. Needs the store and the golden images, and no keeper.

use crate::{
    convert::problem,
    housekeeping::activity,
    local,
    values::{Activity, Exported, ImageFormat, Problem},
};
use fermata_experiment::{Stills, stills::write_out};
use fermata_store::{Contents, Progress};
use fermata_types::PartKind;
use std::{
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// What to make of which part.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// The checkpoint: id, unique beginning of one, tag or branch, each with `~N`.
    pub checkpoint: String,
    /// The part, `m1` or `m1/disk0`; a machine's name for its only disk; none where there is but one.
    pub part: Option<String>,
    /// What it is to be.
    pub format: ImageFormat,
    /// Where to.
    pub file: PathBuf,
    /// Replace a file that is there.
    pub force: bool,
}

/// Makes the file. It is there when it is whole, and not before. `busy` is told what takes long, and says whether to go on.
pub fn export(
    store: &Path,
    experiment: Option<&str>,
    request: &ExportRequest,
    busy: &mut dyn FnMut(Activity) -> bool,
) -> Result<Exported, Problem> {
    let ExportRequest { format, file, .. } = request;
    if file.is_dir() {
        return Err(Problem::new(format!("{} is a directory: name a file in it", file.display())));
    }
    if !request.force && file.symlink_metadata().is_ok() {
        return Err(is_there(file));
    }
    let stills = open(store, experiment, &request.checkpoint, busy)?;
    let parts: Vec<_> = stills.parts(format.kind()).collect();
    let part = choose(&parts, request.part.as_deref(), *format)?;
    let (contents, core): (Box<dyn Contents>, _) = match format.kind() {
        PartKind::Machine => {
            let core = stills.core(&part).map_err(problem)?;
            let told = core.told().clone();
            (Box::new(core), Some(told))
        }
        _ => (Box::new(stills.disk(&part).map_err(problem)?), None),
    };
    let what = format!("writing {part}");
    let total = contents.bytes();
    let written = write(file, request.force, &mut |to| {
        write_out(&*contents, *format, to, &mut |done| busy(activity((&what, "bytes"), Progress { done, total })))
            .map_err(|error| Problem::new(format!("{part} was not written to {}: {error}", file.display())))
    })?;
    let Some((bytes, bytes_allocated)) = written else {
        return Err(Problem::new(format!("stopped: {} was not written", file.display())));
    };
    Ok(Exported { file: file.clone(), checkpoint: stills.id(), part, format: *format, bytes, bytes_allocated, core })
}

/// Opens a checkpoint to look at its parts.
pub(crate) fn open(
    store: &Path,
    experiment: Option<&str>,
    checkpoint: &str,
    busy: &mut dyn FnMut(Activity) -> bool,
) -> Result<Stills, Problem> {
    let store = local::open(store)?;
    let id = store.resolve(checkpoint, experiment).map_err(problem)?;
    let mut progress = |what: &str, progress: Progress| {
        // Cut short, it would begin again next time; so it goes on, even if nobody waits for the rest.
        busy(activity((what, ""), progress));
    };
    Stills::open(&store, &id, &mut progress).map_err(problem)
}

/// The part that is meant, of those of the right kind.
fn choose(parts: &[&str], named: Option<&str>, format: ImageFormat) -> Result<String, Problem> {
    let what = if format.kind() == PartKind::Machine { "machine" } else { "disk" };
    let fits = |part: &&&str| match named {
        None => true,
        Some(named) => **part == named || part.strip_prefix(named).is_some_and(|rest| rest.starts_with('/')),
    };
    let fitting: Vec<_> = parts.iter().filter(fits).collect();
    let listed = |parts: &mut dyn Iterator<Item = &&str>| parts.copied().collect::<Vec<_>>().join(", ");
    match (fitting.as_slice(), named) {
        ([only], _) => Ok((**only).to_owned()),
        ([], _) if parts.is_empty() => Err(Problem::new(format!("the checkpoint has no {what}"))),
        ([], Some(named)) => {
            let all = listed(&mut parts.iter());
            Err(Problem::new(format!("{named} is no {what} of the checkpoint: --part takes one of {all}")))
        }
        (several, _) => {
            let some = listed(&mut several.iter().copied());
            Err(Problem::new(format!("the checkpoint has several {what}s: say which with --part, one of {some}")))
        }
    }
}

fn is_there(file: &Path) -> Problem {
    Problem::new(format!("{} is there already: name another file, or replace it with --force", file.display()))
}

/// Has a file written under another name and puts it in its place: its size and what it takes on its file system. None if that was ended; then nothing stays behind,
/// and a file that was there stays.
fn write(file: &Path, force: bool, content: &mut dyn FnMut(&File) -> Result<bool, Problem>) -> Result<Option<(u64, u64)>, Problem> {
    let failed = |error: io::Error| Problem::new(format!("cannot write {}: {error}", file.display()));
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Only its owner may read what was in a guest's memory.
    let temporary = tempfile::Builder::new().prefix(".fermata-export-").tempfile_in(directory).map_err(failed)?;
    if !content(temporary.as_file())? {
        return Ok(None);
    }
    temporary.as_file().sync_all().map_err(failed)?;
    let placed = if force { temporary.persist(file) } else { temporary.persist_noclobber(file) };
    let placed = placed.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => is_there(file),
        _ => failed(error.error),
    })?;
    let metadata = placed.metadata().map_err(failed)?;
    // Blocks are counted in 512 bytes, whatever the file system has (stat(2)).
    Ok(Some((metadata.len(), metadata.blocks() * 512)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    #[test]
    fn the_part_that_is_meant() {
        let (machines, disks) = (["m1", "m10"], ["m1/disk0", "m1/disk1", "m10/disk0"]);
        let check = |parts: &[&str], named, format, expected: Result<&str, &str>| match (choose(parts, named, format), expected) {
            (Ok(part), Ok(expected)) => assert_eq!(part, expected),
            (Err(problem), Err(words)) => assert!(problem.message.contains(words), "{problem}"),
            (found, _) => panic!("{found:?}"),
        };
        check(&machines, Some("m1"), ImageFormat::Core, Ok("m1"));
        check(&machines[..1], None, ImageFormat::Core, Ok("m1"));
        check(&machines, None, ImageFormat::Core, Err("several machines: say which with --part, one of m1, m10"));
        check(&machines, Some("m1/disk0"), ImageFormat::Core, Err("m1/disk0 is no machine"));
        check(&disks, Some("m1/disk1"), ImageFormat::Raw, Ok("m1/disk1"));
        check(&disks, Some("m10"), ImageFormat::Qcow2, Ok("m10/disk0"));
        check(&disks, Some("m1"), ImageFormat::Raw, Err("one of m1/disk0, m1/disk1"));
        check(&disks, Some("m"), ImageFormat::Raw, Err("m is no disk of the checkpoint: --part takes one of m1/disk0"));
        check(&[], None, ImageFormat::Raw, Err("has no disk"));
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("image");
        let names = || {
            let mut names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let hello = &mut |mut to: &File| Ok(to.write_all(b"hello").is_ok());
        assert_eq!(write(&file, false, &mut |_| Ok(false)).unwrap(), None);
        assert!(write(&file, false, &mut |_| Err(Problem::new("damage"))).unwrap_err().message.contains("damage"));
        assert!(names().is_empty());
        assert_eq!(write(&file, false, hello).unwrap().map(|told| told.0), Some(5));
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        // One that came meanwhile.
        assert!(write(&file, false, hello).unwrap_err().message.contains("--force"));
        assert_eq!(write(&file, true, &mut |_| Ok(false)).unwrap(), None);
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        assert!(write(&file, true, &mut |mut to| Ok(to.write_all(b"another").is_ok())).unwrap().is_some());
        assert_eq!((names(), fs::read(&file).unwrap()), (vec!["image".into()], b"another".to_vec()));
        assert!(write(&place.path().join("none/image"), true, hello).unwrap_err().message.contains("none/image"));
    }
}
