//! HTTP/2: floods of frames, windows that are never opened, and requests that are never
//! whole. Each ends its own connection.

use std::io::Write;
use std::time::Duration;

use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, PADDED, PING,
    PREFACE, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get, request,
};
use crate::support::{Client, Gateway, Process, ROUTES, Reply, TOKEN, Upstream, respect, until};

/// Streams 1, 3, 5 and so on.
fn stream(nth: u32) -> u32 {
    nth * 2 + 1
}

/// Where the hostile client comes from, and the honest one.
const HOSTILE: [u8; 4] = [127, 0, 0, 66];
const HONEST: [u8; 4] = [127, 0, 0, 2];

/// SETTINGS_INITIAL_WINDOW_SIZE
const WINDOW: u16 = 4;

/// How many frames a client sends at most, and by how much the memory of the process may
/// grow in a flood.
const FRAMES: u32 = 40_000;
const GROWTH: u64 = 10 << 20;

/// Begins a request that waits for its body.
fn begun(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(&get("/upload")))
}

/// Frames that cost the client nothing: the one with a number, and what belongs to it.
#[rustfmt::skip]
const FLOODS: [(&str, fn(u32) -> Vec<u8>); 13] = [
    ("CVE-2023-44487: rapid reset", |nth| [request(stream(nth), TOKEN, &[]), frame(RST_STREAM, 0, stream(nth), &[0, 0, 0, 8])].concat()),
    ("CVE-2024-27316: a header block without end", |nth| match nth {
        0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
        _ => frame(CONTINUATION, 0, 1, &block(&[("x", "y")])),
    }),
    ("empty parts of a header block", |nth| match nth {
        0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
        _ => frame(CONTINUATION, 0, 1, &[]),
    }),
    // A body that is shorter than announced.
    ("CVE-2025-8671: provoked resets", |nth| request(stream(nth), TOKEN, &[("content-length", "4")])),
    ("CVE-2025-8671: windows that overflow", |nth| [begun(stream(nth)), frame(WINDOW_UPDATE, 0, stream(nth), &[0x7f, 0xff, 0xff, 0xff])].concat()),
    ("CVE-2019-9512: pings", |_| frame(PING, 0, 0, &[1; 8])),
    ("acknowledged pings", |_| frame(PING, 1, 0, &[1; 8])),
    ("CVE-2019-9515: settings", |_| frame(SETTINGS, 0, 0, &[])),
    ("CVE-2019-9518: empty data", |nth| if nth == 0 { begun(1) } else { frame(DATA, 0, 1, &[]) }),
    ("data of padding alone", |nth| if nth == 0 { begun(1) } else { frame(DATA, PADDED, 1, &[2, 0, 0]) }),
    ("CVE-2019-9513: priorities", |nth| frame(PRIORITY, 0, stream(nth), &[0, 0, 0, 0, 1])),
    ("window updates", |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
    ("unknown frames", |_| frame(99, 0, 0, b"?")),
];

/// Each flood ends its own connection, leaves the memory of the process as it was, is logged
/// with its client, and costs an honest client nothing.
#[tokio::test]
async fn a_flood_of_frames_ends_its_own_connection() {
    let upstream = Upstream::start();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        config,
        "builtin_routes = false\nlimit.burst = 100000\nlimit.requests_per_minute = 1000000\n{ROUTES}"
    )
    .unwrap();
    let config = config.path().display().to_string();
    let (process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
    let mut honest = FrameClient::connect_from(HONEST, public, &[]).await;
    let mut http1 = Client::connect_from(HONEST, public).await;
    let mut asked = 0;
    let mut ask = async |times: u32| {
        for _ in 0..times {
            honest.send(&request(stream(asked), TOKEN, &[])).await;
            let outcome = honest.outcome(stream(asked)).await;
            assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
            assert_eq!(http1.get(TOKEN).await.status, 200);
            asked += 1;
        }
    };
    ask(10).await;
    let mut admin = Client::connect(admin).await;
    for (ended, (name, flood)) in (1..).zip(FLOODS) {
        let frames: Vec<_> = (0..FRAMES).map(flood).collect();
        let mut hostile = FrameClient::connect_from(HOSTILE, public, &[]).await;
        let before = process.most_memory();
        let attack = async {
            for some in frames.chunks(64) {
                if !hostile.try_send(&some.concat()).await {
                    break;
                }
            }
            hostile.end().await
        };
        tokio::join!(attack, ask(10));
        let after = process.most_memory();
        assert!(
            after < before + GROWTH,
            "{name}: {before} bytes, then {after}"
        );
        let counted = async {
            loop {
                let of = admin.get("/status").await.json()["connections"].clone();
                if (of["http2_floods"].as_u64(), of["open"].as_u64()) == (Some(ended), Some(2)) {
                    return;
                }
            }
        };
        crate::support::within(name, counted).await;
        let logged = || process.errors().matches("HTTP/2 frames").count();
        until(name, || logged() >= 1).await;
        let log = process.errors();
        // h2 has a warning for some of these frames; the same flood is logged once in a while.
        assert!(log.lines().count() < 100, "{name}: {log:.2000}");
        let lines = log.lines().filter(|line| line.contains("HTTP/2 frames"));
        assert!(
            lines.clone().all(|line| line.contains("127.0.0.66")),
            "{log}"
        );
    }
    // The token is stored for ten seconds.
    assert!(upstream.count() < 20, "{}", upstream.count());
}

#[tokio::test]
async fn a_window_that_is_not_opened_ends_the_connection_whatever_else_comes() {
    let upstream = Upstream::start();
    upstream.always(Reply::json(format!("\"{}\"", "x".repeat(20_000))));
    let gateway = Gateway::with(&upstream, "server.write_timeout = \"400ms\"");
    // A window of no bytes, and one of a byte that is renewed now and then.
    for renewed in [false, true] {
        let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[(WINDOW, 0)]).await;
        client.send(&request(1, TOKEN, &[])).await;
        client.next_of(HEADERS).await.unwrap();
        let mut bytes = frame(PING, 0, 0, &[3; 8]);
        if renewed {
            bytes.extend(frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]));
        }
        while gateway.connections() > 0 && client.try_send(&bytes).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        until("it is gone", || gateway.connections() == 0).await;
    }
    assert_eq!(gateway.figure("/connections/reset_slow"), 2);
    assert_eq!(gateway.figure("/unsent/bytes"), 0);
}

