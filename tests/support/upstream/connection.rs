//! A connection to the upstream: requests are read, and answered as the script
//! defines.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::reply::{Reply, Step};
use super::{Seen, Shared};

/// A stream that can be reset.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn tcp(&self) -> &TcpStream;
}

impl Wire for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Wire for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

pub(super) async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let connection = shared.connections.fetch_add(1, SeqCst);
        let (shared, tls) = (shared.clone(), tls.clone());
        tokio::spawn(async move {
            stream.set_nodelay(true).unwrap();
            let mut closing = shared.closing.subscribe();
            let conversation = async {
                match tls {
                    None => converse(stream, connection, &shared).await,
                    Some(tls) => converse(tls.accept(stream).await?, connection, &shared).await,
                }
            };
            tokio::select! {
                // A client that goes away, or that does not trust us, is what some
                // tests are about.
                _ = conversation => {}
                _ = closing.changed() => {}
            }
        });
    }
}

async fn converse(mut stream: impl Wire, connection: usize, shared: &Shared) -> io::Result<()> {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut held).await? == 0 {
                return Ok(());
            }
        };
        let raw = held.drain(..end).collect();
        let seen = Seen {
            raw,
            body: Vec::new(),
            length: 0,
            whole: false,
            at: shared.clock.now(),
            connection,
        };
        let reply = choose(shared, &seen);
        let (length, chunked) = framing(&seen);
        let mut place = 0;
        shared.seen.send_modify(|all| {
            place = all.len();
            all.push(seen);
        });
        if chunked {
            while let size @ 1.. = chunk_size(&mut stream, &mut held).await? {
                take(&mut stream, &mut held, size, shared, place).await?;
                line(&mut stream, &mut held).await?;
            }
            // Trailers, and the end.
            while !line(&mut stream, &mut held).await?.is_empty() {}
        } else {
            take(&mut stream, &mut held, length, shared, place).await?;
        }
        shared.seen.send_modify(|all| all[place].whole = true);
        for step in reply.0 {
            match step {
                Step::Wait(gate) => gate.passed().await,
                Step::Send(bytes) => stream.write_all(&bytes).await?,
                Step::Drip(bytes, every) => {
                    let mut tick = tokio::time::interval(every);
                    for byte in bytes {
                        tick.tick().await;
                        stream.write_all(&[byte]).await?;
                    }
                }
                Step::Endless(bytes) => loop {
                    stream.write_all(&bytes).await?;
                },
                Step::Close => return stream.shutdown().await,
                Step::Reset => return SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO)),
                Step::Hang => {
                    while stream.read_buf(&mut held).await? > 0 {}
                    return Ok(());
                }
            }
        }
        stream.flush().await?;
    }
}

/// How long a request's body is, and whether it comes in chunks.
fn framing(seen: &Seen) -> (u64, bool) {
    let length = seen.field("content-length");
    let chunked = seen.field("transfer-encoding").is_some();
    (length.and_then(|n| n.parse().ok()).unwrap_or(0), chunked)
}

/// The most of a body that is kept.
const MOST_KEPT: usize = 1 << 16;

/// Reads so much of a body.
async fn take(
    stream: &mut impl Wire,
    held: &mut Vec<u8>,
    mut left: u64,
    shared: &Shared,
    place: usize,
) -> io::Result<()> {
    while left > 0 {
        if held.is_empty() {
            more(stream, held).await?;
        }
        let have = held.len().min(usize::try_from(left).unwrap());
        let piece: Vec<u8> = held.drain(..have).collect();
        left -= have as u64;
        shared.seen.send_modify(|all| {
            let seen = &mut all[place];
            let room = MOST_KEPT - seen.body.len();
            seen.body.extend_from_slice(&piece[..have.min(room)]);
            seen.length += have as u64;
        });
    }
    Ok(())
}

async fn more(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<()> {
    match stream.read_buf(held).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

async fn line(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<String> {
    loop {
        if let Some(end) = held.windows(2).position(|two| two == b"\r\n") {
            let line: Vec<u8> = held.drain(..end + 2).collect();
            return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        more(stream, held).await?;
    }
}

async fn chunk_size(stream: &mut impl Wire, held: &mut Vec<u8>) -> io::Result<u64> {
    let line = line(stream, held).await?;
    u64::from_str_radix(&line, 16).map_err(io::Error::other)
}

fn choose(shared: &Shared, seen: &Seen) -> Reply {
    let mut next = shared.next.lock().unwrap();
    let target = seen.target();
    let found = next.iter().position(|(wanted, _)| *wanted == target);
    match found.and_then(|at| next.remove(at)) {
        Some((_, reply)) => reply,
        None => (shared.usual.lock().unwrap())(seen),
    }
}
