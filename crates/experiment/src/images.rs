//! Golden images by what is in them: where one lies on this host is found out here.

use crate::{Error, Result, host::open_image};
use fermata_disk::{DiskDetails, Format, Golden, ImageDetails};
use fermata_store::{Progress, Record, Store};
use fermata_types::{ImageId, PartKind};
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The golden images that a checkpoint stands on, and where they were when it was taken.
pub fn images_of(record: &Record) -> Result<BTreeMap<ImageId, ImageDetails>> {
    let mut images = BTreeMap::new();
    for disk in record.parts.iter().filter(|part| part.kind == PartKind::Disk) {
        images.extend(DiskDetails::from_state(disk)?.image.map(|image| (image.id, image)));
    }
    Ok(images)
}

/// Opens a golden image and makes it known to the store, wherever it lies on this host: where it was, where a file of that content was seen, or among the images of
/// the store.
pub fn find_image(store: &Store, image: &ImageDetails, progress: &mut dyn FnMut(&str, Progress)) -> Result<Arc<Golden>> {
    find(store, &image.id, (&image.path, Some(image.format)), progress)
}

/// Opens the golden images that a pull has put into the store's own directory: all but those that cannot be read.
pub fn open_own_images(store: &Store, progress: &mut dyn FnMut(&str, Progress)) -> Vec<Result<Arc<Golden>>> {
    let images = store.own_images().into_iter();
    images.map(|(id, path)| open_image(store, &path, Some(Format::Raw), Some(&id), progress)).collect()
}

pub(crate) fn find(
    store: &Store,
    id: &ImageId,
    was: (&Path, Option<Format>),
    progress: &mut dyn FnMut(&str, Progress),
) -> Result<Arc<Golden>> {
    let seen = Golden::seen(id, &store.images_dir()).into_iter().map(|(path, format)| (path, Some(format)));
    let own = (store.own_image(id), Some(Format::Raw));
    let mut first = None;
    for (path, format) in [(was.0.to_owned(), was.1)].into_iter().chain(seen).chain([own]) {
        match open_image(store, &path, format, Some(id), progress) {
            Ok(image) => return Ok(image),
            // What is wrong with the place that people know is told.
            Err(error) => _ = first.get_or_insert((path, error)),
        }
    }
    Err(first.map_or_else(|| not_here(id, was.0.to_owned()), |(path, error)| told(id, path, error)))
}

/// A golden image that is read from the remote that its checkpoint comes from, until it is here; see [`Host::image_came`]. None: nothing comes, or not with this image.
///
/// [`Host::image_came`]: crate::Host::image_came
pub(crate) fn coming(store: &Store, id: &ImageId) -> Result<Option<Arc<Golden>>> {
    let Some(away) = store.away() else { return Ok(None) };
    let Some(reader) = away.image(id)? else { return Ok(None) };
    Ok(Some(Arc::new(Golden::coming(*id, store.own_image(id), reader)?)))
}

/// What could not be opened, and the ways out.
fn told(id: &ImageId, path: PathBuf, error: Error) -> Error {
    match error {
        Error::Disk(fermata_disk::Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => not_here(id, path),
        error => error,
    }
}

fn not_here(id: &ImageId, path: PathBuf) -> Error {
    Error::Refused(format!(
        "golden image {} is not on this host: it was {}. Put it back there, or `fermata pull` from a remote that it was pushed to",
        id.short(),
        path.display()
    ))
}
