//! A keeper's HTTP interface: HTTP/1.1 with JSON bodies on a Unix socket that only its user can open.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | `Experiment` |
//! | `POST /v1/checkpoint` | `CheckpointRequest` | `Checkpoint` |
//! | `POST /v1/goto` | `GotoRequest` | `Resumed` |
//! | `POST /v1/fork` | `ForkRequest` | `Resumed` |
//! | `POST /v1/pause`, `/v1/resume` | `RunRequest` | `Run` |
//! | `POST /v1/exec` | `ExecRequest` | `Executed` |
//! | `POST /v1/down` | `DownRequest` | `Ended` |
//! | `GET /v1/activity` | | `Activity` |
//!
//! Anything but 200 comes with a [`Problem`]: 400 for a body that is no request, 404 and 405 for an unknown path or method, 413 for too long a body,
//! 422 when the keeper could not do it, 500 when it is broken.

use crate::{
    service::{BODY_BYTES_MAX, EXEC_BODY_BYTES_MAX, Service},
    values::Problem,
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::oneshot;

/// How long a server that stops waits for the answers under way.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

type Shared = Arc<dyn Service>;

/// A running server. Dropped, it stops.
#[derive(Debug)]
pub struct Server {
    socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `socket` (mode 0600) and serves from a thread of its own. The socket's directory is made, or set, to mode 0700.
    ///
    /// A socket that a dead server left is replaced; one on which somebody answers is a [`Problem`].
    pub fn start(socket: &Path, service: Shared) -> Result<Self, Problem> {
        let failed = |what: &str, error: io::Error| Problem::new(format!("cannot serve on {}: {what}: {error}", socket.display()));
        let listener = listen(socket).map_err(|error| failed("opening the socket", error))?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| failed("starting the server", error))?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::UnixListener::from_std(listener).map_err(|error| failed("starting the server", error))?
        };
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, router(service), stopped));
            // A command in a guest may take for ever; nobody waits for its end any more.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(run).map_err(|error| failed("starting a thread", error))?;
        Ok(Self { socket: socket.to_owned(), stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Takes no more requests, lets the answers under way reach their clients, and ends. Waits at most five seconds for that.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Whoever comes from now on finds no socket, instead of one that nobody reads.
        let _ = fs::remove_file(&self.socket);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    let directory = socket.parent().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    if UnixStream::connect(socket).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another keeper answers there; `fermata ls` shows it"));
    }
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    // Only root can set the mode of a directory that belongs to somebody else; that one could still look in.
    if fs::metadata(socket)?.uid() != fs::metadata(directory)?.uid() {
        let _ = fs::remove_file(socket);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its directory belongs to another user"));
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: tokio::net::UnixListener, router: Router, stopped: oneshot::Receiver<()>) {
    let (closing, closed) = oneshot::channel::<()>();
    let graceful = async move {
        let _ = stopped.await;
        drop(closing);
    };
    let limit = async move {
        let _ = closed.await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(graceful);
    tokio::select! {
        served = server => if let Err(error) = served { tracing::error!("the HTTP server failed: {error}") },
        () = limit => tracing::warn!("a request was still under way when the server stopped"),
    }
}

fn router(service: Shared) -> Router {
    let status = |State(service): State<Shared>| answer(service, |service| service.status());
    let activity = |State(service): State<Shared>| answer(service, |service| Ok(service.activity()));
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/activity", get(activity))
        .route("/v1/checkpoint", handler(|service, request| service.checkpoint(request)))
        .route("/v1/goto", handler(|service, request| service.goto(request)))
        .route("/v1/fork", handler(|service, request| service.fork(request)))
        .route("/v1/pause", handler(|service, request| service.pause(request)))
        .route("/v1/resume", handler(|service, request| service.resume(request)))
        .route("/v1/down", handler(|service, request| service.down(request)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route("/v1/exec", handler(|service, request| service.exec(request)).layer(DefaultBodyLimit::max(EXEC_BODY_BYTES_MAX)))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "no such path; this keeper speaks /v1") })
        .method_not_allowed_fallback(|| async { refuse(StatusCode::METHOD_NOT_ALLOWED, "this path wants another method") })
        .with_state(service)
}

/// Serves one kind of request.
fn handler<Q, A>(work: fn(&dyn Service, Q) -> Result<A, Problem>) -> MethodRouter<Shared>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    post(move |State(service): State<Shared>, body: Result<Bytes, BytesRejection>| async move {
        let body = match body {
            Ok(body) => body,
            Err(rejected) => return refuse(rejected.status(), &rejected.body_text()),
        };
        match serde_json::from_slice(&body) {
            Ok(request) => answer(service, move |service| work(service, request)).await,
            Err(error) => refuse(StatusCode::BAD_REQUEST, &format!("the body is not the request expected here: {error}")),
        }
    })
}

/// Runs the work, which blocks, on a thread for that.
async fn answer<A: Serialize + Send + 'static>(
    service: Shared,
    work: impl FnOnce(&dyn Service) -> Result<A, Problem> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(move || work(&*service)).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(problem)) => (StatusCode::UNPROCESSABLE_ENTITY, Json(problem)).into_response(),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the keeper failed while it worked on this; its log tells more"),
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(Problem::new(message))).into_response()
}
