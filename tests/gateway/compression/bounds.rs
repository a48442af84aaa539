//! The bounds of compression: one run for each body and coding, the memory of the
//! cache, and what one client can have others wait for.

use super::{CODINGS, count, decoded, text, upstream};
use crate::support::{Client, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip")];

/// Everything that was to be compressed, whatever came of it.
fn runs(gateway: &Gateway) -> u64 {
    ["made", "not_worthwhile", "overtaken", "skipped"]
        .map(|result| count(gateway, result))
        .iter()
        .sum()
}

#[tokio::test]
async fn ten_thousand_requests_are_one_run() {
    let upstream = upstream(1_000_000);
    let setup = Setup::before(&upstream).config("limit.enabled = false\nserver.workers = 2");
    let gateway = setup.manual().start();
    gateway.get(TOKEN).await;
    let clients = (0..100).map(|_| async {
        let mut client = gateway.client().await;
        for _request in 0..100 {
            // Without the body, so that many come while it is being compressed.
            let answer = client.request("HEAD", TOKEN, &GZIP).await;
            assert_eq!(answer.status, 200);
        }
    });
    futures_util::future::join_all(clients).await;
    until("it is compressed", || count(&gateway, "made") == 1).await;
    let answer = gateway.request("GET", TOKEN, &GZIP).await;
    assert_eq!(answer.must("content-encoding"), "gzip");
    assert_eq!(decoded(&answer), text(1_000_000).as_bytes());
    assert_eq!((runs(&gateway), upstream.count()), (1, 1));
}

#[tokio::test]
async fn compressed_bodies_stay_within_the_bound_of_the_cache() {
    let upstream = upstream(0);
    upstream.usually(|seen| {
        // Hard to compress, so that what is made is large.
        let (mut state, mut body) = (seen.raw.len() as u64, String::new());
        for byte in seen.raw.iter() {
            state = state.wrapping_mul(31).wrapping_add(u64::from(*byte));
        }
        while body.len() < 6000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            body.push_str(&format!("{:016x}", state ^ state >> 29));
        }
        Reply::json(format!("[\"{body}\"]"))
    });
    let setup =
        Setup::before(&upstream).config("limit.enabled = false\ncache.max_bytes = \"1MiB\"");
    let gateway = setup.manual().start();
    let mut client = gateway.client().await;
    // More than fit even without codings.
    for number in 0..240 {
        for coding in ["zstd", "gzip"] {
            for _request in 0..3 {
                let fields = [("accept-encoding", coding)];
                let answer = client.request("GET", &token(number), &fields).await;
                assert_eq!(answer.status, 200);
            }
        }
        if number % 8 == 7 {
            until("there is room", || {
                gateway.figure("/compression/waiting") == 0
            })
            .await;
        }
    }
    assert!(count(&gateway, "made") > 300, "most were made");
    let entries = gateway.entries();
    let (bytes, held) = (
        gateway.figure("/cache/bytes"),
        gateway.figure("/compression/bytes"),
    );
    assert!(bytes <= 1 << 20, "{bytes}");
    assert!(held > 100_000, "{held}");
    // Each body is 6 KB, and takes that beside what was made of it.
    assert!(entries * 6000 + held < bytes, "{entries} {held} {bytes}");
}

/// A gateway with two clients.
async fn crowd(upstream: &Upstream) -> (Gateway, Client, Client) {
    let setup = Setup::before(upstream).config("limit.enabled = false");
    let gateway = setup.manual().start();
    let greedy = gateway.client_from([127, 0, 0, 2]).await;
    let honest = gateway.client_from([127, 0, 0, 3]).await;
    (gateway, greedy, honest)
}

#[tokio::test]
async fn a_client_that_wants_everything_compressed_delays_no_other() {
    let upstream = upstream(300_000);
    let (gateway, mut greedy, mut honest) = crowd(&upstream).await;
    honest.request("GET", TOKEN, &GZIP).await;
    for number in 0..100 {
        for coding in CODINGS {
            for _request in 0..2 {
                let fields = [("accept-encoding", coding)];
                let answer = greedy.request("GET", &token(number), &fields).await;
                assert_eq!(answer.status, 200, "it gets its answers too");
            }
        }
        assert!(
            gateway.figure("/compression/waiting") <= 32,
            "of one client"
        );
    }
    // The queue is as full as that client can make it; the other is next but one.
    let answer = honest.request("GET", TOKEN, &GZIP).await;
    assert_eq!(answer.body, text(300_000).as_bytes(), "it does not wait");
    let before = runs(&gateway);
    let mut turns;
    loop {
        // Counted before the request, which may take long on a busy machine.
        turns = runs(&gateway) - before;
        let answer = honest.request("GET", TOKEN, &GZIP).await;
        if answer.field("content-encoding").is_some() {
            assert_eq!(decoded(&answer), text(300_000).as_bytes());
            break;
        }
        assert!(turns < 8, "it waits for more than the turn of another");
    }
    assert!(
        count(&gateway, "skipped") > 0,
        "the queue was full: {turns}"
    );
}

