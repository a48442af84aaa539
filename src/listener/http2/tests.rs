//! Silent clients: hyper's PINGs, with a clock that jumps while all tasks wait.

use std::future::ready;

use http_body_util::Full;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;

/// A connection, and hyper that serves it.
async fn connect() -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
    let (mut client, server) = duplex(64 * 1024);
    let response = || Response::new(Full::<Bytes>::default());
    let service = service_fn(move |_| ready(Ok::<_, std::convert::Infallible>(response())));
    let connection =
        builder(16 * 1024, CONNECTION_WINDOW).serve_connection(TokioIo::new(server), service);
    let preface = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0, 0, 0, 4, 0, 0, 0, 0, 0][..],
    ];
    client.write_all(&preface.concat()).await.unwrap();
    (client, tokio::spawn(connection))
}

/// Reads up to a PING that is not an acknowledgement; its payload.
async fn ping(client: &mut DuplexStream) -> Vec<u8> {
    const PING: u8 = 6;
    loop {
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        client.read_exact(&mut payload).await.unwrap();
        if (head[3], head[4]) == (PING, 0) {
            return payload;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_given_up() {
    let began = Instant::now();
    let (mut client, served) = connect().await;
    ping(&mut client).await;
    assert_eq!(began.elapsed().as_secs(), KEEP_ALIVE_INTERVAL.as_secs());
    let result = served.await.unwrap();
    assert!(result.is_err(), "{result:?}");
    let given_up = KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT;
    assert_eq!(began.elapsed().as_secs(), given_up.as_secs());
}
