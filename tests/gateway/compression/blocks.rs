//! Compression of blocks, which are stored by height whichever way clients request them,
//! and of answers that are stale.

use ordgate::sandbox::{Sandbox, Settings};

use super::{count, decoded};
use crate::chain::{acting, before, block};
use crate::support::{Reply, until};

const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip")];

#[tokio::test]
async fn a_block_by_hash_is_compressed_while_the_upstream_is_down() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "limit.enabled = false").await;
    let height = sandbox.tip().height - 1;
    let target = block(sandbox.hash_at(height).unwrap());
    let plain = gateway.get(&target).await;
    assert!(plain.body.len() > 2000, "{}", plain.body.len());
    // There is a new tip, and nothing shows that the block still stands: it is stale, and
    // each request is a miss.
    sandbox.advance(1);
    for tip in [0, 1] {
        gateway.probe(tip).await;
    }
    upstream.always(Reply::status(503, "{}"));
    for _request in 0..2 {
        let stale = gateway.request("GET", &target, &GZIP).await;
        let status = stale.must("cache-status");
        assert!(status.ends_with("detail=stale-if-error"), "{status}");
        assert_eq!(stale.body, plain.body);
    }
    until("the run has ended", || {
        count(&gateway, "made") + count(&gateway, "overtaken") > 0
    })
    .await;
    for target in [&target, &block(height)] {
        let answer = gateway.request("GET", target, &GZIP).await;
        assert_eq!(answer.must("content-encoding"), "gzip", "{target}");
        assert_eq!(decoded(&answer), plain.body, "{target}");
    }
    assert_eq!(count(&gateway, "overtaken"), 0);
}

#[tokio::test]
async fn the_key_in_cache_status_is_that_of_the_stored_response() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "answers.cache_status_key = true").await;
    let height = sandbox.tip().height - 1;
    for answer in 0..2 {
        let target = block(sandbox.hash_at(height).unwrap());
        let status = gateway.get(&target).await.must("cache-status").to_owned();
        let key = format!("key=\"{}", block(height));
        assert!(status.contains(&key), "{answer}: {status}");
    }
}
