//! A keeper's HTTP interface: HTTP/1.1 with JSON bodies on a Unix socket that only its user can open.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | `Experiment` |
//! | `POST /v1/checkpoint` | `CheckpointRequest` | `Checkpoint` |
//! | `POST /v1/goto` | `GotoRequest` | `Resumed` |
//! | `POST /v1/fork` | `ForkRequest` | `Resumed` |
//! | `POST /v1/pause`, `/v1/resume` | `RunRequest` | `Run` |
//! | `POST /v1/link` | `LinkRequest` | array of `LinkEnd` |
//! | `POST /v1/capture` | `CaptureRequest` | a file in the format pcapng, as long as the capture lasts |
//! | `POST /v1/forward` | `ForwardRequest` | `ForwardOf` |
//! | `POST /v1/exec` | `ExecRequest` | `Executed` |
//! | `POST /v1/cpus` | `CpusRequest` | `Cpus` |
//! | `POST /v1/down` | `DownRequest` | `Ended` |
//! | `GET /v1/activity` | | `Activity` |
//! | `GET /v1/metrics` | | array of `Metric` |
//! | `GET /metrics` | | the same in the text format of Prometheus |
//!
//! Anything but 200 comes with a [`Problem`]: 400 for a body that is no request, 404 and 405 for an unknown path or method, 413 for too long a body,
//! 422 when the keeper could not do it, 500 when it is broken.

use crate::{
    metrics,
    service::{BODY_BYTES_MAX, EXEC_BODY_BYTES_MAX, Service},
    values::Problem,
};
use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State, rejection::BytesRejection},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
    serve::Listener,
};
use futures_core::Stream;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt::Debug,
    fs::{self, DirBuilder, Permissions},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{self, Poll},
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

/// How long a server that stops waits for the answers under way.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Pieces of a capture that wait to be sent; more wait in the capture itself.
const PIECES_MAX: usize = 4;
/// The media type of captures.
const PCAPNG: &str = "application/x-pcapng";

type Shared = Arc<dyn Service>;

/// A running server. Dropped, it stops.
#[derive(Debug)]
pub struct Server {
    /// None: it listens on TCP.
    socket: Option<PathBuf>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens on `socket` (mode 0600) and serves from a thread of its own. The socket's directory is made, or set, to mode 0700.
    ///
    /// A socket that a dead server left is replaced; one on which somebody answers is a [`Problem`].
    pub fn start(socket: &Path, service: Shared) -> Result<Self, Problem> {
        let failed = |error: io::Error| Problem::new(format!("cannot serve on {}: {error}", socket.display()));
        let listener = listen(socket).map_err(failed)?;
        let start = move || tokio::net::UnixListener::from_std(listener);
        let (stop, thread) = run(start, router(service)).map_err(failed)?;
        Ok(Self { socket: Some(socket.to_owned()), stop: Some(stop), thread: Some(thread) })
    }

