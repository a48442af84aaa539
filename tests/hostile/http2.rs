//! HTTP/2: floods of frames, windows that are never opened, and header blocks that
//! never end. Each ends its own connection.

use std::time::Duration;

use ordgate::clock::Clock;

use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, PADDED, PING,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get, request,
};
use crate::support::{Client, Gateway, Reply, TOKEN, Upstream, respect, until, within};

/// Where the hostile client comes from, and the honest one.
const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];
const ENHANCE_YOUR_CALM: u32 = 11;

/// The frames of a flood, by their number.
type Flood = fn(u32) -> Vec<u8>;

/// Streams 1, 3, 5 and so on.
fn stream(nth: u32) -> u32 {
    nth * 2 + 1
}

/// A request that waits for its body.
fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&get("/upload")))
}

/// A flood, what `/status` calls it, and its frames.
const FLOODS: [(&str, &str, Flood); 12] = [
    ("rapid reset (CVE-2023-44487)", "resets", |nth| {
        let reset = frame(RST_STREAM, 0, stream(nth), &[0, 0, 0, 8]);
        [request(stream(nth), TOKEN, &[]), reset].concat()
    }),
    ("resets that are provoked (CVE-2025-8671)", "other", |nth| {
        let malformed = [("content-length", "4")];
        request(stream(nth), TOKEN, &malformed)
    }),
    ("pings (CVE-2019-9512)", "pings", |_| {
        frame(PING, 0, 0, &[1; 8])
    }),
    ("acknowledged pings", "pings", |_| {
        frame(PING, 1, 0, &[1; 8])
    }),
    ("settings (CVE-2019-9515)", "settings", |_| {
        frame(SETTINGS, 0, 0, &[])
    }),
    (
        "empty data (CVE-2019-9518)",
        "empty_data",
        |nth| match nth {
            0 => open(1),
            _ => frame(DATA, 0, 1, &[]),
        },
    ),
    ("data of padding alone", "empty_data", |nth| match nth {
        0 => open(1),
        _ => frame(DATA, PADDED, 1, &[2, 0, 0]),
    }),
    ("priorities (CVE-2019-9513)", "control", |nth| {
        frame(PRIORITY, 0, stream(nth), &[0, 0, 0, 0, 1])
    }),
    ("window updates", "control", |_| {
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
    }),
    ("unknown frames", "control", |_| frame(99, 0, 0, b"?")),
    (
        "header blocks without end (CVE-2024-27316)",
        "continuations",
        |nth| match nth {
            0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
            _ => frame(CONTINUATION, 0, 1, &block(&[("x", "y")])),
        },
    ),
    (
        "empty parts of a header block",
        "continuations",
        |nth| match nth {
            0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
            _ => frame(CONTINUATION, 0, 1, &[]),
        },
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_flood_ends_its_own_connection_within_a_second() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        "limit.burst = 100000\nlimit.requests_per_minute = 1000000",
    );
    let clock = Clock::machine();
    let mut honest = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    let mut http1 = Client::connect_from(HONEST, gateway.public).await;
    let mut asked = 0;
    for (name, kind, flood) in FLOODS {
        let before = floods(&gateway, kind).await;
        let mut hostile = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
        let began = clock.now();
        let frames = (0..20_000).map(flood);
        let frames: Vec<Vec<u8>> = frames.collect();
        let attack = async {
            for some in frames.chunks(64) {
                if !hostile.try_send(&some.concat()).await {
                    break;
                }
            }
            hostile.end().await
        };
        let polite = async {
            for nth in 0..10 {
                honest.send(&request(stream(asked + nth), TOKEN, &[])).await;
                let outcome = honest.outcome(stream(asked + nth)).await;
                assert!(
                    matches!(outcome, Outcome::Status(200, _)),
                    "{name}: {outcome:?}"
                );
                assert_eq!(http1.get(TOKEN).await.status, 200, "{name}");
            }
        };
        let (code, ()) = tokio::join!(attack, polite);
        asked += 10;
        assert!(
            clock.now().since(began) < Duration::from_secs(1),
            "{name}: {:?}",
            clock.now().since(began)
        );
        // A client that still writes may lose the code.
        assert!(
            code.is_none_or(|code| code == ENHANCE_YOUR_CALM || code == 1),
            "{name}: {code:?}"
        );
        let after = floods(&gateway, kind).await;
        assert_eq!(after, before + 1, "{name} counts as {kind}");
    }
    assert!(upstream.count() <= 1, "{:?}", upstream.targets());
    let metrics = gateway.admin("/metrics").await;
    let line = "ordgate_http2_floods_total{kind=\"resets\"} 1\n";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

/// How many connections were closed for such a flood.
async fn floods(gateway: &Gateway, kind: &str) -> u64 {
    let status = gateway.admin("/status").await.json();
    status["connections"]["http2"]["floods"][kind]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn an_honest_client_may_reset_and_ping() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    for nth in 0..80 {
        let both = [
            request(stream(nth), TOKEN, &[]),
            frame(RST_STREAM, 0, stream(nth), &[0, 0, 0, 8]),
            frame(PING, 0, 0, &[2; 8]),
        ];
        client.send(&both.concat()).await;
    }
    assert!(client.is_alive().await);
}

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
async fn a_client_that_reads_slowly_and_steadily_gets_all() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(
        &upstream,
        "server.write_timeout = \"300ms\"\nserver.min_send_rate = \"1KiB\"",
    );
    upstream.always(Reply::json(format!("\"{}\"", "x".repeat(5_000))));
    let mut client = FrameClient::connect_from(HONEST, gateway.public, &[(WINDOW, 100)]).await;
    client.send(&request(1, TOKEN, &[])).await;
    client.next_of(HEADERS).await.unwrap();
    loop {
        let data = client.next_of(DATA).await.unwrap();
        if data.flags & END_STREAM != 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        client
            .send(&frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 100]))
            .await;
    }
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

#[tokio::test]
async fn pings_do_not_keep_an_idle_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.idle_timeout = \"300ms\"");
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
    let pinging = async {
        while client.try_send(&frame(PING, 0, 0, &[3; 8])).await && gateway.connections() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("it is closed", pinging).await;
    until("it is gone", || gateway.connections() == 0).await;
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
