//! A keeper, seen through its socket.

use crate::{
    service::{BODY_BYTES_MAX, EXEC_BODY_BYTES_MAX, Service},
    values::{
        Activity, CaptureRequest, Checkpoint, CheckpointRequest, Cpus, CpusRequest, DownRequest, Ended, ExecRequest, Executed, Experiment,
        ForkRequest, ForwardOf, ForwardRequest, GotoRequest, LinkEnd, LinkRequest, Metric, Problem, Resumed, Run, RunRequest,
    },
};
use reqwest::{
    StatusCode,
    blocking::{RequestBuilder, Response},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    error::Error,
    io::{self, Read},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// A keeper that cannot say in this time what it does hangs. Requests that do something have no limit.
const STATUS_TIME_MAX: Duration = Duration::from_secs(60);
/// Of a capture that is read at once.
const PIECE_BYTES: usize = 64 << 10;
const ACTIVITY_TIME_MAX: Duration = Duration::from_secs(5);
/// An answer longer than this is none. The longest carries twice 16 MiB of a command's output, where a character takes up to six.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// A connection to a keeper. Cheap to clone; many threads may use one at once.
///
/// It blocks, and must not be used in a thread that runs an asynchronous runtime.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::blocking::Client,
    socket: PathBuf,
}

impl Client {
    /// Connects to the keeper that listens on `socket`. A [`Problem`] if nobody does.
    pub fn connect(socket: &Path) -> Result<Self, Problem> {
        UnixStream::connect(socket).map_err(|error| gone(socket, &error))?;
        fermata_remote::choose_ciphers();
        let http = reqwest::blocking::Client::builder()
            .unix_socket(socket)
            // Nothing is encrypted on a socket of this host: the certificates of the system are not read for it.
            .tls_certs_only([])
            .redirect(reqwest::redirect::Policy::none())
            .timeout(None)
            .build()
            .map_err(|error| Problem::new(format!("cannot talk HTTP on {}: {}", socket.display(), causes(&error))))?;
        Ok(Self { http, socket: socket.to_owned() })
    }

    /// The keeper's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn get<A: DeserializeOwned>(&self, path: &str, time: Duration) -> Result<A, Problem> {
        self.send(self.http.get(url(path)).timeout(time))
    }

    fn post<A: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<A, Problem> {
        self.post_at_most(path, request, BODY_BYTES_MAX)
    }

    fn post_at_most<A: DeserializeOwned>(&self, path: &str, request: &impl Serialize, bytes_max: usize) -> Result<A, Problem> {
        let body = serde_json::to_vec(request).map_err(|error| Problem::new(format!("cannot send the request: {error}")))?;
        // The keeper would hang up in the middle of it, before its refusal is read.
        if body.len() > bytes_max {
            return Err(Problem::new(format!("the request is too long: {} bytes as JSON, at most {bytes_max} are taken", body.len())));
        }
        self.send(self.posted(path, body))
    }

    fn posted(&self, path: &str, body: Vec<u8>) -> RequestBuilder {
        self.http.post(url(path)).header("content-type", "application/json").body(body)
    }

    fn send<A: DeserializeOwned>(&self, request: RequestBuilder) -> Result<A, Problem> {
        let response = self.begin(request)?;
        let status = response.status();
        serde_json::from_slice(&self.whole(response)?).map_err(|error| self.strange(status, &error))
    }

    /// An answer that is no refusal, not yet read.
    fn begin(&self, request: RequestBuilder) -> Result<Response, Problem> {
        let response = request.send().map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(serde_json::from_slice(&self.whole(response)?).unwrap_or_else(|error| self.strange(status, &error)))
    }

    fn whole(&self, response: Response) -> Result<Vec<u8>, Problem> {
        let mut body = Vec::new();
        response.take(ANSWER_BYTES_MAX).read_to_end(&mut body).map_err(|error| self.broken(&error))?;
        Ok(body)
    }

    fn strange(&self, status: StatusCode, error: &serde_json::Error) -> Problem {
        Problem::new(format!(
            "the keeper on {} answered {status} with something else than expected ({error}). Is it of another version? `fermata down` and `fermata goto ID` start a new one",
            self.socket.display()
        ))
    }

    fn broken(&self, error: &(dyn Error + 'static)) -> Problem {
        match error.downcast_ref::<reqwest::Error>() {
            Some(error) if error.is_connect() => gone(&self.socket, error),
            Some(error) if error.is_timeout() => Problem::new(format!(
                "the keeper on {} does not answer. Its log is beside the socket; kill it if it hangs, then `fermata goto ID` brings the experiment back",
                self.socket.display()
            )),
            _ => Problem::new(format!(
                "the keeper on {} ended before it answered ({}). Every permanent checkpoint is in the store: `fermata log` lists them, and \
                 `fermata goto ID` brings the experiment back",
                self.socket.display(),
                causes(error)
            )),
        }
    }
}

fn url(path: &str) -> String {
    format!("http://keeper/v1/{path}")
}

fn gone(socket: &Path, error: &dyn Error) -> Problem {
    Problem::new(format!(
        "no keeper answers on {} ({}). Every permanent checkpoint is in the store: `fermata log` lists them, and `fermata goto ID` brings the \
         experiment back",
        socket.display(),
        causes(error)
    ))
}

/// The innermost cause: what the kernel said, instead of three layers that failed because of it.
fn causes(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

impl Service for Client {
    fn status(&self) -> Result<Experiment, Problem> {
        self.get("status", STATUS_TIME_MAX)
    }

    fn checkpoint(&self, request: CheckpointRequest, _: &dyn Fn() -> bool) -> Result<Checkpoint, Problem> {
        self.post("checkpoint", &request)
    }

    fn goto(&self, request: GotoRequest, _: &dyn Fn() -> bool) -> Result<Resumed, Problem> {
        self.post("goto", &request)
    }

    fn fork(&self, request: ForkRequest) -> Result<Resumed, Problem> {
        self.post("fork", &request)
    }

    fn pause(&self, request: RunRequest) -> Result<Run, Problem> {
        self.post("pause", &request)
    }

    fn resume(&self, request: RunRequest) -> Result<Run, Problem> {
        self.post("resume", &request)
    }

    fn link(&self, request: LinkRequest) -> Result<Vec<LinkEnd>, Problem> {
        self.post("link", &request)
    }

    fn forward(&self, request: ForwardRequest) -> Result<ForwardOf, Problem> {
        self.post("forward", &request)
    }

    fn capture(&self, request: CaptureRequest, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Problem> {
        let body = serde_json::to_vec(&request).map_err(|error| Problem::new(format!("cannot send the request: {error}")))?;
        let mut response = self.begin(self.posted("capture", body))?;
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match response.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) if take(&piece[..read]) => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    /// The keeper hears of it when this process ends, and waits no longer.
    fn exec(&self, request: ExecRequest, _: &dyn Fn() -> bool) -> Result<Executed, Problem> {
        self.post_at_most("exec", &request, EXEC_BODY_BYTES_MAX)
    }

    fn cpus(&self, request: CpusRequest, _: &dyn Fn() -> bool) -> Result<Cpus, Problem> {
        self.post("cpus", &request)
    }

    fn down(&self, request: DownRequest) -> Result<Ended, Problem> {
        self.post("down", &request)
    }

    /// Nothing, if the keeper does not say.
    fn activity(&self) -> Activity {
        self.get("activity", ACTIVITY_TIME_MAX).unwrap_or_default()
    }

    fn metrics(&self) -> Result<Vec<Metric>, Problem> {
        self.get("metrics", STATUS_TIME_MAX)
    }
}
