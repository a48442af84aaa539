//! Floods of frames that cost the client nothing. For each: how many frames a connection
//! accepts, with a clock that stands still; and before a process, that 20,000 frames end
//! their own connection, leave its memory as it was, and cost an honest client nothing.

use std::io::Write;
use std::time::Duration;

use serde_json::Value;

use super::{HONEST, HOSTILE, stream};
use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, PADDED, PING,
    PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get, request,
};
use crate::support::{Client, Process, Setup, TOKEN, Upstream, until, within};

/// Error codes (RFC 9113 §7).
const PROTOCOL_ERROR: u32 = 1;
const ENHANCE_YOUR_CALM: u32 = 11;
/// How many frames a client sends at most.
const FRAMES: u32 = 20_000;
/// By how much the memory of the process may grow in a flood.
const GROWTH: u64 = 10 << 20;
/// No limit of requests is in the way.
const LIMITS: &str = "limit.burst = 100000\nlimit.requests_per_minute = 1000000";

/// A flood.
struct Flood {
    /// What `/status` and the metric may call it. h2 has bounds of its own, and which
    /// one is reached first depends on how many frames are read at once.
    kinds: &'static [&'static str],
    /// How many frames a connection accepts in a second.
    accepted: u32,
    /// The frame with this number, and what belongs to it.
    frame: fn(u32) -> Vec<u8>,
    /// The last frame where the connection is to go on, if that differs.
    end: Option<Vec<u8>>,
    /// Whether the streams are reset. They count as open until that is sent.
    is_reset: bool,
}

/// A request that waits for its body.
fn open() -> Vec<u8> {
    frame(HEADERS, END_HEADERS, 1, &block(&get("/upload")))
}

fn reset(nth: u32) -> Vec<u8> {
    let reset = frame(RST_STREAM, 0, stream(nth), &[0, 0, 0, 8]);
    [request(stream(nth), TOKEN, &[]), reset].concat()
}

