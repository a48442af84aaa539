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

/// What may happen while a body is compressed.
const MEANWHILE: [&str; 5] = [
    "replaced",
    "purged",
    "cache.max_bytes = \"32MiB\"",
    "answers.compression = [\"gzip\"]",
    "answers.compression = []",
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
        if change.ends_with("[]") {
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
