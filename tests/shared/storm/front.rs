//! What stands between a replica and the engine: it passes everything on, to whichever
//! server is the primary, or holds it back, or cuts it off.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    /// To the server on this port.
    To(u16),
    /// Nothing passes until this changes: then all of it.
    Held(u16),
    /// Connections end.
    Cut(u16),
}

impl Passage {
    const fn port(self) -> u16 {
        match self {
            Self::To(port) | Self::Held(port) | Self::Cut(port) => port,
        }
    }
}

pub(super) struct Front {
    pub(super) address: SocketAddr,
    passage: Arc<watch::Sender<Passage>>,
}

impl Front {
    pub(super) async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let passage = Arc::new(watch::Sender::new(Passage::To(port)));
        let own = passage.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, own.subscribe()));
            }
        });
        Self { address, passage }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(super) fn open(&self) {
        self.passage.send_modify(|it| *it = Passage::To(it.port()));
    }

    pub(super) fn hold(&self) {
        self.passage
            .send_modify(|it| *it = Passage::Held(it.port()));
    }

    pub(super) fn cut(&self) {
        self.passage.send_modify(|it| *it = Passage::Cut(it.port()));
    }

    /// Another server is the primary: connections to the one before end.
    pub(super) fn lead_to(&self, port: u16) {
        self.passage.send_replace(Passage::To(port));
    }
}

/// Passes on what one connection sends, until an end of it closes.
async fn pass(client: TcpStream, mut passage: watch::Receiver<Passage>) {
    let is_open = |passage: &Passage| !matches!(passage, Passage::Held(_));
    let Ok(passage_now) = passage.wait_for(is_open).await.map(|passage| *passage) else {
        return;
    };
    let Passage::To(port) = passage_now else {
        return;
    };
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let ends = passage.clone();
    tokio::select! {
        () = pump(from_client, to_server, passage.clone()) => {}
        () = pump(from_server, to_client, passage) => {}
        () = cut(ends, port) => {}
    }
}

/// Waits until the connection to this port is to end.
async fn cut(mut passage: watch::Receiver<Passage>, port: u16) {
    let is_cut = |passage: &Passage| matches!(passage, Passage::Cut(_)) || passage.port() != port;
    let _cut = passage.wait_for(is_cut).await;
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut passage: watch::Receiver<Passage>,
) {
    let mut room = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut room).await {
        let is_open = |passage: &Passage| !matches!(passage, Passage::Held(_));
        let is_passed = passage.wait_for(is_open).await.is_ok();
        if !is_passed || to.write_all(&room[..length]).await.is_err() {
            return;
        }
    }
}