impl Flood {
    fn new(kinds: &'static [&'static str], accepted: u32, frame: fn(u32) -> Vec<u8>) -> Self {
        Self {
            kinds,
            accepted,
            frame,
            end: None,
            is_reset: false,
        }
    }

    async fn check(&self) {
        self.check_bound().await;
        self.check_cost().await;
    }

    /// The connection ends after so many frames, and not before.
    async fn check_bound(&self) {
        let upstream = Upstream::start();
        let gateway = Setup::before(&upstream).config(LIMITS).manual().start();
        let frames: Vec<_> = (0..=self.accepted).map(self.frame).collect();
        let (last, accepted) = frames.split_last().unwrap();
        let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
        let mut whole = accepted.to_vec();
        if let Some(end) = &self.end {
            whole.pop();
            whole.push(end.clone());
        }
        client.send(&whole.concat()).await;
        if self.is_reset {
            let outcome = client.outcome(stream(self.accepted - 1)).await;
            assert!(matches!(outcome, Outcome::Reset(_)), "{outcome:?}");
        }
        client.send(&request(stream(FRAMES), TOKEN, &[])).await;
        let outcome = client.outcome(stream(FRAMES)).await;
        assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
        let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
        client.send(&[&accepted.concat()[..], last].concat()).await;
        // The client still writes at times when it is closed, and loses the code.
        let code = client.end().await.unwrap_or(ENHANCE_YOUR_CALM);
        assert!(
            [ENHANCE_YOUR_CALM, PROTOCOL_ERROR].contains(&code),
            "{code}"
        );
        // It is counted right after the client can see the end.
        let counted = async {
            while self.count(&gateway.admin("/status").await.json()) != 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("the flood is counted", counted).await;
    }

    /// How many connections have ended for it.
    fn count(&self, status: &Value) -> u64 {
        let floods = &status["connections"]["http2"]["floods"];
        self.kinds
            .iter()
            .map(|kind| floods[kind].as_u64().unwrap())
            .sum()
    }

    /// The whole flood does not make the process grow, and does not delay others.
    async fn check_cost(&self) {
        let upstream = Upstream::start();
        let mut config = tempfile::NamedTempFile::new().unwrap();
        writeln!(config, "{LIMITS}\n{}", crate::support::gateway::ROUTES).unwrap();
        let config = config.path().display().to_string();
        let (process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
        let mut honest = FrameClient::connect_from(HONEST, public, &[]).await;
        let mut http1 = Client::connect_from(HONEST, public).await;
        let mut asked = 0;
        let mut ask = async || {
            honest.send(&request(stream(asked), TOKEN, &[])).await;
            let outcome = honest.outcome(stream(asked)).await;
            assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
            assert_eq!(http1.get(TOKEN).await.status, 200);
            asked += 1;
        };
        for _ in 0..10 {
            ask().await;
        }
        let frames: Vec<_> = (0..FRAMES).map(self.frame).collect();
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
        let polite = async {
            for _ in 0..20 {
                ask().await;
            }
        };
        tokio::join!(attack, polite);
        let after = process.most_memory();
        assert!(after < before + GROWTH, "{before} bytes, then {after}");
        let mut admin = Client::connect(admin).await;
        let ended = async {
            loop {
                let status = admin.get("/status").await.json();
                if status["connections"]["http2"]["open"] == 1 {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let status = within("only the honest one is open", ended).await;
        assert_eq!(self.count(&status), 1, "{status}");
        let written = async {
            while !process.errors().contains("HTTP/2 frames") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("the flood is logged", written).await;
        let logged = process.errors();
        // h2 has a warning for some of these frames.
        let lines = logged.lines().count();
        assert!(lines < 50, "{lines} lines: {logged:.2000}");
        let logged = logged.lines().filter(|line| line.contains("HTTP/2 frames"));
        let logged: Vec<_> = logged.collect();
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("127.0.0.66"), "{logged:?}");
        let names_kind = self.kinds.iter().any(|kind| logged[0].contains(kind));
        assert!(names_kind, "{logged:?}");
        assert!(upstream.count() <= 1, "{:?}", upstream.targets());
    }
}

#[tokio::test]
async fn cve_2023_44487_rapid_reset() {
    Flood::new(&["resets"], 100, reset).check().await;
}

/// The client is slow enough for the bound on each second.
#[tokio::test]
async fn cve_2023_44487_ten_thousand_resets_of_a_connection() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).config(LIMITS).manual().start();
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
    for hundred in 0..100 {
        let resets = (hundred * 100..hundred * 100 + 100).map(reset);
        client.send(&resets.collect::<Vec<_>>().concat()).await;
        assert!(client.is_alive().await, "after {hundred} times 100");
        gateway.advance(1000);
    }
    client.send(&reset(10_000)).await;
    assert_eq!(client.end().await, Some(ENHANCE_YOUR_CALM));
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn cve_2024_27316_header_blocks_without_end() {
    let next = |nth| match nth {
        0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
        _ => frame(CONTINUATION, 0, 1, &block(&[("x", "y")])),
    };
    let mut flood = Flood::new(&["continuations", "other"], 6, next);
    flood.end = Some(frame(CONTINUATION, END_HEADERS, 1, &[]));
    flood.check().await;
}

#[tokio::test]
async fn empty_parts_of_a_header_block() {
    let next = |nth| match nth {
        0 => frame(HEADERS, END_STREAM, 1, &block(&get(TOKEN))),
        _ => frame(CONTINUATION, 0, 1, &[]),
    };
    let mut flood = Flood::new(&["continuations", "other"], 6, next);
    flood.end = Some(frame(CONTINUATION, END_HEADERS, 1, &[]));
    flood.check().await;
}

#[tokio::test]
async fn cve_2025_8671_resets_that_are_provoked() {
    // A body that is shorter than announced.
    let next = |nth| request(stream(nth), TOKEN, &[("content-length", "4")]);
    let mut flood = Flood::new(&["other", "resets"], 100, next);
    flood.is_reset = true;
    flood.check().await;
}

/// The client is slow enough for the bound on each second. h2 has one for the life of a
/// connection.
#[tokio::test]
async fn errors_of_a_connections_streams_in_its_life() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).config(LIMITS).manual().start();
    let mut client = FrameClient::connect_from(HOSTILE, gateway.public, &[]).await;
    let malformed = |nth| request(stream(nth), TOKEN, &[("content-length", "4")]);
    for nth in 0..100 {
        client.send(&malformed(nth)).await;
        let outcome = client.outcome(stream(nth)).await;
        assert_eq!(outcome, Outcome::Reset(PROTOCOL_ERROR), "{nth}");
        gateway.advance(20);
    }
    client.send(&malformed(100)).await;
    assert_eq!(client.end().await, Some(ENHANCE_YOUR_CALM));
    until("it is counted", || {
        gateway.figure("/connections/http2/floods/other") == 1
    })
    .await;
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn cve_2025_8671_windows_that_overflow() {
    let next = |nth| {
        let fields = block(&get("/upload"));
        let open = frame(HEADERS, END_HEADERS, stream(nth), &fields);
        let update = frame(WINDOW_UPDATE, 0, stream(nth), &[0x7f, 0xff, 0xff, 0xff]);
        [open, update].concat()
    };
    let mut flood = Flood::new(&["other", "resets"], 100, next);
    flood.is_reset = true;
    flood.check().await;
}

#[tokio::test]
async fn cve_2019_9512_pings() {
    Flood::new(&["pings"], 100, |_| frame(PING, 0, 0, &[1; 8]))
        .check()
        .await;
}

#[tokio::test]
async fn acknowledged_pings() {
    // Of PINGs that were not sent.
    Flood::new(&["pings"], 10, |_| frame(PING, 1, 0, &[1; 8]))
        .check()
        .await;
}

#[tokio::test]
async fn cve_2019_9515_settings() {
    // The first ones, at the beginning, count.
    Flood::new(&["settings"], 49, |_| frame(SETTINGS, 0, 0, &[]))
        .check()
        .await;
}

#[tokio::test]
async fn cve_2019_9518_empty_data() {
    let next = |nth| match nth {
        0 => open(),
        _ => frame(DATA, 0, 1, &[]),
    };
    Flood::new(&["empty_data"], 101, next).check().await;
}

#[tokio::test]
async fn data_of_padding_alone() {
    let next = |nth| match nth {
        0 => open(),
        _ => frame(DATA, PADDED, 1, &[2, 0, 0]),
    };
    Flood::new(&["empty_data"], 101, next).check().await;
}

#[tokio::test]
async fn cve_2019_9513_priorities() {
    let next = |nth| frame(PRIORITY, 0, stream(nth), &[0, 0, 0, 0, 1]);
    Flood::new(&["control"], 1000, next).check().await;
}

#[tokio::test]
async fn window_updates() {
    let next = |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    Flood::new(&["control"], 1000, next).check().await;
}

#[tokio::test]
async fn unknown_frames() {
    Flood::new(&["control"], 1000, |_| frame(99, 0, 0, b"?"))
        .check()
        .await;
}