/// Whatever else a client sends, only requests keep its connection.
#[tokio::test]
async fn a_connection_without_a_whole_request_is_idle() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.idle_timeout = \"100ms\"");
    let part = block(&get(TOKEN));
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let mut clients = Vec::new();
    for bytes in [
        b"PRI * HTTP".to_vec(),
        b"PRI * HTTP/2.0\r\n".to_vec(),
        PREFACE.to_vec(),
        [&begin[..], &frame(HEADERS, 5, 1, &part)[..20]].concat(),
        [begin.clone(), frame(HEADERS, END_STREAM, 1, &part)].concat(),
    ] {
        let mut client = FrameClient::silent(HOSTILE, gateway.public).await;
        client.send(&bytes).await;
        clients.push(client);
    }
    for client in &mut clients {
        client.end().await;
    }
    until("all are gone", || gateway.connections() == 0).await;
}

/// Waits until the figures of `/status` are so: the bytes that are held, and how many
/// connections were reset for them.
async fn until_held(gateway: &Gateway, what: &str, holds: impl Fn(u64, u64) -> bool) {
    until(what, || {
        let bytes = gateway.figure("/unsent/bytes");
        holds(bytes, gateway.figure("/connections/reset_unsent"))
    })
    .await;
}

/// What the streams of one connection hold counts for its client, and in total: a stored
/// answer once. What is streamed waits at the upstream until the client takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_are_not_read_count_by_stream() {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.target().starts_with("/endless") {
        false => Reply::with(
            200,
            "cache-control: max-age=600\r\n",
            vec![b'x'; MIB as usize],
        ),
        true => {
            let head =
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncache-control: no-store\r\n\r\n";
            Reply::raw(head).endless(format!("4000\r\n{}\r\n", "x".repeat(0x4000)))
        }
    });
    let bounds = "server.max_unsent_bytes = \"8MiB\"\ncache.max_bytes = \"64MiB\"";
    let gateway = respect::plain(&upstream).config(bounds).start();
    for nth in 0..8 {
        assert_eq!(gateway.get(&format!("/{nth}")).await.status, 200);
    }
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[(WINDOW, 0)]).await;
    let mut nth = 0;
    let mut ask = async |client: &mut FrameClient, target: &str| {
        client.send(&request(stream(nth), target, &[])).await;
        nth += 1;
        client.next_of(HEADERS).await.is_some()
    };
    for _ in 0..8 {
        assert!(ask(&mut client, "/0").await);
    }
    until_held(&gateway, "the same response counts once", |held, _| {
        held / MIB == 1
    })
    .await;
    for streams in 1..=4 {
        assert!(ask(&mut client, &format!("/endless/{streams}")).await);
        let span = MIB..=MIB + 64 * KIB;
        until_held(&gateway, "it waits", |held, _| span.contains(&held)).await;
    }
    // Another client gets the same responses meanwhile.
    let mut honest = FrameClient::connect_from(HONEST, gateway.public, &[]).await;
    honest.send(&request(1, "/endless/1", &[])).await;
    honest.next_of(DATA).await.unwrap();
    drop(honest);
    // More than its bound: the connection is closed, and all is free.
    for target in ["/1", "/2", "/3", "/4", "/5"] {
        ask(&mut client, target).await;
    }
    client.end().await;
    until_held(&gateway, "nothing is held", |held, reset| {
        (held, reset) == (0, 1)
    })
    .await;
    assert_eq!(gateway.get("/1").await.body.len() as u64, MIB);
}
