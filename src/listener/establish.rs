//! From an accepted socket to HTTP: the first byte, the PROXY header, TLS.
//!
//! Until the first byte has come, a connection has a small task and its row in the table.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, ReadBuf};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connection::DRAIN_GRACE;
use super::proxy_header::{self, MAX_HEADER, ProxyHeaderError};
use super::socket::{ClientSocket, ClientStream, ReadAhead};
use super::{Acceptor, ConnectionSettings, Drain, ListenerProtocol};
use crate::connections::{Activity, OpenConnection};

/// How long the PROXY header and the TLS handshake may take together.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that are read before it is known what a connection begins with.
const FIRST: usize = 1024;

/// A connection that is in the table and not served yet.
pub(super) struct Accepted {
    /// The address of its other end, or of the client that a PROXY header names.
    pub(super) peer: IpAddr,
    /// Its number, which no other connection has.
    pub(super) number: u64,
    pub(super) settings: Arc<ConnectionSettings>,
    pub(super) protocol: Arc<ListenerProtocol>,
    pub(super) drain: Drain,
    pub(super) open: OpenConnection,
}

impl Accepted {
    /// Waits until the listener has closed, and a little longer: what is on its way then
    /// is still served.
    pub(super) async fn drained(&mut self) {
        // The listener never reopens, and nothing else ends it.
        let _ = self.drain.wait_for(|drain| *drain).await;
        sleep(DRAIN_GRACE).await;
    }

    /// The first bytes of a stream; `None` where it ends without any, or nothing comes in
    /// time.
    async fn first_bytes<S: ClientStream>(&mut self, stream: &mut S) -> Option<BytesMut> {
        let read = poll_fn(|cx| {
            let mut bytes = [0; FIRST];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer));
            Poll::Ready(read.map(|()| BytesMut::from(buffer.filled())))
        });
        let read = timeout(self.settings.settings.times.idle_timeout, read);
        let read = tokio::select! {
            biased;
            read = read => read.ok()?.ok()?,
            () = self.drained() => return None,
        };
        if read.is_empty() {
            return None;
        }
        self.open.activity().read();
        Some(read)
    }
}

impl Acceptor {
    /// Serves a connection to its end, or until it must make room for others.
    pub(super) async fn serve(&self, socket: ClientSocket, accepted: Accepted) {
        match socket {
            ClientSocket::Tcp(stream) => {
                // Without TCP_NODELAY, small answers wait for the client's delayed
                // ACK. A socket that refuses the option is about to fail anyway.
                let _ = stream.set_nodelay(true);
                self.establish(stream, accepted).await;
            }
            ClientSocket::Unix(stream) => self.establish(stream, accepted).await,
        }
    }

    async fn establish<S: ClientStream>(&self, mut stream: S, mut accepted: Accepted) {
        let activity = accepted.open.activity().clone();
        let served = async {
            let Some(early) = accepted.first_bytes(&mut stream).await else {
                return;
            };
            // In memory of its own: many connections never come here.
            Box::pin(self.begin(stream, early, accepted)).await;
        };
        until_closed(&activity, served).await;
    }

    async fn begin<S: ClientStream>(&self, mut stream: S, early: BytesMut, mut accepted: Accepted) {
        let deadline = Instant::now() + TIMEOUT;
        let early = if accepted.protocol.proxy_header {
            let read = self.read_client(&mut stream, early, &mut accepted, deadline);
            let Some(early) = read.await else {
                return;
            };
            early
        } else {
            early
        };
        // After a PROXY header, another row of the table is the connection's.
        let activity = accepted.open.activity().clone();
        let tls = accepted.protocol.tls.clone();
        until_closed(&activity, async {
            match tls {
                None => self.serve_http(stream, early, accepted, None).await,
                Some(tls) => {
                    let transport = ReadAhead::new(early.freeze(), Box::new(stream) as _);
                    self.serve_tls(transport, tls, accepted, deadline).await;
                }
            }
        })
        .await;
    }

    /// Reads the PROXY header, and enters the connection in the table for the client that it
    /// names. Returns the bytes after it; `None` if the connection must be closed. There is
    /// no protocol in which to say why.
    async fn read_client<S: ClientStream>(
        &self,
        stream: &mut S,
        early: BytesMut,
        accepted: &mut Accepted,
        deadline: Instant,
    ) -> Option<BytesMut> {
        let read = timeout_at(deadline, read_proxy_header(stream, early)).await;
        let (client, rest) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(why)) => {
                self.totals.proxy_header_refused.fetch_add(1, Relaxed);
                tracing::debug!(peer = %accepted.peer, "{why}: the connection is closed");
                return None;
            }
            Err(_elapsed) => {
                self.totals.proxy_header_refused.fetch_add(1, Relaxed);
                return None;
            }
        };
        if let Some(client) = client {
            accepted.peer = client;
            accepted.open = self.open(client, accepted.number, &accepted.settings)?;
            accepted.open.activity().read();
        }
        Some(rest)
    }
}

/// Runs a future until it ends, or the connection must be closed.
async fn until_closed(activity: &Activity, served: impl Future<Output = ()>) {
    let mut served = pin!(served);
    let mut is_known = false;
    poll_fn(|cx| {
        if activity.is_closed() {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut is_known, true) {
            activity.set_task(cx.waker());
        }
        served.as_mut().poll(cx)
    })
    .await;
}

/// Reads a PROXY header: the client that it reports, and the bytes after it.
async fn read_proxy_header<S: ClientStream>(
    stream: &mut S,
    mut bytes: BytesMut,
) -> Result<(Option<IpAddr>, BytesMut), ProxyHeaderError> {
    loop {
        if let Some(header) = proxy_header::parse(&bytes)? {
            let rest = bytes.split_off(header.length);
            return Ok((header.client, rest));
        }
        bytes.reserve(MAX_HEADER);
        match stream.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Err(ProxyHeaderError::Malformed),
            Ok(_) => {}
        }
    }
}
