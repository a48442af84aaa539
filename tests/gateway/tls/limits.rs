//! What one client may take of handshakes, with an honest client beside it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{handshakes, https, started, until_handshakes};
use crate::support::https::{Certificates, HttpsClient};
use crate::support::{Setup, TOKEN, Upstream, within};

const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

/// Most connect and send nothing; some send a part of a ClientHello.
#[tokio::test]
async fn silent_connections_hold_no_slot() {
    const SILENT: usize = 2_000;
    let upstream = Upstream::start();
    let more = "[limit]\nconnections = 4000\ntls_handshakes_per_second = 1000\n";
    let (certificates, gateway) = started(&upstream, more);
    let honest = certificates.client().from(HONEST);
    let hostile = certificates.client().from(HOSTILE);
    let mut silent = Vec::new();
    for n in 0..SILENT {
        let mut stream = hostile.dial(https(&gateway)).await;
        if n % 4 == 0 {
            stream.write_all(b"\x16\x03\x01\x02\x00\x01").await.unwrap();
        }
        silent.push(stream);
    }
    for _ in 0..50 {
        let seen = honest.get(https(&gateway), "localhost", TOKEN).await;
        assert!(seen.unwrap().text.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(handshakes(&gateway, "none", "over-limit").await, 0);
    // Each is closed five seconds after it was accepted.
    for mut stream in silent {
        let ended = within("the deadline", stream.read(&mut [0; 16])).await;
        assert!(matches!(ended, Ok(0) | Err(_)));
    }
    until_handshakes(&gateway, "too-slow", SILENT as u64).await;
}

/// A ClientHello.
fn hello(client: &HttpsClient) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let config = client.config.clone().into();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// A regression: clients that began handshakes and did not finish them held all slots, so
/// nobody else's handshake began.
#[tokio::test]
async fn unfinished_handshakes_hold_no_slot() {
    const CLIENTS: u8 = 8;
    const EACH: usize = 16;
    let upstream = Upstream::start();
    let more = "[limit]\nconnections = 16\ntls_handshakes_per_second = 1000\n";
    let (certificates, gateway) = started(&upstream, more);
    let address = https(&gateway);
    let client = certificates.client();
    let hello = hello(&client);
    let mut held = Vec::new();
    for _ in 0..EACH {
        for number in 0..CLIENTS {
            let mut stream = client.from([127, 0, 1, number]).dial(address).await;
            stream.write_all(&hello).await.unwrap();
            let first = within("the ServerHello", stream.read_u8()).await;
            first.expect("each handshake begins");
            held.push(stream);
        }
    }
    let honest = certificates.client().from(HONEST);
    let seen = honest.get(address, "localhost", TOKEN).await;
    assert!(seen.unwrap().text.starts_with("HTTP/1.1 200"));
    for limit in ["over-limit", "over-client-limit"] {
        assert_eq!(handshakes(&gateway, "none", limit).await, 0, "{limit}");
    }
}

/// What bounds the handshakes that one client leaves unfinished.
#[tokio::test]
async fn unfinished_handshakes_count_as_connections() {
    const MOST: usize = 4;
    let upstream = Upstream::start();
    let more = "[limit]\nconnections = 4\ntls_handshakes_per_second = 1000\n";
    let (certificates, gateway) = started(&upstream, more);
    let hostile = certificates.client().from(HOSTILE);
    let hello = hello(&hostile);
    let mut begun = Vec::new();
    for _ in 0..MOST + 1 {
        let mut stream = hostile.dial(https(&gateway)).await;
        // The one over the limit may be closed already.
        let _ = stream.write_all(&hello).await;
        let first = within("the ServerHello, or the end", stream.read_u8()).await;
        begun.push((first.is_ok(), stream));
    }
    let begun: Vec<_> = begun.iter().map(|(is_begun, _)| *is_begun).collect();
    assert_eq!(begun, [true, true, true, true, false]);
    assert_eq!(gateway.figure("/connections/turned_away_client"), 1);
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

#[tokio::test]
async fn connections_over_the_limit_are_closed_without_an_answer() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "[limit]\nconnections = 1\n");
    let client = certificates.client().from(HOSTILE);
    let held = client.connect(https(&gateway), "localhost").await.unwrap();
    let mut second = client.dial(https(&gateway)).await;
    let mut bytes = Vec::new();
    let read = within("the end", second.read_to_end(&mut bytes)).await;
    assert!(read.is_err() || bytes.is_empty(), "{bytes:?}");
    assert_eq!(gateway.figure("/connections/turned_away_client"), 1);
    drop(held);
}
