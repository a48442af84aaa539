//! HTTP/2: floods of frames, windows that are never opened, and header blocks that
//! never end. Each ends its own connection.

mod floods;
mod streamed;

use std::time::Duration;

use ordgate::clock::Clock;

use crate::support::frames::{
    END_STREAM, FrameClient, HEADERS, PING, WINDOW_UPDATE, block, frame, get, request,
};
use crate::support::{Gateway, Reply, TOKEN, Upstream, respect, until, within};

/// Streams 1, 3, 5 and so on.
fn stream(nth: u32) -> u32 {
    nth * 2 + 1
}

/// Where the hostile client comes from, and the honest one.
const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

/// SETTINGS_INITIAL_WINDOW_SIZE
const WINDOW: u16 = 4;

#[tokio::test]
async fn a_window_that_is_not_opened_ends_the_connection_whatever_else_comes() {
    let upstream = Upstream::start();
    upstream.always(Reply::json(format!("\"{}\"", "x".repeat(20_000))));
    let gateway = Gateway::with(&upstream, "server.write_timeout = \"400ms\"");
    let clock = Clock::machine();
    // A window of no bytes, and one of a byte that is renewed now and then.
    for renewed in [false, true] {
        let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[(WINDOW, 0)]).await;
        client.send(&request(1, TOKEN, &[])).await;
        client.next_of(HEADERS).await.unwrap();
        let began = clock.now();
        let pinging = async {
            loop {
                let mut bytes = frame(PING, 0, 0, &[3; 8]);
                if renewed {
                    bytes.extend(frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]));
                }
                if !client.try_send(&bytes).await || gateway.connections() == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("it is closed", pinging).await;
        assert!(
            clock.now().since(began) >= Duration::from_millis(300),
            "{:?}",
            clock.now().since(began)
        );
        until("it is gone", || gateway.connections() == 0).await;
    }
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["connections"]["reset_slow"], 2, "{status}");
    assert_eq!(status["unsent"]["bytes"], 0, "{status}");
}

#[tokio::test]
async fn a_header_block_must_be_whole_in_time() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.header_timeout = \"100ms\"");
    let part = block(&get(TOKEN));
    let rows = [
        ("nothing but the first line", b"PRI * HTTP/2.0\r\n".to_vec()),
        ("no SETTINGS", crate::support::frames::PREFACE.to_vec()),
    ];
    for (name, bytes) in rows {
        let mut client = FrameClient::silent(HOSTILE, gateway.public).await;
        client.send(&bytes).await;
        client.end().await;
        until(name, || gateway.connections() == 0).await;
    }
    let rows = [
        ("a part of a head", vec![0, 0, 5]),
        (
            "a part of HEADERS",
            frame(HEADERS, 5, 1, &part)[..20].to_vec(),
        ),
        ("no CONTINUATION", frame(HEADERS, END_STREAM, 1, &part)),
    ];
    for (name, bytes) in rows {
        let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
        client.send(&bytes).await;
        client.end().await;
        until(name, || gateway.connections() == 0).await;
    }
}

/// What the streams of one connection hold counts for its client, and in total.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_are_not_read_count_by_stream() {
    const MIB: usize = 1 << 20;
    let upstream = Upstream::start();
    upstream.always(Reply::with(
        200,
        "cache-control: max-age=600\r\n",
        vec![b'x'; MIB],
    ));
    let gateway = respect::plain(&upstream)
        .config("limit.unsent_bytes = \"8MiB\"\ncache.max_bytes = \"64MiB\"")
        .start();
    let held = async |gateway: &Gateway| {
        let status = gateway.admin("/status").await.json();
        let reset = status["connections"]["reset_unsent"].as_u64().unwrap();
        (
            status["unsent"]["bytes"].as_u64().unwrap() as usize / MIB,
            reset,
        )
    };
    for nth in 0..12 {
        assert_eq!(gateway.get(&format!("/{nth}")).await.status, 200);
    }
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[(WINDOW, 0)]).await;
    // The same response on several streams counts once.
    for nth in 0..12 {
        client.send(&request(stream(nth), "/0", &[])).await;
        client.next_of(HEADERS).await.unwrap();
    }
    until_held(&gateway, &held, (1, 0)).await;
    for nth in 1..7 {
        client
            .send(&request(stream(20 + nth), &format!("/{nth}"), &[]))
            .await;
        client.next_of(HEADERS).await.unwrap();
    }
    until_held(&gateway, &held, (7, 0)).await;
    for nth in 7..12 {
        client
            .send(&request(stream(40 + nth), &format!("/{nth}"), &[]))
            .await;
    }
    client.end().await;
    until_held(&gateway, &held, (0, 1)).await;
    assert_eq!(gateway.get("/1").await.body.len(), MIB);
}

async fn until_held(
    gateway: &Gateway,
    held: &impl AsyncFn(&Gateway) -> (usize, u64),
    expected: (usize, u64),
) {
    let wait = async {
        while held(gateway).await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(&format!("{expected:?}"), wait).await;
}
