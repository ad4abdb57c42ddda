//! Lines over HTTP, and who answers there. Each request is a POST whose body is what is said on other lines, and so is the body of what comes back; a GET brings the greeting.

use super::{
    Line,
    wire::{Answer, BODY_MAX, GREETING, LINE_MAX, PIECE, Request, read_answer, respond, wait_for, write_line},
};
use crate::{Connection, SLOWEST, choose_ciphers, limit::Limit, told};
use axum::{
    Router,
    body::{Bytes, to_bytes},
    extract::{self, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use reqwest::blocking::{Body, Client};
use std::{
    env, fmt,
    io::{self, BufReader, Read},
    net::TcpListener,
    path::Path,
    sync::Arc,
    time::Duration,
};

/// Where the token is found, on both sides.
const TOKEN: &str = "FERMATA_PEER_TOKEN";
/// Fewer characters can be guessed.
const TOKEN_MIN: usize = 16;
/// Of what an answer says that is no answer of ours, what is told.
const SAID_MAX: u64 = 200;

/// What both sides know, and nobody else.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// That of the environment, `FERMATA_PEER_TOKEN`.
    pub fn of_environment() -> io::Result<Self> {
        let token = env::var(TOKEN).unwrap_or_default();
        let fit = token.len() >= TOKEN_MIN && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !fit {
            let what = if token.is_empty() { "is not set" } else { "is no token: it has too few characters, or other ones than of ASCII" };
            return Err(io::Error::other(format!(
                "{TOKEN} {what}. Both sides need the same secret there, such as `openssl rand -hex 32` prints"
            )));
        }
        Ok(Self(token.into()))
    }

    /// Hashes are compared, which takes as long whatever they are.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        given.is_some_and(|given| blake3::hash(given) == blake3::hash(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Who asks one URL.
#[derive(Clone)]
pub(super) struct Posting {
    client: Client,
    url: Arc<str>,
    token: Token,
    stalled: Duration,
}

impl Posting {
    pub fn new(url: &str, token: Token, stalled: Duration) -> io::Result<Self> {
        choose_ciphers();
        // A redirection would be told the token.
        let client = Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(stalled).tcp_user_timeout(stalled);
        // What is in the open stays on this host.
        let client = if url.starts_with("https:") { client } else { client.no_proxy() };
        Ok(Self { client: client.build().map_err(told)?, url: url.into(), token, stalled })
    }

    /// Reads the greeting.
    pub fn begin(&self) -> io::Result<Self> {
        let answer = self.client.get(&*self.url).bearer_auth(&self.token.0).send().map_err(told)?;
        let mut greeting = Vec::new();
        read_through(answer)?.take(GREETING.len() as u64).read_to_end(&mut greeting).map_err(told)?;
        if greeting != GREETING.as_bytes() {
            let greeting = String::from_utf8_lossy(&greeting);
            return Err(io::Error::other(format!("what answers begins with {greeting:?}, and is no `fermata peer` of this version")));
        }
        Ok(self.clone())
    }
}

/// What is in an answer, unless it is that it will not.
fn read_through(answer: reqwest::blocking::Response) -> io::Result<BufReader<impl Read>> {
    let status = answer.status();
    let mut body = BufReader::new(answer);
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::UNAUTHORIZED => Err(io::Error::other(format!("it does not take the token: {TOKEN} has to be the same on both sides"))),
        _ => {
            let mut said = Vec::new();
            let _ = body.by_ref().take(SAID_MAX).read_to_end(&mut said);
            let said = String::from_utf8_lossy(&said);
            Err(io::Error::other(format!("it answers {status}: {}", said.lines().next().unwrap_or_default().trim())))
        }
    }
}

impl Line for Posting {
    fn ask(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Arc<Limit>>) -> io::Result<(Answer, Vec<u8>)> {
        let mut said = Vec::new();
        write_line(&mut said, request)?;
        bodies.iter().for_each(|body| said.extend_from_slice(body));
        let length = said.len() as u64;
        let slowest = limit.map_or(SLOWEST, |limit| limit.bytes_per_second().min(SLOWEST)) as f64;
        let body = match limit {
            None => Body::from(said),
            Some(limit) => Body::sized(Paced { bytes: io::Cursor::new(said), limit: limit.clone() }, length),
        };
        let mut posted = self.client.post(&*self.url).bearer_auth(&self.token.0).body(body);
        if !bodies.is_empty() {
            // What is sent has to be there within that time, and all of the answer as well, which is short then. What is fetched may take its time: each piece of it has that of the client.
            posted = posted.timeout(self.stalled + Duration::from_secs_f64(length as f64 / slowest));
        }
        // What was read is told with all of its causes, too.
        read_answer(&mut read_through(posted.send().map_err(told)?)?, limit.map(Arc::as_ref)).map_err(told)
    }
}

/// Bytes that are read when they may travel.
struct Paced {
    bytes: io::Cursor<Vec<u8>>,
    limit: Arc<Limit>,
}

impl Read for Paced {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(PIECE);
        let read = self.bytes.read(&mut buffer[..most])?;
        wait_for(read, Some(&self.limit));
        Ok(read)
    }
}

