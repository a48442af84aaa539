//! Upstreams that speak HTTP/2: [`Frames`] is written frame by frame, for what a
//! polite server does not do; [`Polite`] is the `h2` crate's server, which reads
//! requests and keeps to flow control.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::frames::frame;
use super::within;

/// A request to [`Frames`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// On which connection, from 0 on.
    pub(crate) connection: usize,
    /// Which one there, from 0 on.
    pub(crate) number: usize,
    /// Its stream.
    pub(crate) stream: u32,
}

/// What [`Frames`] does about a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers 200.
    Answer,
    /// Begins to answer, and says no more.
    Begin,
    /// Sends part of an answer; more of the body follows, of this length if
    /// there is one.
    Part(Option<u8>),
    /// RST_STREAM with this code.
    Reset(u32),
    /// GOAWAY with this last stream and code.
    Goaway(u32, u32),
    /// Closes its side of the connection, and reads until the other is closed.
    Close,
    /// Resets the connection.
    Abort,
    /// Says nothing more on the connection, and reads nothing more.
    FallSilent,
}

/// Error codes (RFC 9113 §7).
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// The body of its answers.
pub(crate) const BODY: &str = "{}";

type Script = dyn Fn(Asked) -> Vec<Act> + Send + Sync;

/// A server that is written frame by frame; it stops when it is dropped.
pub(crate) struct Frames {
    server: Server,
    asked: Arc<watch::Sender<Vec<Asked>>>,
}

impl Frames {
    /// One that says no more streams than these may be open at once.
    pub(crate) fn start(
        most_streams: Option<u32>,
        script: impl Fn(Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, most_streams, script)
    }

