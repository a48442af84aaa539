//! A block by its height and by its hash is one stored response.

use super::{Ground, block};

#[tokio::test]
async fn a_block_by_height_and_by_hash_is_one_stored_response() {
    for depth in [0, 3, 30] {
        for by_hash_first in [false, true] {
            let ground = Ground::new().await;
            let height = ground.tip() - depth;
            let hash = ground.sandbox.hash_at(height).unwrap();
            let names = [block(height), block(&hash)];
            let first = usize::from(by_hash_first);
            ground.costs(&names[first], 1).await;
            for name in [&names[1 - first], &names[first]] {
                let hit = ground.costs(name, 0).await;
                assert!(hit.must("cache-status").starts_with("ordgate; hit"));
                // So are its other pages, as far as the window has them.
                ground.costs(&format!("{name}?limit=3&offset=2"), 0).await;
            }
            ground.gateway.get(&block(hash.to_uppercase())).await;
            ground.costs(&names[0], 0).await;
        }
    }
}

#[tokio::test]
async fn a_reorg_separates_height_and_hash() {
    let ground = Ground::new().await;
    let tip = ground.tip();
    let old = ground.sandbox.hash_at(tip).unwrap();
    ground.costs(&block(tip), 1).await;
    ground.costs(&block(&old), 0).await;
    // The tip is still the same, so that this was of it.
    ground.probe().await;
    ground.sandbox.reorg(1);
    // Before it is known, height and hash still are what they were.
    let before = ground.requests();
    assert!(ground.gateway.get(&block(&old)).await.text().contains(&old));
    assert_eq!(ground.requests(), before);
    ground.probe().await;
    assert_eq!(
        ground.requests() - before,
        1,
        "whether the tip's block stands"
    );
    let new = ground.sandbox.hash_at(tip).unwrap();
    for _ in 0..2 {
        let orphan = ground.same(&block(&old)).await;
        assert!(orphan.text().contains("\"results\":[]"));
        assert_eq!(orphan.must("cache-control"), "public, max-age=1");
        ground.same(&block(&new)).await;
        ground.same(&block(tip)).await;
    }
    assert_eq!(ground.requests() - before, 3);
}
