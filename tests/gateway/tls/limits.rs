//! What one client may take of handshakes, with an honest client beside it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{handshakes, https, started};
use crate::support::https::{Certificates, HttpsClient};
use crate::support::{Setup, TOKEN, Upstream, until, within};

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
    assert_eq!(
        handshakes(&gateway, "none", "too-slow").await,
        SILENT as u64
    );
}

/// As after a restart: far more than the slots. None is refused.
#[tokio::test]
async fn handshakes_beyond_the_slots_wait() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "[limit]\nenabled = false\n");
    let address = https(&gateway);
    let client = certificates.client();
    let slots = 64 * gateway.figure("/workers");
    let hello = hello(&client);
    // So many hold all slots without finishing, and the next one waits for one of them.
    let mut held = Vec::new();
    for _ in 0..slots {
        let mut stream = client.dial(address).await;
        stream.write_all(&hello).await.unwrap();
        let first = within("the ServerHello", stream.read_u8()).await;
        first.unwrap();
        held.push(stream);
    }
    let waits = client.get(address, "localhost", TOKEN);
    let gives_up = async {
        // On a machine that is slow, the first may be over already.
        until("it has come", || gateway.connections() != slots).await;
        drop(held);
    };
    let (seen, ()) = tokio::join!(waits, gives_up);
    assert!(seen.unwrap().text.starts_with("HTTP/1.1 200"));
    assert_eq!(handshakes(&gateway, "none", "over-limit").await, 0);
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

/// A client that begins handshakes and does not finish them.
#[tokio::test]
async fn one_client_holds_an_eighth_of_the_slots() {
    let upstream = Upstream::start();
    let more = "[limit]\ntls_handshakes_per_second = 1000\n";
    let (certificates, gateway) = started(&upstream, more);
    let hostile = certificates.client().from(HOSTILE);
    let mut held = Vec::new();
    for _ in 0..40 {
        // With the ClientHello alone.
        let mut stream = hostile.dial(https(&gateway)).await;
        stream.write_all(&hello(&hostile)).await.unwrap();
        let mut first = [0; 1];
        // The ServerHello, or the end.
        if matches!(within("an answer", stream.read(&mut first)).await, Ok(1..)) {
            held.push(stream);
        }
    }
    assert_eq!(held.len(), 8);
    assert_eq!(handshakes(&gateway, "none", "over-client-limit").await, 32);
    let honest = certificates.client().from(HONEST);
    for _ in 0..20 {
        let seen = honest.get(https(&gateway), "localhost", TOKEN).await;
        assert!(seen.unwrap().text.starts_with("HTTP/1.1 200"));
    }
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
    let refused = handshakes(&gateway, "none", "over-client-limit").await;
    assert_eq!(refused, 20 + 7 + 20);
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
