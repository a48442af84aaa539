//! Class *live*: how often a token is fetched after its tip has moved.

use ordgate::sandbox::{Sandbox, Settings};

use super::{Ground, ORDINALS, before, for_status, own, probe_all, reply, targets, tip_of};
use crate::support::{Reply, Upstream, token};

/// Once at once, and once more after half a minute, since the indexer may write a token a
/// while after it has moved its tip.
#[tokio::test]
async fn after_a_new_tip_each_token_is_fetched_twice() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = Upstream::start();
    let answer_with = |body: &'static str| {
        let model = sandbox.clone();
        upstream.usually(move |seen| match for_status(seen) {
            true => reply(&model, &seen.target()),
            // Each answer bears the tip's tag.
            false => Reply::with(200, &own(&model, "/ordinals/v1/").1, body),
        });
    };
    answer_with("{\"token\":1}");
    let gateway = before(&upstream, "limit.enabled = false").await;
    let mut client = gateway.client().await;
    let mut ask = async |seconds: u64| {
        for second in 0..seconds {
            gateway.advance(1_000);
            if second % 5 == 4 {
                probe_all(&gateway).await;
            }
            for number in 0..6 {
                client.get(&token(number)).await;
            }
        }
        (targets(&upstream).len(), client.get(&token(0)).await)
    };
    assert_eq!(ask(5).await.0, 6);
    let epoch = tip_of(&gateway, ORDINALS).epoch;
    sandbox.advance(1);
    probe_all(&gateway).await;
    assert!(tip_of(&gateway, ORDINALS).epoch > epoch);
    assert_eq!(ask(20).await.0, 12);
    // The indexer writes its tokens only now.
    answer_with("{\"token\":2}");
    let (fetched, last) = ask(15).await;
    assert_eq!((fetched, last.text()), (18, "{\"token\":2}"));
}

/// Two intervals from the last status on; less while an indexer may still write, at the end of
/// the token's ten minutes, and without a tip.
#[tokio::test]
async fn a_browser_can_reuse_a_hit_of_a_token_as_long_as_ordgate_can() {
    let config = "limit.enabled = false\nchain.tip.ordinals.every = \"5s\"";
    let ground = Ground::with(Settings::default(), config).await;
    let token = "/ordinals/v1/brc-20/tokens/ordi";
    // Without a status for so long, an answer is fresh for a second.
    ground.gateway.advance(10_001);
    assert_eq!(ground.same(token).await.reusable_for(), 1);
    let mut hits = 0;
    for second in 0..1300 {
        if second % 5 == 0 {
            ground.probe().await;
        }
        if second == 650 {
            ground.sandbox.advance(1);
        }
        let answer = ground.gateway.get(token).await;
        let usable = answer.reusable_for();
        if let Some(ttl) = answer
            .must("cache-status")
            .strip_prefix("ordgate; hit; ttl=")
        {
            hits += 1;
            assert_eq!(ttl, usable.to_string(), "at {second}");
        }
        assert!(usable <= 10 - second % 5, "{usable} at {second}");
        ground.gateway.advance(1000);
    }
    assert!(hits > 1290, "{hits}");
}
