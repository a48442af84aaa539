//! What one client may take of handshakes, with an honest client beside it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{https, started, until_handshakes};
use crate::support::https::{Certificates, HttpsClient};
use crate::support::transport::dial;
use crate::support::{Setup, TOKEN, Upstream, within};

const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

/// A ClientHello.
fn hello(client: &HttpsClient) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let config = client.config.clone().into();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// What bounds the handshakes that one client leaves unfinished: its connections.
#[tokio::test]
async fn an_unfinished_handshake_makes_room_for_the_next() {
    let upstream = Upstream::start();
    let more = "[limit]\nconnections = 4\ntls_handshakes_per_second = 1000\n";
    let (certificates, gateway) = started(&upstream, more);
    let hostile = certificates.client().from(HOSTILE);
    let hello = hello(&hostile);
    let mut begun = Vec::new();
    for _ in 0..5 {
        let stream = dial(hostile.from, https(&gateway)).await;
        let mut stream = stream.unwrap();
        stream.write_all(&hello).await.unwrap();
        within("the ServerHello", stream.read_u8()).await.unwrap();
        begun.push(stream);
    }
    let mut rest = Vec::new();
    let _ = within("the first is closed", begun[0].read_to_end(&mut rest)).await;
    assert_eq!(gateway.figure("/connections/closed_for_others"), 1);
}

#[tokio::test]
async fn a_client_over_its_handshakes_per_second_is_closed_and_others_are_not() {
    let upstream = Upstream::start();
    let certificates = Certificates::new();
    certificates.sign("localhost");
    let config = certificates.listener(&["localhost"], "");
    let setup = Setup::before(&upstream).config(&config).manual();
    let gateway = setup.start();
    let served = async |from, count| {
        let client = certificates.client().from(from);
        let mut served = 0;
        for _ in 0..count {
            let seen = client.get(https(&gateway), "localhost", TOKEN).await;
            served += u64::from(seen.is_ok());
        }
        served
    };
    assert_eq!(served(HOSTILE, 30).await, 10);
    assert_eq!(served(HONEST, 10).await, 10);
    gateway.advance(300);
    assert_eq!(served(HOSTILE, 10).await, 3);
    gateway.advance(60_000);
    assert_eq!(served(HOSTILE, 30).await, 10, "a second's worth at once");
    until_handshakes(&gateway, "over-client-limit", 20 + 7 + 20).await;
    // A trusted proxy has no limits of a client.
    let trust = "[clients]\ntrusted_proxies = [\"127.0.0.66\"]\n";
    assert_eq!(gateway.reload(trust).await.status, 200);
    assert_eq!(served(HOSTILE, 30).await, 30);
}
