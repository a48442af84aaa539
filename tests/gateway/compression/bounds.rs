//! What happens while a body is compressed.

use super::{count, decoded, text, upstream};
use crate::support::{Reply, Setup, TOKEN, until};

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
        gateway.request("HEAD", TOKEN, &brotli).await;
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
        let ended = || count(&gateway, "made") + count(&gateway, "skipped") > 0;
        until("the run has ended", ended).await;
        let answer = gateway.request("GET", TOKEN, &brotli).await;
        assert_eq!(decoded(&answer), expected.as_bytes(), "{change}");
        if change.ends_with("[]") {
            assert_eq!(answer.field("content-encoding"), None);
        }
        assert_eq!(gateway.purge("all").await.status, 200);
        until("its memory is free", || gateway.entries() == 0).await;
    }
}
