//! What is said between who asks and who answers: a line of JSON and the bytes that it announces, each way (`docs/formats/remote.md`).

use crate::{Connection, limit::Limit};
use fermata_store::remote::Remote as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufRead, Read, Write},
    path::Path,
    thread,
};

/// What who answers says first.
pub(super) const GREETING: &str = "fermata peer 1\n";
/// A line of JSON at most.
pub(super) const LINE_MAX: u64 = 64 << 10;
/// The bytes behind one at most. What is put is a pack, a list of objects that they are in, or a piece of an image: some ten MiB.
pub(super) const BODY_MAX: u64 = 1 << 30;
/// Bytes that travel between two looks at the limit.
pub(super) const PIECE: usize = 64 << 10;

/// What can be asked for; as in [`Remote`]. Behind a put come its bytes, behind a swap what there is to be before, and what after.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Get { name: String, most: u64 },
    Tail { name: String, most: u64 },
    Range { name: String, from: u64, length: u64 },
    Put { name: String, bytes: u64 },
    Swap { name: String, before: Option<u64>, bytes: u64 },
    Remove { name: String },
    List { prefix: String },
}

impl Request {
    fn name(&self) -> &str {
        match self {
            Self::Get { name, .. } | Self::Tail { name, .. } | Self::Range { name, .. } | Self::Put { name, .. } => name,
            Self::Swap { name, .. } | Self::Remove { name } => name,
            Self::List { prefix } => prefix.trim_end_matches('/'),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Done,
    /// There is no such object.
    Absent,
    /// So many bytes follow: of the object, or JSON of the names and lengths of several.
    Bytes(u64),
    Swapped(bool),
    /// It cannot be done, and trying again will not help.
    Failed(String),
}

/// Answers for a directory, which is made if there is none and something is put there, until who asks has gone.
pub fn serve(directory: &Path, mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let place = Connection::directory(directory, None)?;
    to.write_all(GREETING.as_bytes())?;
    to.flush()?;
    while respond(&place, &mut from, &mut to)? {}
    Ok(())
}

/// Answers one request, unless there is none any more.
pub(super) fn respond(place: &Connection, from: &mut impl BufRead, to: &mut impl Write) -> io::Result<bool> {
    let Some(request) = read_line::<Request>(from)? else { return Ok(false) };
    let (before, bytes) = match &request {
        Request::Put { bytes, .. } => (None, read_body(from, *bytes, None)?),
        Request::Swap { before, bytes, .. } => {
            (before.map(|length| read_body(from, length, None)).transpose()?, read_body(from, *bytes, None)?)
        }
        _ => (None, Vec::new()),
    };
    let (answer, body) = answer(place, &request, before, bytes).unwrap_or_else(|error| (Answer::Failed(error.to_string()), Vec::new()));
    write_line(to, &answer)?;
    to.write_all(&body)?;
    to.flush()?;
    Ok(true)
}

fn answer(place: &Connection, request: &Request, before: Option<Vec<u8>>, bytes: Vec<u8>) -> io::Result<(Answer, Vec<u8>)> {
    if !is_name(request.name()) {
        return Err(io::Error::other(format!("{:?} is no name of an object", request.name())));
    }
    let found = |object: Option<Vec<u8>>| object.map_or((Answer::Absent, Vec::new()), |bytes| (Answer::Bytes(bytes.len() as u64), bytes));
    Ok(match request {
        Request::Get { name, most } => found(place.get(name, (*most).min(BODY_MAX))?),
        Request::Tail { name, most } => found(place.tail(name, (*most).min(BODY_MAX))?),
        Request::Range { name, from, length } => found(place.range(name, *from, (*length).min(BODY_MAX))?),
        Request::Put { name, .. } => (place.put(name, bytes).map(|()| Answer::Done)?, Vec::new()),
        Request::Swap { name, .. } => (Answer::Swapped(place.swap(name, before.as_deref(), bytes)?), Vec::new()),
        Request::Remove { name } => (place.remove(name).map(|()| Answer::Done)?, Vec::new()),
        Request::List { prefix } => found(Some(serde_json::to_vec(&place.list(prefix)?)?)),
    })
}

/// Who asks may be allowed no more than this directory, so a name must not lead out of it.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte);
    name.split('/').all(|part| !["", ".", ".."].contains(&part) && part.bytes().all(plain))
}

pub(super) fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::other("a line was cut off")),
    }
}

pub(super) fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Whoever announces much and sends little gets no memory for it.
fn read_body(from: &mut impl Read, length: u64, limit: Option<&Limit>) -> io::Result<Vec<u8>> {
    if length > BODY_MAX {
        return Err(io::Error::other(format!("{length} bytes are announced, and {BODY_MAX} may be")));
    }
    let mut body = Vec::new();
    while (body.len() as u64) < length {
        let piece = (length - body.len() as u64).min(PIECE as u64);
        let read = from.take(piece).read_to_end(&mut body)?;
        if (read as u64) < piece {
            return Err(io::Error::other("the end is missing"));
        }
        wait_for(read, limit);
    }
    Ok(body)
}

/// So many bytes travel.
pub(super) fn wait_for(bytes: usize, limit: Option<&Limit>) {
    if let Some(limit) = limit {
        thread::sleep(limit.wait(bytes));
    }
}

/// The answer to a request, and the bytes behind it.
pub(super) fn read_answer(from: &mut impl BufRead, limit: Option<&Limit>) -> io::Result<(Answer, Vec<u8>)> {
    let answer = read_line(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let length = if let Answer::Bytes(length) = answer { length } else { 0 };
    let body = read_body(from, length, limit)?;
    Ok((answer, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_to(server_is_told: &[u8]) -> (tempfile::TempDir, String, io::Result<()>) {
        let directory = tempfile::tempdir().unwrap();
        let mut said = Vec::new();
        let ended = serve(&directory.path().join("inner"), server_is_told, &mut said);
        (directory, String::from_utf8(said).unwrap(), ended)
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for name in ["../out", "/tmp/out", "a/../../out", "a//b", ".", "", "a/.."] {
            let put = format!("{{\"put\":{{\"name\":\"{name}\",\"bytes\":3}}}}\nabc");
            let swap = format!("{{\"swap\":{{\"name\":\"{name}\",\"before\":null,\"bytes\":3}}}}\nabc");
            let (directory, said, ended) = said_to(format!("{put}{swap}").as_bytes());
            ended.unwrap();
            assert_eq!(said.matches("is no name of an object").count(), 2, "{name}: {said}");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "{name}");
        }
        assert!(said_to(b"{\"put\":{\"name\":\"a/.b-_=\",\"bytes\":3}}\nabc").1.ends_with("\"done\"\n"));
    }

    #[test]
    fn nonsense_ends_it_and_takes_no_memory() {
        for told in [
            &b"{\"put\":{\"name\":\"a\",\"bytes\":18446744073709551615}}\nabc"[..],
            b"{\"put\":{\"name\":\"a\",\"bytes\":1000000000}}\nabc",
            b"{\"get\":{\"name\":\"a\",\"most\":-1}}\n",
            b"{\"list\":{}}\n",
            b"\0\0\0\n",
            b"{\"get\":",
            &vec![b'['; 1 << 20],
        ] {
            let (directory, said, ended) = said_to(told);
            assert!(ended.is_err() && said == GREETING, "{said}");
            assert!(!directory.path().join("inner/a").exists());
        }
    }
}