    /// The same over TLS.
    pub(crate) fn start_with(
        tls: Option<TlsAcceptor>,
        most_streams: Option<u32>,
        script: impl Fn(Asked) -> Vec<Act> + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::new(watch::Sender::new(Vec::new()));
        let (seen, script) = (asked.clone(), Arc::new(script));
        let server = Server::start(move |stream, connection| {
            let (seen, script, tls) = (seen.clone(), script.clone(), tls.clone());
            async move {
                match tls {
                    None => {
                        converse(stream, abort, connection, most_streams, &*script, &seen).await
                    }
                    Some(tls) => {
                        let stream = tls.accept(stream).await?;
                        let abort = |stream: &tokio_rustls::server::TlsStream<TcpStream>| {
                            abort(stream.get_ref().0)
                        };
                        converse(stream, abort, connection, most_streams, &*script, &seen).await
                    }
                }
            }
        });
        Self { server, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    pub(crate) fn https(&self) -> String {
        format!("https://localhost:{}", self.server.address.port())
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// The number of connections with requests.
    pub(crate) fn connections(&self) -> usize {
        let last = self.seen().iter().map(|asked| asked.connection).max();
        last.map_or(0, |last| last + 1)
    }

    /// Waits for this many requests.
    pub(crate) async fn until_requests(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let enough = asked.wait_for(|asked| asked.len() >= times);
        let what = format!("{times} are asked");
        assert!(within(&what, enough).await.is_ok(), "{what}");
    }
}

fn abort(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The head of an answer: `:status: 200` from the static table (RFC 7541
/// appendix A), and a literal content-type.
fn head(stream: u32) -> Vec<u8> {
    let json = b"application/json";
    let mut block = vec![0x88, 0x0f, 0x10, u8::try_from(json.len()).unwrap()];
    block.extend(json);
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The beginning of an answer that may be stored; its length has one digit, if it
/// is said.
fn part(stream: u32, length: Option<u8>) -> Vec<u8> {
    let fresh = b"max-age=60";
    let mut block = vec![0x88, 0x0f, 0x09, u8::try_from(fresh.len()).unwrap()];
    block.extend(fresh);
    block.extend(
        length
            .iter()
            .flat_map(|length| [0x0f, 0x0d, 1, b'0' + length]),
    );
    let head = frame(HEADERS, END_HEADERS, stream, &block);
    [head, frame(DATA, 0, stream, BODY.as_bytes())].concat()
}

fn answer(stream: u32) -> Vec<u8> {
    let body = frame(DATA, END_STREAM, stream, BODY.as_bytes());
    [head(stream), body].concat()
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut wire: S,
    abort: impl Fn(&S) -> io::Result<()>,
    connection: usize,
    most_streams: Option<u32>,
    script: &Script,
    seen: &watch::Sender<Vec<Asked>>,
) -> io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    wire.read_exact(&mut preface).await?;
    assert_eq!(preface, PREFACE);
    let mut settings = Vec::new();
    if let Some(most) = most_streams {
        settings.extend(MAX_CONCURRENT_STREAMS.to_be_bytes());
        settings.extend(most.to_be_bytes());
    }
    wire.write_all(&frame(SETTINGS, 0, 0, &settings)).await?;
    let mut number = 0;
    loop {
        let mut start = [0; 9];
        wire.read_exact(&mut start).await?;
        let length = u32::from_be_bytes([0, start[0], start[1], start[2]]);
        let (kind, flags) = (start[3], start[4]);
        let stream = u32::from_be_bytes([start[5], start[6], start[7], start[8]]);
        let mut payload = vec![0; length as usize];
        wire.read_exact(&mut payload).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                wire.write_all(&frame(SETTINGS, ACK, 0, &[])).await?;
            }
            PING if flags & ACK == 0 => wire.write_all(&frame(PING, ACK, 0, &payload)).await?,
            HEADERS => {
                let asked = Asked {
                    connection,
                    number,
                    stream,
                };
                number += 1;
                let acts = script(asked);
                seen.send_modify(|all| all.push(asked));
                for act in acts {
                    let bytes = match act {
                        Act::Answer => answer(stream),
                        Act::Begin => head(stream),
                        Act::Part(length) => part(stream, length),
                        Act::Reset(code) => frame(RST_STREAM, 0, stream, &code.to_be_bytes()),
                        Act::Goaway(last, code) => {
                            let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
                            frame(GOAWAY, 0, 0, &payload)
                        }
                        Act::Close => {
                            wire.shutdown().await?;
                            tokio::io::copy(&mut wire, &mut tokio::io::sink()).await?;
                            return Ok(());
                        }
                        Act::Abort => return abort(&wire),
                        Act::FallSilent => return std::future::pending().await,
                    };
                    wire.write_all(&bytes).await?;
                }
            }
            _ => {}
        }
    }
}

/// A request to [`Polite`].
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) head: http::request::Parts,
    pub(crate) body: RecvStream,
    pub(crate) respond: SendResponse<Bytes>,
}

impl Request {
    /// Answers 200 with this body, as fast as it is taken.
    pub(crate) async fn answer(mut self, body: Bytes) {
        let head = http::Response::builder().header("content-type", "application/json");
        let head = head.header("cache-control", "no-store");
        let Ok(mut sending) = self.respond.send_response(head.body(()).unwrap(), false) else {
            return;
        };
        let mut left = body;
        while !left.is_empty() {
            sending.reserve_capacity(left.len());
            let capacity = std::future::poll_fn(|cx| sending.poll_capacity(cx)).await;
            // A client that has gone takes no more.
            let Some(Ok(capacity)) = capacity else {
                return;
            };
            let piece = left.split_to(capacity.min(left.len()));
            if sending.send_data(piece, false).is_err() {
                return;
            }
        }
        let _gone = sending.send_data(Bytes::new(), true);
    }
}

/// The `h2` crate's server; it stops when it is dropped.
pub(crate) struct Polite {
    server: Server,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<(usize, String)>>>,
}

impl Polite {
    /// One that answers each request so.
    pub(crate) fn start<F>(answer: impl Fn(Request) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let answer = Arc::new(answer);
        let connections = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (count, paths) = (connections.clone(), seen.clone());
        let server = Server::start(move |stream, connection| {
            let (answer, count, paths) = (answer.clone(), count.clone(), paths.clone());
            async move {
                count.fetch_add(1, SeqCst);
                let mut serving = h2::server::handshake(stream)
                    .await
                    .map_err(io::Error::other)?;
                while let Some(accepted) = serving.accept().await {
                    let (request, respond) = accepted.map_err(io::Error::other)?;
                    let (head, body) = request.into_parts();
                    let path = head.uri.path().to_owned();
                    paths.lock().unwrap().push((connection, path.clone()));
                    tokio::spawn(answer(Request {
                        path,
                        head,
                        body,
                        respond,
                    }));
                }
                Ok(())
            }
        });
        Self {
            server,
            connections,
            seen,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.server.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// A request, and the number of its connection.
    pub(crate) fn seen(&self) -> Vec<(usize, String)> {
        self.seen.lock().unwrap().clone()
    }
}

/// Accepts connections, on a thread of its own.
struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start<F>(serve: impl Fn(TcpStream, usize) -> F + Send + 'static) -> Self
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(socket).unwrap();
                let accepting = tokio::spawn(async move {
                    for connection in 0.. {
                        let (stream, _) = listener.accept().await.unwrap();
                        stream.set_nodelay(true).unwrap();
                        tokio::spawn(serve(stream, connection));
                    }
                });
                let _ = stopped.await;
                accepting.abort();
            });
        });
        Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let joined = thread.join();
            assert!(
                joined.is_ok() || std::thread::panicking(),
                "it has panicked"
            );
        }
    }
}