struct Served {
    place: Connection,
    token: Token,
}

/// Answers for a directory, which is made if there is none and something is put there, to whoever knows the token, on whatever path; for as long as the process lives. `began` is called when nothing is in the way.
///
/// Only on this host: what speaks TLS to others is a proxy before it.
pub fn listen(directory: &Path, listener: TcpListener, token: Token, began: impl FnOnce()) -> io::Result<()> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        return Err(io::Error::other(format!(
            "on {address} the token and all that is copied would travel in the open: listen on 127.0.0.1:{0}, and put a proxy before it that speaks TLS",
            address.port()
        )));
    }
    listener.set_nonblocking(true)?;
    let served = Arc::new(Served { place: Connection::directory(directory, None)?, token });
    let router = Router::new().fallback(answer).with_state(served);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    began();
    runtime.block_on(async { axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await })
}

async fn answer(State(served): State<Arc<Served>>, request: extract::Request) -> Response {
    if !served.token.is_in(request.headers()) {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], "no token, or another one\n").into_response();
    }
    match *request.method() {
        Method::GET => GREETING.into_response(),
        Method::POST => match to_bytes(request.into_body(), (LINE_MAX + 2 * BODY_MAX) as usize).await {
            Ok(body) => answer_to(served, body).await,
            Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        },
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST")], "GET brings the greeting, POST a request\n").into_response(),
    }
}