#[tokio::test]
async fn eight_greedy_clients_leave_room_for_another() {
    const SLOW: [&str; 2] = ["br", "gzip"];
    let upstream = upstream(100_000);
    let setup = Setup::before(&upstream).config("limit.enabled = false\nserver.workers = 2");
    let gateway = setup.manual().start();
    let brotli = [("accept-encoding", "br")];
    let mut honest = gateway.client_from([127, 0, 0, 3]).await;
    honest.request("HEAD", TOKEN, &brotli).await;
    // The second request for a coding has the body compressed.
    for _request in 0..2 {
        let greedy = (0..8_u8).map(async |client| {
            let mut greedy = gateway.client_from([127, 0, 0, 10 + client]).await;
            for number in 0..25 {
                let target = token(usize::from(client) * 25 + number);
                for coding in SLOW {
                    let fields = [("accept-encoding", coding)];
                    let answer = greedy.request("HEAD", &target, &fields).await;
                    assert_eq!(answer.status, 200, "it gets its answers too");
                }
            }
        });
        futures_util::future::join_all(greedy).await;
    }
    let waiting = gateway.figure("/compression/waiting");
    assert!((200..=256).contains(&waiting), "{waiting}");
    let ended = || runs(&gateway) - count(&gateway, "skipped");
    honest.request("HEAD", TOKEN, &brotli).await;
    // Its body is in the queue now. Its turn comes after one of each other client, and
    // the one that was under way.
    let before = ended();
    until("its turn has come", || ended() >= before + 12).await;
    let answer = honest.request("GET", TOKEN, &brotli).await;
    assert_eq!(answer.must("content-encoding"), "br");
    assert_eq!(decoded(&answer), text(100_000).as_bytes());
    // What waits is not compressed any more.
    gateway.purge("all").await;
}

/// What may happen while a body is compressed.
const MEANWHILE: [&str; 5] = [
    "replaced",
    "purged",
    "cache.max_bytes = \"32MiB\"",
    "answers.compression.codings = [\"gzip\"]",
    "answers.compression.enabled = false",
];

#[tokio::test]
async fn what_happens_while_a_body_is_compressed_makes_no_answer_wrong() {
    for change in MEANWHILE {
        let upstream = upstream(1_000_000);
        let gateway = Setup::before(&upstream).manual().start();
        let brotli = [("accept-encoding", "br, gzip;q=0.5")];
        gateway.get(TOKEN).await;
        for _request in 0..2 {
            gateway.request("HEAD", TOKEN, &brotli).await;
        }
        until("it is begun", || {
            gateway.figure("/compression/waiting") == 0
        })
        .await;
        let mut expected = text(1_000_000);
        match change {
            "replaced" | "purged" => {
                expected = text(900_000);
                upstream.always(Reply::json(&expected));
                match change {
                    "purged" => assert_eq!(gateway.purge("all").await.status, 200),
                    _ => gateway.advance(11_000),
                }
            }
            settings => assert_eq!(gateway.reload(settings).await.status, 200),
        }
        for _request in 0..2 {
            let answer = gateway.request("GET", TOKEN, &brotli).await;
            assert_eq!(decoded(&answer), expected.as_bytes(), "{change}");
        }
        let ended = || count(&gateway, "made") + count(&gateway, "overtaken") > 0;
        until("the run has ended", ended).await;
        let answer = gateway.request("GET", TOKEN, &brotli).await;
        assert_eq!(decoded(&answer), expected.as_bytes(), "{change}");
        if change.contains("enabled") {
            assert_eq!(answer.field("content-encoding"), None);
        }
        let held = gateway.figure("/compression/bytes");
        assert!(gateway.figure("/cache/bytes") >= held, "{change}");
        assert_eq!(gateway.purge("all").await.status, 200);
        let is_idle = || {
            gateway.entries();
            gateway.figure("/compression/bytes") == 0
        };
        until("its memory is free", is_idle).await;
    }
}