    /// Serves `/metrics`, and nothing else, on a TCP port of this host alone: whoever can connect may read.
    pub fn metrics(address: SocketAddr, service: Shared) -> Result<Self, Problem> {
        if !address.ip().is_loopback() {
            return Err(Problem::new(format!(
                "metrics are served on this host alone, such as on 127.0.0.1:{}, and not on {address}: put a proxy before it that knows who may read",
                address.port()
            )));
        }
        let failed = |error: io::Error| Problem::new(format!("cannot serve metrics on {address}: {error}; --metrics names another port"));
        let listener = TcpListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(failed)?;
        let start = move || tokio::net::TcpListener::from_std(listener);
        let router = Router::new().route("/metrics", get(scrape)).with_state(service);
        let (stop, thread) = run(start, router).map_err(failed)?;
        Ok(Self { socket: None, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes no more requests, lets the answers under way reach their clients, and ends. Waits at most five seconds for that.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Whoever comes from now on finds no socket, instead of one that nobody reads.
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
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

/// Serves from a thread of its own. What the listener becomes is made inside the runtime.
fn run<L: Listener<Addr: Debug>>(
    start: impl FnOnce() -> io::Result<L>,
    router: Router,
) -> io::Result<(oneshot::Sender<()>, JoinHandle<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _entered = runtime.enter();
        start()?
    };
    let (stop, stopped) = oneshot::channel();
    let run = move || {
        runtime.block_on(serve(listener, router, stopped));
        // A command in a guest may take for ever; nobody waits for its end any more.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name("http".to_owned()).spawn(run)?;
    Ok((stop, thread))
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

async fn serve<L: Listener<Addr: Debug>>(listener: L, router: Router, stopped: oneshot::Receiver<()>) {
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
    let status = |State(service): State<Shared>| answer(service, |service, _| service.status());
    let activity = |State(service): State<Shared>| answer(service, |service, _| Ok(service.activity()));
    let metrics = |State(service): State<Shared>| answer(service, |service, _| service.metrics());
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/activity", get(activity))
        .route("/v1/metrics", get(metrics))
        .route("/metrics", get(scrape))
        .route("/v1/checkpoint", handler(|service, request, wanted| service.checkpoint(request, wanted)))
        .route("/v1/goto", handler(|service, request, wanted| service.goto(request, wanted)))
        .route("/v1/fork", handler(|service, request, _| service.fork(request)))
        .route("/v1/pause", handler(|service, request, _| service.pause(request)))
        .route("/v1/resume", handler(|service, request, _| service.resume(request)))
        .route("/v1/link", handler(|service, request, _| service.link(request)))
        .route("/v1/forward", handler(|service, request, _| service.forward(request)))
        .route("/v1/capture", post(capture))
        .route("/v1/cpus", handler(|service, request, wanted| service.cpus(request, wanted)))
        .route("/v1/down", handler(|service, request, _| service.down(request)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .route(
            "/v1/exec",
            handler(|service, request, wanted| service.exec(request, wanted)).layer(DefaultBodyLimit::max(EXEC_BODY_BYTES_MAX)),
        )
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "no such path; this keeper speaks /v1") })
        .method_not_allowed_fallback(|| async { refuse(StatusCode::METHOD_NOT_ALLOWED, "this path wants another method") })
        .with_state(service)
}

/// What a request asks for. It may ask whether the client still waits.
type Work<Q, A> = fn(&dyn Service, Q, &dyn Fn() -> bool) -> Result<A, Problem>;

/// Serves one kind of request.
fn handler<Q, A>(work: Work<Q, A>) -> MethodRouter<Shared>
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    post(move |State(service): State<Shared>, body: Result<Bytes, BytesRejection>| async move {
        match parsed(body) {
            Ok(request) => answer(service, move |service, wanted| work(service, request, wanted)).await,
            Err((status, why)) => refuse(status, &why),
        }
    })
}

/// The request in a body, or how it is refused.
fn parsed<Q: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<Q, (StatusCode, String)> {
    let body = body.map_err(|rejected| (rejected.status(), rejected.body_text()))?;
    let wrong = |error| (StatusCode::BAD_REQUEST, format!("the body is not the request expected here: {error}"));
    serde_json::from_slice(&body).map_err(wrong)
}

/// Sends a capture while it is made. If the client is slow, the capture waits here, and frames that it has no room for are missing.
async fn capture(State(service): State<Shared>, body: Result<Bytes, BytesRejection>) -> Response {
    let request = match parsed(body) {
        Ok(request) => request,
        Err((status, why)) => return refuse(status, &why),
    };
    let (sender, mut pieces) = mpsc::channel(PIECES_MAX);
    let work = done(service, move |service, _| {
        service.capture(request, &mut |piece| match piece {
            [] => !sender.is_closed(),
            piece => sender.blocking_send(Bytes::copy_from_slice(piece)).is_ok(),
        })
    });
    let work = tokio::spawn(work);
    // The first piece comes at once, or what is wrong.
    match pieces.recv().await {
        Some(first) => ([(CONTENT_TYPE, PCAPNG)], Body::from_stream(Pieces { first: Some(first), rest: pieces })).into_response(),
        None => match work.await {
            Ok(Err(refusal)) => refusal,
            _ => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the capture ended before it began; the keeper's log tells more"),
        },
    }
}

/// What a capture has brought, piece by piece.
struct Pieces {
    first: Option<Bytes>,
    rest: mpsc::Receiver<Bytes>,
}

impl Stream for Pieces {
    type Item = Result<Bytes, io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.rest.poll_recv(context).map(|piece| piece.map(Ok)),
        }
    }
}

async fn answer<A: Serialize + Send + 'static>(
    service: Shared,
    work: impl FnOnce(&dyn Service, &dyn Fn() -> bool) -> Result<A, Problem> + Send + 'static,
) -> Response {
    match done(service, work).await {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => refusal,
    }
}

async fn scrape(State(service): State<Shared>) -> Response {
    match done(service, |service, _| service.metrics()).await {
        Ok(metrics) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::text(&metrics)).into_response(),
        Err(refusal) => refusal,
    }
}

/// Runs the work, which blocks, on a thread for that. It may ask whether the client still waits.
async fn done<A: Send + 'static>(
    service: Shared,
    work: impl FnOnce(&dyn Service, &dyn Fn() -> bool) -> Result<A, Problem> + Send + 'static,
) -> Result<A, Response> {
    // When a client leaves, the server drops this future, and with it the token.
    let token = Arc::new(());
    let waiting = Arc::downgrade(&token);
    let answer = tokio::task::spawn_blocking(move || work(&*service, &|| waiting.strong_count() > 0)).await;
    drop(token);
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(problem)) => Err((StatusCode::UNPROCESSABLE_ENTITY, Json(problem)).into_response()),
        Err(_) => Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, "the keeper failed while it worked on this; its log tells more")),
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(Problem::new(message))).into_response()
}