async fn answer_to(served: Arc<Served>, body: Bytes) -> Response {
    let answered = move || {
        let mut said = Vec::new();
        respond(&served.place, &mut &body[..], &mut said).map(|_| said)
    };
    match tokio::task::spawn_blocking(answered).await {
        Ok(Ok(said)) => said.into_response(),
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{Patience, peer::Peer};
    use fermata_store::remote::Remote as _;
    use std::{io::Write as _, net::TcpStream, thread, time::Instant};

    const PATIENCE: Patience = Patience { retries: 0, stalled: Duration::from_millis(500) };

    fn token() -> Token {
        Token("0123456789abcdef".into())
    }

    /// A directory that somebody answers for, until the tests end, and where.
    pub fn listening(directory: &Path) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let directory = directory.to_owned();
        thread::spawn(move || listen(&directory, listener, token(), || {}));
        url
    }

    impl Peer {
        /// One that is answered over HTTP by threads.
        pub fn of_listener(directory: &Path, limit: Option<Limit>) -> Self {
            Self::over_http(&listening(directory), token(), limit, Patience { retries: 0, stalled: Duration::from_secs(20) }).unwrap()
        }
    }

    /// What a server says to whoever sends it these bytes and nothing else.
    fn said_to(url: &str, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.write_all(bytes).unwrap();
        // One who waits for more gets none.
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    #[test]
    fn who_does_not_know_the_token_gets_nothing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), b"what is in it").unwrap();
        let url = listening(directory.path());
        let ask = "{\"get\":{\"name\":\"a\",\"most\":100}}\n";
        for (header, answer) in [
            ("", "401"),
            ("Authorization: Bearer\r\n", "401"),
            ("Authorization: Bearer 0123456789abcdef0\r\n", "401"),
            ("Authorization: Basic 0123456789abcdef\r\n", "401"),
            ("Authorization: Bearer 0123456789abcdef\r\n", "200"),
        ] {
            let post =
                format!("POST /any/path HTTP/1.1\r\nHost: a\r\n{header}Content-Length: {}\r\nConnection: close\r\n\r\n{ask}", ask.len());
            let said = said_to(&url, post.as_bytes());
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}")), "{header}: {said}");
            assert_eq!(said.contains("what is in it"), answer == "200", "{header}: {said}");
        }
        let other = Peer::over_http(&url, Token("another-one-0123".into()), None, PATIENCE).unwrap();
        assert!(other.get("a", 100).unwrap_err().to_string().contains(TOKEN));
    }

    #[test]
    fn nonsense_is_refused_and_the_next_is_answered() {
        let directory = tempfile::tempdir().unwrap();
        let url = listening(directory.path());
        let head = "HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\nConnection: close\r\n";
        for (told, answer) in [
            (format!("DELETE /a {head}\r\n"), "405"),
            (format!("POST / {head}Content-Length: 3\r\n\r\nabc"), "400"),
            (format!("POST / {head}Content-Length: 300\r\n\r\nabc"), ""),
            (format!("POST / {head}Content-Length: 99999999999999\r\n\r\nabc"), ""),
            (format!("POST / {head}Content-Length: 32\r\n\r\n{{\"put\":{{\"name\":\"a\",\"bytes\":99}}}}\nabc"), "400"),
            (format!("POST / {head}Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\nabc"), ""),
            ("\0\0\0\r\n\r\n".to_owned(), "400"),
        ] {
            let said = said_to(&url, told.as_bytes());
            assert!(said.starts_with(&format!("HTTP/1.1 {answer}")) || answer.is_empty(), "{told:?}: {said}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let peer = Peer::over_http(&url, token(), None, PATIENCE).unwrap();
        peer.put("a", b"abc".to_vec()).unwrap();
        assert_eq!(peer.get("a", 10).unwrap().unwrap(), b"abc");
    }

    /// Somebody who answers with the greeting first, then with this, to whoever comes.
    fn answers(with: &'static str) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let greeting = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{GREETING}", GREETING.len());
            for with in [&*greeting, with] {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(with.as_bytes());
                if with.ends_with("...") {
                    thread::sleep(Duration::from_secs(3));
                }
            }
        });
        Peer::over_http(&url, token(), None, PATIENCE).unwrap()
    }

    #[test]
    fn what_does_not_answer_cuts_off_or_lies_is_an_error() {
        for (with, told) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n...", "timed out"),
            ("...", ""),
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"bytes\":3}\nab", "end of file"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"bytes\":3}\nab", "the end is missing"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"bytes\":99999999999999}\n", "are announced"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n\"done\"\n", "was not asked for"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "unexpected end of file"),
            ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
            ("HTTP/1.1 413 Content Too Large\r\nContent-Length: 13\r\n\r\nall too large", "413 Payload Too Large: all too large"),
        ] {
            let error = answers(with).get("a", 2).expect_err(with).to_string();
            assert!(error.contains(told), "{with:?}: {error}");
        }
        let nobody = Peer::over_http("http://127.0.0.1:1/", token(), None, PATIENCE).unwrap();
        assert!(nobody.get("a", 1).unwrap_err().to_string().contains("refused"));
    }

    /// Only what stands still is given up.
    #[test]
    fn what_is_fetched_may_take_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..6 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::fs::write(directory.path().join("a"), &content).unwrap();
        let patience = Patience { retries: 0, stalled: Duration::from_secs(2) };
        let peer = Peer::over_http(&listening(directory.path()), token(), Some(Limit::new(2 << 20)), patience).unwrap();
        let began = Instant::now();
        assert!(peer.get("a", 6 << 20).unwrap().unwrap() == content);
        assert!(began.elapsed() > patience.stalled, "the line is not slow: {:?}", began.elapsed());
    }
}
