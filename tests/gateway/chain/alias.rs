//! A block by its height and by its hash is one stored response.

use super::{Ground, block};

#[tokio::test]
async fn a_block_by_hash_is_a_hit_after_its_height() {
    let ground = Ground::new().await;
    for depth in [0, 3, 30] {
        let height = ground.tip() - depth;
        let hash = ground.sandbox.hash_at(height).unwrap();
        ground.costs(&block(height), 1).await;
        let hit = ground.costs(&block(&hash), 0).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
        let upper = hash.to_uppercase();
        let hit = ground.gateway.get(&block(&upper)).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
        // So do its other pages, as far as the window has them.
        ground
            .costs(&format!("{}?limit=3&offset=2", block(&hash)), 0)
            .await;
    }
}

#[tokio::test]
async fn a_block_by_height_is_a_hit_after_its_hash() {
    let ground = Ground::new().await;
    for depth in [1, 30] {
        let height = ground.tip() - depth;
        let hash = ground.sandbox.hash_at(height).unwrap();
        ground.costs(&block(&hash), 1).await;
        ground.costs(&block(height), 0).await;
        ground.costs(&block(&hash), 0).await;
        // The window is the height's, and so are all pages that it has.
        let page = format!("{}?limit=2&offset=1", block(height));
        ground.costs(&page, 0).await;
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
